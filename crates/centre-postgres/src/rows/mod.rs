//! Uploaded rows go into PostgreSQL: many inserts by COPY, the rest by statements over arrays, rows
//! that need each other by one statement. What is written and in which order is the engine's affair.

mod copy_in;
mod execute;
mod fitness;
mod missing_parents;
mod refusal;
pub(super) mod script;
mod sql;
mod statements;
mod suspects;
mod together;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future;

use tidewater_protocol::{Datum, Op, Value};

use self::fitness::{is_exact, unfit_value};
use self::refusal::may_be_data_error;
use self::sql::PostgresIncomingTable;
use super::acting::AssumedRole;
use super::connection::PostgresConnection;
use super::publication::{PostgresTables, Publication, ServedTable};
use super::system_statement::run_all;
use super::table_statement::ArrayRows;
use super::values::PostgresType;
use super::waits::HURRIED_MS;
use super::{FINGERPRINTS, PostgresShared, fill_random};
use crate::driver_error::{centre_error, statement_failed};
use tidewater_centre::engine::assumed_role;
use tidewater_centre::engine::connection::SystemStatement;
use tidewater_centre::engine::flight::{FlightStep, RowParameters as _, TableStatement};
use tidewater_centre::engine::scripts;
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::upload_writer::{
    BatchOutcome, CyclePart, MayWrite, MetRow, ParentReference, RowBatch, RowImage, RowSet,
    ScriptOutcome, UploadWriter,
};
use tidewater_centre::error::CentreError;
use tidewater_centre::trying::ChangedTable;

/// How often a transaction that met a deadlock is tried.
const ATTEMPTS: u32 = 10;

/// Constraints that are deferred from the start are so again for the next upload.
const DEFER_AGAIN: &str = "
DO $$ DECLARE c record; BEGIN
FOR c IN SELECT DISTINCT n.nspname, o.conname FROM pg_catalog.pg_constraint o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.connamespace WHERE o.condeferred
LOOP EXECUTE format('SET CONSTRAINTS %I.%I DEFERRED', c.nspname, c.conname); END LOOP; END $$";

/// The transaction's number.
const TRANSACTION: &str = "SELECT pg_catalog.pg_current_xact_id()::text";

type Result<T> = std::result::Result<T, CentreError>;

/// Writes uploads on a connection.
pub(super) struct UploadRows<'c> {
    connection: &'c mut PostgresConnection,
    shared: &'c PostgresShared,
    /// When the list was handed over.
    now_ms: i64,
    /// The transaction has begun.
    has_begun: bool,
    /// An upload has waited for a lock in vain.
    hurries: bool,
    /// The transaction's.
    version: u64,
    /// Reads and writes the application's tables for this upload.
    acting: AssumedRole,
    /// The tables of the upload as they are now.
    live: Vec<LiveTable>,
    /// Whether every row so far is in the centre as it was uploaded.
    exact: bool,
    /// Room to try values in.
    encoded: Vec<u8>,
}

/// A table as it is now; nobody can change it before the transaction ends.
#[derive(Clone, Copy, Default)]
struct LiveTable {
    oid: u32,
    /// Whether table and triggers are still those that were loaded.
    as_loaded: bool,
    /// A trigger can change the key of a row before it is inserted, or keep it out.
    edits_inserts: bool,
    /// A unique constraint can be deferred: `ON CONFLICT` does not work then.
    defers_unique: bool,
    /// Row security holds for us: COPY does not work then.
    row_security: bool,
    /// What a default, a check or an index computes may depend on who uploads: it calls functions
    /// of the application, or looks at settings.
    calls_application: bool,
    /// A trigger can do something else than delete a row.
    keeps_deletes: bool,
    /// There are policies for rows, which hold for some roles.
    has_policies: bool,
}

/// What is found out when tables are opened.
#[derive(Default)]
pub(super) struct LiveTables {
    /// The transaction's.
    version: u64,
    tables: Vec<LiveTable>,
    /// The tables that are looked at.
    oids: Option<ArrayRows>,
}

