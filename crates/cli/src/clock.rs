//! What time it is.

use tidewater_server::Environment;

/// The system's clock, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    Environment::real().clock.now_ms()
}
