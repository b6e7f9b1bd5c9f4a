//! The remote database: an ordinary SQLite file in two-way sync with a server.
//!
//! [`database`] owns what is in the file: internal tables, tracking, taking an upload,
//! applying a download. The session state machine and the blocking driver stand on top
//! of it.

pub mod database;
pub mod error;

pub use error::RemoteError;
