//! The clocks of this machine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_connection::device::Now;

/// Both clocks, from a beginning on.
#[derive(Clone, Copy)]
pub(crate) struct DriverClock {
    start: Instant,
}

impl DriverClock {
    pub(crate) fn start() -> DriverClock {
        DriverClock {
            start: Instant::now(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            ticks_ms: u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            unix_ms: unix_ms(),
        }
    }
}

/// The time in milliseconds since 1970.
pub(crate) fn unix_ms() -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_ms = unix
        .ok()
        .and_then(|unix| i64::try_from(unix.as_millis()).ok());
    unix_ms.unwrap_or(0)
}