impl LiveTable {
    /// Reads what [`FINGERPRINTS`] tells of a table.
    fn read(row: &[Datum<'_>], tables: &[PostgresIncomingTable<'_>]) -> LiveTable {
        let is = |at: usize| row[at] == Datum::Boolean(true);
        let oid = match row[0] {
            Datum::Integer(oid) => u32::try_from(oid).unwrap_or(0),
            _ => 0,
        };
        let loaded = tables.iter().find(|it| it.table.details.oid == oid);
        LiveTable {
            oid,
            as_loaded: loaded
                .is_some_and(|it| row[1] == Datum::Text(&it.table.details.fingerprint)),
            edits_inserts: is(2),
            defers_unique: is(3),
            row_security: is(4),
            calls_application: is(5),
            keeps_deletes: is(6),
            has_policies: is(7),
        }
    }
}

impl<'c> UploadRows<'c> {
    pub(super) fn new(
        connection: &'c mut PostgresConnection,
        shared: &'c PostgresShared,
        now_ms: i64,
    ) -> UploadRows<'c> {
        UploadRows {
            connection,
            shared,
            now_ms,
            has_begun: false,
            hurries: false,
            version: 0,
            acting: AssumedRole::default(),
            live: Vec::new(),
            exact: true,
            encoded: Vec::new(),
        }
    }

    async fn batch_execute(&self, what: &'static str, sql: &str) -> Result<()> {
        let done = self.connection.client().batch_execute(sql).await;
        done.map_err(statement_failed(what))
    }

    /// The table as it is now.
    fn live(&self, table: &ServedTable) -> LiveTable {
        let found = self.live.iter().find(|it| it.oid == table.details.oid);
        found.copied().unwrap_or_default()
    }
}

