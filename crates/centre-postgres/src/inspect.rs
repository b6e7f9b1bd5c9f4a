//! What explaining and previewing read of the database.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use tidewater_protocol::{Datum, Value};

use super::PostgresCentre;
use super::acting::{AssumedRole, RoleQuery};
use super::array::Array;
use super::catalog::PostgresCatalog;
use super::connection::PostgresConnection;
use super::decoder::RowDecoder;
use super::download::held_rows;
use super::publication::{PostgresTables, Publication, ServedTable};
use super::values::PostgresType;
use crate::caller::WHO;
use crate::column::PgColumn;
use crate::driver_error::statement_failed;
use tidewater_centre::SyncContext;
use tidewater_centre::engine::inspect::{
    ChangeLogEntry, ConfigurationSide, DatabaseInspection, ENTRIES_TOLD, InspectedCell, KeyedRow,
    RowsDiffer,
};
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::served_table::log_column;
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
    async fn cells(
        connection: &mut PostgresConnection,
        catalog: &PostgresCatalog,
        row: &KeyedRow<'_, PostgresTables>,
        cells: &[InspectedCell],
    ) -> Result<Option<Vec<Value>>> {
        let table = &row.publication.tables[row.table];
        let Some(key) = key_arrays(table, row.key) else {
            return Ok(None);
        };
        let columns = cells.iter().map(|cell| {
            let alias = match cell.level {
                0 => "t".to_owned(),
                level => format!("r{}_a{level}", cell.rule),
            };
            let column = &catalog.tables[cell.table].columns[cell.column];
            (column.output(&format!("{alias}.")), column.kind)
        });
        let (outputs, kinds): (Vec<String>, Vec<PostgresType>) = columns.unzip();
        let sql = format!(
            "SELECT {} FROM {} JOIN {} ON {}",
            outputs.join(", "),
            asked_key(table, 1),
            table.joined(),
            is_key(table, |_, column| format!("t.{}", column.sql))
        );
        let statement = connection.prepare(&sql, &[]).await?;
        let parameters: Vec<&(dyn ToSql + Sync)> = key.iter().map(|it| it as _).collect();
        let found = connection.client().query_opt(&statement, &parameters).await;
        let Some(found) = found.map_err(statement_failed("reading a row"))? else {
            return Ok(None);
        };
        let mut decoder = RowDecoder::new(kinds);
        let mut datums = Vec::new();
        decoder.result(&found, 0, &mut datums)?;
        Ok(Some(datums.iter().map(Datum::to_value).collect()))
    }

    async fn seen(
        connection: &mut PostgresConnection,
        row: &KeyedRow<'_, PostgresTables>,
        context: &SyncContext,
    ) -> Result<Option<(String, bool)>> {
        let acting = acting(connection, row.publication, context).await?;
        let table = &row.publication.tables[row.table];
        let Some(key) = key_arrays(table, row.key).filter(|_| acting.is_another()) else {
            return Ok(None);
        };
        let sql = format!(
            "SELECT FROM {} JOIN {} ON {}",
            asked_key(table, 1),
            table.joined(),
            is_key(table, |_, column| format!("t.{}", column.sql))
        );
        let statement = connection.prepare(&sql, &[]).await?;
        let parameters: Vec<&(dyn ToSql + Sync)> = key.iter().map(|it| it as _).collect();
        let client = connection.client();
        let found = acting.run(client, client.query_opt(&statement, &parameters));
        let found = found.await;
        let found = found.map_err(|error| acting.unreadable("reading a row", error))?;
        Ok(Some((acting.role().to_owned(), found.is_some())))
    }

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
            roles.push(acting(connection, side.publication, context).await?);
            keyed = Some(&side.publication.tables[side.table]);
        }
        let (Some(table), Some(acting)) = (keyed, roles.first()) else {
            return Ok(Some(RowsDiffer::default()));
        };
        if roles.iter().any(|it| it.role() != acting.role()) {
            return Ok(None);
        }
        say_who(connection, context).await?;
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
        let differ =
            |these: usize, others: usize| format!("{} EXCEPT {}", keys[these], keys[others]);
        let (added, removed) = (differ(1, 0), differ(0, 1));
        let counts = format!(
            "SELECT (SELECT count(*) FROM ({added}) a), (SELECT count(*) FROM ({removed}) r)"
        );
        let client = connection.client();
        let error = |error| acting.unreadable("counting rows", error);
        // Prepared before: what is sent after another answer would not run under the role.
        let counts = prepared(client, &counts).await?;
        let counted = acting.run(client, client.query_one(&counts, &[])).await;
        let counted = counted.map_err(error)?;
        let count = |at: usize| counted.get::<_, i64>(at).unsigned_abs();
        let mut differ = RowsDiffer {
            added: count(0),
            removed: count(1),
            ..RowsDiffer::default()
        };
        for (count, only, told) in [
            (differ.added, &added, &mut differ.added_keys),
            (differ.removed, &removed, &mut differ.removed_keys),
        ] {
            if count == 0 || rows == 0 {
                continue;
            }
            let order: Vec<String> = (1..=table.key.len()).map(|it| it.to_string()).collect();
            let some = format!("{only} ORDER BY {} LIMIT {rows}", order.join(", "));
            let some = prepared(client, &some).await?;
            let found = acting.run(client, client.query(&some, &[])).await;
            let kinds = table.key.iter().map(|&it| table.columns[it].kind);
            let mut decoder = RowDecoder::new(kinds);
            for row in &found.map_err(error)? {
                let mut key = Vec::new();
                decoder.result(row, 0, &mut key)?;
                told.push(key.iter().map(Datum::to_value).collect());
            }
        }
        Ok(Some(differ))
    }
}

/// Prepares a statement that is of no more use after it: its text has what is held in it.
async fn prepared(client: &Client, sql: &str) -> Result<Statement> {
    let prepared = client.prepare(sql).await;
    prepared.map_err(statement_failed("counting rows"))
}

/// Says for whom queries are run, for the application's policies and functions.
async fn say_who(connection: &mut PostgresConnection, context: &SyncContext) -> Result<()> {
    let who = connection.prepare(WHO, &[]).await?;
    let remote = context.remote_id.to_string();
    let parameters: [&(dyn ToSql + Sync); 2] = [&context.user, &remote];
    let said = connection.client().query_one(&who, &parameters).await;
    said.map(drop).map_err(statement_failed("saying who syncs"))
}

/// The role under which a remote reads a publication.
async fn acting(
    connection: &mut PostgresConnection,
    publication: &Publication,
    context: &SyncContext,
) -> Result<AssumedRole> {
    let role = RoleQuery::prepare(connection, context, publication).await?;
    role.ask(connection.client()).await
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
        let condition = held_rows(table, number, rule, scope)?;
        queries.push(format!("SELECT {outputs} FROM {}{condition}", table.from));
    }
    Ok(format!("(SELECT * FROM ({}) u)", queries.join(" UNION ")))
}
