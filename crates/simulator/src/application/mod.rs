//! Applications: they change rows of a remote or of the centre through plain SQL, at random.

mod brought;
mod contending;
mod own;
mod statements;
mod wishes;

pub(crate) use brought::Brought;
pub(crate) use contending::{ContestChange, ContestSetup, Contests};
pub(crate) use wishes::{What, Wish, new_key};

use std::cell::Cell;
use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use crate::defects;
use crate::random::SeededRandom;
use crate::tables::REGIONS;

/// The first key that the fresh ones begin with: those below are for everybody.
const FRESH: i64 = 1_000;

/// Keys that applications agree about by accident.
const MEETING: u64 = 12;

/// What the column may be that comes and goes.
const EXTRA: &[&str] = &[
    "TEXT",
    "TEXT NOT NULL DEFAULT 'none'",
    "INTEGER",
    "INTEGER NOT NULL DEFAULT 7",
    "REAL",
    "BLOB",
];

/// Keys that nobody has used yet.
#[derive(Debug)]
pub(crate) struct FreshKeys(Cell<i64>);

impl FreshKeys {
    pub(crate) fn new() -> FreshKeys {
        FreshKeys(Cell::new(FRESH))
    }

    pub(crate) fn next(&self) -> i64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// A row that a committed transaction changed, with its new text; `None` if it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedRow {
    /// Which of [`EDITED`].
    pub(crate) table: usize,
    pub(crate) key: i64,
    pub(crate) text: Option<String>,
    /// The row was not there before.
    pub(crate) inserted: bool,
    /// What a row was that is gone.
    pub(crate) before: Option<String>,
}

impl CommittedRow {
    pub(crate) fn written(table: usize, key: i64, text: String, inserted: bool) -> CommittedRow {
        CommittedRow {
            table,
            key,
            text: Some(text),
            inserted,
            before: None,
        }
    }

    fn removed(table: usize, key: i64, before: String) -> CommittedRow {
        CommittedRow {
            table,
            key,
            text: None,
            inserted: false,
            before: Some(before),
        }
    }
}

