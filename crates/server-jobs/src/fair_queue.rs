//! Queues before workers: who is next, who goes along, how many wait. What the tasks are, and
//! who runs them, the lanes say.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Tasks that wait for a worker of one kind.
pub struct FairQueue<T> {
    queue: Mutex<UserQueues<T>>,
    ready: Notify,
    submitted: AtomicU64,
    taken: AtomicU64,
    /// Workers that have nothing to do.
    pub resting: RestingWorkers,
}

/// Something that is done for a user. Users take turns, however much one of them has waiting;
/// what is done for all alike names none.
pub trait OfUser {
    /// The user's name; empty for all alike.
    fn user(&self) -> &str {
        ""
    }
}

struct UserQueues<T> {
    /// What waits, by user; no list is empty.
    tasks: HashMap<String, VecDeque<T>>,
    /// Those users, in the order of their turns.
    turns: VecDeque<String>,
    waiting: usize,
    closed: bool,
}

impl<T: OfUser> UserQueues<T> {
    fn push(&mut self, task: T) {
        self.waiting += 1;
        if let Some(tasks) = self.tasks.get_mut(task.user()) {
            tasks.push_back(task);
            return;
        }
        let user = task.user().to_owned();
        self.turns.push_back(user.clone());
        self.tasks.insert(user, VecDeque::from([task]));
    }

    fn front(&self) -> Option<&T> {
        self.tasks.get(self.turns.front()?)?.front()
    }

    fn pop(&mut self) -> Option<T> {
        let user = self.turns.pop_front()?;
        let tasks = self.tasks.get_mut(&user)?;
        let task = tasks.pop_front()?;
        self.waiting -= 1;
        match tasks.is_empty() {
            true => drop(self.tasks.remove(&user)),
            false => self.turns.push_back(user),
        }
        Some(task)
    }
}

/// A place in a lane, for "so many before you".
#[derive(Clone, Copy)]
pub struct Ticket(u64);

impl<T: OfUser> FairQueue<T> {
    /// An empty queue.
    pub fn new() -> Arc<FairQueue<T>> {
        Arc::new(FairQueue {
            queue: Mutex::new(UserQueues {
                tasks: HashMap::new(),
                turns: VecDeque::new(),
                waiting: 0,
                closed: false,
            }),
            ready: Notify::new(),
            submitted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            resting: RestingWorkers::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, UserQueues<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task at the end of its user's. On a closed lane it is dropped, which its reply
    /// channel tells.
    pub fn submit(&self, task: T) -> Ticket {
        let mut queue = self.queue();
        let ticket = Ticket(self.submitted.fetch_add(1, Ordering::Relaxed));
        if !queue.closed {
            queue.push(task);
            drop(queue);
            // The worker that went idle last: its caches are warm, and workers
            // beyond the load stay idle for good.
            self.ready.notify_last();
        }
        ticket
    }

    /// How many tasks wait.
    pub fn waiting(&self) -> usize {
        self.queue().waiting
    }

    /// How many tasks wait before this one, where all are done for all alike.
    pub fn ahead(&self, ticket: Ticket) -> u64 {
        ticket.0.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// The next task and those behind it that go along: as long as `fits`, which is
    /// asked in turn, says so of each of them. `None` when the lane is closed and empty.
    pub async fn next(&self, mut fits: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
        let _rest = self.resting.begin();
        loop {
            {
                let mut queue = self.queue();
                if let Some(first) = queue.pop() {
                    let takes_more = fits(&first);
                    let mut batch = vec![first];
                    while takes_more && queue.front().is_some_and(&mut fits) {
                        batch.extend(queue.pop());
                    }
                    self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    if queue.waiting > 0 {
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

    /// Whether no more tasks are taken.
    pub fn is_closed(&self) -> bool {
        self.queue().closed
    }

    /// Takes no more tasks; those that wait are done.
    pub fn close(&self) {
        self.queue().closed = true;
        self.ready.notify_waiters();
        self.ready.notify_last();
    }
}

/// How many workers have nothing to do.
#[derive(Default)]
pub struct RestingWorkers(AtomicUsize);

/// A worker that has nothing to do, until this is dropped.
pub struct RestGuard<'a>(&'a RestingWorkers);

impl RestingWorkers {
    /// One more has nothing to do.
    pub fn begin(&self) -> RestGuard<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        RestGuard(self)
    }

    /// How many have nothing to do.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for RestGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl OfUser for u32 {}

    impl OfUser for (&'static str, u32) {
        fn user(&self) -> &str {
            self.0
        }
    }

    #[test]
    fn users_take_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let lane = FairQueue::new();
            for number in 1..=1_000 {
                lane.submit(("ada", number));
            }
            assert_eq!(lane.next(|_| false).await, Some(vec![("ada", 1)]));
            lane.submit(("bob", 1));
            lane.submit(("bob", 2));
            lane.submit(("eve", 1));
            let mut left = 6;
            let batch = lane.next(|_| {
                left -= 1;
                left >= 0
            });
            let expected = [
                ("ada", 2),
                ("bob", 1),
                ("eve", 1),
                ("ada", 3),
                ("bob", 2),
                ("ada", 4),
            ];
            assert_eq!(batch.await.unwrap(), expected);
            assert_eq!(lane.waiting(), 996);
            assert_eq!(lane.next(|_| true).await.unwrap().len(), 996);
            let queue = lane.queue();
            assert!(queue.tasks.is_empty() && queue.turns.is_empty());
        });
    }

    #[test]
    fn a_worker_takes_what_fits_and_never_waits_for_more() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let lane = FairQueue::new();
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
