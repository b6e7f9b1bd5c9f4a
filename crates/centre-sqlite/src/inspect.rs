//! What explaining and previewing read of the file.

use prost::Message;
use rusqlite::params_from_iter;

use tidewater_protocol::{ColumnType, Datum, Value};

use super::connection::SqliteConnection;
use super::dialect::SqliteDialect;
use super::download::{key_parameters, values as read_values};
use super::publication::{SqliteTables, key_outputs, window_column};
use super::watermark::LogPositions;
use super::{SqliteCentre, failure, values};
use tidewater_centre::SyncContext;
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::flight::{FlightStep, TableStatement};
use tidewater_centre::engine::inspect::{
    ChangeLogEntry, ConfigurationSide, DatabaseInspection, ENTRIES_TOLD, KeyedRow, RowsDiffer,
};
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::reading::rows_of_rule;
use tidewater_centre::engine::sql::served_table::TableAdapter as _;
use tidewater_centre::engine::thread::at_once;
use tidewater_centre::engine::window::Window;
use tidewater_centre::engine::window::WindowBound;
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::Partitions;

type Result<T> = std::result::Result<T, CentreError>;

/// The keys of both sides of a difference: the connection's own, gone with it.
const SIDES: [&str; 2] = ["temp.tidewater_before", "temp.tidewater_now"];

impl DatabaseInspection for SqliteCentre {
    async fn entries(
        connection: &mut SqliteConnection,
        row: &KeyedRow<'_, SqliteTables>,
        rule: usize,
        until_ms: i64,
    ) -> Result<Vec<ChangeLogEntry>> {
        let reading = failure("reading a change log");
        let table = &row.publication.tables[row.table];
        let of_rule = &table.rules[rule];
        let (Some(_), Some(key)) = (
            &of_rule.log,
            key_parameters(row.publication, row.table, row.key),
        ) else {
            return Ok(Vec::new());
        };
        let marks = marks(connection, of_rule.log_id)?;
        let id = "id".to_owned();
        let columns = std::iter::once(&id).chain(&of_rule.log_columns.partition);
        let columns: Vec<&str> = columns.map(String::as_str).collect();
        let keys = of_rule
            .log_columns
            .key
            .iter()
            .zip(table.key_columns())
            .zip(1..);
        let keys = keys.map(|((name, column), number)| column.equals(name, &format!("?{number}")));
        let sql = format!(
            "SELECT {} FROM {} WHERE {} ORDER BY id DESC LIMIT {ENTRIES_TOLD}",
            columns.join(", "),
            of_rule.log_table(),
            keys.collect::<Vec<_>>().join(" AND ")
        );
        let types: Vec<ColumnType> = of_rule.columns.iter().map(|it| it.column_type).collect();
        let mut statement = connection.prepare(&sql).map_err(reading)?;
        let mut rows = statement.query(params_from_iter(key)).map_err(reading)?;
        let mut entries = Vec::new();
        while let Some(found) = rows.next().map_err(reading)? {
            let id: i64 = found.get(0).map_err(reading)?;
            let partition = read_values(found, 1, &types).map_err(reading)?;
            let before = marks.iter().filter(|it| it.position < id);
            let behind = marks.iter().filter(|it| it.position >= id);
            let before_ms = behind.map(|it| it.created_ms).min();
            entries.push(ChangeLogEntry {
                version: id.to_string(),
                after_ms: before.map(|it| it.created_ms).max(),
                before_ms,
                partition: partition.iter().map(Datum::to_value).collect(),
                is_covered: before_ms.is_some_and(|it| it <= until_ms),
            });
        }
        Ok(entries)
    }

