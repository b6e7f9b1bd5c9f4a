//! One upload on its way into the centre: what it is applied by, and what has been done of it so far.

use std::collections::HashMap;
use std::sync::Arc;

use tidewater_protocol::Op;

use crate::engine::publication::Publication;
use crate::engine::row_fault::RefusalReason;
use crate::engine::scripts::ScriptEnvironment;
use crate::engine::upload::column_map::UnpublishedRows;
use crate::engine::upload::handler_decisions::HandlerDecisions;
use crate::engine::upload::incoming_rows::{IncomingTable, RowRef};
use crate::engine::upload::key_cascades::KeyCascades;
use crate::engine::upload::outcomes::Outcomes;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::row_keys::RowKeys;
use crate::engine::upload::sent_before::SentBefore;
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;
use crate::engine::upload::{Admission, Serials, UploadRecords};
use crate::upload::{SyncUpload, UploadTable};
use crate::verdict::ContendedChange;

/// Who has rows written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePurpose {
    /// A remote, in a sync.
    Sync,
    /// An operator.
    Operator {
        /// Over whatever the centre has.
        force: bool,
    },
}

impl WritePurpose {
    /// Whether what is written counts, whatever the centre has.
    pub(super) fn insists(self) -> bool {
        self == WritePurpose::Operator { force: true }
    }
}

/// One upload on its way into the centre.
pub(super) struct UploadRun<'r, R: UploadDriver> {
    pub(super) rows: &'r mut UploadWriter<R>,
    pub(super) publication: &'r Publication<R::Tables>,
    pub(super) upload: &'r SyncUpload,
    pub(super) purpose: WritePurpose,
    pub(super) serials: &'r Serials,
    /// By which rows are judged as they were before.
    pub(super) admission: &'r Admission,
    pub(super) tables: &'r [IncomingTable<'r, R::Tables>],
    /// Rows that mean nothing to the publication any more, and why.
    pub(super) unpublished: &'r [(&'r UploadTable, UnpublishedRows)],
    /// What the upload itself does to rows.
    pub(super) key_cascades: &'r KeyCascades,
    /// What handlers have decided of them.
    pub(super) decisions: Arc<HandlerDecisions>,
    /// By the place of their table: updates that may make rows somebody else's, in order.
    pub(super) handed_over: Vec<Vec<RowRef>>,
    /// Rows that took effect are otherwise in the centre, and the result does not say so.
    pub(super) leaves_to_download: bool,
    /// What the centre may have of it already.
    pub(super) sent_before: &'r SentBefore,
    /// What an operator's write leaves for people.
    pub(super) records: UploadRecords,
    /// The scripts that the remote has chosen.
    pub(super) scripting: Option<ScriptEnvironment<'r>>,
}

/// What has been done of an upload so far.
pub(super) struct UploadProgress<'p> {
    pub(super) outcomes: Outcomes<'p>,
    /// Rows that may be tried again.
    pub(super) failures: Vec<TableFailures>,
    /// Whether rows were written that may be out of scope.
    pub(super) may_be_out_of_scope: bool,
    /// Rows of which handlers have to decide.
    pub(super) contended: Vec<ContendedChange>,
    /// Rows of the step at hand that somebody has changed while they were resolved.
    pub(super) overtaken: Vec<RowRef>,
    /// What is known from before rows were handed over.
    pub(super) before_handing_over: Option<BeforeHandingOver>,
}

/// Rows of one operation that failed, by table.
pub(super) struct TableFailures {
    /// The place of the table.
    pub(super) table: usize,
    pub(super) op: Op,
    pub(super) failed: Vec<FailedRow>,
}

/// Updates that are tried again, and what they failed for. If one does not find its row as it was
/// any more, that is what the rest of the upload did to it: nobody else has won.
pub(super) type EarlierFailures = HashMap<RowRef, RefusalReason>;

impl UploadProgress<'_> {
    /// How many rows have failed so far, and may be tried again.
    pub(super) fn failed_rows(&self) -> usize {
        self.failures.iter().map(|it| it.failed.len()).sum()
    }
}

/// What is known from before rows were handed over.
pub(super) struct BeforeHandingOver {
    /// What the remote might write then.
    pub(super) admission: Admission,
    /// Of the rows that follow others, those that were its own.
    pub(super) own: RowKeys,
}
