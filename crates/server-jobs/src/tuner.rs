//! How many workers of a lane work at the same time: fixed, or found by trying.
//!
//! While syncs wait, one worker more or less is tried for a moment. What brings more rows and syncs
//! stays; what brings nothing is taken back, since every worker costs the centre's other
//! applications something, and locks are waited for the more the more workers there are.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use tidewater_centre::{CentreError, UploadOutcome};

/// How long a number of workers is tried.
const TRIED_FOR: Duration = Duration::from_secs(1);

/// What a sync counts beside its rows: about what it costs without any.
const ROWS_PER_SYNC: u64 = 20;

/// A worker more has to bring so much.
const WORTH_IT: f64 = 1.05;

/// So many times as long a number is kept as it was tried, before others are tried again.
const KEPT_FOR: u32 = 8;

/// Which workers of a lane may work.
pub(crate) struct Gate {
    places: Semaphore,
    /// Places that are to be taken away as soon as they are left.
    surplus: AtomicUsize,
    level: AtomicUsize,
    /// Rows and syncs that were done.
    done: AtomicU64,
    /// Locks that were waited for in vain.
    locked: AtomicU64,
}

/// A worker's turn.
pub struct Turn<'g> {
    gate: &'g Gate,
    place: Option<SemaphorePermit<'g>>,
}

impl Gate {
    /// So many may work.
    pub(crate) fn new(level: usize) -> Arc<Gate> {
        Arc::new(Gate {
            places: Semaphore::new(level),
            surplus: AtomicUsize::new(0),
            level: AtomicUsize::new(level),
            done: AtomicU64::new(0),
            locked: AtomicU64::new(0),
        })
    }

    /// Waits until one more may work.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        // It is never closed.
        let place = self.places.acquire().await.ok();
        Turn { gate: self, place }
    }

    /// So many may work from now on; who is at work finishes it.
    fn set(&self, level: usize) {
        let before = self.level.swap(level, Ordering::Relaxed);
        if level < before {
            self.surplus.fetch_add(before - level, Ordering::Relaxed);
            return;
        }
        let mut missing = level - before;
        while missing > 0 && self.take_surplus() {
            missing -= 1;
        }
        self.places.add_permits(missing);
    }

    fn take_surplus(&self) -> bool {
        let order = Ordering::Relaxed;
        let taken = self
            .surplus
            .fetch_update(order, order, |it| it.checked_sub(1));
        taken.is_ok()
    }

    /// How many may work.
    pub(crate) fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed)
    }
}

impl Turn<'_> {
    /// So much was done.
    pub fn done(&self, syncs: usize, rows: u64) {
        let done = syncs as u64 * ROWS_PER_SYNC + rows;
        self.gate.done.fetch_add(done, Ordering::Relaxed);
    }

    /// Notes the uploads that waited for a lock in vain.
    pub fn note_locks(&self, outcomes: &[UploadOutcome]) {
        for outcome in outcomes {
            if let UploadOutcome::Failed {
                error: CentreError::Locked { .. },
            } = outcome
            {
                self.was_locked();
            }
        }
    }

    /// A lock was waited for in vain.
    pub fn was_locked(&self) {
        self.gate.locked.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.gate.take_surplus()
            && let Some(place) = self.place.take()
        {
            place.forget();
        }
    }
}

/// Finds the number of workers of a gate, as long as there is one. `waits` tells whether syncs are
/// waiting for one of them.
pub(crate) async fn tune(gate: Arc<Gate>, bounds: RangeInclusive<usize>, waits: impl Fn() -> bool) {
    let mut climber = Climber::new(gate.level(), bounds);
    loop {
        let before = (
            Instant::now(),
            gate.done.load(Ordering::Relaxed),
            gate.locked.load(Ordering::Relaxed),
        );
        let is_busy = waits();
        tokio::time::sleep(TRIED_FOR).await;
        // Where nobody waits, more workers could do nothing.
        if !is_busy || !waits() {
            continue;
        }
        let (since, done, locked) = before;
        let done = gate.done.load(Ordering::Relaxed) - done;
        let is_locked = gate.locked.load(Ordering::Relaxed) > locked;
        let level = climber.next(done as f64 / since.elapsed().as_secs_f64(), is_locked);
        if level != gate.level() {
            tracing::debug!(level, "another number of workers is tried");
            gate.set(level);
        }
    }
}

