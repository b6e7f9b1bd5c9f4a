//! What the engine asks of a database for downloads: its history, and marks.

use tidewater_protocol::RemoteId;

use crate::download::DownloadSubscription;
use crate::engine::connection::{DatabaseConnection, StatementResult};
use crate::engine::flight::{FlightFailure, FlightStep, ValueTypes};
use crate::engine::publication::Publication;
use crate::engine::scope::{ScopeChange, Serials};
use crate::engine::sql::condition_arguments::ConditionArguments;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::watermark::PresentedCheckpoint;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Earlier than any row is dated: 1900-01-01, in microseconds since 1970.
const NEVER: i64 = -2_208_988_800_000_000;

/// Everything that was written until then is in a snapshot, or never will be; in microseconds since
/// 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafeTime {
    /// By the transactions that are open.
    pub open: i64,
    /// By those of which nobody knows when they began; those that a remote has had before stand.
    pub prepared: i64,
}

impl SafeTime {
    /// The safe time of a remote that has had everything up to a safe time before.
    pub fn for_remote(self, before: Option<i64>) -> i64 {
        self.open.min(self.prepared.max(before.unwrap_or(NEVER)))
    }
}

/// What is asked of the history for a subscription.
pub struct HistoryQuestion<'q, T: TableAdapter> {
    /// The remote.
    pub remote_id: RemoteId,
    /// When its sync was handed over.
    pub now_ms: i64,
    /// The publication.
    pub publication: &'q Publication<T>,
    /// The subscription.
    pub subscription: &'q DownloadSubscription,
    /// What the remote presents, as far as it is understood.
    pub presented: Option<PresentedCheckpoint<'q>>,
}

/// What the history tells of a subscription.
pub struct HistoryAnswer<S> {
    /// Where the snapshot is.
    pub position: Vec<u8>,
    /// When the mark that the remote presents was made; `None` if this is another history.
    pub marked_ms: Option<i64>,
    /// The serials of the subscription's scopes.
    pub serials: Option<Serials>,
    /// By rule, whether all changes since then are in its change log.
    pub is_traced: Vec<bool>,
    /// What the remote has seen; `None` if nothing can be told of it.
    pub seen: Option<S>,
    /// Whether the change logs have anything new for it.
    pub news: bool,
    /// The rules of whose logs that is not known yet, by their places in the publication.
    pub unasked: Vec<usize>,
}

/// A mark that is durable, and the serials in the order of the changes.
#[derive(Clone, Debug)]
pub struct DurableMark {
    /// The random id.
    pub id: Vec<u8>,
    /// The serials of the scopes that were noted with it, in their order.
    pub serials: Vec<u64>,
}

/// Why a snapshot is not opened.
pub struct OpeningFailure {
    /// Which of the other steps has failed, if it was one of them.
    pub other: Option<usize>,
    /// What is wrong.
    pub error: CentreError,
}

impl From<CentreError> for OpeningFailure {
    fn from(error: CentreError) -> OpeningFailure {
        OpeningFailure { other: None, error }
    }
}

impl OpeningFailure {
    /// Of a flight that had so many steps before the others.
    pub fn behind(before: usize, failure: FlightFailure) -> OpeningFailure {
        OpeningFailure {
            other: failure.step.checked_sub(before),
            error: failure.error,
        }
    }
}

/// What a database does for downloads: its history, and marks.
pub trait SnapshotDriver: Send {
    /// What its tables have of its own.
    type Tables: TableAdapter;
    /// The connection.
    type Connection: DatabaseConnection<Tables = Self::Tables>;
    /// What a remote has seen of the change logs of its publication.
    type Seen: Clone + Send + Sync;

    /// The connection on which the snapshot is read.
    fn connection(&mut self) -> &mut Self::Connection;

    /// Finds out the safe time of a snapshot that is taken after this.
    fn find_safe_time(&mut self, now_ms: i64) -> impl Future<Output = Result<SafeTime>> + Send;

    /// Takes the snapshot by a first step, tells what the history says of some subscriptions, in
    /// their order, and runs the other steps; in one flight where that can be. `None`: the tables had
    /// changed, and it is to be opened once more.
    fn open(
        &mut self,
        asked: &[HistoryQuestion<'_, Self::Tables>],
        begin: FlightStep<'_, Self::Tables>,
        others: Vec<FlightStep<'_, Self::Tables>>,
    ) -> impl Future<
        Output = std::result::Result<Option<Vec<HistoryAnswer<Self::Seen>>>, OpeningFailure>,
    > + Send;

    /// The condition that an entry `l` of the change log of a rule, by its place in the publication,
    /// is new to who has seen this.
    fn unseen<'a>(
        seen: &'a Self::Seen,
        rule: usize,
        arguments: &mut ConditionArguments<'a, <Self::Tables as ValueTypes>::Kind>,
    ) -> String;

    /// Sees to it that what the snapshot shows is durable, and notes what became of scopes, in one
    /// transaction if the database can.
    fn mark(
        &mut self,
        now_ms: i64,
        changes: Vec<ScopeChange>,
    ) -> impl Future<Output = Result<DurableMark>> + Send;

    /// Ends the snapshot.
    fn end(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The serials of a subscription's scopes, by the answer to [`SerialValidity::ask`].
///
/// # Errors
/// The answer is none.
pub fn read_serials(issued: &StatementResult) -> Result<Option<Serials>> {
    let issued = issued
        .rows
        .first()
        .map(|row| -> Result<Serials> { Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)) });
    issued.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_keeps_its_safe_time_where_nothing_is_known_from_before() {
        let unknown = SafeTime {
            open: 20,
            prepared: NEVER,
        };
        assert_eq!(unknown.for_remote(None), NEVER);
        assert_eq!(unknown.for_remote(Some(7)), 7);
        assert_eq!(unknown.for_remote(Some(70)), 20, "clocks were set back");
    }
}
