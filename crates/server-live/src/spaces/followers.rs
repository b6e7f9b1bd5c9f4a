//! Durable spaces: whoever subscribed gets what was kept since his position, and then what comes.
//!
//! A *tail* is the end of a durable space as far as this server has passed it on; there is one while
//! somebody here is subscribed. Events reach it in the order of their numbers, without a gap: from
//! those that publish here as soon as they are committed, and else from the centre, when somebody
//! has looked. A *follower* is a connection that is subscribed. A live one is handed what reaches the
//! tail; one that has to catch up, or was too slow for that, has a task of its own that reads from
//! the centre until it is where the tail is. The step between both is made under the lock under
//! which the tail grows, so that nothing gets lost there and nothing comes twice.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::time::sleep;

use tidewater_centre::{NewEvents, StoredEvent};
use tidewater_protocol::Code;
use tidewater_protocol::event::{EventPosition, EventsReader, put_event};
use tidewater_server_jobs::fault::Fault;
use tidewater_spaces::{Pattern, RouteRun, RouteRuns, Router};

use super::counts::EventCounts;
use super::event_store::{EventRange, EventStore};
use super::inbox::{KeptPushOutcome, Peer, Space, WaitingBytes};
use super::refusal::Refusal;

/// How often it is looked whether another server has kept events.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long nobody looks after the centre was away.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What is read at once.
const PAGE_EVENTS: u64 = 4_000;
const PAGE_BYTES: u64 = 256 << 10;

/// Bytes of the newest events that a tail remembers: who is that close gets them without a look into
/// the centre, and so comes to an end however fast others publish.
const RECENT_BYTES: usize = 1 << 20;

/// The durable spaces of a server.
pub(crate) struct DurableSpaces {
    tails: Mutex<HashMap<String, Tail>>,
    /// From where durable events are read, and where they are kept.
    store: Option<EventStore>,
    waiting: Arc<WaitingBytes>,
    counts: Arc<EventCounts>,
    /// Somebody has to look.
    poked: Notify,
    /// A tail has grown.
    moved: Notify,
    /// The last task that was begun.
    tasks: AtomicU64,
}

struct Tail {
    space: Arc<Space>,
    /// The last event that was passed on.
    end: u64,
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    /// Live followers by their numbers.
    router: Router<u64>,
    followers: HashMap<u64, Follower>,
}

/// Events that were passed on together.
struct Recent {
    first: u64,
    last: u64,
    packed: Bytes,
}

/// A connection that is subscribed.
struct Follower {
    peer: Arc<Peer>,
    patterns: Vec<Pattern>,
    /// Patterns that begin behind another event than that at which the others are.
    joining: VecDeque<(Pattern, u64)>,
    /// It has what is for it up to here; of a live one it is the end of the tail that counts.
    at: u64,
    is_live: bool,
    /// The task that serves it while it is not.
    task: u64,
}

impl Follower {
    fn subscriptions(&self) -> usize {
        self.patterns.len() + self.joining.len()
    }

    /// Takes in those patterns that begin where it is, and tells what has to be done before the
    /// others can; `None` if there are no others.
    fn join(&mut self, end: u64) -> Option<FollowerStep> {
        loop {
            match self.joining.front() {
                None if self.at > end => return Some(FollowerStep::Wait),
                None => return None,
                Some((_, from)) if self.patterns.is_empty() || *from == self.at => {
                    let (pattern, from) = self.joining.pop_front()?;
                    self.at = from;
                    if !self.patterns.contains(&pattern) {
                        self.patterns.push(pattern);
                    }
                }
                Some((pattern, from)) if *from < self.at => {
                    return Some(FollowerStep::Read {
                        patterns: vec![pattern.clone()],
                        after: *from,
                        until: self.at,
                        joins: true,
                    });
                }
                Some((_, from)) => return Some(self.read(*from)),
            }
        }
    }

    fn read(&self, until: u64) -> FollowerStep {
        FollowerStep::Read {
            patterns: self.patterns.clone(),
            after: self.at,
            until,
            joins: false,
        }
    }
}

