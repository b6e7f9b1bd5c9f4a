//! The relay: stands where devices and servers can both reach it, and brings them together.
//!
//! Servers dial it and keep lines idle; a device that connects gets one of them, by the name that
//! its TLS asks for. TLS goes through from end to end: the relay sees names and bytes, and owns
//! no secret but the key of the certificate with which servers know it. What is said on a line is
//! in `tidewater_carrier`; the server's side is in `tidewater-server`.

mod client_hello;
mod config;
mod devices;
mod error;
mod metrics;
mod newcomers;
mod relay;
mod relay_state;
mod servers;
mod tunnel_pool;

#[cfg(test)]
mod tests;

pub use client_hello::{ClientHelloReader, MAX_HELLO_BYTES, NoHello, RequestedServer};
pub use config::{RelayLogConfig, RelayServiceConfig, ServerProofs, TlsFiles};
pub use error::RelayError;
pub use relay::{RelayService, RunningRelay};
