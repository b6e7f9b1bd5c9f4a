//! One uploaded row against the centre: scope, conflict, write.

use std::collections::HashMap;

use rusqlite::types::Value as Native;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use tidewater_protocol::{Code, Datum, Op, Row, pack};

use super::compile::Publication;
use super::{apply, download, failure, scope, types};
use crate::columns::ColumnMap;
use crate::engine::exact::unpack;
use crate::engine::upload::DOWNLOAD_ONLY;
use crate::error::CentreError;
use crate::scope::Scope;

/// Which row of a list of uploads: upload, table of the upload, row of the table.
pub(super) type RowPlace = (usize, usize, usize);

/// Why a row is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) reason: String,
}

/// Why a list of uploads cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// A row ended the transaction.
    Ended { place: RowPlace, refusal: Refusal },
    /// Anything else.
    Centre(CentreError),
}

impl From<CentreError> for Stop {
    fn from(error: CentreError) -> Stop {
        Stop::Centre(error)
    }
}

/// What became of a row.
#[derive(Debug)]
pub(super) enum Fate {
    /// The centre has what the remote wanted.
    Applied,
    /// It had that before: the row was gone that is deleted, or was what it becomes.
    Needless,
    /// The deleted row has become the one in whose place another was inserted.
    Succeeded,
    /// The centre had something else: this row, packed, or none.
    Conflict(Option<Vec<u8>>),
    /// Not taken, whatever else happens.
    Refused(Refusal),
    /// Not taken now; other rows of the upload may make way for it.
    Failed(Refusal),
}

/// The rows of one table of an upload, and the SQL that writes them.
pub(super) struct TableWork<'a> {
    connection: &'a Connection,
    publication: &'a Publication,
    scope: &'a Scope,
    /// The table's index in the publication.
    pub(super) index: usize,
    pub(super) map: ColumnMap,
    insert: String,
    inserted: Vec<usize>,
    updates: HashMap<Vec<usize>, String>,
}

/// A row as the centre has it, and whether it is in scope.
struct Central {
    packed: Vec<u8>,
    in_scope: bool,
    too_long: bool,
}

fn refused(code: Code, reason: impl Into<String>) -> Fate {
    Fate::Refused(Refusal {
        code,
        reason: reason.into(),
    })
}

