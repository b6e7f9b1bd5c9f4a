//! Applications: they change rows of a remote or of the centre through plain SQL, at random.

use std::cell::Cell;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use crate::random::Random;
use crate::scenario::{EDITED, REFUSED, REGIONS, Table};

/// The first key that the fresh ones begin with: those below are for everybody.
const FRESH: i64 = 1_000;

/// Keys that applications agree about by accident.
const MEETING: u64 = 12;

/// Keys that nobody has used yet.
#[derive(Debug)]
pub(crate) struct FreshKeys(Cell<i64>);

impl FreshKeys {
    pub(crate) fn new() -> FreshKeys {
        FreshKeys(Cell::new(FRESH))
    }

    fn next(&self) -> i64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// A row that a committed transaction changed, with its new text; `None` if it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Which of [`EDITED`].
    pub(crate) table: usize,
    pub(crate) key: i64,
    pub(crate) text: Option<String>,
    /// The row was not there before.
    pub(crate) inserted: bool,
}

/// An application with a connection of its own.
pub(crate) struct Application {
    connection: Connection,
    name: String,
    random: Random,
    /// Makes every text another.
    count: u64,
    /// Whether some of its changes are refused by the centre.
    refusable: bool,
}

/// Opens a connection as an application does that never waits.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Whether somebody else is writing.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

impl Application {
    pub(crate) fn new(
        connection: Connection,
        name: String,
        random: Random,
        refusable: bool,
    ) -> Application {
        Application {
            connection,
            name,
            random,
            count: 0,
            refusable,
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether there are tables to edit.
    fn has_tables(&self) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) = 4 FROM sqlite_schema WHERE type = 'table'
                   AND name IN ('customer', 'invoice', 'product', 'account')";
        self.connection
            .prepare_cached(sql)?
            .query_row([], |row| row.get(0))
    }

    /// Commits a transaction of some random changes. Nothing happens where somebody else
    /// writes.
    ///
    /// # Errors
    /// Of SQLite, other than what an application has to expect.
    pub(crate) fn edit(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
    ) -> rusqlite::Result<Vec<Touched>> {
        let mut touched = Vec::new();
        let done = self.transaction(keys, regions, &mut touched);
        match done {
            Ok(()) => Ok(touched),
            Err(error) => {
                if !self.connection.is_autocommit() {
                    self.connection.execute_batch("ROLLBACK")?;
                }
                if is_busy(&error) {
                    Ok(Vec::new())
                } else {
                    Err(error)
                }
            }
        }
    }

    fn transaction(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        if self.has_tables()? {
            for _ in 0..self.random.between(1, 4) {
                let before = touched.len();
                match self.statement(keys, regions, touched) {
                    // What the database itself does not take, the application does without.
                    Err(rusqlite::Error::SqliteFailure(failure, _))
                        if failure.code == ErrorCode::ConstraintViolation =>
                    {
                        touched.truncate(before);
                    }
                    other => other?,
                }
            }
        }
        self.connection.execute_batch("COMMIT")
    }

    fn text(&mut self) -> String {
        self.count += 1;
        let refused = self.refusable && self.random.percent(6);
        let prefix = if refused { REFUSED } else { "by" };
        format!("{prefix} {} {}", self.name, self.count)
    }

    fn statement(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let index = self.random.below(EDITED.len() as u64) as usize;
        let table = &EDITED[index];
        match self.random.below(10) {
            0..=2 => self.insert("INSERT", index, keys, regions, touched),
            3..=6 => self.update(index, regions, touched),
            7 => self.delete(index, touched),
            8 if table.name != "customer" => self.rekey(index, keys, touched),
            _ if table.name == "product" => {
                self.insert("INSERT OR REPLACE", index, keys, regions, touched)
            }
            _ => self.update_many(index, touched),
        }
    }

    fn insert(
        &mut self,
        verb: &str,
        index: usize,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let key = match self.random.percent(70) {
            true => keys.next(),
            false => self.random.between(1, MEETING) as i64,
        };
        let text = self.text();
        let other = self.other_column(table, regions)?;
        let values = match table.name {
            "invoice" => {
                let Some(customer) = self.any_key(&EDITED[0])? else {
                    return Ok(());
                };
                format!("?1, ?2, {customer}, ?3")
            }
            _ => "?1, ?2, ?3".into(),
        };
        let inserted = !self.has_row(table, key)?;
        let sql = format!("{verb} INTO {} VALUES ({values})", table.name);
        self.connection
            .prepare_cached(&sql)?
            .execute(params![key, other, text])?;
        touched.push(Touched {
            table: index,
            key,
            text: Some(text),
            inserted,
        });
        Ok(())
    }