/// What a follower does next.
enum FollowerStep {
    Gone,
    Live,
    /// The tail is behind it.
    Wait,
    /// Its queue is full again.
    Again,
    Read {
        patterns: Vec<Pattern>,
        after: u64,
        /// The last event that is wanted.
        until: u64,
        joins: bool,
    },
}

impl DurableSpaces {
    /// Spaces whose events are kept in a store.
    pub(crate) fn new(
        store: Option<EventStore>,
        waiting: Arc<WaitingBytes>,
        counts: Arc<EventCounts>,
    ) -> Arc<DurableSpaces> {
        Arc::new(DurableSpaces {
            tails: Mutex::default(),
            store,
            waiting,
            counts,
            poked: Notify::new(),
            moved: Notify::new(),
            tasks: AtomicU64::new(0),
        })
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<String, Tail>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// There is none.
    pub(crate) fn store(&self) -> Result<&EventStore, Refusal> {
        self.store.as_ref().ok_or(Refusal::NotKept)
    }

    pub(crate) fn subscriptions(&self, number: u64) -> usize {
        let tails = self.tails();
        let followers = tails.values().filter_map(|it| it.followers.get(&number));
        followers.map(Follower::subscriptions).sum()
    }

    /// Durable spaces that somebody here is subscribed to.
    pub(crate) fn followed(&self) -> Vec<String> {
        self.tails().keys().cloned().collect()
    }

    /// Another server says that it has kept something.
    pub(crate) fn poke(&self) {
        self.poked.notify_one();
    }

    /// Has a connection follow a pattern behind an event; the space has events up to `end`.
    pub(crate) fn follow(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        space: &Arc<Space>,
        (pattern, from): (Pattern, u64),
        end: u64,
    ) {
        let mut tails = self.tails();
        let name = &space.config.name;
        let tail = tails.entry(name.clone()).or_insert_with(|| Tail {
            space: Arc::clone(space),
            end,
            recent: VecDeque::new(),
            recent_bytes: 0,
            router: Router::default(),
            followers: HashMap::new(),
        });
        let tail_end = tail.end;
        let follower = tail.followers.entry(peer.number).or_insert_with(|| {
            // A task begins with it.
            Follower {
                peer: Arc::clone(peer),
                patterns: Vec::new(),
                joining: VecDeque::new(),
                at: from,
                is_live: true,
                task: 0,
            }
        });
        follower.joining.push_back((pattern, from));
        if std::mem::take(&mut follower.is_live) {
            if !follower.patterns.is_empty() {
                follower.at = tail_end;
            }
            follower.task = self.next_task();
            tail.router.remove_all(&peer.number);
            self.catch_up_with(name, (peer.number, follower.task));
        }
        drop(tails);
        self.poke();
    }

    pub(crate) fn unfollow(&self, peer: &Arc<Peer>, pattern: &Pattern) -> bool {
        let mut tails = self.tails();
        let Some(tail) = tails.get_mut(pattern.space()) else {
            return false;
        };
        let was_there = tail.unfollow(peer.number, pattern);
        let is_unused = tail.followers.is_empty();
        if is_unused {
            tails.remove(pattern.space());
        }
        was_there
    }

    pub(crate) fn leave(&self, peer: &Arc<Peer>) {
        self.tails().retain(|_, tail| {
            if tail.followers.remove(&peer.number).is_some() {
                tail.router.remove_all(&peer.number);
            }
            !tail.followers.is_empty()
        });
    }

    /// Goes by another configuration. Subscriptions that it does not let be are ended.
    pub(crate) fn configure(&self, spaces: &HashMap<String, Arc<Space>>) {
        self.tails().retain(|name, tail| {
            let space = spaces.get(name).filter(|it| it.config.durable.is_some());
            if let Some(space) = space {
                tail.space = Arc::clone(space);
            }
            let mut ended = Vec::new();
            for (number, follower) in &tail.followers {
                let joining = follower.joining.iter().map(|(pattern, _)| pattern);
                for pattern in follower.patterns.iter().chain(joining) {
                    let user = &follower.peer.user;
                    let may = |it: &Arc<Space>| user.check_subscribe(&it.config, pattern).is_ok();
                    if !space.is_some_and(may) {
                        ended.push((*number, Arc::clone(&follower.peer), pattern.clone()));
                    }
                }
            }
            for (number, peer, pattern) in ended {
                tail.unfollow(number, &pattern);
                peer.unsubscribed(pattern);
            }
            !tail.followers.is_empty()
        });
    }

    /// Passes on what was kept here just now.
    pub(crate) fn stored(self: &Arc<Self>, new: &NewEvents, first: u64, check: [u8; 8]) {
        let end = match self.tails().get(&new.space) {
            None => return,
            Some(tail) => tail.end,
        };
        let last = first + new.events.len() as u64 - 1;
        if last <= end {
            return;
        }
        if first > end + 1 {
            // Others have kept something before: it is read with it.
            return self.poke();
        }
        let events = new.events.iter().zip(first..);
        let packed = pack(
            &new.space,
            events.map(|((subject, payload), id)| (subject, id, check, payload)),
        );
        self.deliver(&new.space, (first, last), &packed);
    }

    /// Hands events that follow the end of a tail to its live followers.
    fn deliver(self: &Arc<Self>, space: &str, (first, last): (u64, u64), packed: &Bytes) {
        let mut tails = self.tails();
        let Some(tail) = tails.get_mut(space).filter(|it| it.end < last) else {
            return;
        };
        if first > tail.end + 1 {
            return self.poke();
        }
        let Tail {
            space,
            router,
            followers,
            ..
        } = tail;
        let mut woken: Vec<Arc<Peer>> = Vec::new();
        let mut runs = RouteRuns::new(packed, usize::MAX, |event| router.matches(event.subject));
        let mut slow = Vec::new();
        // It was packed here: it is whole.
        while let Ok(Some(run)) = runs.next_run() {
            let Some(of_run) = first_of(&run.bytes) else {
                break;
            };
            self.counts.delivered(run.events, run.route.len());
            let slice = RouteRun {
                bytes: run.bytes,
                route: (),
                events: run.events,
            };
            for number in run.route.iter() {
                let Some(follower) = followers.get_mut(number).filter(|it| it.is_live) else {
                    continue;
                };
                match follower.peer.push_kept(&self.waiting, space, &slice, false) {
                    KeptPushOutcome::Taken { wakes: true } => {
                        woken.push(Arc::clone(&follower.peer))
                    }
                    KeptPushOutcome::Taken { .. } | KeptPushOutcome::Gone => {}
                    KeptPushOutcome::Full => {
                        follower.is_live = false;
                        follower.at = of_run - 1;
                        follower.task = self.next_task();
                        slow.push((*number, follower.task));
                    }
                }
            }
        }
        drop(runs);
        for (number, task) in slow {
            router.remove_all(&number);
            self.catch_up_with(&space.config.name, (number, task));
        }
        tail.end = last;
        tail.remember(first, last, packed);
        drop(tails);
        woken.iter().for_each(|peer| peer.wake());
        self.moved.notify_waiters();
    }

    fn catch_up_with(self: &Arc<Self>, space: &str, task: (u64, u64)) {
        tokio::spawn(catch_up(Arc::clone(self), space.to_owned(), task));
    }

    fn next_task(&self) -> u64 {
        self.tasks.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a follower does next, found under the lock under which the tail grows. Whoever has to be
    /// woken for it comes along.
    fn step(&self, space: &str, task: (u64, u64)) -> (FollowerStep, Option<Arc<Peer>>) {
        let mut tails = self.tails();
        let Some(tail) = tails.get_mut(space) else {
            return (FollowerStep::Gone, None);
        };
        let Tail {
            space,
            end,
            recent,
            router,
            followers,
            ..
        } = tail;
        let Some(follower) = followers.get_mut(&task.0).filter(|it| it.task == task.1) else {
            return (FollowerStep::Gone, None);
        };
        if let Some(step) = follower.join(*end) {
            return (step, None);
        }
        let is_recent = recent.front().is_some_and(|it| it.first <= follower.at + 1);
        if follower.at < *end && !is_recent {
            return (follower.read(*end), None);
        }
        let peer = Arc::clone(&follower.peer);
        for recent in recent.iter() {
            if recent.last <= follower.at {
                continue;
            }
            if !peer.has_room(&self.waiting, space) {
                return (FollowerStep::Again, Some(peer));
            }
            let wanted = wanted(&recent.packed, &follower.patterns, follower.at);
            if wanted.events > 0 {
                peer.push_kept(&self.waiting, space, &wanted, true);
            }
            follower.at = recent.last;
        }
        follower.is_live = true;
        for pattern in &follower.patterns {
            router.subscribe(pattern, task.0);
        }
        (FollowerStep::Live, Some(peer))
    }

    /// Notes how far a follower has come.
    fn reached(&self, space: &str, task: (u64, u64), reached: u64, joins: bool) {
        let mut tails = self.tails();
        let follower = tails
            .get_mut(space)
            .and_then(|it| it.followers.get_mut(&task.0));
        let Some(follower) = follower.filter(|it| it.task == task.1) else {
            return;
        };
        match follower.joining.front_mut().filter(|_| joins) {
            Some((_, from)) => *from = reached,
            None if joins => {}
            None => follower.at = reached,
        }
    }

    fn peer(&self, space: &str, task: (u64, u64)) -> Option<(Arc<Peer>, Arc<Space>)> {
        let tails = self.tails();
        let tail = tails.get(space)?;
        let follower = tail.followers.get(&task.0)?;
        let is_served = !follower.is_live && follower.task == task.1;
        is_served.then(|| (Arc::clone(&follower.peer), Arc::clone(&tail.space)))
    }

    /// Looks for what other servers have kept, as long as there is somebody to get it.
    pub(crate) async fn watch(self: &Arc<Self>) {
        loop {
            if self.tails().is_empty() {
                self.poked.notified().await;
            } else {
                tokio::select! {
                    () = self.poked.notified() => {}
                    () = sleep(LOOK_EVERY) => {}
                }
            }
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "what was published elsewhere is not known");
                sleep(LOOK_AGAIN_AFTER).await;
            }
        }
    }

