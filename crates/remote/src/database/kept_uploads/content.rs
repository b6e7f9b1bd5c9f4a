//! What is in a kept upload.
//!
//! Owns going through its frames: leaving out what was refused, and finding what the user wrote.

use std::collections::HashMap;
use std::ops::Range;

use bytes::BytesMut;
use rusqlite::Connection;
use serde_json::Map;
use tidewater_protocol::frame::{Frame, SYNC_CHANNEL, put_rows};
use tidewater_protocol::message::{Control, TableBegin, UploadBegin, UploadEnd};
use tidewater_protocol::{Datum, Op, PublicationSchema, RowsReader, UnpackedRow};

use super::{GivenBackUpload, RefusedKeys, TableAndKey, frames, next_frame, put};
use crate::database::conflicts::{self, ChangeImages};
use crate::database::row;
use crate::error::RemoteError;

/// An upload without these changes; empty if nothing is left of it.
pub(super) fn without(upload: &[u8], refused: &RefusedKeys) -> Result<Vec<u8>, RemoteError> {
    let mut kept = BytesMut::new();
    let mut end = UploadEnd::default();
    let mut checksum = crc32fast::Hasher::new();
    let mut first = None;
    each_part(BytesMut::from(upload), |part| {
        match part {
            UploadPart::Begin(begin) => first = Some(begin),
            UploadPart::Table(begin, rows) => {
                let left = without_rows(&begin, &rows, refused, &mut end)?;
                if !left.is_empty() {
                    put(&mut kept, Control::TableBegin(begin))?;
                    put_rows(&mut kept, SYNC_CHANNEL, &left);
                    checksum.update(&left);
                }
            }
        }
        Ok(())
    })?;
    let rows = end.inserts + end.updates + end.deletes;
    let (Some(begin), 1..) = (first, rows) else {
        return Ok(Vec::new());
    };
    end.checksum = checksum.finalize();
    let mut frames = BytesMut::new();
    let begin = UploadBegin {
        rows,
        bytes: kept.len() as u64,
        ..begin
    };
    put(&mut frames, Control::UploadBegin(begin))?;
    frames.extend_from_slice(&kept);
    put(&mut frames, Control::UploadEnd(end))?;
    Ok(frames.to_vec())
}

/// The rows of a table without the refused ones, as they are; counts what is left.
fn without_rows(
    begin: &TableBegin,
    rows: &[u8],
    refused: &RefusedKeys,
    end: &mut UploadEnd,
) -> Result<Vec<u8>, RemoteError> {
    let mut left = Vec::with_capacity(rows.len());
    each_row(begin, rows, |row, key_packed, range| {
        if refused.contains(&(begin.table.clone(), key_packed)) {
            return;
        }
        left.extend_from_slice(&rows[range]);
        match row.op {
            Some(Op::Insert) => end.inserts += 1,
            Some(Op::Delete) => end.deletes += 1,
            _ => end.updates += 1,
        }
    })?;
    Ok(left)
}

/// A part of an upload, put together.
enum UploadPart {
    Begin(UploadBegin),
    Table(TableBegin, Vec<u8>),
}

/// Goes through an upload.
fn each_part(
    mut frames: BytesMut,
    mut visit: impl FnMut(UploadPart) -> Result<(), RemoteError>,
) -> Result<(), RemoteError> {
    let mut table: Option<(TableBegin, Vec<u8>)> = None;
    loop {
        let control = match next_frame(&mut frames)? {
            Some(Frame::Rows { bytes, .. }) => {
                if let Some((_, rows)) = &mut table {
                    rows.extend_from_slice(&bytes);
                }
                continue;
            }
            Some(Frame::Control { control, .. }) => control,
            Some(Frame::Message { .. }) => None,
            None => return Ok(()),
        };
        if let Some((begin, rows)) = table.take() {
            visit(UploadPart::Table(begin, rows))?;
        }
        match control {
            Some(Control::UploadBegin(begin)) => visit(UploadPart::Begin(begin))?,
            Some(Control::TableBegin(begin)) => table = Some((begin, Vec::new())),
            _ => {}
        }
    }
}

/// Goes through the rows of a table of an upload: each with its packed key, and where it is.
fn each_row(
    begin: &TableBegin,
    rows: &[u8],
    mut visit: impl FnMut(&UnpackedRow<'_>, Vec<u8>, Range<usize>),
) -> Result<(), RemoteError> {
    let bad = || bad_rows(begin, "a kept upload has a header that cannot be".into());
    let shape = begin.shape().ok_or_else(bad)?;
    let key_types = shape.key_columns();
    let mut reader = RowsReader::new(&shape, rows);
    let mut row = UnpackedRow::default();
    let mut from = 0;
    loop {
        match reader.next(&mut row) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(bad_rows(begin, error.to_string())),
        }
        let to = reader.consumed();
        let key_packed = row::pack_key(&key_types, &row.key);
        visit(&row, key_packed, from..to);
        from = to;
    }
}

