//! What every connection of a world's files begins with: SQLite's own chance comes from the seed,
//! and in the centre somebody writes down each row that is written.
//!
//! The triggers are the connection's own, so that the catalog of the centre knows nothing of them:
//! the product takes the ways that it takes without. What is written stands in the transaction that
//! it belongs to, and goes with it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::Value;

use super::tables::PublishedTable;
use super::values::{Row, quote};
use crate::random::SeededRandom;

/// Where is written down what is written.
const AUDIT: &str = "tidewater_simulated_audit";

/// The mark of whoever begins to write: the upload of a remote, or an application of the centre.
const BEGINNING: i64 = -1;

/// More bytes at once nobody asks `randomblob` for.
const MOST_BYTES: i64 = 1 << 20;

thread_local! {
    static TRIGGERS: RefCell<String> = const { RefCell::new(String::new()) };
    static CHANCE: RefCell<Option<SeededRandom>> = const { RefCell::new(None) };
}

/// What is opened on this thread from now on takes its chance from here, and writes down what it
/// writes, if there is somebody to write it down.
pub(super) fn begin(audit: Option<&Audit>, random: SeededRandom) {
    TRIGGERS.replace(audit.map(Audit::triggers).unwrap_or_default());
    CHANCE.replace(Some(random));
}

/// All is as it was before.
pub(super) fn end() {
    TRIGGERS.take();
    CHANCE.take();
}

/// A server opens the centre.
pub(crate) fn opened(connection: &Connection) {
    if CHANCE.with_borrow(Option::is_none) {
        return;
    }
    // Without, the judges see nothing take effect, and say so.
    let _ = with_chance(connection);
    let triggers = TRIGGERS.with_borrow(Clone::clone);
    let _ = connection.execute_batch(&triggers);
}

/// Has a connection take its chance from the seed.
pub(super) fn with_chance(connection: &Connection) -> rusqlite::Result<()> {
    fn fill(bytes: &mut [u8]) {
        CHANCE.with_borrow_mut(|random| {
            if let Some(random) = random {
                random.fill(bytes);
            }
        });
    }
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("random", 0, flags, |_| {
        let mut bytes = [0; 8];
        fill(&mut bytes);
        Ok(i64::from_le_bytes(bytes))
    })?;
    connection.create_scalar_function("randomblob", 1, flags, |context| {
        let length: i64 = context.get(0)?;
        let mut bytes = vec![0; length.clamp(1, MOST_BYTES) as usize];
        fill(&mut bytes);
        Ok(bytes)
    })
}

/// Who writes down what is written to the tables.
#[derive(Clone, Debug)]
pub(super) struct Audit {
    tables: Vec<PublishedTable>,
    keys: usize,
    values: usize,
}

/// A row that was written.
#[derive(Clone, Debug)]
pub(super) struct WrittenRow {
    pub(super) at: i64,
    /// What is there since; `None`: it was deleted.
    pub(super) row: Option<Row>,
}

impl Audit {
    pub(super) fn new(tables: &[PublishedTable]) -> Audit {
        let most =
            |count: &dyn Fn(&PublishedTable) -> usize| tables.iter().map(count).max().unwrap_or(1);
        Audit {
            keys: most(&|it| it.key.len()),
            values: most(&|it| it.columns.len()),
            tables: tables.to_vec(),
        }
    }

