//! Uploads: a list of them in one transaction, each undone alone if it has to be.
//!
//! Owns the order of things. Deletes go first, children before parents, because they free keys and
//! unique values; but not those that would do something to children by foreign keys that act: the
//! same upload may move these elsewhere, so they are tried again. Then, parents before children, rows that get another key,
//! inserts and updates. What failed so far is the affair of [`super::retry`].
//! If a constraint is violated at the end, or if rows were taken that should not have been
//! ([`super::decided`]), all is undone and done again: with constraints checked at once, or without
//! these rows.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::{Code, Op};

use super::incoming::{FEW_INSERTS, Incoming, RowRef};
use super::made;
use super::outcomes::Outcomes;
use super::own;
use super::rows::{Admitted, Failed, Image, OnDelete, Refusal, Rows, TargetTable};
use super::settle::ROWS_AT_ONCE;
use super::settled;
use super::{Admission, DOWNLOAD_ONLY, Serials, last, note_given_back};
use crate::engine::connection::Connection as _;
use crate::engine::exact::Membership;
use crate::engine::publication::Publication;
use crate::engine::scope::Differences;
use crate::engine::upload::columns::{Announced, ColumnMap, Unpublished};
use crate::engine::upload::decided::{Decided, RowKeys, pack_key};
use crate::engine::upload::families::Families;
use crate::engine::watermark::held;
use crate::error::CentreError;
use crate::scope::Scope;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult, UploadTable};

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
    let uploaded: Vec<_> = tables.iter().map(Incoming::uploaded).collect();
    let families = Families::of(&publication.schema, &uploaded)?;
    let Admitted { serials, scope } = admitted;
    let admission = admission(rows, &publication, upload, &serials, scope).await?;
    let mut run = Run {
        rows,
        publication: &publication,
        upload,
        serials: &serials,
        admission: &admission,
        tables: &tables,
        unpublished: &unpublished,
        families: &families,
    };
    let result = run.all().await?;
    let own = run.own(&result, is_alone)?;
    Ok(UploadOutcome::Applied { result, own })
}

/// What the remote may write by a scope.
async fn admission<R: Rows>(
    rows: &mut R,
    publication: &Publication<R::Table>,
    upload: &SyncUpload,
    serials: &Serials,
    scope: Scope,
) -> Result<Admission> {
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
    let rules = &publication.rules;
    Ok(Admission::new(rules, checkpoint, serials, found, scope))
}

/// One upload on its way into the centre.
pub(super) struct Run<'r, R: Rows> {
    pub(super) rows: &'r mut R,
    pub(super) publication: &'r Publication<R::Table>,
    pub(super) upload: &'r SyncUpload,
    serials: &'r Serials,
    /// By which rows are judged as they were before.
    admission: &'r Admission,
    pub(super) tables: &'r [Incoming<'r, R::Table>],
    /// Rows that mean nothing to the publication any more, and why.
    unpublished: &'r [(&'r UploadTable, Unpublished)],
    /// What the upload itself does to rows.
    pub(super) families: &'r Families,
}

/// What has been done of an upload so far.
pub(super) struct Progress<'p> {
    pub(super) outcomes: Outcomes<'p>,
    pub(super) refusals: Vec<Refusals>,
    /// Whether rows were written that may be out of scope.
    pub(super) is_outside: bool,
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
    /// What is decided of some of them.
    decided: Decided,
}

/// What applying all rows came to.
enum Filled {
    /// They are in, and the result is kept.
    All(UploadResult),
    /// They have to be undone: a constraint is violated.
    Violated,
    /// The same: rows were taken that should not have been; these.
    Decided(Decided),
}

/// What is done with rows of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Delete,
    Move,
    Insert,
    Update,
}

impl Progress<'_> {
    /// How many rows the database has refused so far.
    pub(super) fn failed(&self) -> usize {
        self.refusals.iter().map(|it| it.failed.len()).sum()
    }
}

