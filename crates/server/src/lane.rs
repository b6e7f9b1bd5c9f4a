//! Queues before workers: who is next, who goes along, how many wait. What the tasks are, and
//! who runs them, is the affair of [`crate::worker`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::metrics::Resting;

/// Tasks that wait for a worker of one kind.
pub(crate) struct Lane<T> {
    queue: Mutex<Queue<T>>,
    ready: Notify,
    submitted: AtomicU64,
    taken: AtomicU64,
    pub(crate) resting: Resting,
}

struct Queue<T> {
    tasks: VecDeque<T>,
    closed: bool,
}

/// A place in a lane, for "so many before you".
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

impl<T> Lane<T> {
    pub(crate) fn new() -> Arc<Lane<T>> {
        Arc::new(Lane {
            queue: Mutex::new(Queue {
                tasks: VecDeque::new(),
                closed: false,
            }),
            ready: Notify::new(),
            submitted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            resting: Resting::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task at the end. On a closed lane it is dropped, which its reply
    /// channel tells.
    pub(crate) fn submit(&self, task: T) -> Ticket {
        let mut queue = self.queue();
        let ticket = Ticket(self.submitted.fetch_add(1, Ordering::Relaxed));
        if !queue.closed {
            queue.tasks.push_back(task);
            drop(queue);
            // The worker that went idle last: its caches are warm, and workers
            // beyond the load stay idle for good.
            self.ready.notify_last();
        }
        ticket
    }

    /// How many tasks wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue().tasks.len()
    }

    /// Its name, how many workers may work, how many of all that there are do, and what waits.
    pub(crate) fn figures(
        &self,
        name: &'static str,
        (level, workers): (usize, usize),
    ) -> (&'static str, usize, usize, usize) {
        let busy = workers.saturating_sub(self.resting.count());
        (name, level, busy, self.waiting())
    }

    /// How many tasks wait before this one.
    pub(crate) fn ahead(&self, ticket: Ticket) -> u64 {
        ticket.0.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// The next task and those behind it that go along: as long as `fits`, which is
    /// asked in turn, says so of each of them. `None` when the lane is closed and empty.
    pub(crate) async fn next(&self, mut fits: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
        let _rest = self.resting.begin();
        loop {
            {
                let mut queue = self.queue();
                if let Some(first) = queue.tasks.pop_front() {
                    let takes_more = fits(&first);
                    let mut batch = vec![first];
                    while takes_more && queue.tasks.front().is_some_and(&mut fits) {
                        batch.extend(queue.tasks.pop_front());
                    }
                    self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    if !queue.tasks.is_empty() {
                        // Two tasks submitted at once may have left one wake-up.
                        self.ready.notify_last();
                    }
                    return Some(batch);
                }
                if queue.closed {
                    self.ready.notify_last();
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.ready.notify_waiters();
        self.ready.notify_last();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_what_fits_and_never_waits_for_more() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let lane = Lane::new();
            for number in 1..=5u32 {
                lane.submit(number);
            }
            let last = lane.submit(6);
            assert_eq!(lane.ahead(last), 5);
            let mut left = 3;
            let batch = lane.next(|_| {
                left -= 1;
                left >= 0
            });
            assert_eq!(batch.await, Some(vec![1, 2, 3]));
            assert_eq!((lane.waiting(), lane.ahead(last)), (3, 2));
            assert_eq!(lane.next(|_| true).await, Some(vec![4, 5, 6]));
            lane.submit(7);
            lane.close();
            lane.submit(8);
            assert_eq!(lane.next(|_| true).await, Some(vec![7]));
            assert_eq!(lane.next(|_| true).await, None);
        });
    }
}
