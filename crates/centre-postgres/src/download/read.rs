//! Reading rows: partitions whole by COPY, changes by the log, rows by their keys.

use std::pin::pin;

use futures_util::TryStreamExt;
use futures_util::future::join;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use tidewater_protocol::{Code, ColumnType, Datum, Value};

use super::{new_entries, xmin};
use crate::acting::AssumedRole;
use crate::array::Array;
use crate::connection::PostgresConnection;
use crate::decoder::{RowDecoder, recycle};
use crate::driver_error::statement_failed;
use crate::publication::{ServedTable, TableRule, key_outputs};
use crate::quote::literal;
use crate::scope::{partition_arrays, partition_types};
use crate::values::PostgresType;
use crate::{arguments, script_times};
use tidewater_centre::engine::download::{KeyOrder, RuleRows, TakeKey, WindowBound};
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::flight::TakeRow;
use tidewater_centre::engine::publication::RowRule;
use tidewater_centre::engine::scripts;
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::served_table::WindowColumn;
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::RuleScope;

/// More are compared with a list of rows.
const FEW_PARTITIONS: usize = 100;

/// So many keys are read from a change log before their rows are.
const KEYS_AT_ONCE: usize = 5_000;

/// COPY BINARY begins with a signature, flags and an extension area.
const COPY_HEADER_BYTES: usize = 19;

/// How much a table weighs with its long values, in all of its leaves. That is what the files have, so
/// statistics that are missing or old do not matter. Values may be compressed there.
const WEIGHT: &str = "SELECT 8 * (pg_catalog.pg_table_size($1::oid)
  + coalesce(sum(pg_catalog.pg_table_size(t.relid)), 0))::int8
FROM pg_catalog.pg_partition_tree($1::oid::regclass) t WHERE t.relid <> $1::oid";

/// By rule, the partitions of which changes are read; `None` for everyone's.
type Partitions<'a> = &'a [Option<Vec<&'a [u8]>>];

/// Reads a table of a publication, under a role.
pub(super) struct Reader<'p> {
    pub(super) table: &'p ServedTable,
    pub(super) acting: AssumedRole,
}

