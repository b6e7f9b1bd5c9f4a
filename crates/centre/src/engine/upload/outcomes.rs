//! What became of uploaded rows: collected for the result, recorded for people.

use std::collections::HashMap;

use tidewater_protocol::{Code, Datum, Op, PublicationSchema, RowShape};

use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::{UploadConflict, UploadRecords, UploadRefusal};
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::column_map::UnpublishedRows;
use crate::engine::upload::handler_decisions::HandlerDecisions;
use crate::engine::upload::refusal_reason::{FailedRow, RowDecision};
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::row_decisions::{AbortedUpload, RowDecisions};
use crate::engine::upload::row_keys::pack_key;
use crate::engine::upload::{row_json, unpublished_rows};
use crate::error::CentreError;
use crate::records::ConflictOutcome;
use crate::upload::{UploadResult, UploadTable};

/// Changes that took no effect: inserts, updates, deletes.
#[derive(Default)]
pub(crate) struct VainChanges {
    /// They met what somebody else had written, and took effect or not.
    pub(crate) conflicts: [u64; 3],
    /// They lost.
    pub(crate) lost: [u64; 3],
    /// They were refused.
    pub(crate) refused: [u64; 3],
}

/// Outcomes of one upload.
pub(crate) struct Outcomes<'p> {
    schema: &'p PublicationSchema,
    decided: &'p RowDecisions,
    builder: ResultBuilder<'p>,
    records: UploadRecords,
    /// Rows that were resolved, by table and packed key, and whether the remote is told that.
    resolved: HashMap<(usize, Vec<u8>), bool>,
    /// By table, the deletes in whose place the centre has done something else.
    kept: HashMap<usize, Vec<RowRef>>,
    /// See [`Self::leaves_to_download`].
    leaves_to_download: bool,
}

