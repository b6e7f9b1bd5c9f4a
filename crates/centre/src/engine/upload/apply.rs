//! Uploads: a list of them in one transaction, each undone alone if it has to be.
//!
//! Owns the order of things. Deletes that free unique values go first, unless foreign keys act on
//! them; then inserts and updates, parents before children; then the other deletes, children before
//! parents. What the database refuses is tried again at the end as long as some of it gets in,
//! which settles cycles and exchanges; what needs each other is the affair of [`super::together`].
//! If a constraint is violated at the end, or if rows were taken that refer to refused ones, all is
//! undone and done again: with constraints checked at once, or without these rows.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::{Code, Op};

use super::incoming::{FEW_INSERTS, Incoming, RowRef};
use super::outcomes::Outcomes;
use super::own;
use super::rows::{Admitted, Failed, Refusal, Rows, TargetTable};
use super::together::Candidates;
use super::{Admission, DOWNLOAD_ONLY, last, note_given_back};
use crate::engine::connection::Connection as _;
use crate::engine::exact::Membership;
use crate::engine::publication::Publication;
use crate::engine::scope::Differences;
use crate::engine::upload::columns::{Announced, ColumnMap, Unpublished};
use crate::engine::upload::orphans::Orphans;
use crate::engine::watermark::held;
use crate::error::CentreError;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult, UploadTable};

/// How often refused rows are tried again while each round gets some of them in.
const RETRY_ROUNDS: usize = 10;

type Result<T> = std::result::Result<T, CentreError>;

/// Applies a list of uploads; see [`crate::Worker::apply`].
pub async fn apply(rows: &mut impl Rows, uploads: &[SyncUpload]) -> Result<Vec<UploadOutcome>> {
    let mut attempts = 0;
    loop {
        match try_apply(rows, uploads).await {
            Ok(outcomes) => return Ok(outcomes),
            Err(error) => {
                attempts += 1;
                if !rows.is_tried_again(&error, attempts).await? {
                    return Err(error);
                }
                tracing::debug!(%error, attempts, "uploads are tried again");
            }
        }
    }
}

async fn try_apply(rows: &mut impl Rows, uploads: &[SyncUpload]) -> Result<Vec<UploadOutcome>> {
    let mut outcomes = Vec::with_capacity(uploads.len());
    for (number, upload) in uploads.iter().enumerate() {
        rows.begin(number).await?;
        let outcome = one(rows, upload, uploads.len() == 1).await;
        outcomes.push(match outcome {
            Ok(outcome) => outcome,
            Err(error) if fails_alone(&error) && rows.is_usable() => {
                rows.undo().await?;
                if let CentreError::Locked { .. } = error {
                    rows.hurry();
                }
                UploadOutcome::Failed { error }
            }
            Err(error) => return Err(error),
        });
    }
    if !uploads.is_empty() {
        rows.commit().await?;
    }
    Ok(outcomes)
}

/// Whether an error is one upload's own, and the others of the list can go on.
fn fails_alone(error: &CentreError) -> bool {
    !error.is_retryable() && !matches!(error, CentreError::Unavailable { .. })
}

/// Applies one upload of a list; `is_alone` if it is the only one.
async fn one<R: Rows>(rows: &mut R, upload: &SyncUpload, is_alone: bool) -> Result<UploadOutcome> {
    let publication = rows.publication(&upload.publication)?;
    let (mut tables, mut unpublished) = (Vec::new(), Vec::new());
    for table in &upload.tables {
        match ColumnMap::find(&publication.schema, &table.begin)? {
            Announced::Published(index, map) => {
                let place = tables.len();
                tables.push(Incoming::new(&publication, table, place, index, map)?);
            }
            Announced::Unpublished(refused) => unpublished.push((table, refused)),
        }
    }
    let Some(admitted) = rows.admit(&publication, upload, &tables).await? else {
        rows.undo().await?;
        return last(rows.connection(), upload).await;
    };
    if upload.given_back && !note_given_back(rows.connection(), upload).await? {
        tables.clear();
        unpublished.clear();
    }
    let Admitted { serials, scope } = admitted;
    let checkpoint = upload.checkpoint.as_ref();
    let held = held(&publication.rules, checkpoint);
    let mut differences = Differences::of(scope.rules.iter().zip(held));
    loop {
        let asked = differences.ask();
        if asked.is_empty() {
            break;
        }
        let what = "reading a scope that was handed out";
        let answers = rows.connection().flight(what, &asked).await?;
        differences.answer(&answers)?;
    }
    let found = differences.found();
    let admission = Admission::new(&publication.rules, checkpoint, &serials, found, scope);
    let mut run = Run {
        rows,
        publication: &publication,
        upload,
        admission: &admission,
        tables: &tables,
        unpublished: &unpublished,
    };
    let result = run.all().await?;
    let own = run.own(&result, is_alone)?;
    Ok(UploadOutcome::Applied { result, own })
}

