//! Agreeing with the other side on how to go on, while nobody waits for longer than he wants.

#![allow(
    clippy::disallowed_methods,
    reason = "waiting for the network needs real time"
)]

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::CarrierError;
use crate::layer::{TICK, is_patience};
use crate::tls;
use crate::url::ServerUrl;

/// With whom to agree, and how long he may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handshake<'d> {
    pub(crate) server: &'d ServerUrl,
    pub(crate) timeout: Duration,
}

impl Handshake<'_> {
    pub(crate) fn unreachable(&self, source: io::Error) -> CarrierError {
        CarrierError::Unreachable {
            server: self.server.to_string(),
            source,
        }
    }

    /// What has gone wrong while the two sides were agreeing on how to go on.
    fn objection(&self, error: io::Error) -> CarrierError {
        match error.downcast::<CarrierError>() {
            Ok(told) => told,
            Err(error) => {
                let objection = tls::objection(&error, &self.server.to_string());
                objection.unwrap_or_else(|| self.unreachable(error))
            }
        }
    }

    /// Has two sides that take turns agree: repeats what is not done yet, as long as `go_on` does
    /// not break and the server is not silent for too long.
    pub(crate) fn agree<T>(
        &self,
        socket: &TcpStream,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        mut step: impl FnMut() -> io::Result<Option<T>>,
    ) -> Result<T, CarrierError> {
        let timeouts = socket
            .set_read_timeout(Some(TICK))
            .and_then(|()| socket.set_write_timeout(Some(TICK)));
        timeouts.map_err(|error| self.unreachable(error))?;
        let end = Instant::now() + self.timeout;
        loop {
            match step() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) if is_patience(&error) => {}
                Err(error) => return Err(self.objection(error)),
            }
            if go_on().is_break() {
                return Err(CarrierError::Cancelled);
            }
            if Instant::now() >= end {
                return Err(self.unreachable(ErrorKind::TimedOut.into()));
            }
        }
    }
}
