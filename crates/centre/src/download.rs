//! Downloads as the consolidated database produces them.

use std::sync::Arc;

use tidewater_protocol::PublicationSchema;
use tidewater_protocol::message::{KeyRange, SettledRefusal, TableBegin, UncomparedTable};

use crate::context::SyncContext;
use crate::error::CentreError;
use crate::follow::RemoteHolding;
use crate::packed_rows::{RowsChunk, TableRequest};
use crate::scope::Checkpoint;
use crate::upload::{GainedPartitions, OwnUpload};

/// The downloads of one sync, all read from one snapshot.
#[derive(Clone, Debug)]
pub struct DownloadJob {
    /// For whom.
    pub context: SyncContext,
    /// What to read, in the order of the Hello.
    pub subscriptions: Vec<DownloadSubscription>,
    /// How often there are marks, where they are kept.
    pub marks: MarkFrequency,
    /// Nothing is read, and nothing is noted: only what is known when it begins is told.
    pub only_opens: bool,
}

/// The downloads of one sync on their way.
pub struct RunningDownloads<'a> {
    /// What to read.
    pub job: DownloadJob,
    /// Where it goes.
    pub sink: &'a mut dyn DownloadSink,
}

/// What became of the downloads of several syncs, in their order; `None`: nothing was read of it,
/// because those before it had so much.
pub type Downloaded = Vec<Option<Result<(), CentreError>>>;

/// The download of one subscription.
#[derive(Clone, Debug)]
pub struct DownloadSubscription {
    /// The publication.
    pub publication: String,
    /// What the remote has been told of it: if it is another one by now, nothing is read.
    pub schema: Arc<PublicationSchema>,
    /// The hash of the schema that it has, if that is another one; empty if it has none.
    pub before: Option<Vec<u8>>,
    /// The verified checkpoint that the remote presented. `None`: it has nothing,
    /// or nothing that can be trusted; everything is sent, and replaces what is
    /// there.
    pub checkpoint: Option<Checkpoint>,
    /// The checkpoint is that of an image: whoever has it may hold other partitions than it names.
    pub from_image: bool,
    /// Rows that the remote wants again.
    pub requests: Vec<TableRequest>,
    /// Tables that the remote compares, each once. Whatever the checkpoint is worth, of
    /// these only what differs is sent, after the changes since the checkpoint.
    pub compares: Vec<TableCompare>,
    /// The remote keeps what it gets of this download should it break.
    /// Up to this [`DownloadSink::mark`] it has a part of one that broke, which began from the same
    /// checkpoint; empty: nothing yet.
    pub kept: Option<Vec<u8>>,
    /// Not a download of its own: its checkpoint is the one that [`DownloadStart`] told of the part
    /// that the remote has of the download with this index. These stand behind all others.
    pub part_of: Option<usize>,
    /// What the same sync uploaded.
    pub own: Option<OwnUpload>,
    /// Of the result that this sync tells: [`crate::upload::UploadResult::gained`].
    pub gained: Vec<GainedPartitions>,
    /// The lowest number of an upload of which the remote still keeps something as refused: what
    /// operators have settled of that is told. 0: it keeps nothing.
    pub refused_from: u64,
    /// Only what is behind this, see [`ToldSettled::after`].
    pub settled_after: u64,
    /// What handlers have told of the tables of which they say what is new.
    pub given: Vec<GivenTable>,
}

impl DownloadSubscription {
    /// What a handler has told of a table.
    pub fn given_table(&self, table: &str) -> Option<&GivenTable> {
        self.given.iter().find(|it| it.table == table)
    }
}

/// How often a download has a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkFrequency {
    /// After so many bytes of rows, behind the row that makes them full: as many may come twice. Tables
    /// that may weigh more are read in the order of their keys.
    pub bytes: usize,
    /// Changes since a checkpoint that is so old may be many: they are read partition by partition in
    /// the order of their keys, too.
    pub changes_after_ms: i64,
}

impl Default for MarkFrequency {
    fn default() -> MarkFrequency {
        MarkFrequency {
            bytes: 128 << 10,
            changes_after_ms: 60 * 60 * 1000,
        }
    }
}

/// Refused rows of a remote that operators have settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldSettled {
    /// Those.
    pub rows: Vec<SettledRefusal>,
    /// What the remote presents next time, because there are more; 0 if that is all.
    pub after: u64,
}