    async fn look(self: &Arc<Self>) -> Result<(), Fault> {
        let store = self.store()?;
        let spaces = self.followed();
        if spaces.is_empty() {
            return Ok(());
        }
        let ends = store.ends(spaces.clone()).await?;
        for (space, end) in spaces.iter().zip(ends) {
            loop {
                let Some(mine) = self.tails().get(space).map(|it| it.end) else {
                    break;
                };
                if mine == end {
                    break;
                }
                if mine > end {
                    // What was kept here meanwhile is no reason.
                    if store.end(space).await? < mine {
                        self.rewound(space);
                    }
                    break;
                }
                let page = store.after(page(space, mine)).await?;
                let last = page.last().map_or(end, |it| it.id);
                let packed = pack_stored(space, page.iter());
                self.deliver(space, (mine + 1, last), &packed);
            }
        }
        Ok(())
    }

    /// The centre has less than it had: it was restored. Whoever follows begins anew, with his
    /// position, and is told then.
    fn rewound(&self, space: &str) {
        let tail = self.tails().remove(space);
        for follower in tail.into_iter().flat_map(|it| it.followers.into_values()) {
            let refusal = Refusal::Rewound(space.to_owned());
            follower.peer.cut(&self.waiting, refusal);
        }
    }
}

impl Tail {
    fn unfollow(&mut self, number: u64, pattern: &Pattern) -> bool {
        let Some(follower) = self.followers.get_mut(&number) else {
            return false;
        };
        let before = follower.subscriptions();
        follower.patterns.retain(|it| it != pattern);
        follower.joining.retain(|(it, _)| it != pattern);
        let after = follower.subscriptions();
        self.router.unsubscribe(pattern, &number);
        if after == 0 {
            self.followers.remove(&number);
        }
        after < before
    }

