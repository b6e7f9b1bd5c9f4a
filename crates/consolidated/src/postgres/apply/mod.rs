//! Uploads: a list of them in one transaction, each in a savepoint of its own.
//!
//! Owns the order of things and exactly-once; rows are `copy_in`'s and `statements`'
//! affair, conflicts and refusals go through `outcomes`.

mod copy_in;
mod incoming;
mod outcomes;
mod own;
mod sql;
mod statements;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future;
use prost::Message;
use ring::rand::{SecureRandom, SystemRandom};
use tokio_postgres::Row;

use tidewater_protocol::{Op, UploadId};

use self::copy_in::Copied;
use self::incoming::{Incoming, RowRef};
use self::outcomes::{Outcomes, is_data_error};
use self::statements::{Failed, Statements};
use super::Shared;
use super::connection::{Connection, centre_error, refused};
use super::model::Compiled;
use super::scope::{Facts, Membership, ScopeQueries};
use super::watermark::Watermark;
use crate::columns::{Announced, ColumnMap, Unpublished};
use crate::error::CentreError;
use crate::orphans::Orphans;
use crate::scope::Scope;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult, UploadTable};

/// How often a transaction that met a deadlock is tried.
const ATTEMPTS: u32 = 10;
/// How often refused rows are tried again while each round gets some of them in.
const RETRY_ROUNDS: usize = 10;

const ENSURE_SUBSCRIPTION: &str = "
INSERT INTO tidewater.subscription (remote_id, publication) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Whoever comes second finds the number used.
const TAKE_SEQUENCE: &str = "
UPDATE tidewater.subscription SET sequence = $3::int8, upload_id = $4
WHERE remote_id = $1 AND publication = $2 AND sequence = $3::int8 - 1
RETURNING scope_serial, previous_serial, graced_serial, pg_catalog.pg_current_xact_id()::text";

const LAST_UPLOAD: &str = "
SELECT sequence, upload_id, result FROM tidewater.subscription
WHERE remote_id = $1 AND publication = $2";

