//! What must hold when a market has come to rest: of counters the sum of what was taken, of families
//! that each row is under the sale that it was inserted under, of what scripts and handlers decide
//! that nothing went past them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use serde_json::Value as Json;

use tidewater_centre::records::{ConflictOutcome, ConflictRecord};

use super::ledger::{Differences, Ledger, add};
use super::scenario::{CHECKED, COUNTERS, CounterTable, DENIED, FAMILY, PLACED};

/// What is known of counters beside what their values say.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// What the centre's own applications have taken.
    pub(super) centre: Differences,
    /// What may count twice, once somebody says so: it was pending when its file was copied, or an
    /// operator has replayed it before its device heard of that.
    pub(super) twice: Differences,
    /// What an operator may have given up.
    pub(super) away: Differences,
    /// What an operator has had count of what may count twice.
    pub(super) chosen: Differences,
    /// Rows that two files of one origin have inserted: they are one, if they are equal.
    pub(super) inserted_in_copies: BTreeSet<(&'static str, i64)>,
    /// Rows that devices list as refused when a restored centre was given them back.
    pub(super) kept_as_values: BTreeSet<(&'static str, i64)>,
    /// Rows of families that were pending in two files of one origin: the users of both may have
    /// given them numbers of their own.
    pub(super) entries_in_copies: BTreeSet<String>,
}

/// What a file has of counters that its centre does not have, or has refused.
pub(super) fn outstanding(remote: &Connection) -> rusqlite::Result<Differences> {
    let mut all = Differences::new();
    for counter in COUNTERS {
        let CounterTable {
            table, key, value, ..
        } = counter;
        let sql = format!(
            "SELECT t.{key}, t.{value} - iif(h.present, h.pre_{value}, 0)
             FROM {table} AS t JOIN tidewater_change_{table} AS h ON h.key_{key} = t.{key}
             WHERE h.generation = (SELECT min(generation) FROM tidewater_change_{table}
                 WHERE key_{key} = t.{key})"
        );
        let mut statement = remote.prepare(&sql)?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
        for row in rows {
            let (row, by) = row?;
            add(&mut all, (table, row), by);
        }
    }
    Ok(all)
}

/// Rows of counters, by table and key.
pub(super) type CounterRows = BTreeSet<(&'static str, i64)>;

/// Rows that a restored centre has refused when they were given back: their device lists what they
/// were, and does not send them again. Of counters which ones, of families what they say.
pub(super) fn kept_as_values(
    remote: &Connection,
) -> rusqlite::Result<(CounterRows, BTreeSet<String>)> {
    let mut counters = BTreeSet::new();
    for CounterTable { table, key, .. } in COUNTERS {
        let sql = format!(
            "SELECT row_values ->> '{key}' FROM tidewater_refused
             WHERE table_name = '{table}' AND row_values IS NOT NULL"
        );
        let mut statement = remote.prepare(&sql)?;
        let rows = statement.query_map([], |row| row.get(0))?;
        for row in rows {
            counters.insert((table, row?));
        }
    }
    let sql = "SELECT row_values ->> 'entry' FROM tidewater_refused
               WHERE row_values ->> 'entry' IS NOT NULL";
    let entries = texts(remote, sql)?.into_iter().collect();
    Ok((counters, entries))
}

/// Rows of counters that a file has inserted, and that were not taken yet.
pub(super) fn pending_inserts(remote: &Connection) -> rusqlite::Result<Vec<(&'static str, i64)>> {
    let mut all = Vec::new();
    for CounterTable { table, key, .. } in COUNTERS {
        let sql =
            format!("SELECT DISTINCT key_{key} FROM tidewater_change_{table} WHERE NOT present");
        let mut statement = remote.prepare(&sql)?;
        let rows = statement.query_map([], |row| row.get(0))?;
        for row in rows {
            all.push((table, row?));
        }
    }
    Ok(all)
}

/// By how much a change was to change a counter, as it is kept with a conflict or a refused row.
pub(super) fn difference_of(
    (table, key): (&str, &str),
    pre_image: Option<&str>,
    new: Option<&str>,
) -> Option<((&'static str, i64), i64)> {
    let counter = COUNTERS.into_iter().find(|it| it.table == table)?;
    let key: Json = serde_json::from_str(key).ok()?;
    let value = |image: Option<&str>| {
        let image: Json = serde_json::from_str(image?).ok()?;
        image[counter.value].as_i64()
    };
    let by = value(new)? - value(pre_image).unwrap_or_default();
    Some(((counter.table, key[0].as_i64()?), by))
}

/// The same of a conflict.
pub(super) fn difference_in(conflict: &ConflictRecord) -> Option<((&'static str, i64), i64)> {
    let of = (conflict.table.as_str(), conflict.key.as_str());
    let (pre_image, new) = (conflict.pre_image.as_deref(), conflict.uploaded.as_deref());
    difference_of(of, pre_image, new)
}

/// I1, I2: a counter that is not what was taken from it.
pub(super) fn counted_otherwise(
    centre: &Connection,
    ledgers: &[Ledger],
    waiting: &[Differences],
    conflicts: &[ConflictRecord],
    account: &Account,
) -> rusqlite::Result<Option<String>> {
    let mut taken = account.centre.clone();
    for (counter, by) in ledgers.iter().flat_map(|it| &it.taken) {
        add(&mut taken, *counter, *by);
    }
    let mut open = Differences::new();
    for (counter, by) in waiting.iter().flatten() {
        add(&mut open, *counter, *by);
    }
    let parked = conflicts.iter().filter(|it| it.is_open());
    for (counter, by) in parked.filter_map(difference_in) {
        add(&mut open, counter, by);
    }
    // What the centre's row won against is told, and kept in the list.
    let lost = conflicts
        .iter()
        .filter(|it| it.outcome == ConflictOutcome::Centre);
    let mut away = account.away.clone();
    for (counter, by) in lost.filter_map(difference_in) {
        add(&mut away, counter, by);
    }
    let of = |differences: &Differences, counter| differences.get(&counter).copied().unwrap_or(0);
    for CounterTable {
        table,
        key,
        value,
        begins,
    } in COUNTERS
    {
        let sql = format!("SELECT {key}, {value} FROM {table}");
        let there: BTreeMap<i64, i64> = pairs(centre, &sql)?;
        let keys = taken.keys().chain(open.keys()).filter(|it| it.0 == table);
        let keys: BTreeSet<i64> = keys.map(|it| it.1).chain(there.keys().copied()).collect();
        for row in keys {
            let counter = (table, row);
            let now = there.get(&row).copied().unwrap_or_default();
            let expected = begins.unwrap_or_default() + of(&taken, counter);
            let whole = now + of(&open, counter);
            let least = expected + of(&account.twice, counter);
            let mut inserted = ledgers.iter().map(|it| &it.inserted_in_copy);
            let is_perhaps_one = account.inserted_in_copies.contains(&counter)
                || inserted.any(|it| it.contains(&counter));
            let most = match is_perhaps_one || account.kept_as_values.contains(&counter) {
                true => i64::MAX,
                false => expected - of(&away, counter),
            };
            let open = of(&open, counter);
            if whole > most {
                return Ok(Some(format!(
                    "I2: {table} {row} is {now}, with {open} open, of {expected}: something that \
                     was taken is lost"
                )));
            }
            if whole < least || now < expected + of(&account.chosen, counter) {
                return Ok(Some(format!(
                    "I1: {table} {row} is {now}, with {open} open, of {expected}: something that \
                     was taken counts twice"
                )));
            }
        }
    }
    Ok(None)
}

/// A row of a family under another sale than its own, in a file. Those of sales of which the device
/// has values only are excused: they wait, refused, for what their user decides.
pub(super) fn mixed(
    file: &Connection,
    whose: &str,
    excused: &BTreeSet<String>,
) -> rusqlite::Result<Option<String>> {
    let mut statement = file.prepare(PLACED)?;
    let rows = statement.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, Option<String>>(3)?,
        ))
    })?;
    for row in rows {
        let (table, entry, family, sale) = row?;
        if sale.as_deref() != Some(&family) && !excused.contains(&family) {
            return Ok(Some(format!(
                "I2: {whose} has {table} {entry:?} of sale {family:?} under {sale:?}"
            )));
        }
    }
    Ok(None)
}

