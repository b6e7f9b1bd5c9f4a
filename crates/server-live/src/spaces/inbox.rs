//! What waits for one connection: events of each space, and what is to be told beside them.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use tidewater_spaces::{LastValues, Pattern, ReceiverQueue, RouteRun};

use super::refusal::{Refusal, User};
use tidewater_server_config::SpaceConfig;

/// What each connection's queue of a space may hold once all together hold too much.
pub(crate) const CROWDED_BYTES: usize = 64 << 10;

/// A space while it is configured like this.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) config: SpaceConfig,
    pub(crate) last: Option<Mutex<LastValues>>,
}

/// The bytes that wait in all queues together.
#[derive(Debug)]
pub(crate) struct WaitingBytes {
    bytes: AtomicUsize,
    most: usize,
    /// Events that somebody was too slow for.
    missed: AtomicU64,
}

/// One connection, as others see it. Told apart by its number.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u64,
    pub(crate) user: User,
    inbox: Mutex<Inbox>,
    /// Events have come, or the end has.
    ready: Notify,
    /// Durable events have gone, or the connection has.
    room: Notify,
    noticed: Notify,
}

/// Something that the other side is told beside its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It was too slow for so many events of a space.
    Missed {
        /// The space.
        space: String,
        /// How many.
        events: u64,
    },
    /// So many of the events that it published were refused, the last of them for this.
    Refused {
        /// How many.
        events: u64,
        /// Why.
        refusal: Refusal,
    },
    /// The configuration does not let it subscribe to this any more.
    Unsubscribed {
        /// The pattern.
        pattern: Pattern,
    },
    /// The position that it had in a durable space is of another history: it gets all that is kept.
    History {
        /// The space.
        space: String,
    },
}

#[derive(Debug, Default)]
struct Inbox {
    /// Those in which events wait, in the order of their turns.
    outlets: VecDeque<(Arc<Space>, ReceiverQueue)>,
    /// Nothing more is taken.
    end: Option<Refusal>,
    is_closed: bool,
    missed: Vec<(String, u64)>,
    refused: Option<(u64, Refusal)>,
    unsubscribed: Vec<Pattern>,
    histories: Vec<String>,
}

impl Space {
    pub(crate) fn new(config: SpaceConfig) -> Space {
        // So that all of it finds a place in the queue of who subscribes.
        let most = config.queue_bytes / 2;
        // Of durable events, the centre knows the newest ones.
        let keeps = config.last_value && config.durable.is_none();
        let last = keeps.then(|| LastValues::new(most, most / 64));
        Space {
            config,
            last: last.map(Mutex::new),
        }
    }

    /// Whether its events wait where those of the other do: durable ones keep their order when the
    /// configuration changes.
    fn is(self: &Arc<Self>, other: &Arc<Space>) -> bool {
        let (mine, theirs) = (&self.config, &other.config);
        let are_durable = mine.durable.is_some() && theirs.durable.is_some();
        Arc::ptr_eq(self, other) || (are_durable && mine.name == theirs.name)
    }

