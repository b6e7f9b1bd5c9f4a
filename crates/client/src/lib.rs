//! What applications use: a remote database and its syncs.
//!
//! [`Remote`] is the paved path: open a file, subscribe, sync.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use tidewater_client::Remote;
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
//! Owns the driver that gives a sync its sockets, its clock and its chance. What a sync is, and
//! what is in the file, is `tidewater-remote`'s; what an application needs of that is here too.

#![allow(
    clippy::disallowed_methods,
    reason = "a driver is where real time comes from"
)]

mod bearer_token;
#[cfg(feature = "sync")]
mod broken_download;
mod carrier_loop;
mod clock;
#[cfg(feature = "sync")]
mod driver;
mod error;
mod event_subscriptions;
#[cfg(feature = "sync")]
mod image;
mod link;
#[cfg(feature = "sync")]
mod live;
mod machine;
mod notice_queue;
#[cfg(feature = "sync")]
mod options;
#[cfg(feature = "sync")]
mod outbox;
#[cfg(feature = "sync")]
mod ping;
mod provider;
#[cfg(feature = "sync")]
mod remote;
mod request;
#[cfg(feature = "sync")]
mod retry_pause;
#[cfg(feature = "sync")]
mod retry_policy;
mod space;
#[cfg(test)]
#[cfg(feature = "sync")]
mod tests;

pub use bearer_token::{BearerToken, ClientCertificate};
pub use error::ClientError;
#[cfg(feature = "sync")]
pub use image::{ImageRequest, begin_from_image};
pub use link::{AnswerRows, Link, PendingCall};
#[cfg(feature = "sync")]
pub use live::{LiveCallback, LiveEvent, LiveOptions, SyncReason};
#[cfg(feature = "sync")]
pub use options::SyncOptions;
#[cfg(feature = "sync")]
pub use ping::{PingReport, ping};
pub use provider::ProvidedCall;
#[cfg(feature = "sync")]
pub use remote::{Remote, Verification};
pub use request::{CallError, LinkOptions, LinkProof, Request};
#[cfg(feature = "sync")]
pub use retry_policy::RetryPolicy;
pub use space::{
    EventChunk, EventPosition, RefusedEvents, SpaceEvent, SpaceSubscription, SubscriptionStart,
};
pub use tidewater_carrier::{Compression, CompressionOptions, Pin};
pub use tidewater_connection::device::DeviceError;
pub use tidewater_protocol::message::{Answer, Argument, ArgumentValue, CallFailed, Returns};
pub use tidewater_protocol::{Code, ColumnType, Datum, RemoteId, Value};
#[cfg(feature = "sync")]
pub use tidewater_remote::database::{
    AdoptionRule, ConflictSummary, ConflictedChange, ExplainedRow, ImageContent, ImageStart,
    LeftTable, OutboxCounts, OutboxStatus, PendingChange, RefusedRow, RefusedSummary,
    RemoteAccount, RemoteDatabase, RemoteStatus, RowSelection, SettledChange, StaleRow,
    SubscriptionStatus, TableDifferences, TableStatus,
};
#[cfg(feature = "sync")]
pub use tidewater_remote::report::{DownloadedRows, UploadedRows};
#[cfg(feature = "sync")]
pub use tidewater_remote::{
    RefusedInterest, RemoteError, Report, SyncDirection, SyncError, SyncPhase, SyncProgress,
    VerifyMode,
};