/// What a file says of families, by what each row says.
pub(super) fn entries(file: &Connection, only_changed: bool) -> rusqlite::Result<Vec<String>> {
    let mut all = Vec::new();
    for (table, key) in FAMILY {
        let is_changed = key.split(", ").map(|it| format!("h.key_{it} = t.{it}"));
        let is_changed = is_changed.collect::<Vec<_>>().join(" AND ");
        let condition = match only_changed {
            true => format!(
                " WHERE EXISTS (SELECT 1 FROM tidewater_change_{table} AS h WHERE {is_changed})"
            ),
            false => String::new(),
        };
        let sql = format!("SELECT t.entry FROM {table} AS t{condition}");
        all.extend(texts(file, &sql)?);
    }
    Ok(all)
}

/// I1, I2: what somebody has inserted into a family, and that is not in the centre, nor open on
/// his device; or that is in the centre twice.
pub(super) fn lost(
    centre: &Connection,
    remotes: &[Connection],
    ledgers: &[Ledger],
    copied: &BTreeSet<String>,
) -> rusqlite::Result<Option<String>> {
    let mut there: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries(centre, false)? {
        *there.entry(entry).or_default() += 1;
    }
    let twice = |it: &(&String, &u64)| *it.1 > 1 && !copied.contains(it.0);
    if let Some((entry, _)) = there.iter().find(twice) {
        return Ok(Some(format!("I1: the centre has {entry:?} more than once")));
    }
    let mut open = BTreeSet::new();
    for remote in remotes {
        open.extend(entries(remote, true)?);
        open.extend(kept_as_values(remote)?.1);
    }
    for (entry, family) in ledgers.iter().flat_map(|it| &it.entries) {
        if !there.contains_key(entry) && !open.contains(entry) {
            return Ok(Some(format!(
                "I2: {entry:?} of sale {family:?} is neither in the centre nor open"
            )));
        }
    }
    Ok(None)
}

