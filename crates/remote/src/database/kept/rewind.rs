//! Going back in time: from the rows as they are to what earlier uploads brought.
//!
//! Owns making uploads whole of which only the [outline](super::outline) was kept. From the last
//! kept upload to the first one that is to be given back, what the rows were before each is written
//! into the change tables, under generations that are less than all others: there the next one
//! finds what it left, as any upload finds it in the generations after its own. None of it outlives
//! the transaction.

use std::collections::HashSet;

use bytes::BytesMut;
use rusqlite::{Connection, params};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::pack::{same, too_long};
use tidewater_protocol::{Code, ColumnType, Datum, Op, Row, RowsWriter, Table, UploadId, Value};

use super::copy::Frames;
use super::{Part, TableAndKey, each_part, each_row, outline, shape_of};
use crate::database::refused::{self, Refusal};
use crate::database::subscription::load_all;
use crate::database::tables::Names;
use crate::database::{SubscriptionState, UploadChunk, quote, row};
use crate::error::{Doing, RemoteError};

const DOING: &str = "filling in an upload that the centre has forgotten";

/// Why the key of a change is among the refused.
const GONE: &str = "the centre was restored and has forgotten this change, which was too large to \
                    be kept, and its row is not here any more: write it again if it is still \
                    wanted";

/// Makes outlines whole that are to be given back, and outlines of those that were whole and are
/// not given back any more. The rows must be as they are before anything of the restored centre
/// is applied.
pub(crate) fn settle(connection: &Connection) -> Result<(), RemoteError> {
    let sql = "SELECT id, subscription, giving = 1 FROM tidewater_kept \
               WHERE outline IS NOT NULL AND (giving = 1) = (outline >= 0) ORDER BY id";
    let open: Vec<(i64, i64, bool)> = connection
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let rows =
                statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        })
        .doing(DOING)?;
    for &(id, _, is_given) in &open {
        if !is_given {
            let outline = outline::of_upload(&bytes_of(connection, id).doing(DOING)?)?;
            replace(connection, id, &outline).doing(DOING)?;
        }
    }
    if open.iter().any(|&(.., is_given)| is_given) {
        for subscription in load_all(connection)? {
            let mut own = open.iter().filter(|it| it.1 == subscription.id && it.2);
            if let Some(&(first, ..)) = own.next() {
                fill_in_from(connection, &subscription, first)?;
            }
        }
    }
    Ok(())
}

fn bytes_of(connection: &Connection, id: i64) -> rusqlite::Result<Vec<u8>> {
    connection
        .prepare_cached("SELECT bytes FROM tidewater_kept WHERE id = ?1")?
        .query_row([id], |row| row.get(0))
}

/// Keeps only the outline of an upload that is kept whole.
pub(super) fn shorten(connection: &Connection, id: i64) -> Result<(), RemoteError> {
    let outline = outline::of_upload(&bytes_of(connection, id).doing(DOING)?)?;
    connection
        .execute("UPDATE tidewater_kept SET outline = ~0 WHERE id = ?1", [id])
        .and_then(|_| replace(connection, id, &outline))
        .doing(DOING)
}

/// Puts an outline in the place of a whole part, or the other way round. Nothing is left of one
/// without bytes.
fn replace(connection: &Connection, id: i64, bytes: &[u8]) -> rusqlite::Result<()> {
    let written = match bytes.is_empty() {
        true => connection.execute("DELETE FROM tidewater_kept WHERE id = ?1", [id]),
        false => connection.execute(
            "UPDATE tidewater_kept SET outline = ~outline, bytes = ?2 WHERE id = ?1",
            params![id, bytes],
        ),
    };
    written.map(drop)
}

/// Makes those of a subscription's outlines whole that are to be given back, of which this is the
/// first.
fn fill_in_from(
    connection: &Connection,
    subscription: &SubscriptionState,
    first: i64,
) -> Result<(), RemoteError> {
    let sql = "SELECT id, coalesce(outline, -1) >= 0, giving = 1 FROM tidewater_kept \
               WHERE subscription = ?1 AND id >= ?2 ORDER BY id DESC";
    let uploads: Vec<(i64, bool, bool)> = connection
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let rows = statement.query_map([subscription.id, first], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
            rows.collect()
        })
        .doing(DOING)?;
    let mut rewind = Rewind {
        connection,
        subscription,
        generation: 0,
        unknown: HashSet::new(),
    };
    for (id, is_outline, is_given) in uploads {
        rewind.generation -= 1;
        let upload = bytes_of(connection, id).doing(DOING)?;
        let (whole, gone) = rewind.go_through(&upload, is_outline)?;
        if is_outline && is_given {
            let (upload_id, part): (Vec<u8>, _) = connection
                .prepare_cached("SELECT upload_id, outline FROM tidewater_kept WHERE id = ?1")
                .and_then(|mut statement| {
                    statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
                })
                .doing(DOING)?;
            let upload_id = UploadId::from_slice(&upload_id);
            let upload_id = upload_id.map(|id| outline::part_id(id, part));
            let whole = whole.finish(subscription.sequence, upload_id)?;
            replace(connection, id, &whole.unwrap_or_default()).doing(DOING)?;
            for gone in gone {
                gone.tell(connection, subscription).doing(DOING)?;
            }
        }
    }
    for table in subscription.schema.iter().flat_map(|schema| &schema.tables) {
        let change = Names::of(table).change;
        connection
            .execute(&format!("DELETE FROM {change} WHERE generation < 0"), [])
            .doing(DOING)?;
    }
    Ok(())
}

