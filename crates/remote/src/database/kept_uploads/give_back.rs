//! Which kept upload is to be given back to a centre that has forgotten it.

use rusqlite::{Connection, OptionalExtension};
use tidewater_protocol::UploadId;

/// A kept upload that is being given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBackUpload {
    /// Its number in the file.
    pub(crate) id: i64,
    /// Its own id, under which it goes up again.
    pub upload_id: UploadId,
}

/// One end of what is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveBackEnd {
    First,
    Last,
}

/// The kept upload that is to be given back first, or last.
pub(crate) fn giving(
    connection: &Connection,
    subscription: i64,
    end: GiveBackEnd,
) -> rusqlite::Result<Option<GivenBackUpload>> {
    let order = match end {
        GiveBackEnd::First => "ASC",
        GiveBackEnd::Last => "DESC",
    };
    let found: Option<(i64, Vec<u8>)> = connection
        .prepare_cached(&format!(
            "SELECT id, upload_id FROM tidewater_kept \
             WHERE subscription = ?1 AND giving = 1 ORDER BY id {order} LIMIT 1"
        ))?
        .query_row([subscription], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.and_then(|(id, upload_id)| {
        let upload_id = UploadId::from_slice(&upload_id)?;
        Some(GivenBackUpload { id, upload_id })
    }))
}
