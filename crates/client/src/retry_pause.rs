//! The chance of this machine, and the pauses before the network is tried again, which depend on it.

use std::time::Duration;

use tidewater_carrier::tls;
use tidewater_connection::device::DeviceError;

/// The first pause after a connection was lost, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(crate) fn random_seed() -> Result<[u8; 32], DeviceError> {
    let mut seed = [0; 32];
    match tls::random(&mut seed) {
        Ok(()) => Ok(seed),
        Err(_) => Err(DeviceError::Defect {
            what: "the system gives no random numbers",
        }),
    }
}

/// A pause before the network is tried again. It doubles with `times`, from 0, and is another one on
/// each device: a server that comes back does not see all of them at once.
pub(crate) fn pause(times: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << times.min(16));
    let [chance, ..] = random_seed().unwrap_or([128; 32]);
    doubled
        .min(LONGEST_PAUSE)
        .mul_f64(0.5 + f64::from(chance) / 512.0)
}
