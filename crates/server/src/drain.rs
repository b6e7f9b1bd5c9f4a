//! When those who are turned away should come back.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// How fast the backlog drains: when to come back.
pub(crate) struct DrainRate {
    state: Mutex<Drain>,
}

struct Drain {
    last: Option<Instant>,
    /// Smoothed time between two completed syncs.
    interval_ms: f64,
}

impl DrainRate {
    pub(crate) fn new() -> DrainRate {
        DrainRate {
            state: Mutex::new(Drain {
                last: None,
                interval_ms: 20.0,
            }),
        }
    }

    /// A sync is complete.
    pub(crate) fn completed(&self, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = state.last.replace(now) {
            // Pauses without load say nothing about the rate under load.
            let interval_ms = (now - last).as_secs_f64() * 1_000.0;
            state.interval_ms += (interval_ms.min(1_000.0) - state.interval_ms) / 32.0;
        }
    }

    /// When a remote should come back that finds so many before it, in
    /// milliseconds. `jitter` is random: those turned away together must not come
    /// back together.
    pub(crate) fn retry_after_ms(&self, waiting: usize, jitter: u8) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let drained_ms = (waiting as f64 * state.interval_ms).clamp(1_000.0, 60_000.0);
        (drained_ms * (0.75 + f64::from(jitter) / 340.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_to_come_back_follows_the_drain_rate() {
        let rate = DrainRate::new();
        assert!(rate.retry_after_ms(0, 0) >= 750);
        let slow = rate.retry_after_ms(1_000, 0);
        let mut now = Instant::now();
        for _ in 0..1_000 {
            now += Duration::from_millis(2);
            rate.completed(now);
        }
        let fast = rate.retry_after_ms(1_000, 0);
        assert!(fast < slow && (1_400..1_700).contains(&fast), "{fast}");
        assert!(rate.retry_after_ms(1_000, 255) > fast * 3 / 2);
        assert!(rate.retry_after_ms(usize::MAX, 255) <= 90_000);
    }
}
