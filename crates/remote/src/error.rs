//! What can go wrong on a remote, whose fault it is, and what to do next.
//!
//! Owns [`RemoteError`], the error of everything that touches the remote's file. The
//! errors of a sync as a whole (network, server, sign-in) belong to the session.

use std::path::PathBuf;

use tidewater_protocol::Code;
use tidewater_protocol::schema::SchemaError;

/// A failure on the remote database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// SQLite failed.
    #[error("{} while {doing}: {source}", if is_full(source) { "there is no room on the disk" } else { "SQLite failed" })]
    Sqlite {
        /// What was being done.
        doing: String,
        /// SQLite's own words.
        source: rusqlite::Error,
    },
    /// A trigger of the application ended our transaction, or raised where nothing can wait.
    #[error("a trigger of the application stopped {doing}: {message}")]
    Trigger {
        /// What was being done.
        doing: String,
        /// What the trigger says.
        message: String,
    },
    /// Another connection holds the lock for longer than we wait.
    #[error("the remote database is locked by another connection ({doing})")]
    Locked {
        /// What was being done.
        doing: String,
    },
    /// The file is not a remote database, or none that can be used.
    #[error("{path} is not a remote database: {what}")]
    NotARemote {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Others cannot begin from the file.
    #[error("{path} is no image: {what}")]
    NoImage {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A newer version of Tidewater wrote the file.
    #[error("the remote database has format {found}; this program knows formats up to {known}")]
    TooNew {
        /// The file's format.
        found: i64,
        /// The newest format that this version knows.
        known: i64,
    },
    /// The remote belongs to another user.
    #[error("this remote belongs to user {user:?} of {server}")]
    OtherAccount {
        /// The server that it belongs to.
        server: String,
        /// The user that it belongs to.
        user: String,
    },
    /// Something in the file already has the name of a published table.
    #[error(
        "publication {publication:?} has a table {table:?}, but the file already has something of that name"
    )]
    TableInTheWay {
        /// The publication.
        publication: String,
        /// The name.
        table: String,
    },
    /// Two subscriptions of this remote publish the same table.
    #[error(
        "table {table:?} is in publication {first:?} and in publication {second:?}; a remote can hold it only once"
    )]
    TableInTwoPublications {
        /// The table.
        table: String,
        /// The subscription that has it.
        first: String,
        /// The subscription that also wants it.
        second: String,
    },
    /// A synced table was dropped or renamed behind our back.
    #[error("the synced table {table:?} is no longer in the file")]
    TableMissing {
        /// The table.
        table: String,
    },
    /// A synced table lacks something that is published.
    #[error("the synced table {table:?} is not as it was published: {what}")]
    TableAltered {
        /// The table.
        table: String,
        /// What it lacks.
        what: String,
    },
    /// A column of the application's own has the name of one that is published now.
    #[error(
        "publication {publication:?} has a column {column:?} in table {table:?}, but the file already has one of that name there"
    )]
    ColumnInTheWay {
        /// The publication.
        publication: String,
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The publication's schema cannot be laid out in SQLite.
    #[error("publication {publication:?} cannot be stored in SQLite: {what}")]
    SchemaUnusable {
        /// The publication.
        publication: String,
        /// Why not.
        what: String,
    },
    /// A stored or received schema cannot be decoded.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Another sync of this file changed its state since this one began.
    #[error("another sync of this remote went ahead")]
    AnotherSyncWentAhead,
    /// A table lost its tracking triggers while a sync was under way.
    #[error("the tracking triggers of table {table:?} vanished during the sync")]
    TrackingWasOff {
        /// The table.
        table: String,
    },
    /// The server sent rows that cannot be.
    #[error("rows of table {table:?} from the server make no sense: {what}")]
    BadRows {
        /// The table.
        table: String,
        /// What is wrong with them.
        what: String,
    },
    /// The server sent rows in a column layout that does not fit the schema.
    #[error("rows of table {table:?} from the server do not fit its schema: {what}")]
    BadLayout {
        /// The table.
        table: String,
        /// What does not fit.
        what: String,
    },
    /// The caller asked for something that does not make sense.
    #[error("{what}")]
    Usage {
        /// What was wrong.
        what: String,
        /// What to do instead.
        hint: String,
    },
}

fn is_internal_table_gone(error: &rusqlite::Error) -> bool {
    let message = error.to_string();
    let name = message.strip_prefix("no such table: ");
    name.is_some_and(|name| {
        let name = name.strip_prefix("main.").unwrap_or(name);
        name.starts_with("tidewater_")
    })
}

/// Whether there is no room for what was to be written. SQLite says so itself of the database's
/// file; where the write-ahead log, or the index of it, cannot grow, only the system's error tells.
fn is_full(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi;
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        return false;
    };
    matches!(
        failure.extended_code,
        ffi::SQLITE_FULL
            | ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_SHMOPEN
            | ffi::SQLITE_IOERR_SHMSIZE
    )
}

