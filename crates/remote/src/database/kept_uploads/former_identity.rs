//! The ids that the remote had before its file was restored or copied.

use rusqlite::{Connection, params};
use tidewater_protocol::message::MAX_FORMERS;
use tidewater_protocol::{RemoteId, UploadId};

/// An id that the remote had before its file was restored or copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerIdentity {
    pub(crate) remote_id: RemoteId,
    /// The number of the last upload under it that is kept, and not being given back.
    pub(crate) sequence: u64,
    /// Its id.
    pub(crate) upload_id: UploadId,
}

/// The former ids under which kept uploads went up, the newest first.
pub(crate) fn formers(
    connection: &Connection,
    subscription: i64,
) -> rusqlite::Result<Vec<FormerIdentity>> {
    // With max(), SQLite takes the bare column from a row that has it.
    let sql = "SELECT remote_id, max(sequence), upload_id FROM tidewater_kept \
               WHERE subscription = ?1 AND remote_id IS NOT NULL AND giving = 0 \
               AND centre = (SELECT centre FROM tidewater_state) GROUP BY remote_id ORDER BY max(id) DESC LIMIT ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![subscription, MAX_FORMERS as i64], |row| {
        let (remote_id, upload_id): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(2)?);
        let sequence = row.get::<_, i64>(1)?.unsigned_abs();
        Ok((
            RemoteId::from_slice(&remote_id),
            sequence,
            UploadId::from_slice(&upload_id),
        ))
    })?;
    let former = |(remote_id, sequence, upload_id): (Option<_>, _, Option<_>)| {
        Some(FormerIdentity {
            remote_id: remote_id?,
            sequence,
            upload_id: upload_id?,
        })
    };
    let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
    Ok(rows.into_iter().filter_map(former).collect())
}
