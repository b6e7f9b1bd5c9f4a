//! Defects in what is beside the syncs: a server takes a procedure for another than it is, and a
//! remote's file is changed around what comes of calls.

use rusqlite::Connection;

use tidewater_protocol::Value;
use tidewater_protocol::message::Answer;
use tidewater_remote::database::EventInterest;

use super::list::{Defect, is_on};
use crate::scenario::FETCHED;

/// What a server is configured with.
pub(crate) fn configured(config: String) -> String {
    let fetched = format!("name = \"{FETCHED}\"\n");
    match is_on(Defect::CallGivenTwice) {
        true => config.replace(&fetched, &format!("{fetched}idempotent = true\n")),
        false => config,
    }
}

/// The remote is about to execute its outbox.
pub(crate) fn before_outbox(remote: &Connection) {
    if is_on(Defect::OutboxBeforeUpload) {
        let sql = "UPDATE tidewater_state SET outbox_covered =
                   (SELECT coalesce(max(id), 0) FROM tidewater_outbox)";
        // Where somebody else writes, it is as it should be.
        let _ = remote.execute(sql, []);
    }
}

/// Notes that it has what was answered, and dies before it has; whether it did.
pub(crate) fn advances_early(
    remote: &Connection,
    interest: &EventInterest,
    answer: &Answer,
) -> bool {
    if !is_on(Defect::InboxAheadOfRows) {
        return false;
    }
    let rows = answer.unpack().unwrap_or_default();
    let (Some([Value::Integer(id), Value::Blob(check), ..]), true) =
        (rows.last().map(Vec::as_slice), rows.len() > 1)
    else {
        return false;
    };
    let position = [&id.to_le_bytes()[..], check].concat();
    let sql = "UPDATE tidewater_interest SET position = ?3 WHERE space = ?1 AND subject = ?2";
    let advanced = remote.execute(sql, (&interest.space, &interest.subject, position));
    advanced.is_ok()
}
