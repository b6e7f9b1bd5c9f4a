//! Outlines: what is kept of an upload that is too large to be kept whole.
//!
//! Owns their form: the frames of an upload, but of an inserted row only the key; of an updated
//! one what it was before, and which columns changed; of a deleted row all. Long values are
//! left out, and of a deleted row with one all but the key. Making an upload whole again is left
//! to [`super::rewind`].
//!
//! In `tidewater_kept`, `outline` is NULL for an upload that is kept whole, and 0 for one that is
//! kept as one outline. A large upload is kept as several: then it is the number of the part, from
//! 1 on, and each part is an upload of its own when it is given back. While an outline is made
//! whole it is `~outline`, which is less than 0.

use bytes::BytesMut;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_rows};
use tidewater_protocol::message::{Control, TableBegin, UploadBegin, UploadEnd};
use tidewater_protocol::pack::same;
use tidewater_protocol::{Datum, Op, Row, RowsWriter, UploadId, ValueRef};

use super::content::{Part, each_part, each_row_of, shape_of};
use super::put;
use crate::error::RemoteError;

/// What a column held is not written into an outline if it has more bytes.
const LONG: usize = 1024;

/// What stands for the new value where the old one is not there because it was longer.
const WAS_LONG: &str = "long";

/// The same, of a column that did not change.
const IS_LONG: &str = "same";

/// Outlines an upload piece by piece.
#[derive(Debug, Default)]
pub(super) struct Outlines {
    /// The table of the rows that come.
    header: Option<TableBegin>,
    /// Whether the part under way has the header.
    is_headed: bool,
    body: BytesMut,
    /// How many bytes the rows of the part under way had.
    whole_bytes: usize,
    parts: Vec<Vec<u8>>,
}

impl Outlines {
    /// The next rows; `begin` is the header of their table, with its first ones. A part holds
    /// about so many bytes of rows when it is whole.
    pub(super) fn add(
        &mut self,
        begin: Option<&TableBegin>,
        rows: &[u8],
        part_bytes: usize,
    ) -> Result<(), RemoteError> {
        if self.whole_bytes > 0 && self.whole_bytes + rows.len() > part_bytes {
            self.close()?;
        }
        if let Some(begin) = begin {
            self.header = Some(begin.clone());
            self.is_headed = false;
        }
        let Some(header) = &self.header else {
            return Ok(());
        };
        if !self.is_headed {
            put(&mut self.body, Control::TableBegin(header.clone()))?;
            self.is_headed = true;
        }
        put_rows(&mut self.body, SYNC_CHANNEL, &outline(header, rows)?);
        self.whole_bytes += rows.len();
        Ok(())
    }

    /// The bytes of the outlines.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.parts.iter().map(Vec::len).sum::<usize>()
    }

    /// All parts.
    pub(super) fn finish(mut self) -> Result<Vec<Vec<u8>>, RemoteError> {
        self.close()?;
        Ok(self.parts)
    }

    fn close(&mut self) -> Result<(), RemoteError> {
        if self.whole_bytes > 0 {
            let mut part = BytesMut::new();
            put(&mut part, Control::UploadBegin(UploadBegin::default()))?;
            part.extend_from_slice(&self.body);
            put(&mut part, Control::UploadEnd(UploadEnd::default()))?;
            self.parts.push(part.into());
        }
        self.body.clear();
        self.whole_bytes = 0;
        self.is_headed = false;
        Ok(())
    }
}

/// The outlines of an upload, of one part.
pub(super) fn of_upload(upload: &[u8]) -> Result<Vec<u8>, RemoteError> {
    let mut outlines = Outlines::default();
    each_part(BytesMut::from(upload), |part| match part {
        Part::Begin(_) => Ok(()),
        Part::Table(begin, rows) => outlines.add(Some(&begin), &rows, usize::MAX),
    })?;
    Ok(outlines.finish()?.pop().unwrap_or_default())
}

