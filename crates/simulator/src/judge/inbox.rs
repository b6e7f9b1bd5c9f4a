//! I3 and I5 of durable events: an inbox has all of what its user may hear and wants to, in order
//! and once, and nothing else.

use rusqlite::Connection;

use crate::users::may_hear;

/// I5: no event that its user may not hear.
pub(crate) fn heard_too_much(remote: &Connection, user: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT space, subject FROM tidewater_inbox WHERE kind = 'event'";
    let mut statement = remote.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (space, subject): (String, String) = (row.get(0)?, row.get(1)?);
        if !may_hear(user, &space, &subject) {
            return Ok(Some(format!("I5: {user} has heard of {space}/{subject}")));
        }
    }
    Ok(None)
}

/// I3: all events of what the application is interested in, each once and in order; from the
/// beginning, also if the inbox was begun anew.
pub(crate) fn incomplete_inbox(
    remote: &Connection,
    centre: &Connection,
    user: &str,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT space, subject, code FROM tidewater_interest";
    let mut statement = remote.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (space, pattern): (String, String) = (row.get(0)?, row.get(1)?);
        let code: Option<String> = row.get(2)?;
        let begins = pattern.trim_end_matches('>');
        if !may_hear(user, &space, begins) {
            if code.as_deref() != Some("not_allowed") {
                return Ok(Some(format!(
                    "I5: {user} may not hear of {space}/{pattern}, and is told {code:?}"
                )));
            }
            continue;
        }
        let here = "SELECT CAST(payload AS TEXT) FROM tidewater_inbox
                    WHERE kind = 'event' AND space = ?1 AND substr(subject, 1, length(?2)) = ?2
                    AND id > (SELECT coalesce(max(id), 0) FROM tidewater_inbox
                              WHERE kind = 'anew' AND space = ?1 AND subject = ?2 || '>')
                    ORDER BY id";
        let there = "SELECT CAST(payload AS TEXT) FROM tidewater_centre_event
                     WHERE space = ?1 AND substr(subject, 1, length(?2)) = ?2 ORDER BY id";
        let here = texts(remote, here, &space, begins)?;
        let there = texts(centre, there, &space, begins)?;
        if here != there {
            return Ok(Some(format!(
                "I3: of {space}/{pattern} {user} has {here:?}, of {there:?}; {code:?}"
            )));
        }
    }
    Ok(None)
}

fn texts(
    connection: &Connection,
    sql: &str,
    space: &str,
    begins: &str,
) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare_cached(sql)?;
    let texts = statement.query_map([space, begins], |row| row.get(0))?;
    texts.collect()
}

/// How many events there are.
pub(crate) fn events(centre: &Connection) -> rusqlite::Result<i64> {
    centre.query_row("SELECT count(*) FROM tidewater_centre_event", [], |row| {
        row.get(0)
    })
}