impl RemoteError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            RemoteError::Sqlite { .. } | RemoteError::Trigger { .. } => Code::RemoteDatabase,
            RemoteError::Locked { .. } => Code::RemoteLocked,
            RemoteError::NotARemote { .. } => Code::NotARemote,
            RemoteError::NoImage { .. } => Code::ImageInvalid,
            RemoteError::TooNew { .. } => Code::RemoteTooNew,
            RemoteError::OtherAccount { .. } | RemoteError::Usage { .. } => Code::Usage,
            RemoteError::TableInTheWay { .. }
            | RemoteError::TableInTwoPublications { .. }
            | RemoteError::ColumnInTheWay { .. } => Code::TableInTheWay,
            RemoteError::TableMissing { .. } | RemoteError::TableAltered { .. } => {
                Code::RemoteDatabase
            }
            RemoteError::SchemaUnusable { .. }
            | RemoteError::Schema(_)
            | RemoteError::BadLayout { .. } => Code::SchemaMismatch,
            RemoteError::AnotherSyncWentAhead | RemoteError::TrackingWasOff { .. } => {
                Code::SyncInProgress
            }
            RemoteError::BadRows { .. } => Code::MalformedMessage,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            RemoteError::Sqlite { source, .. } if is_internal_table_gone(source) => {
                "somebody has dropped or renamed a table of Tidewater's own; restore a copy of the \
                 file, or set it aside and sync into a new one: its own tables still hold what \
                 was not uploaded"
            }
            RemoteError::Sqlite { source, .. } if is_full(source) => {
                "make room on the disk that has the file, or let it grow (a quota, a limit of the \
                 process, PRAGMA max_page_count); then sync again: nothing is lost"
            }
            RemoteError::Sqlite { .. } => {
                "check that the disk is not full and that the file and its folder can be written; \
                 `PRAGMA integrity_check` tells whether the file is damaged"
            }
            RemoteError::Trigger { .. } => {
                "nothing was changed; have the trigger RAISE(ABORT, ...) instead of ROLLBACK (then \
                 only the row that it refuses waits), or drop it"
            }
            RemoteError::Locked { .. } => {
                "end the transaction that the application holds open, then sync again"
            }
            RemoteError::NotARemote { .. } => {
                "name another file, or a new one: it is made at the first sync"
            }
            RemoteError::NoImage { .. } => {
                "fetch the image again, with the description that was made with it"
            }
            RemoteError::TooNew { .. } => "update this program",
            RemoteError::OtherAccount { .. } => {
                "leave out the user, or use a new file for the other one"
            }
            RemoteError::TableInTheWay { .. } => {
                "if it is a table with the same rows, adopt it: sync with --adopt mine (what differs \
                 goes up) or --adopt centre (what differs is overwritten). Otherwise rename or drop \
                 it, then sync again; nothing was changed"
            }
            RemoteError::TableInTwoPublications { .. } => {
                "subscribe to only one of the two in this file"
            }
            RemoteError::TableMissing { .. } => {
                "if it was renamed, give it back its name; if it was dropped, `tidewater verify \
                 FILE --repair` makes it again; what is pending is kept"
            }
            RemoteError::TableAltered { .. } => {
                "undo the change, and what is pending goes up; or let `tidewater verify FILE \
                 --repair` make the table as it was published, and list what is pending among \
                 the refused rows"
            }
            RemoteError::ColumnInTheWay { .. } => {
                "rename it (ALTER TABLE ... RENAME COLUMN ... TO ...) or drop it, then sync \
                 again; nothing was changed"
            }
            RemoteError::SchemaUnusable { .. } => {
                "ask whoever runs the server to change the publication"
            }
            RemoteError::Schema(_)
            | RemoteError::BadLayout { .. }
            | RemoteError::BadRows { .. } => {
                "this is a defect of the server or of this program; update both and report it"
            }
            RemoteError::AnotherSyncWentAhead => "nothing was changed; sync again",
            RemoteError::TrackingWasOff { .. } => {
                "nothing was changed, and the triggers are there again; sync again: the table \
                 is compared then"
            }
            RemoteError::Usage { hint, .. } => hint,
        }
        .to_owned()
    }

    /// Wraps an error of SQLite; a lock that somebody else holds is told apart.
    pub(crate) fn sqlite(doing: impl Into<String>, source: rusqlite::Error) -> RemoteError {
        let doing = doing.into();
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                RemoteError::Locked { doing }
            }
            _ if has_raised(&source) => RemoteError::by_trigger(doing, &source),
            _ => RemoteError::Sqlite { doing, source },
        }
    }

    /// A statement failed because of a trigger of the application.
    pub(crate) fn by_trigger(doing: impl Into<String>, source: &rusqlite::Error) -> RemoteError {
        RemoteError::Trigger {
            doing: doing.into(),
            message: source.to_string(),
        }
    }
}

/// Whether a trigger called `RAISE`.
fn has_raised(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    code == Some(rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER)
}

/// Says what was being done when SQLite failed.
pub(crate) trait ErrorContext<T> {
    fn doing(self, doing: &str) -> Result<T, RemoteError>;
}

impl<T> ErrorContext<T> for Result<T, rusqlite::Error> {
    fn doing(self, doing: &str) -> Result<T, RemoteError> {
        self.map_err(|source| RemoteError::sqlite(doing, source))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn a_disk_without_room_is_told_wherever_it_shows() {
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR_WRITE,
            ffi::SQLITE_IOERR_SHMOPEN,
            ffi::SQLITE_IOERR_SHMSIZE,
        ] {
            let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let error = RemoteError::sqlite("writing", failure);
            assert!(
                error
                    .to_string()
                    .starts_with("there is no room on the disk")
            );
            assert!(error.hint().starts_with("make room on the disk"));
        }
        let damaged = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), None);
        let error = RemoteError::sqlite("reading", damaged);
        assert!(error.to_string().starts_with("SQLite failed while reading"));
    }

    #[test]
    fn a_file_that_may_not_grow_is_a_full_disk() {
        let connection = rusqlite::Connection::open_in_memory().expect("memory can be had");
        let full = connection
            .execute_batch("CREATE TABLE t (b BLOB); PRAGMA max_page_count = 2")
            .and_then(|()| connection.execute("INSERT INTO t VALUES (zeroblob(100000))", []))
            .expect_err("there is no room");
        assert!(is_full(&full), "{full}");
    }
}
