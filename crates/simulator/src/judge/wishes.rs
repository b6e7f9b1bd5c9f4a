//! I1 and I2 of what applications write into their outboxes: each row stays, takes effect once,
//! behind the changes that were committed before it and in the order of its publisher, and tells
//! what became of it. And I5: nobody calls what he may not, nor in another's name.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::OperatorWrites;
use crate::application::{What, Wish};

/// Under these names calls and events end that may have been done all the same.
const UNKNOWN: &[&str] = &[
    "deadline_exceeded",
    "outcome_unknown",
    "provider_gone",
    "internal",
    "consolidated_refused",
];

/// And under these if the centre's disk does not do what it should: to be told so, and to call
/// again, is left to the application.
const DISK: &[&str] = &["internal", "consolidated_refused", "procedure_failed"];

/// What an application has written down, as far as its file must have it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes(Vec<Wish>);

/// What excuses the centre.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excuses {
    /// It was restored, and may have forgotten what it had done.
    pub(crate) restored: bool,
    /// The keys of what was done were pruned with the log, up to the present moment.
    pub(crate) pruned: bool,
    /// Its disk was full, or failed.
    pub(crate) disk: bool,
}

/// What a row of an outbox tells.
struct OutboxState {
    state: String,
    code: Option<String>,
    reason: Option<String>,
}

impl Wishes {
    /// A transaction of the application was committed.
    pub(crate) fn committed(&mut self, wishes: &[Wish]) {
        self.0.extend_from_slice(wishes);
    }

    /// I2: none is gone.
    pub(crate) fn lost(&self, remote: &Connection) -> rusqlite::Result<Option<String>> {
        let told = told(remote)?;
        let lost = self.0.iter().find(|it| !told.contains_key(&it.token));
        Ok(lost.map(|it| format!("I2: {it:?} is not in the outbox any more")))
    }

    /// What must hold when everybody has synced.
    pub(crate) fn at_rest(
        &self,
        remote: &Connection,
        centre: &Connection,
        excuses: Excuses,
    ) -> rusqlite::Result<Option<String>> {
        let told = told(remote)?;
        for wish in &self.0 {
            let Some(OutboxState {
                state,
                code,
                reason,
            }) = told.get(&wish.token)
            else {
                continue;
            };
            let code = code.as_deref();
            let found = match state.as_str() {
                "answered" if wish.what == What::Forbidden => Some("was answered"),
                "answered" => None,
                "failed" if code.is_none() || reason.is_none() => Some("failed without a reason"),
                "failed" if !wish.may_fail(code, excuses) => Some("failed"),
                "failed" => None,
                _ => Some("waits at rest"),
            };
            if let Some(found) = found {
                return Ok(Some(format!(
                    "I2: {wish:?} {found}: {state} {code:?} {reason:?}"
                )));
            }
            if let Some(found) = wish.misdone(state == "answered", code, centre, excuses)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl Wish {
    /// Whether it may have come to nothing for this reason.
    fn may_fail(&self, code: Option<&str>, excuses: Excuses) -> bool {
        let is_provided = matches!(self.what, What::Fetched | What::Repeated);
        match code {
            _ if self.what == What::Forbidden => true,
            Some("deadline_exceeded") => self.expires || is_provided,
            Some("outcome_unknown") => self.expires || is_provided,
            Some("provider_gone" | "procedure_failed") if is_provided => true,
            Some(code) => excuses.disk && DISK.contains(&code),
            None => false,
        }
    }

    /// I1: its effect is there once, if it is told to be done.
    pub(crate) fn misdone(
        &self,
        is_done: bool,
        code: Option<&str>,
        centre: &Connection,
        excuses: Excuses,
    ) -> rusqlite::Result<Option<String>> {
        let sql = match self.what {
            // Whoever is there hears it.
            What::PlainEvent => return Ok(None),
            What::Event => {
                "SELECT count(*) FROM tidewater_centre_event WHERE CAST(payload AS TEXT) = ?1"
            }
            // Whatever it was to be.
            What::Forbidden => {
                "SELECT (SELECT count(*) FROM called WHERE token = ?1) + (SELECT count(*)
                 FROM tidewater_centre_event WHERE CAST(payload AS TEXT) = ?1)"
            }
            _ => "SELECT count(*) FROM called WHERE token = ?1",
        };
        let mut statement = centre.prepare_cached(sql)?;
        let count: i64 = statement.query_row([&self.token], |row| row.get(0))?;
        let may_be_done = is_done || code.is_some_and(|code| UNKNOWN.contains(&code));
        let found = match count {
            0 if is_done && !excuses.restored => "I1: is told to be done, and is not",
            1.. if self.what == What::Forbidden => "I5: was done",
            1.. if !may_be_done => "I1: is told to have come to nothing, and is done",
            2.. if self.what != What::Repeated && !excuses.pruned => "I1: was done again",
            _ => return Ok(None),
        };
        Ok(Some(format!("{found}: {self:?}, {count} times")))
    }
}

/// By the tokens.
fn told(remote: &Connection) -> rusqlite::Result<BTreeMap<String, OutboxState>> {
    let sql = "SELECT coalesce(CASE kind WHEN 'call' THEN json_extract(arguments, '$.token') END,
                               arguments), state, code, reason
               FROM tidewater_outbox";
    let mut statement = remote.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let told = OutboxState {
            state: row.get(1)?,
            code: row.get(2)?,
            reason: row.get(3)?,
        };
        Ok((row.get(0)?, told))
    })?;
    rows.collect()
}

