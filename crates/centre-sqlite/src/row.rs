//! One uploaded row against the centre: it is written if the centre is as the row expects it.

use std::collections::HashMap;

use rusqlite::params_from_iter;
use rusqlite::types::Value as Native;

use tidewater_protocol::{Code, ColumnType, Datum, Op, Table, UnpackedRow};

use super::connection::SqliteConnection;
use super::publication::{Publication, SqliteTables};
use super::rows::refusal::{self, RowError};
use super::{deferred_violations, download, failure, publication, values};
use tidewater_centre::engine::upload::incoming_rows;
use tidewater_centre::engine::upload::refusal_reason::RefusalReason;
use tidewater_centre::engine::upload::upload_writer::{CentralRow, MetRow, RowImage};
use tidewater_centre::error::CentreError;

/// The uploaded rows of a table.
pub(super) type SqliteIncomingTable<'u> = incoming_rows::IncomingTable<'u, SqliteTables>;

/// What became of a row.
#[derive(Debug)]
pub(super) enum RowFate {
    /// The centre has what the remote wants.
    Applied,
    /// The centre has something else, or a row where there should be none.
    PassedOver,
    /// A trigger has done something else than delete the row.
    Kept,
    /// It has no such row to change.
    Missing,
    /// Not taken, whatever else happens.
    Refused(RefusalReason),
    /// Not taken now; other rows of the upload may make way for it.
    Failed(RefusalReason),
}

/// Writes rows of a table.
pub(super) struct TableWriter<'a> {
    connection: &'a SqliteConnection,
    publication: &'a Publication,
    table: &'a SqliteIncomingTable<'a>,
    /// Whether keys that could wait are checked after each row.
    immediate: bool,
    /// Whether updates and deletes take their rows as they are now.
    pub(super) insists: bool,
    /// By which of its keys an update's row is looked for.
    pub(super) by: RowImage,
    /// Whether every value so far is in the centre as it was uploaded.
    pub(super) is_exact: bool,
    insert: String,
    updates: HashMap<Vec<usize>, String>,
}