/// I2: a ticket that is not in the centre. Numbers that a remote was given are nobody else's.
pub(super) fn unnumbered(
    centre: &Connection,
    ledgers: &[Ledger],
) -> rusqlite::Result<Option<String>> {
    let there: BTreeSet<String> = texts(centre, "SELECT entry FROM ticket")?
        .into_iter()
        .collect();
    let mut tickets = ledgers.iter().flat_map(|it| &it.tickets);
    let missing = tickets.find(|it| !there.contains(*it));
    Ok(missing.map(|it| format!("I2: ticket {it:?} is not in the centre")))
}

/// What the centre has of tables with scripts or a handler that went past these.
pub(super) fn went_past(centre: &Connection) -> rusqlite::Result<Option<String>> {
    for (what, sql) in [
        (
            "its scripts",
            format!("SELECT text FROM report WHERE text NOT LIKE '{CHECKED} %'"),
        ),
        (
            "its handler",
            format!("SELECT text FROM claim WHERE text LIKE '{DENIED}%'"),
        ),
    ] {
        if let Some(text) = texts(centre, &sql)?.first() {
            return Ok(Some(format!(
                "the centre has {text:?}, which went past {what}"
            )));
        }
    }
    Ok(None)
}

/// All tables, with the columns that they are compared by.
const COMPARED: [(&str, &str, &str); 9] = [
    ("stock", "stock_id", "quantity || ' ' || label"),
    ("shelf", "shelf_id", "quantity"),
    ("voucher", "voucher_id", "amount"),
    ("sale", "sale_id", "entry"),
    ("sale_line", "sale_id, number", "entry"),
    ("line_note", "note_id", "entry"),
    ("ticket", "ticket_id", "entry"),
    ("report", "report_id", "text"),
    ("claim", "claim_id", "text"),
];

