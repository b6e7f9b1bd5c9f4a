//! Events of spaces, both ways.

use std::sync::Arc;

use bytes::Bytes;

use tidewater_connection::device::DeviceError;
use tidewater_protocol::message::FailureNotice;

use super::state::{LinkState, SharedLink};

/// Bytes of events that may wait to be sent.
const UNSENT_BYTES: usize = 1 << 20;

impl SharedLink {
    /// Hands events that have come to the subscriptions.
    pub(super) fn poll_events(&self, state: &mut LinkState) {
        while self.spaces.takes_more()
            && let Some(bytes) = state.line.connection.poll_events()
        {
            if let Err(error) = self.spaces.take(bytes) {
                let failure = FailureNotice {
                    code: error.code().number(),
                    message: error.to_string(),
                    hint: "update the older of the two, this program or the server".into(),
                    retry_after_ms: 0,
                    subject: String::new(),
                };
                state.lose(DeviceError::from(failure).into());
                return;
            }
        }
    }

    /// A subscription takes events again.
    pub(crate) fn take_events(self: &Arc<Self>) {
        let mut state = self.state();
        self.pump(&mut state);
        self.flush(state);
    }

    /// Sends events, unless more wait already than may.
    pub(crate) fn send_events(self: &Arc<Self>, events: &Bytes) -> bool {
        let mut state = self.state();
        if state.lost.is_some() {
            return true;
        }
        let takes = state.line.connection.unsent_events() < UNSENT_BYTES;
        if takes {
            state.line.connection.send_events(events.clone());
        }
        self.flush(state);
        takes
    }

    pub(crate) fn flush_events(self: &Arc<Self>) {
        self.flush(self.state());
    }
}
