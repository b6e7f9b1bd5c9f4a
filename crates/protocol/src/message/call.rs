//! What the channel of calls carries. Each is the payload of a message frame, whose flags tell
//! which: see [`CallKind`].

use bytes::Bytes;
use prost::Message;

use super::ColumnHeader;
use crate::code::Code;
use crate::pack::{Op, RowShape, RowsReader, RowsWriter, UnpackError, UnpackedRow};
use crate::value::{ColumnType, Datum, Value};

/// What a message on the channel of calls is, in its flags. The id of a message is chosen by the
/// side that calls; what comes back carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallKind {
    /// A [`Call`], to be answered.
    Call = 1,
    /// A [`Call`] whose outcome nobody waits for: [`CallKind::Accepted`] answers it.
    OneWay = 2,
    /// An [`Answer`], the last of its call.
    Answer = 3,
    /// An [`Answer`] behind which more rows follow.
    Piece = 4,
    /// A [`CallFailed`].
    Failed = 5,
    /// The caller does not wait any longer. Without payload, and without an answer.
    Cancel = 6,
    /// The call is under way. Without payload.
    Accepted = 7,
}

impl CallKind {
    /// What these flags say; `None` for what this version does not know.
    pub fn from_flags(flags: u8) -> Option<CallKind> {
        use CallKind::{Accepted, Answer, Call, Cancel, Failed, OneWay, Piece};
        let kinds = [Call, OneWay, Answer, Piece, Failed, Cancel, Accepted];
        kinds.into_iter().find(|kind| *kind as u8 == flags)
    }
}

/// A procedure is called.
#[derive(Clone, PartialEq, Message)]
pub struct Call {
    /// The procedure's name.
    #[prost(string, tag = "1")]
    pub procedure: String,
    /// By name, in any order.
    #[prost(message, repeated, tag = "2")]
    pub arguments: Vec<Argument>,
    /// Who of those that provide it is meant: `user:NAME` or `remote:ID`; empty for any.
    #[prost(string, tag = "3")]
    pub to: String,
    /// 16 random bytes, if it may be done once only, however often it is said; else empty.
    #[prost(bytes = "bytes", tag = "4")]
    pub key: Bytes,
    /// To a provider: the user who calls.
    #[prost(string, tag = "5")]
    pub user: String,
    /// To a provider: the remote that calls, 16 bytes; empty if it is none.
    #[prost(bytes = "bytes", tag = "6")]
    pub remote_id: Bytes,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// NULL without one.
    #[prost(oneof = "ArgumentValue", tags = "2, 3, 4, 5, 6, 7")]
    pub given: Option<ArgumentValue>,
}

/// A value as its sender has it. The receiver makes of it what the procedure declares.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ArgumentValue {
    /// Yes or no.
    #[prost(bool, tag = "2")]
    Boolean(bool),
    /// A whole number.
    #[prost(sint64, tag = "3")]
    Integer(i64),
    /// A binary floating-point number.
    #[prost(double, tag = "4")]
    Real(f64),
    /// Text, and everything that is written as text.
    #[prost(string, tag = "5")]
    Text(String),
    /// Bytes.
    #[prost(bytes = "bytes", tag = "6")]
    Bytes(Bytes),
    /// A list or an object, as JSON.
    #[prost(string, tag = "7")]
    Json(String),
}

/// What comes of a call.
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    /// How much there is.
    #[prost(enumeration = "Returns", tag = "1")]
    pub returns: i32,
    /// The columns of the rows; with the first piece only.
    #[prost(message, repeated, tag = "2")]
    pub columns: Vec<ColumnHeader>,
    /// Rows, packed as those of a download.
    #[prost(bytes = "bytes", tag = "3")]
    pub rows: Bytes,
}

/// How much a procedure gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Returns {
    /// Nothing.
    Nothing = 0,
    /// One value: a row with one column.
    Value = 1,
    /// One row, or none.
    Row = 2,
    /// Any number of rows.
    Rows = 3,
}

