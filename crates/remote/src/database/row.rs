//! Between SQLite's values and the protocol's: reading, binding, packing keys.

use rusqlite::types::{ToSqlOutput, ValueRef as SqlRef};
use rusqlite::{Connection, ToSql};
use tidewater_protocol::pack::{pack_values, unpack_values};
use tidewater_protocol::{ColumnType, Datum, Fit, Table, UnpackError, Value, ValueRef};

/// A value of the protocol as a parameter of a statement.
pub(crate) struct BoundValue<'a>(SqlRef<'a>);

impl<'a> BoundValue<'a> {
    pub(crate) fn new(value: ValueRef<'a>) -> BoundValue<'a> {
        BoundValue(match value {
            ValueRef::Null => SqlRef::Null,
            ValueRef::Integer(integer) => SqlRef::Integer(integer),
            ValueRef::Real(real) => SqlRef::Real(real),
            ValueRef::Text(text) => SqlRef::Text(text.as_bytes()),
            ValueRef::Blob(blob) => SqlRef::Blob(blob),
        })
    }

    /// A value of a key column, which may be of bytes. In any other, TEXT that is no UTF-8 was
    /// read as a blob (see [`value`]), but its row is found as TEXT only.
    pub(crate) fn for_key(value: ValueRef<'a>, of_bytes: bool) -> BoundValue<'a> {
        match value {
            ValueRef::Blob(blob) if !of_bytes && std::str::from_utf8(blob).is_err() => {
                BoundValue(SqlRef::Text(blob))
            }
            value => BoundValue::new(value),
        }
    }
}

impl ToSql for BoundValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.0))
    }
}

/// A value that SQLite read. TEXT that is no UTF-8 counts as a blob: the centre will refuse
/// it by name.
pub(crate) fn value(value: SqlRef<'_>) -> ValueRef<'_> {
    match value {
        SqlRef::Null => ValueRef::Null,
        SqlRef::Integer(integer) => ValueRef::Integer(integer),
        SqlRef::Real(real) => ValueRef::Real(real),
        SqlRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => ValueRef::Text(text),
            Err(_) => ValueRef::Blob(text),
        },
        SqlRef::Blob(blob) => ValueRef::Blob(blob),
    }
}

/// A value that SQLite read, understood by its column's type, and how well it fits. Bytes
/// that were stored as TEXT are not what the centre will give back.
pub(crate) fn datum(column_type: ColumnType, stored: SqlRef<'_>) -> (Datum<'_>, Fit) {
    let (datum, fit) = column_type.datum(value(stored));
    match (stored, datum) {
        (SqlRef::Text(_), Datum::Bytes(_)) => (datum, Fit::Convertible),
        _ => (datum, fit),
    }
}