/// An application with a connection of its own.
pub(crate) struct Application {
    connection: Connection,
    name: String,
    random: SeededRandom,
    /// Makes every text another.
    count: u64,
    /// Some of a remote's changes are refused by the centre.
    is_remote: bool,
    /// Whether it has a trigger of its own.
    tallies: bool,
    /// Whether it has unique indexes of its own.
    is_strict: bool,
    /// The user and the region that came together last.
    given: Option<(String, i64)>,
    /// For whom it writes calls and events down, and what time it is, if it does.
    wishing: Option<(&'static str, i64)>,
    /// What it has written down of them in the transaction under way, or in the last one.
    wishes: Vec<Wish>,
    /// Whether it changes the tables that only some worlds have.
    contending: Option<ContestSetup>,
    /// What it has made of them in the transaction under way, or in the last one.
    contests: Vec<ContestChange>,
}

/// Of a connection, so many statements are kept that SQLite has parsed: all that judges ask of all
/// tables.
const STATEMENTS: usize = 1_024;

/// Opens a connection as an application does that never waits.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // What it commits outlives lost power, also with a rollback journal.
    connection.pragma_update(None, "synchronous", "EXTRA")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    defects::leave_out(&connection);
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
        mut random: SeededRandom,
        is_remote: bool,
    ) -> Application {
        Application {
            connection,
            name,
            tallies: is_remote && random.percent(25),
            is_strict: is_remote && random.percent(25),
            random,
            count: 0,
            is_remote,
            given: None,
            wishing: None,
            wishes: Vec::new(),
            contending: None,
            contests: Vec::new(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Lets the file go.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn close(&mut self) -> rusqlite::Result<()> {
        self.connection = Connection::open_in_memory()?;
        Ok(())
    }

    /// Goes on with this file, if it was another.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn reconnect(&mut self, path: &Path) -> rusqlite::Result<()> {
        if self.connection.path().map(Path::new) != Some(path) {
            self.connection = open(path)?;
        }
        Ok(())
    }

    /// Whether there are tables to edit: they come all at once.
    fn has_tables(&self) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) = 2 FROM sqlite_schema WHERE type = 'table'
                   AND name IN ('customer', 'account')";
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
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        let touched = self.begin(keys, regions)?;
        self.commit(touched)
    }

    /// The same, but for the commit. Nothing is touched where somebody else writes.
    ///
    /// # Errors
    /// As [`Application::edit`].
    pub(crate) fn begin(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        let mut touched = Vec::new();
        let begun = self.statements(keys, regions, &mut touched);
        self.unless_busy(begun)?;
        if self.connection.is_autocommit() {
            touched.clear();
        }
        Ok(touched)
    }

    /// Commits what was begun; what took effect.
    ///
    /// # Errors
    /// As [`Application::edit`].
    pub(crate) fn commit(
        &mut self,
        touched: Vec<CommittedRow>,
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        if self.connection.is_autocommit() {
            self.forget();
            return Ok(Vec::new());
        }
        let ends = self.goes_up_one_by_one()? && self.random.percent(70);
        let committed = match ends {
            true => "INSERT INTO tidewater_transaction DEFAULT VALUES; COMMIT",
            false => "COMMIT",
        };
        let committed = self.connection.execute_batch(committed);
        if self.unless_busy(committed)? {
            return Ok(touched);
        }
        self.forget();
        Ok(Vec::new())
    }

    /// Whether what it commits goes up transaction by transaction, if it says where they end.
    fn goes_up_one_by_one(&self) -> rusqlite::Result<bool> {
        if !self.is_remote || !self.has("table", "tidewater_subscription")? {
            return Ok(false);
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM tidewater_subscription WHERE transactional = 1)";
        self.connection
            .prepare_cached(sql)?
            .query_row([], |row| row.get(0))
    }

    /// Nothing of the transaction took effect.
    fn forget(&mut self) {
        self.wishes.clear();
        self.contests.clear();
    }

    /// Gives a transaction up that met somebody else who writes, or that the database does not
    /// take; whether it need not.
    fn unless_busy(&self, done: rusqlite::Result<()>) -> rusqlite::Result<bool> {
        let Err(error) = done else {
            return Ok(true);
        };
        if !self.connection.is_autocommit() {
            // Where there is no power any more it fails, too.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        // The machine was without power for a moment; what was begun is not there.
        let gone = error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure);
        // Of a constraint that is looked at when the transaction ends.
        let refused = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
        if gone || refused || is_busy(&error) {
            Ok(false)
        } else {
            Err(error)
        }
    }

    fn statements(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        self.forget();
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        if !self.has_tables()? {
            return self.wish();
        }
        self.keep_own()?;
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
        self.contend(keys)?;
        self.wish()
    }

    /// A column comes to a table of the centre, goes, or becomes one of another type. False if
    /// somebody else writes.
    ///
    /// # Errors
    /// Of SQLite, other than that somebody else writes.
    pub(crate) fn alter(&mut self, table: &str) -> rusqlite::Result<bool> {
        let declared = self.random.pick(EXTRA).unwrap_or("TEXT");
        let (affinity, _) = declared.split_once(' ').unwrap_or((declared, ""));
        let change = match self.extra(table)? {
            None => format!("ALTER TABLE {table} ADD COLUMN extra {declared}"),
            Some(_) if self.random.percent(50) => format!("ALTER TABLE {table} DROP COLUMN extra"),
            Some(_) => format!(
                "ALTER TABLE {table} ADD COLUMN other {declared};
                 UPDATE {table} SET other = CAST(extra AS {affinity}) WHERE extra IS NOT NULL;
                 ALTER TABLE {table} DROP COLUMN extra;
                 ALTER TABLE {table} RENAME COLUMN other TO extra"
            ),
        };
        let sql = format!("BEGIN IMMEDIATE; {change}; COMMIT");
        let altered = self.connection.execute_batch(&sql);
        self.unless_busy(altered)
    }

    /// What only applications of the centre do: moves money, and people between regions.
    ///
    /// # Errors
    /// Of SQLite, other than that somebody else writes.
    pub(crate) fn administer(&mut self, users: &[&str]) -> rusqlite::Result<()> {
        let amount = self.random.between(1, 50) as i64;
        let (from, to) = (self.random.between(1, 3), self.random.between(1, 3));
        let tables = ["account", "reserve"];
        let to_table = self.random.pick(&tables).unwrap_or_default();
        let user = self.random.pick(users).unwrap_or_default().to_owned();
        let region = self.random.between(1, REGIONS) as i64;
        let leaves = |user: &str, region: i64| {
            format!("DELETE FROM assignment WHERE login = '{user}' AND region = {region}")
        };
        let sql = match self.random.below(8) {
            0 => leaves(&user, region),
            1 | 2 => format!("INSERT OR IGNORE INTO assignment VALUES ('{user}', {region})"),
            // Soon enough, perhaps, that a remote meets both in one sync, or between two.
            3 | 4 if let Some((user, region)) = self.given.take() => leaves(&user, region),
            _ => format!(
                "UPDATE account SET balance = balance - {amount} WHERE account_id = {from};
                 UPDATE {to_table} SET balance = balance + {amount} WHERE account_id = {to}"
            ),
        };
        let transaction = format!("BEGIN IMMEDIATE; {sql}; COMMIT");
        match self.connection.execute_batch(&transaction) {
            Ok(()) => {
                if sql.starts_with("INSERT") {
                    self.given = Some((user, region));
                }
                Ok(())
            }
            Err(error) if is_busy(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
