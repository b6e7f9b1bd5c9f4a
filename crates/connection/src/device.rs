//! The device's side of a connection to a server: sign-in, calls, events and pings, without input
//! or output.
//!
//! [`DeviceConnection`] is what programs with and without a file have in common. It hands what
//! comes on the channel of syncs to its caller: a sync needs a file, and `tidewater-remote` owns
//! both.

mod connection;
mod error;
mod server_notice;
mod sign_in;
#[cfg(test)]
mod tests;

pub use connection::{DeviceConnection, DeviceEvent, SyncActivity};
pub use error::DeviceError;
pub use server_notice::ServerNotice;
pub use sign_in::{DeviceCredentials, ProofKind, SignInAnswer, SignInRequest, UserProof};

/// The time, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub ticks_ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: i64,
}
