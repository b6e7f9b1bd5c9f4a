//! The *subspace* of a link: what its process has subscribed to, and what waits for each
//! subscription or to be sent.
//!
//! What comes is found its receivers once, whatever the number of subscriptions, and handed to them
//! as slices of what came. Leaves the network to the link.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use tidewater_connection::device::ServerNotice;
use tidewater_protocol::Code;
use tidewater_protocol::event::{EventError, EventsReader};
use tidewater_protocol::frame::MAX_MESSAGE_BYTES;
use tidewater_protocol::message::{ArgumentValue, Call, CallFailed};
use tidewater_spaces::{
    EventPieces, Pattern, ReceiverQueue, RouteRun, RouteRuns, Router, WhenFull,
};

use crate::notice_queue::NoticeQueue;

/// Bytes of events that wait for a subscription at most.
pub(crate) const QUEUE_BYTES: usize = 16 << 20;

/// Events that were published and that the server has left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEvents {
    /// So many.
    pub count: u64,
    /// Why the last of them was.
    pub why: CallFailed,
}

/// The spaces of one link.
#[derive(Default)]
pub(crate) struct EventSubscriptions {
    inside: Mutex<SpacesState>,
    pub(crate) out: Arc<OutgoingEvents>,
}

#[derive(Default)]
pub(crate) struct SpacesState {
    router: Router<u64>,
    inboxes: HashMap<u64, Arc<SubscriptionInbox>>,
    last_number: u64,
    pieces: EventPieces,
    /// What was left out and nobody has asked about.
    pub(crate) refused: Option<RefusedEvents>,
    is_lost: bool,
}

/// What waits for one subscription.
pub(crate) struct SubscriptionInbox {
    pub(crate) pattern: Pattern,
    queue: Mutex<InboxQueue>,
    pub(crate) came: Condvar,
    /// Where it is said that events have come, if that is all that anybody wants of them.
    bell: Option<Arc<NoticeQueue>>,
}

pub(crate) struct InboxQueue {
    pub(crate) outlet: ReceiverQueue,
    /// Of durable events, those up to here have come.
    pub(crate) reached: u64,
    pub(crate) is_durable: bool,
    pub(crate) missed: u64,
    pub(crate) begun_anew: bool,
    /// Nothing more will come.
    pub(crate) ended: Option<CallFailed>,
}

/// What is published and not sent yet.
#[derive(Default)]
pub(crate) struct OutgoingEvents {
    pub(crate) state: Mutex<OutState>,
    pub(crate) filled: Condvar,
    pub(crate) drained: Condvar,
}

#[derive(Default)]
pub(crate) struct OutState {
    pub(crate) packed: BytesMut,
    /// The thread that sends has taken some that it has not handed over yet.
    pub(crate) sending: bool,
    pub(crate) has_thread: bool,
    pub(crate) closed: bool,
}

impl SubscriptionInbox {
    pub(crate) fn queue(&self) -> MutexGuard<'_, InboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, run: &RouteRun<()>) {
        let mut queue = self.queue();
        let Some(run) = queue.unseen(run) else {
            return;
        };
        if let Some(bell) = &self.bell {
            bell.push(ServerNotice::Heard);
            return;
        }
        let most = match queue.is_durable {
            // The link takes nothing more when it is full.
            true => usize::MAX,
            false => QUEUE_BYTES,
        };
        queue.outlet.set_most(most);
        // It drops and does not refuse.
        let _ = queue.outlet.push(0, run.bytes, run.events);
        drop(queue);
        self.came.notify_one();
    }
}

impl InboxQueue {
    /// Of durable events, those that have not come before: another subscription of the link may
    /// have had them sent again.
    fn unseen(&mut self, run: &RouteRun<()>) -> Option<RouteRun<()>> {
        let mut events = EventsReader::new(&run.bytes, usize::MAX);
        let (mut start, mut count) = (0, run.events);
        while let Ok(Some(event)) = events.next_event() {
            let Some(position) = event.position else {
                return Some(run.clone());
            };
            self.is_durable = true;
            if position.id <= self.reached {
                start = events.consumed();
                count -= 1;
            } else {
                self.reached = position.id;
            }
        }
        (count > 0).then(|| RouteRun {
            bytes: run.bytes.slice(start..),
            route: (),
            events: count,
        })
    }
}

impl OutgoingEvents {
    pub(crate) fn state(&self) -> MutexGuard<'_, OutState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSubscriptions {
    pub(crate) fn inside(&self) -> MutexGuard<'_, SpacesState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether more may be taken from the network: durable events are not dropped, so that the
    /// server keeps them for as long as nobody takes them here.
    pub(crate) fn takes_more(&self) -> bool {
        let inside = self.inside();
        let mut inboxes = inside.inboxes.values();
        inboxes.all(|it| {
            let queue = it.queue();
            !queue.is_durable || queue.outlet.bytes() < QUEUE_BYTES
        })
    }