/// What a handler has told of a table.
#[derive(Clone, Debug)]
pub struct GivenTable {
    /// The table's name on remotes.
    pub table: String,
    /// It is everything, and replaces what the remote has. Otherwise it is what is new since the
    /// cursor of the checkpoint ([`Checkpoint::cursor`]).
    pub whole: bool,
    /// Up to where it goes, in the handler's own terms.
    pub cursor: Vec<u8>,
    /// Packed rows of operations Upsert and Remove, in the columns of the schema; each key once.
    pub chunks: Vec<RowsChunk>,
    /// All rows up to the same cursor, packed likewise, where the remote compares the table and
    /// `chunks` are not everything. Operations Remove among them mean nothing.
    pub all: Option<Vec<RowsChunk>>,
}

impl GivenTable {
    /// All rows that the remote is to hold, if the handler was asked for them.
    pub fn everything(&self) -> Option<&[RowsChunk]> {
        match self.whole {
            true => Some(&self.chunks),
            false => self.all.as_deref(),
        }
    }
}

/// What a remote has of one table, as checksums of ranges of keys.
#[derive(Clone, Debug)]
pub struct TableCompare {
    /// The table's name on remotes. Its columns and its key are those of the
    /// publication's schema.
    pub table: String,
    /// Its ranges, as [`tidewater_protocol::compare::Ranges::like`] wants them.
    pub ranges: Arc<[KeyRange]>,
    /// The remote changed the table while nothing tracked it: whatever says what is new in it, all
    /// that the remote is to hold comes once.
    pub untracked: bool,
}

/// What is known of a download when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadStart {
    /// Partitions were gained or lost since the last one.
    pub scope_changed: bool,
    /// If it can be gone on with should it break: where the snapshot is of which its first rows
    /// are, or were. Safe to hand out.
    pub checkpoint: Option<Checkpoint>,
    /// It goes on where an earlier one broke off.
    pub resumed: bool,
    /// The presented checkpoint is an image's, all of it is understood, and the user may have every
    /// row that was in it: he holds all of its partitions, and reads as the same role.
    pub covers_image: bool,
    /// The tables that the remote compares, and that are not compared.
    pub uncompared: Vec<UncomparedTable>,
}

/// What the download of one subscription came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownloadOutcome {
    /// The checkpoint to sign and hand out; `None` if the old one stays.
    pub checkpoint: Option<Checkpoint>,
    /// Rows sent.
    pub upserts: u64,
    /// Keys sent for removal.
    pub removals: u64,
}

/// Takes a download as it is read. Nothing here waits: what the network cannot take
/// yet, the sink keeps in memory or spools to disk.
pub trait DownloadSink: Send {
    /// The download of a subscription begins; `index` counts in
    /// [`DownloadJob::subscriptions`].
    fn begin(&mut self, index: usize, start: DownloadStart);

    /// What operators have settled of the remote's refused rows, as of the same snapshot. Comes
    /// right after [`Self::begin`], if there is any.
    fn settled(&mut self, told: ToldSettled) {
        let _ = told;
    }

    /// The rows that follow are of this table.
    fn table(&mut self, begin: TableBegin);

    /// Packed rows (Upsert, Remove), whole ones, about
    /// [`tidewater_protocol::frame::ROWS_PAYLOAD_BYTES`] at a time.
    ///
    /// # Errors
    /// [`CentreError::Cancelled`]: the remote is gone, stop reading.
    fn rows(&mut self, rows: Vec<u8>) -> Result<(), CentreError>;

    /// Should it break, the download can be gone on with from here: see
    /// [`DownloadSubscription::kept`]. The mark says where that is; of the table so many rows have
    /// come.
    fn mark(&mut self, mark: Vec<u8>, rows: u64) {
        let _ = (mark, rows);
    }

    /// Rows are being compared, and there may be nothing to hand over for a while.
    ///
    /// # Errors
    /// [`CentreError::Cancelled`]: the remote is gone, stop reading.
    fn comparing(&mut self) -> Result<(), CentreError> {
        Ok(())
    }

    /// What the remote holds once it has the download of the subscription, also if that has
    /// nothing new. Comes before [`Self::end`].
    fn holds(&mut self, index: usize, holding: RemoteHolding) {
        let _ = (index, holding);
    }

    /// The download of the subscription is complete. Its outcome's checkpoint is
    /// safe to hand out.
    fn end(&mut self, index: usize, outcome: DownloadOutcome);
}
