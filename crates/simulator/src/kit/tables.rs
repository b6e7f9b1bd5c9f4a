//! The published tables as judges know them.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params_from_iter};
use serde_json::{Map, Value as Json};

use tidewater_centre::{PublicationSpec, ScriptSpec, TableSpec};
use tidewater_protocol::{Column, Direction, PublicationSchema};
use xxhash_rust::xxh3::Xxh3;

use super::values::{Row, compared, named, quote};

/// A published table.
#[derive(Clone, Debug)]
pub(super) struct PublishedTable {
    /// The publication that it belongs to.
    pub(super) publication: String,
    /// Its name, on remotes and in the centre.
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) key: Vec<usize>,
    pub(super) direction: Direction,
    /// Columns that remotes do not write.
    pub(super) read_only: Vec<bool>,
    /// Columns of which the centre itself decides what they hold.
    pub(super) is_made: Vec<bool>,
    /// Whether a script says what a delete is.
    pub(super) marks_deletes: bool,
    /// Whether what devices write must be found in it.
    pub(super) is_judged: bool,
}

impl PublishedTable {
    /// The tables of a publication.
    pub(super) fn all(spec: &PublicationSpec, schema: &PublicationSchema) -> Vec<PublishedTable> {
        let tables = schema.tables.iter().map(|table| {
            let deletes = |it: &ScriptSpec| {
                it.event == "upload_delete" && it.table.as_deref() == Some(&*table.name)
            };
            let marks_deletes = spec.scripts.iter().any(deletes);
            let is_meant = |it: &&TableSpec| {
                let name = it.name.rsplit('.').next().unwrap_or_default();
                name.eq_ignore_ascii_case(&table.name)
            };
            let spec = spec.tables.iter().find(is_meant);
            let is_among = |names: Option<&Vec<String>>| {
                let columns = table.columns.iter().map(|column| {
                    let mut names = names.into_iter().flatten();
                    names.any(|name| name.eq_ignore_ascii_case(&column.name))
                });
                columns.collect::<Vec<bool>>()
            };
            let read_only = is_among(spec.map(|it| &it.writes.read_only));
            PublishedTable {
                publication: schema.name.clone(),
                name: table.name.clone(),
                columns: table.columns.clone(),
                key: table.key.clone(),
                direction: table.direction,
                is_made: read_only.clone(),
                read_only,
                marks_deletes,
                is_judged: true,
            }
        });
        tables.collect()
    }

    /// Its columns, as SQL; `of`: the row in a trigger.
    pub(super) fn columns_of(&self, of: &str) -> String {
        let names = self.columns.iter();
        let names: Vec<String> = names.map(|it| format!("{of}{}", quote(&it.name))).collect();
        names.join(", ")
    }

    /// The columns of its key, as SQL.
    pub(super) fn key_of(&self, of: &str) -> String {
        let names = self.key.iter().map(|&it| quote(&self.columns[it].name));
        let names: Vec<String> = names.map(|it| format!("{of}{it}")).collect();
        names.join(", ")
    }

    /// The condition that a row has the key in the parameters from the first on.
    pub(super) fn has_key(&self, prefix: &str) -> String {
        let names = self.key.iter().enumerate().map(|(at, &column)| {
            let name = quote(&format!("{prefix}{}", self.columns[column].name));
            format!("{name} IS ?{}", at + 1)
        });
        names.collect::<Vec<_>>().join(" AND ")
    }

    /// Whether a file has it yet.
    pub(super) fn is_in(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND lower(name) = lower(?1)";
        connection.prepare_cached(sql)?.exists([&self.name])
    }

    /// The row under a key.
    pub(super) fn row(
        &self,
        connection: &Connection,
        key: &[rusqlite::types::Value],
    ) -> rusqlite::Result<Option<Row>> {
        let (columns, name) = (self.columns_of(""), quote(&self.name));
        let sql = format!("SELECT {columns} FROM {name} WHERE {}", self.has_key(""));
        let mut statement = connection.prepare_cached(&sql)?;
        let read = |row: &SqlRow<'_>| self.read(row, 0);
        statement.query_row(params_from_iter(key), read).optional()
    }

    /// Adds all its rows to a hash.
    pub(super) fn hash(&self, connection: &Connection, hash: &mut Xxh3) -> rusqlite::Result<()> {
        let sql = format!("SELECT {} FROM {}", self.columns_of(""), quote(&self.name));
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            for at in 0..self.columns.len() {
                match row.get_ref(at)? {
                    ValueRef::Null => hash.update(&[0]),
                    ValueRef::Integer(integer) => hash.update(&integer.to_le_bytes()),
                    ValueRef::Real(real) => hash.update(&real.to_le_bytes()),
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => hash.update(bytes),
                }
                hash.update(&[at as u8]);
            }
        }
        Ok(())
    }

    /// The values of a row from a column of a result on.
    pub(super) fn read(&self, row: &SqlRow<'_>, from: usize) -> rusqlite::Result<Row> {
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(at, column)| Ok(compared(column.column_type, row.get_ref(from + at)?)))
            .collect()
    }

    /// The key of a row as people are told of it, from a column of a result on.
    pub(super) fn read_key(&self, row: &SqlRow<'_>, from: usize) -> rusqlite::Result<String> {
        let columns = self.key.iter().enumerate();
        let key = columns.map(|(at, &column)| {
            let column_type = self.columns[column].column_type;
            Ok(named(column_type, row.get_ref(from + at)?))
        });
        let key: Vec<Json> = key.collect::<rusqlite::Result<_>>()?;
        Ok(Json::Array(key).to_string())
    }

    /// A row for people.
    pub(super) fn told(&self, row: Option<&Row>) -> String {
        let Some(row) = row else {
            return "no row".into();
        };
        let cells = self.columns.iter().zip(row);
        let cells: Map<String, Json> = cells
            .map(|(column, value)| (column.name.clone(), value.clone()))
            .collect();
        Json::Object(cells).to_string()
    }
}
