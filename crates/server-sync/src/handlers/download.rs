//! What is new in a table, as a handler tells it: page by page, from a cursor of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{ColumnType, Datum, Op, RowShape, RowsWriter, Table, Value};

use super::document::{Document, kind, whole};
use super::upload::columns;
use super::{About, HandlerReply, key_of};
use tidewater_server_config::HandlerEvent;

/// No page is longer.
pub const PAGE_BYTES: usize = 16 << 20;

/// A cursor travels with each sync.
const CURSOR_BYTES: usize = 4 << 10;

/// So many pages are asked for in one sync: a handler that always has more would never end.
pub const MOST_PAGES: usize = 100_000;

/// A page of what is new.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Rows, with all their columns in order.
    pub rows: Vec<Vec<Value>>,
    /// Keys of rows that are gone, or that the user has no more.
    pub removed: Vec<Vec<Value>>,
    /// Where the next one begins: JSON.
    pub cursor: String,
    /// There is another one now.
    pub more: bool,
    /// The cursor that it was asked with means nothing to it.
    pub reset: bool,
}

/// What is asked for.
pub struct HandlerQuery<'w> {
    /// The table.
    pub table: &'w Table,
    /// JSON; nothing from the beginning.
    pub cursor: Option<&'w str>,
    /// Keys of rows that the remote wants again.
    pub again: &'w [Map<String, Json>],
}

impl HandlerQuery<'_> {
    /// The request.
    pub fn document(&self, about: &About) -> Document {
        let event = HandlerEvent::Download;
        let mut head = about.head(event);
        head.insert("table".into(), self.table.name.as_str().into());
        let cursor = self
            .cursor
            .map(|it| serde_json::from_str(it).unwrap_or_default());
        head.insert("cursor".into(), cursor.unwrap_or(Json::Null));
        if !self.again.is_empty() {
            head.insert("again".into(), self.again.to_vec().into());
        }
        let parts = [
            about.sync_id.as_str(),
            &about.publication,
            &self.table.name,
            self.cursor.unwrap_or_default(),
        ];
        let key = key_of(&parts.map(str::as_bytes));
        Document::of(event, head, &key)
    }
}

/// Reads a page.
///
/// # Errors
/// It is none: what it is, and what was expected.
pub fn page(reply: &HandlerReply, table: &Table, first: bool) -> Result<Page, String> {
    let mut answer = whole(reply)?;
    let flag = |name: &str, value: Option<&Json>| match value {
        None | Some(Json::Null) => Ok(false),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(other) => Err(format!(
            "{name:?} is {}, and true or false is expected",
            kind(other)
        )),
    };
    if flag("reset", answer.get("reset"))? {
        return match first {
            true => Err("it asks to begin anew, and was asked from the beginning".into()),
            false => Ok(Page {
                reset: true,
                ..Page::default()
            }),
        };
    }
    let more = flag("more", answer.get("more"))?;
    let cursor = match answer.get("cursor") {
        None | Some(Json::Null) => {
            return Err("it has no \"cursor\": it tells where the next page begins".into());
        }
        Some(cursor) => cursor.to_string(),
    };
    if cursor.len() > CURSOR_BYTES {
        return Err(format!(
            "its cursor has {} bytes, and {CURSOR_BYTES} may be",
            cursor.len()
        ));
    }
    let mut list = |name: &str| match answer.remove(name) {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::Array(list)) => Ok(list),
        Some(other) => Err(format!(
            "{name:?} is {}, and a list is expected",
            kind(&other)
        )),
    };
    let (rows, removed) = (list("rows")?, list("removed")?);
    let rows = rows.into_iter().enumerate().map(|(at, json)| {
        let read = row(table, &json);
        read.map_err(|what| format!("row number {}: {what}", at + 1))
    });
    let removed = removed.into_iter().enumerate().map(|(at, json)| {
        let read = key(table, &json);
        read.map_err(|what| format!("removed key number {}: {what}", at + 1))
    });
    Ok(Page {
        rows: rows.collect::<Result<_, _>>()?,
        removed: removed.collect::<Result<_, _>>()?,
        cursor,
        more,
        reset: false,
    })
}