impl Reader<'_> {
    /// Reads whole partitions of a table.
    pub(super) async fn copy_rows(
        &self,
        connection: &PostgresConnection,
        part: &RuleRows<'_>,
        types: &[ColumnType],
        take: TakeRow<'_>,
    ) -> Result<(), CentreError> {
        let table = self.table;
        let rule = &table.rules[part.rule];
        let mut conditions = Vec::new();
        if !rule.columns.is_empty() {
            if part.partitions.is_empty() {
                return Ok(());
            }
            conditions.push(partition_condition(rule, &part.partitions)?);
        }
        for bound in &part.bounds {
            conditions.extend(window_conditions(rule, bound, types[bound.window]));
        }
        if let Some(order) = &part.order {
            return self.in_order(connection, &conditions, order, take).await;
        }
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", conditions.join(" AND ")),
        };
        let copy = format!(
            "COPY (SELECT {} FROM {}{condition}) TO STDOUT (FORMAT BINARY)",
            table.outputs(),
            rule.from
        );
        let error = |error| self.failed("reading rows for a download", error);
        let client = connection.client();
        let stream = self
            .enter(client, client.copy_out(&copy))
            .await
            .map_err(error)?;
        let mut stream = pin!(stream);
        let mut decoder = RowDecoder::new(table.read_columns().map(|it| it.kind));
        let mut values = Vec::with_capacity(table.columns.len());
        let mut skip = COPY_HEADER_BYTES;
        // What a message of COPY began and the next one completes.
        let mut carry: Vec<u8> = Vec::new();
        while let Some(message) = stream.try_next().await.map_err(error)? {
            let carried = !carry.is_empty();
            if carried {
                carry.extend_from_slice(&message);
            }
            let bytes: &[u8] = if carried { &carry } else { &message };
            let mut at = skip.min(bytes.len());
            skip -= at;
            // A field count of -1 ends the data.
            while let Some(count) = bytes.get(at..at + 2)
                && count != [0xff, 0xff]
            {
                let mut row = recycle(values);
                let length = decoder.tuple(&bytes[at + 2..], &mut row)?;
                if length.is_some() {
                    take(&row)?;
                }
                values = recycle(row);
                match length {
                    Some(length) => at += 2 + length,
                    None => break,
                }
            }
            let ended = bytes.get(at..at + 2) == Some(&[0xff, 0xff]);
            let rest = if ended {
                Vec::new()
            } else {
                bytes[at..].to_vec()
            };
            carry = rest;
        }
        self.leave(client).await
    }

    /// Whether the rows of the table may weigh so much.
    pub(super) async fn may_weigh(
        &self,
        connection: &mut PostgresConnection,
        bytes: u64,
    ) -> Result<bool, CentreError> {
        // So many rows weigh more, and need not be asked for.
        if self.table.details.row_estimate > bytes {
            return Ok(true);
        }
        let asked = connection.prepare(WEIGHT, &[]).await?;
        let oid = self.table.details.oid;
        let weight = connection.client().query_one(&asked, &[&oid]).await;
        let weight = weight.map_err(statement_failed("asking for the size of a table"))?;
        Ok(u64::try_from(weight.get::<_, i64>(0)).is_ok_and(|it| it >= bytes))
    }

    /// A key behind which a download goes on: parameters from a number on, and the values that they are.
    fn behind(&self, key: &[Datum<'_>], first: usize) -> Result<(Vec<Array>, String), CentreError> {
        let table = self.table;
        let columns = table.key.iter().map(|&index| &table.columns[index]);
        let mut arrays = Vec::with_capacity(key.len());
        let mut values = Vec::with_capacity(key.len());
        for (number, (column, value)) in (first..).zip(columns.zip(key)) {
            let mut array = Array::new(column.kind);
            array.push(value).map_err(|_| CentreError::Peer {
                message: "a download that goes on behind a key that no row can have".into(),
                code: Code::MalformedMessage,
            })?;
            arrays.push(array);
            let value = format!("({})[1]", Array::parameter(column.kind, number));
            values.push(column.input(&value));
        }
        Ok((arrays, values.join(", ")))
    }

    /// Reads rows that meet conditions in the order of their keys. COPY takes no parameters.
    async fn in_order(
        &self,
        connection: &PostgresConnection,
        conditions: &[String],
        order: &KeyOrder<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), CentreError> {
        let table = self.table;
        let columns = || table.key.iter().map(|&index| &table.columns[index]);
        let names: Vec<String> = columns().map(|it| format!("t.{}", it.sql)).collect();
        let mut conditions = conditions.to_vec();
        let mut after = Vec::new();
        if !order.after.is_empty() {
            let values;
            (after, values) = self.behind(&order.after, 1)?;
            let names = names.join(", ");
            conditions.push(format!("({names}) > ({values})"));
        }
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", conditions.join(" AND ")),
        };
        let sql = format!(
            "SELECT {} FROM {}{condition} ORDER BY {}",
            table.outputs(),
            table.from,
            names.join(", ")
        );
        let parameters = after.iter().map(|it| it as &(dyn ToSql + Sync));
        let error = |error| self.failed("reading rows for a download", error);
        let client = connection.client();
        // Each partition's is another one: it is not kept.
        let statement = client.prepare(&sql).await.map_err(error)?;
        let rows = self.enter(client, client.query_raw(&statement, parameters));
        let mut rows = pin!(rows.await.map_err(error)?);
        let mut decoder = RowDecoder::new(table.read_columns().map(|it| it.kind));
        let mut values = Vec::with_capacity(table.columns.len());
        while let Some(row) = rows.try_next().await.map_err(error)? {
            let mut datums = recycle(values);
            decoder.result(&row, 0, &mut datums)?;
            take(&datums)?;
            values = recycle(datums);
        }
        self.leave(client).await
    }

    /// Reads what the query of a script yields.
    pub(super) async fn script(
        &self,
        connection: &mut PostgresConnection,
        statement: &scripts::ScriptStatement,
        values: &[Value],
        take: TakeRow<'_>,
    ) -> Result<(), CentreError> {
        let prepared = script_times::prepare(connection, &statement.script).await?;
        let arguments = arguments::of_script(statement, values, &prepared);
        let error = |error| self.failed("running a download script", error);
        let client = connection.client();
        let rows = self.enter(client, client.query_raw(&prepared, arguments));
        let mut rows = pin!(rows.await.map_err(error)?);
        let columns = prepared.columns().iter();
        let mut decoder =
            RowDecoder::new(columns.map(|it| PostgresType::from_oid(it.type_().oid())));
        let mut values = Vec::with_capacity(prepared.columns().len());
        while let Some(row) = rows.try_next().await.map_err(error)? {
            let mut datums = recycle(values);
            decoder.result(&row, 0, &mut datums)?;
            take(&datums)?;
            values = recycle(datums);
        }
        self.leave(client).await
    }

    /// Reads what changed since a snapshot, but for what one version wrote.
    pub(super) async fn changes(
        &self,
        connection: &mut PostgresConnection,
        (since, own_version): (&str, &str),
        (asked, order): (Partitions<'_>, Option<&KeyOrder<'_>>),
        take: TakeKey<'_>,
    ) -> Result<(), CentreError> {
        let table = self.table;
        let names: Vec<String> = (0..table.key.len()).map(|at| format!("k{at}")).collect();
        let mut arrays = Vec::new();
        let mut logs = Vec::new();
        for (rule, partitions) in table.rules.iter().zip(asked) {
            if rule.log.is_none() || partitions.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let keys = rule.log_columns.key.iter().zip(&names);
            let keys = keys.map(|(column, name)| format!("l.{column} AS {name}"));
            logs.push(format!(
                "SELECT {} {}",
                keys.collect::<Vec<_>>().join(", "),
                new_entries(rule, 4 + arrays.len()),
            ));
            if let Some(partitions) = partitions {
                arrays.extend(partition_arrays(rule, partitions.iter().copied())?);
            }
        }
        if logs.is_empty() {
            return Ok(());
        }
        let xmin = xmin(since);
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&since, &xmin, &own_version];
        parameters.extend(arrays.iter().map(|it| it as &(dyn ToSql + Sync)));
        let logs = logs.join(" UNION ALL ");
        let mut after = Vec::new();
        let [mut inner, mut outer] = [String::new(), String::new()];
        if let Some(order) = order {
            let first = 4 + arrays.len();
            if !order.after.is_empty() {
                let values;
                (after, values) = self.behind(&order.after, first)?;
                inner = format!(" WHERE ({}) > ({values})", names.join(", "));
            }
            inner.push_str(&format!(" ORDER BY {}", names.join(", ")));
            // Nothing has to be sorted for it once more.
            let names: Vec<String> = names.iter().map(|name| format!("l.{name}")).collect();
            outer = format!(" ORDER BY {}", names.join(", "));
        }
        parameters.extend(after.iter().map(|it| it as &(dyn ToSql + Sync)));
        if self.acting.is_another() {
            let keys = format!(
                "SELECT {} FROM (SELECT DISTINCT * FROM ({logs}) AS n) l",
                key_outputs(table, "l.", &names)
            );
            return self
                .changes_by_keys(connection, &keys, &parameters, take)
                .await;
        }
        let joined = table.key.iter().zip(&names).map(|(&index, name)| {
            let column = &table.columns[index];
            let collate = match &column.collation {
                Some(collation) => format!(" COLLATE {collation}"),
                None => String::new(),
            };
            format!("t.{} = l.{name}{collate}", column.sql)
        });
        // Key by key, for the same reason as the entries partition by partition.
        let sql = format!(
            "SELECT {}, j.* FROM (SELECT DISTINCT * FROM ({logs}) AS n{inner}) l \
             LEFT JOIN LATERAL (SELECT true, {} FROM {} WHERE {} OFFSET 0) j ON true{outer}",
            key_outputs(table, "l.", &names),
            table.outputs(),
            table.joined(),
            joined.collect::<Vec<_>>().join(" AND "),
        );
        let statement = connection.prepare(&sql, &[]).await?;
        self.stream_rows(connection, &statement, parameters, take)
            .await
    }

    /// Reads the rows of the keys that a query on our change logs yields: a role that reads the
    /// application's tables for a remote may not, and must not, read the logs.
    async fn changes_by_keys(
        &self,
        connection: &mut PostgresConnection,
        keys: &str,
        parameters: &[&(dyn ToSql + Sync)],
        take: TakeKey<'_>,
    ) -> Result<(), CentreError> {
        let error = |error| statement_failed("reading changes for a download")(error);
        let declare = format!("DECLARE tidewater_keys NO SCROLL CURSOR FOR {keys}");
        let statement = connection.prepare(&declare, &[]).await?;
        let declared = connection.client().execute(&statement, parameters).await;
        declared.map_err(error)?;
        let fetch = format!("FETCH {KEYS_AT_ONCE} FROM tidewater_keys");
        let kinds = || self.table.key.iter().map(|&it| self.table.columns[it].kind);
        loop {
            let rows = connection
                .client()
                .query(&fetch, &[])
                .await
                .map_err(error)?;
            if rows.is_empty() {
                break;
            }
            let decoders = rows.iter().map(|_| RowDecoder::new(kinds()));
            let mut decoders: Vec<RowDecoder> = decoders.collect();
            let mut keys = Vec::with_capacity(rows.len());
            for (row, decoder) in rows.iter().zip(&mut decoders) {
                let mut key = Vec::with_capacity(self.table.key.len());
                decoder.result(row, 0, &mut key)?;
                keys.push(key);
            }
            self.by_keys(connection, &keys, take).await?;
        }
        let close = connection
            .client()
            .batch_execute("CLOSE tidewater_keys")
            .await;
        close.map_err(error)
    }

    /// Reads the rows of keys.
    pub(super) async fn by_keys(
        &self,
        connection: &mut PostgresConnection,
        asked: &[Vec<Datum<'_>>],
        take: TakeKey<'_>,
    ) -> Result<(), CentreError> {
        let table = self.table;
        let kinds: Vec<_> = table
            .key
            .iter()
            .map(|&index| table.columns[index].kind)
            .collect();
        let mut arrays: Vec<Array> = kinds.iter().map(|&kind| Array::new(kind)).collect();
        for key in asked {
            let positions: Vec<_> = arrays.iter().map(Array::position).collect();
            let mut values = arrays.iter_mut().zip(key);
            if values.any(|(array, value)| array.push(value).is_err()) {
                // No row of the centre can have this key.
                for (array, position) in arrays.iter_mut().zip(positions) {
                    array.truncate(position);
                }
                take(key, None)?;
            }
        }
        let parameters = kinds.iter().enumerate();
        let parameters = parameters.map(|(at, &kind)| Array::parameter(kind, at + 1));
        let names: Vec<String> = (0..kinds.len()).map(|at| format!("k{at}")).collect();
        let joined = table.key.iter().zip(&names).map(|(&index, name)| {
            let column = &table.columns[index];
            column.equals(&format!("t.{}", column.sql), &format!("i.{name}"))
        });
        let sql = format!(
            "SELECT {}, j.* FROM unnest({}) AS i({}) \
             LEFT JOIN LATERAL (SELECT true, {} FROM {} WHERE {} OFFSET 0) j ON true",
            names
                .iter()
                .map(|name| format!("i.{name}"))
                .collect::<Vec<_>>()
                .join(", "),
            parameters.collect::<Vec<_>>().join(", "),
            names.join(", "),
            table.outputs(),
            table.joined(),
            joined.collect::<Vec<_>>().join(" AND "),
        );
        let statement = connection.prepare(&sql, &[]).await?;
        let parameters = arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
        self.stream_rows(connection, &statement, parameters, take)
            .await
    }

    /// Reads a result of keys, whether there is a row (NULL if not), and the row.
    async fn stream_rows(
        &self,
        connection: &PostgresConnection,
        statement: &tokio_postgres::Statement,
        parameters: Vec<&(dyn ToSql + Sync)>,
        take: TakeKey<'_>,
    ) -> Result<(), CentreError> {
        let table = self.table;
        let error = |error| self.failed("reading changes for a download", error);
        let client = connection.client();
        let rows = self.enter(client, client.query_raw(statement, parameters));
        let rows = rows.await.map_err(error)?;
        let mut rows = pin!(rows);
        let mut keys = RowDecoder::new(table.key.iter().map(|&index| table.columns[index].kind));
        let mut decoder = RowDecoder::new(table.read_columns().map(|it| it.kind));
        let (mut key, mut values) = (Vec::new(), Vec::new());
        while let Some(row) = rows.try_next().await.map_err(error)? {
            let mut row_key = recycle(key);
            let mut row_values = recycle(values);
            keys.result(&row, 0, &mut row_key)?;
            decoder.result(&row, table.key.len() + 1, &mut row_values)?;
            let exists: Option<bool> = row.get(table.key.len());
            take(&row_key, exists.map(|_| &row_values[..]))?;
            key = recycle(row_key);
            values = recycle(row_values);
        }
        self.leave(client).await
    }

    /// Assumes the role in the flight of a statement whose rows are read until [`Self::leave`].
    async fn enter<T>(
        &self,
        client: &Client,
        statement: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !self.acting.is_another() {
            return statement.await;
        }
        let (entered, begun) = join(client.batch_execute(self.acting.enter()), statement).await;
        entered?;
        begun
    }

    async fn leave(&self, client: &Client) -> Result<(), CentreError> {
        if !self.acting.is_another() {
            return Ok(());
        }
        let left = client.batch_execute(self.acting.leave()).await;
        left.map_err(statement_failed("giving up a role"))
    }

    fn failed(&self, what: &'static str, error: Error) -> CentreError {
        self.acting.unreadable(what, error)
    }
}

