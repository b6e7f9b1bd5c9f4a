//! Remote files as the command line names them: a file that is not a remote must not
//! become one because somebody looked at it.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use tidewater_client::{RemoteDatabase, RemoteError};
use tidewater_protocol::Code;
use tidewater_terminal::Failure;

/// Opens a file that is a remote already.
pub(crate) fn open(path: &Path) -> Result<RemoteDatabase, Failure> {
    require(path)?;
    Ok(RemoteDatabase::open(path)?)
}

/// Checks that a file is a remote already, without changing it.
pub(crate) fn require(path: &Path) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::file("open", path, &error))?;
    if metadata.is_dir() {
        return Err(not_a_remote(path, "it is a folder"));
    }
    // Read-only would do, were it not for files in WAL mode, whose index must be written.
    fs::File::open(path).map_err(|error| Failure::file("open", path, &error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let has_state = Connection::open_with_flags(path, flags).and_then(|connection| {
        connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tidewater_state')",
            [],
            |row| row.get(0),
        )
    });
    match has_state {
        Ok(true) => Ok(()),
        Ok(false) => Err(not_a_remote(path, "it has never been synced by Tidewater")),
        Err(error) => Err(match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::NotADatabase) => {
                let mut failure = not_a_remote(path, "it is not an SQLite database");
                if path.extension().is_some_and(|it| it == "toml") {
                    failure.hint = format!("name a configuration file with -c {}", path.display());
                }
                failure
            }
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                let doing = format!("opening {}", path.display());
                RemoteError::Locked { doing }.into()
            }
            _ => RemoteError::Sqlite {
                doing: format!("opening {}", path.display()),
                source: error,
            }
            .into(),
        }),
    }
}

fn not_a_remote(path: &Path, what: &str) -> Failure {
    Failure::new(
        Code::NotARemote,
        format!("{} is not a remote database: {what}", path.display()),
        "check the path; a first `tidewater sync FILE --server URL --user NAME \
         --publication NAME` makes a remote",
    )
}
