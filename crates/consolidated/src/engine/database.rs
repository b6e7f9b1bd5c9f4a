//! What an adapter implements for its database.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use tidewater_protocol::PublicationSchema;

use super::connection::{Answer, Connection, Own};
use crate::centre::CentreResult;
use crate::download::{DownloadJob, DownloadSink};
use crate::error::CentreError;
use crate::evolution::Mode;
use crate::publication::{DeployReport, ListedTable, PublicationSpec};
use crate::records::History;
use crate::upload::{SyncUpload, UploadOutcome};

/// Something to do on a connection.
pub(crate) type Job<C, T> =
    Box<dyn for<'c> FnOnce(&'c mut C) -> BoxFuture<'c, Result<T, CentreError>> + Send>;

/// How changes are noticed that anybody makes to published tables.
pub(crate) trait Tracking: Send + Sync + 'static {
    /// A connection to the database.
    type Connection: Connection;

    /// What has to be asked to tell whether a watermark belongs to the database's history.
    fn ask_history(watermark: &[u8]) -> Vec<Own>;

    /// Judges the answers to [`Self::ask_history`].
    fn history(watermark: &[u8], answers: &[Answer]) -> Result<History, CentreError>;

    /// The change logs: the table's name and about how many entries there are.
    fn log_sizes(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(String, u64)>, CentreError>> + Send;

    /// Prepares a connection for pruning. False if another one is at it, or nothing is deployed.
    fn begin_pruning(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, CentreError>> + Send;

    /// Ends what [`Self::begin_pruning`] began, and judges how it went: to have given way to others
    /// is no error.
    fn end_pruning(
        connection: &mut Self::Connection,
        result: Result<(), CentreError>,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// Drops what no watermark from `before_ms` on needs of change logs, and the marks that are of
    /// no more use; counts the entries.
    fn prune_logs(
        connection: &mut Self::Connection,
        before_ms: i64,
        now_ms: i64,
        random: [u8; 16],
        entries: &mut u64,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;
}

/// Runs jobs on one connection, one after the other.
pub(crate) trait Lane: Send + 'static {
    /// The connection.
    type Connection: Connection;

    /// Whether the connection is there, as far as can be told without a word to the database.
    fn is_usable(&self) -> bool;

    /// Runs a job.
    fn run<'a, T: Send + 'static>(
        &'a mut self,
        job: Job<Self::Connection, T>,
    ) -> CentreResult<'a, T>;

    /// See [`crate::Worker::apply`].
    fn apply(&mut self, uploads: Vec<SyncUpload>) -> CentreResult<'_, Vec<UploadOutcome>>;

    /// See [`crate::Worker::download`].
    fn download<'a>(
        &'a mut self,
        job: DownloadJob,
        sink: &'a mut dyn DownloadSink,
    ) -> CentreResult<'a, ()>;
}

/// A database that can be a centre.
pub(crate) trait Database: Tracking {
    /// A connection that runs syncs.
    type Lane: Lane<Connection = Self::Connection>;

    /// Opens another connection that runs syncs.
    fn open_lane(&self) -> CentreResult<'_, Self::Lane>;

    /// Runs a job on a connection for administration.
    fn run<T: Send + 'static>(&self, job: Job<Self::Connection, T>) -> CentreResult<'_, T>;

    /// Runs a job that takes long on a connection for administration: others do not wait for it.
    fn run_apart<T: Send + 'static>(&self, job: Job<Self::Connection, T>) -> CentreResult<'_, T>;

    /// Fills bytes that nobody can guess.
    fn random(&self, bytes: &mut [u8]) -> Result<(), CentreError>;

    /// See [`crate::Centre::tables`].
    fn tables(&self) -> CentreResult<'_, Vec<ListedTable>>;

    /// See [`crate::Centre::deploy`].
    fn deploy<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
        mode: Mode,
        now_ms: i64,
    ) -> CentreResult<'a, DeployReport>;

    /// See [`crate::Centre::undeploy`].
    fn undeploy(&self, dry_run: bool) -> CentreResult<'_, DeployReport>;

    /// See [`crate::Centre::load`].
    fn load<'a>(
        &'a self,
        publications: &'a [PublicationSpec],
    ) -> CentreResult<'a, Vec<Arc<PublicationSchema>>>;

    /// See [`crate::Centre::check_tracking`].
    fn check_tracking(&self, now_ms: i64) -> CentreResult<'_, ()>;

    /// Whether the server's own tables are all there; 0 tables are all.
    fn check_state(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;
}