fn bad_rows(begin: &TableBegin, what: String) -> RemoteError {
    RemoteError::BadRows {
        table: begin.table.clone(),
        what,
    }
}

/// What the user wrote in a change that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnChange {
    pub(crate) operation: &'static str,
    /// The key, readable: a JSON array.
    pub(crate) key: String,
    /// The key and the changed columns, a JSON object.
    pub(crate) values: String,
}

/// Finds the changes of these tables and packed keys in an upload that is given back.
pub(crate) fn own_changes(
    connection: &Connection,
    giving: GivenBackUpload,
    wanted: &RefusedKeys,
) -> Result<HashMap<TableAndKey, OwnChange>, RemoteError> {
    find(connection, giving, wanted, |begin, row, _| {
        own_change(begin, row, &|_| true)
    })
}

/// The same, with the whole rows of both their images.
pub(crate) fn images(
    connection: &Connection,
    giving: GivenBackUpload,
    wanted: &RefusedKeys,
) -> Result<HashMap<TableAndKey, ChangeImages>, RemoteError> {
    find(connection, giving, wanted, |begin, row, key_packed| {
        let whole = |image: &[Datum<'_>]| {
            let names = begin.columns.iter().map(|column| column.name.as_str());
            (!image.is_empty()).then(|| conflicts::object(names.zip(image)))
        };
        ChangeImages {
            key_packed: key_packed.to_vec(),
            key: row::readable_key(&row.key),
            pre_image: whole(&row.old),
            mine: whole(&row.new),
        }
    })
}

/// Reads these changes, each in some way.
fn find<T>(
    connection: &Connection,
    giving: GivenBackUpload,
    wanted: &RefusedKeys,
    read: impl Fn(&TableBegin, &UnpackedRow<'_>, &[u8]) -> T,
) -> Result<HashMap<TableAndKey, T>, RemoteError> {
    let mut found = HashMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    each_part(frames(connection, giving)?, |part| {
        let UploadPart::Table(begin, rows) = part else {
            return Ok(());
        };
        each_row(&begin, &rows, |row, key_packed, _| {
            let key = (begin.table.clone(), key_packed);
            if wanted.contains(&key) {
                let change = read(&begin, row, &key.1);
                found.insert(key, change);
            }
        })
    })?;
    Ok(found)
}

/// What an upload that is given back says of columns that the schema lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedChange {
    pub(crate) key: TableAndKey,
    pub(crate) change: OwnChange,
    /// The table's columns that the schema lacks.
    pub(crate) columns: Vec<String>,
}

/// Finds the changes of columns that the schema lacks in an upload that is given back. A table
/// that it lacks altogether is none of these.
pub(crate) fn dropped_changes(
    connection: &Connection,
    giving: GivenBackUpload,
    schema: Option<&PublicationSchema>,
) -> Result<Vec<DroppedChange>, RemoteError> {
    let mut found = Vec::new();
    each_part(frames(connection, giving)?, |part| {
        let UploadPart::Table(begin, rows) = part else {
            return Ok(());
        };
        let Some(table) = schema.and_then(|schema| schema.table(&begin.table)) else {
            return Ok(());
        };
        let columns = begin.columns.iter().enumerate();
        let lacking = columns.filter(|(_, column)| table.column(&column.name).is_none());
        let (lacking, columns): (Vec<usize>, Vec<String>) = lacking
            .map(|(index, column)| (index, column.name.clone()))
            .unzip();
        if lacking.is_empty() {
            return Ok(());
        }
        each_row(&begin, &rows, |row, key_packed, _| {
            let is_changed = |&index: &usize| match row.op {
                Some(Op::Insert) => row.new[index] != Datum::Null,
                Some(Op::Update) => row.old[index] != row.new[index],
                _ => false,
            };
            if lacking.iter().any(is_changed) {
                found.push(DroppedChange {
                    key: (begin.table.clone(), key_packed),
                    change: own_change(&begin, row, &|index| lacking.contains(&index)),
                    columns: columns.clone(),
                });
            }
        })
    })?;
    Ok(found)
}

/// The key, and the changed columns among those that are meant.
fn own_change(
    begin: &TableBegin,
    row: &UnpackedRow<'_>,
    is_meant: &dyn Fn(usize) -> bool,
) -> OwnChange {
    let mut values = Map::new();
    for (index, header) in begin.columns.iter().enumerate() {
        let in_key = begin.key.iter().any(|&key| key as usize == index);
        let is_own = match row.op {
            _ if in_key => true,
            Some(Op::Insert) => is_meant(index),
            Some(Op::Update) => is_meant(index) && row.old[index] != row.new[index],
            _ => false,
        };
        let image = if row.new.is_empty() {
            &row.old
        } else {
            &row.new
        };
        if is_own {
            values.insert(header.name.clone(), row::json(&image[index]));
        }
    }
    OwnChange {
        operation: match row.op {
            Some(Op::Insert) => "insert",
            Some(Op::Delete) => "delete",
            _ => "update",
        },
        key: row::readable_key(&row.key),
        values: serde_json::Value::Object(values).to_string(),
    }
}
