//! The consolidated database, as the server sees it.
//!
//! Owns the boundary between the server and a central database: the coarse traits
//! [`Centre`] and [`Worker`], the types that cross them, one folder per database
//! that implements them; every implementation passes the conformance suite in
//! `tests/`. No SQL text and no per-row await crosses the boundary: batches of packed
//! rows go in, packed rows come out. Sockets, authentication and signatures are the
//! server's affair.

pub mod centre;
mod columns;
mod comparing;
pub mod download;
mod engine;
pub mod error;
mod evolution;
mod handovers;
mod linked;
mod orphans;
mod postgres;
pub mod publication;
pub mod records;
mod result;
mod row_json;
pub mod scope;
mod script;
mod sift;
pub mod sqlite;
mod too_long;
mod unpublished;
pub mod upload;

pub use centre::{Centre, Worker, check_url, connect};
pub use download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadSubscription, TableCompare, TableRequest,
};
pub use error::CentreError;
pub use publication::{
    DeployReport, DeployStep, HeldUpRemote, ListedColumn, ListedTable, PartitionSpec,
    PublicationSpec, RemoteEffect, TableSpec, Tracking,
};
pub use scope::{Checkpoint, Scope};
pub use upload::{
    GainedPartitions, OwnUpload, ResultTable, RowsChunk, SyncUpload, UploadOutcome, UploadResult,
    UploadTable,
};

/// For `tidewater-fuzzing` only.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::script::{Dialect, Script, ScriptError};
}
