//! Who of the users of a file holds which lock: SQLite's five levels on the file, its eight
//! locks on the shared memory, and that memory itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// The levels of SQLite's lock on a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

/// A piece of shared memory. SQLite reads and writes it through a pointer, with barriers of
/// its own; here it is only made and cleared.
pub(super) type Region = Box<[AtomicU64]>;

/// What one connection holds of a file.
#[derive(Debug, Default)]
struct Holder {
    user: u64,
    level: Level,
    /// A bit for each lock of the shared memory.
    shared: u8,
    exclusive: u8,
    maps: bool,
}

/// The locks of a file, and the memory that its users share.
#[derive(Debug, Default)]
pub(super) struct Locks {
    holders: Vec<Holder>,
    regions: Vec<Region>,
}

impl Locks {
    fn others(&self, user: u64) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(move |holder| holder.user != user)
    }

    fn own(&mut self, user: u64) -> &mut Holder {
        let index = self.holders.iter().position(|it| it.user == user);
        let index = index.unwrap_or_else(|| {
            self.holders.push(Holder {
                user,
                ..Holder::default()
            });
            self.holders.len() - 1
        });
        &mut self.holders[index]
    }

    /// Raises the level; whether nobody stands in the way. Who waits for the last reader to
    /// leave keeps new ones out.
    pub(super) fn raise(&mut self, user: u64, level: Level) -> bool {
        if self.own(user).level >= level {
            return true;
        }
        let highest = self.others(user).map(|other| other.level).max();
        let highest = highest.unwrap_or_default();
        let free = match level {
            Level::None => true,
            Level::Shared => highest < Level::Pending,
            Level::Reserved => highest < Level::Reserved,
            Level::Pending | Level::Exclusive => highest < Level::Pending,
        };
        if !free {
            return false;
        }
        let readers = level == Level::Exclusive && highest >= Level::Shared;
        self.own(user).level = if readers { Level::Pending } else { level };
        !readers
    }

    /// Lowers the level.
    pub(super) fn lower(&mut self, user: u64, level: Level) {
        let own = self.own(user);
        own.level = own.level.min(level);
    }

    /// Whether anybody is about to write.
    pub(super) fn is_reserved(&self) -> bool {
        self.holders.iter().any(|it| it.level >= Level::Reserved)
    }

    /// Takes locks of the shared memory; whether nobody stands in the way.
    pub(super) fn lock_memory(&mut self, user: u64, locks: u8, exclusive: bool) -> bool {
        let taken = self.others(user).fold(0, |taken, other| {
            taken | other.exclusive | if exclusive { other.shared } else { 0 }
        });
        if taken & locks != 0 {
            return false;
        }
        let own = self.own(user);
        if exclusive {
            own.exclusive |= locks;
        } else {
            own.shared |= locks;
        }
        true
    }

    pub(super) fn unlock_memory(&mut self, user: u64, locks: u8) {
        let own = self.own(user);
        own.shared &= !locks;
        own.exclusive &= !locks;
    }

    /// A piece of the shared memory; `None` if there are not so many, and none is to be
    /// made. Who comes first finds it empty, whatever the last ones left.
    pub(super) fn region(
        &mut self,
        user: u64,
        index: usize,
        bytes: usize,
        make: bool,
    ) -> Option<&Region> {
        if !self.holders.iter().any(|holder| holder.maps) {
            self.regions.clear();
        }
        self.own(user).maps = true;
        while make && self.regions.len() <= index {
            let cells = (0..bytes / size_of::<AtomicU64>()).map(|_| AtomicU64::new(0));
            self.regions.push(cells.collect());
        }
        self.regions.get(index)
    }

    pub(super) fn unmap(&mut self, user: u64) {
        let own = self.own(user);
        (own.maps, own.shared, own.exclusive) = (false, 0, 0);
    }

    /// A user is gone, and all that it held.
    pub(super) fn leave(&mut self, user: u64) {
        self.holders.retain(|holder| holder.user != user);
    }
}

/// Orders what was written to the shared memory before and after.
pub(super) fn barrier() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
        let mut locks = Locks::default();
        assert!(locks.raise(1, Level::Shared) && locks.raise(2, Level::Shared));
        assert!(locks.raise(1, Level::Reserved) && !locks.raise(2, Level::Reserved));
        assert!(!locks.raise(1, Level::Exclusive), "somebody reads");
        assert!(!locks.raise(3, Level::Shared), "somebody waits to write");
        locks.lower(2, Level::None);
        assert!(locks.raise(1, Level::Exclusive) && locks.is_reserved());
        locks.leave(1);
        assert!(!locks.is_reserved() && locks.raise(3, Level::Shared));
    }

    #[test]
    fn locks_of_the_shared_memory_exclude_each_other_one_by_one() {
        let mut locks = Locks::default();
        assert!(locks.lock_memory(1, 0b01, true));
        assert!(!locks.lock_memory(2, 0b01, false) && locks.lock_memory(2, 0b10, false));
        assert!(!locks.lock_memory(1, 0b10, true) && locks.lock_memory(1, 0b10, false));
        locks.unlock_memory(1, 0b01);
        assert!(locks.lock_memory(2, 0b01, true));
    }

    #[test]
    fn shared_memory_is_empty_for_who_comes_first() {
        let mut locks = Locks::default();
        assert!(locks.region(1, 0, 32_768, false).is_none());
        let region = locks.region(1, 0, 32_768, true).expect("it is made");
        region[0].store(7, Ordering::Relaxed);
        let other = locks.region(2, 0, 32_768, true).expect("it is there");
        assert_eq!(other[0].load(Ordering::Relaxed), 7);
        locks.unmap(1);
        locks.leave(2);
        let fresh = locks.region(3, 0, 32_768, true).expect("it is made");
        assert_eq!(fresh[0].load(Ordering::Relaxed), 0);
    }
}
