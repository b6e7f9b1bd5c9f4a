//! Errors of the driver, as errors of a centre.

use mysql_async::{DriverError, Error, ServerError};

use tidewater_centre::error::CentreError;

use crate::dialect::PREFIX;

/// A row has a key that another one has.
pub(crate) const DUPLICATE_KEY: u16 = 1062;
/// Others have locked what this one needs, and wait for what it has locked: the transaction is undone.
const DEADLOCK: u16 = 1213;
/// Another transaction has changed a row that this one has seen before (MariaDB, in snapshots).
const RECORD_CHANGED: u16 = 1020;
/// A prepared statement has outlived the tables that it refers to.
const STALE_STATEMENT: u16 = 1615;
/// A lock was waited for in vain; and the same where waiting was not wanted.
const LOCK_WAIT: [u16; 2] = [1205, 3572];
const NO_SUCH_TABLE: u16 = 1146;
/// User or password are not known, the database is not, or the user has no right to it.
const LET_NOBODY_IN: [u16; 4] = [1044, 1045, 1049, 1698];
/// The server ends, ends this connection, takes no more of them, or is no primary at the moment.
const AWAY: [u16; 15] = [
    1040, 1042, 1043, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1203, 1290, 1836, 1927,
];
/// Disk or memory are full, or a table is.
const NO_ROOM: [u16; 7] = [1021, 1030, 1037, 1038, 1041, 1114, 1135];

/// An error of the driver as ours; `what` was being done.
pub(crate) fn statement_failed(what: &str) -> impl Fn(Error) -> CentreError + Copy + '_ {
    move |error| centre_error(what, &error)
}

/// The same.
pub(crate) fn centre_error(what: &str, error: &Error) -> CentreError {
    match error {
        Error::Server(refusal) => refused(what, refusal),
        Error::Io(_) | Error::Driver(DriverError::ConnectionClosed) => CentreError::Unavailable {
            message: error.to_string(),
        },
        _ => CentreError::Internal {
            message: format!("{what}: {error}"),
        },
    }
}

/// An error while connecting for the first time: somebody may have to put something right.
pub(crate) fn connecting(error: &Error) -> CentreError {
    match error {
        Error::Server(refusal) if LET_NOBODY_IN.contains(&refusal.code) => {
            CentreError::Configuration {
                message: format!("the database lets nobody in: {}", refusal.message),
                hint: "check user, password and database in the URL, and that the user may \
                       connect from this machine"
                    .into(),
            }
        }
        _ => centre_error("connecting", error),
    }
}

/// The database's own number of an error.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Server(refusal) => Some(refusal.code),
        _ => None,
    }
}

fn refused(what: &str, refusal: &ServerError) -> CentreError {
    let code = refusal.code;
    if LOCK_WAIT.contains(&code) {
        return CentreError::Locked {
            message: format!("{what}: another session holds a lock"),
        };
    }
    if AWAY.contains(&code) || NO_ROOM.contains(&code) {
        return CentreError::Unavailable {
            message: format!("{what}: {}", refusal.message),
        };
    }
    if code == NO_SUCH_TABLE && refusal.message.contains(&format!(".{PREFIX}")) {
        return CentreError::NotDeployed {
            message: format!("{what}: {}", refusal.message),
        };
    }
    CentreError::StatementFailed {
        what: what.to_owned(),
        message: refusal.message.clone(),
        sqlstate: Some(code.to_string()),
        retry: matches!(code, DEADLOCK | RECORD_CHANGED | STALE_STATEMENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, message: &str) -> CentreError {
        let error = Error::Server(ServerError {
            code,
            message: message.into(),
            state: "HY000".into(),
        });
        centre_error("trying", &error)
    }

    #[test]
    fn errors_are_told_apart_by_what_can_be_done() {
        assert!(matches!(of(1205, ""), CentreError::Locked { .. }));
        assert!(matches!(of(1114, ""), CentreError::Unavailable { .. }));
        assert!(matches!(of(1053, ""), CentreError::Unavailable { .. }));
        let missing = "Table 'shop.tidewater_meta' doesn't exist";
        assert!(matches!(of(1146, missing), CentreError::NotDeployed { .. }));
        let other = of(1146, "Table 'shop.customer' doesn't exist");
        assert_eq!(other.database_code(), Some("1146"));
        assert!(of(1213, "").is_retryable());
        assert!(!of(1062, "").is_retryable());
    }
}
