//! The remote: an ordinary SQLite file in two-way sync with a server.
//!
//! [`database`] owns what is in the file: internal tables, tracking, taking an upload,
//! applying a download. [`connection`] and [`session`] are a connection to a server and a sync
//! on it, as state machines without sockets, clocks, threads or randomness. Applications use
//! `tidewater-client`, which drives them.

pub mod connection;
pub mod database;
pub mod error;
pub mod report;
#[cfg(test)]
mod scripted;
pub mod session;
pub mod spool;
mod sync_direction;

pub use connection::{DriverEvent, RemoteConnection};
pub use error::RemoteError;
pub use report::{RefusedInterest, Report};
pub use session::{SyncDirection, SyncError, SyncPhase, SyncProgress, VerifyMode};
