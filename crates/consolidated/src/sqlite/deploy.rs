//! What of deploying is SQLite's own: what change logs are made of, and whether that is there.

use std::sync::{Arc, PoisonError, RwLock};

use rusqlite::{Connection, OptionalExtension};

use super::compile::Compiled;
use super::database::at_once;
use super::own::spell;
use super::triggers::{Log, Of};
use super::{SqliteCentre, failure, quote, state};
use crate::engine::catalog::named;
use crate::engine::compile::columns_differ;
use crate::engine::database::ChangeLog;
use crate::engine::deploy::{FoundLog, InPlace, Loaded, Step, load};
use crate::engine::publication::compile_one;
use crate::error::CentreError;
use crate::publication::{DeployStep, PublicationSpec};
use tidewater_protocol::PublicationSchema;

use super::catalog::Catalog;

/// Publications as they are served.
pub(super) type Served = Loaded<Compiled>;

/// Writers wait for each other as long as they are asked to.
const LOCK: &str = "writers wait until it is done";

/// What is served, checked and compiled anew if the file's schema has changed since: a
/// new unique index needs a trigger of ours, a new trigger may fail half-way. A column that
/// was added and deployed by another process is left out until a new server begins: ours has
/// told remotes of the columns that there were.
///
/// # Errors
/// [`CentreError::NotDeployed`] when the file does not fit any more. Deploying has
/// remotes fetch what may have been missed.
pub(super) fn refresh(
    connection: &mut Connection,
    shared: &RwLock<Arc<Served>>,
) -> Result<Arc<Served>, CentreError> {
    let served = Arc::clone(&*shared.read().unwrap_or_else(PoisonError::into_inner));
    if served.publications.is_empty() || schema_version(connection)? == served.version {
        return Ok(served);
    }
    let fresh = at_once(load::<SqliteCentre>(connection, &served.specs));
    let mut fresh = fresh.map_err(changed_since)?;
    keep_columns(&mut fresh, connection, &served)?;
    let served = Arc::new(fresh);
    *shared.write().unwrap_or_else(PoisonError::into_inner) = served.clone();
    Ok(served)
}

/// The file fitted when the server began.
fn changed_since(error: CentreError) -> CentreError {
    match error {
        CentreError::NotDeployed { message } | CentreError::Configuration { message, .. } => {
            CentreError::NotDeployed {
                message: format!(
                    "the file was changed or deployed otherwise since the server began: {message}"
                ),
            }
        }
        other => other,
    }
}

/// Serves the columns that were served before.
fn keep_columns(
    fresh: &mut Served,
    connection: &mut Connection,
    before: &Served,
) -> Result<(), CentreError> {
    let old = before.publications.iter().map(|it| &it.schema);
    for ((now, old), spec) in fresh.publications.iter_mut().zip(old).zip(&fresh.specs) {
        if !tables_differ(old, &now.schema) {
            continue;
        }
        let catalog = Catalog::read(connection)?;
        let spec = with_columns_of(spec, old, &catalog);
        let kept = at_once(compile_one::<SqliteCentre>(connection, &spec, &catalog));
        let mut kept = kept.map_err(changed_since)?;
        if tables_differ(old, &kept.schema) {
            return Err(changed_since(CentreError::NotDeployed {
                message: format!("remotes know other columns or keys of {:?}", old.name),
            }));
        }
        for (index, table) in kept.schema.tables.iter().enumerate() {
            let mut tables = now.schema.tables.iter();
            let place = tables.position(|it| it.name == table.name);
            let place = place.ok_or_else(|| CentreError::Internal {
                message: format!("the table {:?} was deployed and is not there", table.name),
            })?;
            kept.rules[index].id = now.rules[place].id;
            kept.tables[index].log.clone_from(&now.tables[place].log);
        }
        *now = Arc::new(kept);
    }
    Ok(())
}

/// Whether remotes that know one schema would be told of other tables, columns or keys by the
/// other.
fn tables_differ(old: &PublicationSchema, new: &PublicationSchema) -> bool {
    old.tables.len() != new.tables.len()
        || old.tables.iter().any(|old| {
            new.table(&old.name)
                .is_none_or(|new| columns_differ(old, new) || old.partition != new.partition)
        })
}

/// A publication that names its columns: those that a schema has.
fn with_columns_of(
    spec: &PublicationSpec,
    schema: &PublicationSchema,
    catalog: &Catalog,
) -> PublicationSpec {
    let mut spec = spec.clone();
    for table in &mut spec.tables {
        let meant = named(&catalog.infos, &table.name);
        let known = meant
            .first()
            .and_then(|&it| schema.table(&catalog.infos[it].name));
        if let Some(known) = known {
            let columns = known.columns.iter().map(|column| column.name.clone());
            table.columns = Some(columns.collect());
        }
    }
    spec
}

/// SQLite's counter of schema changes.
pub(super) fn schema_version(connection: &Connection) -> Result<i64, CentreError> {
    connection
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(failure("reading the schema's version"))
}

