//! One change of an upload: which operation it is, with which values, packed.

use rusqlite::{Connection, Row, Statement};
use tidewater_protocol::pack::{self, same};
use tidewater_protocol::{ColumnType, Datum, Fit, Op, RowShape, RowsWriter, Table, Value};

use super::too_long_row::TooLongRow;
use crate::database::tables::QuotedNames;
use crate::database::{changes, quote, row};

/// Where a query of changes has its columns.
pub(super) struct QueryColumns {
    pub(super) pre: usize,
    pub(super) now: usize,
}

impl QueryColumns {
    pub(super) const PRESENT: usize = 0;
    pub(super) const LATER: usize = 1;
    pub(super) const EXISTS: usize = 2;
    pub(super) const KEY: usize = 3;
}

/// Packs changes one after the other.
pub(super) struct ChangePacker<'a> {
    pub(super) writer: RowsWriter<'a>,
    pub(super) inserts: u64,
    pub(super) updates: u64,
    pub(super) deletes: u64,
    /// The packed keys of rows with values that the centre will spell differently.
    pub(super) respelled: Vec<Vec<u8>>,
    /// Rows that cannot be sent.
    pub(super) too_long: Vec<TooLongRow>,
    connection: &'a Connection,
    table: &'a Table,
    shape: &'a RowShape,
    names: &'a QuotedNames,
    key_types: &'a [ColumnType],
    /// The columns of the key and the others, with their types.
    key: Vec<(usize, ColumnType)>,
    values: Vec<(usize, ColumnType)>,
    /// The generation, if keys were changed in it.
    rekeyed_in: Option<i64>,
    /// Reads the pre-image of a later generation; prepared when the first one is needed.
    later: Option<rusqlite::CachedStatement<'a>>,
}

/// Values that are filled anew for every row.
#[derive(Default)]
pub(super) struct RowImages<'r> {
    old: Vec<Datum<'r>>,
    new: Vec<Datum<'r>>,
}

impl RowImages<'_> {
    /// The memory, for the values of another row.
    pub(super) fn recycle<'b>(self) -> RowImages<'b> {
        RowImages {
            old: row::recycle(self.old),
            new: row::recycle(self.new),
        }
    }
}

