//! What change logs are made of in a file, and what of deploying is SQLite's own.

use prost::Message;
use rusqlite::OptionalExtension;

use tidewater_protocol::Table;

use super::catalog::{self, SqliteCatalog};
use super::connection::SqliteConnection;
use super::dialect::SqliteDialect;
use super::literal;
use super::publication::{Publication, ServedTable, SqliteTables, served_table};
use super::recorded_log::RecordedLog;
use super::served::schema_version;
use super::watermark::LogPositions;
use super::{SqliteCentre, failure, numbers, prune, quote, scope_sources, state};
use tidewater_centre::deploy_report::DeployStep;
use tidewater_centre::engine::change_log::ChangeLog;
use tidewater_centre::engine::change_tracking::{ChangeTracking, NumberBlockRequest, PruningStart};
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::connection::{self, SystemStatement, each, system_row};
use tidewater_centre::engine::deployment_step::{
    DeploymentStep, ExistingChangeLogs, FoundLog, ScopeSources,
};
use tidewater_centre::engine::scope_query::ScopeQuery;
use tidewater_centre::engine::sql::sql_dialect::{SqlDialect as _, StepLock};
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_centre::engine::state::own_tables;
use tidewater_centre::error::CentreError;
use tidewater_centre::records::KeylessRows;

/// The columns of a change log's table, in order: name, type, NOT NULL and default.
const COLUMNS: &str = "SELECT json_group_array(json_array(name, type, \"notnull\", dflt_value))
  FROM (SELECT * FROM pragma_table_xinfo(table_name) ORDER BY cid)";

/// Whether the columns that there were and still are have not been made again: then they would
/// stand behind the others, or be declared otherwise. What came and went is no matter.
fn has_same_columns(before: &str, now: &str) -> bool {
    type Columns = Vec<(String, String, i64, Option<String>)>;
    let read = |text: &str| serde_json::from_str::<Columns>(text).unwrap_or_default();
    let (before, now) = (read(before), read(now));
    let among = |columns: &Columns, others: &Columns| -> Columns {
        let kept = columns.iter();
        let kept = kept.filter(|it| others.iter().any(|other| other.0 == it.0));
        kept.cloned().collect()
    };
    among(&before, &now) == among(&now, &before)
}

impl ChangeTracking for SqliteCentre {
    type Connection = SqliteConnection;
    type Catalog = SqliteCatalog;
    type Tables = SqliteTables;
    type Log = RecordedLog;

    const UNSEEN: Option<&str> = None;
    const LOGS: &[&str] = state::LOGS;

    async fn catalog(connection: &mut SqliteConnection) -> Result<SqliteCatalog, CentreError> {
        SqliteCatalog::read(connection)
    }

    fn table(published: &CompiledTable<'_>, _: &Table, catalog: &SqliteCatalog) -> ServedTable {
        served_table(published, catalog)
    }

    async fn take_numbers(
        connection: &mut SqliteConnection,
        asked: NumberBlockRequest<'_>,
        table: &ServedTable,
    ) -> Result<Vec<(i64, i64)>, CentreError> {
        numbers::take(connection, asked, &table.title).map_err(failure("taking numbers"))
    }

    async fn scope_sources(
        connection: &mut SqliteConnection,
        catalog: &SqliteCatalog,
        queries: &[&ScopeQuery],
    ) -> Result<ScopeSources, CentreError> {
        let found = scope_sources::find(connection, catalog, queries);
        found.map_err(failure("looking what partition queries read"))
    }

    async fn found_tables(
        connection: &mut SqliteConnection,
        wanted: &[&'static str],
    ) -> Result<Vec<&'static str>, CentreError> {
        let found = state::found(connection, wanted);
        found.map_err(failure("looking for the server's tables"))
    }

    async fn prepare(
        connection: &mut SqliteConnection,
        dry_run: bool,
    ) -> Result<Vec<DeployStep>, CentreError> {
        use_write_ahead_log(connection, dry_run)
    }

    async fn begin_alone(connection: &mut SqliteConnection) -> Result<(), CentreError> {
        let begun =
            connection::DatabaseConnection::begin(connection, connection::TransactionMode::WRITING)
                .await;
        begun.map_err(|error| match error {
            CentreError::Locked { .. } => CentreError::Locked {
                message: "the database file is locked by another connection; nothing was changed"
                    .into(),
            },
            error => error,
        })
    }

