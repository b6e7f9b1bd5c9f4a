//! Uploads: a list of them in one transaction, each in a savepoint of its own.
//!
//! Owns the order of things. Numbers are taken in `admit`; rows are `copy_in`'s and `statements`'
//! affair, conflicts and refusals go through `outcomes`. What an upload has beside its rows is the
//! affair of [`crate::engine::upload`].

mod admit;
mod copy_in;
mod incoming;
mod outcomes;
mod own;
mod sql;
mod statements;
mod together;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future;

use tidewater_protocol::Op;

use self::admit::Admitted;
use self::copy_in::Copied;
use self::incoming::{Incoming, RowRef};
use self::outcomes::{Outcomes, may_be_data_error};
use self::statements::{Failed, Statements};
use self::together::Candidates;
use super::connection::{Connection, centre_error, refused};
use super::model::{Compiled, CompiledTable};
use super::own::run_all;
use super::scope::Membership;
use super::{Shared, fill_random};
use crate::columns::{Announced, ColumnMap, Unpublished};
use crate::engine::upload;
use crate::error::CentreError;
use crate::orphans::Orphans;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult, UploadTable};

/// How often a transaction that met a deadlock is tried.
const ATTEMPTS: u32 = 10;
/// How often refused rows are tried again while each round gets some of them in.
const RETRY_ROUNDS: usize = 10;

/// Constraints that are deferred from the start are so again for the next upload.
const DEFER_AGAIN: &str = "
DO $$ DECLARE c record; BEGIN
FOR c IN SELECT DISTINCT n.nspname, o.conname FROM pg_catalog.pg_constraint o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.connamespace WHERE o.condeferred
LOOP EXECUTE format('SET CONSTRAINTS %I.%I DEFERRED', c.nspname, c.conname); END LOOP; END $$";

/// Applies a list of uploads; see [`crate::Worker::apply`].
pub(super) async fn apply(
    connection: &mut Connection,
    shared: &Shared,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>, CentreError> {
    let mut attempt = 1;
    loop {
        match try_apply(connection, shared, uploads).await {
            Err(error) if error.is_retryable() && attempt < ATTEMPTS && !connection.is_closed() => {
                tracing::debug!(%error, attempt, "uploads are tried again");
                connection.forget_statements();
                let rollback = connection.client().batch_execute("ROLLBACK").await;
                rollback.map_err(refused("ending a failed upload"))?;
                // Two that met in a deadlock must not meet again at the same pace.
                let mut jitter = [0];
                let _ = fill_random(&mut jitter);
                let pause = (1 << attempt.min(7)) + u64::from(jitter[0]) / 8;
                tokio::time::sleep(Duration::from_millis(pause)).await;
                attempt += 1;
            }
            result => return result,
        }
    }
}

async fn try_apply(
    connection: &mut Connection,
    shared: &Shared,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>, CentreError> {
    let error = |error| refused("applying uploads")(error);
    let mut outcomes = Vec::with_capacity(uploads.len());
    for (index, upload) in uploads.iter().enumerate() {
        let begin = match index {
            0 => "BEGIN; SAVEPOINT tidewater_upload".to_owned(),
            _ => format!("{DEFER_AGAIN}; SAVEPOINT tidewater_upload"),
        };
        connection
            .client()
            .batch_execute(&begin)
            .await
            .map_err(error)?;
        let outcome = match shared.publication(&upload.publication) {
            Ok(publication) => {
                let one = One {
                    upload,
                    publication: &publication,
                    alone: uploads.len() == 1,
                };
                one.apply(connection).await
            }
            Err(error) => Err(error),
        };
        outcomes.push(match outcome {
            Ok(outcome) => outcome,
            Err(error) if fails_alone(&error) && !connection.is_closed() => {
                connection
                    .client()
                    .batch_execute(UNDO)
                    .await
                    .map_err(refused("undoing an upload"))?;
                UploadOutcome::Failed { error }
            }
            Err(error) => return Err(error),
        });
    }
    if uploads.is_empty() {
        return Ok(outcomes);
    }
    connection
        .client()
        .batch_execute("COMMIT")
        .await
        .map_err(error)?;
    Ok(outcomes)
}

/// Whether an error is one upload's own, and the others of the list can go on.
fn fails_alone(error: &CentreError) -> bool {
    !error.is_retryable() && !matches!(error, CentreError::Unavailable { .. })
}

const UNDO: &str = "ROLLBACK TO tidewater_upload; RELEASE tidewater_upload";

/// One upload on its way into the centre.
struct One<'u> {
    upload: &'u SyncUpload,
    publication: &'u Compiled,
    /// Whether nothing else is applied in the same transaction.
    alone: bool,
}

/// Rows that mean nothing to the publication any more, and why.
type UnpublishedRows<'u> = (&'u UploadTable, Unpublished);