impl<'a> ChangePacker<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        table: &'a Table,
        names: &'a QuotedNames,
        shape: &'a RowShape,
        key_types: &'a [ColumnType],
        rekeyed_in: Option<i64>,
    ) -> ChangePacker<'a> {
        let typed = |columns: &[usize]| {
            let columns = columns.iter();
            columns
                .map(|&index| (index, shape.columns[index]))
                .collect()
        };
        ChangePacker {
            key: typed(&table.key),
            values: typed(&names.values),
            writer: RowsWriter::new(shape),
            inserts: 0,
            updates: 0,
            deletes: 0,
            respelled: Vec::new(),
            too_long: Vec::new(),
            connection,
            table,
            shape,
            names,
            key_types,
            rekeyed_in,
            later: None,
        }
    }

    /// Packs a change. `now` is the row as it is, and the column where its values begin.
    pub(super) fn pack<'r>(
        &mut self,
        change: &'r Row<'_>,
        now: Option<(&'r Row<'_>, usize)>,
        columns: &QueryColumns,
        images: &mut RowImages<'r>,
    ) -> rusqlite::Result<()> {
        let present = change.get_ref(QueryColumns::PRESENT)?.as_i64_or_null()? == Some(1);
        if let Some(later) = change.get_ref(QueryColumns::LATER)?.as_i64_or_null()? {
            return self.pack_later(change, later, present, columns);
        }
        let RowImages { old, new } = images;
        let mut fit = Fit::Canonical;
        if let Some((now, values)) = now {
            fit = self.fill(change, now, values, new)?;
        }
        if present {
            self.fill(change, change, columns.pre, old)?;
        }
        if self.is_rekeyed(change, present, old, now.is_some())? {
            return Ok(());
        }
        self.write(present, old, now.is_some(), new, fit);
        Ok(())
    }

    /// The row was changed again: its value as of the upload is the later pre-image.
    fn pack_later(
        &mut self,
        change: &Row<'_>,
        later: i64,
        present: bool,
        columns: &QueryColumns,
    ) -> rusqlite::Result<()> {
        let mut statement = match self.later.take() {
            Some(statement) => statement,
            None => {
                let pre = quote::list(&self.names.pre, "", |pre| format!(", {pre}"));
                self.connection.prepare_cached(&format!(
                    "SELECT present{pre} FROM {} WHERE {} AND generation = ?{}",
                    self.names.change,
                    self.names.change_key_is_bound(),
                    self.names.key.len() + 1
                ))?
            }
        };
        let key = row::owned(change, QueryColumns::KEY, self.table.key.len())?;
        let mut values = vec![Value::Null; self.table.columns.len()];
        let exists = later_image(&mut statement, &key, later, self.names, &mut values)?;
        for (&index, value) in self.table.key.iter().zip(&key) {
            values[index] = value.clone();
        }
        self.later = Some(statement);
        let mut pre = Vec::new();
        self.fill(change, change, columns.pre, &mut pre)?;
        let mut fit = Fit::Canonical;
        let types = self.shape.columns.iter();
        let new: Vec<Datum<'_>> = types
            .zip(&values)
            .map(|(column_type, value)| {
                let (datum, own) = column_type.datum(value.as_ref());
                fit = fit.max(own);
                datum
            })
            .collect();
        if self.is_rekeyed(change, present, &pre, exists)? {
            return Ok(());
        }
        self.write(present, &pre, exists, &new, fit);
        Ok(())
    }

    /// Whether the change belongs to one of a key, which is packed in the place of the old key.
    fn is_rekeyed(
        &mut self,
        change: &Row<'_>,
        present: bool,
        old: &[Datum<'_>],
        exists: bool,
    ) -> rusqlite::Result<bool> {
        let Some(generation) = self.rekeyed_in.filter(|_| present != exists) else {
            return Ok(false);
        };
        let key = row::owned(change, QueryColumns::KEY, self.table.key.len())?;
        let Some(pair) = changes::rekeyed(self.connection, self.names, generation, &key)? else {
            return Ok(false);
        };
        if present {
            let values = self.as_of(generation, &pair.new)?;
            let mut fit = Fit::Canonical;
            let types = self.shape.columns.iter().zip(&values);
            let new: Vec<Datum<'_>> = types
                .map(|(column_type, value)| {
                    let (datum, own) = column_type.datum(value.as_ref());
                    fit = fit.max(own);
                    datum
                })
                .collect();
            self.write(true, old, true, &new, fit);
        }
        Ok(true)
    }

    /// The row that has a changed key, as of the end of the generation.
    fn as_of(&self, generation: i64, key: &[Value]) -> rusqlite::Result<Vec<Value>> {
        let names = self.names;
        let pre = names.pre.join(", ");
        let now = quote::list(&names.values, ", ", |&index| names.columns[index].clone());
        let none = |columns: &str| match columns {
            "" => "1".to_owned(),
            columns => columns.to_owned(),
        };
        let later = format!(
            "SELECT {} FROM {} WHERE {} AND generation > ?{} ORDER BY generation LIMIT 1",
            none(&pre),
            names.change,
            names.change_key_is_bound(),
            key.len() + 1
        );
        let now = format!(
            "SELECT {} FROM {} WHERE {} AND ?{} IS NOT NULL",
            none(&now),
            names.table,
            names.key_is_bound(),
            key.len() + 1
        );
        let mut values = vec![Value::Null; self.table.columns.len()];
        for (&index, value) in self.table.key.iter().zip(key) {
            values[index] = value.clone();
        }
        for sql in [later, now] {
            let mut statement = self.connection.prepare_cached(&sql)?;
            names.bind_key(&mut statement, key)?;
            statement.raw_bind_parameter(key.len() + 1, generation)?;
            let mut rows = statement.raw_query();
            if let Some(found) = rows.next()? {
                for (position, &index) in names.values.iter().enumerate() {
                    values[index] = row::value(found.get_ref(position)?).to_owned();
                }
                break;
            }
        }
        Ok(values)
    }

    /// Understands a whole row: the key out of the change, and the values out of `row` from
    /// the column `from` on.
    fn fill<'r>(
        &self,
        change: &'r Row<'_>,
        row: &'r Row<'_>,
        from: usize,
        values: &mut Vec<Datum<'r>>,
    ) -> rusqlite::Result<Fit> {
        values.resize(self.shape.columns.len(), Datum::Null);
        let mut worst = Fit::Canonical;
        for (position, &(index, column_type)) in self.key.iter().enumerate() {
            let stored = change.get_ref(QueryColumns::KEY + position)?;
            let (datum, fit) = row::datum(column_type, stored);
            values[index] = datum;
            worst = worst.max(fit);
        }
        for (position, &(index, column_type)) in self.values.iter().enumerate() {
            let (datum, fit) = row::datum(column_type, row.get_ref(from + position)?);
            values[index] = datum;
            worst = worst.max(fit);
        }
        Ok(worst)
    }

    fn write(
        &mut self,
        present: bool,
        old: &[Datum<'_>],
        exists: bool,
        new: &[Datum<'_>],
        fit: Fit,
    ) {
        if exists && let Some((column, bytes)) = pack::too_long(new) {
            self.too_long.push(TooLongRow {
                // Of a changed key, the old one: by that the change is known.
                key: self
                    .key_of(if present { old } else { new })
                    .iter()
                    .map(Datum::to_value)
                    .collect(),
                column: self.table.columns[column].name.clone(),
                bytes,
                operation: if present { "update" } else { "insert" },
            });
            return;
        }
        match (present, exists) {
            (false, false) => return,
            (false, true) => {
                self.writer.row(Op::Insert, new);
                self.inserts += 1;
            }
            (true, false) => {
                self.writer.delete(old);
                self.deletes += 1;
                return;
            }
            (true, true) => {
                // Two spellings of one value are no change.
                if !old.iter().zip(new).all(|(old, new)| same(old, new)) {
                    self.writer.update(old, new);
                    self.updates += 1;
                }
            }
        }
        if fit == Fit::Convertible {
            let key = self.key_of(new);
            self.respelled.push(row::pack_key(self.key_types, &key));
        }
    }

    fn key_of<'v>(&self, row: &[Datum<'v>]) -> Vec<Datum<'v>> {
        self.table.key.iter().map(|&index| row[index]).collect()
    }
}

/// The pre-image in a later generation; whether there was a row.
fn later_image(
    statement: &mut Statement<'_>,
    key: &[Value],
    later: i64,
    names: &QuotedNames,
    values: &mut [Value],
) -> rusqlite::Result<bool> {
    names.bind_key(statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, later)?;
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else {
        return Ok(false);
    };
    for (position, &index) in names.values.iter().enumerate() {
        values[index] = row::value(found.get_ref(position + 1)?).to_owned();
    }
    found.get(0)
}
