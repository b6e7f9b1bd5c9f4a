//! Statements on the server's own tables, and what they give.
//!
//! [`super::sql`] has the statements; the adapter spells them as its database wants them. Parameters
//! and results are plain values; a flag is an integer, 0 or 1.

use tidewater_protocol::{RemoteId, UploadId, Value};

use crate::engine::sql::statement_shape::SystemSql;
use crate::error::CentreError;

/// A statement on the server's own tables.
#[derive(Clone, Debug)]
pub struct SystemStatement {
    /// What it does.
    pub sql: SystemSql,
    /// The values of `?1`, `?2` and so on.
    pub parameters: Vec<Value>,
    /// The rows that it is run for, if it is: see [`each`].
    pub rows: Vec<Vec<Value>>,
}

/// Makes a [`SystemStatement`] of what it does, or of a neutral text, and its parameters.
#[macro_export]
macro_rules! system_sql {
    ($sql:expr $(, $parameter:expr)* $(,)?) => {
        $crate::engine::system_statement::SystemStatement {
            sql: $crate::engine::sql::statement_shape::SystemSql::from($sql),
            parameters: vec![$($crate::engine::system_statement::StatementParameter::value(&$parameter)),*],
            rows: Vec::new(),
        }
    };
}
pub use crate::system_sql;

/// The values of one row, for [`each`].
#[macro_export]
macro_rules! system_row {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::engine::system_statement::StatementParameter::value(&$value)),*]
    };
}
pub use crate::system_row;

/// A statement that does for each of some rows what it would do for it alone.
pub fn each(sql: impl Into<SystemSql>, rows: Vec<Vec<Value>>) -> SystemStatement {
    SystemStatement {
        sql: sql.into(),
        parameters: Vec::new(),
        rows,
    }
}

/// What a statement gave.
#[derive(Debug, Default)]
pub struct StatementResult {
    /// The rows that it read or gave back.
    pub rows: Vec<ResultRow>,
    /// How many rows it wrote.
    pub changed: u64,
}

/// A row of an [`StatementResult`].
#[derive(Debug)]
pub struct ResultRow(pub Vec<Value>);

/// What a transaction is begun for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    /// It writes.
    Writing(Durability),
    /// It reads from one snapshot.
    Reading,
    /// The same, and temporary tables can be created in it. It is undone in the end.
    Trying,
}

impl TransactionMode {
    /// It writes, and what it writes is durable.
    pub const WRITING: TransactionMode = TransactionMode::Writing(Durability::Durable);
}

/// How long what was committed may be lost with the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Not at all.
    Durable,
    /// For a moment, if the database can save the wait for the disk.
    Soon,
}

impl ResultRow {
    /// The value of a column.
    ///
    /// # Errors
    /// It is of another type, because somebody has written to the server's own tables.
    pub fn get<T: ColumnValue>(&self, index: usize) -> Result<T, CentreError> {
        let value = self.0.get(index).and_then(T::read);
        value.ok_or_else(|| CentreError::Internal {
            message: format!(
                "column {index} of a row of the server's own tables is not as it was written: {:?}",
                self.0.get(index)
            ),
        })
    }
}

/// What a parameter can be.
pub trait StatementParameter {
    /// The value that is sent.
    fn value(&self) -> Value;
}

/// What a column can be read as.
pub trait ColumnValue: Sized {
    /// What a value says; `None` if it is of another type.
    fn read(value: &Value) -> Option<Self>;
}

impl StatementParameter for i64 {
    fn value(&self) -> Value {
        Value::Integer(*self)
    }
}

impl StatementParameter for u64 {
    fn value(&self) -> Value {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl StatementParameter for u32 {
    fn value(&self) -> Value {
        Value::Integer(i64::from(*self))
    }
}

impl StatementParameter for bool {
    fn value(&self) -> Value {
        Value::Integer(i64::from(*self))
    }
}

impl StatementParameter for str {
    fn value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl StatementParameter for String {
    fn value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl StatementParameter for [u8] {
    fn value(&self) -> Value {
        Value::Blob(self.to_owned())
    }
}

impl StatementParameter for Vec<u8> {
    fn value(&self) -> Value {
        Value::Blob(self.clone())
    }
}

impl StatementParameter for RemoteId {
    fn value(&self) -> Value {
        Value::Blob(self.0.to_vec())
    }
}

impl StatementParameter for UploadId {
    fn value(&self) -> Value {
        Value::Blob(self.0.to_vec())
    }
}

impl<T: StatementParameter + ?Sized> StatementParameter for &T {
    fn value(&self) -> Value {
        (*self).value()
    }
}

impl<T: StatementParameter> StatementParameter for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, StatementParameter::value)
    }
}

impl ColumnValue for i64 {
    fn read(value: &Value) -> Option<i64> {
        match value {
            Value::Integer(integer) => Some(*integer),
            _ => None,
        }
    }
}

impl ColumnValue for u64 {
    fn read(value: &Value) -> Option<u64> {
        i64::read(value)?.try_into().ok()
    }
}

impl ColumnValue for u32 {
    fn read(value: &Value) -> Option<u32> {
        i64::read(value)?.try_into().ok()
    }
}

impl ColumnValue for bool {
    fn read(value: &Value) -> Option<bool> {
        i64::read(value).map(|integer| integer != 0)
    }
}

impl ColumnValue for String {
    fn read(value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl ColumnValue for Vec<u8> {
    fn read(value: &Value) -> Option<Vec<u8>> {
        match value {
            Value::Blob(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl ColumnValue for RemoteId {
    fn read(value: &Value) -> Option<RemoteId> {
        RemoteId::from_slice(&Vec::read(value)?)
    }
}

impl ColumnValue for UploadId {
    fn read(value: &Value) -> Option<UploadId> {
        UploadId::from_slice(&Vec::read(value)?)
    }
}

impl<T: ColumnValue> ColumnValue for Option<T> {
    fn read(value: &Value) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::read(value).map(Some),
        }
    }
}