/// What has been done of an upload so far, in the savepoint of its rows.
struct Progress<'p> {
    outcomes: Outcomes<'p>,
    refusals: Vec<Refusals>,
    /// Deletes and updates that are settled before their turn.
    settled: HashSet<(usize, RowRef)>,
    /// Whether every row so far is in the centre as it was uploaded.
    exact: bool,
}

impl<'p> Progress<'p> {
    fn new(outcomes: Outcomes<'p>) -> Progress<'p> {
        Progress {
            outcomes,
            refusals: Vec::new(),
            settled: HashSet::new(),
            exact: true,
        }
    }

    /// How many rows the database has refused so far.
    fn failed(&self) -> usize {
        self.refusals.iter().map(|it| it.failed.len()).sum()
    }
}

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
    /// They are in, and the result is stored.
    All { result: UploadResult, exact: bool },
    /// They have to be undone: a deferred constraint is violated.
    Violated,
    /// The same: rows were taken that refer to refused ones; these.
    Orphaned(Orphans),
}

/// Rows of one operation that the database refused, by table.
struct Refusals {
    table: usize,
    op: Op,
    failed: Vec<Failed>,
}

impl One<'_> {
    async fn apply(&self, connection: &mut Connection) -> Result<UploadOutcome, CentreError> {
        let mut incoming = Vec::with_capacity(self.upload.tables.len());
        let mut unpublished = Vec::new();
        for table in &self.upload.tables {
            match ColumnMap::find(&self.publication.schema, &table.begin)? {
                Announced::Published(index, map) => {
                    incoming.push(Incoming::new(self.publication, table, index, map)?);
                }
                Announced::Unpublished(refused) => unpublished.push((table, refused)),
            }
        }
        let tables: Vec<&CompiledTable> = incoming.iter().map(|it| it.table).collect();
        let admitted = self.admit(connection, &tables).await?;
        let Some(admitted) = admitted else {
            let undone = connection.client().batch_execute(UNDO).await;
            undone.map_err(refused("undoing an upload"))?;
            return upload::last(connection, self.upload).await;
        };
        if self.upload.given_back && !upload::note_given_back(connection, self.upload).await? {
            incoming.clear();
            unpublished.clear();
        }
        for (place, it) in incoming.iter_mut().enumerate() {
            it.place = place;
            admitted.tell(it);
        }
        let uploaded: Vec<_> = incoming.iter().map(Incoming::uploaded).collect();
        let mut round = Round {
            orphans: Orphans::of(&self.publication.schema, &uploaded)?,
            ..Round::default()
        };
        let (result, exact) = loop {
            self.begin_rows(connection, &round).await?;
            let outcomes = Outcomes::new(self.publication, &round.orphans);
            let filled = self
                .fill(
                    connection,
                    &incoming,
                    &unpublished,
                    &admitted,
                    &round,
                    Progress::new(outcomes),
                )
                .await?;
            match filled {
                Filled::All { result, exact } => break (result, exact),
                // Some row violates a deferred constraint. With all of them immediate, it
                // is found where it is applied.
                Filled::Violated if round.immediate => {
                    return Err(CentreError::Internal {
                        message: "immediate constraints were violated when all rows were in".into(),
                    });
                }
                Filled::Violated => round.immediate = true,
                Filled::Orphaned(orphans) => round.orphans = orphans,
            }
            connection
                .client()
                .batch_execute("ROLLBACK TO tidewater_rows; RELEASE tidewater_rows")
                .await
                .map_err(refused("undoing the rows of an upload"))?;
        };
        let own = self.own(&incoming, &admitted, exact, &result)?;
        Ok(UploadOutcome::Applied { result, own })
    }

    /// Sets the savepoint in which all rows are applied.
    async fn begin_rows(
        &self,
        connection: &mut Connection,
        round: &Round,
    ) -> Result<(), CentreError> {
        let begin = match round.immediate {
            true => "SAVEPOINT tidewater_rows; SET CONSTRAINTS ALL IMMEDIATE",
            false => "SAVEPOINT tidewater_rows",
        };
        let begun = connection.client().batch_execute(begin).await;
        begun.map_err(refused("applying an upload"))
    }

    /// Applies all rows and stores the result.
    async fn fill(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        unpublished: &[UnpublishedRows<'_>],
        admitted: &Admitted,
        round: &Round,
        mut progress: Progress<'_>,
    ) -> Result<Filled, CentreError> {
        for (table, refused) in unpublished {
            progress.outcomes.refuse_unpublished(table, refused)?;
        }
        for table in incoming {
            progress.outcomes.record_dropped(table)?;
        }
        let (first, deletes) = order(incoming);
        for (index, op) in first {
            self.one_operation(connection, incoming, index, op, admitted, &mut progress)
                .await?;
        }
        if self.waits_for_deletes(incoming, &progress) {
            let which = Candidates::WithDeletes;
            self.get_in(connection, incoming, admitted, &mut progress, which)
                .await?;
        }
        for (index, op) in deletes {
            self.one_operation(connection, incoming, index, op, admitted, &mut progress)
                .await?;
        }
        self.try_again(connection, incoming, admitted, &mut progress)
            .await?;
        let checked = connection
            .client()
            .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
            .await;
        match checked {
            Err(refusal) if round.immediate || !may_be_data_error(&refusal) => {
                return Err(centre_error("checking deferred constraints", &refusal));
            }
            Err(_) => return Ok(Filled::Violated),
            Ok(()) => {}
        }
        let Progress {
            outcomes, exact, ..
        } = progress;
        let uploaded: Vec<_> = incoming.iter().map(Incoming::uploaded).collect();
        let mut orphans = round.orphans.clone();
        if orphans.find(&self.publication.schema, &uploaded, outcomes.builder())? {
            return Ok(Filled::Orphaned(orphans));
        }
        let result = self.finish(connection, admitted, outcomes).await?;
        Ok(Filled::All { result, exact })
    }

    /// Applies the rows of one operation of one table.
    async fn one_operation(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        index: usize,
        op: Op,
        admitted: &Admitted,
        progress: &mut Progress<'_>,
    ) -> Result<(), CentreError> {
        let table = &incoming[index];
        let mut refs = self.copy(connection, table, op, admitted, progress).await?;
        if !progress.settled.is_empty() {
            refs.retain(|&row| !progress.settled.contains(&(index, row)));
        }
        if refs.is_empty() {
            return Ok(());
        }
        let mut statements = self.statements(connection, table, admitted, progress);
        if !table.table.direction.uploads() {
            return statements.refuse_all(&refs);
        }
        let failed = statements.run(op, &refs).await?;
        if !failed.is_empty() {
            progress.refusals.push(Refusals {
                table: index,
                op,
                failed,
            });
        }
        Ok(())
    }

    /// Stores the result and ends the upload's savepoint.
    async fn finish(
        &self,
        connection: &mut Connection,
        admitted: &Admitted,
        outcomes: Outcomes<'_>,
    ) -> Result<UploadResult, CentreError> {
        let error = |error| refused("storing the result of an upload")(error);
        let (mut result, records) = outcomes.finish();
        records.store(connection, self.upload).await?;
        let store = [admitted.admission.store(self.upload, &mut result)];
        let storing = connection.prepare_own(&store).await?;
        let client = connection.client();
        let (stored, released) = future::join(
            run_all(client, &storing, &store),
            client.batch_execute("RELEASE tidewater_upload"),
        )
        .await;
        stored.map_err(error)?;
        released.map_err(error)?;
        Ok(result)
    }

    /// Many inserts go by COPY; gives back the rows that go by statements.
    async fn copy(
        &self,
        connection: &mut Connection,
        incoming: &Incoming<'_>,
        op: Op,
        admitted: &Admitted,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<RowRef>, CentreError> {
        match op {
            Op::Update => return Ok(incoming.updates.clone()),
            Op::Delete => return Ok(incoming.deletes.clone()),
            _ => {}
        }
        let many =
            incoming.inserts > incoming::COPY_THRESHOLD && !progress.outcomes.has_orphans(incoming);
        if many && incoming.table.direction.uploads() && copy_in::is_possible(incoming) {
            let membership = self.membership(incoming, admitted);
            let copied = copy_in::copy_in(connection, incoming, membership).await?;
            if let Copied::All {
                exact: copied_exact,
            } = copied
            {
                progress.outcomes.applied(Op::Insert, incoming.inserts);
                progress.exact = progress.exact && copied_exact;
                return Ok(Vec::new());
            }
        }
        incoming.find_inserts()
    }

    /// Tries refused rows again; the rest is refused for good.
    async fn try_again(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
    ) -> Result<(), CentreError> {
        let which = Candidates::Failed;
        self.get_in(connection, incoming, admitted, progress, which)
            .await?;
        for refusal in std::mem::take(&mut progress.refusals) {
            let table = &incoming[refusal.table];
            self.statements(connection, table, admitted, progress)
                .refuse(&refusal.failed)?;
        }
        Ok(())
    }

    /// Tries refused rows again as long as that gets some of them in: together first, for of many
    /// that wait for one row, each would fail once more alone; then one by one.
    async fn get_in(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
        which: Candidates,
    ) -> Result<(), CentreError> {
        loop {
            self.together(connection, incoming, admitted, progress, which)
                .await?;
            let before = progress.failed();
            if before == 0 {
                return Ok(());
            }
            self.one_by_one(connection, incoming, admitted, progress)
                .await?;
            if progress.failed() == before {
                return Ok(());
            }
        }
    }

    /// Every other round goes backwards: of rows that wait for the next one each, a round in their
    /// order would get in a single one.
    async fn one_by_one(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
    ) -> Result<(), CentreError> {
        let mut refusals = std::mem::take(&mut progress.refusals);
        // The first tries were in their order.
        let mut backwards = false;
        let mut vain = 0;
        for _ in 0..RETRY_ROUNDS {
            let mut gained = false;
            let count = refusals.len();
            for number in 0..count {
                let at = if backwards {
                    count - 1 - number
                } else {
                    number
                };
                let tried = refusals[at].failed.len();
                self.run_again(
                    connection,
                    incoming,
                    admitted,
                    progress,
                    &mut refusals[at],
                    backwards,
                )
                .await?;
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
    async fn run_again(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        progress: &mut Progress<'_>,
        refusals: &mut Refusals,
        backwards: bool,
    ) -> Result<(), CentreError> {
        let mut refs: Vec<RowRef> = refusals.failed.iter().map(|failed| failed.at).collect();
        if backwards {
            refs.reverse();
        }
        let table = &incoming[refusals.table];
        let mut statements = self.statements(connection, table, admitted, progress);
        if refusals.op == Op::Update {
            let failed = refusals.failed.drain(..);
            statements.earlier = failed.map(|it| (it.at, (it.code, it.reason))).collect();
        }
        refusals.failed = statements.run(refusals.op, &refs).await?;
        Ok(())
    }

    fn membership<'m>(&'m self, incoming: &Incoming<'_>, admitted: &'m Admitted) -> Membership<'m> {
        let partitions = &admitted.admission.scope.tables[incoming.index];
        Membership::new(&self.publication.shapes[incoming.index], partitions)
    }

    fn statements<'c, 'i, 'p>(
        &'c self,
        connection: &'c mut Connection,
        incoming: &'c Incoming<'i>,
        admitted: &'c Admitted,
        progress: &'c mut Progress<'p>,
    ) -> Statements<'c, 'i, 'p, 'c> {
        Statements {
            connection,
            incoming,
            outcomes: &mut progress.outcomes,
            membership: self.membership(incoming, admitted),
            exact: &mut progress.exact,
            given_back: self.upload.given_back,
            earlier: HashMap::new(),
        }
    }

    /// What the download of the same sync has to know.
    fn own(
        &self,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        exact: bool,
        result: &UploadResult,
    ) -> Result<OwnUpload, CentreError> {
        let sets_off_more = incoming.iter().any(|it| {
            let effects = it.table.effects;
            effects.always
                || effects.on_delete && !it.deletes.is_empty()
                || effects.on_update && !it.updates.is_empty()
        });
        let as_loaded = incoming.iter().all(|it| admitted.is_as_loaded(it.table));
        let skip_version = self.alone && as_loaded && exact && !sets_off_more;
        let changed = result.inserts + result.updates + result.deletes > 0;
        let rows = match skip_version || !changed {
            true => Default::default(),
            false => own::rows(incoming, &result.tables)?,
        };
        Ok(OwnUpload {
            version: if changed { admitted.version } else { 0 },
            skip_version,
            rows,
        })
    }
}

/// Tables (by their place in the upload), and what is done with rows of them.
type Steps = Vec<(usize, Op)>;

/// Some deletes first, see [`CompiledTable::deletes_first`]; then inserts and updates, parents
/// first. And afterwards the other deletes, children first.
fn order(incoming: &[Incoming<'_>]) -> (Steps, Steps) {
    let mut by_table: Vec<usize> = (0..incoming.len()).collect();
    by_table.sort_by_key(|&at| incoming[at].index);
    let deletes = by_table.iter().rev().map(|&at| (at, Op::Delete));
    let (mut first, late): (Vec<_>, Vec<_>) =
        deletes.partition(|&(at, _)| incoming[at].table.deletes_first);
    for at in by_table {
        first.push((at, Op::Insert));
        first.push((at, Op::Update));
    }
    (first, late)
}
