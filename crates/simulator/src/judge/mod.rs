//! Judges: they know the promises, and nothing of how these are kept.
//!
//! They read what applications could read, and say what is broken; they change nothing.

mod convergence;
mod decided;
mod ledger;
mod repeated;
mod seen;

pub(crate) use convergence::difference;
pub(crate) use decided::{lost_against_nobody, lost_and_taken, refused_here_only};
pub(crate) use ledger::{Ledger, Parties};
pub(crate) use repeated::{MayRepeat, applied_twice};
pub(crate) use seen::Seen;

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::scenario::{BALANCE, BALANCES, EDITED};

/// Whether a table is there.
pub(crate) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?
        .exists([name])
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
    held: &BTreeSet<i64>,
) -> rusqlite::Result<Option<String>> {
    let is_own = |text: &str| {
        let mut authors = authors.iter();
        authors.any(|name| text.contains(&format!(" {name} ")))
    };
    for table in EDITED
        .iter()
        .filter(|table| table.columns.contains(&"region"))
    {
        if !has_table(remote, table.name)? {
            continue;
        }
        let sql = format!(
            "SELECT {}, region, {} FROM {}",
            table.key(),
            table.text,
            table.name
        );
        let mut statement = remote.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (key, region, text): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if !held.contains(&region) && !is_own(&text) {
                return Ok(Some(format!(
                    "I5: {authors:?} holds {} {key} {text:?} of region {region}",
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
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT \"table\", key, region FROM audit
               WHERE text LIKE '% ' || ?1 || ' %' AND region IS NOT NULL
               AND operation <> 'delete'";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([name])?;
    while let Some(row) = rows.next()? {
        let (table, key, region): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if !held.contains(&region) {
            return Ok(Some(format!(
                "I5: {name} wrote {table} {key} in region {region}"
            )));
        }
    }
    Ok(None)
}
