//! The memory budget: bytes of rows that may be in memory at the same time.
//!
//! Nobody ever waits for memory. What cannot be reserved at once goes to a
//! temporary file ([`crate::spool`]) or is refused, so no set of remotes, however
//! slow, can deadlock the budget.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is left of the budget. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    free: Arc<AtomicU64>,
}

/// Bytes that are reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: u64) -> MemoryBudget {
        MemoryBudget {
            free: Arc::new(AtomicU64::new(bytes)),
        }
    }

    /// Bytes that nobody has reserved.
    #[cfg(test)]
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// A reservation of nothing, to grow.
    pub(crate) fn empty(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    fn take(&self, bytes: u64) -> bool {
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            })
            .is_ok()
    }
}

impl Reservation {
    /// Reserves so many bytes more, or nothing.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Gives so many bytes back.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.free.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes are reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A reservation that several hold; it ends when the last of them lets go.
#[derive(Clone, Debug)]
pub(crate) struct SharedReservation(Arc<Mutex<Reservation>>);

impl SharedReservation {
    pub(crate) fn new(reservation: Reservation) -> SharedReservation {
        SharedReservation(Arc::new(Mutex::new(reservation)))
    }

    fn inner(&self) -> MutexGuard<'_, Reservation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Reservation::grow`].
    #[must_use]
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        self.inner().grow(bytes)
    }

    /// See [`Reservation::shrink`].
    pub(crate) fn shrink(&self, bytes: u64) {
        self.inner().shrink(bytes);
    }

    /// See [`Reservation::bytes`].
    pub(crate) fn bytes(&self) -> u64 {
        self.inner().bytes()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
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
