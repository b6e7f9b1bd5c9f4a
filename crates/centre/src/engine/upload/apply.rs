//! Applies one upload, in rounds.
//!
//! A round writes the rows in the order of [`super::step_order`], tries again what has failed
//! ([`super::retry`]), refuses what has failed for the last time, and keeps the result. If a
//! constraint is violated at the end, or if rows were taken that should not have been
//! ([`super::row_decisions`]), the round is undone, and the next one applies the upload anew: with
//! constraints checked at once, or without these rows.
//!
//! Deletes go first, children before parents, because they free keys and unique values; but not those
//! that would do something to children by foreign keys that act: the same upload may move these
//! elsewhere, so they are tried again. Then, parents before children, rows that get another key,
//! inserts and updates.

use std::collections::HashMap;

use tidewater_protocol::{Code, Datum, Op};

use super::claiming::claim_sequence;
use super::given_rows::find_given;
use super::incoming_rows::{FEW_INSERTS, IncomingTable, RowRef};
use super::outcomes::Outcomes;
use super::row_batch::ClaimedSequence;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{
    Admission, DOWNLOAD_ONLY, UploadRecords, computed_values, earlier_refusals, echo_filter, last,
    note_given_back, row_writers,
};
use crate::engine::scripts::ScriptEnvironment;
use crate::engine::sql::system::subscriptions;
use crate::engine::upload::column_map::{AnnouncedColumns, ColumnMap};
use crate::engine::upload::handler_decisions::JudgedUpload;
use crate::engine::upload::key_cascades::KeyCascades;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::row_decisions::RowDecisions;
use crate::engine::upload::scope_admission::{admission, judgeable};
use crate::engine::upload::sent_before::SentBefore;
use crate::engine::upload::step_order::ApplyStep;
use crate::engine::upload::upload_run::{
    EarlierFailures, TableFailures, UploadProgress, UploadRun, WritePurpose,
};
use crate::error::CentreError;
use crate::publication::OnReject;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult};
use crate::verdict::ContendedChange;

type Result<T> = std::result::Result<T, CentreError>;

/// Applies one upload of a list; `is_alone` if it is the only one.
pub(super) async fn apply_one<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    upload: &SyncUpload,
    is_alone: bool,
) -> Result<UploadOutcome> {
    let publication = rows.publication(&upload.publication)?;
    let (mut announced, mut judged) = (Vec::new(), JudgedUpload::default());
    for (place, table) in upload.tables.iter().enumerate() {
        let columns = ColumnMap::find(&publication.schema, &table.begin)?;
        let columns = judgeable(&publication, columns);
        if let AnnouncedColumns::Published(index, map) = &columns {
            judged.add(&publication, upload, place, (*index, map))?;
        }
        announced.push(columns);
    }
    let (changed, decisions) = judged.into_decisions();
    let (mut tables, mut unpublished) = (Vec::new(), Vec::new());
    for (place, (table, announced)) in upload.tables.iter().zip(announced).enumerate() {
        match announced {
            AnnouncedColumns::Published(index, map) => {
                let (table, place) = (changed.get(&place).unwrap_or(table), tables.len());
                tables.push(IncomingTable::new(&publication, table, place, index, map)?);
            }
            AnnouncedColumns::Unpublished(refused) => unpublished.push((table, refused)),
        }
    }
    let admitted = claim_sequence(rows, &publication, &[upload], &tables).await?;
    let Some(admitted) = admitted.into_iter().flatten().next() else {
        rows.undo().await?;
        return last(rows.connection(), upload).await;
    };
    if upload.given_back && !note_given_back(rows.connection(), upload).await? {
        tables.clear();
        unpublished.clear();
    }
    let uploaded: Vec<_> = tables.iter().map(IncomingTable::uploaded).collect();
    let key_cascades = KeyCascades::from_upload(&publication.schema, &uploaded)?;
    let ClaimedSequence { serials, scope } = admitted;
    let mut admission = admission(rows, &publication, upload, &serials, scope).await?;
    let sent_before = match tables.is_empty() {
        true => SentBefore::default(),
        false => SentBefore::find(rows, upload, &publication).await?,
    };
    let scripting =
        ScriptEnvironment::for_sync(&publication.scripts, &upload.context, &upload.publication)?
            .map(|it| it.since(upload.checkpoint.as_ref()));
    admission.given = find_given(rows, &publication, &tables, scripting.as_ref()).await?;
    let mut run = UploadRun {
        rows,
        publication: &publication,
        upload,
        purpose: WritePurpose::Sync,
        serials: &serials,
        admission: &admission,
        tables: &tables,
        unpublished: &unpublished,
        key_cascades: &key_cascades,
        decisions,
        handed_over: Vec::new(),
        leaves_to_download: false,
        sent_before: &sent_before,
        records: UploadRecords::default(),
        scripting,
    };
    run.handed_over = run.find_handed_over()?;
    let result = match run.apply_in_rounds().await? {
        Ok(result) => result,
        Err(contended) => {
            rows.undo().await?;
            return Ok(UploadOutcome::Contended { rows: contended });
        }
    };
    let own = run.own_upload(&result, is_alone)?;
    Ok(UploadOutcome::Applied { result, own })
}