/// Readers must not wait for writers: that takes the write-ahead log.
pub(super) fn use_write_ahead_log(
    connection: &Connection,
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

/// The lock that a step takes.
pub(super) fn lock() -> String {
    LOCK.into()
}

fn of<'c>(log: &Log, catalog: &'c Catalog) -> Option<Of<'c>> {
    let place = catalog.infos.iter().position(|it| it.name == log.table)?;
    Some(Of {
        info: &catalog.infos[place],
        table: &catalog.tables[place],
    })
}

/// A text as an SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The SQL that makes a change log.
pub(super) fn make_log(log: &Log, id: i64, catalog: &Catalog) -> String {
    let log = Log { id, ..log.clone() };
    let objects = of(&log, catalog).map(|of| log.objects(of));
    let objects = objects.into_iter().flatten().map(|it| it.sql + ";\n");
    let sql: String = objects.collect();
    format!(
        "{sql}INSERT INTO tidewater_change_log (id, table_name, identity) VALUES ({id}, {}, {});\n",
        literal(&log.table),
        literal(&log.identity())
    )
}

/// The SQL that has remotes fetch a log's table: nobody has come to an entry that is made now.
pub(super) fn everything(id: i64) -> String {
    let table = quote(&state::log_table(id));
    format!(
        "INSERT INTO {table} DEFAULT VALUES;
         UPDATE tidewater_change_log SET everything = (SELECT max(id) FROM {table})
         WHERE id = {id};\n"
    )
}

/// What there is of change logs.
pub(super) fn in_place(
    connection: &Connection,
    catalog: &Catalog,
    wanted: &[Log],
) -> rusqlite::Result<InPlace> {
    let mut statement = connection
        .prepare("SELECT id, table_name, identity FROM tidewater_change_log ORDER BY id")?;
    let listed = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut logs = Vec::new();
    for listed in listed {
        let (id, table, identity): (i64, String, String) = listed?;
        let found = objects(connection, &state::log_table(id))?;
        let log = wanted.iter().find(|it| it.identity() == identity);
        let log = log.map(|log| Log { id, ..log.clone() });
        let whole = log.and_then(|log| Some(log.objects(of(&log, catalog)?)));
        let is_whole = whole.is_some_and(|whole| {
            let is_there = |name: &str, sql: &str| {
                let mut found = found.iter();
                found.any(|it| it.name == name && it.sql == sql)
            };
            found.len() == whole.len() && whole.iter().all(|it| is_there(&it.name, &it.sql))
        });
        logs.push(FoundLog {
            id,
            table,
            identity,
            is_whole,
            removal: removal(&found)
                + &format!("DELETE FROM tidewater_change_log WHERE id = {id};\n"),
        });
    }
    // Numbers are not used twice: a watermark may still name one.
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'tidewater_change_log'";
    let last: Option<i64> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(InPlace {
        logs,
        next: last.unwrap_or(0) + 1,
        mends: Vec::new(),
    })
}

/// What removes every trace.
pub(super) fn traces(connection: &Connection) -> Result<Vec<Step>, CentreError> {
    let reading = failure("looking for what is deployed");
    let step = |what: &str, sql| Step::sql(what.to_owned(), lock(), sql);
    let mut steps = Vec::new();
    // Also those that are in no list, because somebody dropped the list.
    let logs = objects(connection, &state::log_prefix()).map_err(reading)?;
    if !logs.is_empty() {
        steps.push(step(
            "drop the change logs and their triggers",
            removal(&logs),
        ));
    }
    let tables = state::tables(connection)?;
    if !tables.is_empty() {
        let drops = tables
            .iter()
            .map(|it| format!("DROP TABLE {};\n", spell(it)));
        let what = "drop the server's state: users, remotes, history";
        steps.push(step(what, drops.collect()));
    }
    Ok(steps)
}

/// Something of a change log that is in the file.
struct Found {
    kind: String,
    name: String,
    sql: String,
}

/// The parts of the change log of a name, triggers first.
fn objects(connection: &Connection, name: &str) -> rusqlite::Result<Vec<Found>> {
    connection
        .prepare_cached(
            "SELECT type, name, sql FROM sqlite_schema
             WHERE name = ?1 OR name GLOB ?1 || CASE WHEN ?1 GLOB '*_' THEN '[0-9]*' ELSE '_*' END
             ORDER BY type DESC, name",
        )?
        .query_map([name], |row| {
            Ok(Found {
                kind: row.get(0)?,
                name: row.get(1)?,
                sql: row.get(2)?,
            })
        })?
        .collect()
}

/// The SQL that removes parts of change logs; an index goes with its table.
fn removal(found: &[Found]) -> String {
    let found = found.iter().filter(|it| it.kind != "index");
    let drops = found.map(|it| format!("DROP {} {};\n", it.kind, quote(&it.name)));
    drops.collect()
}