    fn remember(&mut self, first: u64, last: u64, packed: &Bytes) {
        self.recent_bytes += packed.len();
        self.recent.push_back(Recent {
            first,
            last,
            packed: packed.clone(),
        });
        while self.recent_bytes > RECENT_BYTES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.recent_bytes -= oldest.packed.len();
        }
    }
}

/// Serves a follower from the centre until it is live, or gone. A task is known by the number of the
/// follower and its own.
async fn catch_up(kept: Arc<DurableSpaces>, space: String, task: (u64, u64)) {
    let Ok(store) = kept.store() else {
        return;
    };
    loop {
        let moved = kept.moved.notified();
        let Some((peer, of)) = kept.peer(&space, task) else {
            return;
        };
        if !peer.room(&kept.waiting, &of).await {
            return;
        }
        let (step, wakes) = kept.step(&space, task);
        if let Some(peer) = wakes {
            peer.wake();
        }
        let (patterns, after, until, joins) = match step {
            FollowerStep::Gone | FollowerStep::Live => return,
            FollowerStep::Again => continue,
            FollowerStep::Wait => {
                kept.poke();
                moved.await;
                continue;
            }
            FollowerStep::Read {
                patterns,
                after,
                until,
                joins,
            } => (patterns, after, until, joins),
        };
        let page = match store.after(page(&space, after)).await {
            Ok(page) => page,
            Err(fault) if fault.code == Code::ShuttingDown => return,
            Err(fault) => {
                tracing::debug!(%fault, space, "kept events cannot be read");
                sleep(LOOK_AGAIN_AFTER).await;
                continue;
            }
        };
        let reached = page.last().map_or(until, |it| it.id.min(until));
        let is_wanted = |it: &&StoredEvent| {
            let subject = format!("{space}/{}", it.subject);
            it.id <= until && patterns.iter().any(|pattern| pattern.matches(&subject))
        };
        let wanted: Vec<&StoredEvent> = page.iter().filter(is_wanted).collect();
        if !wanted.is_empty() {
            let run = RouteRun {
                events: wanted.len() as u32,
                bytes: pack_stored(&space, wanted.into_iter()),
                route: (),
            };
            kept.counts.delivered(run.events, 1);
            peer.push_kept(&kept.waiting, &of, &run, true);
            peer.wake();
        }
        kept.reached(&space, task, reached, joins);
    }
}

