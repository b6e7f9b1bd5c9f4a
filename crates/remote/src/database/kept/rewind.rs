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

use super::TableAndKey;
use super::content::{Part, each_part, each_row, shape_of};
use super::copy::Frames;
use super::outline::{self, Was};
use crate::database::refused::{self, Refusal};
use crate::database::subscription::load_all;
use crate::database::tables::Names;
use crate::database::{SubscriptionState, UploadChunk, quote, row};
use crate::error::{Doing, RemoteError};

const DOING: &str = "filling in an upload that the centre has forgotten";

/// Why the key of a change is among the refused.
const GONE: &str = "the centre was restored and has forgotten this change, which was too large to \
                    be kept, and its row is not here any more, or not as it was: write it again if \
                    it is still wanted";

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

/// A kept upload.
struct Listed {
    id: i64,
    is_outline: bool,
    is_given: bool,
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
    let uploads: Vec<Listed> = connection
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let rows = statement.query_map([subscription.id, first], |row| {
                Ok(Listed {
                    id: row.get(0)?,
                    is_outline: row.get(1)?,
                    is_given: row.get(2)?,
                })
            })?;
            rows.collect()
        })
        .doing(DOING)?;
    let mut rewind = Rewind {
        connection,
        subscription,
        id: 0,
        generation: 0,
        unknown: HashSet::new(),
        follows_insert: updates_after_inserts(connection, &uploads)?,
    };
    for upload in uploads {
        let Listed {
            id,
            is_outline,
            is_given,
        } = upload;
        rewind.id = id;
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

/// The updates of long values that follow, outline on outline, the insert of their row: this one
/// brings the row with the value that it has now. By the number of the upload.
fn updates_after_inserts(
    connection: &Connection,
    uploads: &[Listed],
) -> Result<HashSet<(i64, TableAndKey)>, RemoteError> {
    let mut changed_long = HashSet::new();
    for upload in uploads.iter().filter(|it| it.is_outline) {
        each_change(connection, upload.id, |key, row| {
            if has_changed_long(row) {
                changed_long.insert(key);
            }
        })?;
    }
    let (mut follow, mut inserted) = (HashSet::new(), HashSet::new());
    if changed_long.is_empty() {
        return Ok(follow);
    }
    for &Listed {
        id,
        is_outline,
        is_given,
    } in uploads.iter().rev()
    {
        each_change(connection, id, |key, row| match row.op {
            Some(Op::Request) if is_given && changed_long.contains(&key) => {
                inserted.insert(key);
            }
            Some(Op::Update) if is_outline && inserted.contains(&key) => {
                if has_changed_long(row) {
                    follow.insert((id, key));
                }
            }
            _ => drop(inserted.remove(&key)),
        })?;
    }
    Ok(follow)
}

/// Goes through the changes of a kept upload.
fn each_change(
    connection: &Connection,
    id: i64,
    mut visit: impl FnMut(TableAndKey, &Row<'_>),
) -> Result<(), RemoteError> {
    let upload = bytes_of(connection, id).doing(DOING)?;
    each_part(BytesMut::from(&upload[..]), |part| match part {
        Part::Begin(_) => Ok(()),
        Part::Table(begin, rows) => each_row(&begin, &rows, |row, key_packed, _| {
            visit((begin.table.clone(), key_packed), row);
        }),
    })
}

/// Whether an outlined row changed a value that was too long for the outline.
fn has_changed_long(row: &Row<'_>) -> bool {
    let mut images = row.old.iter().zip(&row.new);
    row.op == Some(Op::Update) && images.any(|(old, new)| Was::of(old, new) == Was::ChangedLong)
}

/// Goes back in time, upload by upload.
struct Rewind<'a> {
    connection: &'a Connection,
    subscription: &'a SubscriptionState,
    /// The number of the upload in the file.
    id: i64,
    /// Under which the rows are written as they were before the upload.
    generation: i64,
    /// Rows of which it is not known any more what the upload left.
    unknown: HashSet<TableAndKey>,
    /// See [`updates_after_inserts`].
    follows_insert: HashSet<(i64, TableAndKey)>,
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
                // Nobody can say what its rows are now.
                return each_row(&begin, &rows, |row, key_packed, _| {
                    if let Some(Op::Request | Op::Update) = row.op {
                        gone.push(Gone::of(&begin, row, key_packed));
                    }
                });
            };
            let id = self.id;
            let follows = |key: &TableAndKey| self.follows_insert.contains(&(id, key.clone()));
            let chunk = of_table.go_through(&rows, &mut self.unknown, &follows, &mut gone)?;
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
    /// The table's.
    header: TableBegin,
    /// For each of the table's columns, where it is in the upload.
    columns: Vec<Option<usize>>,
}

