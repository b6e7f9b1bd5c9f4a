//! What has become of events since the server was started.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has become of events since the server was started.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    published: AtomicU64,
    delivered: AtomicU64,
}

impl EventCounts {
    /// Somebody has published events that were taken.
    pub(crate) fn published(&self, events: u64) {
        self.published.fetch_add(events, Ordering::Relaxed);
    }

    /// Events were put before so many receivers.
    pub(crate) fn delivered(&self, events: u32, receivers: usize) {
        let delivered = u64::from(events) * receivers as u64;
        self.delivered.fetch_add(delivered, Ordering::Relaxed);
    }

    /// Events published, and put before receivers, so far.
    pub(crate) fn figures(&self) -> [u64; 2] {
        let of = |it: &AtomicU64| it.load(Ordering::Relaxed);
        [of(&self.published), of(&self.delivered)]
    }
}