impl<'r, R: Rows> Run<'r, R> {
    /// Applies all rows, and keeps the result.
    async fn all(&mut self) -> Result<UploadResult> {
        let mut round = Round::default();
        round.decided.foreign(self.foreign().await?);
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
                Filled::Decided(decided) => round.decided = decided,
            }
            self.rows.undo_rows().await?;
        }
    }

    async fn fill(&mut self, round: &Round) -> Result<Filled> {
        let (schema, shapes) = (&*self.publication.schema, &*self.publication.shapes);
        let mut progress = Progress {
            outcomes: Outcomes::new(schema, shapes, &round.decided),
            refusals: Vec::new(),
            is_outside: false,
        };
        for (table, refused) in self.unpublished {
            progress.outcomes.refuse_unpublished(table, refused)?;
        }
        for table in self.tables {
            progress.outcomes.record_dropped(table)?;
        }
        let (first, last) = order(self.tables);
        for steps in [first, last] {
            for &(place, step) in &steps {
                self.step(place, step, &mut progress).await?;
            }
            if !steps.is_empty() && !self.retry(&mut progress).await? {
                return Ok(Filled::Violated);
            }
        }
        for refusals in std::mem::take(&mut progress.refusals) {
            self.give_up(refusals, &mut progress).await?;
        }
        if self.rows.is_violated(round.immediate).await? {
            return Ok(Filled::Violated);
        }
        let uploaded: Vec<_> = self.tables.iter().map(Incoming::uploaded).collect();
        let mut decided = round.decided.clone();
        let builder = progress.outcomes.builder();
        if decided.find(schema, &self.families.ties, &uploaded, builder)? {
            return Ok(Filled::Decided(decided));
        }
        let mut later = None;
        let may_differ = progress.is_outside || self.changes_scopes();
        if may_differ && !progress.outcomes.gives_up_outside() {
            later = Some(self.admission_at_the_end().await?);
        }
        let mut outside = match &later {
            Some(later) => self.out_of_scope(later, &progress)?,
            None => RowKeys::new(),
        };
        let admission = later.as_ref().unwrap_or(self.admission);
        let mut astray = self.following_nobody(admission, &progress).await?;
        if !astray.is_empty() && later.is_none() {
            let now = self.admission_at_the_end().await?;
            astray = self.following_nobody(&now, &progress).await?;
            later = Some(now);
        }
        outside.extend(astray);
        if !outside.is_empty() {
            decided.refuse_outside(outside);
            return Ok(Filled::Decided(decided));
        }
        let admission = later.as_ref().unwrap_or(self.admission);
        made::note(
            self.rows,
            self.publication,
            self.tables,
            admission,
            &mut progress.outcomes,
        )
        .await?;
        let (mut result, records) = progress.outcomes.finish();
        let connection = self.rows.connection();
        settled::forget(connection, self.upload, schema, self.tables, &records).await?;
        records.store(self.rows.connection(), self.upload).await?;
        let store = admission.store(self.upload, &mut result);
        self.rows.keep(store).await?;
        Ok(Filled::All(result))
    }

    /// What rows failed for at last is why they are refused; deletes that would have taken others
    /// along lose.
    async fn give_up(&mut self, refusals: Refusals, progress: &mut Progress<'_>) -> Result<()> {
        let table = &self.tables[refusals.table];
        let (with_children, others): (Vec<Failed>, Vec<Failed>) =
            refusals.failed.into_iter().partition(|it| it.has_children);
        let with_children: Vec<RowRef> = with_children.iter().map(|it| it.at).collect();
        self.lose(table, refusals.op, &with_children, progress)
            .await?;
        progress.outcomes.refuse(table, &others)
    }

    /// What the remote may write at the end of the upload.
    async fn admission_at_the_end(&mut self) -> Result<Admission> {
        let (publication, upload) = (self.publication, self.upload);
        let scope = self.rows.scope(publication, upload).await?;
        let mut later = admission(self.rows, publication, upload, self.serials, scope).await?;
        later.follow(self.admission);
        Ok(later)
    }

    /// The tables with rows that follow others: what they belong to, only the centre knows.
    fn following(&self) -> Vec<&'r Incoming<'r, R::Table>> {
        let publication = self.publication;
        let follows = |it: &&Incoming<'_, R::Table>| {
            let rules = &publication.rules[publication.rules_of(it.index)];
            it.is_open && rules.iter().any(|rule| rule.follows)
        };
        self.tables.iter().filter(follows).collect()
    }

    /// Rows to be changed that are out of scope by what they follow.
    async fn foreign(&mut self) -> Result<RowKeys> {
        let mut foreign = RowKeys::new();
        for table in self.following() {
            let changes = [
                (Op::Update, &table.updates),
                (Op::Update, &table.moves),
                (Op::Delete, &table.deletes),
            ];
            for (op, rows) in changes {
                let images = (op, Image::Old);
                let found = self.astray(table, images, rows, self.admission).await?;
                foreign.extend(found);
            }
        }
        Ok(foreign)
    }

    /// Rows that were taken, and are out of scope by what they follow.
    async fn following_nobody(
        &mut self,
        admission: &Admission,
        progress: &Progress<'_>,
    ) -> Result<RowKeys> {
        let mut found = RowKeys::new();
        for table in self.following() {
            let taken = made::taken(self.publication, table, &progress.outcomes)?;
            for (op, rows) in taken {
                let images = (op, Image::New);
                found.extend(self.astray(table, images, &rows, admission).await?);
            }
        }
        Ok(found)
    }

    /// Those of some rows whose rows in the centre are out of scope; by their keys in the upload.
    async fn astray(
        &mut self,
        table: &Incoming<'_, R::Table>,
        (op, image): (Op, Image),
        rows: &[RowRef],
        admission: &Admission,
    ) -> Result<RowKeys> {
        let publication = self.publication;
        let schema = &publication.schema.tables[table.index];
        let types = &publication.row_types[table.index];
        let mut astray = RowKeys::new();
        for some in rows.chunks(ROWS_AT_ONCE) {
            let met = self.rows.find(table, op, some, image).await?;
            let mut membership = self.membership_of(admission, table);
            table.rows(some, |at, row| {
                let Some(met) = &met[at] else { return Ok(()) };
                if !membership.has(&met.central.values(types)?) {
                    astray.insert((table.index, pack_key(schema, &row.key)));
                }
                Ok(())
            })?;
        }
        Ok(astray)
    }

    /// Whether the upload changes a table that a query for partitions names.
    fn changes_scopes(&self) -> bool {
        let queries = self
            .publication
            .rules
            .iter()
            .filter_map(|it| it.query.as_ref());
        let queries: HashSet<&str> = queries.map(|it| it.inner.as_str()).collect();
        self.tables.iter().any(|table| {
            let name = &self.publication.schema.tables[table.index].name;
            table.count() > 0 && queries.iter().any(|query| query.contains(name.as_str()))
        })
    }

    /// Rows that were taken, and are out of scope now.
    fn out_of_scope(&self, later: &Admission, progress: &Progress<'_>) -> Result<RowKeys> {
        let builder = progress.outcomes.builder();
        let mut outside = RowKeys::new();
        for table in self.tables.iter().filter(|it| it.is_open) {
            let schema = &self.publication.schema.tables[table.index];
            let mut membership = self.membership_of(later, table);
            table.each(|_, row| {
                let op = row.op.unwrap_or(Op::Insert);
                table.with_images(row, |uploaded| {
                    if uploaded.new.is_none_or(|new| membership.has(new)) {
                        return;
                    }
                    let key = (table.index, pack_key(schema, uploaded.key));
                    if !builder.is_lost(&key) && !builder.is_refused(&key, op) {
                        outside.insert(key);
                    }
                });
                Ok(())
            })?;
        }
        Ok(outside)
    }

    /// Applies the rows of one step.
    async fn step(&mut self, place: usize, step: Step, progress: &mut Progress<'_>) -> Result<()> {
        let table = &self.tables[place];
        let (op, refs) = match step {
            Step::Delete => (Op::Delete, table.deletes.clone()),
            Step::Move => (Op::Update, table.moves.clone()),
            Step::Update => (Op::Update, table.updates.clone()),
            Step::Insert if self.load(table, progress).await? => return Ok(()),
            Step::Insert => (Op::Insert, table.find_inserts()?),
        };
        if refs.is_empty() {
            return Ok(());
        }
        if !table.is_open {
            let (code, reason) = (Code::RowDownloadOnly, DOWNLOAD_ONLY);
            return progress.outcomes.refuse_all(table, &refs, code, reason);
        }
        let earlier = Earlier::new();
        let failed = self.write(table, op, &refs, &earlier, progress).await?;
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
            table.inserts > FEW_INSERTS && table.is_open && !progress.outcomes.concerns(table);
        let is_in = is_possible && {
            let membership = self.membership(table);
            self.rows.load(table, membership).await?
        };
        if is_in {
            progress.outcomes.applied(Op::Insert, table.inserts);
        }
        Ok(is_in)
    }

    /// What of a table the remote may write, by the scope before the upload.
    pub(super) fn membership(&self, table: &Incoming<'_, R::Table>) -> Membership<'r> {
        self.membership_of(self.admission, table)
    }

    fn membership_of<'m>(
        &self,
        admission: &'m Admission,
        table: &Incoming<'_, R::Table>,
    ) -> Membership<'m>
    where
        'r: 'm,
    {
        let publication = self.publication;
        let rules = publication.rules_of(table.index);
        let scope = &admission.scope.rules[rules.clone()];
        Membership::new(&publication.rules[rules], scope)
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
type Steps = Vec<(usize, Step)>;

/// What is done first, and the deletes that come afterwards.
fn order<T: TargetTable>(tables: &[Incoming<'_, T>]) -> (Steps, Steps) {
    let mut parents_first: Vec<usize> = (0..tables.len()).collect();
    parents_first.sort_by_key(|&place| tables[place].index);
    let deletes = parents_first.iter().rev().map(|&it| (it, Step::Delete));
    // The upload may move elsewhere what these would take along.
    let (last, mut first): (Steps, Steps) =
        deletes.partition(|&(place, _)| tables[place].table.on_delete() == OnDelete::TakesAlong);
    for place in parents_first {
        // A row that is inserted may have a key that another one gives up.
        let others = [Step::Move, Step::Insert, Step::Update];
        first.extend(others.map(|step| (place, step)));
    }
    (first, last)
}