/// Goes back in time, upload by upload.
struct Rewind<'a> {
    connection: &'a Connection,
    subscription: &'a SubscriptionState,
    /// Under which the rows are written as they were before the upload.
    generation: i64,
    /// Rows of which it is not known any more what the upload left.
    unknown: HashSet<TableAndKey>,
}

impl Rewind<'_> {
    /// Goes to before an upload. Of an outline, all that is known of the upload, and the changes
    /// whose rows are gone.
    fn go_through(
        &mut self,
        upload: &[u8],
        is_outline: bool,
    ) -> Result<(Frames, Vec<Gone>), RemoteError> {
        let mut whole = Frames::default();
        let mut gone = Vec::new();
        let schema = self.subscription.schema.as_deref();
        each_part(BytesMut::from(upload), |part| {
            let Part::Table(begin, rows) = part else {
                return Ok(());
            };
            let table = schema.and_then(|schema| schema.table(&begin.table));
            let of_table = table.and_then(|table| TableRewind::of(self, table, &begin, is_outline));
            let Some(of_table) = of_table else {
                return Ok(());
            };
            let chunk = of_table.go_through(&rows, &mut self.unknown, &mut gone)?;
            match chunk.rows.is_empty() {
                true => Ok(()),
                false => whole.add(&chunk),
            }
        })?;
        Ok((whole, gone))
    }
}

/// Goes back in time in a table.
struct TableRewind<'a> {
    connection: &'a Connection,
    generation: i64,
    names: Names,
    /// The types of the table's columns.
    types: Vec<ColumnType>,
    key: &'a [usize],
    is_outline: bool,
    /// The upload's header.
    begin: &'a TableBegin,
    /// The header with the columns that the table still has.
    header: TableBegin,
    /// For each column of `header`: where it is in the upload, and in the table.
    columns: Vec<(usize, usize)>,
}