/// One upload on its way into the centre.
pub(super) struct Run<'r, R: Rows> {
    pub(super) rows: &'r mut R,
    pub(super) publication: &'r Publication<R::Table>,
    pub(super) upload: &'r SyncUpload,
    pub(super) admission: &'r Admission,
    pub(super) tables: &'r [Incoming<'r, R::Table>],
    /// Rows that mean nothing to the publication any more, and why.
    unpublished: &'r [(&'r UploadTable, Unpublished)],
}

/// What has been done of an upload so far.
pub(super) struct Progress<'p> {
    pub(super) outcomes: Outcomes<'p>,
    pub(super) refusals: Vec<Refusals>,
    /// Deletes that are settled before their turn: the place of their table, and where they are.
    pub(super) settled: HashSet<(usize, RowRef)>,
    /// Deletes that found their rows when the upload began, though others of it may do something to
    /// these (`ON DELETE SET NULL`). If one does not find its row as it was any more, nobody else
    /// has won.
    pub(super) undisputed: HashSet<(usize, RowRef)>,
}

/// Rows of one operation that the database refused, by table.
pub(super) struct Refusals {
    /// The place of the table.
    pub(super) table: usize,
    pub(super) op: Op,
    pub(super) failed: Vec<Failed>,
}

/// Updates that are tried again, and what they failed for. If one does not find its row as it was
/// any more, that is what the rest of the upload did to it: nobody else has won.
pub(super) type Earlier = HashMap<RowRef, Refusal>;

/// How the rows are applied, if not for the first time.
#[derive(Default)]
struct Round {
    /// With all constraints checked at once.
    immediate: bool,
    /// Without rows that refer to refused ones.
    orphans: Orphans,
}

/// What applying all rows came to.
enum Filled {
    /// They are in, and the result is kept.
    All(UploadResult),
    /// They have to be undone: a constraint is violated.
    Violated,
    /// The same: rows were taken that refer to refused ones; these.
    Orphaned(Orphans),
}

impl Progress<'_> {
    /// How many rows the database has refused so far.
    fn failed(&self) -> usize {
        self.refusals.iter().map(|it| it.failed.len()).sum()
    }
}

impl<'r, R: Rows> Run<'r, R> {
    /// Applies all rows, and keeps the result.
    async fn all(&mut self) -> Result<UploadResult> {
        let uploaded: Vec<_> = self.tables.iter().map(Incoming::uploaded).collect();
        let mut round = Round {
            immediate: false,
            orphans: Orphans::of(&self.publication.schema, &uploaded)?,
        };
        loop {
            self.rows.begin_rows(round.immediate).await?;
            match self.fill(&round).await? {
                Filled::All(result) => return Ok(result),
                // Some row violates a constraint. With all of them checked at once, it is found
                // where it is applied.
                Filled::Violated if round.immediate => {
                    return Err(CentreError::Internal {
                        message: "immediate constraints were violated when all rows were in".into(),
                    });
                }
                Filled::Violated => round.immediate = true,
                Filled::Orphaned(orphans) => round.orphans = orphans,
            }
            self.rows.undo_rows().await?;
        }
    }