/// The condition, as `WHERE`, that a row is held by a rule of a table.
pub(in super::super) fn held_rows(
    table: &ServedTable,
    number: usize,
    rule: &RowRule,
    scope: &RuleScope,
) -> Result<String, CentreError> {
    let of_table = &table.rules[number];
    let mut conditions = Vec::new();
    if !of_table.columns.is_empty() {
        let partitions: Vec<&[u8]> = scope.partitions.iter().map(Vec::as_slice).collect();
        conditions.push(match partitions.is_empty() {
            true => "false".to_owned(),
            false => partition_condition(of_table, &partitions)?,
        });
    }
    for (window, (of_window, &from)) in rule.windows.iter().zip(&scope.lows).enumerate() {
        let bound = WindowBound {
            window,
            from,
            to: None,
        };
        conditions.extend(window_conditions(of_table, &bound, of_window.column_type));
    }
    Ok(match conditions.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", conditions.join(" AND ")),
    })
}

/// Whether a row is in these windows.
fn window_conditions(
    rule: &TableRule,
    bound: &WindowBound,
    column_type: ColumnType,
) -> Vec<String> {
    let WindowColumn { alias, column, .. } = &rule.windows[bound.window];
    let value = |position: i64| {
        let text = match column_type {
            ColumnType::Integer => position.to_string(),
            ColumnType::Date => moment(&Datum::Date(position).to_string()),
            ColumnType::TimestampTz => moment(&Datum::TimestampTz(position).to_string()),
            _ => moment(&Datum::Timestamp(position).to_string()),
        };
        format!(
            "{}::{}",
            literal(&text).unwrap_or_default(),
            column.cast_name
        )
    };
    let mut conditions = vec![format!("{alias}.{} IS NOT NULL", column.sql)];
    // Of an integer that is too small for its column nothing has to be said.
    if bound.from > i64::MIN {
        let from = value(bound.from);
        conditions.push(format!("{alias}.{} >= {from}", column.sql));
    }
    if let Some(to) = bound.to {
        let to = value(to);
        conditions.push(format!("{alias}.{} < {to}", column.sql));
    }
    conditions
}