impl<'a> TableRewind<'a> {
    /// `None` if the table has another key now.
    fn of(
        rewind: &Rewind<'a>,
        table: &'a Table,
        begin: &'a TableBegin,
        is_outline: bool,
    ) -> Option<TableRewind<'a>> {
        let now = TableBegin::of(table);
        if !begin.key_headers().eq(now.key_headers()) || !table.direction.uploads() {
            return None;
        }
        let columns = begin.columns.iter().enumerate();
        let columns = columns.filter_map(|(index, column)| {
            let place = now.columns.iter().position(|it| it == column)?;
            Some((index, place))
        });
        let columns: Vec<(usize, usize)> = columns.collect();
        let key = now.key.iter().map(|&key| {
            let index = columns.iter().position(|&(_, at)| at == key as usize)?;
            Some(index as u32)
        });
        let header = TableBegin {
            key: key.collect::<Option<_>>()?,
            columns: columns
                .iter()
                .map(|&(_, at)| now.columns[at].clone())
                .collect(),
            ..TableBegin::of(table)
        };
        Some(TableRewind {
            connection: rewind.connection,
            generation: rewind.generation,
            names: Names::of(table),
            types: table.shape().columns,
            key: &table.key,
            is_outline,
            begin,
            header,
            columns,
        })
    }

    /// Goes to before these rows of an upload, and makes those of an outline whole.
    fn go_through(
        &self,
        rows: &[u8],
        unknown: &mut HashSet<TableAndKey>,
        gone: &mut Vec<Gone>,
    ) -> Result<UploadChunk, RemoteError> {
        let shape = shape_of(&self.header)?;
        let mut whole = Whole {
            chunk: UploadChunk {
                begin: Some(self.header.clone()),
                rows: Vec::new(),
                inserts: 0,
                updates: 0,
                deletes: 0,
            },
            writer: RowsWriter::new(&shape),
        };
        let mut failed = Ok(());
        each_row(self.begin, rows, |row, key_packed, _| {
            if failed.is_err() {
                return;
            }
            let key = (self.begin.table.clone(), key_packed);
            match self.go_back(row, unknown.contains(&key), &mut whole) {
                Ok(Before::Known) => drop(unknown.remove(&key)),
                Ok(Before::Unknown) => drop(unknown.insert(key)),
                Ok(Before::Gone) => {
                    gone.push(Gone::of(self.begin, row, key.1.clone()));
                    unknown.insert(key);
                }
                Err(error) => failed = Err(error),
            }
        })?;
        failed.doing(DOING)?;
        whole.chunk.rows = whole.writer.take();
        Ok(whole.chunk)
    }

    /// Goes to before a change, and makes it whole if what it left is known.
    fn go_back(
        &self,
        change: &Row<'_>,
        is_unknown: bool,
        whole: &mut Whole<'_>,
    ) -> rusqlite::Result<Before> {
        let after = match is_unknown {
            true => None,
            false => self.image(&change.key)?,
        };
        let after = after
            .as_deref()
            .map(|after| row::datums(&self.types, after));
        let old = |row: Option<&Vec<_>>| {
            let nothing = || vec![Datum::Null; self.types.len()];
            let mut values = row.cloned().unwrap_or_else(nothing);
            for &(index, at) in &self.columns {
                values[at] = change.old[index];
            }
            values
        };
        let before = match (change.op, &after) {
            (Some(Op::Request | Op::Update), None) if self.is_outline && !is_unknown => {
                return Ok(Before::Gone);
            }
            (Some(Op::Insert | Op::Request), _) => None,
            (Some(Op::Delete), _) => Some(old(None)),
            (Some(Op::Update), after) if !self.is_outline => Some(old(after.as_ref())),
            (Some(Op::Update), Some(after)) => {
                let mut before = after.clone();
                for &(index, at) in &self.columns {
                    if let Some(old) = outline::changed_from(&change.old[index], &change.new[index])
                    {
                        before[at] = old;
                    }
                }
                Some(before)
            }
            _ => {
                whole.add(self, change, None, after.as_deref());
                return Ok(Before::Unknown);
            }
        };
        if self.is_outline {
            whole.add(self, change, before.as_deref(), after.as_deref());
        }
        self.record(&change.key, before.as_deref())?;
        Ok(Before::Known)
    }

    /// A row of the table in the header's columns.
    fn in_header<'v>(&self, row: &[Datum<'v>]) -> Vec<Datum<'v>> {
        self.columns.iter().map(|&(_, at)| row[at]).collect()
    }

    /// The row as the upload left it: as it was before the next change that is known, else as it
    /// is. `None` if there is none.
    fn image(&self, key: &[Datum<'_>]) -> rusqlite::Result<Option<Vec<Value>>> {
        let names = &self.names;
        let mut scratch = String::new();
        let mut before = self.connection.prepare_cached(&format!(
            "SELECT present{} FROM {} WHERE {} AND generation > ?{} ORDER BY generation LIMIT 1",
            quote::list(&names.pre, "", |pre| format!(", {pre}")),
            names.change,
            names.change_key_is_bound(),
            key.len() + 1,
        ))?;
        row::bind_key(&mut before, key, &mut scratch)?;
        before.raw_bind_parameter(key.len() + 1, self.generation)?;
        let mut found = before.raw_query();
        if let Some(found) = found.next()? {
            return match found.get(0)? {
                true => self.owned(key, found).map(Some),
                false => Ok(None),
            };
        }
        let mut now = self.connection.prepare_cached(&format!(
            "SELECT 1{} FROM {} WHERE {}",
            quote::list(&names.values, "", |&at| format!(", {}", names.columns[at])),
            names.table,
            names.key_is_bound()
        ))?;
        row::bind_key(&mut now, key, &mut scratch)?;
        let mut found = now.raw_query();
        let found = found.next()?;
        found.map(|found| self.owned(key, found)).transpose()
    }

    /// A row of the table: this key, and the values from the second column of a query on.
    fn owned(&self, key: &[Datum<'_>], found: &rusqlite::Row<'_>) -> rusqlite::Result<Vec<Value>> {
        let values = row::owned(found, 1, self.names.values.len())?;
        let mut row = vec![Value::Null; self.types.len()];
        for (&at, datum) in self.key.iter().zip(key) {
            row[at] = datum.to_value();
        }
        for (&at, value) in self.names.values.iter().zip(values) {
            row[at] = value;
        }
        Ok(row)
    }

    /// Writes down what a row was before the upload.
    fn record(&self, key: &[Datum<'_>], before: Option<&[Datum<'_>]>) -> rusqlite::Result<()> {
        let names = &self.names;
        let columns = names.change_key.iter().chain(&names.pre);
        let count = names.change_key.len() + names.pre.len();
        let mut insert = self.connection.prepare_cached(&format!(
            "INSERT INTO {} ({}, generation, present) VALUES ({}, ?{}, ?{}) ON CONFLICT DO NOTHING",
            names.change,
            quote::list(columns, ", ", String::clone),
            quote::list(1..=count, ", ", |n| format!("?{n}")),
            count + 1,
            count + 2,
        ))?;
        let mut scratch = String::new();
        row::bind_key(&mut insert, key, &mut scratch)?;
        let values = names.values.iter();
        let values: Vec<_> = values
            .map(|&at| before.map_or(Datum::Null, |before| before[at]))
            .collect();
        row::bind(&mut insert, names.key.len() + 1, &values, &mut scratch)?;
        insert.raw_bind_parameter(count + 1, self.generation)?;
        insert.raw_bind_parameter(count + 2, before.is_some())?;
        insert.raw_execute().map(drop)
    }
}

/// What is known of a row before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// What it was, or that it was not there.
    Known,
    Unknown,
    /// Nothing: what the change left is not here any more.
    Gone,
}

