//! The remote database: an ordinary SQLite file in two-way sync with a server.
//!
//! [`Remote`] is the paved path: open a file, subscribe, sync.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use tidewater_remote::Remote;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut remote = Remote::open("orders.db")?;
//! remote.subscribe("tcp://127.0.0.1:7439", "anna", &["sales"])?;
//! remote.set_password("her password");
//! let report = remote.sync(&mut |progress| {
//!     println!("{:?} {:?} {}", progress.phase, progress.table, progress.rows);
//!     ControlFlow::Continue(())
//! })?;
//! println!("{} rows came down", report.downloaded.upserts);
//! # Ok(())
//! # }
//! ```
//!
//! [`database`] owns what is in the file: internal tables, tracking, taking an upload,
//! applying a download. [`session`] is a sync as a state machine without sockets, clocks
//! or randomness. [`blocking`] drives it over TCP and TLS.

pub mod blocking;
pub mod database;
pub mod error;
mod remote;
pub mod report;
#[cfg(test)]
mod scripted;
pub mod session;
pub mod spool;

pub use blocking::ping;
pub use error::RemoteError;
pub use remote::Remote;
pub use report::{Report, Verification};
pub use session::{Phase, Progress, SyncDirection, SyncError, Verify};
