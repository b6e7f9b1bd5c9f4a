//! What must hold when a hierarchy has come to rest: all three levels agree, and what a device was
//! told is taken reached headquarters once, or is listed as refused at the branch.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::scenario::DENIED;

/// What the application of a device has committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// The last text of each item that it has inserted.
    pub(super) items: BTreeMap<i64, String>,
    /// How far it has counted.
    pub(super) counted: i64,
    /// What it has put into each till.
    pub(super) put: BTreeMap<i64, i64>,
}

type Rows = BTreeSet<(i64, String)>;

/// Of a table, what is held of it at headquarters and at the branch, and by a seller.
const TABLES: [(&str, &str, &str); 4] = [
    (
        "SELECT item_id, region || ' ' || owner || ' ' || note FROM item WHERE note NOT LIKE \
         'denied%'",
        "AND region = 1",
        "AND owner = ?1",
    ),
    (
        "SELECT counter_id, region || ' ' || count FROM counter WHERE true",
        "AND region = 1",
        "",
    ),
    ("SELECT price_id, note FROM price WHERE true", "", ""),
    (
        "SELECT till_id, CAST(amount AS TEXT) FROM till WHERE true",
        "",
        "",
    ),
];

fn rows(connection: &Connection, sql: &str, of: Option<&str>) -> rusqlite::Result<Rows> {
    let mut statement = connection.prepare(sql)?;
    let count = statement.parameter_count();
    let of: Vec<&str> = of.into_iter().take(count).collect();
    let rows = statement.query_map(rusqlite::params_from_iter(of), |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    rows.collect()
}

/// I6: what the branch has otherwise than headquarters.
pub(super) fn branch_differs(
    headquarters: &Connection,
    branch: &Connection,
) -> rusqlite::Result<Option<String>> {
    for (table, of_branch, _) in TABLES {
        let above = rows(headquarters, &format!("{table} {of_branch}"), None)?;
        let here = rows(branch, table, None)?;
        if let Some(row) = above.symmetric_difference(&here).next() {
            return Ok(Some(format!(
                "I6: the branch and headquarters differ in {row:?}"
            )));
        }
    }
    Ok(None)
}

/// I6: what a device has otherwise than its branch.
pub(super) fn device_differs(
    branch: &Connection,
    device: &Connection,
    seller: &str,
) -> rusqlite::Result<Option<String>> {
    for (table, _, of_seller) in TABLES {
        let above = rows(branch, &format!("{table} {of_seller}"), Some(seller))?;
        let here = rows(device, table, None)?;
        if let Some(row) = above.symmetric_difference(&here).next() {
            return Ok(Some(format!(
                "I6: {seller} and the branch differ in {row:?}"
            )));
        }
    }
    Ok(None)
}

/// I1: what took effect twice at headquarters.
pub(super) fn applied_twice(headquarters: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT key, \"table\" || ' ' || text FROM audit
               GROUP BY \"table\", key, text HAVING count(*) > 1";
    if let Some((key, what)) = rows(headquarters, sql, None)?.first() {
        return Ok(Some(format!(
            "I1: {what} took effect twice at headquarters, of row {key}"
        )));
    }
    went_back(headquarters, "headquarters")
}

/// I1: what became again at this level what it had been before. That it is written once more as it
/// is tells nothing: what a branch has uploaded may come down to it.
pub(super) fn went_back(centre: &Connection, level: &str) -> rusqlite::Result<Option<String>> {
    let again = "SELECT a.key, a.text || ' after ' || c.text FROM audit a
                 JOIN audit b ON b.\"table\" = 'item' AND b.key = a.key AND b.text = a.text
                 JOIN audit c ON c.\"table\" = 'item' AND c.key = a.key AND c.text <> a.text
                     AND c.at BETWEEN b.at AND a.at
                 WHERE a.\"table\" = 'item'";
    let less = "SELECT a.key, a.text || ' after ' || b.text FROM audit a
                JOIN audit b ON b.\"table\" = 'counter' AND b.key = a.key AND b.at < a.at
                    AND b.text > a.text
                WHERE a.\"table\" = 'counter'";
    for (table, sql) in [("item", again), ("counter", less)] {
        if let Some((key, what)) = rows(centre, sql, None)?.first() {
            return Ok(Some(format!("I1: {table} {key} at {level} is {what}")));
        }
    }
    Ok(None)
}

/// I1, I2: a till at headquarters that has something else in it than what everybody has put there.
pub(super) fn counted_otherwise(
    headquarters: &Connection,
    put: &BTreeMap<i64, i64>,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT till_id, CAST(amount AS TEXT) FROM till";
    for (till, amount) in rows(headquarters, sql, None)? {
        let put = put.get(&till).copied().unwrap_or_default();
        if amount != put.to_string() {
            return Ok(Some(format!(
                "I1, I2: till {till} at headquarters has {amount}, {put} was put into it"
            )));
        }
    }
    Ok(None)
}

/// I2: what a seller has committed and is not at headquarters, nor listed as refused.
pub(super) fn lost(
    headquarters: &Connection,
    branch: &Connection,
    (seller, counter): (&str, i64),
    ledger: &Ledger,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT item_id, note FROM item WHERE owner = ?1";
    let there: BTreeMap<i64, String> = rows(headquarters, sql, Some(seller))?.into_iter().collect();
    let sql = "SELECT 0, key FROM tidewater_refused WHERE table_name = 'item'";
    let refused = rows(branch, sql, None)?;
    for (id, text) in &ledger.items {
        let is_refused = refused.contains(&(0, format!("[{id}]")));
        let found = there.get(id);
        let is_well = match text.starts_with(DENIED) {
            true => found.is_none() && is_refused,
            false => found == Some(text) && !is_refused,
        };
        if !is_well {
            return Ok(Some(format!(
                "I2: item {id} of {seller} is {text:?}, at headquarters {found:?}, refused there: \
                 {is_refused}"
            )));
        }
    }
    let sql = "SELECT counter_id, CAST(count AS TEXT) FROM counter";
    let counters: BTreeMap<i64, String> = rows(headquarters, sql, None)?.into_iter().collect();
    let (counted, there) = (ledger.counted.to_string(), counters.get(&counter));
    if there != Some(&counted) {
        return Ok(Some(format!(
            "I2: {seller} has counted to {counted}, headquarters has {there:?}"
        )));
    }
    Ok(None)
}
