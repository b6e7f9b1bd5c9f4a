//! Rows that two sides have changed, written as the resolver of their table makes them.
//!
//! They are written like uploaded ones, from the centre's row to what it is to be: if somebody
//! changes the row in between, it is resolved once more.

use std::borrow::Cow;
use std::collections::HashSet;

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{ColumnType, Datum, Op, RowShape, RowsWriter, Table, Value, pack};

use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::row_batch::{BatchOutcome, RowBatch};
use super::row_writers::RowWriters;
use super::upload_driver::UploadDriver;
use crate::engine::exact::{canonical, pack_row, unpack};
use crate::engine::publication::Publication;
use crate::engine::resolve::{ResolvedRow, Resolver, Sides, Winner};
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::{OnDelete, TableAdapter};
use crate::engine::upload::outcomes::ResolutionRecord;
use crate::engine::upload::ready_rows::{ReadyRows, find_changed, obstacle};
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::row_keys::pack_key;
use crate::engine::upload::sent_before::SentBefore;
use crate::engine::upload::upload_run::{UploadProgress, UploadRun, WritePurpose};
use crate::error::CentreError;
use crate::records::ConflictOutcome;
use crate::upload::{SyncUpload, UploadChunk, UploadTable};
use crate::verdict::{Columns, ContendedChange, ContendedOutcome, ContendedRow, Resolutions};

type Result<T> = std::result::Result<T, CentreError>;

/// Rows of one operation of one table that are resolved, and not written yet.
pub(super) struct ResolverOutput<'p> {
    resolver: Cow<'p, Resolver>,
    table: &'p Table,
    shape: &'p RowShape,
    writer: RowsWriter<'p>,
    /// In the order in which they are in the writer.
    updates: Vec<ResolvedUpload>,
    inserts: Vec<ResolvedUpload>,
    deletes: Vec<ResolvedUpload>,
    /// What handlers have decided, and what they have to decide.
    decided: &'p Resolutions,
    contended: Vec<ContendedChange>,
    /// What the centre may have already of what is uploaded.
    sent_before: &'p SentBefore,
    /// Deletes take along what refers to their rows.
    insists: bool,
    /// The user's, where conflicts go by it, and who has written the rows of the centre.
    rank: Option<i64>,
    pub(super) writers: RowWriters,
}

/// A row that is resolved.
struct ResolvedUpload {
    /// Where it was uploaded.
    at: RowRef,
    /// How, if both sides have changed the same; otherwise there was no conflict.
    outcome: Option<ConflictOutcome>,
    /// The centre's row, packed; `None` if it was gone.
    replaced: Option<Vec<u8>>,
}

impl<'p> ResolverOutput<'p> {
    pub(super) fn new<T: TableAdapter>(
        publication: &'p Publication<T>,
        index: usize,
        upload: &'p SyncUpload,
        (purpose, sent_before): (WritePurpose, &'p SentBefore),
    ) -> ResolverOutput<'p> {
        let user = &upload.context.user;
        let resolver = &publication.resolvers[index];
        let resolver = match purpose.insists() {
            true => Cow::Owned(resolver.insisting()),
            false => resolver.for_upload(user, upload.given_back),
        };
        let shape = &publication.shapes[index];
        ResolverOutput {
            resolver,
            table: &publication.schema.tables[index],
            shape,
            writer: RowsWriter::new(shape),
            updates: Vec::new(),
            inserts: Vec::new(),
            deletes: Vec::new(),
            decided: &upload.resolutions,
            contended: Vec::new(),
            sent_before,
            insists: purpose.insists(),
            rank: None,
            writers: RowWriters::default(),
        }
    }

