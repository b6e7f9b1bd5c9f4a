//! What the server has said of its own accord, and nobody has taken yet.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
#[cfg(feature = "sync")]
use std::time::Duration;

use tidewater_connection::device::ServerNotice;

/// See the module.
#[derive(Default)]
pub(crate) struct NoticeQueue {
    queue: Mutex<VecDeque<ServerNotice>>,
    ready: Condvar,
}

impl NoticeQueue {
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
    #[cfg(feature = "sync")]
    pub(crate) fn next(&self, patience: Duration) -> Option<ServerNotice> {
        let mut queue = self.queue();
        if queue.is_empty() {
            let waited = self.ready.wait_timeout(queue, patience);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.pop_front()
    }
}
