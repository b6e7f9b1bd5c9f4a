//! What operators have settled: each side's list says how, and what they said is so.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value as Json;

use super::parties::Parties;
use crate::tables::EDITED;

/// What an operator may have written: texts of others too, each so many times.
#[derive(Debug, Default)]
pub(crate) struct OperatorWrites {
    texts: BTreeMap<String, u64>,
    /// Rows that may have gone, by table and key.
    gone: BTreeSet<(String, String)>,
}

impl OperatorWrites {
    /// Adds what a row was made, a JSON object; or that it was to go.
    pub(crate) fn add(&mut self, table: &str, key: &str, row: Option<&str>) {
        let Some(row) = row else {
            self.gone.insert((table.to_owned(), key.to_owned()));
            return;
        };
        let Ok(Json::Object(row)) = serde_json::from_str(row) else {
            return;
        };
        for value in row.values() {
            if let Json::String(text) = value {
                *self.texts.entry(text.clone()).or_default() += 1;
            }
        }
    }

    /// How often it may have been written so.
    pub(crate) fn times(&self, text: &str) -> u64 {
        self.texts.get(text).copied().unwrap_or_default()
    }

    /// Whether a row may have been deleted.
    pub(crate) fn may_have_removed(&self, table: &str, key: i64) -> bool {
        self.gone.contains(&(table.to_owned(), format!("[{key}]")))
    }

    /// Whether it may have been written so.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.times(text) > 0
    }
}

/// Of refused rows that an operator has settled: those of which the remote has not heard, or
/// something else than the centre says.
pub(crate) fn settled_otherwise(parties: &Parties<'_>) -> rusqlite::Result<Option<String>> {
    let Parties { remote, centre, .. } = parties;
    let id: Option<Vec<u8>> = remote
        .prepare_cached("SELECT remote_id FROM tidewater_state")?
        .query_row([], |row| row.get(0))?;
    let by_operator = "settled_as IN ('replayed', 'edited', 'discarded')";
    // A copied file that goes on as another remote keeps what it was told before.
    let how = "SELECT settled_as FROM tidewater_centre_settled_refusal
               WHERE table_name = ?2 AND row_key = ?3 AND sequence = ?4
               AND (remote_id = ?1 OR ?5 <> 'refused')
               ORDER BY remote_id = ?1 DESC, settled_as = ?5 DESC";
    let mut how = centre.prepare_cached(how)?;
    // What the remote lists, as refused or as settled by an operator.
    let sql = "SELECT table_name, key, sequence, 'refused' FROM tidewater_refused
               UNION ALL SELECT table_name, key, sequence, outcome FROM tidewater_settled
               WHERE outcome IN ('replayed', 'edited', 'discarded')";
    let mut listed = remote.prepare_cached(sql)?;
    let mut rows = listed.query([])?;
    while let Some(row) = rows.next()? {
        let (table, key, sequence): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let here: String = row.get(3)?;
        let there: Option<String> = how
            .query_row(params![id, table, key, sequence, here], |row| row.get(0))
            .optional()?;
        let is_told = match there.as_deref() {
            Some("replayed" | "edited" | "discarded") => there.as_ref() == Some(&here),
            _ => here == "refused",
        };
        if !is_told {
            return Ok(Some(format!(
                "I2: {table} {key} of upload {sequence} is {here} here, and {there:?} in the centre"
            )));
        }
    }
    // And what only the centre lists: a row that was changed again since is an ordinary change.
    let sql = format!(
        "SELECT table_name, row_key, settled_as FROM tidewater_centre_settled_refusal
         WHERE remote_id = ?1 AND {by_operator}"
    );
    let mut settled = centre.prepare_cached(&sql)?;
    let sql = "SELECT 1 FROM tidewater_settled WHERE table_name = ?1 AND key = ?2
               UNION ALL SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2";
    let mut heard = remote.prepare_cached(sql)?;
    let mut rows = settled.query([&id])?;
    while let Some(row) = rows.next()? {
        let (table, key, there): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if !heard.exists([&table, &key])? {
            return Ok(Some(format!(
                "I2: {table} {key} was {there} by an operator, and its remote lists nothing"
            )));
        }
    }
    Ok(None)
}

/// A refused row that an operator has replayed, and that did not take effect. What only followed its
/// parent has the text that it had.
pub(crate) fn replayed_for_nothing(centre: &Connection) -> rusqlite::Result<Option<String>> {
    for table in EDITED {
        let (name, text) = (table.name, table.text);
        let sql = format!(
            "SELECT row_key, uploaded ->> '{text}' FROM tidewater_centre_settled_refusal AS s
             WHERE table_name = '{name}' AND settled_as = 'replayed' AND operation <> 'delete'
             AND s.uploaded ->> '{text}' LIKE '% %'
             AND s.uploaded ->> '{text}' IS NOT s.pre_image ->> '{text}'
             AND NOT EXISTS (SELECT 1 FROM audit WHERE \"table\" = '{name}'
                 AND text = s.uploaded ->> '{text}')"
        );
        let found: Option<(String, String)> = centre
            .prepare_cached(&sql)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((key, text)) = found {
            return Ok(Some(format!(
                "I2: {text:?} of {name} {key} is told as replayed, and did not take effect"
            )));
        }
    }
    Ok(None)
}
