//! The consolidated database as bench needs it: its own tables, made and dropped; the edits of
//! the centre's application; what the server wrote into its history; processor time.
//!
//! Goes past [`tidewater_centre::Centre`] on purpose: an application of the centre knows nothing
//! of Tidewater either.

mod postgres;
mod sqlite;

pub(crate) use self::postgres::connect;

use std::ops::Range;

use anyhow::Context;
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_purchase::FIRST_PURCH_ID;
use tidewater_server::{Config, Environment};

use crate::error::BadInput;

/// The table that says that everything beside it is bench's own.
pub(crate) const MARKER: &str = "tidewater_bench";

/// The table by which a user says that a database is a copy of his own, which bench may change.
/// Another one than [`MARKER`]: what is beside that one is dropped.
const COPY_MARKER: &str = "tidewater_bench_copy";

/// A consolidated database.
pub(crate) trait Base {
    /// How the server reaches it.
    fn url(&self) -> &str;

    /// Takes the database for this bench, as long as it runs; false if another one has it. Of
    /// embedded databases that is not known.
    fn claim(&mut self) -> anyhow::Result<bool> {
        Ok(true)
    }

    /// Whether there is a table of this name.
    fn has_table(&mut self, name: &str) -> anyhow::Result<bool>;

    /// Looks what is there.
    fn found(&mut self) -> anyhow::Result<DatabaseContent>;

    /// Runs statements in a transaction.
    fn execute(&mut self, sql: &str) -> anyhow::Result<()>;

    /// Inserts the rows with the numbers below `rows` of these employees.
    fn insert(&mut self, employees: Range<i32>, rows: u32) -> anyhow::Result<()>;

    /// How many rows there are of a table, with or without a condition.
    fn count(&mut self, table: &str) -> anyhow::Result<u64>;

    /// Brings bench's tables in order after many changes.
    fn settle(&mut self) -> anyhow::Result<()>;

    /// The number of the newest sync in the server's history.
    fn history_position(&mut self) -> anyhow::Result<i64>;

    /// What the history tells of the syncs after a position.
    fn history_after(&mut self, position: i64) -> anyhow::Result<History>;

    /// Reads single purchases by their keys, so many at a time, with a prepared statement, for so
    /// long; how many.
    fn look_up(&mut self, at_a_time: u32, seconds: f64) -> anyhow::Result<u64>;

    /// Kind, version, and settings that decide about speed.
    fn describe(&mut self) -> anyhow::Result<String>;

    /// The first of its processes here, where it has any of its own here.
    fn process(&self) -> Option<u32>;

    /// Whether it runs in the server's process.
    fn is_embedded(&self) -> bool;

    /// Removes what is left when all tables are dropped.
    fn remove(&mut self) -> anyhow::Result<()>;
}

/// Employees and purchases of each that look-ups find.
pub(crate) const LOOK_UP: (i32, u32) = (10, 1_000);

/// A purchase that is there, anywhere in the table: see [`LOOK_UP`].
pub(crate) fn key_of(number: u64) -> (i32, i32) {
    let (employees, purchases) = LOOK_UP;
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let employee = mixed % employees as u64;
    let purchase = (mixed / employees as u64) % u64::from(purchases);
    (employee as i32, FIRST_PURCH_ID + purchase as i32)
}

/// What is in a database before bench begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseContent {
    /// Nothing that bench would touch.
    Nothing,
    /// What bench itself has left.
    Ours,
    /// Tables of the same names, which bench has not made.
    Foreign(Vec<String>),
}

impl DatabaseContent {
    /// Of these tables; `state` are those of the server.
    fn from_tables(marker: bool, tables: Vec<String>) -> DatabaseContent {
        match (marker, tables.is_empty()) {
            (true, _) => DatabaseContent::Ours,
            (false, true) => DatabaseContent::Nothing,
            (false, false) => DatabaseContent::Foreign(tables),
        }
    }
}

/// What the server's history tells of some syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// How many there were that went well.
    pub(crate) syncs: u64,
    /// From the first start to the last end.
    pub(crate) span_ms: u64,
}

