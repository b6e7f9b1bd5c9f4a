//! The clocks and the chance of this machine.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewater_carrier::tls;
use tidewater_remote::SyncError;
use tidewater_remote::session::Now;

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

pub(crate) fn random_seed() -> Result<[u8; 32], SyncError> {
    let mut seed = [0; 32];
    match tls::random(&mut seed) {
        Ok(()) => Ok(seed),
        Err(_) => Err(SyncError::Defect {
            what: "the system gives no random numbers",
        }),
    }
}

/// The first pause after a connection was lost, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A pause before the network is tried again. It doubles with `times`, from 0, and is another one on
/// each device: a server that comes back does not see all of them at once.
pub(crate) fn pause(times: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << times.min(16));
    let [chance, ..] = random_seed().unwrap_or([128; 32]);
    doubled
        .min(LONGEST_PAUSE)
        .mul_f64(0.5 + f64::from(chance) / 512.0)
}