impl<'a> TableRewind<'a> {
    /// `None` if the table has another key now.
    fn of(
        rewind: &Rewind<'a>,
        table: &'a Table,
        begin: &'a TableBegin,
        is_outline: bool,
    ) -> Option<TableRewind<'a>> {
        let header = TableBegin::of(table);
        if !begin.key_headers().eq(header.key_headers()) {
            return None;
        }
        let place = |column| begin.columns.iter().position(|it| it == column);
        Some(TableRewind {
            connection: rewind.connection,
            generation: rewind.generation,
            names: Names::of(table),
            types: table.shape().columns,
            key: &table.key,
            is_outline,
            begin,
            columns: header.columns.iter().map(place).collect(),
            header,
        })
    }

    /// Goes to before these rows of an upload, and makes those of an outline whole. Those that are
    /// not here any more although the upload left them here are gone. `follows_insert`: see
    /// [`updates_after_inserts`].
    fn go_through(
        &self,
        rows: &[u8],
        unknown: &mut HashSet<TableAndKey>,
        follows_insert: &dyn Fn(&TableAndKey) -> bool,
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
            let follows_insert = follows_insert(&key);
            match self.go_back(row, unknown.contains(&key), follows_insert, &mut whole) {
                Ok(Before::Known) => {
                    if self.changes_lacking(row) {
                        gone.push(Gone::of(self.begin, row, key.1.clone()));
                    }
                    unknown.remove(&key);
                }
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
        follows_insert: bool,
        whole: &mut Whole<'_>,
    ) -> rusqlite::Result<Before> {
        let after = match is_unknown {
            true => None,
            false => self.image(&change.key)?,
        };
        let after = after
            .as_deref()
            .map(|after| row::datums(&self.types, after));
        let before = match (change.op, after) {
            (Some(Op::Insert), _) => None,
            (Some(Op::Request), after) => {
                match after {
                    Some(after) => whole.insert(&after),
                    None if !is_unknown => return Ok(Before::Gone),
                    None => {}
                }
                None
            }
            (Some(Op::Delete), _) => {
                let old = self.old(change, None);
                if self.is_outline {
                    whole.delete(&old);
                }
                Some(old)
            }
            (Some(Op::Remove), _) => {
                whole.delete(&self.only_key(change));
                return Ok(Before::Unknown);
            }
            (Some(Op::Update), after) if !self.is_outline => Some(self.old(change, after)),
            (Some(Op::Update), Some(after)) => {
                let (mut before, mut old, mut new) = (after.clone(), after.clone(), after);
                for (at, index) in self.columns.iter().enumerate() {
                    let Some(index) = *index else { continue };
                    match Was::of(&change.old[index], &change.new[index]) {
                        // Others may have changed it since.
                        Was::Same(same) => {
                            (before[at], old[at], new[at]) = (same, same, same);
                        }
                        Was::SameLong => {}
                        Was::Changed(was) => (before[at], old[at]) = (was, was),
                        Was::ChangedLong if follows_insert => {}
                        Was::ChangedLong => old[at] = Datum::Null,
                    }
                }
                whole.update(&old, &new);
                Some(before)
            }
            (Some(Op::Update), None) if !is_unknown => return Ok(Before::Gone),
            _ => return Ok(Before::Unknown),
        };
        self.record(&change.key, before.as_deref())?;
        Ok(Before::Known)
    }

    /// The old image of a change in the table's columns; those that it does not have are as in
    /// this row.
    fn old<'v>(&self, change: &Row<'v>, row: Option<Vec<Datum<'v>>>) -> Vec<Datum<'v>> {
        let mut old = row.unwrap_or_else(|| vec![Datum::Null; self.types.len()]);
        for (old, index) in old.iter_mut().zip(&self.columns) {
            if let Some(index) = *index {
                *old = change.old[index];
            }
        }
        old
    }

    /// A row of which only the key is known.
    fn only_key<'v>(&self, change: &Row<'v>) -> Vec<Datum<'v>> {
        let mut row = vec![Datum::Null; self.types.len()];
        for (&at, &datum) in self.key.iter().zip(&change.key) {
            row[at] = datum;
        }
        row
    }

    /// Whether an outlined update changed a column that the table does not have any more, or not
    /// with this type.
    fn changes_lacking(&self, change: &Row<'_>) -> bool {
        self.is_outline
            && change.op == Some(Op::Update)
            && (0..self.begin.columns.len()).any(|index| {
                let was = Was::of(&change.old[index], &change.new[index]);
                let is_changed = matches!(was, Was::Changed(_) | Was::ChangedLong);
                is_changed && !self.columns.contains(&Some(index))
            })
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
    fn insert(&mut self, new: &[Datum<'_>]) {
        // Only what was written since can be too long: it is pending, and refused.
        if too_long(new).is_none() {
            self.writer.row(Op::Insert, new);
            self.chunk.inserts += 1;
        }
    }

    fn update(&mut self, old: &[Datum<'_>], new: &[Datum<'_>]) {
        let is_change = !old.iter().zip(new).all(|(old, new)| same(old, new));
        if is_change && too_long(new).is_none() {
            self.writer.update(old, new);
            self.chunk.updates += 1;
        }
    }

    fn delete(&mut self, old: &[Datum<'_>]) {
        self.writer.delete(old);
        self.chunk.deletes += 1;
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
