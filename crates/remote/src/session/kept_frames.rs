//! The messages and rows of a download as a spool keeps them: as frames.

use bytes::BytesMut;
use tidewater_protocol::frame::{SYNC_CHANNEL, put_control, rows_header};
use tidewater_protocol::message::Control;

use super::error::SyncError;
use crate::spool::Spool;

pub(super) const BROKEN_SPOOL: SyncError = SyncError::Defect {
    what: "the spool does not hold what was put into it",
};

/// Keeps a message; says how many bytes it takes.
pub(super) fn keep_control(spool: &mut dyn Spool, control: Control) -> Result<u64, SyncError> {
    let mut bytes = BytesMut::new();
    put_control(&mut bytes, SYNC_CHANNEL, control)?;
    spool.append(&bytes).map_err(SyncError::Spool)?;
    Ok(bytes.len() as u64)
}

/// Keeps a piece of rows; the same.
pub(super) fn keep_rows(spool: &mut dyn Spool, rows: &[u8]) -> Result<u64, SyncError> {
    let header = rows_header(rows.len(), SYNC_CHANNEL);
    let kept = spool.append(&header).and_then(|()| spool.append(rows));
    kept.map_err(SyncError::Spool)?;
    Ok((header.len() + rows.len()) as u64)
}