/// I6: what a device has otherwise than the centre, apart from what was refused, and what waits for
/// that.
pub(super) fn device_differs(
    centre: &Connection,
    device: &Connection,
    whose: &str,
) -> rusqlite::Result<Option<String>> {
    let refused = "SELECT key_sale_id FROM tidewater_change_sale
                   UNION SELECT key_sale_id FROM tidewater_change_sale_line
                   UNION SELECT row_values ->> 'sale_id' FROM tidewater_refused
                   WHERE row_values ->> 'sale_id' IS NOT NULL";
    let refused: BTreeSet<String> = texts(device, refused)?.into_iter().collect();
    for (table, key, values) in COMPARED {
        let key_text = key.replace(", ", " || ' ' || ");
        let changed_key = key.split(", ").map(|it| format!("key_{it}"));
        let changed_key = changed_key.collect::<Vec<_>>().join(" || ' ' || ");
        let sql = format!("SELECT '' || {changed_key} FROM tidewater_change_{table}");
        let changed: BTreeSet<String> = texts(device, &sql)?.into_iter().collect();
        let family = match table {
            "sale_line" | "line_note" => "sale_id",
            _ => "NULL",
        };
        let sql = format!("SELECT '' || {key_text}, '' || {values}, '' || {family} FROM {table}");
        let rows = |file: &Connection| -> rusqlite::Result<BTreeSet<(String, String)>> {
            let mut statement = file.prepare(&sql)?;
            let rows = statement.query_map([], |row| {
                let family: Option<String> = row.get(2)?;
                Ok((row.get(0)?, row.get(1)?, family))
            })?;
            let rows = rows.collect::<rusqlite::Result<Vec<(String, String, Option<String>)>>>()?;
            let rows = rows.into_iter().filter(|(key, _, family)| {
                let waits = family.as_ref().is_some_and(|it| refused.contains(it));
                !changed.contains(key) && !waits
            });
            Ok(rows.map(|(key, values, _)| (key, values)).collect())
        };
        let (there, here) = (rows(centre)?, rows(device)?);
        if let Some(row) = there.symmetric_difference(&here).next() {
            let is_here = here.contains(row);
            return Ok(Some(format!(
                "I6: {whose} and the centre differ in {table} {row:?}, which the device has: \
                 {is_here}"
            )));
        }
    }
    Ok(None)
}

/// Whether what is changed in a file counts as what another copy of it may have sent: it was not
/// uploaded since the centre has noticed.
pub(super) fn may_be_sent_twice(file: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tidewater_subscription
               WHERE copied_until >= generation)";
    file.query_row(sql, [], |row| row.get(0))
}

/// Who a file is to its centre.
pub(super) fn remote_id(file: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    file.query_row("SELECT remote_id FROM tidewater_state", [], |row| {
        row.get(0)
    })
}

/// What a device lists as refused.
pub(super) fn listed(device: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT table_name || ' ' || key || ' ' || code || ' ' || coalesce(row_values, '')
               FROM tidewater_refused ORDER BY id";
    texts(device, sql)
}

/// Everything that the centre has.
pub(super) fn digest(centre: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut all = Vec::new();
    for (table, key, values) in COMPARED {
        let key = key.replace(", ", " || ' ' || ");
        let sql = format!("SELECT '{table} ' || {key} || ' ' || {values} FROM {table} ORDER BY 1");
        all.extend(texts(centre, &sql)?);
    }
    Ok(all)
}

fn texts(file: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = file.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(match row.get_ref(0)? {
            rusqlite::types::ValueRef::Integer(integer) => integer.to_string(),
            other => other.as_str()?.to_owned(),
        })
    })?;
    rows.collect()
}

fn pairs(file: &Connection, sql: &str) -> rusqlite::Result<BTreeMap<i64, i64>> {
    let mut statement = file.prepare(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}
