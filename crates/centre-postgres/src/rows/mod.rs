//! Uploaded rows go into PostgreSQL: many inserts by COPY, the rest by statements over arrays, rows
//! that need each other by one statement. What is written and in which order is the engine's affair.

mod copy_in;
pub(super) mod refusal;

use std::sync::Arc;
use std::time::Duration;

use tidewater_protocol::Datum;

use super::array_rows::ArrayRows;
use super::connection::PostgresConnection;
use super::publication::{PostgresTables, Publication, ServedTable};
use super::values::PostgresType;
use super::{FINGERPRINTS, PostgresShared, fill_random};
use crate::driver_error::statement_failed;
use tidewater_centre::engine::flight::{FlightStep, RowParameters as _, TableStatement};
use tidewater_centre::engine::upload::incoming_rows::IncomingTable;
use tidewater_centre::engine::upload::row_batch::MayWrite;
use tidewater_centre::engine::upload::upload_driver::{TableState, UploadDriver};
use tidewater_centre::error::CentreError;

/// What is true of a row `r` that violates a CHECK or refers to nothing, by the constraints of
/// table `$1` over some of columns `$2`. What refers to rows of its own table may mean others of
/// the batch.
const CONDITION: &str = "
SELECT string_agg(CASE c.contype
  WHEN 'c' THEN format('(%s) IS FALSE', pg_catalog.pg_get_expr(c.conbin, c.conrelid))
  ELSE (SELECT format('(%s AND NOT EXISTS (SELECT FROM %s p WHERE %s))',
      string_agg(format('r.%I IS NOT NULL', a.attname), ' AND '), c.confrelid::regclass,
      string_agg(format('p.%I = r.%I', b.attname, a.attname), ' AND '))
    FROM unnest(c.conkey, c.confkey) AS k (own, other)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.own
    JOIN pg_catalog.pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = k.other)
  END, ' OR ')
FROM pg_catalog.pg_constraint c
WHERE c.conrelid = $1 AND (c.contype = 'c' OR c.contype = 'f' AND c.confrelid <> c.conrelid)
  AND c.conkey <@ ARRAY (SELECT a.attnum FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attname::text = ANY ($2))";

/// The transaction's number.
const TRANSACTION: &str = "SELECT pg_catalog.pg_current_xact_id()::text";

/// The uploaded rows of a table.
type PostgresIncomingTable<'u> = IncomingTable<'u, PostgresTables>;

type Result<T> = std::result::Result<T, CentreError>;

/// Writes uploads on a connection.
pub(super) struct UploadRows<'c> {
    connection: &'c mut PostgresConnection,
    shared: &'c PostgresShared,
    /// When the list was handed over.
    now_ms: i64,
    /// The transaction's.
    version: u64,
    /// The tables of the upload as they are now.
    live: Vec<LiveTable>,
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
            version: 0,
            live: Vec::new(),
        }
    }

    /// The table as it is now.
    fn live(&self, table: &ServedTable) -> LiveTable {
        let found = self.live.iter().find(|it| it.oid == table.details.oid);
        found.copied().unwrap_or_default()
    }
}

impl UploadDriver for UploadRows<'_> {
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
        fingerprints.rows.push(asked.insert(oids));
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

    fn open_tables(&mut self, live: LiveTables) {
        self.version = live.version;
        self.live = live.tables;
    }

    async fn insert_in_bulk(
        &mut self,
        table: &PostgresIncomingTable<'_>,
        may_write: &mut MayWrite<'_>,
    ) -> Result<Option<bool>> {
        match copy_in::is_possible(table, self.live(table.table)) {
            true => copy_in::copy_in(self.connection, table, may_write).await,
            false => Ok(None),
        }
    }

    fn table_state(&self, table: &ServedTable) -> TableState {
        let live = self.live(table);
        TableState {
            is_as_loaded: live.as_loaded,
            depends_on_caller: live.calls_application || live.row_security,
            effects: table.details.effects,
            edits_inserts: live.edits_inserts,
            keeps_deletes: live.keeps_deletes,
            defers_unique: live.defers_unique,
            hides_rows: live.has_policies,
            ..TableState::default()
        }
    }

    fn note_lock_in_the_way(&mut self) {
        self.shared.waits.in_vain(self.now_ms);
    }

    async fn pause_before_retry(&mut self, attempts: u32) {
        self.connection.forget_statements();
        // Two that met in a deadlock must not meet again at the same pace.
        let mut jitter = [0];
        let _ = fill_random(&mut jitter);
        let pause = (1 << attempts.min(7)) + u64::from(jitter[0]) / 8;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    fn version(&self) -> Option<u64> {
        Some(self.version)
    }

    fn take_warnings(&mut self) -> u64 {
        self.connection.take_warnings()
    }

    async fn violation(&mut self, table: &ServedTable, columns: &[&str]) -> Result<Option<String>> {
        let client = self.connection.client();
        let row = client
            .query_one(CONDITION, &[&table.details.oid, &columns])
            .await
            .map_err(statement_failed("looking at constraints"))?;
        Ok(row.get(0))
    }
}