    fn has_row(&self, table: &Table, key: i64) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
        self.connection.prepare_cached(&sql)?.exists([key])
    }

    /// A value of the second column: a region that is mostly one's own, or a code that
    /// others may want too.
    fn other_column(
        &mut self,
        table: &Table,
        regions: &[i64],
    ) -> rusqlite::Result<rusqlite::types::Value> {
        if table.name == "product" {
            let code = self
                .random
                .pick(&[None, None, Some("A"), Some("B"), Some("C")]);
            return Ok(code.flatten().map(str::to_owned).into());
        }
        let anywhere = self.random.between(1, REGIONS) as i64;
        let own = self
            .random
            .pick(regions)
            .filter(|_| self.random.percent(85));
        Ok(own.unwrap_or(anywhere).into())
    }

    fn any_key(&mut self, table: &Table) -> rusqlite::Result<Option<i64>> {
        let count: i64 = self
            .connection
            .prepare_cached(&format!("SELECT count(*) FROM {}", table.name))?
            .query_row([], |row| row.get(0))?;
        if count == 0 {
            return Ok(None);
        }
        let (name, key) = (table.name, table.key());
        let offset = self.random.below(count.unsigned_abs()) as i64;
        self.connection
            .prepare_cached(&format!(
                "SELECT {key} FROM {name} ORDER BY {key} LIMIT 1 OFFSET ?1"
            ))?
            .query_row([offset], |row| row.get(0))
            .optional()
    }

    fn update(
        &mut self,
        index: usize,
        regions: &[i64],
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let text = self.text();
        let (name, key_column) = (table.name, table.key());
        let moved = match self.random.percent(30) {
            true => format!(", {} = ?3", table.columns[1]),
            false => String::new(),
        };
        let column = table.text;
        let sql = format!("UPDATE {name} SET {column} = ?1{moved} WHERE {key_column} = ?2");
        let other = self.other_column(table, regions)?;
        let mut statement = self.connection.prepare_cached(&sql)?;
        match moved.is_empty() {
            false => statement.execute(params![text, key, other])?,
            true => statement.execute(params![text, key])?,
        };
        touched.push(Touched {
            table: index,
            key,
            text: Some(text),
            inserted: false,
        });
        Ok(())
    }

    /// Some neighbours in one statement.
    fn update_many(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(from) = self.any_key(table)? else {
            return Ok(());
        };
        let text = self.text();
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!(
            "UPDATE {name} SET {column} = ?1 || ' of ' || {key}
             WHERE {key} BETWEEN ?2 AND ?2 + 5 RETURNING {key}, {column}"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![text, from], |row| {
            Ok(Touched {
                table: index,
                key: row.get(0)?,
                text: row.get(1)?,
                inserted: false,
            })
        })?;
        for row in rows {
            touched.push(row?);
        }
        Ok(())
    }

    fn delete(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let mut gone = vec![(index, key)];
        for (child, it) in EDITED.iter().enumerate() {
            let Some((column, _)) = it.parent.filter(|(_, parent)| *parent == table.name) else {
                continue;
            };
            let sql = format!("SELECT {} FROM {} WHERE {column} = ?1", it.key(), it.name);
            let mut statement = self.connection.prepare_cached(&sql)?;
            for key in statement.query_map([key], |row| row.get(0))? {
                gone.push((child, key?));
            }
        }
        let sql = format!("DELETE FROM {} WHERE {} = ?1", table.name, table.key());
        self.connection.prepare_cached(&sql)?.execute([key])?;
        touched.extend(gone.into_iter().map(|(table, key)| Touched {
            table,
            key,
            text: None,
            inserted: false,
        }));
        Ok(())
    }

    /// A row gets another key: one row less, one more.
    fn rekey(
        &mut self,
        index: usize,
        keys: &FreshKeys,
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(before) = self.any_key(table)? else {
            return Ok(());
        };
        let (after, text) = (keys.next(), self.text());
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!("UPDATE {name} SET {key} = ?1, {column} = ?2 WHERE {key} = ?3");
        self.connection
            .prepare_cached(&sql)?
            .execute(params![after, text, before])?;
        for (key, text) in [(before, None), (after, Some(text))] {
            touched.push(Touched {
                table: index,
                key,
                inserted: text.is_some(),
                text,
            });
        }
        Ok(())
    }

    /// What only applications of the centre do: moves money, and people between regions.
    ///
    /// # Errors
    /// Of SQLite, other than that somebody else writes.
    pub(crate) fn administer(&mut self, users: &[&str]) -> rusqlite::Result<Option<(String, i64)>> {
        let amount = self.random.between(1, 50) as i64;
        let (from, to) = (self.random.between(1, 3), self.random.between(1, 3));
        let user = self.random.pick(users).unwrap_or_default().to_owned();
        let region = self.random.between(1, REGIONS) as i64;
        let sql = match self.random.below(4) {
            0 => format!("DELETE FROM assignment WHERE login = '{user}' AND region = {region}"),
            1 => format!("INSERT OR IGNORE INTO assignment VALUES ('{user}', {region})"),
            _ => format!(
                "UPDATE account SET balance = balance - {amount} WHERE account_id = {from};
                 UPDATE account SET balance = balance + {amount} WHERE account_id = {to}"
            ),
        };
        match self
            .connection
            .execute_batch(&format!("BEGIN IMMEDIATE; {sql}; COMMIT"))
        {
            Ok(()) if sql.starts_with("INSERT") => Ok(Some((user, region))),
            Ok(()) => Ok(None),
            Err(error) if is_busy(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