    async fn fill(&mut self, round: &Round) -> Result<Filled> {
        let (schema, shapes) = (&*self.publication.schema, &*self.publication.shapes);
        let mut progress = Progress {
            outcomes: Outcomes::new(schema, shapes, &round.orphans),
            refusals: Vec::new(),
            settled: HashSet::new(),
            undisputed: HashSet::new(),
        };
        for (table, refused) in self.unpublished {
            progress.outcomes.refuse_unpublished(table, refused)?;
        }
        for table in self.tables {
            progress.outcomes.record_dropped(table)?;
        }
        self.find_undisputed(&mut progress).await?;
        let (first, deletes) = order(self.tables);
        for (place, op) in first {
            self.operation(place, op, &mut progress).await?;
        }
        if self.waits_for_deletes(&progress)
            && !self.get_in(&mut progress, Candidates::WithDeletes).await?
        {
            return Ok(Filled::Violated);
        }
        for (place, op) in deletes {
            self.operation(place, op, &mut progress).await?;
        }
        if !self.get_in(&mut progress, Candidates::Failed).await? {
            return Ok(Filled::Violated);
        }
        for Refusals { table, failed, .. } in std::mem::take(&mut progress.refusals) {
            progress.outcomes.refuse(&self.tables[table], &failed)?;
        }
        if self.rows.is_violated(round.immediate).await? {
            return Ok(Filled::Violated);
        }
        let outcomes = progress.outcomes;
        let uploaded: Vec<_> = self.tables.iter().map(Incoming::uploaded).collect();
        let mut orphans = round.orphans.clone();
        if orphans.find(schema, &uploaded, outcomes.builder())? {
            return Ok(Filled::Orphaned(orphans));
        }
        let (mut result, records) = outcomes.finish();
        records.store(self.rows.connection(), self.upload).await?;
        let store = self.admission.store(self.upload, &mut result);
        self.rows.keep(store).await?;
        Ok(Filled::All(result))
    }