pub(crate) fn page(space: &str, after: u64) -> EventRange {
    EventRange {
        space: space.to_owned(),
        after,
        limit: PAGE_EVENTS,
        max_bytes: PAGE_BYTES,
    }
}

pub(crate) fn pack_stored<'e>(space: &str, events: impl Iterator<Item = &'e StoredEvent>) -> Bytes {
    let events = events.map(|it| (&it.subject, it.id, it.check, &it.payload));
    pack(space, events)
}

fn pack<'e>(
    space: &str,
    events: impl Iterator<Item = (&'e String, u64, [u8; 8], &'e Bytes)>,
) -> Bytes {
    let mut packed = BytesMut::new();
    let mut whole = String::new();
    for (subject, id, check, payload) in events {
        whole.clear();
        whole.push_str(space);
        whole.push('/');
        whole.push_str(subject);
        let check = u64::from_le_bytes(check);
        // Their sizes were looked at before they were kept.
        let _ = put_event(
            &mut packed,
            &whole,
            Some(EventPosition { id, check }),
            payload,
        );
    }
    packed.freeze()
}

/// The number of the first of these events.
fn first_of(packed: &Bytes) -> Option<u64> {
    let event = EventsReader::new(packed, usize::MAX).next_event().ok()??;
    event.position.map(|it| it.id)
}

/// Those behind an event that one of the patterns stands for.
fn wanted(packed: &Bytes, patterns: &[Pattern], after: u64) -> RouteRun<()> {
    let mut bytes = BytesMut::new();
    let mut events = 0;
    let mut reader = EventsReader::new(packed, usize::MAX);
    while let Ok(Some(event)) = reader.next_event() {
        let is_behind = event.position.is_some_and(|it| it.id > after);
        if is_behind && patterns.iter().any(|it| it.matches(event.subject)) {
            bytes.extend_from_slice(event.packed);
            events += 1;
        }
    }
    RouteRun {
        bytes: bytes.freeze(),
        route: (),
        events,
    }
}
