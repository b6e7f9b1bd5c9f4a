//! The time by which the line and the processor are measured.

#![allow(
    clippy::disallowed_methods,
    reason = "how fast processor and line are only real time tells"
)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time since some moment.
pub(crate) fn ticks() -> Duration {
    ORIGIN.elapsed()
}