fn row(table: &Table, json: &Json) -> Result<Vec<Value>, String> {
    let mut values = vec![Value::Null; table.columns.len()];
    for (name, value) in columns(table, Some(json)).map_err(|it| it.replace("its \"new\"", "it"))? {
        if let Some(column) = table.column(&name) {
            values[column] = value;
        }
    }
    let columns = table.columns.iter().enumerate();
    let mut empty = columns.filter(|(at, column)| {
        let is_needed = !column.nullable || table.key.contains(at);
        is_needed && values[*at] == Value::Null
    });
    match empty.next() {
        Some((_, column)) => Err(format!("the column {:?} is missing or null", column.name)),
        None => Ok(values),
    }
}

fn key(table: &Table, json: &Json) -> Result<Vec<Value>, String> {
    let mut given = columns(table, Some(json)).map_err(|it| it.replace("its \"new\"", "it"))?;
    let key = table.key_columns().map(|column| {
        let place = given
            .iter()
            .position(|it| it.0 == column.name && it.1 != Value::Null);
        let place = place.ok_or_else(|| format!("the key column {:?} is missing", column.name))?;
        Ok(given.swap_remove(place).1)
    });
    key.collect()
}

/// What the pages of a table have come to: of each key what was told of it last.
pub struct CollectedRows<'t> {
    table: &'t Table,
    shape: RowShape,
    rows: BTreeMap<Vec<u8>, (Vec<Value>, bool)>,
}

impl<'t> CollectedRows<'t> {
    /// Of a table, nothing yet.
    pub fn new(table: &'t Table) -> CollectedRows<'t> {
        CollectedRows {
            table,
            shape: table.shape(),
            rows: BTreeMap::new(),
        }
    }

    /// Adds a page; gives about how many bytes it takes.
    pub fn add(&mut self, page: Page) -> usize {
        let mut bytes = 0;
        let rows = page.rows.into_iter().map(|row| {
            let key = self.table.key.iter().map(|&it| row[it].clone());
            (key.collect::<Vec<Value>>(), row, true)
        });
        let removed = page
            .removed
            .into_iter()
            .map(|key| (key.clone(), key, false));
        let types: Vec<ColumnType> = self.table.key_columns().map(|it| it.column_type).collect();
        for (key, values, is_there) in rows.chain(removed) {
            let datums = types.iter().zip(&key);
            let datums: Vec<Datum<'_>> = datums
                .map(|(it, value)| it.datum(value.as_ref()).0)
                .collect();
            let mut packed = Vec::new();
            pack_values(&mut packed, &types, &datums);
            bytes += packed.len() + values.len() * size_of::<Value>() + 64;
            bytes += values.iter().map(length).sum::<usize>();
            self.rows.insert(packed, (values, is_there));
        }
        bytes
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// Packs all into pieces of about so many bytes.
    pub fn pack(self, piece_bytes: usize) -> Vec<Vec<u8>> {
        let mut writer = RowsWriter::new(&self.shape);
        let mut pieces = Vec::new();
        for (values, is_there) in self.rows.into_values() {
            let types: Vec<ColumnType> = match is_there {
                true => self.shape.columns.clone(),
                false => self.table.key_columns().map(|it| it.column_type).collect(),
            };
            let datums = types.iter().zip(&values);
            let datums: Vec<Datum<'_>> = datums
                .map(|(it, value)| it.datum(value.as_ref()).0)
                .collect();
            match is_there {
                true => writer.row(Op::Upsert, &datums),
                false => writer.key(Op::Remove, &datums),
            }
            if writer.len() >= piece_bytes {
                pieces.push(writer.take());
            }
        }
        if !writer.is_empty() {
            pieces.push(writer.take());
        }
        pieces
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Blob(bytes) => bytes.len(),
        _ => 0,
    }
}