/// How the rows are applied, if not for the first time.
#[derive(Default)]
struct ApplyRound {
    /// With all constraints checked at once.
    immediate: bool,
    /// What is decided of some of them.
    decided: RowDecisions,
}

/// What applying all rows came to.
enum ApplyOutcome {
    /// They are in, and the result is kept.
    All(UploadResult),
    /// Handlers have to decide of some.
    Contended(Vec<ContendedChange>),
    /// They have to be undone: a constraint is violated.
    Violated,
    /// The same: rows were taken that should not have been; these.
    Decided(RowDecisions),
}

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// Applies all rows, in as many rounds as it takes, and keeps the result.
    pub(super) async fn apply_in_rounds(
        &mut self,
    ) -> Result<std::result::Result<UploadResult, Vec<ContendedChange>>> {
        let mut round = ApplyRound::default();
        let out_of_scope = self.find_out_of_scope_before().await?;
        round.decided.refuse_out_of_scope_before(out_of_scope);
        round.decided.follow_handlers(self.decisions.clone());
        let foreign_keys = &self.key_cascades.foreign_keys;
        let uploaded: Vec<_> = self.tables.iter().map(IncomingTable::uploaded).collect();
        let schema = &self.publication.schema;
        if uploaded.iter().any(|it| {
            foreign_keys
                .iter()
                .any(|foreign_key| foreign_key.child == it.index)
        }) {
            let connection = self.rows.connection();
            let upload = self.upload;
            let of = earlier_refusals::RemoteRefusals {
                remote_id: upload.context.remote_id,
                publication: &upload.publication,
                given_up: &upload.given_up,
                forgotten: &upload.forgotten_refusals,
            };
            let refused = earlier_refusals::find_open_parents(
                connection,
                &of,
                schema,
                foreign_keys,
                &uploaded,
            );
            let refused = refused.await?;
            round
                .decided
                .refuse_children(schema, foreign_keys, &uploaded, refused)?;
        }
        loop {
            self.rows.begin_rows(round.immediate).await?;
            match self.apply_round(&round).await? {
                ApplyOutcome::All(result) => return Ok(Ok(result)),
                ApplyOutcome::Contended(rows) => return Ok(Err(rows)),
                // Some row violates a constraint. With all of them checked at once, it is found
                // where it is applied.
                ApplyOutcome::Violated if round.immediate => {
                    return Err(CentreError::Internal {
                        message: "immediate constraints were violated when all rows were in".into(),
                    });
                }
                ApplyOutcome::Violated => round.immediate = true,
                ApplyOutcome::Decided(decided) => round.decided = decided,
            }
            self.rows.undo_rows().await?;
        }
    }

    /// Applies all rows once, by what the rounds before have decided.
    async fn apply_round(&mut self, round: &ApplyRound) -> Result<ApplyOutcome> {
        let (schema, shapes) = (&*self.publication.schema, &*self.publication.shapes);
        let mut progress = UploadProgress {
            outcomes: Outcomes::new(schema, shapes, &round.decided),
            failures: Vec::new(),
            may_be_out_of_scope: false,
            contended: Vec::new(),
            overtaken: Vec::new(),
            before_handing_over: None,
        };
        for (table, refused) in self.unpublished {
            progress.outcomes.refuse_unpublished(table, refused)?;
        }
        if let Some(aborted) = round.decided.aborted() {
            for table in self.tables {
                progress.outcomes.refuse_with(table, &aborted)?;
            }
            let (result, records) = progress.outcomes.finish();
            return self.finish(result, records, None).await;
        }
        for table in self.tables {
            progress.outcomes.record_dropped(table)?;
        }
        self.before_rows().await?;
        for steps in self.order() {
            let is_handing_over = |&(place, step): &(usize, ApplyStep)| {
                step == ApplyStep::HandOver && !self.handed_over[place].is_empty()
            };
            if steps.iter().any(is_handing_over) {
                let before = self.before_handing_over(&progress).await?;
                progress.before_handing_over = Some(before);
            }
            for &(place, step) in &steps {
                self.step(place, step, &mut progress).await?;
            }
            if !steps.is_empty() && !self.retry(&mut progress).await? {
                return Ok(ApplyOutcome::Violated);
            }
        }
        if !progress.contended.is_empty() {
            return Ok(ApplyOutcome::Contended(progress.contended));
        }
        for failures in std::mem::take(&mut progress.failures) {
            self.refuse_failed(failures, &mut progress).await?;
        }
        self.after_rows(&progress).await?;
        if self.rows.is_violated(round.immediate).await? {
            return Ok(ApplyOutcome::Violated);
        }
        let uploaded: Vec<_> = self.tables.iter().map(IncomingTable::uploaded).collect();
        let mut decided = round.decided.clone();
        let builder = progress.outcomes.builder();
        if decided.refuse_dependents(schema, &self.key_cascades.foreign_keys, &uploaded, builder)? {
            return Ok(ApplyOutcome::Decided(decided));
        }
        let (later, out_of_scope) = self.find_out_of_scope_after(&progress).await?;
        if !out_of_scope.is_empty() {
            decided.refuse_out_of_scope_after(out_of_scope);
            return Ok(ApplyOutcome::Decided(decided));
        }
        let admission = later.as_ref().unwrap_or(self.admission);
        computed_values::note(
            self.rows,
            self.publication,
            self.tables,
            (admission, self.scripting.as_ref()),
            &mut progress.outcomes,
        )
        .await?;
        let ranks = &self.admission.scope.ranks;
        let who = (self.upload, &ranks[..]);
        row_writers::record(
            self.rows,
            self.publication,
            self.tables,
            who,
            &progress.outcomes,
        )
        .await?;
        self.leaves_to_download = progress.outcomes.leaves_to_download();
        let refused = progress.outcomes.builder().refused_count();
        let (result, records) = progress.outcomes.finish();
        if self.purpose != WritePurpose::Sync {
            self.records = records;
            return Ok(ApplyOutcome::All(result));
        }
        if refused > 0 && self.publication.on_reject == OnReject::Abort {
            decided.abort(&records.refused);
            return Ok(ApplyOutcome::Decided(decided));
        }
        self.finish(result, records, later).await
    }

    /// Keeps what the upload has come to; `later`: by what it is judged in the end, if that is not
    /// as before.
    async fn finish(
        &mut self,
        mut result: UploadResult,
        mut records: UploadRecords,
        later: Option<Admission>,
    ) -> Result<ApplyOutcome> {
        let (schema, admission) = (&self.publication.schema, later.as_ref());
        let admission = admission.unwrap_or(self.admission);
        let connection = self.rows.connection();
        let open = earlier_refusals::close_answered(
            connection,
            self.upload,
            schema,
            self.tables,
            &records,
        )
        .await?;
        earlier_refusals::name_parents(schema, &open, &mut records);
        // As people put them in order.
        records.refused.sort_by_key(|it| it.parent.is_some());
        records.store(self.rows.connection(), self.upload).await?;
        if self.upload.given_back && result.inserts + result.updates + result.deletes > 0 {
            self.rows.note_given_back()?;
        }
        let completed = admission.complete(self.upload, &mut result);
        self.rows
            .store_result(subscriptions::store_results(vec![completed]))
            .await?;
        Ok(ApplyOutcome::All(result))
    }

    /// What rows failed for at last is why they are refused; deletes that would have taken others
    /// along lose.
    async fn refuse_failed(
        &mut self,
        failures: TableFailures,
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let table = &self.tables[failures.table];
        let (with_children, mut others): (Vec<FailedRow>, Vec<FailedRow>) =
            failures.failed.into_iter().partition(|it| it.has_children);
        let with_children: Vec<RowRef> = with_children.iter().map(|it| it.at).collect();
        self.lose(table, failures.op, &with_children, progress)
            .await?;
        self.name_missing(table, failures.op, &mut others).await?;
        self.handle_errors(table, &others).await?;
        progress.outcomes.refuse(table, &others)
    }

    /// Applies the rows of one step.
    async fn step(
        &mut self,
        place: usize,
        step: ApplyStep,
        progress: &mut UploadProgress<'_>,
    ) -> Result<()> {
        let table = &self.tables[place];
        let (op, refs) = match step {
            ApplyStep::Event(event) => return self.at_event(event, Some(table.index)).await,
            ApplyStep::Delete => (Op::Delete, table.deletes.clone()),
            ApplyStep::Move => (Op::Update, table.moves.clone()),
            ApplyStep::Update => (Op::Update, self.staying(table)),
            ApplyStep::HandOver => (Op::Update, self.handed_over[place].clone()),
            ApplyStep::Insert if self.insert_in_bulk(table, progress).await? => {
                self.count_warnings(table.index);
                return Ok(());
            }
            ApplyStep::Insert => (Op::Insert, table.find_inserts()),
        };
        if refs.is_empty() {
            return Ok(());
        }
        if !table.is_open {
            let (code, reason) = (Code::RowDownloadOnly, DOWNLOAD_ONLY);
            return progress.outcomes.refuse_all(table, &refs, code, reason);
        }
        let earlier = EarlierFailures::new();
        let failed = self.write(table, op, &refs, &earlier, progress).await?;
        self.count_warnings(table.index);
        if !failed.is_empty() {
            progress.failures.push(TableFailures {
                table: place,
                op,
                failed,
            });
        }
        Ok(())
    }

    /// Many inserts go in bulk, if they can; whether they are in.
    async fn insert_in_bulk(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        progress: &mut UploadProgress<'_>,
    ) -> Result<bool> {
        let is_possible =
            table.inserts > FEW_INSERTS && table.is_open && !progress.outcomes.concerns(table);
        let is_possible = is_possible && !self.is_scripted(table.index, Op::Insert);
        let is_in = is_possible && {
            let mut membership = self.membership(table);
            let mut may_write =
                |_, values: &[Datum<'_>]| membership.barrier_to_new(values).is_none();
            self.rows.insert_in_bulk(table, &mut may_write).await?
        };
        if is_in {
            progress.outcomes.applied(Op::Insert, table.inserts);
        }
        Ok(is_in)
    }

    /// What the download of the same sync has to know.
    fn own_upload(&mut self, result: &UploadResult, is_alone: bool) -> Result<OwnUpload> {
        if result.inserts + result.updates + result.deletes == 0 {
            return Ok(OwnUpload::default());
        }
        let (version, is_all) = self.rows.version(self.tables, is_alone);
        let skip_version = is_all && !self.lets_rows_go() && !self.leaves_to_download;
        let rows = match skip_version {
            true => HashMap::new(),
            false => {
                let shapes = &self.publication.shapes;
                let own = echo_filter::rows(shapes, self.tables, |_, _| 0, &[result])?;
                own.into_iter().next().unwrap_or_default()
            }
        };
        Ok(OwnUpload {
            version,
            skip_version,
            rows,
        })
    }
}