/// Whether a row is in one of the partitions.
fn partition_condition(rule: &TableRule, partitions: &[&[u8]]) -> Result<String, CentreError> {
    let types = partition_types(rule);
    let columns = &rule.columns;
    let mut rows = Vec::new();
    for packed in partitions {
        let values = unpack(packed, &types)?;
        let mut row = Vec::with_capacity(values.len());
        for (value, column) in values.iter().zip(columns) {
            let text = match value {
                Datum::Bytes(bytes) => {
                    let hex = bytes.iter().map(|byte| format!("{byte:02x}"));
                    format!("\\x{}", hex.collect::<String>())
                }
                Datum::Date(_) | Datum::Timestamp(_) | Datum::TimestampTz(_) => {
                    moment(&value.to_string())
                }
                value => value.to_string(),
            };
            // Text with a NUL is in no row.
            let quoted = literal(&text).unwrap_or_else(|| "NULL".into());
            row.push(format!("{quoted}::{}", column.cast_for_comparison()));
        }
        rows.push(format!("({})", row.join(", ")));
    }
    let alias = format!("{}.", rule.alias);
    let compared = columns.iter().map(|column| column.compared(&alias));
    let compared = compared.collect::<Vec<_>>().join(", ");
    Ok(if columns.len() == 1 && rows.len() <= FEW_PARTITIONS {
        format!("{compared} IN ({})", rows.join(", "))
    } else {
        format!("({compared}) IN (VALUES {})", rows.join(", "))
    })
}

/// A date or timestamp as PostgreSQL reads it: years beyond 9999 without a sign, those before
/// the year 1 counted backwards.
fn moment(text: &str) -> String {
    let expanded = text.strip_prefix(['+', '-']).and_then(|unsigned| {
        let (year, rest) = unsigned.split_once('-')?;
        Some((year.parse::<i64>().ok()?, rest))
    });
    match expanded {
        // ISO 8601 has a year 0, which is 1 BC.
        Some((year, rest)) if year == 0 || text.starts_with('-') => {
            format!("{:04}-{rest} BC", year + 1)
        }
        Some((year, rest)) => format!("{year}-{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_that_need_a_sign_are_spelled_as_postgres_reads_them() {
        for (ours, theirs) in [
            ("2026-01-02", "2026-01-02"),
            ("+5874897-12-31", "5874897-12-31"),
            ("+000000-02-29", "0001-02-29 BC"),
            (
                "-004712-01-01T00:00:00.000000Z",
                "4713-01-01T00:00:00.000000Z BC",
            ),
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
        ] {
            assert_eq!(moment(ours), theirs);
        }
    }
}