/// A call has come to nothing.
#[derive(Clone, PartialEq, Eq, Message, thiserror::Error)]
#[error("{message}")]
pub struct CallFailed {
    /// The number of a [`Code`].
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// What went wrong.
    #[prost(string, tag = "2")]
    pub message: String,
    /// What to do about it.
    #[prost(string, tag = "3")]
    pub hint: String,
    /// Which argument is to blame; empty if none.
    #[prost(string, tag = "4")]
    pub argument: String,
    /// The code of an error that is the procedure's own; else empty.
    #[prost(string, tag = "5")]
    pub own_code: String,
    /// When to try again; 0 if that is of no use.
    #[prost(uint64, tag = "6")]
    pub retry_after_ms: u64,
}

impl CallFailed {
    /// A failure.
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> CallFailed {
        CallFailed {
            code: code.number(),
            message: message.into(),
            hint: hint.into(),
            ..CallFailed::default()
        }
    }

    /// An argument that cannot be used.
    pub fn argument(name: &str, what: impl std::fmt::Display) -> CallFailed {
        CallFailed {
            argument: name.to_owned(),
            ..CallFailed::new(
                Code::BadArgument,
                format!("the argument {name} {what}"),
                "see what the procedure declares",
            )
        }
    }

    /// The code, if this version knows it.
    pub fn code(&self) -> Option<Code> {
        Code::from_number(self.code)
    }
}

impl Argument {
    /// An argument with a value.
    pub fn new(name: impl Into<String>, given: impl Into<Option<ArgumentValue>>) -> Argument {
        Argument {
            name: name.into(),
            given: given.into(),
        }
    }
}

impl From<i64> for ArgumentValue {
    fn from(value: i64) -> ArgumentValue {
        ArgumentValue::Integer(value)
    }
}

impl From<bool> for ArgumentValue {
    fn from(value: bool) -> ArgumentValue {
        ArgumentValue::Boolean(value)
    }
}

impl From<f64> for ArgumentValue {
    fn from(value: f64) -> ArgumentValue {
        ArgumentValue::Real(value)
    }
}

impl From<&str> for ArgumentValue {
    fn from(value: &str) -> ArgumentValue {
        ArgumentValue::Text(value.to_owned())
    }
}

impl From<String> for ArgumentValue {
    fn from(value: String) -> ArgumentValue {
        ArgumentValue::Text(value)
    }
}

impl From<Bytes> for ArgumentValue {
    fn from(value: Bytes) -> ArgumentValue {
        ArgumentValue::Bytes(value)
    }
}

impl Answer {
    /// Nothing.
    pub fn nothing() -> Answer {
        Answer::default()
    }

    /// One value.
    pub fn value(column_type: ColumnType, value: &Datum<'_>) -> Answer {
        let header = ColumnHeader::new("value", column_type);
        Answer::new(Returns::Value, vec![header], &[std::slice::from_ref(value)])
    }

    /// Rows under these columns, whose types are known.
    pub fn new(returns: Returns, columns: Vec<ColumnHeader>, rows: &[&[Datum<'_>]]) -> Answer {
        let types = columns.iter().filter_map(ColumnHeader::column_type);
        let shape = RowShape {
            columns: types.collect(),
            key: Vec::new(),
        };
        let mut writer = RowsWriter::new(&shape);
        for row in rows {
            writer.row(Op::Upsert, row);
        }
        Answer {
            returns: returns as i32,
            columns,
            rows: Bytes::from(writer.take()),
        }
    }

    /// The rows, as a remote would store them.
    ///
    /// # Errors
    /// They are not packed as the columns say, or have a type that this version does not know.
    pub fn unpack(&self) -> Result<Vec<Vec<Value>>, UnpackError> {
        let types = self.columns.iter().map(ColumnHeader::column_type);
        let Some(columns) = types.collect() else {
            return Err(UnpackError::Malformed("a column of an unknown type"));
        };
        let shape = RowShape {
            columns,
            key: Vec::new(),
        };
        let mut reader = RowsReader::new(&shape, &self.rows);
        let mut row = UnpackedRow::default();
        let mut rows = Vec::new();
        while reader.next(&mut row)? {
            if row.op != Some(Op::Upsert) {
                return Err(UnpackError::Malformed("an answer with another operation"));
            }
            rows.push(row.new.iter().map(Datum::to_value).collect());
        }
        Ok(rows)
    }
}
