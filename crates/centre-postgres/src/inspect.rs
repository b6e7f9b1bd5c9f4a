//! What explaining and previewing read of the database.

use tokio_postgres::types::ToSql;

use tidewater_protocol::Datum;

use super::PostgresCentre;
use super::array::Array;
use super::connection::PostgresConnection;
use super::decoder::RowDecoder;
use super::dialect::PostgresDialect;
use super::partition_condition::{is_in_partitions, is_in_window};
use super::publication::{PostgresTables, ServedTable};
use super::values::PostgresType;
use crate::column::PgColumn;
use crate::driver_error::statement_failed;
use tidewater_centre::SyncContext;
use tidewater_centre::engine::assumed_role::ask_role;
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::flight::{FlightStep, StatementUse, TableStatement};
use tidewater_centre::engine::inspect::{
    ChangeLogEntry, ConfigurationSide, DatabaseInspection, ENTRIES_TOLD, KeyedRow, RowsDiffer,
};
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::reading::rows_of_rule;
use tidewater_centre::engine::sql::served_table::log_column;
use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;
use tidewater_centre::engine::window::WindowBound;
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// The number of a mark's transaction, of which a row keeps the lower half: no mark is from a
/// transaction that has not begun.
const MARKS: &str = "
marks AS MATERIALIZED (SELECT m.created_ms, n.next - (n.next - m.xmin::text::int8) % 4294967296 AS version
  FROM tidewater.mark m, (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS next) n)";

/// When a version `l.version` was made, as far as horizons, marks and PostgreSQL itself tell: after
/// which time, before which one, and whether a mark was made until `$1` that began after it.
const MADE: &str = "
greatest((SELECT max(h.at_ms) FROM tidewater.horizon h WHERE h.next_to_begin <= l.version),
  (SELECT max(m.created_ms) FROM marks m WHERE m.version < l.version::text::int8),
  {committed}),
least((SELECT min(h.at_ms) FROM tidewater.horizon h WHERE h.oldest_running > l.version), {committed}),
EXISTS (SELECT FROM marks m WHERE m.created_ms <= $1 AND m.version > l.version::text::int8)";

/// When a version was committed, if PostgreSQL keeps that.
const COMMITTED: &str = "(CASE WHEN pg_catalog.current_setting('track_commit_timestamp') = 'on'
  THEN (extract(epoch FROM pg_catalog.pg_xact_commit_timestamp(
    (l.version::text::int8 % 4294967296)::text::xid)) * 1000)::int8 END)";

impl DatabaseInspection for PostgresCentre {
    async fn entries(
        connection: &mut PostgresConnection,
        row: &KeyedRow<'_, PostgresTables>,
        rule: usize,
        until_ms: i64,
    ) -> Result<Vec<ChangeLogEntry>> {
        let table = &row.publication.tables[row.table];
        let of_rule = &table.rules[rule];
        let Some(key) = key_arrays(table, row.key).filter(|_| of_rule.log.is_some()) else {
            return Ok(Vec::new());
        };
        let partition = of_rule.columns.iter().enumerate().map(|(at, column)| {
            let read = match column.kind {
                // It has no equality.
                PostgresType::Json => "text",
                kind => kind.parameter().1,
            };
            format!(", l.{}::{read}", log_column(at))
        });
        let sql = format!(
            "WITH {MARKS} SELECT l.version::text, {}{} FROM {} JOIN {} l ON {} \
             ORDER BY l.version DESC LIMIT {ENTRIES_TOLD}",
            MADE.replace("{committed}", COMMITTED),
            partition.collect::<String>(),
            asked_key(table, 2),
            of_rule.log_table(),
            is_key(table, |at, _| format!("l.{}", of_rule.log_columns.key[at]))
        );
        let statement = connection.prepare(&sql, &[]).await?;
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&until_ms];
        parameters.extend(key.iter().map(|it| it as &(dyn ToSql + Sync)));
        let rows = connection.client().query(&statement, &parameters).await;
        let rows = rows.map_err(statement_failed("reading a change log"))?;
        let mut decoder = RowDecoder::new(of_rule.columns.iter().map(|it| it.kind));
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut values = Vec::new();
            decoder.result(row, 4, &mut values)?;
            entries.push(ChangeLogEntry {
                version: row.get(0),
                after_ms: row.get(1),
                before_ms: row.get(2),
                is_covered: row.get(3),
                partition: values.iter().map(Datum::to_value).collect(),
            });
        }
        Ok(entries)
    }

    async fn difference(
        connection: &mut PostgresConnection,
        context: &SyncContext,
        sides: [Option<ConfigurationSide<'_, PostgresTables>>; 2],
        rows: usize,
    ) -> Result<Option<RowsDiffer>> {
        let mut roles = Vec::new();
        let mut keyed = None;
        for side in sides.iter().flatten() {
            roles.push(ask_role(connection, side.publication, context).await?);
            keyed = Some(&side.publication.tables[side.table]);
        }
        let (Some(table), Some(acting)) = (keyed, roles.first()) else {
            return Ok(Some(RowsDiffer::default()));
        };
        if roles.iter().any(|it| it.role() != acting.role()) {
            return Ok(None);
        }
        let remote = context.remote_id.to_string();
        let says = PostgresDialect.say_caller(&context.user, &remote, true);
        connection.flight("saying who syncs", &says).await?;
        let mut keys = Vec::with_capacity(2);
        for side in &sides {
            keys.push(match side {
                Some(side) => side_keys(side)?,
                None => format!(
                    "SELECT {} FROM {} t WHERE false",
                    outputs(table),
                    table.sql_name
                ),
            });
        }
        let only = |these: usize, others: usize| format!("{} EXCEPT {}", keys[these], keys[others]);
        let (added, removed) = (only(1, 0), only(0, 1));
        let mut differ = RowsDiffer::default();
        let mut counts = TableStatement::new(
            "counting rows",
            format!(
                "SELECT (SELECT count(*) FROM ({added}) a), (SELECT count(*) FROM ({removed}) r)"
            ),
        );
        counts.yields = vec![PostgresType::Int8; 2];
        counts.usage = StatementUse::Once;
        let counted = FlightStep::table(counts, |row| {
            if let [Datum::Integer(added), Datum::Integer(removed)] = row {
                (differ.added, differ.removed) = (added.unsigned_abs(), removed.unsigned_abs());
            }
            Ok(())
        });
        acting.run(connection, counted).await?;
        for (count, only, told) in [
            (differ.added, &added, &mut differ.added_keys),
            (differ.removed, &removed, &mut differ.removed_keys),
        ] {
            if count == 0 || rows == 0 {
                continue;
            }
            let order: Vec<String> = (1..=table.key.len()).map(|it| it.to_string()).collect();
            let some = format!("{only} ORDER BY {} LIMIT {rows}", order.join(", "));
            let mut some = TableStatement::new("counting rows", some);
            some.yields = table.key_columns().map(|it| it.kind).collect();
            some.usage = StatementUse::Once;
            let found = FlightStep::table(some, |key| {
                told.push(key.iter().map(Datum::to_value).collect());
                Ok(())
            });
            acting.run(connection, found).await?;
        }
        Ok(Some(differ))
    }
}

