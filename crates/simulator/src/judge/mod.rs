//! Judges: they know the promises, and nothing of how these are kept.
//!
//! They read what applications could read, and say what is broken; they change nothing.

mod adopted;
mod asked;
mod contests;
mod convergence;
mod decided;
mod handled;
mod inbox;
mod ledger;
mod open_change;
mod parties;
mod repeated;
mod scripts;
mod seen;
mod settled;
mod unrecorded;
mod wishes;

pub(crate) use adopted::AdoptionFile;
pub(crate) use asked::{AskedRegions, is_pending_where_asked};
pub(crate) use contests::{
    KINDS as RESOLUTIONS, lost_field, may_overwrite, miscounted, resolved, stood_for_nothing,
};
pub(crate) use convergence::difference;
pub(crate) use decided::{lost_against_nobody, lost_and_taken, refused_here_only};
pub(crate) use handled::{handled_otherwise, lost_request};
pub(crate) use inbox::{events, heard_too_much, incomplete_inbox};
pub(crate) use ledger::Ledger;
pub(crate) use parties::Parties;
pub(crate) use repeated::{MayRepeat, applied_twice};
pub(crate) use scripts::written_otherwise;
pub(crate) use seen::SeenTexts;
pub(crate) use settled::{OperatorWrites, replayed_for_nothing, settled_otherwise};
pub(crate) use unrecorded::{LastTracked, UnrecordedTexts};
pub(crate) use wishes::{Excuses, Wishes, before_upload, done_twice, in_other_name, out_of_order};

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value;

use crate::tables::{BALANCE, BALANCES, EDITED, HoldingRule, Key};
use crate::users::liked;

/// Whether a table is there.
pub(crate) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?
        .exists([name])
}

/// Whether a remote's table was made anew by a tool, or lost a trigger, and nobody has compared it
/// since.
pub(crate) fn is_untracked(remote: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT (SELECT count(*) FROM sqlite_schema
                   WHERE type = 'trigger' AND tbl_name = ?1
                   AND name IN ('tidewater_insert_' || ?1, 'tidewater_update_' || ?1,
                                'tidewater_rekey_' || ?1, 'tidewater_delete_' || ?1)) < 4
               OR EXISTS (SELECT 1 FROM tidewater_untracked WHERE table_name = ?1)";
    let mut statement = remote.prepare_cached(sql)?;
    statement.query_row([table], |row| row.get(0))
}

/// Whether one of these applications wrote a text.
pub(crate) fn is_by(text: &str, authors: &[String]) -> bool {
    let mut authors = authors.iter();
    authors.any(|name| text.contains(&format!(" {name} ")))
}

/// Two spellings of a key would be two rows: an application hears at once that one is none.
pub(crate) fn misspelt_key(remote: &Connection) -> rusqlite::Result<Option<String>> {
    for table in EDITED.iter().filter(|it| it.key_is != Key::Integer) {
        if !has_table(remote, table.name)? {
            continue;
        }
        let sql = format!("SELECT {} FROM {}", table.key(), table.name);
        let mut statement = remote.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let key: Value = row.get(0)?;
            let number = table.key_is.number(row.get_ref(0)?).ok();
            if number.map(|number| table.key_is.value(number)) != Some(key.clone()) {
                let name = table.name;
                return Ok(Some(format!("I6: a row of {name} has the key {key:?}")));
            }
        }
    }
    Ok(None)
}

/// How far the centre's audit is.
pub(crate) fn audited(centre: &Connection) -> rusqlite::Result<i64> {
    centre
        .prepare_cached("SELECT coalesce(max(at), 0) FROM audit")?
        .query_row([], |row| row.get(0))
}

/// I4: a remote holds a whole snapshot of the centre, or nothing: in every snapshot the
/// balances have the same sum.
pub(crate) fn torn_download(remote: &Connection) -> rusqlite::Result<Option<String>> {
    let (mut rows, mut sum) = (0, 0);
    for table in BALANCES {
        if !has_table(remote, table.name)? {
            return Ok(None);
        }
        let sql = format!(
            "SELECT count(*), coalesce(sum(balance), 0) FROM {}",
            table.name
        );
        let mut statement = remote.prepare_cached(&sql)?;
        let (here, balance): (i64, i64) =
            statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows += here;
        sum += balance;
    }
    let torn = rows > 0 && sum != BALANCE;
    Ok(torn.then(|| format!("I4: the balances of a snapshot add up to {sum}, not {BALANCE}")))
}

/// I5: a remote holds no row of a region that its user never had, but for what it wrote.
pub(crate) fn row_out_of_scope(
    remote: &Connection,
    authors: &[String],
    (user, held): (&str, &BTreeSet<i64>),
) -> rusqlite::Result<Option<String>> {
    for table in EDITED
        .iter()
        .filter(|table| table.columns.contains(&"region"))
    {
        if !has_table(remote, table.name)? {
            continue;
        }
        // Codes give rows of one table.
        let is_held = match table.held == HoldingRule::MineOrLiked {
            true => "code IS ?1 AND code IS NOT NULL",
            false => "?1 AND NULL",
        };
        let sql = format!(
            "SELECT {}, region, {} FROM {} WHERE ({is_held}) IS NOT TRUE",
            table.key(),
            table.text,
            table.name
        );
        let mut statement = remote.prepare_cached(&sql)?;
        let mut rows = statement.query([liked(user)])?;
        while let Some(row) = rows.next()? {
            let (key, region, text): (Value, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if !held.contains(&region) && !is_by(&text, authors) {
                return Ok(Some(format!(
                    "I5: {authors:?} holds {} {key:?} {text:?} of region {region}",
                    table.name
                )));
            }
        }
    }
    Ok(None)
}

/// I5: nothing that a remote wrote is in a region that its user never had.
pub(crate) fn upload_out_of_scope(
    centre: &Connection,
    name: &str,
    held: &BTreeSet<i64>,
    settled: &OperatorWrites,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT \"table\", key, region, text FROM audit
               WHERE text LIKE '% ' || ?1 || ' %' AND region IS NOT NULL
               AND operation <> 'delete'";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([name])?;
    while let Some(row) = rows.next()? {
        let (table, key, region): (String, Value, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // No remote's rights limit an operator.
        if !held.contains(&region) && !settled.has(row.get_ref(3)?.as_str()?) {
            return Ok(Some(format!(
                "I5: {name} wrote {table} {key:?} in region {region}"
            )));
        }
    }
    Ok(None)
}