/// Climbs to the number of workers that gets the most done.
#[derive(Debug)]
struct Climber {
    level: usize,
    bounds: RangeInclusive<usize>,
    /// The level before, and what it got done; `None` while nothing is tried.
    before: Option<(usize, f64)>,
    /// Whether one less is tried next.
    downwards: bool,
    /// How often the level is kept before another one is tried.
    kept: u32,
}

impl Climber {
    fn new(level: usize, bounds: RangeInclusive<usize>) -> Climber {
        Climber {
            level,
            bounds,
            before: None,
            downwards: false,
            kept: 0,
        }
    }

    /// The level to try next, after what this one got done in a second.
    fn next(&mut self, rate: f64, is_locked: bool) -> usize {
        if is_locked && self.level > *self.bounds.start() {
            self.before = None;
            self.kept = KEPT_FOR;
            self.level -= 1;
            return self.level;
        }
        if let Some((level, before)) = self.before.take() {
            let is_better = match self.level > level {
                true => rate > before * WORTH_IT,
                // One less that does as much is better.
                false => rate * WORTH_IT > before,
            };
            if !is_better {
                self.level = level;
                self.downwards = !self.downwards;
                self.kept = match self.downwards {
                    // The other direction first.
                    true => 0,
                    false => KEPT_FOR,
                };
                return self.level;
            }
        }
        if self.kept > 0 {
            self.kept -= 1;
            return self.level;
        }
        let tried = match self.downwards {
            true => (self.level - 1).max(*self.bounds.start()),
            false => (self.level + 1).min(*self.bounds.end()),
        };
        if tried == self.level {
            self.downwards = !self.downwards;
            return self.level;
        }
        self.before = Some((self.level, rate));
        self.level = tried;
        tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a climber ends that finds these rates, and where it has been most of the time.
    fn climb(from: usize, rate: impl Fn(usize) -> f64) -> usize {
        let mut climber = Climber::new(from, 1..=16);
        let mut level = from;
        let mut visits = [0; 17];
        for round in 0..400 {
            level = climber.next(rate(level), false);
            if round > 100 {
                visits[level] += 1;
            }
        }
        let most = (1..=16).max_by_key(|&it| visits[it]);
        most.unwrap()
    }

    #[test]
    fn the_number_that_gets_the_most_done_is_found() {
        let peak = |best: f64| move |level: usize| 1_000.0 - 100.0 * (level as f64 - best).abs();
        assert_eq!(climb(2, peak(6.0)), 6);
        assert_eq!(climb(12, peak(6.0)), 6);
        assert_eq!(climb(4, peak(1.0)), 1);
    }

    #[test]
    fn workers_that_bring_nothing_are_taken_away() {
        assert_eq!(climb(8, |level| 500.0 * level.min(3) as f64), 3);
    }

    #[test]
    fn the_bounds_are_kept() {
        let mut climber = Climber::new(3, 3..=5);
        for _ in 0..100 {
            let level = climber.next(1.0, true);
            assert!((3..=5).contains(&level), "{level}");
        }
        let mut climber = Climber::new(3, 3..=5);
        let levels: Vec<usize> = (0..200)
            .map(|_| climber.next(climber.level as f64, false))
            .collect();
        assert!(levels.iter().all(|it| (3..=5).contains(it)), "{levels:?}");
        assert!(levels.contains(&5), "{levels:?}");
    }

    #[test]
    fn locks_that_are_waited_for_take_workers_away() {
        let mut climber = Climber::new(8, 1..=16);
        for _ in 0..20 {
            climber.next(1_000.0, true);
        }
        assert_eq!(climber.level, 1);
    }

    #[tokio::test]
    async fn no_more_than_the_level_work_at_once() {
        let gate = Gate::new(2);
        let (first, second) = (gate.turn().await, gate.turn().await);
        gate.set(1);
        drop(first);
        assert!(futures_util::FutureExt::now_or_never(gate.turn()).is_none());
        drop(second);
        let only = gate.turn().await;
        assert!(futures_util::FutureExt::now_or_never(gate.turn()).is_none());
        gate.set(2);
        let another = gate.turn().await;
        drop((only, another));
        assert_eq!(gate.places.available_permits(), 2);
    }
}
