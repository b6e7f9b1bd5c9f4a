//! Reading rows of a download: partitions whole by COPY, changes by the log,
//! requested keys, what differs in a compared table, all packed straight into the
//! sink's pieces.

use std::collections::HashMap;
use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Datum, Op, Row, RowShape, RowsReader, RowsWriter, Table, pack};

use super::{Plan, TablePlan, new_entries, own_version, xmin};
use crate::columns::{Announced, ColumnMap};
use crate::comparing::{self, Comparison};
use crate::download::{DownloadSink, DownloadSubscription, TableRequest};
use crate::error::CentreError;
use crate::postgres::array::Array;
use crate::postgres::connection::{Connection, refused};
use crate::postgres::model::{Compiled, CompiledTable};
use crate::postgres::quote::literal;
use crate::postgres::rows::{RowDecoder, recycle};
use crate::postgres::scope::{Membership, partition_arrays, partition_types, unpack};
use crate::too_long;
use crate::upload::OwnUpload;

/// COPY BINARY begins with a signature, flags and an extension area.
const COPY_HEADER_BYTES: usize = 19;

/// What was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) upserts: u64,
    pub(super) removals: u64,
}

/// Packs the rows of one table into the sink.
struct Output<'a> {
    table: usize,
    /// Whether the remote ever holds rows of the table that it has to remove.
    removes: bool,
    schema: &'a Table,
    begin: Option<TableBegin>,
    writer: RowsWriter<'a>,
    counts: &'a mut Counts,
    sink: &'a mut dyn DownloadSink,
}