impl<'a> TableWriter<'a> {
    pub(super) fn new(
        connection: &'a SqliteConnection,
        publication: &'a Publication,
        table: &'a SqliteIncomingTable<'a>,
        immediate: bool,
    ) -> TableWriter<'a> {
        TableWriter {
            insert: publication::insert(table.table, &table.written),
            connection,
            publication,
            table,
            immediate,
            insists: false,
            by: RowImage::Old,
            is_exact: true,
            updates: HashMap::new(),
        }
    }

    /// Writes a row, so that nothing is left behind if it fails. An error is nothing that this row
    /// is to blame for.
    pub(super) fn write(&mut self, row: &UnpackedRow<'_>) -> Result<RowFate, RowError> {
        let is_guarded = self.immediate || self.table.table.details.guarded;
        if is_guarded {
            self.savepoint("SAVEPOINT tidewater_row")?;
        }
        let mut fate = self.try_to_write(row)?;
        if self.immediate
            && matches!(fate, RowFate::Applied)
            && deferred_violations(self.connection)?
        {
            let name = &self.publication.schema.tables[self.table.index].name;
            fate = RowFate::Failed(RefusalReason {
                code: Code::RowForeignKey,
                reason: refusal::foreign_key_reason(name, row.op == Some(Op::Delete)),
                database_code: None,
            });
        }
        if is_guarded {
            if matches!(fate, RowFate::Failed(_)) {
                self.savepoint("ROLLBACK TO tidewater_row")?;
            }
            self.savepoint("RELEASE tidewater_row")?;
        }
        Ok(fate)
    }

    fn try_to_write(&mut self, row: &UnpackedRow<'_>) -> Result<RowFate, RowError> {
        let op = row.op.unwrap_or(Op::Insert);
        let Some(key) = self.row_key(row) else {
            return Ok(match op {
                Op::Insert => self.bad_key(&row.key),
                _ => RowFate::Missing,
            });
        };
        let Some(central) = self.central(&key)? else {
            return match op {
                Op::Insert => self.insert(&row.new),
                _ => Ok(RowFate::Missing),
            };
        };
        // Nobody could be told what a change of it lost against.
        if !central.is_whole {
            return Ok(RowFate::PassedOver);
        }
        let now = central.values(self.row_types())?;
        let old = self.normalize(&row.old);
        match op {
            Op::Update if self.insists || matches(&old, &now) => self.update(&key, &now, &row.new),
            Op::Delete if self.insists || matches(&old, &now) => self.delete(key),
            _ => Ok(RowFate::PassedOver),
        }
    }

    /// The centre's row with the key of an uploaded one.
    pub(super) fn find(&self, row: &UnpackedRow<'_>) -> Result<Option<MetRow>, CentreError> {
        let Some(key) = self.row_key(row) else {
            return Ok(None);
        };
        let Some(central) = self.central(&key)? else {
            return Ok(None);
        };
        let now = central.values(self.row_types())?;
        let is_as_uploaded = central.is_whole && matches(&self.normalize(&row.new), &now);
        Ok(Some(MetRow {
            central,
            is_as_uploaded,
        }))
    }

    /// A table of the publication.
    pub(super) fn schema_of(&self, table: usize) -> &'a Table {
        &self.publication.schema.tables[table]
    }

    /// The values by which an uploaded row refers to another; `None` if it refers to none.
    pub(super) fn referring(&self, columns: &[usize], new: &[Datum<'_>]) -> Option<Vec<Native>> {
        let values = self.bind(columns, &self.normalize(new)).ok()?;
        (!values.contains(&Native::Null)).then_some(values)
    }

    /// The key of a delete's row, if it finds that as it expects it.
    pub(super) fn deletable(
        &self,
        row: &UnpackedRow<'_>,
    ) -> Result<Option<Vec<Native>>, CentreError> {
        let Some(key) = self.key(&row.key) else {
            return Ok(None);
        };
        let Some(central) = self.central(&key)?.filter(|it| it.is_whole) else {
            return Ok(None);
        };
        let now = central.values(self.row_types())?;
        let is_found = self.insists || matches(&self.normalize(&row.old), &now);
        Ok(is_found.then_some(key))
    }

    fn savepoint(&self, sql: &str) -> Result<(), CentreError> {
        savepoint(self.connection, sql)
    }

    fn types(&self) -> &'a [ColumnType] {
        &self.publication.shapes[self.table.index].columns
    }

    /// The types of a row as it is read.
    fn row_types(&self) -> &'a [ColumnType] {
        &self.publication.row_types[self.table.index]
    }

    /// The key by which a row is looked for.
    fn row_key(&self, row: &UnpackedRow<'_>) -> Option<Vec<Native>> {
        if self.by == RowImage::Old || row.new.is_empty() {
            return self.key(&row.key);
        }
        let key = self.table.map.shape.key.iter().map(|&it| row.new[it]);
        self.key(&key.collect::<Vec<_>>())
    }

    fn key(&self, key: &[Datum<'_>]) -> Option<Vec<Native>> {
        download::key_parameters(self.publication, self.table.index, key)
    }

    /// The centre's row.
    fn central(&self, key: &[Native]) -> Result<Option<CentralRow>, CentreError> {
        let reading = failure("reading the centre's row");
        let mut statement = self
            .connection
            .prepare_cached(&self.table.table.details.read_key)
            .map_err(reading)?;
        let mut rows = statement.query(params_from_iter(key)).map_err(reading)?;
        let Some(row) = rows.next().map_err(reading)? else {
            return Ok(None);
        };
        let values = download::values(row, 0, self.row_types()).map_err(reading)?;
        Ok(Some(CentralRow::pack(self.row_types(), values)))
    }

    /// The uploaded values as the centre will give them back; what remotes do not write is as good
    /// as not sent.
    fn normalize<'v>(&self, uploaded: &[Datum<'v>]) -> Vec<Option<Datum<'v>>> {
        let arranged = self.table.map.arrange(uploaded).into_iter();
        let arranged = arranged.zip(self.types()).enumerate();
        arranged
            .map(|(column, (value, &column_type))| {
                let value = value.filter(|_| !self.table.read_only.contains(&column));
                value.map(|value| values::normalize(column_type, value))
            })
            .collect()
    }

    /// Notes whether all of a row will be in the centre as it is uploaded.
    fn note_exactness(&mut self, new: &[Datum<'_>]) {
        let columns = &self.table.table.columns;
        let mut values = self.table.map.arrange(new).into_iter().enumerate();
        let types = self.types();
        self.is_exact &= values.all(|(column, value)| {
            let as_text = columns[column].is_kept_as_text;
            value.is_some_and(|it| values::is_kept(types[column], as_text, &it))
        });
    }

    fn insert(&mut self, new: &[Datum<'_>]) -> Result<RowFate, RowError> {
        self.note_exactness(new);
        match self.bind(&self.table.written, &self.normalize(new)) {
            Ok(values) => self.execute(&self.insert, values, false),
            Err(refusal) => Ok(RowFate::Refused(refusal)),
        }
    }

    /// Writes what differs from the centre's row, if only in how it is written.
    fn update(
        &mut self,
        key: &[Native],
        now: &[Datum<'_>],
        new: &[Datum<'_>],
    ) -> Result<RowFate, RowError> {
        self.note_exactness(new);
        let new = self.normalize(new);
        let columns = new.iter().enumerate().filter_map(|(column, value)| {
            let value = value.as_ref()?;
            values::differ(value, &now[column]).then_some(column)
        });
        let columns: Vec<_> = columns.collect();
        if columns.is_empty() {
            return Ok(RowFate::Applied);
        }
        let mut values = match self.bind(&columns, &new) {
            Ok(values) => values,
            Err(refusal) => return Ok(RowFate::Refused(refusal)),
        };
        values.extend(key.iter().cloned());
        if !self.updates.contains_key(&columns) {
            let sql = publication::update(self.table.table, &columns);
            self.updates.insert(columns.clone(), sql);
        }
        self.execute(&self.updates[&columns], values, false)
    }

    fn delete(&self, key: Vec<Native>) -> Result<RowFate, RowError> {
        let deleted = self.execute(&self.table.table.details.delete_key, key.clone(), true)?;
        match deleted {
            RowFate::Kept if self.central(&key)?.is_none() => Ok(RowFate::Applied),
            fate => Ok(fate),
        }
    }

    fn execute(&self, sql: &str, values: Vec<Native>, deleting: bool) -> Result<RowFate, RowError> {
        let table = &self.publication.schema.tables[self.table.index].name;
        let mut statement = self
            .connection
            .prepare_cached(sql)
            .map_err(failure("preparing to write a row"))?;
        match statement.execute(params_from_iter(values)) {
            Ok(0) if deleting => Ok(RowFate::Kept),
            Ok(0) => Ok(RowFate::Failed(RefusalReason {
                code: Code::RowConstraint,
                reason: format!("a trigger of {table} ignored the change"),
                database_code: None,
            })),
            Ok(_) => Ok(RowFate::Applied),
            Err(error) => match refusal::reason(&error, table, deleting) {
                Some(refusal) if self.connection.is_autocommit() => Err(RowError::Ended(refusal)),
                Some(refusal) => Ok(RowFate::Failed(refusal)),
                None => Err(failure("writing a row")(error).into()),
            },
        }
    }

    fn bind(
        &self,
        columns: &[usize],
        values: &[Option<Datum<'_>>],
    ) -> Result<Vec<Native>, RefusalReason> {
        let (types, table) = (self.types(), self.table.table);
        let mut natives = Vec::with_capacity(columns.len());
        for &column in columns {
            let value = values[column].unwrap_or(Datum::Null);
            let as_text = table.columns[column].is_kept_as_text;
            let bound = values::bind(types[column], as_text, &value);
            natives.push(bound.map_err(|why| self.bad_value(column, &value, why))?);
        }
        Ok(natives)
    }

    fn bad_value(&self, column: usize, value: &Datum<'_>, why: &str) -> RefusalReason {
        let name = &self.publication.schema.tables[self.table.index].columns[column].name;
        let declared = &self.table.table.columns[column].declared;
        RefusalReason {
            code: Code::RowBadValue,
            reason: format!("{name}: {:?} {why} ({declared})", shortened(value)),
            database_code: None,
        }
    }

    fn bad_key(&self, key: &[Datum<'_>]) -> RowFate {
        let table = self.table.table;
        for (&index, value) in table.key.iter().zip(key) {
            let column = &table.columns[index];
            let bound = values::bind(column.column_type, column.is_kept_as_text, value);
            if let Err(why) = bound {
                return RowFate::Refused(self.bad_value(index, value, why));
            }
        }
        RowFate::Refused(RefusalReason {
            code: Code::RowBadValue,
            reason: "the key cannot be stored".into(),
            database_code: None,
        })
    }
}

/// Sets a savepoint, goes back to it, or lets go of it.
pub(super) fn savepoint(connection: &SqliteConnection, sql: &str) -> Result<(), CentreError> {
    let result = connection.prepare_cached(sql);
    result
        .and_then(|mut statement| statement.execute([]).map(drop))
        .map_err(failure("a savepoint"))
}

/// Whether a central row has all the values that the remote names.
fn matches(uploaded: &[Option<Datum<'_>>], central: &[Datum<'_>]) -> bool {
    let mut pairs = uploaded.iter().zip(central);
    pairs.all(|(uploaded, central)| {
        uploaded.is_none_or(|uploaded| values::equal(&uploaded, central))
    })
}

/// A value for people, cut to what fits a message.
fn shortened(value: &Datum<'_>) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 {
        return text;
    }
    text.chars().take(40).chain(['…']).collect()
}