    async fn difference(
        connection: &mut SqliteConnection,
        _: &SyncContext,
        sides: [Option<ConfigurationSide<'_, SqliteTables>>; 2],
        rows: usize,
    ) -> Result<Option<RowsDiffer>> {
        let mut key_types = Vec::new();
        for side in sides.iter().flatten() {
            key_types.clone_from(&side.publication.tables[side.table].details.key_types);
        }
        let counting = failure("counting the rows of a side");
        for (name, side) in SIDES.iter().zip(&sides) {
            let keys: Vec<String> = (0..key_types.len()).map(|it| format!("k{it}")).collect();
            let make = format!(
                "DROP TABLE IF EXISTS {name}; CREATE TABLE {name} ({}, PRIMARY KEY ({})) \
                 WITHOUT ROWID",
                keys.join(", "),
                keys.join(", ")
            );
            connection.execute_batch(&make).map_err(counting)?;
            if let Some(side) = side {
                fill(connection, name, side)?;
            }
        }
        let [before, now] = SIDES;
        let (added, added_keys) = only_in(connection, [now, before], &key_types, rows)?;
        let (removed, removed_keys) = only_in(connection, [before, now], &key_types, rows)?;
        for name in SIDES {
            let drop = connection.execute_batch(&format!("DROP TABLE {name}"));
            drop.map_err(counting)?;
        }
        Ok(Some(RowsDiffer {
            added,
            removed,
            added_keys,
            removed_keys,
        }))
    }
}

/// How far a change log was when a mark was made.
struct LogMark {
    created_ms: i64,
    position: i64,
}

fn marks(connection: &SqliteConnection, log: i64) -> Result<Vec<LogMark>> {
    let reading = failure("reading marks");
    let sql = "SELECT created_ms, positions FROM tidewater_centre_mark";
    let mut statement = connection.prepare(sql).map_err(reading)?;
    let mut rows = statement.query([]).map_err(reading)?;
    let mut marks = Vec::new();
    while let Some(row) = rows.next().map_err(reading)? {
        let positions: Vec<u8> = row.get(1).map_err(reading)?;
        let Ok(positions) = LogPositions::decode(&*positions) else {
            continue;
        };
        // A log that was made since was nowhere then.
        let of_log = positions.logs.iter().find(|it| it.log == log);
        marks.push(LogMark {
            created_ms: row.get(0).map_err(reading)?,
            position: of_log.map_or(0, |it| it.position),
        });
    }
    Ok(marks)
}

/// Notes the keys of the rows that a side has.
fn fill(
    connection: &mut SqliteConnection,
    name: &str,
    side: &ConfigurationSide<'_, SqliteTables>,
) -> Result<()> {
    let table = &side.publication.tables[side.table];
    let rules = &side.publication.rules[side.publication.rules_of(side.table)];
    let of_rules = table.rules.iter().enumerate();
    let keys = key_outputs(table);
    for (((number, of_table), rule), scope) in of_rules.zip(rules).zip(side.scope) {
        let everyone = Partitions::from([Vec::new()]);
        let partitions = match of_table.columns.is_empty() {
            true => &everyone,
            false => &*scope.partitions,
        };
        for partition in partitions {
            let mut arguments = ConditionArguments::new(&SqliteDialect);
            let rows = rows_of_rule(table, number, &keys);
            let mut sql = format!("INSERT OR IGNORE INTO {name} {rows}");
            if !of_table.columns.is_empty() {
                let values = unpack(partition, &rule.types)?;
                let held = SqliteTables::is_in_partitions(of_table, &[values], &mut arguments)?;
                sql.push_str(&format!(" AND {held}"));
            }
            for (window, &from) in scope.lows.iter().enumerate() {
                let of_window = &rule.windows[window];
                let column = window_column(of_table, window);
                let bound = WindowBound {
                    window,
                    from,
                    to: None,
                };
                let types = of_window.column_type;
                let held = SqliteTables::is_in_window(of_table, &bound, types, &mut arguments);
                let position = is_position(of_window, &column);
                sql.push_str(&format!(" AND {position} AND {held}"));
                if from > i64::MIN {
                    sql.push_str(&is_behind(of_window, &column, from));
                }
            }
            let mut statement = TableStatement::new("counting the rows of a side", sql);
            statement.arguments = arguments.into_list();
            let step = FlightStep::table(statement, |_| Ok(()));
            at_once(async {
                let filled = connection
                    .run("counting the rows of a side", vec![step])
                    .await;
                Ok(filled.map(drop)?)
            })?;
        }
    }
    Ok(())
}

/// Whether a window's column has something that can be in a window at all.
fn is_position(window: &Window, column: &str) -> String {
    match window.column_type {
        ColumnType::Integer => format!("typeof({column}) = 'integer'"),
        _ => format!("julianday({column}) IS NOT NULL"),
    }
}

/// Whether a moment is behind the window's beginning, of which the day alone was compared.
fn is_behind(window: &Window, column: &str, low: i64) -> String {
    match window.column_type {
        ColumnType::Timestamp | ColumnType::TimestampTz => format!(
            " AND CAST(strftime('%s', {column}) AS INTEGER) >= {}",
            low.div_euclid(1_000_000)
        ),
        _ => String::new(),
    }
}

/// How many keys are in the first of two tables only, and which the first of them are.
fn only_in(
    connection: &SqliteConnection,
    [these, others]: [&str; 2],
    types: &[ColumnType],
    rows: usize,
) -> Result<(u64, Vec<Vec<Value>>)> {
    let comparing = failure("comparing the rows of two sides");
    let only = format!("SELECT * FROM {these} EXCEPT SELECT * FROM {others}");
    let count = connection.query_row(&format!("SELECT count(*) FROM ({only})"), [], |row| {
        row.get::<_, i64>(0)
    });
    let count = count.map_err(comparing)?.unsigned_abs();
    let mut keys = Vec::new();
    if count > 0 && rows > 0 {
        let order: Vec<String> = (1..=types.len()).map(|it| it.to_string()).collect();
        let sql = format!("{only} ORDER BY {} LIMIT {rows}", order.join(", "));
        let mut statement = connection.prepare(&sql).map_err(comparing)?;
        let mut found = statement.query([]).map_err(comparing)?;
        while let Some(row) = found.next().map_err(comparing)? {
            let key = (0..types.len()).map(|at| {
                let stored = row.get_ref(at)?;
                Ok(values::read(types[at], stored).to_value())
            });
            let key: rusqlite::Result<Vec<Value>> = key.collect();
            keys.push(key.map_err(comparing)?);
        }
    }
    Ok((count, keys))
}
