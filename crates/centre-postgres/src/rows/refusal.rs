//! What PostgreSQL says of rows that it does not take.

use tokio_postgres::error::DbError;

use tidewater_protocol::Code;

use crate::driver_error::is_stale_plan;
use tidewater_centre::engine::row_fault::{RefusalReason, RowFault};

/// Whether an error is about the rows of a statement. All others are about the
/// database or us, and end the attempt.
pub(super) fn is_data_error(error: &tokio_postgres::Error) -> bool {
    const NOT_THE_ROWS: [&str; 19] = [
        "08", "0A", "0L", "0P", "25", "26", "28", "2D", "34", "3B", "3D", "3F", "40", "42", "53",
        "55", "57", "58", "XX",
    ];
    error.as_db_error().is_some_and(|refusal| {
        let class = &refusal.code().code()[..2];
        if is_stale_plan(refusal) {
            return false;
        }
        match refusal.routine() {
            // Row security says 42501, as a missing privilege does; only it means one row.
            Some("ExecWithCheckOptions") => true,
            // RAISE in the application's own trigger, whatever state it chose; a
            // serialization failure asks for another try.
            Some("exec_stmt_raise") => class != "40",
            _ => !NOT_THE_ROWS.contains(&class),
        }
    })
}

/// Whether an error may be about rows: also of the classes that are about statements, which a
/// value can have as well (a text that is no `tsquery`, a name of no table), and a trigger of the
/// application. Which of both it is shows when the statement runs without rows.
pub(super) fn may_be_data_error(error: &tokio_postgres::Error) -> bool {
    is_data_error(error)
        || error.as_db_error().is_some_and(|refusal| {
            let state = refusal.code().code();
            match &state[..2] {
                "0A" | "3F" => !is_stale_plan(refusal),
                // Missing rights, locks that are not to be had and objects in use are not.
                "42" => state != "42501",
                "55" => !matches!(state, "55006" | "55P03"),
                _ => false,
            }
        })
}

/// What an error is of rows, if it may be them.
pub(crate) fn fault(error: &tokio_postgres::Error) -> Option<RowFault> {
    let refusal = error.as_db_error()?;
    // insufficient_privilege; row security says so of rows.
    let is_denied = refusal.code().code() == "42501" && !is_data_error(error);
    (is_denied || may_be_data_error(error)).then(|| RowFault {
        refusal: reason(refusal),
        is_certain: is_data_error(error),
        is_denied,
        has_ended: false,
        row: 0,
    })
}

/// Code and reason for a row that the database refused. Only the message and names
/// are used: the detail may have other rows' values.
pub(super) fn reason(refusal: &DbError) -> RefusalReason {
    let state = refusal.code().code();
    let code = match state {
        "23502" => Code::RowNotNull,
        "23503" => Code::RowForeignKey,
        "23505" | "23P01" => Code::RowKeyInUse,
        "23514" | "44000" => Code::RowCheck,
        _ if state.starts_with("22") => Code::RowBadValue,
        _ => Code::RowConstraint,
    };
    let mut reason = refusal.message().to_owned();
    for (what, name) in [
        ("column", refusal.column()),
        ("constraint", refusal.constraint()),
    ] {
        if let Some(name) = name.filter(|it| !reason.contains(*it)) {
            reason.push_str(&format!(" ({what} {name:?})"));
        }
    }
    RefusalReason {
        code,
        reason,
        database_code: Some(state.to_owned()),
    }
}