    /// The newest events, if the space keeps them.
    pub(crate) fn last(&self) -> Option<MutexGuard<'_, LastValues>> {
        let last = self.last.as_ref()?;
        Some(last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl WaitingBytes {
    pub(crate) fn new(most: usize) -> WaitingBytes {
        WaitingBytes {
            bytes: AtomicUsize::new(0),
            most,
            missed: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Events that somebody was too slow for, so far.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// What may wait at the moment for one connection of a space.
    fn most_of(&self, space: &Space) -> usize {
        let queue = space.config.queue_bytes;
        match self.bytes() > self.most {
            true => queue.min(CROWDED_BYTES),
            false => queue,
        }
    }

    /// A queue held so many bytes and holds so many now.
    fn changed(&self, before: usize, now: usize) {
        match now >= before {
            true => self.bytes.fetch_add(now - before, Relaxed),
            false => self.bytes.fetch_sub(before - now, Relaxed),
        };
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Peer {}

impl PartialOrd for Peer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Peer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl Hash for Peer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

/// What came of handing a slice to a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PushOutcome {
    /// Nothing waited: it has to be woken.
    pub(crate) wakes: bool,
    /// Its queue is more than half full.
    pub(crate) is_crowded: bool,
}

/// What came of handing durable events to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptPushOutcome {
    Taken {
        /// Nothing waited.
        wakes: bool,
    },
    /// Its queue is full: nothing was taken.
    Full,
    /// It is gone, or about to.
    Gone,
}

impl Peer {
    pub(crate) fn new(number: u64, user: User) -> Peer {
        Peer {
            number,
            user,
            inbox: Mutex::default(),
            ready: Notify::new(),
            room: Notify::new(),
            noticed: Notify::new(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands it a run of events.
    pub(crate) fn push<R>(
        &self,
        waiting: &WaitingBytes,
        space: &Arc<Space>,
        publisher: u64,
        run: &RouteRun<R>,
    ) -> PushOutcome {
        let mut inbox = self.inbox();
        if inbox.is_closed || inbox.end.is_some() {
            return PushOutcome::default();
        }
        let was_empty = inbox.outlets.is_empty();
        let place = inbox.outlet(space);
        let outlet = &mut inbox.outlets[place].1;
        let most = waiting.most_of(space);
        outlet.set_most(most);
        let before = outlet.bytes();
        let pushed = outlet.push(publisher, run.bytes.clone(), run.events);
        let now = outlet.bytes();
        waiting.changed(before, now);
        if pushed.is_err() {
            let name = space.config.name.clone();
            inbox.clear(waiting);
            inbox.end = Some(Refusal::TooSlow(name));
        } else if now == 0 {
            // It was larger than the queue, and dropped by itself.
            self.forget_outlet(waiting, &mut inbox, place);
            return PushOutcome::default();
        }
        PushOutcome {
            wakes: was_empty || pushed.is_err(),
            is_crowded: now > most / 2,
        }
    }

    /// Hands it durable events, of which none is dropped: what does not fit is not taken, unless it
    /// is forced.
    pub(crate) fn push_kept(
        &self,
        waiting: &WaitingBytes,
        space: &Arc<Space>,
        run: &RouteRun<()>,
        forced: bool,
    ) -> KeptPushOutcome {
        let mut inbox = self.inbox();
        if inbox.is_closed || inbox.end.is_some() {
            return KeptPushOutcome::Gone;
        }
        let wakes = inbox.outlets.is_empty();
        let place = inbox.outlet(space);
        let outlet = &mut inbox.outlets[place].1;
        let before = outlet.bytes();
        let most = waiting.most_of(space);
        if !forced && before > 0 && before + run.bytes.len() > most {
            return KeptPushOutcome::Full;
        }
        outlet.set_most(usize::MAX);
        // There is room for everything.
        let _ = outlet.push(0, run.bytes.clone(), run.events);
        waiting.changed(before, outlet.bytes());
        KeptPushOutcome::Taken { wakes }
    }

    /// Whether its queue of a durable space is at most half full.
    pub(crate) fn has_room(&self, waiting: &WaitingBytes, space: &Arc<Space>) -> bool {
        let inbox = self.inbox();
        let waits = inbox.outlets.iter().find(|(it, _)| it.is(space));
        waits.is_none_or(|(_, outlet)| outlet.bytes() <= waiting.most_of(space) / 2)
    }

    /// Ends when its queue of a durable space is at most half full; false if it is gone.
    pub(crate) async fn room(&self, waiting: &WaitingBytes, space: &Arc<Space>) -> bool {
        loop {
            let freed = self.room.notified();
            if self.is_gone() {
                return false;
            }
            if self.has_room(waiting, space) {
                return true;
            }
            freed.await;
        }
    }

    fn is_gone(&self) -> bool {
        let inbox = self.inbox();
        inbox.is_closed || inbox.end.is_some()
    }

    /// Ends its connection.
    pub(crate) fn cut(&self, waiting: &WaitingBytes, refusal: Refusal) {
        let mut inbox = self.inbox();
        inbox.clear(waiting);
        inbox.end = Some(refusal);
        drop(inbox);
        self.room.notify_waiters();
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.ready.notify_one();
    }

    /// The next slice of events; spaces take turns. `None` if nothing waits.
    pub(crate) fn pop(&self, waiting: &WaitingBytes) -> Result<Option<Bytes>, Refusal> {
        let mut inbox = self.inbox();
        if let Some(end) = &inbox.end {
            return Err(end.clone());
        }
        let Some((space, outlet)) = inbox.outlets.front_mut() else {
            return Ok(None);
        };
        let before = outlet.bytes();
        let slice = outlet.pop().map(|(slice, _)| slice);
        waiting.changed(before, outlet.bytes());
        let missed = outlet.take_missed();
        let name = (missed > 0).then(|| space.config.name.clone());
        let is_durable = space.config.durable.is_some();
        if outlet.is_empty() {
            self.forget_outlet(waiting, &mut inbox, 0);
        } else {
            inbox.outlets.rotate_left(1);
        }
        if let Some(name) = name {
            self.miss_in(waiting, &mut inbox, name, missed);
        }
        drop(inbox);
        if is_durable {
            self.room.notify_waiters();
        }
        Ok(slice)
    }

    /// Ends when there may be something to pop.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    fn forget_outlet(&self, waiting: &WaitingBytes, inbox: &mut Inbox, place: usize) {
        let Some((space, mut outlet)) = inbox.outlets.remove(place) else {
            return;
        };
        let missed = outlet.take_missed();
        if missed > 0 {
            self.miss_in(waiting, inbox, space.config.name.clone(), missed);
        }
        if inbox.outlets.is_empty() {
            inbox.outlets = VecDeque::new();
        }
    }

    /// Events of a space are lost to it.
    pub(crate) fn miss(&self, waiting: &WaitingBytes, space: &str, events: u64) {
        self.miss_in(waiting, &mut self.inbox(), space.to_owned(), events);
    }

    /// All that is kept is sent to it, as its position counts for nothing.
    pub(crate) fn begin_anew(&self, space: &str) {
        self.inbox().histories.push(space.to_owned());
        self.noticed.notify_one();
    }

    fn miss_in(&self, waiting: &WaitingBytes, inbox: &mut Inbox, space: String, events: u64) {
        waiting.missed.fetch_add(events, Relaxed);
        match inbox.missed.iter_mut().find(|(name, _)| *name == space) {
            Some((_, missed)) => *missed += events,
            None => inbox.missed.push((space, events)),
        }
        self.noticed.notify_one();
    }

    /// Events that it published were refused.
    pub(crate) fn refuse(&self, events: u64, refusal: &Refusal) {
        let mut inbox = self.inbox();
        let before = inbox.refused.take().map_or(0, |(events, _)| events);
        inbox.refused = Some((before + events, refusal.clone()));
        self.noticed.notify_one();
    }

    pub(crate) fn unsubscribed(&self, pattern: Pattern) {
        self.inbox().unsubscribed.push(pattern);
        self.noticed.notify_one();
    }

    /// What is to be told next.
    pub(crate) async fn notice(&self) -> Notice {
        loop {
            if let Some(notice) = self.inbox().take_notice() {
                return notice;
            }
            self.noticed.notified().await;
        }
    }

    /// Nothing waits for it any more, and nothing will.
    pub(crate) fn close(&self, waiting: &WaitingBytes) {
        let mut inbox = self.inbox();
        inbox.clear(waiting);
        inbox.is_closed = true;
        drop(inbox);
        self.room.notify_waiters();
    }
}

impl Inbox {
    /// The place of the queue of a space, which is there from now on.
    fn outlet(&mut self, space: &Arc<Space>) -> usize {
        let known = self.outlets.iter().position(|(it, _)| it.is(space));
        known.unwrap_or_else(|| {
            let config = &space.config;
            let outlet = ReceiverQueue::new(config.queue_bytes, config.slow);
            self.outlets.push_back((Arc::clone(space), outlet));
            self.outlets.len() - 1
        })
    }

    fn clear(&mut self, waiting: &WaitingBytes) {
        for (_, outlet) in std::mem::take(&mut self.outlets) {
            waiting.changed(outlet.bytes(), 0);
        }
    }

    fn take_notice(&mut self) -> Option<Notice> {
        if let Some((events, refusal)) = self.refused.take() {
            return Some(Notice::Refused { events, refusal });
        }
        if let Some(pattern) = self.unsubscribed.pop() {
            return Some(Notice::Unsubscribed { pattern });
        }
        if let Some(space) = self.histories.pop() {
            return Some(Notice::History { space });
        }
        let (space, events) = self.missed.pop()?;
        Some(Notice::Missed { space, events })
    }
}
