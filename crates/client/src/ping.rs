//! Whether a server is there.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde::Serialize;
use tidewater_carrier::{Carrier, Received, ServerUrl};
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, FrameError, PREFACE, put_control, take_frame,
};
use tidewater_protocol::message::{Control, Ping, Pong};

use tidewater_remote::SyncError;

use crate::driver::{TICK, dial};
use crate::error::ClientError;
use crate::options::SyncOptions;

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PingReport {
    /// Its address, in full.
    pub url: String,
    /// The program that answered, and its version.
    pub server: String,
    /// The protocol that it speaks, `major.minor`.
    pub protocol_version: String,
    /// How long connecting took, encryption included.
    pub connect_ms: f64,
    /// How long the answer took on the open connection.
    pub round_trip_ms: f64,
}

/// Asks a server whether it is there. Needs no account; of the options, those of the
/// connection count.
///
/// # Errors
/// It is not there, not trusted, or no Tidewater server.
pub fn ping(url: &str, options: &SyncOptions) -> Result<PingReport, ClientError> {
    let url: ServerUrl = url.parse()?;
    let start = Instant::now();
    let ca_file = options.ca_file.as_deref();
    let go_on = &mut || ControlFlow::Continue(());
    let mut carrier = dial(&url, ca_file, options, go_on)?;
    // The first answer pays for the handshake, the second measures the way.
    let mut input = BytesMut::new();
    let mut out = BytesMut::from(&PREFACE[..]);
    exchange(&mut carrier, &mut input, &mut out, 1, options.timeout)?;
    let connected = Instant::now();
    let pong = exchange(&mut carrier, &mut input, &mut out, 2, options.timeout)?;
    let answered = Instant::now();
    // It has answered: how it takes the goodbye does not matter.
    let _ = carrier.close();
    Ok(PingReport {
        url: url.to_string(),
        server: pong.server,
        protocol_version: format!(
            "{}.{}",
            pong.protocol_version >> 16,
            pong.protocol_version & 0xffff
        ),
        connect_ms: milliseconds(connected - start),
        round_trip_ms: milliseconds(answered - connected),
    })
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn exchange(
    carrier: &mut Carrier,
    input: &mut BytesMut,
    out: &mut BytesMut,
    nonce: u64,
    timeout: Duration,
) -> Result<Pong, ClientError> {
    let during = "waiting for the answer to a ping";
    put_control(out, CONNECTION_CHANNEL, Control::Ping(Ping { nonce })).map_err(SyncError::from)?;
    carrier.push(out.split().freeze());
    let deadline = Instant::now() + timeout;
    loop {
        if carrier.has_output() && !carrier.send(false)? {
            carrier.send(true)?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SyncError::Timeout {
                after_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                during,
            }
            .into());
        }
        let wait = (!carrier.has_output()).then(|| left.min(TICK));
        let received = carrier.receive(wait, &mut |bytes| input.extend_from_slice(bytes))?;
        SyncError::check_unencrypted(input)?;
        while let Some(frame) = take_frame(input).map_err(not_tidewater)? {
            let Frame::Control { control, .. } = frame else {
                continue;
            };
            match control {
                Some(Control::Pong(pong)) if pong.nonce == nonce => return Ok(pong),
                Some(Control::Failure(failure)) => return Err(SyncError::from(failure).into()),
                Some(Control::Busy(busy)) => {
                    return Err(SyncError::Busy {
                        retry_after_ms: busy.retry_after_ms,
                    }
                    .into());
                }
                _ => {}
            }
        }
        if let Received::End(source) = received {
            return Err(SyncError::ConnectionLost { during, source }.into());
        }
    }
}

fn not_tidewater(error: FrameError) -> SyncError {
    SyncError::NotTidewater {
        what: error.to_string(),
        hint: "see that host and port are those of a Tidewater server",
    }
}
