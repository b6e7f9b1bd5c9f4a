//! What a handler has said of requests is what became of them.
//!
//! I1: each change has one effect at the handler. I2: none takes effect without its verdict, or
//! otherwise than it says, and none is lost on the way.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, params};

use super::is_by;
use super::settled::OperatorWrites;
use crate::application::Contests;
use crate::office::{Backend, BackendVerdict, eased, says};

/// A request that took effect otherwise than the handler has said, or of which it was asked twice.
/// `sent_by_several`: who wrote in a file of which there are copies; each copy may send it.
pub(crate) fn handled_otherwise(
    centre: &Connection,
    backend: &Backend,
    settled: &OperatorWrites,
    sent_by_several: &[String],
) -> rusqlite::Result<Option<String>> {
    let (mut texts, mut gone) = (BTreeMap::new(), BTreeSet::new());
    for effect in backend.effects() {
        match &effect.new {
            Some(text) => *texts.entry(text.clone()).or_insert(0) += 1,
            None if effect.said == BackendVerdict::Apply => drop(gone.insert(effect.key)),
            None => {}
        }
    }
    // What is refused may be sent again, as another upload.
    let twice = texts.iter().find(|(text, times)| {
        **times > 1 && says(text, false) != BackendVerdict::Refuse && !is_by(text, sent_by_several)
    });
    if let Some((text, times)) = twice {
        return Ok(Some(format!(
            "I1: the handler has done {text:?} under {times} keys"
        )));
    }
    let mut expected = BTreeSet::new();
    for text in texts.keys() {
        match says(text, false) {
            BackendVerdict::Apply => drop(expected.insert(text.clone())),
            BackendVerdict::Change => drop(expected.insert(eased(text))),
            BackendVerdict::Refuse | BackendVerdict::Handled => {}
        }
    }
    let sql = "SELECT operation, key, text FROM audit WHERE \"table\" = 'request'";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (operation, key, text): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let has_verdict = match operation.as_str() {
            "delete" => gone.contains(&key) || settled.may_have_removed("request", key),
            _ => expected.contains(&text) || settled.has(&text),
        };
        if !has_verdict {
            return Ok(Some(format!(
                "I2: {operation} of request {key} {text:?} took effect, and the handler has not \
                 said so"
            )));
        }
    }
    Ok(None)
}

/// A request of a remote that did not become what the handler has said of it.
pub(crate) fn lost_request(
    centre: &Connection,
    own: &Contests,
    doubtful: &Contests,
    backend: &Backend,
) -> rusqlite::Result<Option<String>> {
    let known: BTreeSet<&String> = backend.effects().filter_map(|it| it.new.as_ref()).collect();
    for (key, text) in &own.requests {
        let Some(text) = text.as_ref().filter(|it| !doubtful.texts.contains(*it)) else {
            continue;
        };
        if !known.contains(text) {
            return Ok(Some(format!(
                "I2: of {text:?}, request {key}, the handler was never asked"
            )));
        }
        let (sql, wanted) = match says(text, false) {
            BackendVerdict::Handled => continue,
            BackendVerdict::Refuse => (
                "SELECT 1 FROM tidewater_centre_refused WHERE table_name = 'request'
                     AND uploaded ->> 'note' = ?1
                 UNION ALL SELECT 1 FROM tidewater_centre_settled_refusal WHERE table_name = 'request'
                     AND uploaded ->> 'note' = ?1",
                text.clone(),
            ),
            said => (
                "SELECT 1 FROM audit WHERE \"table\" = 'request' AND text = ?1
                     AND operation <> 'delete'
                 UNION ALL SELECT 1 FROM tidewater_centre_conflict WHERE table_name = 'request'
                     AND uploaded ->> 'note' = ?1",
                if said == BackendVerdict::Change {
                    eased(text)
                } else {
                    text.clone()
                },
            ),
        };
        if !centre.prepare_cached(sql)?.exists(params![wanted])? {
            return Ok(Some(format!(
                "I2: {text:?}, request {key}, of which the handler has said {:?}, is nowhere",
                says(text, false)
            )));
        }
    }
    Ok(None)
}