    async fn in_place(
        connection: &mut SqliteConnection,
        catalog: &SqliteCatalog,
        wanted: &[RecordedLog],
    ) -> Result<ExistingChangeLogs, CentreError> {
        let found = in_place(connection, catalog, wanted);
        found.map_err(failure("reading the list of change logs"))
    }

    fn make_log(log: &RecordedLog, id: i64, catalog: &SqliteCatalog) -> Vec<String> {
        let log = log.with_id(id);
        let listed = format!(
            "INSERT INTO tidewater_centre_change_log (id, table_name, identity)
             VALUES ({id}, {}, {})",
            literal(&log.table),
            literal(&log.identity())
        );
        let objects = log.objects(catalog).into_iter().map(|it| it.sql);
        std::iter::once(listed).chain(objects).collect()
    }

    /// Nobody has come to an entry that is made now.
    fn everything(id: i64) -> Vec<String> {
        let table = quote(&state::log_table(id));
        vec![
            format!("INSERT INTO {table} DEFAULT VALUES"),
            format!(
                "UPDATE tidewater_centre_change_log SET everything = (SELECT max(id) FROM {table})
                 WHERE id = {id}"
            ),
        ]
    }

    fn deployed(_: &[Publication]) -> Vec<String> {
        vec![format!(
            "UPDATE tidewater_centre_change_log SET columns = ({COLUMNS})"
        )]
    }

    async fn traces(connection: &mut SqliteConnection) -> Result<Vec<DeploymentStep>, CentreError> {
        let reading = failure("looking for what is deployed");
        let step = |what: &str, sql| {
            DeploymentStep::sql(
                what.to_owned(),
                SqliteDialect.lock_title(StepLock::Everybody, ""),
                sql,
            )
        };
        let mut steps = Vec::new();
        // Also those that are in no list, because somebody dropped the list.
        let logs = objects(connection, &state::log_prefix()).map_err(reading)?;
        if !logs.is_empty() {
            steps.push(step(
                "drop the change logs and their triggers",
                removal(&logs),
            ));
        }
        steps.extend(scope_sources::traces(connection).map_err(reading)?);
        let tables = state::found(connection, &own_tables::<Self>()).map_err(reading)?;
        if !tables.is_empty() {
            let drops = tables.iter().map(|it| SqliteDialect.drop_table(it));
            let what = "drop the server's state: users, remotes, history";
            steps.push(step(what, drops.collect()).of_state());
        }
        Ok(steps)
    }

    async fn complete(_: &mut SqliteConnection, _: &mut [Publication]) -> Result<(), CentreError> {
        Ok(())
    }

    async fn version<'t>(
        connection: &mut SqliteConnection,
        _: impl Iterator<Item = &'t ServedTable> + Send,
    ) -> Result<String, CentreError> {
        schema_version(connection)
    }

    fn ask_pruned(position: &[u8]) -> Vec<SystemStatement> {
        let positions = LogPositions::decode(position).unwrap_or_default();
        let pruned = "SELECT v.n FROM {rows INTEGER INTEGER}
            JOIN tidewater.change_log ON id = v.c1 AND floor > v.c2";
        let logs = positions.logs.iter();
        logs.map(|it| each(pruned, vec![system_row![it.log, it.position]]))
            .collect()
    }

    async fn keyless_rows(
        connection: &mut SqliteConnection,
        tables: &[String],
    ) -> Result<Vec<KeylessRows>, CentreError> {
        catalog::keyless_rows(connection, tables)
    }

    async fn log_sizes(
        connection: &mut SqliteConnection,
    ) -> Result<Vec<(String, u64)>, CentreError> {
        prune::log_sizes(connection)
    }

    async fn about_log_sizes(
        connection: &mut SqliteConnection,
    ) -> Result<Vec<(String, u64)>, CentreError> {
        prune::about_log_sizes(connection)
    }

    async fn begin_pruning(connection: &mut SqliteConnection) -> Result<PruningStart, CentreError> {
        prune::begin(connection)
    }

    async fn prune_logs(
        connection: &mut SqliteConnection,
        before_ms: i64,
        now_ms: i64,
        random: [u8; 16],
        entries: &mut u64,
    ) -> Result<(), CentreError> {
        prune::logs(connection, before_ms, now_ms, random, entries)
    }
}

