//! The remote: an ordinary SQLite file in two-way sync with a server.
//!
//! [`database`] owns what is in the file: internal tables, tracking, taking an upload,
//! applying a download. [`session`] is a sync as a state machine without sockets, clocks
//! or randomness. Applications use `tidewater-client`, which drives it.

pub mod database;
pub mod error;
pub mod report;
#[cfg(test)]
mod scripted;
pub mod session;
pub mod spool;

pub use error::RemoteError;
pub use report::Report;
pub use session::{Phase, Progress, SyncDirection, SyncError, Verify};