/// Binds values that are no key to the parameters from `first` on.
pub(crate) fn bind(
    statement: &mut rusqlite::Statement<'_>,
    first: usize,
    values: &[Datum<'_>],
    scratch: &mut String,
) -> rusqlite::Result<()> {
    for (index, datum) in values.iter().enumerate() {
        statement.raw_bind_parameter(first + index, BoundValue::new(datum.stored(scratch)))?;
    }
    Ok(())
}

/// Binds a key to the parameters from 1 on.
pub(crate) fn bind_key(
    statement: &mut rusqlite::Statement<'_>,
    key: &[Datum<'_>],
    scratch: &mut String,
) -> rusqlite::Result<()> {
    for (index, datum) in key.iter().enumerate() {
        bind_key_column(statement, index + 1, datum, scratch)?;
    }
    Ok(())
}

/// Binds a whole row to the parameters from 1 on; the key's columns are these.
pub(crate) fn bind_row(
    statement: &mut rusqlite::Statement<'_>,
    row: &[Datum<'_>],
    key: &[usize],
    scratch: &mut String,
) -> rusqlite::Result<()> {
    bind(statement, 1, row, scratch)?;
    for &index in key {
        if row[index].is_loose() {
            bind_key_column(statement, index + 1, &row[index], scratch)?;
        }
    }
    Ok(())
}

fn bind_key_column(
    statement: &mut rusqlite::Statement<'_>,
    parameter: usize,
    datum: &Datum<'_>,
    scratch: &mut String,
) -> rusqlite::Result<()> {
    let of_bytes = matches!(datum, Datum::Bytes(_));
    statement.raw_bind_parameter(
        parameter,
        BoundValue::for_key(datum.stored(scratch), of_bytes),
    )
}

/// The types of a table's key columns, in key order.
pub(crate) fn key_types(table: &Table) -> Vec<ColumnType> {
    table
        .key_columns()
        .map(|column| column.column_type)
        .collect()
}

/// A key as it stands in `tidewater_stale` and `tidewater_refused`.
pub(crate) fn pack_key(types: &[ColumnType], key: &[Datum<'_>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(key.len() * 12);
    pack_values(&mut packed, types, key);
    packed
}

/// Reads back what [`pack_key`] wrote.
pub(crate) fn unpack_key<'a>(
    types: &[ColumnType],
    packed: &'a [u8],
) -> Result<Vec<Datum<'a>>, UnpackError> {
    unpack_values(packed, types)
}

/// Owned values out of a row's columns `from..from + count`.
pub(crate) fn owned(
    row: &rusqlite::Row<'_>,
    from: usize,
    count: usize,
) -> rusqlite::Result<Vec<Value>> {
    (from..from + count)
        .map(|index| Ok(value(row.get_ref(index)?).to_owned()))
        .collect()
}

/// Owned values, understood by their types.
pub(crate) fn datums<'a>(types: &[ColumnType], values: &'a [Value]) -> Vec<Datum<'a>> {
    let pairs = types.iter().zip(values);
    pairs
        .map(|(column_type, value)| column_type.datum(value.as_ref()).0)
        .collect()
}

/// A key for people: a JSON array.
pub(crate) fn readable_key(key: &[Datum<'_>]) -> String {
    serde_json::Value::Array(key.iter().map(json).collect()).to_string()
}

/// A value as JSON, as the centre tells it as well: numbers, booleans and text as such, blobs
/// in hexadecimal, NULL as null, what JSON cannot say as text.
pub(crate) fn json(datum: &Datum<'_>) -> serde_json::Value {
    if let Datum::Boolean(boolean) = datum {
        return (*boolean).into();
    }
    let mut scratch = String::new();
    match datum.stored(&mut scratch) {
        ValueRef::Null => serde_json::Value::Null,
        ValueRef::Integer(integer) => integer.into(),
        ValueRef::Real(real) if real.is_finite() => real.into(),
        ValueRef::Text(text) => text.into(),
        ValueRef::Real(_) | ValueRef::Blob(_) => datum.to_string().into(),
    }
}

/// Empties a vector of borrowed values and keeps its memory for others.
pub(crate) fn recycle<'b>(mut values: Vec<Datum<'_>>) -> Vec<Datum<'b>> {
    values.clear();
    // Nothing is left to convert; the collection reuses the allocation.
    values.into_iter().map(|_| Datum::Null).collect()
}

/// The keys that a query yields in its first columns.
pub(crate) fn read_keys(
    connection: &Connection,
    sql: &str,
    parameters: &[&dyn rusqlite::ToSql],
    table: &Table,
) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(parameters, |found| owned(found, 0, table.key.len()))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_the_same_here_and_in_the_centre() {
        let key = [
            Datum::Boolean(false),
            Datum::Integer(7),
            Datum::Real(f64::INFINITY),
            Datum::Bytes(&[0, 255]),
            Datum::Text("a\"b"),
        ];
        // What the centre makes of it.
        assert_eq!(readable_key(&key), r#"[false,7,"inf","x'00ff'","a\"b"]"#);
    }
}