impl UploadWriter for UploadRows<'_> {
    type Connection = PostgresConnection;
    type Tables = PostgresTables;
    type LiveTables = LiveTables;

    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
    }

    fn connection(&mut self) -> &mut PostgresConnection {
        self.connection
    }

    fn publication(&self, name: &str) -> Result<Arc<Publication>> {
        self.shared.publication(name)
    }

    async fn begin(&mut self, _: usize) -> Result<()> {
        let begin = match std::mem::replace(&mut self.has_begun, true) {
            false => "BEGIN; SAVEPOINT tidewater_upload".to_owned(),
            true if self.hurries => format!(
                "{DEFER_AGAIN}; SET LOCAL lock_timeout = {HURRIED_MS}; SAVEPOINT tidewater_upload"
            ),
            true => format!("{DEFER_AGAIN}; SAVEPOINT tidewater_upload"),
        };
        self.batch_execute("applying uploads", &begin).await
    }

    async fn store_result(&mut self, result: SystemStatement) -> Result<()> {
        let error = |error| statement_failed("storing the result of an upload")(error);
        let store = [result];
        let storing = self.connection.prepare_own(&store).await?;
        let client = self.connection.client();
        let (stored, released) = future::join(
            run_all(client, &storing, &store),
            client.batch_execute("RELEASE tidewater_upload"),
        )
        .await;
        stored.map_err(error)?;
        released.map_err(error)
    }

    fn shorten_lock_timeout(&mut self) {
        self.hurries = true;
        self.shared.waits.in_vain(self.now_ms);
    }

    async fn undo(&mut self) -> Result<()> {
        let undo = "ROLLBACK TO tidewater_upload; RELEASE tidewater_upload";
        self.batch_execute("undoing an upload", undo).await
    }

    async fn commit(&mut self) -> Result<()> {
        self.batch_execute("applying uploads", "COMMIT").await
    }

    async fn rollback_for_retry(&mut self, error: &CentreError, attempts: u32) -> Result<bool> {
        if !error.is_retryable() || attempts >= ATTEMPTS || self.connection.is_closed() {
            return Ok(false);
        }
        self.connection.forget_statements();
        self.has_begun = false;
        self.batch_execute("ending a failed upload", "ROLLBACK")
            .await?;
        // Two that met in a deadlock must not meet again at the same pace.
        let mut jitter = [0];
        let _ = fill_random(&mut jitter);
        let pause = (1 << attempts.min(7)) + u64::from(jitter[0]) / 8;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Ok(true)
    }

    fn look_at_tables<'s>(
        tables: &'s [PostgresIncomingTable<'_>],
        live: &'s mut LiveTables,
    ) -> Vec<FlightStep<'s, PostgresTables>> {
        let mut oids = ArrayRows::new(&[PostgresType::Int8]);
        for table in tables {
            oids.push(&[Datum::Integer(i64::from(table.table.details.oid))]);
        }
        let LiveTables {
            version,
            tables: found,
            oids: asked,
        } = live;
        let mut transaction = TableStatement::new("opening tables", TRANSACTION);
        transaction.yields = vec![PostgresType::Text];
        let text = FINGERPRINTS.replace("ANY($1)", "ANY($1::int8[]::oid[])");
        let mut fingerprints = TableStatement::new("opening tables", text);
        fingerprints.rows = Some(asked.insert(oids));
        fingerprints.yields = vec![PostgresType::Int8, PostgresType::Text];
        fingerprints.yields.extend([PostgresType::Bool; 6]);
        vec![
            FlightStep::table(transaction, |row| {
                *version = row[0].to_string().parse().unwrap_or(0);
                Ok(())
            }),
            FlightStep::table(fingerprints, |row| {
                found.push(LiveTable::read(row, tables));
                Ok(())
            }),
        ]
    }

    fn open_tables(
        &mut self,
        _: &Publication,
        live: LiveTables,
        role: assumed_role::AssumedRole,
    ) -> Result<()> {
        self.version = live.version;
        self.live = live.tables;
        self.acting = role.into();
        Ok(())
    }

    fn is_shared(&self, table: &PostgresIncomingTable<'_>) -> bool {
        let live = self.live(table.table);
        let effects = table.table.details.effects;
        let sets_off_more = effects.always
            || effects.on_delete && !table.deletes.is_empty()
            || effects.on_update && !(table.updates.is_empty() && table.moves.is_empty());
        live.as_loaded && !live.calls_application && !live.row_security && !sets_off_more
    }

    async fn begin_rows(&mut self, immediate: bool) -> Result<()> {
        self.exact = true;
        let begin = match immediate {
            true => "SAVEPOINT tidewater_rows; SET CONSTRAINTS ALL IMMEDIATE",
            false => "SAVEPOINT tidewater_rows",
        };
        self.batch_execute("applying an upload", begin).await
    }

    async fn undo_rows(&mut self) -> Result<()> {
        let undo = "ROLLBACK TO tidewater_rows; RELEASE tidewater_rows";
        self.batch_execute("undoing the rows of an upload", undo)
            .await
    }

    async fn is_violated(&mut self, immediate: bool) -> Result<bool> {
        // Triggers of the application fire now.
        let (enter, leave) = (self.acting.enter(), self.acting.leave());
        let check = format!("{enter}SET CONSTRAINTS ALL IMMEDIATE; {leave}");
        let checked = self.connection.client().batch_execute(&check).await;
        let is_the_rows = |error| may_be_data_error(error) || self.acting.is_denied(error);
        match checked {
            Ok(()) => Ok(false),
            Err(refusal) if immediate || !is_the_rows(&refusal) => {
                Err(centre_error("checking deferred constraints", &refusal))
            }
            Err(_) => Ok(true),
        }
    }

    /// Statements check what they can of their own rows.
    fn can_check_single_rows(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn misfit_reason(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        image: RowImage,
        row: &[Datum<'_>],
    ) -> Option<String> {
        let unfit = unfit_value(table, row, &mut self.encoded);
        if image == RowImage::New && self.exact {
            let columns = &table.table.columns;
            let mut written = table.written.iter();
            self.exact = written.all(|&index| is_exact(&columns[index], &row[index]));
        }
        unfit
    }

    async fn insert_in_bulk(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        may_write: &mut MayWrite<'_>,
    ) -> Result<bool> {
        // Row security may hold for another role; COPY does not work then.
        if self.acting.is_another() || !copy_in::is_possible(table, self.live(table.table)) {
            return Ok(false);
        }
        let loaded = copy_in::copy_in(self.connection, table, may_write).await?;
        self.exact &= loaded.unwrap_or(true);
        Ok(loaded.is_some())
    }

    async fn write(
        &mut self,
        batch: &RowBatch<'_, '_, PostgresTables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        self.write_batch(batch, rows).await
    }

    async fn find(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        op: Op,
        rows: &[RowRef],
        key: RowImage,
    ) -> Result<Vec<Option<MetRow>>> {
        self.read_by_key(table, op, rows, key).await
    }

    async fn lock_rows(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        rows: &[RowRef],
    ) -> Result<()> {
        self.lock_by_key(table, rows).await
    }

    async fn find_rows_with_children(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        self.look_for_children(table, rows, insists).await
    }

    async fn run_script(
        &mut self,
        statements: &[scripts::ScriptStatement],
        rows: &[Vec<Vec<Value>>],
    ) -> Result<Vec<ScriptOutcome>> {
        self.exact = false;
        self.run_statements(statements, rows).await
    }

    async fn run_set(
        &mut self,
        table: &ServedTable,
        statements: &[scripts::ScriptStatement],
        set: &RowSet,
    ) -> Result<ScriptOutcome> {
        self.exact = false;
        self.run_for_set(table, statements, set).await
    }

    async fn find_rows_without_parent(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        reference: &ParentReference<'_, PostgresTables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        self.select_rows_without_parent(table, reference, rows)
            .await
    }

    async fn write_cycle(&mut self, parts: &[CyclePart<'_, '_, PostgresTables>]) -> Result<bool> {
        self.apply_together(parts).await
    }

    fn may_compute_values(&self, table: &PostgresIncomingTable<'_>) -> bool {
        let as_loaded = self.live(table.table).as_loaded;
        table.table.details.effects.always || table.table.fills() || !as_loaded || !self.exact
    }

    /// PostgreSQL counts by itself.
    async fn watch_changes(&mut self) -> Result<()> {
        Ok(())
    }

    async fn changed_tables(&mut self) -> Result<Vec<ChangedTable>> {
        const COUNTED: &str = "
            SELECT relid::pg_catalog.regclass::text, n_tup_ins, n_tup_upd, n_tup_del
            FROM pg_catalog.pg_stat_xact_user_tables
            WHERE n_tup_ins + n_tup_upd + n_tup_del > 0
              AND schemaname <> 'tidewater' AND schemaname NOT LIKE 'pg\\_temp\\_%'
            ORDER BY 1";
        let counted = self.connection.client().query(COUNTED, &[]).await;
        let counted = counted.map_err(statement_failed("counting what was changed"))?;
        let count = |row: &tokio_postgres::Row, column: usize| {
            let count: i64 = row.get(column);
            count.unsigned_abs()
        };
        let changed = counted.iter().map(|row| ChangedTable {
            table: row.get(0),
            inserted: count(row, 1),
            updated: count(row, 2),
            deleted: count(row, 3),
        });
        Ok(changed.collect())
    }

    fn take_warnings(&mut self) -> u64 {
        self.connection.take_warnings()
    }

    fn version(&self, tables: &[PostgresIncomingTable<'_>], is_alone: bool) -> (u64, bool) {
        let sets_off_more = tables.iter().any(|it| {
            let effects = it.table.details.effects;
            effects.always
                || it.table.fills()
                || effects.on_delete && !it.deletes.is_empty()
                || effects.on_update && !(it.updates.is_empty() && it.moves.is_empty())
        });
        let mut tables = tables.iter();
        let as_loaded = tables.all(|it| self.live(it.table).as_loaded);
        let skip = is_alone && as_loaded && self.exact && !sets_off_more;
        (self.version, skip)
    }
}
