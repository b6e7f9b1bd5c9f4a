//! A link of a remote that stays in sync: the server tells what has changed.

use std::time::Duration;

use tidewater_connection::device::{DeviceError, ServerNotice};
use tidewater_protocol::message::FailureNotice;

use super::Link;
use crate::error::ClientError;
use crate::provider::Handler;
use crate::request::{CallError, Request};

impl Link {
    /// Has the server say when something has changed that the remote holds.
    pub(crate) fn stay(&self, provided: &[(String, Handler)]) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.shared.state().sync.stays, true) {
            return Ok(());
        }
        let mut asked = self.call(&Request::new("tidewater.live")).map(|_| ());
        for (name, handler) in provided {
            asked = asked.and_then(|()| self.provide_with(name, handler.clone()));
        }
        asked.map_err(|error| match error {
            CallError::Lost(lost) => ClientError::from_shared(&lost),
            CallError::Failed(failed) => DeviceError::from(FailureNotice {
                code: failed.code,
                message: failed.message,
                hint: failed.hint,
                retry_after_ms: failed.retry_after_ms,
                subject: String::new(),
            })
            .into(),
        })
    }

    /// Waits for a word of the server, at most so long.
    pub(crate) fn wait_for_notice(&self, patience: Duration) -> Option<ServerNotice> {
        self.shared.notices.next(patience)
    }
}
