//! Defects between server and centre, of uploads: other rows arrive than were sent.

use rusqlite::{Connection, OptionalExtension};

use tidewater_centre::SyncUpload;
use tidewater_centre::upload::{UploadChunk, UploadTable};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Datum, Op, RowsReader, RowsWriter, UnpackedRow, Value, ValueRef};

use super::list::{Defect, current};
use crate::liar;

/// Who holds every region; nobody signs in under this name.
pub(super) const EVERYBODY: &str = "everybody";

/// Whether an upload inserts, and whether it does something else.
fn does(upload: &SyncUpload) -> (bool, bool) {
    let (mut inserts, mut others) = (false, false);
    for table in &upload.tables {
        each_row(table, |row| match row.op {
            Some(Op::Insert) => inserts = true,
            _ => others = true,
        });
    }
    (inserts, others)
}

pub(super) fn each_row(table: &UploadTable, mut visit: impl FnMut(&UnpackedRow<'_>)) {
    for chunk in &table.chunks {
        if let Ok(bytes) = chunk.packed() {
            rewritten(&table.begin, &bytes, &mut |row, _| {
                visit(row);
                None
            });
        }
    }
}

pub(super) fn alter(upload: &mut SyncUpload, centre: &Connection) {
    let is_unchecked = match (current(), does(upload)) {
        (Some(Defect::NewScopeUnchecked), (inserts, others)) => inserts && !others,
        (Some(Defect::CentralScopeUnchecked), (inserts, others)) => others && !inserts,
        _ => false,
    };
    if is_unchecked {
        upload.context.user = EVERYBODY.into();
        upload.checkpoint.iter_mut().for_each(liar::claim_all);
    }
    match current() {
        Some(Defect::SequenceNotClaimed) => {
            let sql = "SELECT sequence FROM tidewater_centre_subscription WHERE remote_id = ?1";
            let there = centre.query_row(sql, [upload.context.remote_id.0], |row| {
                row.get::<_, i64>(0)
            });
            if let Ok(there) = there {
                upload.sequence = there.unsigned_abs() + 1;
            }
        }
        Some(Defect::HalfUploadApplied) => {
            if let Some(table) = upload.tables.last_mut() {
                let mut count = 0;
                each_row(table, |_| count += 1);
                rewrite(table, &mut |_, number| (number < count / 2).then_some(()));
            }
        }
        Some(Defect::KeyChangeTakenApart) => upload.tables.iter_mut().for_each(take_apart),
        Some(Defect::DeleteNotApplied) => {
            for table in &mut upload.tables {
                rewrite(table, &mut |row, _| {
                    (row.op != Some(Op::Delete)).then_some(())
                });
            }
        }
        Some(Defect::ConflictUnnoticed) => {
            for table in &mut upload.tables {
                follow(table, centre);
            }
        }
        Some(Defect::ColumnsOverwritten) => {
            for table in upload
                .tables
                .iter_mut()
                .filter(|it| it.begin.table == "form")
            {
                follow(table, centre);
            }
        }
        _ => {}
    }
}

/// Keeps these rows of an upload's table.
pub(super) fn rewrite(table: &mut UploadTable, keeps: Keeps<'_>) {
    let mut all = Vec::new();
    for chunk in &table.chunks {
        all.extend_from_slice(&chunk.packed().unwrap_or_default());
    }
    let kept = rewritten(&table.begin, &all, keeps);
    if let Some(shape) = table.begin.shape() {
        table.chunks.clear();
        table.chunks.extend(UploadChunk::from_packed(&shape, kept));
    }
}

/// Whether to keep a row, by its number.
pub(super) type Keeps<'a> = &'a mut dyn FnMut(&UnpackedRow<'_>, usize) -> Option<()>;

/// Those rows that are kept.
pub(super) fn rewritten(begin: &TableBegin, rows: &[u8], keeps: Keeps<'_>) -> Vec<u8> {
    let Some(shape) = begin.shape() else {
        return rows.to_vec();
    };
    let mut reader = RowsReader::new(&shape, rows);
    let (mut row, mut kept) = (UnpackedRow::default(), Vec::new());
    let (mut from, mut number) = (0, 0);
    while let Ok(true) = reader.next(&mut row) {
        let to = reader.consumed();
        if keeps(&row, number).is_some() {
            kept.extend_from_slice(&rows[from..to]);
        }
        (from, number) = (to, number + 1);
    }
    // What it has no columns for.
    kept.extend_from_slice(&rows[from..]);
    kept
}

/// Makes of a row that gets another key one that goes and one that comes.
fn take_apart(table: &mut UploadTable) {
    let Some(shape) = table.begin.shape() else {
        return;
    };
    let mut writer = RowsWriter::new(&shape);
    each_row(table, |row| match row.op {
        Some(Op::Update) if shape.key.iter().any(|&it| row.old[it] != row.new[it]) => {
            writer.delete(&row.old);
            writer.row(Op::Insert, &row.new);
        }
        Some(Op::Update) => writer.update(&row.old, &row.new),
        Some(Op::Delete) => writer.delete(&row.old),
        _ => writer.row(Op::Insert, &row.new),
    });
    table.chunks.clear();
    table
        .chunks
        .extend(UploadChunk::from_packed(&shape, writer.take()));
}

/// Gives the changes of a table the centre's rows as pre-images.
fn follow(table: &mut UploadTable, centre: &Connection) {
    let Some(shape) = table.begin.shape() else {
        return;
    };
    let columns: Vec<&str> = table.begin.columns.iter().map(|it| &*it.name).collect();
    let key = table.begin.key.first().map_or(0, |&key| key as usize);
    let sql = format!(
        "SELECT {} FROM {} WHERE {} = ?1",
        columns.join(", "),
        table.begin.table,
        columns[key]
    );
    let mut writer = RowsWriter::new(&shape);
    each_row(table, |row| {
        let key = row.key.first().map_or(Value::Null, Datum::to_value);
        let values = centre.query_row(&sql, [sqlite(&key)], |found| {
            (0..columns.len())
                .map(|index| found.get::<_, rusqlite::types::Value>(index))
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        let values = values.optional().ok().flatten();
        let now: Option<Vec<Datum<'_>>> = values.as_ref().map(|values| {
            let typed = shape.columns.iter().zip(values);
            typed.map(|(of, value)| of.datum(ours(value)).0).collect()
        });
        match (row.op, now) {
            (Some(Op::Update), Some(now)) => writer.update(&now, &row.new),
            (Some(Op::Update), None) => writer.update(&row.old, &row.new),
            (Some(Op::Delete), Some(now)) => writer.delete(&now),
            (Some(Op::Delete), None) => writer.delete(&row.old),
            _ => writer.row(Op::Insert, &row.new),
        }
    });
    table.chunks.clear();
    table
        .chunks
        .extend(UploadChunk::from_packed(&shape, writer.take()));
}

fn sqlite(value: &Value) -> rusqlite::types::Value {
    match value.clone() {
        Value::Null => rusqlite::types::Value::Null,
        Value::Integer(integer) => integer.into(),
        Value::Real(real) => real.into(),
        Value::Text(text) => text.into(),
        Value::Blob(blob) => blob.into(),
    }
}

fn ours(value: &rusqlite::types::Value) -> ValueRef<'_> {
    match value {
        rusqlite::types::Value::Null => ValueRef::Null,
        rusqlite::types::Value::Integer(integer) => ValueRef::Integer(*integer),
        rusqlite::types::Value::Real(real) => ValueRef::Real(*real),
        rusqlite::types::Value::Text(text) => ValueRef::Text(text),
        rusqlite::types::Value::Blob(blob) => ValueRef::Blob(blob),
    }
}
