//! Spaces in a program: publishing, and subscriptions.
//!
//! What is published reaches the subscriptions of the same [`Link`] at once, and the server in chunks:
//! while a thread of the link's own sends one, the next gathers.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use tidewater_protocol::Code;
use tidewater_protocol::event::{EventError, EventsReader, packed_bytes, put_event};
use tidewater_protocol::message::{ArgumentValue, CallFailed};
use tidewater_spaces::{Pattern, SubjectError, check_subject};

pub use tidewater_protocol::event::EventPosition;

pub use crate::event_subscriptions::RefusedEvents;
use crate::event_subscriptions::{OutgoingEvents, QUEUE_BYTES, SubscriptionInbox};
use crate::link::{Link, SharedLink};
use crate::notice_queue::NoticeQueue;
use crate::request::{CallError, Request};

/// Bytes that wait to be sent before whoever publishes waits, too.
const OUT_BYTES: usize = 1 << 20;

/// How often it is looked whether the network takes more.
const GLANCE: Duration = Duration::from_millis(1);

/// From where on a subscription of a durable space begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SubscriptionStart {
    /// With what comes; in a space with `last_value`, with the newest event of each subject.
    #[default]
    Now,
    /// With the first event that is kept.
    First,
    /// Behind an event.
    Position(EventPosition),
}

/// An event that has come.
#[derive(Clone, PartialEq, Eq)]
pub struct SpaceEvent {
    packed: Bytes,
    subject: (usize, usize),
    payload: usize,
    position: Option<EventPosition>,
}

impl SpaceEvent {
    /// The subject with its space: `SPACE/a.b.c`.
    pub fn subject(&self) -> &str {
        let (start, end) = self.subject;
        std::str::from_utf8(&self.packed[start..end]).unwrap_or_default()
    }

    /// What it says.
    pub fn payload(&self) -> &[u8] {
        &self.packed[self.payload..]
    }

    /// Where it stands in its space, if that is durable.
    pub fn position(&self) -> Option<EventPosition> {
        self.position
    }
}

impl fmt::Debug for SpaceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.payload().len();
        write!(f, "{} ({bytes} bytes)", self.subject())
    }
}

/// Events as they came, packed one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventChunk {
    /// For [`EventsReader`].
    pub packed: Bytes,
    /// So many.
    pub events: u32,
}

/// Sends what is published, as long as the link is there.
fn send_all(out: &OutgoingEvents, link: &Weak<SharedLink>) {
    loop {
        let mut state = out.state();
        while state.packed.is_empty() && !state.closed {
            let waited = out.filled.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return;
        }
        let packed = state.packed.split().freeze();
        state.sending = true;
        drop(state);
        out.drained.notify_all();
        let Some(shared) = link.upgrade() else {
            return;
        };
        while !shared.send_events(&packed) {
            thread::sleep(GLANCE);
        }
        drop(shared);
        out.state().sending = false;
        out.drained.notify_all();
    }
}

fn failed(error: &EventError) -> CallError {
    CallError::Failed(CallFailed::new(
        error.code(),
        error.to_string(),
        "publish less at once",
    ))
}

fn bad_subject(error: &SubjectError) -> CallError {
    CallError::Failed(CallFailed::new(
        Code::BadSubject,
        error.to_string(),
        error.hint(),
    ))
}

impl Link {
    /// Publishes an event of a space that is not durable: to this link's subscriptions at once, and
    /// to others soon. Waits only while too much waits to be sent. Whether the server lets it be
    /// published is not told here.
    ///
    /// # Errors
    /// The subject is none, the event is too large, or there is no connection any more.
    pub fn publish(&self, space: &str, subject: &str, payload: &[u8]) -> Result<(), CallError> {
        let whole = format!("{space}/{subject}");
        check_subject(&whole).map_err(|error| bad_subject(&error))?;
        let bytes = packed_bytes(&whole, None, payload);
        let most = self.shared.message_bytes();
        if bytes > most {
            let bytes = bytes as u64;
            return Err(failed(&EventError::TooLong { bytes, most }));
        }
        let put = |packed: &mut BytesMut| {
            put_event(packed, &whole, None, payload).map_err(|error| failed(&error))
        };
        let spaces = &self.shared.spaces;
        if spaces.is_heard_here() {
            let mut packed = BytesMut::new();
            put(&mut packed)?;
            let here = spaces.publish_here(&packed.freeze());
            here.map_err(|error| failed(&error))?;
        }
        self.send_out(put)
    }

    /// The same of events that are packed already, one behind the other.
    ///
    /// # Errors
    /// They are not packed as they have to be, or there is no connection any more.
    pub fn publish_packed(&self, packed: Bytes) -> Result<(), CallError> {
        let spaces = &self.shared.spaces;
        let here = spaces.publish_here(&packed);
        here.map_err(|error| failed(&error))?;
        self.send_out(|out| {
            out.extend_from_slice(&packed);
            Ok(())
        })
    }

