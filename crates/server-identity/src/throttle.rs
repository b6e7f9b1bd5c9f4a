//! Delays that grow with repeated failures to sign in with a password, per user and
//! per address.
//!
//! Names that do not exist are treated like those that do. Only answered attempts
//! count: a whole fleet may sign in for the first time from one address. Guessing in
//! parallel gains no more than the bounded pool of password checks admits at once. The maps are bounded:
//! when one is full, the entry whose delay ends first goes. Credentials and tokens
//! are 32 random bytes or signed; guessing them needs no delay.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Failures that cost nothing: people mistype.
const FREE_FAILURES: u32 = 3;
/// The first delay; each failure doubles it.
const FIRST_DELAY_MS: i64 = 500;
/// The longest delay.
const MAX_DELAY_MS: i64 = 60_000;
/// Failures are forgotten so long after the last.
const FORGET_AFTER_MS: i64 = 15 * 60_000;
/// Entries of each map.
const MAX_ENTRIES: usize = 10_000;

#[derive(Default)]
pub(crate) struct Throttle {
    users: Mutex<Failures>,
    addresses: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    entries: HashMap<String, Entry>,
}

struct Entry {
    failures: u32,
    /// No attempt before this time.
    open_ms: i64,
    last_ms: i64,
}

impl Throttle {
    /// How long to wait before a password of this user from this address is looked
    /// at, in milliseconds; 0 for not at all.
    pub(crate) fn wait_ms(&self, user: &str, address: &str, now_ms: i64) -> u64 {
        let user = lock(&self.users).wait_ms(user, now_ms);
        user.max(lock(&self.addresses).wait_ms(address, now_ms))
    }

    /// The password was wrong.
    pub(crate) fn failed(&self, user: &str, address: &str, now_ms: i64) {
        lock(&self.users).failed(user, now_ms);
        lock(&self.addresses).failed(address, now_ms);
    }

    /// The password was right: the user starts anew. The address does not, or one
    /// account would open it for guessing at others.
    pub(crate) fn succeeded(&self, user: &str) {
        lock(&self.users).entries.remove(user);
    }
}

fn lock(failures: &Mutex<Failures>) -> MutexGuard<'_, Failures> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Failures {
    fn wait_ms(&self, key: &str, now_ms: i64) -> u64 {
        self.entries
            .get(key)
            .filter(|entry| !entry.is_old(now_ms))
            .map_or(0, |entry| {
                // A clock that was set back must not lock anybody out.
                u64::try_from((entry.open_ms - now_ms).min(MAX_DELAY_MS)).unwrap_or(0)
            })
    }

    fn failed(&mut self, key: &str, now_ms: i64) {
        if !self.entries.contains_key(key) && self.entries.len() >= MAX_ENTRIES {
            self.make_room(now_ms);
        }
        let entry = self.entries.entry(key.to_owned()).or_insert(Entry {
            failures: 0,
            open_ms: now_ms,
            last_ms: now_ms,
        });
        if entry.is_old(now_ms) {
            entry.failures = 0;
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.last_ms = now_ms;
        let over = entry.failures.saturating_sub(FREE_FAILURES);
        entry.open_ms = match over {
            0 => now_ms,
            over => now_ms + (FIRST_DELAY_MS << (over - 1).min(20)).min(MAX_DELAY_MS),
        };
    }

    fn make_room(&mut self, now_ms: i64) {
        self.entries.retain(|_, entry| !entry.is_old(now_ms));
        if self.entries.len() < MAX_ENTRIES {
            return;
        }
        let first = self
            .entries
            .iter()
            .min_by_key(|(_, entry)| (entry.open_ms, entry.failures))
            .map(|(key, _)| key.clone());
        if let Some(first) = first {
            self.entries.remove(&first);
        }
    }
}

impl Entry {
    fn is_old(&self, now_ms: i64) -> bool {
        (now_ms - self.last_ms).abs() > FORGET_AFTER_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_with_failures_and_end_with_success() {
        let throttle = Throttle::default();
        let mut now_ms = 1_000_000;
        for _ in 0..=FREE_FAILURES {
            assert_eq!(throttle.wait_ms("ada", "10.0.0.1", now_ms), 0);
            throttle.failed("ada", "10.0.0.1", now_ms);
        }
        let mut last = 0;
        for _ in 0..12 {
            let wait = throttle.wait_ms("ada", "10.0.0.2", now_ms);
            assert!(wait > 0 && wait >= last && wait <= MAX_DELAY_MS as u64);
            last = wait;
            now_ms += wait as i64;
            assert_eq!(throttle.wait_ms("ada", "10.0.0.2", now_ms), 0);
            throttle.failed("ada", "10.0.0.2", now_ms);
        }
        assert_eq!(last, MAX_DELAY_MS as u64);
        throttle.succeeded("ada");
        assert_eq!(throttle.wait_ms("ada", "10.0.0.3", now_ms), 0);
        assert!(throttle.wait_ms("ada", "10.0.0.2", now_ms) > 0);
    }

    #[test]
    fn an_address_that_tries_many_users_is_slowed_too() {
        let throttle = Throttle::default();
        for number in 0..=FREE_FAILURES {
            throttle.failed(&format!("u{number}"), "10.0.0.1", 5);
        }
        assert!(throttle.wait_ms("somebody", "10.0.0.1", 5) > 0);
        assert_eq!(throttle.wait_ms("somebody", "10.0.0.9", 5), 0);
        let later = 5 + FORGET_AFTER_MS + 1;
        assert_eq!(throttle.wait_ms("other", "10.0.0.1", later), 0);
    }

    #[test]
    fn the_maps_stay_bounded() {
        let throttle = Throttle::default();
        for number in 0..MAX_ENTRIES + 50 {
            throttle.failed(&format!("u{number}"), &format!("a{number}"), 5);
        }
        assert!(lock(&throttle.users).entries.len() <= MAX_ENTRIES);
        assert!(lock(&throttle.addresses).entries.len() <= MAX_ENTRIES);
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out_for_long() {
        let throttle = Throttle::default();
        for _ in 0..20 {
            throttle.failed("ada", "a", 10_000_000_000);
        }
        assert_eq!(throttle.wait_ms("ada", "a", 1_000), 0);
    }
}
