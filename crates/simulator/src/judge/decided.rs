//! I2: what the centre did not take is told truly, and on both sides.

use rusqlite::Connection;

use super::parties::Parties;
use super::{OperatorWrites, UnrecordedTexts};
use crate::tables::EDITED;

/// A refused change of the remote that is not shown in the centre. Of a column that left before
/// its change went up only the remote knows, and of what was written without tracking; it keeps
/// the values.
pub(crate) fn refused_here_only(parties: &Parties<'_>) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT table_name, key, reason FROM tidewater_refused
               WHERE code NOT IN ('not_published', 'untracked') OR row_values IS NULL";
    let mut statement = parties.remote.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (table, key, reason): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let shown = parties
            .centre
            .prepare_cached(
                // What a copy of the file has settled is shown as that.
                "SELECT 1 FROM tidewater_centre_refused WHERE table_name = ?1 AND row_key = ?2
                 UNION ALL SELECT 1 FROM tidewater_centre_settled_refusal
                 WHERE table_name = ?1 AND row_key = ?2 AND settled_as <> 'taken'",
            )?
            .exists([&table, &key])?;
        if !shown {
            return Ok(Some(format!(
                "I2: {table} {key} is refused ({reason}), and the centre does not show it"
            )));
        }
    }
    Ok(None)
}

/// A change that is told as lost, and took effect. What only followed its parent's new key has the
/// text that it had; so has what several bring along to be adopted: one word, as nobody writes it.
pub(crate) fn lost_and_taken(
    centre: &Connection,
    settled: &OperatorWrites,
) -> rusqlite::Result<Option<String>> {
    for table in EDITED {
        let (name, text) = (table.name, table.text);
        let sql = format!(
            "SELECT c.row_key, c.uploaded ->> '{text}' FROM tidewater_centre_conflict AS c
             JOIN audit AS a ON a.\"table\" = c.table_name
                 AND a.text = c.uploaded ->> '{text}' AND a.operation <> 'delete'
             WHERE c.table_name = '{name}' AND c.uploaded ->> '{text}' LIKE '% %'
             AND c.uploaded ->> '{text}' IS NOT c.pre_image ->> '{text}'"
        );
        let mut statement = centre.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (key, uploaded): (String, String) = (row.get(0)?, row.get(1)?);
            // An operator may have chosen it.
            if !settled.has(&uploaded) {
                return Ok(Some(format!(
                    "I2: {uploaded:?} of {name} {key} is told as lost, and took effect"
                )));
            }
        }
    }
    Ok(None)
}

/// A change that lost although nobody else had changed its row: its pre-image is nothing that
/// the centre has ever had, or was told, nor `unrecorded` and lost against what others have made
/// of the row.
pub(crate) fn lost_against_nobody(
    centre: &Connection,
    unrecorded: &UnrecordedTexts,
) -> rusqlite::Result<Option<String>> {
    for table in EDITED {
        let (name, text) = (table.name, table.text);
        let sql = format!(
            "SELECT c.row_key, c.pre_image ->> '{text}', c.uploaded, c.winner ->> '{text}',
                 c.pre_image, c.winner
             FROM tidewater_centre_conflict AS c
             WHERE c.table_name = '{name}' AND c.pre_image ->> '{text}' LIKE '% r%'
             AND NOT EXISTS (SELECT 1 FROM audit WHERE \"table\" = '{name}'
                 AND text = c.pre_image ->> '{text}')
             AND NOT EXISTS (SELECT 1 FROM tidewater_centre_conflict AS o WHERE o.table_name = '{name}'
                 AND o.uploaded ->> '{text}' = c.pre_image ->> '{text}')
             AND NOT EXISTS (SELECT 1 FROM tidewater_centre_refused AS o WHERE o.table_name = '{name}'
                 AND o.uploaded ->> '{text}' = c.pre_image ->> '{text}')
             AND NOT EXISTS (SELECT 1 FROM tidewater_centre_settled_refusal AS o
                 WHERE o.table_name = '{name}' AND o.settled_as <> 'taken'
                 AND o.uploaded ->> '{text}' = c.pre_image ->> '{text}')"
        );
        let mut statement = centre.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (key, before, uploaded): (String, String, Option<String>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let winner: Option<String> = row.get(3)?;
            if unrecorded.may_lose(&before, winner.as_ref()) {
                continue;
            }
            let (pre_image, winner): (String, Option<String>) = (row.get(4)?, row.get(5)?);
            return Ok(Some(format!(
                "I2: {uploaded:?} of {name} {key} lost against {winner:?} because it was made from \
                 {pre_image}, which nobody but its remote has ever had"
            )));
        }
    }
    Ok(None)
}