/// A key as parameters, each an array of one; `None` if no row can have it.
fn key_arrays(table: &ServedTable, key: &[Datum<'_>]) -> Option<Vec<Array>> {
    let columns = table.key.iter().zip(key);
    let arrays = columns.map(|(&index, value)| {
        let mut array = Array::new(table.columns[index].kind);
        array.push(value).ok()?;
        Some(array)
    });
    arrays.collect()
}

/// The relation `i` of that key, in parameters from this number on.
fn asked_key(table: &ServedTable, first: usize) -> String {
    let parameters = table.key.iter().zip(first..);
    let parameters = parameters.map(|(&it, at)| Array::parameter(table.columns[it].kind, at));
    let names: Vec<String> = (0..table.key.len()).map(|at| format!("k{at}")).collect();
    format!(
        "unnest({}) AS i({})",
        parameters.collect::<Vec<_>>().join(", "),
        names.join(", ")
    )
}

/// Whether columns, which are told by the number of the key's column, are that key.
fn is_key(table: &ServedTable, column: impl Fn(usize, &PgColumn) -> String) -> String {
    let columns = table.key.iter().enumerate().map(|(at, &index)| {
        let of = &table.columns[index];
        of.equals(&column(at, of), &format!("i.k{at}"))
    });
    columns.collect::<Vec<_>>().join(" AND ")
}

/// The key's columns as results in binary form.
fn outputs(table: &ServedTable) -> String {
    let outputs = table.key.iter();
    let outputs = outputs.map(|&it| table.columns[it].output("t."));
    outputs.collect::<Vec<_>>().join(", ")
}

/// The query for the keys of the rows that a side has.
fn side_keys(side: &ConfigurationSide<'_, PostgresTables>) -> Result<String> {
    let table = &side.publication.tables[side.table];
    let rules = &side.publication.rules[side.publication.rules_of(side.table)];
    let outputs = outputs(table);
    let mut queries = Vec::with_capacity(rules.len());
    for (number, (rule, scope)) in rules.iter().zip(side.scope).enumerate() {
        let of_table = &table.rules[number];
        let mut query = rows_of_rule(table, number, &outputs);
        if !of_table.columns.is_empty() {
            let partitions = scope.partitions.iter();
            let partitions = partitions.map(|it| unpack(it, &rule.types));
            let partitions = partitions.collect::<Result<Vec<_>>>()?;
            query.push_str(&match partitions.is_empty() {
                true => " AND false".to_owned(),
                false => format!(
                    " AND {}",
                    is_in_partitions(&of_table.alias, &of_table.columns, &partitions)
                ),
            });
        }
        for (window, (of_window, &from)) in rule.windows.iter().zip(&scope.lows).enumerate() {
            let bound = WindowBound {
                window,
                from,
                to: None,
            };
            let condition = is_in_window(&of_table.windows[window], &bound, of_window.column_type);
            query.push_str(&format!(" AND {condition}"));
        }
        queries.push(query);
    }
    Ok(format!("(SELECT * FROM ({}) u)", queries.join(" UNION ")))
}