    /// Has what is put sent to the server.
    fn send_out(
        &self,
        put: impl FnOnce(&mut BytesMut) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let out = &self.shared.spaces.out;
        let mut state = out.state();
        while state.packed.len() >= OUT_BYTES && !state.closed {
            let waited = out.drained.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            drop(state);
            return Err(self.shared.why_lost());
        }
        let was_empty = state.packed.is_empty();
        put(&mut state.packed)?;
        if !std::mem::replace(&mut state.has_thread, true) {
            let (out, link) = (Arc::clone(out), Arc::downgrade(&self.shared));
            let thread = thread::Builder::new().name("tidewater-publish".into());
            if thread.spawn(move || send_all(&out, &link)).is_err() {
                state.has_thread = false;
            }
        }
        drop(state);
        if was_empty {
            out.filled.notify_one();
        }
        Ok(())
    }

    /// The published events that the server has left out since this was last asked: a moment after
    /// they were sent, it says so.
    pub fn take_refused(&self) -> Option<RefusedEvents> {
        self.shared.spaces.inside().refused.take()
    }

    /// Waits until all that was published has been handed to the network.
    ///
    /// # Errors
    /// There is no connection any more.
    pub fn flush(&self) -> Result<(), CallError> {
        let out = &self.shared.spaces.out;
        let mut state = out.state();
        while (state.sending || !state.packed.is_empty()) && !state.closed {
            let waited = out.drained.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let closed = state.closed;
        drop(state);
        if closed {
            return Err(self.shared.why_lost());
        }
        self.shared.flush_events();
        Ok(())
    }

    /// Has the server keep events of a durable space, given by their subjects without it; gives the
    /// position of the last one once they are committed. Under a key, they are kept once, however
    /// often it is said. Events of another space are published when it returns, and have none.
    ///
    /// # Errors
    /// Nothing is kept, or nobody knows: then the key tells, said again.
    pub fn publish_durable(
        &self,
        space: &str,
        events: &[(&str, &[u8])],
        key: Option<[u8; 16]>,
    ) -> Result<Option<EventPosition>, CallError> {
        let mut packed = BytesMut::new();
        let mut whole = String::new();
        for (subject, payload) in events {
            whole.clear();
            whole.extend([space, "/", subject]);
            put_event(&mut packed, &whole, None, payload).map_err(|error| failed(&error))?;
        }
        let mut request = Request::new("tidewater.publish")
            .with("space", ArgumentValue::from(space))
            .with("events", ArgumentValue::from(packed.freeze()));
        if let Some(key) = key {
            request = request.once(key);
        }
        self.call(&request).map(|answer| position(&answer))
    }

    /// Subscribes to a pattern of a space, without its name; of a durable one, from somewhere on. Only
    /// there may it be something else than [`SubscriptionStart::Now`].
    ///
    /// # Errors
    /// There is no such space, it is no pattern, or this user may not.
    pub fn subscribe(
        &self,
        space: &str,
        pattern: &str,
        since: SubscriptionStart,
    ) -> Result<SpaceSubscription, CallError> {
        self.subscribe_with(space, pattern, since, None)
    }

    fn subscribe_with(
        &self,
        space: &str,
        pattern: &str,
        since: SubscriptionStart,
        bell: Option<Arc<NoticeQueue>>,
    ) -> Result<SpaceSubscription, CallError> {
        let read = Pattern::in_space(space, pattern).map_err(|error| bad_subject(&error))?;
        let (number, inbox) = self.shared.spaces.enter(&read, bell);
        let mut subscription = SpaceSubscription {
            link: self.clone(),
            number,
            inbox,
            chunk: Bytes::new(),
            started: None,
        };
        let after = match since {
            SubscriptionStart::Now => None,
            SubscriptionStart::First => Some(ArgumentValue::from("first")),
            SubscriptionStart::Position(position) => {
                let bytes = Bytes::copy_from_slice(&position.to_bytes());
                Some(ArgumentValue::from(bytes))
            }
        };
        let request = Request::new("tidewater.subscribe")
            .with("space", ArgumentValue::from(space))
            .with("subject", ArgumentValue::from(pattern))
            .with("after", after);
        // On an error, it leaves again.
        let started = position(&self.call(&request)?);
        if let Some(started) = started {
            let mut queue = subscription.inbox.queue();
            queue.is_durable = true;
            if since != SubscriptionStart::Now {
                queue.reached = queue.reached.max(started.id);
            }
        }
        subscription.started = started;
        Ok(subscription)
    }
}

fn position(answer: &tidewater_protocol::message::Answer) -> Option<EventPosition> {
    let rows = answer.unpack().ok()?;
    let tidewater_protocol::Value::Blob(bytes) = rows.first()?.first()? else {
        return None;
    };
    EventPosition::from_bytes(bytes)
}

/// A subscription; it ends when it is dropped. As an iterator it gives events until it ends.
///
/// Events of a durable space that nobody takes are left with the server, and with them all other
/// events of the same link: take them, or give such a subscription a link of its own.
pub struct SpaceSubscription {
    link: Link,
    number: u64,
    inbox: Arc<SubscriptionInbox>,
    /// What is being read.
    chunk: Bytes,
    started: Option<EventPosition>,
}

impl fmt::Debug for SpaceSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscription({})", self.inbox.pattern)
    }
}

