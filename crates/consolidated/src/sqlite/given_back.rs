//! Uploads that a restored centre has forgotten, and remotes give back.

use rusqlite::{Connection, params};

use super::failure;
use crate::error::CentreError;
use crate::upload::SyncUpload;

/// Notes that an upload has come back; false if another copy of the remote's file was faster.
pub(super) fn note(connection: &Connection, upload: &SyncUpload) -> Result<bool, CentreError> {
    connection
        .prepare_cached(
            "UPDATE tidewater_subscription SET given_back_serial = scope_serial
             WHERE remote_id = ?1 AND publication = ?2",
        )
        .and_then(|mut statement| {
            statement.execute(params![upload.remote_id.0, upload.publication])
        })
        .map_err(failure("noting that a remote gives back"))?;
    let noted = connection
        .prepare_cached("INSERT INTO tidewater_given_back VALUES (?1, ?2) ON CONFLICT DO NOTHING")
        .and_then(|mut statement| statement.execute(params![upload.upload_id.0, upload.now_ms]))
        .map_err(failure("noting an upload that was given back"))?;
    Ok(noted > 0)
}
