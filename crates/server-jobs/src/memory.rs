//! The memory budget: bytes of rows that may be in memory at the same time.
//!
//! Nobody ever waits for memory. What cannot be reserved at once goes to a
//! temporary file ([`crate::spool`]) or is refused, so no set of remotes, however
//! slow, can deadlock the budget.
//!
//! What can only be in memory may find no place however often its remote comes again: it
//! is larger than the budget, or the same sync's rows have filled that. So one session at
//! a time may go beyond the budget for it, as far as its own limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is left of the budget. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    bytes: u64,
    free: Arc<AtomicU64>,
    /// How often something did not fit.
    exhausted: Arc<AtomicU64>,
    beyond: Arc<Mutex<Beyond>>,
    /// Bytes in temporary files.
    spooled: Arc<AtomicU64>,
    /// Who reserves; see [`MemoryBudget::of_session`].
    session: u64,
}

/// What is reserved beyond the budget.
#[derive(Debug, Default)]
struct Beyond {
    /// How many sessions have a number.
    sessions: u64,
    /// Whose the bytes are.
    session: u64,
    bytes: u64,
}

/// Looks at a server's memory budget, also when the server has stopped.
#[derive(Clone, Debug)]
pub struct MemoryGauge(MemoryBudget);

impl MemoryGauge {
    /// Bytes that are reserved now.
    pub fn reserved_bytes(&self) -> u64 {
        let free = self.0.free.load(Ordering::Relaxed);
        self.0.bytes.saturating_sub(free) + self.0.beyond().bytes
    }

    /// Bytes that are in temporary files instead.
    pub fn spooled_bytes(&self) -> u64 {
        self.0.spooled.load(Ordering::Relaxed)
    }

    /// How often something did not fit, and went to a file, beyond the budget, or was refused.
    pub fn times_exhausted(&self) -> u64 {
        self.0.exhausted.load(Ordering::Relaxed)
    }
}

/// Bytes that are reserved until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: u64,
    /// How many of them are beyond the budget.
    beyond: u64,
    /// Bytes that went to a file instead.
    spooled: u64,
}

/// So few bytes need no reservation.
pub const FREE_BYTES: usize = 16 << 10;

/// What is in memory as long as one of the clones is there. All are equal: what they hold is
/// another's.
#[derive(Clone, Debug, Default)]
pub struct HeldMemory {
    _reservation: Option<Arc<Reservation>>,
}

impl From<Reservation> for HeldMemory {
    fn from(reservation: Reservation) -> HeldMemory {
        HeldMemory {
            _reservation: Some(Arc::new(reservation)),
        }
    }
}

impl PartialEq for HeldMemory {
    fn eq(&self, _: &HeldMemory) -> bool {
        true
    }
}

impl MemoryBudget {
    /// Holds so many bytes, if there is room for them.
    pub fn hold(&self, bytes: usize) -> Option<HeldMemory> {
        if bytes <= FREE_BYTES {
            return Some(HeldMemory::default());
        }
        let mut reservation = self.empty();
        reservation.grow(bytes as u64).then(|| reservation.into())
    }

    /// A budget of so many bytes.
    pub fn new(bytes: u64) -> MemoryBudget {
        MemoryBudget {
            bytes,
            free: Arc::new(AtomicU64::new(bytes)),
            exhausted: Arc::default(),
            beyond: Arc::default(),
            spooled: Arc::default(),
            session: 0,
        }
    }

    /// The same budget, for one session: of all sessions one at a time goes beyond it.
    pub fn of_session(&self) -> MemoryBudget {
        let mut beyond = self.beyond();
        beyond.sessions += 1;
        MemoryBudget {
            session: beyond.sessions,
            ..self.clone()
        }
    }

    /// Who looks at it from outside.
    pub fn gauge(&self) -> MemoryGauge {
        MemoryGauge(self.clone())
    }

