//! The Tidewater protocol: what remotes and servers say to each other.
//!
//! Owns values and their canonical forms, schemas, row packing, messages and
//! frames. Everything here is a pure function of its arguments: no sockets,
//! clocks, randomness or databases. The normative text is `docs/protocol.md`.

pub mod argument;
pub mod code;
pub mod compare;
pub mod datetime;
pub mod decimal;
pub mod event;
pub mod frame;
pub mod identity;
pub mod image;
pub mod index_sql;
pub mod json;
pub mod message;
pub mod pack;
pub mod schema;
pub mod value;

pub use code::Code;
pub use identity::{RemoteId, UploadId};
pub use pack::{Op, RowShape, RowsReader, RowsWriter, UnpackError, UnpackedRow};
pub use schema::{
    CheckConstraint, Column, Direction, ForeignKey, ForeignKeyAction, IdentityColumn,
    PublicationSchema, Table,
};
pub use value::{ColumnType, Datum, Fit, Value, ValueRef};