    /// See [`Progress::undisputed`].
    async fn find_undisputed(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let schema = &self.publication.schema;
        let deletes = |name: &str| {
            let mut tables = self.tables.iter();
            tables.any(|it| schema.tables[it.index].name == name && !it.deletes.is_empty())
        };
        let is_changed = |it: &&Incoming<'_, R::Table>| {
            let mut keys = schema.tables[it.index].foreign_keys.iter();
            !it.deletes.is_empty()
                && it.is_open
                && keys.any(|key| key.on_delete.changes_rows() && deletes(&key.parent))
        };
        for table in self.tables.iter().filter(is_changed) {
            let found = self.deletable(table, progress).await?;
            let found = found.into_iter().map(|row| (table.place, row));
            progress.undisputed.extend(found);
        }
        Ok(())
    }

    /// Applies the rows of one operation of one table.
    async fn operation(&mut self, place: usize, op: Op, progress: &mut Progress<'_>) -> Result<()> {
        let table = &self.tables[place];
        let mut refs = match op {
            Op::Update => table.updates.clone(),
            Op::Delete => table.deletes.clone(),
            _ if self.load(table, progress).await? => return Ok(()),
            _ => table.find_inserts()?,
        };
        if !progress.settled.is_empty() {
            refs.retain(|&row| !progress.settled.contains(&(place, row)));
        }
        if refs.is_empty() {
            return Ok(());
        }
        if !table.is_open {
            let (code, reason) = (Code::RowDownloadOnly, DOWNLOAD_ONLY);
            return progress.outcomes.refuse_all(table, &refs, code, reason);
        }
        let failed = self
            .write(table, op, &refs, &Earlier::new(), progress)
            .await?;
        if !failed.is_empty() {
            progress.refusals.push(Refusals {
                table: place,
                op,
                failed,
            });
        }
        Ok(())
    }

    /// Many inserts go in bulk, if they can; whether they are in.
    async fn load(
        &mut self,
        table: &Incoming<'_, R::Table>,
        progress: &mut Progress<'_>,
    ) -> Result<bool> {
        let is_possible =
            table.inserts > FEW_INSERTS && table.is_open && !progress.outcomes.has_orphans(table);
        let is_in = is_possible && self.rows.load(table, self.membership(table)).await?;
        if is_in {
            progress.outcomes.applied(Op::Insert, table.inserts);
        }
        Ok(is_in)
    }

    /// What of a table the remote may write.
    pub(super) fn membership(&self, table: &Incoming<'_, R::Table>) -> Membership<'r> {
        let (publication, admission) = (self.publication, self.admission);
        let rules = publication.rules_of(table.index);
        let scope = &admission.scope.rules[rules.clone()];
        Membership::of_uploaded(&publication.rules[rules], scope)
    }

    /// Tries refused rows again as long as that gets some of them in: together first, for of many
    /// that wait for one row, each would fail once more alone; then one by one. False: it cannot be
    /// told which of them violate a constraint, because others do.
    async fn get_in(&mut self, progress: &mut Progress<'_>, which: Candidates) -> Result<bool> {
        if which == Candidates::Failed && progress.failed() == 0 {
            return Ok(true);
        }
        loop {
            if !self.together(progress, which).await? {
                return Ok(false);
            }
            let before = progress.failed();
            if before == 0 {
                return Ok(true);
            }
            self.one_by_one(progress).await?;
            if progress.failed() == before {
                return Ok(true);
            }
        }
    }

    /// Every other round goes backwards: of rows that wait for the next one each, a round in their
    /// order would get in a single one.
    async fn one_by_one(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let mut refusals = std::mem::take(&mut progress.refusals);
        // The first tries were in their order.
        let mut backwards = false;
        let mut vain = 0;
        for _ in 0..RETRY_ROUNDS {
            let mut gained = false;
            let count = refusals.len();
            for number in 0..count {
                let at = match backwards {
                    true => count - 1 - number,
                    false => number,
                };
                let tried = refusals[at].failed.len();
                self.again(&mut refusals[at], backwards, progress).await?;
                gained |= refusals[at].failed.len() < tried;
            }
            refusals.retain(|refusal| !refusal.failed.is_empty());
            vain = if gained { 0 } else { vain + 1 };
            if vain == 2 || refusals.is_empty() {
                break;
            }
            backwards = !backwards;
        }
        progress.refusals = refusals;
        Ok(())
    }

    /// Tries refused rows of one operation once more, which leaves those that are refused again.
    pub(super) async fn again(
        &mut self,
        refusals: &mut Refusals,
        backwards: bool,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut refs: Vec<RowRef> = refusals.failed.iter().map(|failed| failed.at).collect();
        if backwards {
            refs.reverse();
        }
        let mut earlier = Earlier::new();
        if refusals.op == Op::Update {
            let failed = refusals.failed.drain(..);
            earlier = failed.map(|it| (it.at, it.refusal)).collect();
        }
        let (table, op) = (&self.tables[refusals.table], refusals.op);
        refusals.failed = self.write(table, op, &refs, &earlier, progress).await?;
        Ok(())
    }

    /// What the download of the same sync has to know.
    fn own(&mut self, result: &UploadResult, is_alone: bool) -> Result<OwnUpload> {
        if result.inserts + result.updates + result.deletes == 0 {
            return Ok(OwnUpload::default());
        }
        let (version, skip_version) = self.rows.version(self.tables, is_alone);
        let rows = match skip_version {
            true => HashMap::new(),
            false => own::rows(&self.publication.shapes, self.tables, &result.tables)?,
        };
        Ok(OwnUpload {
            version,
            skip_version,
            rows,
        })
    }
}

/// The places of tables, and what is done with rows of them.
type Steps = Vec<(usize, Op)>;

/// What is done first, and the deletes that come afterwards.
fn order<T: TargetTable>(tables: &[Incoming<'_, T>]) -> (Steps, Steps) {
    let mut parents_first: Vec<usize> = (0..tables.len()).collect();
    parents_first.sort_by_key(|&place| tables[place].index);
    let deletes = parents_first.iter().rev().map(|&it| (it, Op::Delete));
    let (mut first, late): (Steps, Steps) =
        deletes.partition(|&(place, _)| tables[place].table.deletes_first());
    for place in parents_first {
        first.push((place, Op::Insert));
        first.push((place, Op::Update));
    }
    (first, late)
}
