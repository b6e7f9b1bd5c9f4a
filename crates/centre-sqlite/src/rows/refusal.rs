//! What SQLite says of a row that it does not take, as a code and a reason.
//!
//! SQLite's messages name tables, columns and constraints, never values of other rows,
//! so they may be passed on.

use rusqlite::{ErrorCode, ffi};

use tidewater_protocol::Code;

use tidewater_centre::engine::upload::refusal_reason::RefusalReason;
use tidewater_centre::error::CentreError;

/// SQLITE_CONSTRAINT_DATATYPE, of STRICT tables; the bindings are older.
const CONSTRAINT_DATATYPE: i32 = 3091;

/// Why a row stops its list.
#[derive(Debug)]
pub(crate) enum RowError {
    /// It ended the transaction.
    Ended(RefusalReason),
    /// Anything else.
    Centre(CentreError),
}

impl From<CentreError> for RowError {
    fn from(error: CentreError) -> RowError {
        RowError::Centre(error)
    }
}

/// Code and reason for a row that the database does not take; `None` if the error is not about it.
pub(crate) fn reason(
    error: &rusqlite::Error,
    table: &str,
    deleting: bool,
) -> Option<RefusalReason> {
    let rusqlite::Error::SqliteFailure(failure, message) = error else {
        return None;
    };
    let message = message.clone().unwrap_or_else(|| failure.to_string());
    let code = match (failure.code, failure.extended_code) {
        (ErrorCode::ConstraintViolation, extended) => match extended {
            ffi::SQLITE_CONSTRAINT_NOTNULL => Code::RowNotNull,
            ffi::SQLITE_CONSTRAINT_UNIQUE
            | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
            | ffi::SQLITE_CONSTRAINT_ROWID => Code::RowKeyInUse,
            ffi::SQLITE_CONSTRAINT_CHECK => Code::RowCheck,
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => {
                return Some(RefusalReason {
                    code: Code::RowForeignKey,
                    reason: foreign_key_reason(table, deleting),
                    database_code: Some(failure.extended_code.to_string()),
                });
            }
            CONSTRAINT_DATATYPE => Code::RowBadValue,
            _ => Code::RowConstraint,
        },
        (ErrorCode::TypeMismatch | ErrorCode::TooBig, _) => Code::RowBadValue,
        // A trigger or expression of the application failed.
        (ErrorCode::Unknown, ffi::SQLITE_ERROR) => Code::RowConstraint,
        _ => return None,
    };
    let reason = message;
    Some(RefusalReason {
        code,
        reason,
        database_code: Some(failure.extended_code.to_string()),
    })
}

/// Why a foreign key refuses a row: SQLite does not tell which one.
pub(crate) fn foreign_key_reason(table: &str, deleting: bool) -> String {
    if deleting {
        format!("other rows still refer to this row of {table}")
    } else {
        format!("a row that this row of {table} refers to is missing, or it is referred to")
    }
}