/// Puts the rows of a table together.
struct Whole<'a> {
    chunk: UploadChunk,
    writer: RowsWriter<'a>,
}

impl Whole<'_> {
    /// The next row: an outlined change, and the row before and after it as far as they are known.
    fn add(
        &mut self,
        table: &TableRewind<'_>,
        outline: &Row<'_>,
        before: Option<&[Datum<'_>]>,
        after: Option<&[Datum<'_>]>,
    ) {
        // Only what was written since can be too long: it is pending, and refused.
        if after.is_some_and(|after| too_long(after).is_some()) {
            return;
        }
        match (outline.op, after) {
            (Some(Op::Request), Some(after)) => {
                self.writer.row(Op::Insert, &table.in_header(after));
                self.chunk.inserts += 1;
            }
            (Some(Op::Update), Some(after)) => {
                let mut old = table.in_header(before.unwrap_or(after));
                for (old, &(index, _)) in old.iter_mut().zip(&table.columns) {
                    if !same(&outline.old[index], &outline.new[index]) {
                        *old = outline.old[index];
                    }
                }
                let new = table.in_header(after);
                if !old.iter().zip(&new).all(|(old, new)| same(old, new)) {
                    self.writer.update(&old, &new);
                    self.chunk.updates += 1;
                }
            }
            (Some(op @ (Op::Delete | Op::Remove)), None) => {
                let old = match op {
                    Op::Delete => before.map(|before| table.in_header(before)),
                    _ => None,
                };
                let key_only = || {
                    let mut row = vec![Datum::Null; table.columns.len()];
                    for (&at, &datum) in table.header.key.iter().zip(&outline.key) {
                        row[at as usize] = datum;
                    }
                    row
                };
                self.writer.delete(&old.unwrap_or_else(key_only));
                self.chunk.deletes += 1;
            }
            // What was deleted was brought back by somebody else since.
            _ => {}
        }
    }
}

/// A change whose row is not here any more.
struct Gone {
    table: String,
    /// The key, readable: a JSON array.
    key: String,
    key_packed: Vec<u8>,
    /// The key as a JSON object.
    values: String,
    operation: &'static str,
}

impl Gone {
    fn of(begin: &TableBegin, outline: &Row<'_>, key_packed: Vec<u8>) -> Gone {
        let names = begin.key_headers().map(|column| column.name.clone());
        let values: serde_json::Map<_, _> = names.zip(outline.key.iter().map(row::json)).collect();
        Gone {
            table: begin.table.clone(),
            key: row::readable_key(&outline.key),
            key_packed,
            values: serde_json::Value::Object(values).to_string(),
            operation: match outline.op {
                Some(Op::Request) => "insert",
                _ => "update",
            },
        }
    }

    fn tell(
        &self,
        connection: &Connection,
        subscription: &SubscriptionState,
    ) -> rusqlite::Result<()> {
        let refusal = Refusal {
            publication: &subscription.publication,
            table: &self.table,
            key: &self.key,
            key_packed: &self.key_packed,
            operation: self.operation,
            code: Code::RowForgotten.name(),
            reason: GONE,
            sequence: subscription.sequence,
            row_values: Some(&self.values),
        };
        refused::record(connection, &refusal)
    }
}