impl<'p> Outcomes<'p> {
    pub(crate) fn new(
        schema: &'p PublicationSchema,
        shapes: &'p [RowShape],
        decided: &'p RowDecisions,
    ) -> Outcomes<'p> {
        Outcomes {
            schema,
            decided,
            builder: ResultBuilder::new(schema, shapes),
            records: UploadRecords::default(),
            resolved: HashMap::new(),
            kept: HashMap::new(),
            leaves_to_download: false,
        }
    }

    pub(crate) fn applied(&mut self, op: Op, rows: u64) {
        self.builder.applied(op, rows);
    }

    /// The centre keeps rows that were deleted, such as with a mark: that is no conflict, and their
    /// remote gets them back.
    pub(crate) fn keep<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        rows: &[RowRef],
    ) {
        if !rows.is_empty() {
            self.kept.entry(incoming.index).or_default().extend(rows);
        }
    }

    /// The deleted rows of a table that the centre keeps.
    pub(crate) fn kept<T: TableAdapter>(&self, incoming: &IncomingTable<'_, T>) -> Vec<RowRef> {
        let mut kept = self.kept.get(&incoming.index).cloned().unwrap_or_default();
        kept.sort_unstable();
        kept
    }

    /// Whether something is decided of rows of a table.
    pub(crate) fn concerns<T: TableAdapter>(&self, incoming: &IncomingTable<'_, T>) -> bool {
        self.decided.concerns(incoming.index)
    }

    /// What is decided of a row.
    pub(crate) fn decision<T: TableAdapter>(
        &self,
        incoming: &IncomingTable<'_, T>,
        op: Op,
        key: &[Datum<'_>],
    ) -> Option<RowDecision> {
        self.decided
            .find_decision(self.schema, incoming.index, op, key)
    }

    /// Whether a handler has changed a row, or seen to it.
    pub(crate) fn handler_decisions(&self) -> &HandlerDecisions {
        self.decided.handler_decisions()
    }

    /// A handler has seen to a row. `asks`: the remote is to get what the centre has.
    pub(crate) fn handled<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        asks: bool,
    ) {
        self.builder.applied(uploaded.op, 1);
        if asks {
            self.asks(incoming, uploaded);
        }
    }

    /// The remote is to get what the centre has under the keys of a row: if that is nothing, it is
    /// removed there.
    pub(crate) fn asks<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
    ) {
        self.builder.asks(incoming.index, uploaded.key);
        let schema = &self.schema.tables[incoming.index];
        if let (Some(_), Some(new)) = (uploaded.old, uploaded.new) {
            let new: Vec<Datum<'_>> = schema.key.iter().map(|&it| new[it]).collect();
            let new_key = pack_key(schema, &new);
            if new_key != pack_key(schema, uploaded.key) {
                self.builder.asks(incoming.index, &new);
            }
        }
    }

    /// Whether rows that are not in scope before the upload are refused at once.
    pub(crate) fn refuses_at_once(&self) -> bool {
        self.decided.refuses_at_once()
    }

    /// The centre has made something else of a row that was taken: this, as it is read.
    pub(super) fn made<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        row: &[Datum<'_>],
        sums: SumComparison,
    ) {
        let table = &self.schema.tables[incoming.index];
        let key: Vec<Datum<'_>> = table.key.iter().map(|&it| row[it]).collect();
        let key = (incoming.index, pack_key(table, &key));
        let op = match self.resolved.get(&key) {
            Some(true) => Op::Merged,
            None if sums == SumComparison::Alike => Op::Made,
            // What it has of others, or of triggers in a sum, was not there when its remote changed
            // it: that comes with a download, like any other change of theirs.
            Some(false) | None => {
                self.leaves_to_download = true;
                return;
            }
        };
        self.builder
            .made(incoming.index, op, &row[..table.columns.len()]);
    }

    /// Whether rows that took effect have something of others of which a download has to tell.
    pub(crate) fn leaves_to_download(&self) -> bool {
        self.leaves_to_download
    }

    /// Whether a row of a table was resolved.
    pub(crate) fn has_resolved<T: TableAdapter>(&self, incoming: &IncomingTable<'_, T>) -> bool {
        self.resolved.keys().any(|it| it.0 == incoming.index)
    }

    /// Whether this one was.
    pub(crate) fn is_resolved(&self, row: &(usize, Vec<u8>)) -> bool {
        self.resolved.contains_key(row)
    }

    /// A change took effect together with that of another side; `record` if that was a conflict.
    pub(crate) fn resolved<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        record: Option<ResolutionRecord<'_, '_>>,
    ) {
        let table = &self.schema.tables[incoming.index];
        let key = (incoming.index, pack_key(table, uploaded.key));
        let outcome = record.as_ref().map(|it| it.outcome);
        self.resolved
            .insert(key, outcome == Some(ConflictOutcome::Merged));
        if let Some(record) = record {
            let ResolutionRecord {
                outcome,
                replaced,
                row,
            } = record;
            self.record(incoming, uploaded, row, (outcome, replaced));
        }
    }

    /// Refuses every row of a table that is not published.
    pub(crate) fn refuse_unpublished(
        &mut self,
        table: &UploadTable,
        unpublished: &UnpublishedRows,
    ) -> Result<(), CentreError> {
        unpublished_rows::refuse(table, unpublished, &mut self.builder, &mut self.records)
    }

    /// Records what was changed in columns that are not published any more.
    pub(crate) fn record_dropped<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
    ) -> Result<(), CentreError> {
        unpublished_rows::record_dropped(incoming.upload(), &incoming.map, &mut self.records)
    }

    /// What is known so far.
    pub(crate) fn builder(&self) -> &ResultBuilder<'p> {
        &self.builder
    }

    /// The columns that a remote sent, as a JSON object.
    fn json<T: TableAdapter>(&self, incoming: &IncomingTable<'_, T>, row: &[Datum<'_>]) -> String {
        let columns = &self.schema.tables[incoming.index].columns;
        let names = incoming.sent.iter().map(|&it| columns[it].name.as_str());
        let values: Vec<Datum<'_>> = incoming.sent.iter().map(|&it| row[it]).collect();
        row_json::row(names, &values)
    }

    /// A change lost; against a row, as it is read, or against its absence.
    pub(crate) fn conflict<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        winner: Option<&[Datum<'_>]>,
        outcome: ConflictOutcome,
    ) {
        let columns = self.schema.tables[incoming.index].columns.len();
        let winner = winner.map(|row| &row[..columns]);
        match winner {
            Some(winner) => self.builder.conflict_row(incoming.index, winner),
            None => self.builder.conflict_gone(incoming.index, uploaded.key),
        }
        self.record(incoming, uploaded, winner, (outcome, None));
    }

    fn record<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        winner: Option<&[Datum<'_>]>,
        (outcome, replaced): (ConflictOutcome, Option<&[Datum<'_>]>),
    ) {
        let table = &self.schema.tables[incoming.index];
        let json = |row: &[Datum<'_>]| self.json(incoming, row);
        let whole = |row: &[Datum<'_>]| {
            let names = table.columns.iter().map(|it| it.name.as_str());
            row_json::row(names, row)
        };
        let conflict = UploadConflict {
            table: table.name.clone(),
            key: row_json::key(uploaded.key),
            op: uploaded.op,
            pre_image: uploaded.old.map(json),
            uploaded: uploaded.new.map(json),
            winner: winner.map(whole),
            replaced: replaced.map(whole),
            outcome,
        };
        self.records.conflicts.push(conflict);
    }

    /// Changes lost against the absence of their rows.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn conflicts_gone<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        rows: &[RowRef],
    ) -> Result<(), CentreError> {
        incoming.images(rows, |_, uploaded| {
            self.conflict(incoming, uploaded, None, ConflictOutcome::Centre);
            Ok(())
        })
    }

    /// A change was refused.
    pub(crate) fn refused<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        refusal: &RefusalReason,
    ) {
        let &UploadedImages { op, key, old, new } = uploaded;
        let RefusalReason { code, reason, .. } = refusal;
        self.builder.refused(incoming.index, key, op, *code, reason);
        let row = new.or(old).unwrap_or_default();
        let parent = match code {
            Code::RowForeignKey => self.decided.parent(self.schema, incoming.index, key),
            _ => None,
        };
        self.records.refused.push(UploadRefusal {
            table: self.schema.tables[incoming.index].name.clone(),
            key: row_json::key(key),
            op,
            row: self.json(incoming, row),
            pre_image: old.map(|old| self.json(incoming, old)),
            code: *code,
            reason: reason.clone(),
            parent,
        });
    }

    /// How many changes of a table took no effect so far.
    pub(crate) fn vain(&self, table: &str) -> VainChanges {
        let mut vain = VainChanges::default();
        let place = |op: Op| match op {
            Op::Insert => 0,
            Op::Update => 1,
            _ => 2,
        };
        for it in self.records.conflicts.iter().filter(|it| it.table == table) {
            vain.conflicts[place(it.op)] += 1;
            if matches!(
                it.outcome,
                ConflictOutcome::Centre | ConflictOutcome::Parked
            ) {
                vain.lost[place(it.op)] += 1;
            }
        }
        for it in self.records.refused.iter().filter(|it| it.table == table) {
            vain.refused[place(it.op)] += 1;
        }
        vain
    }

    /// Refuses what the database does not take.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn refuse<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        failed: &[FailedRow],
    ) -> Result<(), CentreError> {
        let rows: Vec<RowRef> = failed.iter().map(|failed| failed.at).collect();
        incoming.images(&rows, |at, uploaded| {
            self.refused(incoming, uploaded, &failed[at].refusal);
            Ok(())
        })
    }

    /// Refuses rows for the same reason.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn refuse_all<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        rows: &[RowRef],
        code: Code,
        reason: &str,
    ) -> Result<(), CentreError> {
        let reason = reason.to_owned();
        let refusal = RefusalReason::new(code, reason);
        incoming.images(rows, |_, uploaded| {
            self.refused(incoming, uploaded, &refusal);
            Ok(())
        })
    }

    /// Refuses every row of a table of an upload that is aborted.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn refuse_with<T: TableAdapter>(
        &mut self,
        incoming: &IncomingTable<'_, T>,
        aborted: &AbortedUpload,
    ) -> Result<(), CentreError> {
        let name = &self.schema.tables[incoming.index].name;
        incoming.each(|_, row| {
            incoming.with_images(row, |uploaded| {
                let refusal = aborted.refusal(name, row_json::key(uploaded.key));
                self.refused(incoming, uploaded, refusal);
            });
            Ok(())
        })
    }

    /// The result, and what is recorded for people.
    pub(crate) fn finish(self) -> (UploadResult, UploadRecords) {
        (self.builder.finish(), self.records)
    }
}

/// Whether the centre has made other sums of a row than were uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumComparison {
    Alike,
    /// What the remote has changed since then are differences from what it uploaded.
    Differ,
}

/// A row that is to be recorded as resolved.
pub(super) struct ResolutionRecord<'r, 'a> {
    /// How.
    pub(super) outcome: ConflictOutcome,
    /// What the centre had.
    pub(super) replaced: Option<&'r [Datum<'a>]>,
    /// What it has now.
    pub(super) row: Option<&'r [Datum<'a>]>,
}