impl<'a> Output<'a> {
    fn new(
        publication: &'a Compiled,
        table: usize,
        counts: &'a mut Counts,
        sink: &'a mut dyn DownloadSink,
    ) -> Output<'a> {
        Output {
            table,
            removes: publication.tables[table].direction.downloads(),
            schema: &publication.schema.tables[table],
            begin: Some(TableBegin::of(&publication.schema.tables[table])),
            writer: RowsWriter::new(&publication.shapes[table]),
            counts,
            sink,
        }
    }

    fn upsert(&mut self, row: &[Datum<'_>]) -> Result<(), CentreError> {
        let before = self.writer.len();
        self.writer.row(Op::Upsert, row);
        too_long::check(self.schema, row, self.writer.len() - before)?;
        self.counts.upserts += 1;
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    fn remove(&mut self, key: &[Datum<'_>]) -> Result<(), CentreError> {
        if !self.removes {
            return Ok(());
        }
        self.writer.key(Op::Remove, key);
        self.counts.removals += 1;
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    fn announce(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.sink.table(begin);
        }
    }

    /// Hands over what is packed if it is at least so much.
    fn flush(&mut self, least: usize) -> Result<(), CentreError> {
        if self.writer.len() >= least.max(1) {
            self.announce();
            self.sink.rows(self.writer.take())?;
        }
        Ok(())
    }
}

/// Reads everything of one subscription.
pub(super) async fn read(
    connection: &mut Connection,
    publication: &Compiled,
    plan: &Plan,
    subscription: &DownloadSubscription,
    sink: &mut dyn DownloadSink,
) -> Result<Counts, CentreError> {
    let mut counts = Counts::default();
    let requests = requests(publication, subscription)?;
    let compares = comparing::by_table(&publication.schema, &subscription.compares);
    for (index, table) in publication.tables.iter().enumerate() {
        let what = &plan.tables[index];
        let asked = requests.get(&index);
        if matches!(what, TablePlan::Nothing) && asked.is_none() {
            continue;
        }
        let all = matches!(what, TablePlan::Whole);
        let only_compared = all && compares[index].is_some();
        let whole = all && !only_compared;
        let mut output = Output::new(publication, index, &mut counts, &mut *sink);
        if let Some(begin) = &mut output.begin {
            begin.replace = whole;
            if whole && table.scope.is_none() {
                begin.expected_rows = table.row_estimate;
            }
        }
        if !only_compared {
            send_planned(connection, table, plan, subscription, &mut output).await?;
        }
        // A table that is sent whole has the requested rows already.
        if !whole {
            for request in asked.into_iter().flatten() {
                let membership = Membership::new(table, vec![&plan.scope.tables[index]]);
                answer(connection, table, request, membership, &mut output).await?;
            }
        }
        output.flush(1)?;
    }
    for (index, theirs) in compares.into_iter().enumerate() {
        if let Some(theirs) = theirs {
            let comparison = Comparison::new(&publication.shapes[index], theirs)?;
            let mut output = Output::new(publication, index, &mut counts, &mut *sink);
            compare(connection, publication, plan, comparison, &mut output).await?;
        }
    }
    Ok(counts)
}

/// Compares a table, and sends the rows where it differs.
async fn compare(
    connection: &Connection,
    publication: &Compiled,
    plan: &Plan,
    mut comparison: Comparison<'_>,
    output: &mut Output<'_>,
) -> Result<(), CentreError> {
    let table = &publication.tables[output.table];
    let scope = &plan.scope.tables[output.table];
    let membership = || Membership::new(table, vec![scope]);
    copy_rows(
        connection,
        table,
        scope.iter(),
        membership(),
        |row| match comparison.add(row) {
            true => output.sink.comparing(),
            false => Ok(()),
        },
    )
    .await?;
    let Some(differences) = comparison.outcome() else {
        return Ok(());
    };
    let selection = differences.selection()?;
    if let Some(begin) = &mut output.begin {
        // Of a table that would go whole, nobody knows what changed in it.
        let planned = &plan.tables[output.table];
        differences.announce(begin, matches!(planned, TablePlan::Changes { .. }));
    }
    output.announce();
    copy_rows(
        connection,
        table,
        scope.iter(),
        membership(),
        |row| match selection.has(row) {
            true => output.upsert(row),
            false => Ok(()),
        },
    )
    .await?;
    output.flush(1)
}

/// Sends what is planned for a table: removals before rows, so that a row that moved
/// between partitions stays.
async fn send_planned(
    connection: &mut Connection,
    table: &CompiledTable,
    plan: &Plan,
    subscription: &DownloadSubscription,
    output: &mut Output<'_>,
) -> Result<(), CentreError> {
    let scope = &plan.scope.tables[output.table];
    let membership = || Membership::new(table, vec![scope]);
    let what = &plan.tables[output.table];
    match what {
        TablePlan::Nothing => Ok(()),
        TablePlan::Whole => {
            // An empty table, too, replaces what the remote has.
            output.announce();
            let upsert = |row: &[Datum<'_>]| output.upsert(row);
            copy_rows(connection, table, scope.iter(), membership(), upsert).await
        }
        TablePlan::Changes { gained, lost, .. } => {
            let types = partition_types(table);
            // What the remote uploaded into a partition before it held that, and somebody has
            // deleted since, is in no log that it reads: gained partitions replace, too.
            for packed in lost.iter().chain(gained) {
                output.writer.remove_partition(&unpack(packed, &types)?);
                output.counts.removals += 1;
                output.flush(ROWS_PAYLOAD_BYTES)?;
            }
            if !gained.is_empty() {
                let upsert = |row: &[Datum<'_>]| output.upsert(row);
                copy_rows(connection, table, gained.iter(), membership(), upsert).await?;
            }
            if what.reads_log(table) {
                changes(connection, table, plan, subscription, membership(), output).await?;
            }
            Ok(())
        }
    }
}

type Requests<'a> = HashMap<usize, Vec<(ColumnMap, &'a TableRequest)>>;

fn requests<'a>(
    publication: &Compiled,
    subscription: &'a DownloadSubscription,
) -> Result<Requests<'a>, CentreError> {
    let mut requests: Requests<'a> = HashMap::new();
    for request in &subscription.requests {
        // What does not fit the publication any more is sent anew as a whole, or gone.
        let announced = ColumnMap::find(&publication.schema, &request.begin)?;
        if let Announced::Published(index, map) = announced {
            requests.entry(index).or_default().push((map, request));
        }
    }
    Ok(requests)
}

/// Reads whole partitions of a table.
async fn copy_rows(
    connection: &Connection,
    table: &CompiledTable,
    partitions: impl ExactSizeIterator<Item = &Vec<u8>>,
    mut membership: Membership<'_>,
    mut take: impl FnMut(&[Datum<'_>]) -> Result<(), CentreError>,
) -> Result<(), CentreError> {
    let mut condition = String::new();
    if table.scope.is_some() {
        if partitions.len() == 0 {
            return Ok(());
        }
        condition = partition_condition(table, partitions)?;
    }
    let copy = format!(
        "COPY (SELECT {} FROM {} t{condition}) TO STDOUT (FORMAT BINARY)",
        table.outputs("t."),
        table.sql_name
    );
    let error = |error| refused("reading rows for a download")(error);
    let stream = connection.client().copy_out(&copy).await.map_err(error)?;
    let mut stream = pin!(stream);
    let mut decoder = RowDecoder::new(table.columns.iter().map(|it| it.kind));
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
            // A collation may take other values for equal than partitions are told apart by.
            if length.is_some() && membership.has(&row) {
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
    Ok(())
}

/// ` WHERE` a row is in one of the partitions.
fn partition_condition<'a>(
    table: &CompiledTable,
    partitions: impl Iterator<Item = &'a Vec<u8>>,
) -> Result<String, CentreError> {
    let types = partition_types(table);
    let columns: Vec<_> = table.partition_columns().collect();
    let mut rows = Vec::new();
    for packed in partitions {
        let values = unpack(packed, &types)?;
        let mut row = Vec::with_capacity(values.len());
        for (value, column) in values.iter().zip(&columns) {
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
    let compared = columns.iter().map(|column| column.compared("t."));
    let compared = compared.collect::<Vec<_>>().join(", ");
    Ok(if columns.len() == 1 {
        format!(" WHERE {compared} IN ({})", rows.join(", "))
    } else {
        format!(" WHERE ({compared}) IN (VALUES {})", rows.join(", "))
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

/// Sends what changed in the partitions kept since the watermark.
async fn changes(
    connection: &mut Connection,
    table: &CompiledTable,
    plan: &Plan,
    subscription: &DownloadSubscription,
    membership: Membership<'_>,
    output: &mut Output<'_>,
) -> Result<(), CentreError> {
    let (Some(watermark), TablePlan::Changes { kept, .. }) =
        (&plan.watermark, &plan.tables[output.table])
    else {
        return Ok(());
    };
    let log_keys = table
        .key
        .iter()
        .filter_map(|&index| table.log_column(index));
    let log_keys: Vec<String> = log_keys.collect();
    let found: Vec<String> = log_keys.iter().map(|name| format!("l.{name}")).collect();
    let joined = table.key.iter().zip(&log_keys).map(|(&index, name)| {
        let column = &table.columns[index];
        let collate = match &column.collation {
            Some(collation) => format!(" COLLATE {collation}"),
            None => String::new(),
        };
        format!("t.{} = l.{name}{collate}", column.sql)
    });
    let sql = format!(
        "SELECT {}, t.{} IS NOT NULL, {} FROM (SELECT DISTINCT {} {}) l LEFT JOIN {} t ON {}",
        table.key_outputs("l.", &log_keys),
        table.columns[table.key[0]].sql,
        table.outputs("t."),
        found.join(", "),
        new_entries(table, 4),
        table.sql_name,
        joined.collect::<Vec<_>>().join(" AND "),
    );
    let statement = connection.prepare(&sql, &[]).await?;
    let arrays = match table.scope {
        Some(_) => partition_arrays(table, kept.iter())?,
        None => Vec::new(),
    };
    let (snapshot, own) = (&watermark.snapshot, own_version(subscription));
    let xmin = xmin(snapshot);
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![snapshot, &xmin, &own];
    parameters.extend(arrays.iter().map(|it| it as &(dyn ToSql + Sync)));
    let own = subscription.own.as_ref().filter(|own| !own.skip_version);
    stream_rows(
        connection, table, &statement, parameters, membership, own, output,
    )
    .await
}

/// Sends the rows of keys that the remote asked for.
async fn answer(
    connection: &mut Connection,
    table: &CompiledTable,
    (map, request): &(ColumnMap, &TableRequest),
    membership: Membership<'_>,
    output: &mut Output<'_>,
) -> Result<(), CentreError> {
    let kinds: Vec<_> = table
        .key
        .iter()
        .map(|&index| table.columns[index].kind)
        .collect();
    let mut arrays: Vec<Array> = kinds.iter().map(|&kind| Array::new(kind)).collect();
    let mut reader = RowsReader::new(&map.shape, &request.rows);
    let mut row = Row::default();
    while reader.next(&mut row).map_err(malformed)? {
        let positions: Vec<_> = arrays.iter().map(Array::position).collect();
        let mut key = arrays.iter_mut().zip(&row.key);
        if key.any(|(array, value)| array.push(value).is_err()) {
            // No row of the centre can have this key.
            for (array, position) in arrays.iter_mut().zip(positions) {
                array.truncate(position);
            }
            output.remove(&row.key)?;
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
        "SELECT {}, t.{} IS NOT NULL, {} FROM unnest({}) AS i({}) LEFT JOIN {} t ON {}",
        names
            .iter()
            .map(|name| format!("i.{name}"))
            .collect::<Vec<_>>()
            .join(", "),
        table.columns[table.key[0]].sql,
        table.outputs("t."),
        parameters.collect::<Vec<_>>().join(", "),
        names.join(", "),
        table.sql_name,
        joined.collect::<Vec<_>>().join(" AND "),
    );
    let statement = connection.prepare(&sql, &[]).await?;
    let parameters = arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
    stream_rows(
        connection, table, &statement, parameters, membership, None, output,
    )
    .await
}

/// Sends a result of keys, whether there is a row, and the row.
async fn stream_rows(
    connection: &Connection,
    table: &CompiledTable,
    statement: &tokio_postgres::Statement,
    parameters: Vec<&(dyn ToSql + Sync)>,
    mut membership: Membership<'_>,
    own: Option<&OwnUpload>,
    output: &mut Output<'_>,
) -> Result<(), CentreError> {
    let error = |error| refused("reading changes for a download")(error);
    let rows = connection
        .client()
        .query_raw(statement, parameters)
        .await
        .map_err(error)?;
    let mut rows = pin!(rows);
    let mut keys = RowDecoder::new(table.key.iter().map(|&index| table.columns[index].kind));
    let mut decoder = RowDecoder::new(table.columns.iter().map(|it| it.kind));
    let shape = table.shape();
    let (mut key, mut values) = (Vec::new(), Vec::new());
    let mut own = own.map(|own| OwnRows::new(own, &shape, output.table));
    while let Some(row) = rows.try_next().await.map_err(error)? {
        let mut row_key = recycle(key);
        let mut row_values = recycle(values);
        keys.result(&row, 0, &mut row_key)?;
        decoder.result(&row, table.key.len() + 1, &mut row_values)?;
        let there = row.get(table.key.len()) && membership.has(&row_values);
        let known = own
            .as_mut()
            .is_some_and(|own| own.has(&row_key, there.then_some(&row_values)));
        match (known, there) {
            (true, _) => {}
            (false, true) => output.upsert(&row_values)?,
            (false, false) => output.remove(&row_key)?,
        }
        key = recycle(row_key);
        values = recycle(row_values);
    }
    Ok(())
}

/// What the same sync uploaded, to leave out what is in the centre exactly so.
struct OwnRows<'a> {
    own: &'a OwnUpload,
    shape: &'a RowShape,
    key_types: Vec<tidewater_protocol::ColumnType>,
    wanted: (usize, Vec<u8>),
    packed: Vec<u8>,
}

impl<'a> OwnRows<'a> {
    fn new(own: &'a OwnUpload, shape: &'a RowShape, table: usize) -> OwnRows<'a> {
        OwnRows {
            own,
            shape,
            key_types: shape
                .key
                .iter()
                .map(|&index| shape.columns[index])
                .collect(),
            wanted: (table, Vec::new()),
            packed: Vec::new(),
        }
    }

    fn has(&mut self, key: &[Datum<'_>], row: Option<&Vec<Datum<'_>>>) -> bool {
        self.wanted.1.clear();
        pack::pack_values(&mut self.wanted.1, &self.key_types, key);
        match (self.own.rows.get(&self.wanted), row) {
            (Some(None), None) => true,
            (Some(Some(uploaded)), Some(row)) => {
                self.packed.clear();
                pack::pack_values(&mut self.packed, &self.shape.columns, row);
                *uploaded == self.packed
            }
            _ => false,
        }
    }
}

fn malformed(error: tidewater_protocol::UnpackError) -> CentreError {
    CentreError::Peer {
        message: format!("rows that cannot be unpacked: {error}"),
        code: tidewater_protocol::Code::MalformedMessage,
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
