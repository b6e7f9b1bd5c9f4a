//! Whether a server is there.

use std::ops::ControlFlow;

use serde::Serialize;
use tidewater_carrier::ServerUrls;
use tidewater_protocol::message::Pong;

use crate::carrier_loop::CarrierLoop;
use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::machine::LinkEvent;
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
    let urls: ServerUrls = url.parse()?;
    let clock = DriverClock::start();
    let dial = options.dial(options.ca_file.as_deref(), options.pin);
    let go_on = &mut || ControlFlow::Continue(());
    let (mut line, url) = CarrierLoop::dial(&urls, &dial, &options.client, clock, go_on)?;
    // The first answer pays for the handshake, the second measures the way.
    exchange(&mut line, 1)?;
    let connected = clock.elapsed();
    let pong = exchange(&mut line, 2)?;
    let answered = clock.elapsed();
    line.hang_up();
    let milliseconds = |it: std::time::Duration| (it.as_secs_f64() * 1e6).round() / 1e3;
    let version = pong.protocol_version;
    Ok(PingReport {
        url: url.to_string(),
        server: pong.server,
        protocol_version: format!("{}.{}", version >> 16, version & 0xffff),
        connect_ms: milliseconds(connected),
        round_trip_ms: milliseconds(answered - connected),
    })
}

fn exchange(line: &mut CarrierLoop, nonce: u64) -> Result<Pong, ClientError> {
    line.connection.ping(nonce);
    loop {
        line.turn()?;
        while let Some(event) = line.connection.poll_event() {
            match event {
                LinkEvent::Pong(pong) if pong.nonce == nonce => return Ok(pong),
                LinkEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
}