/// Who wrote a text or a token, and the how manieth of his it is.
fn numbered(text: &str) -> Option<(&str, u64)> {
    let mut words = text.split(' ').skip(1);
    Some((words.next()?, words.next()?.parse().ok()?))
}

/// I1: nothing that anybody wanted was done twice.
pub(crate) fn done_twice(centre: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT token, count(*) FROM called WHERE procedure <> 'repeat'
               GROUP BY token HAVING count(*) > 1
               UNION ALL SELECT CAST(payload AS TEXT), count(*) FROM tidewater_centre_event
               GROUP BY payload HAVING count(*) > 1";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let (token, count): (String, i64) = (row.get(0)?, row.get(1)?);
    Ok(Some(format!("I1: {token:?} was done {count} times")))
}

/// What one publisher wanted was done in its order: calls that the database does, and the events
/// of each space. `in_two_files`: those whose order no file knows any more.
pub(crate) fn out_of_order(
    centre: &Connection,
    in_two_files: &BTreeSet<String>,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT '', token, at FROM called WHERE procedure IN ('note', 'confide')
               UNION ALL SELECT space, CAST(payload AS TEXT), id FROM tidewater_centre_event
               ORDER BY 1, 3";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut last = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (place, token): (String, String) = (row.get(0)?, row.get(1)?);
        let Some((author, number)) = numbered(&token) else {
            continue;
        };
        if in_two_files.contains(author) {
            continue;
        }
        let before = last.insert((place, author.to_owned()), number);
        if before.is_some_and(|before| before > number) {
            return Ok(Some(format!(
                "the order of {author}: {token:?} was done after {before:?}"
            )));
        }
    }
    Ok(None)
}

/// I1: what was committed before a call is in the centre before it, if it ever is. `author`: who
/// wrote both; `refused`: tables of which rows were refused to him, and may have been taken later.
pub(crate) fn before_upload(
    centre: &Connection,
    author: &str,
    refused: &BTreeSet<String>,
    settled: &OperatorWrites,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT text, min(at), \"table\" FROM audit
               WHERE operation <> 'delete' AND text LIKE '% ' || ?1 || ' %' GROUP BY text";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([author])?;
    let mut texts: Vec<(String, i64)> = Vec::new();
    while let Some(row) = rows.next()? {
        let text: String = row.get(0)?;
        if !refused.contains(row.get_ref(2)?.as_str()?) && !settled.has(&text) {
            texts.push((text, row.get(1)?));
        }
    }
    let sql = "SELECT token, audited FROM called WHERE token LIKE '% ' || ?1 || ' %'";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([author])?;
    while let Some(row) = rows.next()? {
        let (token, audited): (String, i64) = (row.get(0)?, row.get(1)?);
        let Some((_, number)) = numbered(&token) else {
            continue;
        };
        for (text, at) in &texts {
            let is_before = numbered(text).is_some_and(|(_, it)| it < number);
            if is_before && *at > audited {
                return Ok(Some(format!(
                    "I1: {token:?} was done before {text:?} was uploaded"
                )));
            }
        }
    }
    Ok(None)
}

/// I5: nothing was done in another's name. `author`: who wrote it, for this user.
pub(crate) fn in_other_name(
    centre: &Connection,
    author: &str,
    user: &str,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT token, login FROM (SELECT token, login FROM called UNION ALL
                   SELECT CAST(payload AS TEXT), user_name FROM tidewater_centre_event)
               WHERE token LIKE '% ' || ?1 || ' %' AND login <> ?2";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([author, user])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let (token, login): (String, String) = (row.get(0)?, row.get(1)?);
    Ok(Some(format!(
        "I5: {token:?} of {user} was done for {login}"
    )))
}