const STORE_RESULT: &str = "
UPDATE tidewater.subscription SET result = $3, graced_serial = greatest(graced_serial, $4)
WHERE remote_id = $1 AND publication = $2";

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
            Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                tracing::debug!(%error, attempt, "uploads are tried again");
                connection.forget_statements();
                let rollback = connection.client().batch_execute("ROLLBACK").await;
                rollback.map_err(refused("ending a failed upload"))?;
                // Two that met in a deadlock must not meet again at the same pace.
                let mut jitter = [0];
                let _ = SystemRandom::new().fill(&mut jitter);
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
            Err(error) if fails_alone(&error) => {
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

/// What is known once the sequence number is taken.
struct Admitted {
    version: u64,
    scope: Scope,
    /// The last signed scope, if it still counts.
    signed: Option<Scope>,
    /// Becomes the subscription's graced serial.
    graced: i64,
    /// Whether tables and triggers are still those that were loaded.
    as_loaded: bool,
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
    All(UploadResult),
    /// Everything but the sequence is undone: a deferred constraint is violated.
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
        let Some(admitted) = self.admit(connection, &mut incoming).await? else {
            return self.last(connection).await;
        };
        let mut round = Round::default();
        let (result, exact) = loop {
            let mut exact = true;
            let filled = self
                .fill(
                    connection,
                    &incoming,
                    &unpublished,
                    &admitted,
                    &round,
                    &mut exact,
                )
                .await?;
            match filled {
                Filled::All(result) => break (result, exact),
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
        };
        let own = self.own(&incoming, &admitted, exact, &result)?;
        Ok(UploadOutcome::Applied { result, own })
    }

    fn key(&self) -> (&[u8], &String) {
        (self.upload.remote_id.0.as_slice(), &self.upload.publication)
    }

    /// Takes the sequence number and evaluates the scope, in one flight; `None` if the
    /// number does not follow.
    async fn admit(
        &self,
        connection: &mut Connection,
        incoming: &mut [Incoming<'_>],
    ) -> Result<Option<Admitted>, CentreError> {
        let error = |error| refused("admitting an upload")(error);
        let facts = Facts {
            user: &self.upload.user,
            remote_id: self.upload.remote_id.to_string(),
        };
        let queries = ScopeQueries::prepare(connection, &facts, &[self.publication]).await?;
        let ensure = connection.prepare(ENSURE_SUBSCRIPTION, &[]).await?;
        let take = connection.prepare(TAKE_SEQUENCE, &[]).await?;
        let fingerprints = connection.prepare(super::FINGERPRINTS, &[]).await?;
        let sequence = i64::try_from(self.upload.sequence)
            .map_err(|_| incoming::malformed("a sequence number out of range"))?;
        let (remote, publication) = self.key();
        let upload_id = self.upload.upload_id.0.as_slice();
        let oids: Vec<u32> = incoming.iter().map(|it| it.table.oid).collect();
        let written = incoming.iter().filter(|it| it.table.direction.uploads());
        let names: BTreeSet<&str> = written.map(|it| it.table.sql_name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        // With this lock nobody can change the tables or add a trigger before we end.
        let lock = match names.is_empty() {
            true => String::new(),
            false => format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", names.join(", ")),
        };
        let client = connection.client();
        let (locked, (ensured, (taken, (live, results)))) = future::join(
            client.batch_execute(&lock),
            future::join(
                client.execute(&ensure, &[&remote, publication]),
                future::join(
                    client.query_opt(&take, &[&remote, publication, &sequence, &upload_id]),
                    future::join(client.query(&fingerprints, &[&oids]), queries.run(client)),
                ),
            ),
        )
        .await;
        locked.map_err(error)?;
        ensured.map_err(error)?;
        let Some(taken) = taken.map_err(error)? else {
            return Ok(None);
        };
        let live = live.map_err(error)?;
        let scope = queries.scope(0, self.publication, &results?)?;
        let version: String = taken.get(3);
        let (signed, graced) = self.signed_scope(&taken, &scope);
        let mut as_loaded = true;
        for it in incoming {
            let found = live.iter().find(|row| row.get::<_, u32>(0) == it.table.oid);
            as_loaded &= found.is_some_and(|row| row.get::<_, &str>(1) == it.table.fingerprint);
            if let Some(row) = found {
                (it.edits_inserts, it.defers_unique) = (row.get(2), row.get(3));
                it.row_security = row.get(4);
            }
        }
        Ok(Some(Admitted {
            version: version.parse().unwrap_or(0),
            scope,
            signed,
            graced,
            as_loaded,
        }))
    }

    /// The last signed scope, if it still counts: issued to this subscription as the
    /// last or the one before, and (if partitions of it are lost since) not yet used
    /// for an upload.
    fn signed_scope(&self, subscription: &Row, current: &Scope) -> (Option<Scope>, i64) {
        let (last, before, graced): (i64, i64, i64) = (
            subscription.get(0),
            subscription.get(1),
            subscription.get(2),
        );
        let Some(checkpoint) = &self.upload.checkpoint else {
            return (None, graced);
        };
        let issued = i64::try_from(checkpoint.serial)
            .ok()
            .filter(|&serial| serial > 0 && (serial == last || serial == before));
        let fits = Watermark::decode(&checkpoint.watermark)
            .is_some_and(|watermark| watermark.layout == self.publication.layout)
            && checkpoint.scope.tables.len() == current.tables.len();
        let (Some(serial), true) = (issued, fits) else {
            return (None, graced);
        };
        let mut pairs = checkpoint.scope.tables.iter().zip(&current.tables);
        let lost = pairs.any(|(held, now)| !held.is_subset(now));
        if !lost || serial <= graced {
            return (None, graced);
        }
        (Some(checkpoint.scope.clone()), serial)
    }

    /// What the subscription says when a number does not follow.
    async fn last(&self, connection: &mut Connection) -> Result<UploadOutcome, CentreError> {
        let error = |error| refused("looking for the last upload")(error);
        connection
            .client()
            .batch_execute(UNDO)
            .await
            .map_err(error)?;
        let statement = connection.prepare(LAST_UPLOAD, &[]).await?;
        let (remote, publication) = self.key();
        let row = connection
            .client()
            .query_opt(&statement, &[&remote, publication])
            .await
            .map_err(error)?;
        let Some(row) = row else {
            return Ok(UploadOutcome::OutOfSequence);
        };
        let id: Option<Vec<u8>> = row.get(1);
        let same = u64::try_from(row.get::<_, i64>(0)) == Ok(self.upload.sequence)
            && id.and_then(|id| UploadId::from_slice(&id)) == Some(self.upload.upload_id);
        match row.get::<_, Option<&[u8]>>(2) {
            Some(result) if same => Ok(UploadOutcome::AlreadyApplied {
                result: decode_result(result)?,
            }),
            _ => Ok(UploadOutcome::OutOfSequence),
        }
    }

    /// Applies all rows and stores the result, in the savepoint of the upload.
    async fn fill(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        unpublished: &[(&UploadTable, Unpublished)],
        admitted: &Admitted,
        round: &Round,
        exact: &mut bool,
    ) -> Result<Filled, CentreError> {
        let error = |error| refused("applying an upload")(error);
        let begin = match round.immediate {
            true => "SAVEPOINT tidewater_rows; SET CONSTRAINTS ALL IMMEDIATE",
            false => "SAVEPOINT tidewater_rows",
        };
        connection
            .client()
            .batch_execute(begin)
            .await
            .map_err(error)?;
        let mut outcomes = Outcomes::new(self.publication, &round.orphans);
        for (table, refused) in unpublished {
            outcomes.refuse_unpublished(table, refused)?;
        }
        for table in incoming {
            outcomes.record_dropped(table)?;
        }
        let mut refusals = Vec::new();
        for (index, op) in order(incoming) {
            let table = &incoming[index];
            let refs = self
                .copy(connection, table, op, admitted, &mut outcomes, exact)
                .await?;
            if refs.is_empty() {
                continue;
            }
            let mut statements = self.statements(connection, table, admitted, &mut outcomes, exact);
            if !table.table.direction.uploads() {
                statements.refuse_all(&refs)?;
                continue;
            }
            let failed = statements.run(op, &refs).await?;
            if !failed.is_empty() {
                refusals.push(Refusals {
                    table: index,
                    op,
                    failed,
                });
            }
        }
        self.try_again(
            connection,
            incoming,
            admitted,
            &mut outcomes,
            exact,
            refusals,
        )
        .await?;
        let checked = connection
            .client()
            .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
            .await;
        let undone = match checked {
            Err(refusal) if round.immediate || !is_data_error(&refusal) => {
                return Err(centre_error("checking deferred constraints", &refusal));
            }
            Err(_) => Some(Filled::Violated),
            Ok(()) => {
                let uploaded: Vec<_> = incoming.iter().map(Incoming::uploaded).collect();
                let mut orphans = round.orphans.clone();
                let schema = &self.publication.schema;
                orphans
                    .find(schema, &uploaded, outcomes.builder())?
                    .then_some(Filled::Orphaned(orphans))
            }
        };
        if let Some(undone) = undone {
            connection
                .client()
                .batch_execute("ROLLBACK TO tidewater_rows; RELEASE tidewater_rows")
                .await
                .map_err(error)?;
            return Ok(undone);
        }
        let result = self.finish(connection, admitted, outcomes).await?;
        Ok(Filled::All(result))
    }

    /// Stores the result and ends the upload's savepoint.
    async fn finish(
        &self,
        connection: &mut Connection,
        admitted: &Admitted,
        outcomes: Outcomes<'_>,
    ) -> Result<UploadResult, CentreError> {
        let error = |error| refused("storing the result of an upload")(error);
        let result = outcomes.record(connection, self.upload).await?;
        let store = connection.prepare(STORE_RESULT, &[]).await?;
        let encoded = result.encode_to_vec();
        let (remote, publication) = self.key();
        let client = connection.client();
        let (stored, released) = future::join(
            client.execute(&store, &[&remote, publication, &encoded, &admitted.graced]),
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
        outcomes: &mut Outcomes<'_>,
        exact: &mut bool,
    ) -> Result<Vec<RowRef>, CentreError> {
        match op {
            Op::Update => return Ok(incoming.updates.clone()),
            Op::Delete => return Ok(incoming.deletes.clone()),
            _ => {}
        }
        let many = incoming.inserts > incoming::COPY_THRESHOLD && !outcomes.has_orphans(incoming);
        if many && incoming.table.direction.uploads() && copy_in::is_possible(incoming) {
            let membership = self.membership(incoming, admitted);
            let copied = copy_in::copy_in(connection, incoming, membership).await?;
            if let Copied::All {
                exact: copied_exact,
            } = copied
            {
                outcomes.applied(Op::Insert, incoming.inserts);
                *exact = *exact && copied_exact;
                return Ok(Vec::new());
            }
        }
        incoming.find_inserts()
    }

    /// Tries refused rows again, in their order, as long as that gets some of them in;
    /// the rest is refused for good.
    async fn try_again(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        outcomes: &mut Outcomes<'_>,
        exact: &mut bool,
        mut refusals: Vec<Refusals>,
    ) -> Result<(), CentreError> {
        for _ in 0..RETRY_ROUNDS {
            let mut progress = false;
            for refusal in &mut refusals {
                let table = &incoming[refusal.table];
                let refs: Vec<RowRef> = refusal.failed.iter().map(|failed| failed.at).collect();
                let mut statements = self.statements(connection, table, admitted, outcomes, exact);
                let failed = statements.run(refusal.op, &refs).await?;
                progress |= failed.len() < refs.len();
                refusal.failed = failed;
            }
            refusals.retain(|refusal| !refusal.failed.is_empty());
            if !progress || refusals.is_empty() {
                break;
            }
        }
        for refusal in &refusals {
            let table = &incoming[refusal.table];
            self.statements(connection, table, admitted, outcomes, exact)
                .refuse(&refusal.failed)?;
        }
        Ok(())
    }

    fn membership<'m>(&'m self, incoming: &Incoming<'_>, admitted: &'m Admitted) -> Membership<'m> {
        let mut sets = vec![&admitted.scope.tables[incoming.index]];
        sets.extend(
            admitted
                .signed
                .as_ref()
                .map(|it| &it.tables[incoming.index]),
        );
        Membership::new(&self.publication.tables[incoming.index], sets)
    }

    fn statements<'c, 'i, 'p>(
        &'c self,
        connection: &'c mut Connection,
        incoming: &'c Incoming<'i>,
        admitted: &'c Admitted,
        outcomes: &'c mut Outcomes<'p>,
        exact: &'c mut bool,
    ) -> Statements<'c, 'i, 'p, 'c> {
        Statements {
            connection,
            incoming,
            outcomes,
            membership: self.membership(incoming, admitted),
            exact,
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
        let skip_version = self.alone && admitted.as_loaded && exact && !sets_off_more;
        let changed = result.inserts + result.updates + result.deletes > 0;
        let rows = match skip_version || !changed {
            true => Default::default(),
            false => own::rows(incoming)?,
        };
        Ok(OwnUpload {
            version: if changed { admitted.version } else { 0 },
            skip_version,
            rows,
        })
    }
}

/// Deletes first where a secondary unique value may be freed by them; then inserts
/// and updates, parents first; then the other deletes, children first.
fn order(incoming: &[Incoming<'_>]) -> Vec<(usize, Op)> {
    let mut by_table: Vec<usize> = (0..incoming.len()).collect();
    by_table.sort_by_key(|&at| incoming[at].index);
    let early = |at: &usize| incoming[*at].table.has_secondary_unique;
    let deletes = |at: usize| (at, Op::Delete);
    let mut order = Vec::with_capacity(3 * incoming.len());
    order.extend(by_table.iter().rev().copied().filter(early).map(deletes));
    for &at in &by_table {
        order.push((at, Op::Insert));
        order.push((at, Op::Update));
    }
    order.extend(
        by_table
            .iter()
            .rev()
            .copied()
            .filter(|at| !early(at))
            .map(deletes),
    );
    order
}

/// Reads a stored result.
pub(super) fn decode_result(bytes: &[u8]) -> Result<UploadResult, CentreError> {
    UploadResult::decode(bytes).map_err(|error| CentreError::Internal {
        message: format!("a stored result cannot be read: {error}"),
    })
}