    /// Takes a piece of the stream of events.
    pub(crate) fn take(&self, piece: Bytes) -> Result<(), EventError> {
        let mut inside = self.inside();
        let SpacesState {
            router,
            inboxes,
            pieces,
            ..
        } = &mut *inside;
        pieces.take(piece, MAX_MESSAGE_BYTES, |chunk| {
            route(router, inboxes, chunk)
        })
    }

    /// Hears what the server says of spaces.
    pub(crate) fn told(&self, call: &Call) {
        let argument = |name: &str| {
            let mut arguments = call.arguments.iter();
            arguments.find(|it| it.name == name)?.given.as_ref()
        };
        if call.procedure == "tidewater.refused" {
            self.inside().refuse(argument);
            return;
        }
        let Some(ArgumentValue::Text(space)) = argument("space") else {
            return;
        };
        let inside = self.inside();
        for inbox in inside.inboxes.values() {
            if inbox.pattern.space() != space {
                continue;
            }
            let mut queue = inbox.queue();
            match (call.procedure.as_str(), argument("count")) {
                ("tidewater.missed", Some(ArgumentValue::Integer(count))) => {
                    queue.missed += count.unsigned_abs();
                }
                ("tidewater.history", _) => queue.begun_anew = true,
                ("tidewater.unsubscribed", _) => {
                    let (_, subject) = inbox.pattern.split();
                    if matches!(argument("subject"), Some(ArgumentValue::Text(it)) if it == subject)
                    {
                        queue.ended = Some(CallFailed::new(
                            Code::NotAllowed,
                            format!("the server has ended the subscription to {}", inbox.pattern),
                            "the server's operator says who may subscribe in [[space]]",
                        ));
                    }
                }
                _ => {}
            }
            drop(queue);
            inbox.came.notify_all();
        }
    }

    /// The connection is lost, or given up.
    pub(crate) fn close(&self) {
        let mut inside = self.inside();
        inside.is_lost = true;
        inside.inboxes.values().for_each(|it| it.came.notify_all());
        drop(inside);
        self.out.state().closed = true;
        self.out.filled.notify_all();
        self.out.drained.notify_all();
    }

    pub(crate) fn enter(
        &self,
        pattern: &Pattern,
        bell: Option<Arc<NoticeQueue>>,
    ) -> (u64, Arc<SubscriptionInbox>) {
        let mut inside = self.inside();
        inside.last_number += 1;
        let number = inside.last_number;
        let inbox = Arc::new(SubscriptionInbox {
            pattern: pattern.clone(),
            queue: Mutex::new(InboxQueue {
                outlet: ReceiverQueue::new(QUEUE_BYTES, WhenFull::DropOldest),
                reached: 0,
                is_durable: false,
                missed: 0,
                begun_anew: false,
                ended: None,
            }),
            came: Condvar::new(),
            bell,
        });
        inside.router.subscribe(pattern, number);
        inside.inboxes.insert(number, Arc::clone(&inbox));
        (number, inbox)
    }

    /// Whether this process has subscribed to anything.
    pub(crate) fn is_heard_here(&self) -> bool {
        !self.inside().inboxes.is_empty()
    }

    /// Whether another subscription has the same pattern.
    pub(crate) fn leave(&self, number: u64) -> bool {
        let mut inside = self.inside();
        inside.router.remove_all(&number);
        let Some(inbox) = inside.inboxes.remove(&number) else {
            return true;
        };
        let mut others = inside.inboxes.values();
        inside.is_lost || others.any(|it| it.pattern == inbox.pattern)
    }

    /// Hands events to the subscriptions of this process.
    pub(crate) fn publish_here(&self, packed: &Bytes) -> Result<(), EventError> {
        let mut inside = self.inside();
        let SpacesState {
            router, inboxes, ..
        } = &mut *inside;
        route(router, inboxes, packed).map(|_| ())
    }
}

impl SpacesState {
    /// The server says that it has left events out.
    fn refuse<'c>(&mut self, argument: impl Fn(&str) -> Option<&'c ArgumentValue>) {
        let number = |name| match argument(name) {
            Some(ArgumentValue::Integer(number)) => number.unsigned_abs(),
            _ => 0,
        };
        let text = |name| match argument(name) {
            Some(ArgumentValue::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let before = self.refused.take().map_or(0, |it| it.count);
        self.refused = Some(RefusedEvents {
            count: before + number("count"),
            why: CallFailed {
                code: u32::try_from(number("code")).unwrap_or_default(),
                message: text("message"),
                hint: text("hint"),
                ..CallFailed::default()
            },
        });
    }
}

/// Hands the whole events of a chunk to whoever subscribed; gives their bytes.
fn route(
    router: &mut Router<u64>,
    inboxes: &HashMap<u64, Arc<SubscriptionInbox>>,
    chunk: &Bytes,
) -> Result<usize, EventError> {
    let mut runs = RouteRuns::new(chunk, MAX_MESSAGE_BYTES, |event| {
        router.matches(event.subject)
    });
    while let Some(run) = runs.next_run()? {
        let slice = RouteRun {
            bytes: run.bytes,
            route: (),
            events: run.events,
        };
        for inbox in run.route.iter().filter_map(|it| inboxes.get(it)) {
            inbox.push(&slice);
        }
    }
    Ok(runs.consumed())
}