impl<'a> TableWork<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        publication: &'a Publication,
        scope: &'a Scope,
        index: usize,
        map: ColumnMap,
    ) -> TableWork<'a> {
        let sources = map.sources.iter().enumerate();
        let inserted: Vec<_> = sources
            .filter_map(|(column, source)| source.map(|_| column))
            .collect();
        TableWork {
            insert: publication.tables[index].insert(&publication.schema.tables[index], &inserted),
            connection,
            publication,
            scope,
            index,
            map,
            inserted,
            updates: HashMap::new(),
        }
    }

    /// Applies one row. An error is nothing that this row is to blame for.
    pub(super) fn apply(&mut self, row: &Row<'_>) -> Result<Fate, RowError> {
        let schema = &self.publication.schema.tables[self.index];
        if !schema.direction.uploads() {
            return Ok(refused(Code::RowDownloadOnly, DOWNLOAD_ONLY));
        }
        if let Some(position) = row.key.iter().position(|value| *value == Datum::Null) {
            let column = &schema.columns[schema.key[position]].name;
            let reason = format!("the key column {column} is NULL");
            return Ok(refused(Code::RowNotNull, reason));
        }
        let Some(key) = download::key_parameters(self.publication, self.index, &row.key) else {
            return Ok(self.bad_key(&row.key));
        };
        let central = self.central(&key)?;
        let op = row.op.unwrap_or(Op::Insert);
        if let Some(central) = &central
            && !central.in_scope
        {
            return Ok(if op == Op::Insert {
                refused(Code::RowKeyInUse, "key in use")
            } else {
                out_of_scope()
            });
        }
        // Nobody could be told what a change of it lost against.
        if central.as_ref().is_some_and(|central| central.too_long) {
            let reason = "the centre's row has a value that is too long to be synced";
            return Ok(refused(Code::RowBadValue, reason));
        }
        let types = &self.publication.shapes[self.index].columns;
        let packed = central.map(|central| central.packed);
        let now = packed.as_deref().map(|packed| unpack(packed, types));
        let now = now.transpose()?;
        let old = self.map.arrange(&row.old);
        let new = self.settle(&row.new);
        if op != Op::Delete && !self.is_new_row_in_scope(&new, now.as_deref()) {
            return Ok(out_of_scope());
        }
        match (op, now) {
            (Op::Insert, None) => self.insert(&new),
            (Op::Insert, Some(now)) if matches(&new, &now) => Ok(Fate::Needless),
            (Op::Update, Some(now)) if matches(&old, &now) => self.update(&key, &now, &new),
            (Op::Update, Some(now)) if matches(&new, &now) => Ok(Fate::Needless),
            (Op::Delete, None) => Ok(Fate::Needless),
            (Op::Delete, Some(now)) if matches(&old, &now) => self.delete(key),
            _ => Ok(Fate::Conflict(packed)),
        }
    }

    /// Whether a delete finds its row, as its pre-image says.
    pub(super) fn is_deletable(&self, row: &Row<'_>) -> Result<bool, RowError> {
        let Some(key) = download::key_parameters(self.publication, self.index, &row.key) else {
            return Ok(false);
        };
        let Some(central) = self.central(&key)?.filter(|central| central.in_scope) else {
            return Ok(false);
        };
        let types = &self.publication.shapes[self.index].columns;
        let now = unpack(&central.packed, types)?;
        Ok(matches(&self.map.arrange(&row.old), &now))
    }

    /// Whether a row that is deleted can become the one that is inserted in its place.
    pub(super) fn can_succeed(
        &self,
        deleted: &Row<'_>,
        inserted: &Row<'_>,
    ) -> Result<bool, RowError> {
        let schema = &self.publication.schema.tables[self.index];
        let is_null = |value: &Datum<'_>| *value == Datum::Null;
        Ok(schema.direction.uploads()
            && !inserted.key.iter().any(is_null)
            && self.is_deletable(deleted)?
            && self.is_new_row_in_scope(&self.settle(&inserted.new), None))
    }

    /// Makes of such a row the one that takes its place: what refers to it by a value that stays,
    /// stays. False if that cannot be done.
    pub(super) fn succeed(&self, deleted: &Row<'_>, inserted: &Row<'_>) -> Result<bool, RowError> {
        let schema = &self.publication.schema.tables[self.index];
        let new = self.settle(&inserted.new);
        let key = download::key_parameters(self.publication, self.index, &deleted.key);
        let (Some(key), Ok(mut values)) = (key, self.bind(&self.inserted, &new)) else {
            return Ok(false);
        };
        values.extend(key);
        let sql = self.publication.tables[self.index].update(schema, &self.inserted);
        let fate = self.write(&sql, values, false)?;
        Ok(matches!(fate, Fate::Applied))
    }

    /// The rowid of the row that has a key; `None` if there is none.
    pub(super) fn rowid(&self, key: &[Datum<'_>]) -> Result<Option<i64>, CentreError> {
        let reading = failure("reading a rowid");
        let Some(key) = download::key_parameters(self.publication, self.index, key) else {
            return Ok(None);
        };
        let sql = &self.publication.tables[self.index].select_rowid;
        let mut statement = self.connection.prepare_cached(sql).map_err(reading)?;
        let rowid = statement.query_row(params_from_iter(key), |row| row.get(0));
        rowid.optional().map_err(reading)
    }

    fn central(&self, key: &[Native]) -> Result<Option<Central>, RowError> {
        let table = &self.publication.tables[self.index];
        let schema = &self.publication.schema.tables[self.index];
        let types = &self.publication.shapes[self.index].columns;
        let reading = failure("reading the centre's row");
        let mut statement = self
            .connection
            .prepare_cached(&table.select_key)
            .map_err(reading)?;
        let mut rows = statement.query(params_from_iter(key)).map_err(reading)?;
        let Some(row) = rows.next().map_err(reading)? else {
            return Ok(None);
        };
        let values = download::values(row, 0, types).map_err(reading)?;
        let partition: Vec<_> = schema
            .partition
            .iter()
            .map(|&column| values[column])
            .collect();
        let partitions = &self.scope.tables[self.index];
        Ok(Some(Central {
            in_scope: scope::contains(table, partitions, &partition),
            too_long: pack::too_long(&values).is_some(),
            packed: types::pack_row(types, &values),
        }))
    }

    /// The uploaded values as the centre will give them back.
    fn settle<'v>(&self, uploaded: &[Datum<'v>]) -> Vec<Option<Datum<'v>>> {
        if uploaded.is_empty() {
            return Vec::new();
        }
        let types = &self.publication.shapes[self.index].columns;
        let arranged = self.map.arrange(uploaded).into_iter().zip(types);
        arranged
            .map(|(value, &column_type)| value.map(|value| types::settled(column_type, value)))
            .collect()
    }

    fn is_new_row_in_scope(&self, new: &[Option<Datum<'_>>], now: Option<&[Datum<'_>]>) -> bool {
        let schema = &self.publication.schema.tables[self.index];
        let partition = schema.partition.iter().map(|&column| {
            let kept = || now.map_or(Datum::Null, |now| now[column]);
            new.get(column).copied().flatten().unwrap_or_else(kept)
        });
        let partition: Vec<_> = partition.collect();
        let table = &self.publication.tables[self.index];
        scope::contains(table, &self.scope.tables[self.index], &partition)
    }

    /// The whole row as uploaded, packed as downloads compare it, digit by digit; `None` if the remote
    /// does not know all columns.
    pub(super) fn own_row(&self, row: &Row<'_>) -> Option<Vec<u8>> {
        if !self.map.is_complete() {
            return None;
        }
        let new: Vec<_> = self.settle(&row.new).into_iter().flatten().collect();
        let types = &self.publication.shapes[self.index].columns;
        Some(types::pack_row(types, &new))
    }

    fn insert(&self, new: &[Option<Datum<'_>>]) -> Result<Fate, RowError> {
        match self.bind(&self.inserted, new) {
            Ok(values) => self.write(&self.insert, values, false),
            Err(refusal) => Ok(Fate::Refused(refusal)),
        }
    }

    /// Writes what differs from the centre's row, if only in how it is written.
    fn update(
        &mut self,
        key: &[Native],
        now: &[Datum<'_>],
        new: &[Option<Datum<'_>>],
    ) -> Result<Fate, RowError> {
        let columns = new.iter().enumerate().filter_map(|(column, value)| {
            let value = value.as_ref()?;
            types::differ(value, &now[column]).then_some(column)
        });
        let columns: Vec<_> = columns.collect();
        if columns.is_empty() {
            return Ok(Fate::Needless);
        }
        let mut values = match self.bind(&columns, new) {
            Ok(values) => values,
            Err(refusal) => return Ok(Fate::Refused(refusal)),
        };
        values.extend(key.iter().cloned());
        if !self.updates.contains_key(&columns) {
            let table = &self.publication.tables[self.index];
            let schema = &self.publication.schema.tables[self.index];
            let sql = table.update(schema, &columns);
            self.updates.insert(columns.clone(), sql);
        }
        self.write(&self.updates[&columns], values, false)
    }

    fn delete(&self, key: Vec<Native>) -> Result<Fate, RowError> {
        let sql = &self.publication.tables[self.index].delete_key;
        self.write(sql, key, true)
    }

    fn write(&self, sql: &str, values: Vec<Native>, deleting: bool) -> Result<Fate, RowError> {
        let table = &self.publication.schema.tables[self.index].name;
        let mut statement = self
            .connection
            .prepare_cached(sql)
            .map_err(failure("preparing to write a row"))?;
        match statement.execute(params_from_iter(values)) {
            Ok(0) => Ok(Fate::Failed(Refusal {
                code: Code::RowConstraint,
                reason: format!("a trigger of {table} ignored the change"),
            })),
            Ok(_) => Ok(Fate::Applied),
            Err(error) => match apply::refusal(&error, table, deleting) {
                Some(refusal) if self.connection.is_autocommit() => Err(RowError::Ended(refusal)),
                Some(refusal) => Ok(Fate::Failed(refusal)),
                None => Err(failure("writing a row")(error).into()),
            },
        }
    }

    fn bind(
        &self,
        columns: &[usize],
        values: &[Option<Datum<'_>>],
    ) -> Result<Vec<Native>, Refusal> {
        let types = &self.publication.shapes[self.index].columns;
        let table = &self.publication.tables[self.index];
        let mut natives = Vec::with_capacity(columns.len());
        for &column in columns {
            let value = values[column].unwrap_or(Datum::Null);
            let (_, as_text) = table.declared[column];
            let bound = types::bind(types[column], as_text, &value);
            natives.push(bound.map_err(|why| self.bad_value(column, &value, why))?);
        }
        Ok(natives)
    }

    fn bad_value(&self, column: usize, value: &Datum<'_>, why: &str) -> Refusal {
        let name = &self.publication.schema.tables[self.index].columns[column].name;
        let (declared, _) = &self.publication.tables[self.index].declared[column];
        Refusal {
            code: Code::RowBadValue,
            reason: format!("{name}: {:?} {why} ({declared})", shortened(value)),
        }
    }

    fn bad_key(&self, key: &[Datum<'_>]) -> Fate {
        let table = &self.publication.tables[self.index];
        let schema = &self.publication.schema.tables[self.index];
        let parts = schema.key.iter().zip(key).zip(&table.key_types);
        for ((&column, value), &column_type) in parts {
            let (_, as_text) = table.declared[column];
            if let Err(why) = types::bind(column_type, as_text, value) {
                return Fate::Refused(self.bad_value(column, value, why));
            }
        }
        refused(Code::RowBadValue, "the key cannot be stored")
    }
}

/// Why a row stops its list.
#[derive(Debug)]
pub(super) enum RowError {
    /// It ended the transaction.
    Ended(Refusal),
    /// Anything else.
    Centre(CentreError),
}

impl From<CentreError> for RowError {
    fn from(error: CentreError) -> RowError {
        RowError::Centre(error)
    }
}

fn out_of_scope() -> Fate {
    refused(Code::RowOutOfScope, "this row is not in your partitions")
}

/// Whether a central row has all the values that the remote names.
fn matches(uploaded: &[Option<Datum<'_>>], central: &[Datum<'_>]) -> bool {
    let mut pairs = uploaded.iter().zip(central);
    pairs
        .all(|(uploaded, central)| uploaded.is_none_or(|uploaded| types::equal(&uploaded, central)))
}

/// A value for people, cut to what fits a message.
fn shortened(value: &Datum<'_>) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 {
        return text;
    }
    text.chars().take(40).chain(['…']).collect()
}
