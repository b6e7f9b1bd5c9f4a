//! What a restored centre makes of the uploads that are given back to it.
//!
//! Remotes come in another order than the first time. What one of them finds in effect already
//! (a delete no row, an insert or update its own values) ends when the older change of another
//! one comes after it: then it is told as lost.

use rusqlite::{Connection, params};

use tidewater_protocol::defect::{Defect, is_on};

use super::failure;
use super::upload::Conflict;
use crate::error::CentreError;
use crate::upload::SyncUpload;

/// What an upload came to, as far as another one may end it, or it that.
#[derive(Default)]
pub(super) struct Touched {
    /// Changes that were in effect already; without a winner.
    pub(super) needless: Vec<Conflict>,
    /// Changes that took effect.
    pub(super) written: Vec<Written>,
}

/// A row that was written, for people; `None` if it was deleted.
pub(super) struct Written {
    pub(super) table: String,
    pub(super) key: String,
    pub(super) row: Option<String>,
}

const TELL_LOST: &str = "
INSERT INTO tidewater_conflict (at_ms, remote_id, user_name, publication, table_name, row_key,
    operation, pre_image, uploaded, winner)
SELECT ?4, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, ?5
FROM tidewater_needless_change WHERE table_name = ?1 AND row_key = ?2 AND remote_id <> ?3";

const FORGET: &str = "
DELETE FROM tidewater_needless_change WHERE table_name = ?1 AND row_key = ?2";

const REMEMBER: &str = "
INSERT OR REPLACE INTO tidewater_needless_change (table_name, row_key, remote_id, at_ms, user_name,
    publication, operation, pre_image, uploaded)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

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

/// Whether it matters which rows an upload writes.
pub(super) fn notes_written(
    connection: &Connection,
    upload: &SyncUpload,
) -> Result<bool, CentreError> {
    let remembers = connection
        .prepare_cached("SELECT 1 FROM tidewater_needless_change")
        .and_then(|mut statement| statement.exists([]))
        .map_err(failure("looking for changes that were in effect already"))?;
    Ok(upload.is_late() || remembers)
}

/// Tells what others lose by an upload, and remembers what it may lose yet.
pub(super) fn record(
    connection: &Connection,
    upload: &SyncUpload,
    touched: &Touched,
) -> Result<(), CentreError> {
    if touched.written.is_empty() && touched.needless.is_empty() {
        return Ok(());
    }
    let is_late = upload.is_late();
    let error = failure("recording changes that were in effect already");
    for Written { table, key, row } in &touched.written {
        if is_late && !is_on(Defect::UndoneUntold) {
            connection
                .prepare_cached(TELL_LOST)
                .and_then(|mut statement| {
                    statement.execute(params![table, key, upload.remote_id.0, upload.now_ms, row])
                })
                .map_err(error)?;
        }
        connection
            .prepare_cached(FORGET)
            .and_then(|mut statement| statement.execute([table, key]))
            .map_err(error)?;
    }
    for change in touched.needless.iter().filter(|_| is_late) {
        connection
            .prepare_cached(REMEMBER)
            .and_then(|mut statement| {
                statement.execute(params![
                    change.table,
                    change.key,
                    upload.remote_id.0,
                    upload.now_ms,
                    upload.user,
                    upload.publication,
                    change.operation,
                    change.pre_image,
                    change.uploaded,
                ])
            })
            .map_err(error)?;
    }
    Ok(())
}