    /// The same for a user of this rank.
    pub(super) fn with_rank(self, rank: Option<i64>) -> ResolverOutput<'p> {
        ResolverOutput { rank, ..self }
    }

    /// Whether conflicts go by who has written the row of the centre.
    pub(super) fn asks_who_wrote(&self) -> bool {
        self.resolver.winner == Winner::Rank
    }

    /// Whether a conflict can end otherwise than as the centre has it.
    pub(super) fn resolves(&self) -> bool {
        !self.resolver.is_default()
    }

    /// The images of a row that two sides have changed.
    fn sides<'r, 'a, T: TableAdapter>(
        &self,
        table: &'r IncomingTable<'_, T>,
        uploaded: &UploadedImages<'r, 'a>,
        new: &'r [Datum<'a>],
        central: &'r [Datum<'a>],
    ) -> Sides<'r, 'a> {
        let central = &central[..self.shape.columns.len()];
        let outranks = self.asks_who_wrote() && {
            let writer = self.writers.find_writer(self.table, self.shape, central);
            self.resolver.outranks(self.rank, writer)
        };
        Sides {
            old: uploaded.old,
            new,
            central,
            outranks,
            written: &table.updatable,
            may_be_in: self.may_be_in(table.index, uploaded.key),
        }
    }

    /// See [`Sides::may_be_in`].
    fn may_be_in(&self, table: usize, key: &[Datum<'_>]) -> bool {
        self.sent_before.has(table, self.table, key)
    }

    /// Whether a row that is in the centre as its remote wants it has been made so by two changes.
    /// Two equal inserts of a file and its copy are one.
    pub(super) fn resolves_equal<'a, T: TableAdapter>(
        &self,
        table: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, 'a>,
        central: &[Datum<'a>],
    ) -> bool {
        let may_be_in = self.may_be_in(table.index, uploaded.key);
        let is_twice_inserted = may_be_in && uploaded.op == Op::Insert;
        !is_twice_inserted
            && uploaded.new.is_some_and(|new| {
                let sides = self.sides(table, uploaded, new, central);
                self.resolver.resolves_equal(sides)
            })
    }

    /// Whether the operator has to decide of a row, because the centre may have the change already.
    pub(super) fn counts_twice<'a, T: TableAdapter>(
        &self,
        table: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, 'a>,
        central: &[Datum<'a>],
    ) -> bool {
        uploaded.new.is_some_and(|new| {
            let sides = self.sides(table, uploaded, new, central);
            self.resolver.counts_twice(sides)
        })
    }

    /// What a handler has decided of a row; if it has not yet, it is asked.
    fn ask<T: TableAdapter>(
        &mut self,
        table: &IncomingTable<'_, T>,
        uploaded: &UploadedImages<'_, '_>,
        central: Option<&[Datum<'_>]>,
    ) -> ContendedOutcome {
        let sent = |image: &[Datum<'_>]| named(self.table, table.sent.iter().copied(), image);
        let all = 0..self.table.columns.len();
        let theirs = central.map(|it| named(self.table, all, it));
        let row = ContendedRow {
            table: self.table.name.clone(),
            key: pack_key(self.table, uploaded.key),
        };
        match self.decided.get(&row) {
            Some(decided) if decided.theirs == theirs => decided.becomes.clone(),
            _ => {
                let key = self.table.key_columns().zip(uploaded.key);
                self.contended.push(ContendedChange {
                    row,
                    op: uploaded.op,
                    key: key
                        .map(|(it, value)| (it.name.clone(), value.to_value()))
                        .collect(),
                    old: uploaded.old.map(sent),
                    new: uploaded.new.map(sent),
                    theirs,
                });
                ContendedOutcome::Centre
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Takes a row that has met another one of the centre than it expects, as all of it is read;
    /// what the conflict has come to, if the row is not taken.
    pub(super) fn take<T: TableAdapter>(
        &mut self,
        table: &IncomingTable<'_, T>,
        at: RowRef,
        uploaded: &UploadedImages<'_, '_>,
        central: &[Datum<'_>],
    ) -> Option<ConflictOutcome> {
        let central = &central[..self.shape.columns.len()];
        let is_asked = self.resolver.winner == Winner::Handler;
        let Some(new) = uploaded.new else {
            let becomes = is_asked.then(|| self.ask(table, uploaded, Some(central)));
            match becomes {
                Some(ContendedOutcome::Remote) => {}
                Some(ContendedOutcome::Parked) => return Some(ConflictOutcome::Parked),
                Some(_) => return Some(ConflictOutcome::Centre),
                None if self.resolver.survives(false) => return Some(self.stands()),
                None => {}
            }
            self.writer.delete(central);
            self.deletes.push(ResolvedUpload {
                at,
                outcome: Some(ConflictOutcome::Remote),
                replaced: Some(pack_row(&self.shape.columns, central)),
            });
            return None;
        };
        if self.gives_another_key(uploaded) {
            return Some(ConflictOutcome::Centre);
        }
        let sides = self.sides(table, uploaded, new, central);
        let (from_remote, computed, is_conflict) =
            match self.resolver.resolve(&self.shape.columns, sides) {
                ResolvedRow::Centre => return Some(ConflictOutcome::Centre),
                ResolvedRow::Parked => return Some(ConflictOutcome::Parked),
                ResolvedRow::Asked => match self.ask(table, uploaded, Some(central)) {
                    ContendedOutcome::Centre => return Some(ConflictOutcome::Centre),
                    ContendedOutcome::Parked => return Some(ConflictOutcome::Parked),
                    ContendedOutcome::Remote => (table.updatable.clone(), Vec::new(), true),
                    ContendedOutcome::Merged(columns) => (Vec::new(), self.placed(columns), true),
                },
                ResolvedRow::Merged {
                    from_remote,
                    computed,
                    is_conflict,
                } => (from_remote, computed, is_conflict),
            };
        let mut row = central.to_vec();
        for column in from_remote {
            row[column] = new[column];
        }
        for (column, value) in &computed {
            row[*column] = datum(self.shape.columns[*column], value);
        }
        let same = |&column: &usize| pack::same(&canonical(row[column]), &canonical(new[column]));
        let outcome = match table.sent.iter().all(same) {
            true => ConflictOutcome::Remote,
            false => ConflictOutcome::Merged,
        };
        self.writer.update(central, &row);
        self.updates.push(ResolvedUpload {
            at,
            outcome: is_conflict.then_some(outcome),
            replaced: Some(pack_row(&self.shape.columns, central)),
        });
        None
    }

    /// Takes a row that was changed and is not in the centre any more; what the conflict has come
    /// to, if the row is not taken.
    pub(super) fn take_gone<T: TableAdapter>(
        &mut self,
        table: &IncomingTable<'_, T>,
        at: RowRef,
        uploaded: &UploadedImages<'_, '_>,
    ) -> Option<ConflictOutcome> {
        let Some(new) = uploaded.new.filter(|_| !self.gives_another_key(uploaded)) else {
            return Some(ConflictOutcome::Centre);
        };
        let is_asked = self.resolver.winner == Winner::Handler;
        let mut outcome = ConflictOutcome::Remote;
        let mut changed = Vec::new();
        match is_asked.then(|| self.ask(table, uploaded, None)) {
            Some(ContendedOutcome::Remote) => {}
            Some(ContendedOutcome::Merged(columns)) => {
                outcome = ConflictOutcome::Merged;
                changed = self.placed(columns);
            }
            Some(ContendedOutcome::Parked) => return Some(ConflictOutcome::Parked),
            Some(ContendedOutcome::Centre) => return Some(ConflictOutcome::Centre),
            None if !self.resolver.survives(true) => return Some(self.stands()),
            None => {}
        }
        let mut row = new.to_vec();
        for (column, value) in &changed {
            row[*column] = datum(self.shape.columns[*column], value);
        }
        self.writer.row(Op::Insert, &row);
        self.inserts.push(ResolvedUpload {
            at,
            outcome: Some(outcome),
            replaced: None,
        });
        None
    }

    /// Columns by their place.
    fn placed(&self, columns: Columns) -> Vec<(usize, Value)> {
        let columns = columns.into_iter();
        let placed = columns.filter_map(|(name, value)| Some((self.table.column(&name)?, value)));
        placed.collect()
    }

    /// What it is called that the centre's row, or its absence, stands.
    fn stands(&self) -> ConflictOutcome {
        match self.resolver.winner {
            Winner::Nobody => ConflictOutcome::Parked,
            _ => ConflictOutcome::Centre,
        }
    }

    fn gives_another_key(&self, uploaded: &UploadedImages<'_, '_>) -> bool {
        let (Some(old), Some(new)) = (uploaded.old, uploaded.new) else {
            return false;
        };
        let mut key = self.table.key.iter();
        key.any(|&column| !pack::same(&old[column], &new[column]))
    }
}

/// Some columns of a row, by name.
fn named(table: &Table, columns: impl Iterator<Item = usize>, row: &[Datum<'_>]) -> Columns {
    let columns = columns.map(|it| (table.columns[it].name.clone(), row[it].to_value()));
    columns.collect()
}

/// A value as it is computed.
fn datum(column_type: ColumnType, value: &Value) -> Datum<'_> {
    column_type.datum(value.as_ref()).0
}

impl<R: UploadDriver> UploadRun<'_, R> {
    /// Writes rows that are resolved; what the database refuses of them is what it refuses of the
    /// uploaded ones.
    pub(super) async fn write_resolved(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        resolving: ResolverOutput<'_>,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        progress
            .contended
            .extend(resolving.contended.iter().cloned());
        if resolving.is_empty() {
            return Ok(());
        }
        let publication = self.publication;
        let ResolverOutput {
            table: schema,
            mut writer,
            updates,
            inserts,
            deletes,
            insists,
            ..
        } = resolving;
        let upload = UploadTable {
            begin: TableBegin::for_table(schema),
            chunks: vec![UploadChunk::from_packed(&schema.shape(), writer.take())?],
        };
        let mut made = IncomingTable::of_ours(publication, &upload, table.place)?;
        if self.purpose != WritePurpose::Sync {
            made = made.unrestricted();
        }
        for (made_op, taken) in [
            (Op::Delete, deletes),
            (Op::Insert, inserts),
            (Op::Update, updates),
        ] {
            let refs = match made_op {
                Op::Delete => made.deletes.clone(),
                Op::Insert => made.find_inserts(),
                _ => made.updates.clone(),
            };
            if !refs.is_empty() {
                let rows = ReplacementRows {
                    table: &made,
                    op: made_op,
                    refs,
                    taken,
                    insists,
                };
                self.write_made(table, op, rows, progress, failed).await?;
            }
        }
        Ok(())
    }

    async fn write_made(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        rows: ReplacementRows<'_, '_, R::Tables>,
        progress: &mut UploadProgress<'_>,
        failed: &mut Vec<FailedRow>,
    ) -> Result<()> {
        let (mut ready, mut vain) = (ReadyRows::default(), HashSet::new());
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        let mut overtaken = Vec::new();
        let mut membership = self.membership(rows.table);
        let (mut changed, refuses_at_once) = (Vec::new(), progress.outcomes.refuses_at_once());
        rows.table.images(&rows.refs, |at, image| {
            find_changed(rows.table, image, &mut changed);
            let mut refusal = obstacle(self.rows, self.publication, rows.table, image, &changed);
            if let Some(barrier) = image.new.and_then(|new| membership.barrier_to_new(new)) {
                progress.may_be_out_of_scope = true;
                refusal = refusal.or(refuses_at_once.then(|| RefusalReason::barred(barrier)));
            }
            match refusal {
                Some(refusal) => {
                    vain.insert(rows.refs[at]);
                    refused.push(FailedRow::new(rows.taken[at].at, refusal));
                }
                None => ready.add(rows.table, &mut changed, rows.refs[at]),
            }
            Ok(())
        })?;
        for (changed, mut refs) in ready.sets {
            // The centre has them so already.
            if rows.op == Op::Update && changed.is_empty() {
                continue;
            }
            let looks = rows.table.table.on_delete == OnDelete::Looks && !rows.insists;
            if rows.op == Op::Delete && looks {
                let parents = self
                    .rows
                    .find_rows_with_children(rows.table, &refs, false)
                    .await?;
                refs.retain(|it| !parents.contains(it));
                vain.extend(&parents);
                lost.extend(parents);
            }
            let batch = RowBatch::new(rows.table, rows.op, &changed);
            let written = self.rows.write(&batch, &refs).await?;
            let BatchOutcome {
                passed_over,
                failed: failing,
                refused: never,
                elsewhere,
                kept,
                ..
            } = written;
            let mut kept: Vec<RowRef> = kept.into_iter().map(|it| rows.origin(it)).collect();
            kept.sort_unstable();
            progress.outcomes.keep(table, &kept);
            let many = [&passed_over, &elsewhere].into_iter().flatten();
            vain.extend(many.chain(failing.iter().chain(&never).map(|it| &it.at)));
            lost.extend(elsewhere);
            overtaken.extend(passed_over);
            failed.extend(failing.into_iter().map(|it| rows.original(it)));
            refused.extend(never.into_iter().map(|it| rows.original(it)));
        }
        progress.outcomes.refuse(table, &refused)?;
        let mut lost: Vec<RowRef> = lost.into_iter().map(|it| rows.origin(it)).collect();
        lost.extend(
            self.find_unchanged(table, op, &rows, &overtaken, progress)
                .await?,
        );
        lost.sort_unstable();
        rows.record(table, op, &vain, progress)?;
        self.lose(table, op, &lost, progress).await
    }

    /// Of rows that the centre did not take in place of what it had: those of which it still has
    /// the same, so that something else than another writer is in the way. The others are met once
    /// more.
    async fn find_unchanged(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        made: &ReplacementRows<'_, '_, R::Tables>,
        rows: &[RowRef],
        progress: &mut UploadProgress<'_>,
    ) -> Result<Vec<RowRef>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let taken: Vec<&ResolvedUpload> = rows.iter().map(|it| made.taken_for(*it)).collect();
        let origins: Vec<RowRef> = taken.iter().map(|it| it.at).collect();
        let met = self.rows.find(table, op, &origins, RowImage::Old).await?;
        let types = &self.publication.row_types[table.index];
        let published = &made.table.map.shape.columns;
        let mut unchanged = Vec::new();
        for (taken, met) in taken.into_iter().zip(&met) {
            let now = match met {
                None => None,
                Some(met) => {
                    let central = met.central.values(types)?;
                    Some(pack_row(published, &central[..published.len()]))
                }
            };
            match now == taken.replaced {
                true => unchanged.push(taken.at),
                false => progress.overtaken.push(taken.at),
            }
        }
        Ok(unchanged)
    }
}

/// Rows that are written in place of uploaded ones.
struct ReplacementRows<'m, 'u, T: TableAdapter> {
    table: &'m IncomingTable<'u, T>,
    op: Op,
    refs: Vec<RowRef>,
    /// The uploaded ones, one for each.
    taken: Vec<ResolvedUpload>,
    /// Deletes take along what refers to their rows.
    insists: bool,
}

impl<T: TableAdapter> ReplacementRows<'_, '_, T> {
    /// The uploaded row in whose place one is written.
    fn origin(&self, at: RowRef) -> RowRef {
        self.taken_for(at).at
    }

    fn taken_for(&self, at: RowRef) -> &ResolvedUpload {
        let place = self.refs.binary_search(&at);
        &self.taken[place.unwrap_or_default()]
    }

    fn original(&self, failed: FailedRow) -> FailedRow {
        FailedRow {
            at: self.origin(failed.at),
            ..failed
        }
    }

    /// Notes those that are in the centre now, which are all but some.
    fn record(
        &self,
        table: &IncomingTable<'_, T>,
        op: Op,
        vain: &HashSet<RowRef>,
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let mut uploaded_at = Vec::with_capacity(self.refs.len());
        let mut written = Vec::with_capacity(self.refs.len());
        let in_place = self.refs.iter().zip(&self.taken);
        for (row, taken) in in_place.filter(|(row, _)| !vain.contains(row)) {
            uploaded_at.push(taken.at);
            written.push((*row, taken));
        }
        let mut rows: Vec<Option<Vec<u8>>> = Vec::with_capacity(written.len());
        let types = &self.table.map.shape.columns;
        let refs: Vec<RowRef> = written.iter().map(|(row, _)| *row).collect();
        self.table.images(&refs, |_, image| {
            rows.push(image.new.map(|new| pack_row(types, new)));
            Ok(())
        })?;
        progress.outcomes.applied(op, written.len() as u64);
        table.images(&uploaded_at, |at, uploaded| {
            let (_, taken) = written[at];
            let replaced = taken.replaced.as_ref().map(|it| unpack(it, types));
            let row = rows[at].as_ref().map(|it| unpack(it, types));
            let (replaced, row) = (replaced.transpose()?, row.transpose()?);
            let record = taken.outcome.map(|outcome| ResolutionRecord {
                outcome,
                replaced: replaced.as_deref(),
                row: row.as_deref(),
            });
            progress.outcomes.resolved(table, uploaded, record);
            Ok(())
        })
    }
}