    /// Bytes that nobody has reserved.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// A reservation of nothing, to grow.
    pub fn empty(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
            beyond: 0,
            spooled: 0,
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            });
        if taken.is_err() {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn beyond(&self) -> MutexGuard<'_, Beyond> {
        self.beyond.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn go_beyond(&self, bytes: u64) -> bool {
        let mut beyond = self.beyond();
        let may = beyond.bytes == 0 || beyond.session == self.session;
        if may {
            beyond.session = self.session;
            beyond.bytes += bytes;
        }
        may
    }
}

impl Reservation {
    /// Reserves so many bytes more, or nothing.
    #[must_use]
    pub fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Reserves so many bytes more for what can only be in memory: beyond the budget if
    /// they do not fit, as long as no other session is there.
    #[must_use]
    pub fn grow_anyway(&mut self, bytes: u64) -> bool {
        if self.grow(bytes) {
            return true;
        }
        let may = self.budget.go_beyond(bytes);
        if may {
            self.bytes += bytes;
            self.beyond += bytes;
        }
        may
    }

    /// Gives so many bytes back, those beyond the budget first.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        let beyond = bytes.min(self.beyond);
        self.bytes -= bytes;
        self.beyond -= beyond;
        if beyond > 0 {
            self.budget.beyond().bytes -= beyond;
        }
        self.budget
            .free
            .fetch_add(bytes - beyond, Ordering::Relaxed);
    }

    /// So many bytes more went to a file.
    pub fn spool(&mut self, bytes: u64) {
        self.spooled += bytes;
        self.budget.spooled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nothing of the file is needed any more.
    pub fn unspool(&mut self) {
        let spooled = std::mem::take(&mut self.spooled);
        self.budget.spooled.fetch_sub(spooled, Ordering::Relaxed);
    }

    /// How many bytes are reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
        self.unspool();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_all_or_nothing_and_comes_back() {
        let budget = MemoryBudget::new(100);
        let mut one = budget.empty();
        let mut two = budget.empty();
        assert!(one.grow(60));
        assert!(!two.grow(50));
        assert_eq!((two.bytes(), budget.free()), (0, 40));
        assert!(two.grow(40));
        one.shrink(1_000);
        assert_eq!((one.bytes(), budget.free()), (0, 60));
        drop(two);
        assert_eq!(budget.free(), 100);
    }

    #[test]
    fn a_gauge_tells_what_is_reserved_and_what_did_not_fit() {
        let budget = MemoryBudget::new(100);
        let gauge = budget.gauge();
        let mut reservation = budget.empty();
        assert!(reservation.grow(60));
        assert_eq!((gauge.reserved_bytes(), gauge.times_exhausted()), (60, 0));
        assert!(!reservation.grow(60));
        assert_eq!((gauge.reserved_bytes(), gauge.times_exhausted()), (60, 1));
        drop(reservation);
        drop(budget);
        assert_eq!((gauge.reserved_bytes(), gauge.times_exhausted()), (0, 1));
    }

    #[test]
    fn one_session_at_a_time_goes_beyond_the_budget() {
        let budget = MemoryBudget::new(100);
        let gauge = budget.gauge();
        let (one, other) = (budget.of_session(), budget.of_session());
        let (mut rows, mut compared) = (one.empty(), one.empty());
        assert!(rows.grow(100));
        assert!(compared.grow_anyway(30) && compared.grow_anyway(300));
        assert_eq!((compared.bytes(), gauge.reserved_bytes()), (330, 430));
        let mut late = other.empty();
        assert!(!late.grow_anyway(1));
        compared.shrink(329);
        assert_eq!((budget.free(), gauge.reserved_bytes()), (0, 101));
        assert!(!late.grow_anyway(1));
        drop(compared);
        assert!(late.grow_anyway(1_000));
        drop((rows, late));
        assert_eq!((budget.free(), gauge.reserved_bytes()), (100, 0));
    }

    #[test]
    fn many_threads_never_reserve_more_than_there_is() {
        let budget = MemoryBudget::new(1_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let budget = budget.clone();
                scope.spawn(move || {
                    for step in 0..10_000u64 {
                        let mut reservation = budget.empty();
                        let _ = reservation.grow(step % 700);
                        assert!(budget.free() <= 1_000);
                    }
                });
            }
        });
        assert_eq!(budget.free(), 1_000);
    }
}
