//! What the server says of its own accord.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewater_protocol::message::{ArgumentValue, Call};

/// Something that the server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerNotice {
    /// Somebody has changed what the remote holds: sync.
    Changed,
    /// The server shuts down: connect again, to one of these if there are any, after a pause.
    Leaving {
        servers: Vec<String>,
        pause: Duration,
    },
    /// Events have come that nobody takes from the link: see [`Link::hear`](crate::Link).
    Heard,
    /// So many events of a space did not fit, and are lost.
    Missed { space: String, count: u64 },
}

impl ServerNotice {
    /// What a call of the server's says, if it is one of these.
    pub(crate) fn from_call(call: &Call) -> Option<ServerNotice> {
        let argument = |name: &str| {
            let mut arguments = call.arguments.iter();
            arguments.find(|it| it.name == name)?.given.as_ref()
        };
        let number = |name: &str| match argument(name) {
            Some(ArgumentValue::Integer(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        Some(match call.procedure.as_str() {
            "tidewater.changed" => ServerNotice::Changed,
            "tidewater.leaving" => ServerNotice::Leaving {
                servers: match argument("servers") {
                    Some(ArgumentValue::Text(list)) => {
                        list.split_whitespace().map(str::to_owned).collect()
                    }
                    _ => Vec::new(),
                },
                pause: Duration::from_millis(number("pause_ms")),
            },
            "tidewater.missed" => ServerNotice::Missed {
                space: match argument("space") {
                    Some(ArgumentValue::Text(space)) => space.clone(),
                    _ => String::new(),
                },
                count: number("count"),
            },
            _ => return None,
        })
    }
}

/// The notices that nobody has taken yet.
#[derive(Default)]
pub(crate) struct ServerNotices {
    queue: Mutex<VecDeque<ServerNotice>>,
    ready: Condvar,
}

impl ServerNotices {
    fn queue(&self) -> MutexGuard<'_, VecDeque<ServerNotice>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a notice, unless the same one waits already.
    pub(crate) fn push(&self, notice: ServerNotice) {
        let mut queue = self.queue();
        if let ServerNotice::Missed { space, count } = &notice
            && let Some(ServerNotice::Missed {
                space: known,
                count: counted,
            }) = queue.back_mut()
            && space == known
        {
            *counted += count;
        } else if !queue.contains(&notice) {
            queue.push_back(notice);
        }
        drop(queue);
        self.ready.notify_all();
    }

    /// Whoever waits looks up.
    pub(crate) fn wake(&self) {
        self.ready.notify_all();
    }

    /// The next one, if it comes soon enough and nobody is woken for something else.
    pub(crate) fn next(&self, patience: Duration) -> Option<ServerNotice> {
        let mut queue = self.queue();
        if queue.is_empty() {
            let waited = self.ready.wait_timeout(queue, patience);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.pop_front()
    }
}