/// Readers must not wait for writers: that takes the write-ahead log.
pub(super) fn use_write_ahead_log(
    connection: &SqliteConnection,
    dry_run: bool,
) -> Result<Vec<DeployStep>, CentreError> {
    let switching = failure("switching to the write-ahead log");
    let mode = |sql: &str| {
        let mode: Result<String, _> = connection.query_row(sql, [], |row| row.get(0));
        mode.map_err(switching)
    };
    if mode("PRAGMA journal_mode")? == "wal" {
        return Ok(Vec::new());
    }
    if !dry_run && mode("PRAGMA journal_mode = WAL")? != "wal" {
        return Err(CentreError::Configuration {
            message: "the file cannot be switched to write-ahead logging".into(),
            hint: "put it on a local disk and close other programs that use it".into(),
        });
    }
    Ok(vec![DeployStep {
        description: "switch the file to write-ahead logging".into(),
        lock: "the whole file, for a moment".into(),
    }])
}

/// See [`ChangeTracking::in_place`].
fn in_place(
    connection: &SqliteConnection,
    catalog: &SqliteCatalog,
    wanted: &[RecordedLog],
) -> rusqlite::Result<ExistingChangeLogs> {
    let mut statement = connection
        .prepare(&format!(
            "SELECT id, table_name, identity, columns, ({COLUMNS}) FROM tidewater_centre_change_log ORDER BY id"
        ))?;
    let listed = statement.query_map([], |row| {
        let same = has_same_columns(&row.get::<_, String>(3)?, &row.get::<_, String>(4)?);
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, same))
    })?;
    let mut logs = Vec::new();
    for listed in listed {
        let (id, table, identity, has_same_columns): (i64, String, String, bool) = listed?;
        let found = objects(connection, &state::log_table(id))?;
        let log = wanted.iter().find(|it| it.identity() == identity);
        let log = log.map(|log| log.with_id(id));
        let whole = log.map(|log| log.objects(catalog));
        let is_whole = whole.is_some_and(|whole| {
            let is_there = |name: &str, sql: &str| {
                let mut found = found.iter();
                found.any(|it| it.name == name && it.sql == sql)
            };
            has_same_columns
                && found.len() == whole.len()
                && whole.iter().all(|it| is_there(&it.name, &it.sql))
        });
        let mut removal = removal(&found);
        removal.push(format!(
            "DELETE FROM tidewater_centre_change_log WHERE id = {id}"
        ));
        logs.push(FoundLog {
            id,
            table,
            identity,
            is_whole,
            removal,
        });
    }
    // Numbers are not used twice: a watermark may still name one.
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'tidewater_centre_change_log'";
    let last: Option<i64> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(ExistingChangeLogs {
        logs,
        next: last.unwrap_or(0) + 1,
        mends: Vec::new(),
    })
}

/// Something of a change log that is in the file.
struct LogRemnant {
    kind: String,
    name: String,
    sql: String,
}

/// The parts of the change log of a name, triggers first.
fn objects(connection: &SqliteConnection, name: &str) -> rusqlite::Result<Vec<LogRemnant>> {
    connection
        .prepare_cached(
            "SELECT type, name, sql FROM sqlite_schema
             WHERE name = ?1 OR name GLOB ?1 || CASE WHEN ?1 GLOB '*_' THEN '[0-9]*' ELSE '_*' END
             ORDER BY type DESC, name",
        )?
        .query_map([name], |row| {
            Ok(LogRemnant {
                kind: row.get(0)?,
                name: row.get(1)?,
                sql: row.get(2)?,
            })
        })?
        .collect()
}

/// The statements that remove parts of change logs; an index goes with its table.
fn removal(found: &[LogRemnant]) -> Vec<String> {
    let found = found.iter().filter(|it| it.kind != "index");
    let drops = found.map(|it| format!("DROP {} {}", it.kind, quote(&it.name)));
    drops.collect()
}
