//! When those who are turned away should come back.
//!
//! Whoever is turned away finds a place as soon as somebody has left, so each is given the next
//! moment at which somebody is expected to leave that nobody else was given: the crowd comes back
//! one after the other, at the pace at which it is served. To come too early costs being turned
//! away once more, which is cheap; to come too late leaves the server idle. So the pace is taken for
//! somewhat faster than it is, and nobody is sent away for long: the next time more is known.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The least that anybody waits.
const SHORTEST: Duration = Duration::from_millis(100);

/// The most. A crowd that would take longer spreads over the second half of it.
const LONGEST: Duration = Duration::from_secs(20);

/// How much of the pace is believed.
const BELIEVED: f64 = 0.8;

/// How many completed syncs the pace is the mean of, with the older ones counting less.
const REMEMBERED: f64 = 64.0;

/// Before any sync is complete, they are taken for fast.
const FIRST_INTERVAL_MS: f64 = 1.0;

/// How fast the backlog drains: when to come back.
pub(crate) struct DrainRate {
    state: Mutex<Drain>,
}

struct Drain {
    last: Option<Instant>,
    /// Smoothed time between two completed syncs.
    interval_ms: f64,
    /// How many it is the mean of.
    known: f64,
    /// Up to when moments were given to those who were turned away.
    booked: Option<Instant>,
}

impl DrainRate {
    pub(crate) fn new() -> DrainRate {
        DrainRate {
            state: Mutex::new(Drain {
                last: None,
                interval_ms: FIRST_INTERVAL_MS,
                known: 0.0,
                booked: None,
            }),
        }
    }

    /// A sync is complete.
    pub(crate) fn completed(&self, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = state.last.replace(now) {
            // Pauses without load say nothing about the rate under load.
            let interval_ms = ((now - last).as_secs_f64() * 1_000.0).min(1_000.0);
            state.known = (state.known + 1.0).min(REMEMBERED);
            state.interval_ms += (interval_ms - state.interval_ms) / state.known;
        }
    }

    /// When a remote should come back that finds everything full, in milliseconds. `jitter` is
    /// random.
    pub(crate) fn retry_after_ms(&self, now: Instant, jitter: u16) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let chance = f64::from(jitter) / f64::from(u16::MAX);
        let each = Duration::from_secs_f64(state.interval_ms * BELIEVED / 1_000.0);
        let from = state.booked.map_or(now, |booked| booked.max(now));
        let after = from + each - now;
        let after = match after < LONGEST {
            true => {
                state.booked = Some(from + each);
                // Networks and clocks differ by as much anyway.
                after.max(SHORTEST).mul_f64(0.95 + chance / 10.0)
            }
            false => LONGEST.mul_f64(0.5 + chance / 2.0),
        };
        u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    #[test]
    fn the_time_to_come_back_follows_the_drain_rate() {
        let after_thousand = |interval_ms| {
            let (rate, mut now) = (DrainRate::new(), Instant::now());
            for _ in 0..1_000 {
                now += Duration::from_millis(interval_ms);
                rate.completed(now);
            }
            (0..1_000)
                .map(|_| rate.retry_after_ms(now, u16::MAX / 2))
                .last()
        };
        let (fast, slow) = (after_thousand(2).unwrap(), after_thousand(10).unwrap());
        assert!((1_500..1_700).contains(&fast), "{fast}");
        assert!((7_500..8_500).contains(&slow), "{slow}");
        // At the end of what can be told, the crowd spreads.
        let (rate, now) = (DrainRate::new(), Instant::now());
        for _ in 0..100_000 {
            rate.retry_after_ms(now, 0);
        }
        let told = [0, u16::MAX].map(|jitter| rate.retry_after_ms(now, jitter));
        assert_eq!(told, [10_000, 20_000]);
        assert!(rate.retry_after_ms(now + LONGEST * 2, 0) >= 90);
    }

    /// A crowd that a server admits a part of: how long it takes altogether, and how often one of
    /// them is turned away.
    fn crowd(remotes: u64, limit: u64, interval: Duration) -> (Duration, u64) {
        let (rate, start) = (DrainRate::new(), Instant::now());
        // A generator that is good enough for jitter.
        let mut chance = 1_u32;
        let mut jitter = || {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (chance >> 16) as u16
        };
        // They come within a second, and what the server does is looked at in between.
        let come = |number| start + Duration::from_micros(1_000_000 * number / remotes);
        let mut coming: BinaryHeap<_> = (0..remotes).map(|it| Reverse(come(it))).collect();
        let (mut inside, mut turned_away) = (0, 0);
        let mut leaves = start + interval;
        loop {
            let comes = coming.peek().map(|it| it.0);
            match comes {
                Some(now) if inside == 0 || now <= leaves => {
                    coming.pop();
                    if inside < limit {
                        if inside == 0 {
                            leaves = leaves.max(now + interval);
                        }
                        inside += 1;
                    } else {
                        turned_away += 1;
                        let after_ms = rate.retry_after_ms(now, jitter());
                        coming.push(Reverse(now + Duration::from_millis(after_ms)));
                    }
                }
                _ if inside > 0 => {
                    inside -= 1;
                    rate.completed(leaves);
                    leaves += interval;
                }
                _ => return (leaves - start, turned_away),
            }
        }
    }

    #[test]
    fn a_crowd_neither_leaves_the_server_idle_nor_comes_back_again_and_again() {
        for syncs_a_second in [100, 270, 1_000, 5_000] {
            let interval = Duration::from_secs(1) / syncs_a_second;
            let (took, turned_away) = crowd(10_000, 1_024, interval);
            let least = (interval * 10_000).max(Duration::from_secs(1));
            assert!(took <= least.mul_f64(1.05), "{syncs_a_second}: {took:?}");
            let most = 10_000 * if syncs_a_second < 200 { 8 } else { 5 };
            assert!(turned_away < most, "{syncs_a_second}: {turned_away}");
        }
    }
}