impl SpaceSubscription {
    /// Behind which event it began, in a durable space.
    pub fn started(&self) -> Option<EventPosition> {
        self.started
    }

    /// The next event; `None` if none comes for so long, or if it has [ended](Self::ended).
    pub fn recv(&mut self, patience: Duration) -> Option<SpaceEvent> {
        if self.chunk.is_empty() {
            self.chunk = self.recv_chunk(patience)?.packed;
        }
        let mut reader = EventsReader::new(&self.chunk, usize::MAX);
        let event = reader.next_event().ok()??;
        let subject = tidewater_protocol::event::EVENT_HEADER_BYTES;
        let read = SpaceEvent {
            subject: (subject, subject + event.subject.len()),
            payload: event.packed.len() - event.payload.len(),
            position: event.position,
            packed: self.chunk.slice(..reader.consumed()),
        };
        let consumed = reader.consumed();
        self.chunk = self.chunk.slice(consumed..);
        Some(read)
    }

    /// The next events, as many as came together; see [`Self::recv`].
    pub fn recv_chunk(&mut self, patience: Duration) -> Option<EventChunk> {
        if !self.chunk.is_empty() {
            let packed = std::mem::take(&mut self.chunk);
            let mut reader = EventsReader::new(&packed, usize::MAX);
            let mut events = 0;
            while let Ok(Some(_)) = reader.next_event() {
                events += 1;
            }
            return Some(EventChunk { packed, events });
        }
        let end = Instant::now() + patience;
        let mut queue = self.inbox.queue();
        loop {
            let before = queue.outlet.bytes();
            if let Some((packed, events)) = queue.outlet.pop() {
                let frees =
                    queue.is_durable && before >= QUEUE_BYTES && queue.outlet.bytes() < QUEUE_BYTES;
                drop(queue);
                if frees {
                    // What waits at the socket was left there.
                    self.link.shared.take_events();
                }
                return Some(EventChunk { packed, events });
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || queue.ended.is_some() || self.link.shared.is_lost() {
                return None;
            }
            let waited = self.inbox.came.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Events that it was too slow for, or that are not kept any more, since this was last asked.
    pub fn take_missed(&self) -> u64 {
        let mut queue = self.inbox.queue();
        std::mem::take(&mut queue.missed) + queue.outlet.take_missed()
    }

    /// Whether the position was of another history, and all that is kept comes again; told once.
    pub fn take_begun_anew(&self) -> bool {
        std::mem::take(&mut self.inbox.queue().begun_anew)
    }

    /// Why nothing more comes.
    pub fn ended(&self) -> Option<CallError> {
        let ended = self.inbox.queue().ended.clone();
        if let Some(ended) = ended {
            return Some(CallError::Failed(ended));
        }
        let is_lost = self.link.shared.is_lost();
        is_lost.then(|| self.link.shared.why_lost())
    }
}

/// What a remote that stays in sync only wants to know of: events that it fetches otherwise.
#[cfg(feature = "sync")]
impl Link {
    /// Has it told as `ServerNotice::Heard` when there are events of a durable space behind a position.
    pub(crate) fn hear(
        &self,
        space: &str,
        pattern: &str,
        position: EventPosition,
    ) -> Result<SpaceSubscription, CallError> {
        let bell = Some(self.shared.notices.clone());
        self.subscribe_with(space, pattern, SubscriptionStart::Position(position), bell)
    }
}

#[cfg(feature = "sync")]
impl SpaceSubscription {
    /// Whether it came over this connection.
    pub(crate) fn is_over(&self, link: &Link) -> bool {
        Arc::ptr_eq(&self.link.shared, &link.shared)
    }

    /// Whether it is to this pattern.
    pub(crate) fn is_to(&self, space: &str, pattern: &str) -> bool {
        self.inbox.pattern.split() == (space, pattern)
    }

    /// The number of the last durable event that has come.
    pub(crate) fn reached(&self) -> u64 {
        self.inbox.queue().reached
    }
}

impl Iterator for SpaceSubscription {
    type Item = SpaceEvent;

    fn next(&mut self) -> Option<SpaceEvent> {
        loop {
            if let Some(event) = self.recv(Duration::from_secs(1)) {
                return Some(event);
            }
            if self.ended().is_some() {
                // What came before the end.
                return self.recv(Duration::ZERO);
            }
        }
    }
}

impl Drop for SpaceSubscription {
    fn drop(&mut self) {
        let (space, subject) = self.inbox.pattern.split();
        if self.link.shared.spaces.leave(self.number) {
            return;
        }
        let request = Request::new("tidewater.unsubscribe")
            .with("space", ArgumentValue::from(space))
            .with("subject", ArgumentValue::from(subject));
        // Nobody waits for it: whatever still comes has no receiver.
        if let Ok(pending) = self.link.begin_telling(&request) {
            pending.forget();
        }
    }
}
