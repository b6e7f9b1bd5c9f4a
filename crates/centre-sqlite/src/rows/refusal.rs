//! What SQLite says of a row that it does not take, as a code and a reason.
//!
//! SQLite's messages name tables, columns and constraints, never values of other rows,
//! so they may be passed on.

use rusqlite::{ErrorCode, ffi};

use tidewater_protocol::Code;

use tidewater_centre::engine::row_fault::RefusalReason;

/// SQLITE_CONSTRAINT_DATATYPE, of STRICT tables; the bindings are older.
const CONSTRAINT_DATATYPE: i32 = 3091;

/// Code and reason for a row that the database does not take; `None` if the error is not about it. Of
/// foreign keys SQLite does not tell which one it is.
pub(crate) fn reason(error: &rusqlite::Error) -> Option<RefusalReason> {
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
                    reason: String::new(),
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