    /// The table, in a centre that has none yet.
    pub(super) fn schema(&self) -> String {
        let (keys, values) = (names("k", self.keys), names("v", self.values));
        format!(
            "CREATE TABLE {AUDIT} (at INTEGER PRIMARY KEY AUTOINCREMENT, place INTEGER NOT NULL,
             operation TEXT NOT NULL, {keys}, {values});
             CREATE INDEX {AUDIT}_key ON {AUDIT} (place, {keys});"
        )
    }

    /// What a connection that writes the centre begins with.
    pub(super) fn triggers(&self) -> String {
        let mut sql = format!(
            "CREATE TEMP TRIGGER simulated_upload AFTER UPDATE ON main.tidewater_centre_subscription BEGIN
             INSERT INTO {AUDIT} (place, operation) VALUES ({BEGINNING}, 'upload'); END;
             CREATE TEMP TRIGGER simulated_first AFTER INSERT ON main.tidewater_centre_subscription BEGIN
             INSERT INTO {AUDIT} (place, operation) VALUES ({BEGINNING}, 'upload'); END;"
        );
        for (place, table) in self.tables.iter().enumerate() {
            let name = quote(&table.name);
            let keys = names("k", table.key.len());
            let values = names("v", table.columns.len());
            let (new_key, old_key) = (table.key_of("NEW."), table.key_of("OLD."));
            let new = table.columns_of("NEW.");
            let written = |operation: &str| {
                format!(
                    "INSERT INTO {AUDIT} (place, operation, {keys}, {values})
                     VALUES ({place}, '{operation}', {new_key}, {new});"
                )
            };
            let deleted = format!(
                "INSERT INTO {AUDIT} (place, operation, {keys})
                 VALUES ({place}, 'delete', {old_key});"
            );
            let (inserted, updated) = (written("insert"), written("update"));
            let is_same = format!("({old_key}) IS ({new_key})");
            sql.push_str(&format!(
                "CREATE TEMP TRIGGER simulated_insert_{place} AFTER INSERT ON main.{name}
                 BEGIN {inserted} END;
                 CREATE TEMP TRIGGER simulated_delete_{place} AFTER DELETE ON main.{name}
                 BEGIN {deleted} END;
                 CREATE TEMP TRIGGER simulated_update_{place} AFTER UPDATE ON main.{name}
                 WHEN {is_same} BEGIN {updated} END;
                 CREATE TEMP TRIGGER simulated_rekey_{place} AFTER UPDATE ON main.{name}
                 WHEN NOT ({is_same}) BEGIN {deleted} {inserted} END;"
            ));
        }
        sql
    }

    /// Says who writes from now on, in a transaction of an application.
    pub(super) fn begin(connection: &Connection) -> rusqlite::Result<()> {
        let sql = format!("INSERT INTO {AUDIT} (place, operation) VALUES ({BEGINNING}, 'centre')");
        connection.prepare_cached(&sql)?.execute([]).map(drop)
    }

    /// How far it is.
    pub(super) fn position(connection: &Connection) -> rusqlite::Result<i64> {
        let sql = format!("SELECT coalesce(max(at), 0) FROM {AUDIT}");
        connection
            .prepare_cached(&sql)?
            .query_row([], |row| row.get(0))
    }

    /// How far it is with rows.
    pub(super) fn last_row(connection: &Connection) -> rusqlite::Result<i64> {
        let sql = format!("SELECT coalesce(max(at), 0) FROM {AUDIT} WHERE place >= 0");
        connection
            .prepare_cached(&sql)?
            .query_row([], |row| row.get(0))
    }

    /// What was written to a row since a position, oldest first.
    pub(super) fn of_row(
        &self,
        connection: &Connection,
        (place, key): (usize, &[Value]),
        since: i64,
    ) -> rusqlite::Result<Vec<WrittenRow>> {
        let table = &self.tables[place];
        let values = names("v", table.columns.len());
        let keys = (0..key.len()).map(|at| format!("k{at} IS ?{}", at + 3));
        let keys = keys.collect::<Vec<_>>().join(" AND ");
        let sql = format!(
            "SELECT at, operation, {values} FROM {AUDIT}
             WHERE place = ?1 AND at > ?2 AND {keys} ORDER BY at"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let first = [Value::from(place as i64), Value::from(since)];
        let parameters = first.iter().chain(key);
        let written = statement.query_map(rusqlite::params_from_iter(parameters), |row| {
            let operation: String = row.get(1)?;
            Ok(WrittenRow {
                at: row.get(0)?,
                row: match operation == "delete" {
                    true => None,
                    false => Some(table.read(row, 2)?),
                },
            })
        })?;
        written.collect()
    }

    /// The row as it was before whoever wrote at a position began; outer `None`: nobody had written it.
    pub(super) fn prior(
        &self,
        connection: &Connection,
        (place, key): (usize, &[Value]),
        at: i64,
    ) -> rusqlite::Result<Option<Option<Row>>> {
        let sql = format!(
            "SELECT coalesce(max(at), 0) FROM {AUDIT} WHERE place = {BEGINNING} AND at <= ?1"
        );
        let began: i64 = connection
            .prepare_cached(&sql)?
            .query_row([at], |row| row.get(0))?;
        let written = self.of_row(connection, (place, key), 0)?;
        let before = written.into_iter().rfind(|it| it.at < began);
        Ok(before.map(|it| it.row))
    }

    /// Where whoever wrote at a position began, with how many beginnings at once, and where the
    /// next one does.
    pub(super) fn around(connection: &Connection, at: i64) -> rusqlite::Result<(usize, i64)> {
        let sql = format!(
            "SELECT coalesce(min(at), 0) FROM {AUDIT} WHERE place = {BEGINNING} AND at > ?1"
        );
        let next: i64 = connection
            .prepare_cached(&sql)?
            .query_row([at], |row| row.get(0))?;
        let sql = format!(
            "SELECT count(*) FROM {AUDIT} WHERE place = {BEGINNING} AND at <= ?1 AND at > coalesce(
               (SELECT max(at) FROM {AUDIT} WHERE place >= 0 AND at < (
                 SELECT max(at) FROM {AUDIT} WHERE place = {BEGINNING} AND at <= ?1)), 0)"
        );
        let beginnings: i64 = connection
            .prepare_cached(&sql)?
            .query_row([at], |row| row.get(0))?;
        let next = if next == 0 { i64::MAX } else { next };
        Ok((beginnings.unsigned_abs() as usize, next))
    }

    /// How often the row with a key, as people are told of it, was written.
    pub(super) fn count(
        &self,
        connection: &Connection,
        place: usize,
        key: &str,
    ) -> rusqlite::Result<u64> {
        let table = &self.tables[place];
        let keys = names("k", table.key.len());
        let sql = format!("SELECT {keys} FROM {AUDIT} WHERE place = ?1");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([place as i64])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += u64::from(table.read_key(row, 0)? == key);
        }
        Ok(count)
    }

    /// Under which keys a text was inserted into each table, where there are several.
    pub(super) fn inserted_twice(
        &self,
        connection: &Connection,
        is_token: &dyn Fn(&str) -> Option<String>,
    ) -> rusqlite::Result<Option<(String, String, [String; 2])>> {
        for (place, table) in self.tables.iter().enumerate() {
            let keys = names("k", table.key.len());
            let values = names("v", table.columns.len());
            let sql = format!(
                "SELECT {keys}, {values} FROM {AUDIT}
                 WHERE place = ?1 AND operation = 'insert' ORDER BY at"
            );
            let mut seen: BTreeMap<String, String> = BTreeMap::new();
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query([place as i64])?;
            while let Some(row) = rows.next()? {
                let key = table.read_key(row, 0)?;
                for at in 0..table.columns.len() {
                    let value = row.get_ref(table.key.len() + at)?;
                    let Some(token) = value.as_str().ok().and_then(is_token) else {
                        continue;
                    };
                    let first = seen.entry(token.clone()).or_insert_with(|| key.clone());
                    if *first != key {
                        return Ok(Some((table.name.clone(), token, [first.clone(), key])));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn names(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}{at}")).collect();
    names.join(", ")
}