/// The id under which what is kept of an upload is given back, by its `outline`: the upload's own,
/// and for each of several parts one that every copy of the file makes alike, so that only one of
/// them gives the part back.
pub(super) fn part_id(upload_id: UploadId, outline: Option<i64>) -> UploadId {
    let part = match outline.unwrap_or(0) {
        part @ 0.. => part,
        whole => !whole,
    };
    let id = u128::from_be_bytes(upload_id.0).wrapping_add_signed(part.into());
    UploadId(id.to_be_bytes())
}

/// The outlines of rows.
fn outline(begin: &TableBegin, rows: &[u8]) -> Result<Vec<u8>, RemoteError> {
    let shape = shape_of(begin)?;
    let mut writer = RowsWriter::new(&shape);
    each_row_of(begin, &shape, rows, |row, _| match row.op {
        Some(Op::Insert) => writer.key(Op::Request, &row.key),
        Some(Op::Update) => {
            let (old, new) = changed_columns(row, &shape.key);
            writer.update(&old, &new);
        }
        Some(Op::Delete) if row.old.iter().any(is_long) => writer.key(Op::Remove, &row.key),
        Some(Op::Delete) => writer.delete(&row.old),
        _ => {}
    })?;
    Ok(writer.take())
}

/// The two images of an update in an outline, of which the second one only says what changed:
/// see [`Was`].
fn changed_columns<'a>(row: &Row<'a>, key: &[usize]) -> (Vec<Datum<'a>>, Vec<Datum<'a>>) {
    let images = row.old.iter().zip(&row.new).enumerate();
    images
        .map(|(index, (&old, &new))| {
            let is_same = same(&old, &new);
            match old {
                _ if key.contains(&index) => (old, old),
                _ if is_same && is_long(&old) => (Datum::Null, like(old, IS_LONG)),
                _ if is_same => (old, old),
                Datum::Null | Datum::Loose(ValueRef::Null) => (Datum::Null, like(new, "")),
                _ if is_long(&old) => (Datum::Null, like(old, WAS_LONG)),
                _ => (old, Datum::Null),
            }
        })
        .unzip()
}

/// A short value that is packed as this one is, and says this if it can be text.
fn like<'a>(value: Datum<'a>, text: &'static str) -> Datum<'a> {
    match value {
        Datum::Text(_) => Datum::Text(text),
        Datum::Bytes(_) => Datum::Bytes(text.as_bytes()),
        Datum::Loose(_) => Datum::Loose(ValueRef::Text(text)),
        value => value,
    }
}

/// What an outline says of a column of an updated row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Was<'v> {
    /// It was this, and did not change.
    Same(Datum<'v>),
    /// It did not change, and is too long to be in the outline.
    SameLong,
    /// It was this, and changed.
    Changed(Datum<'v>),
    /// It changed, and was too long to be in the outline.
    ChangedLong,
}

impl<'v> Was<'v> {
    /// By the outline's two images of the column.
    pub(super) fn of(old: &Datum<'v>, new: &Datum<'v>) -> Was<'v> {
        let mark = match new {
            _ if !matches!(old, Datum::Null) => &[],
            Datum::Text(text) | Datum::Loose(ValueRef::Text(text)) => text.as_bytes(),
            Datum::Bytes(bytes) => bytes,
            _ => &[],
        };
        match *old {
            old if same(&old, new) => Was::Same(old),
            _ if mark == IS_LONG.as_bytes() => Was::SameLong,
            _ if mark == WAS_LONG.as_bytes() => Was::ChangedLong,
            old => Was::Changed(old),
        }
    }
}

fn is_long(value: &Datum<'_>) -> bool {
    let bytes = match value {
        Datum::Text(text) | Datum::Loose(ValueRef::Text(text)) => text.len(),
        Datum::Bytes(bytes) | Datum::Loose(ValueRef::Blob(bytes)) => bytes.len(),
        _ => 0,
    };
    bytes > LONG
}
