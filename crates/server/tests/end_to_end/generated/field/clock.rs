//! A server's clock that is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidewater_server::Environment;
use tidewater_server::environment::Clock;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// The system's clock and so many days.
#[derive(Default)]
pub(super) struct WrongClock(AtomicI64);

impl WrongClock {
    pub(super) fn set(&self, days: i64) {
        self.0.store(days, Ordering::Relaxed);
    }
}

impl Clock for WrongClock {
    fn now_ms(&self) -> i64 {
        let now_ms = Environment::real().clock.now_ms();
        now_ms + self.0.load(Ordering::Relaxed) * DAY_MS
    }
}

/// The real world, apart from the time.
pub(super) fn environment(clock: &Arc<WrongClock>) -> Environment {
    Environment {
        clock: clock.clone(),
        ..Environment::real()
    }
}