/// Opens what a URL names, for one bench at a time.
pub(crate) fn open(url: &str) -> anyhow::Result<Box<dyn Base>> {
    tidewater_server::config::DatabaseUrl::parse(url)?;
    let mut base: Box<dyn Base> = match url.strip_prefix("sqlite:") {
        Some(path) => Box::new(sqlite::Sqlite::open(url, path)?),
        None => Box::new(postgres::PostgresBase::connect(url)?),
    };
    match base.claim()? {
        true => Ok(base),
        false => Err(BadInput::error(
            "another bench is at work in this database",
            "wait until it has ended, or name another database",
        )),
    }
}

/// Tables that bench makes beside [`MARKER`], which come and go with it.
const TABLES: [&str; 3] = ["purchase", "bench_user", "bench_limit"];

/// Makes an empty database ready: nothing but bench's own tables in it.
pub(crate) fn prepare(base: &mut dyn Base) -> anyhow::Result<()> {
    match base.found()? {
        DatabaseContent::Nothing => {}
        // A run before this one did not come to its end, or was told to keep everything.
        DatabaseContent::Ours => clear(base)?,
        DatabaseContent::Foreign(tables) => {
            return Err(BadInput::error(
                format!(
                    "the database is not empty: it has {}, and the table {MARKER}, by which bench \
                     knows its own, is not there",
                    tables.join(", ")
                ),
                "name an empty database; bench drops what it finds in its own",
            ));
        }
    }
    // First of all, so that whatever else is there can be known for bench's own.
    base.execute(&format!("CREATE TABLE {MARKER} (version INT NOT NULL)"))
        .context("bench cannot make its tables")?;
    base.execute(&format!(
        "INSERT INTO {MARKER} (version) VALUES (1); \
         {} \
         CREATE TABLE bench_user (login VARCHAR(64) NOT NULL PRIMARY KEY, emp_id INT NOT NULL)",
        tidewater_purchase::postgres_schema()
    ))
}

/// Sees that a database with tables of the user's own may be changed.
pub(crate) fn check_marker(base: &mut dyn Base) -> anyhow::Result<()> {
    match base.has_table(COPY_MARKER)? {
        true => Ok(()),
        false => Err(BadInput::error(
            format!(
                "the database has no table {COPY_MARKER}, so nobody has said that bench may change it"
            ),
            format!(
                "take a copy of yours, for it will be changed, and say so in it: \
                 CREATE TABLE {COPY_MARKER} (version INT)"
            ),
        )),
    }
}

/// Gives a user that there is already another password.
pub(crate) fn set_password(base: &dyn Base, name: &str, hash: &str) -> anyhow::Result<()> {
    let is_there = runtime()?.block_on(async {
        let centre = tidewater_server::databases::connect(base.url()).await?;
        anyhow::Ok(centre.set_password(name, hash).await?)
    })?;
    match is_there {
        true => Ok(()),
        false => Err(BadInput::error(
            format!("the database has no user {name:?}, who is the file's"),
            "name a copy of the database that the file was synced with",
        )),
    }
}

/// Drops everything that bench has made.
pub(crate) fn clear(base: &mut dyn Base) -> anyhow::Result<()> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let centre = tidewater_server::databases::connect(base.url()).await?;
        centre.undeploy(false).await?;
        anyhow::Ok(())
    })?;
    for table in TABLES {
        base.execute(&format!("DROP TABLE IF EXISTS {table}"))?;
    }
    base.execute(&format!("DROP TABLE IF EXISTS {MARKER}"))?;
    base.remove()
}

/// Does what `tidewater deploy` does.
pub(crate) fn deploy(base: &dyn Base, configuration: &str) -> anyhow::Result<()> {
    let config = Config::parse(configuration)?;
    runtime()?.block_on(async {
        let centre = tidewater_server::databases::connect(base.url()).await?;
        centre.deploy(&config.publications, false, now_ms()).await?;
        Ok(())
    })
}

/// Adds users, all with the same password hash.
pub(crate) fn add_users(base: &dyn Base, names: &[String], hash: &str) -> anyhow::Result<()> {
    let user = |name: &String| UserRecord {
        name: name.clone(),
        password_hash: hash.into(),
        disabled: false,
        created_ms: now_ms(),
        proven: ProvenIdentity::default(),
    };
    let users: Vec<UserRecord> = names.iter().map(user).collect();
    runtime()?.block_on(async {
        let centre = tidewater_server::databases::connect(base.url()).await?;
        centre.import_users(&users, true).await?;
        Ok(())
    })
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let builder = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    builder.context("cannot start a runtime")
}

fn now_ms() -> i64 {
    Environment::real().clock.now_ms()
}
