//! Errors of the driver, as errors of a centre.

use tokio_postgres::error::SqlState;

use tidewater_centre::error::CentreError;

/// An error of the driver as ours; `what` was being done.
pub(super) fn statement_failed(what: &str) -> impl Fn(tokio_postgres::Error) -> CentreError + '_ {
    move |error| centre_error(what, &error)
}

pub(super) fn centre_error(what: &str, error: &tokio_postgres::Error) -> CentreError {
    let Some(refusal) = error.as_db_error() else {
        if error.is_closed() || is_input_output(error) {
            return CentreError::Unavailable {
                message: chain(error),
            };
        }
        return CentreError::Internal {
            message: format!("{what}: {}", chain(error)),
        };
    };
    let state = refusal.code().code();
    if is_locked(state) {
        return CentreError::Locked {
            message: format!("{what}: another session holds a lock"),
        };
    }
    if is_shutdown(state) {
        return CentreError::Unavailable {
            message: refusal.message().to_owned(),
        };
    }
    // A schema, table or column that we rely on is not, or no longer, there.
    if matches!(state, "3F000" | "42P01" | "42703") {
        return CentreError::NotDeployed {
            message: format!("{what}: {}", refusal.message()),
        };
    }
    CentreError::StatementFailed {
        what: what.to_owned(),
        message: refusal.message().to_owned(),
        sqlstate: Some(state.to_owned()),
        retry: *refusal.code() == SqlState::T_R_SERIALIZATION_FAILURE
            || *refusal.code() == SqlState::T_R_DEADLOCK_DETECTED
            || is_stale_plan(refusal),
    }
}

/// Whether a prepared statement has outlived the tables that it refers to.
pub(super) fn is_stale_plan(refusal: &tokio_postgres::error::DbError) -> bool {
    match refusal.code().code() {
        // invalid_sql_statement_name
        "26000" => true,
        "0A000" => refusal.routine() == Some("RevalidateCachedQuery"),
        _ => false,
    }
}

/// Whether a lock was waited for in vain: `lock_not_available`.
pub(super) fn is_locked(state: &str) -> bool {
    state == "55P03"
}

fn is_shutdown(state: &str) -> bool {
    state.starts_with("08") || matches!(state, "57P01" | "57P02" | "57P03" | "53300")
}

fn is_input_output(error: &tokio_postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<std::io::Error>() {
            return true;
        }
        source = inner.source();
    }
    false
}

/// An error with all its causes; the driver's own text leaves them out.
pub(super) fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}
