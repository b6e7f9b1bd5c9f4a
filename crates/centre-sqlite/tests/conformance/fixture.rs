//! SQLite files as the suite's databases.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use tidewater_centre::{Centre, CentreError};
pub(crate) use tidewater_centre_conformance::fixture::{ApplicationTransaction, Fixture};
use tidewater_testing::generate::Dialect;

/// A fresh SQLite file.
pub(crate) struct SqliteFixture {
    directory: tempfile::TempDir,
}

impl SqliteFixture {
    fn path(&self) -> PathBuf {
        self.directory.path().join("centre.db")
    }

    /// A connection as an application opens it.
    pub(crate) fn connection(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection
            .busy_timeout(std::time::Duration::from_secs(30))
            .unwrap();
        connection
            .pragma_update(None, "foreign_keys", true)
            .unwrap();
        connection
    }
}

impl Fixture for SqliteFixture {
    type Transaction = SqliteTransaction;

    const CONCURRENT_WRITERS: bool = false;
    const DIALECT: Dialect = Dialect::Sqlite;
    const BYTES: &'static str = "BLOB";
    const EMPTY_TABLE: &'static str = "DELETE FROM {}";
    const NUMBERED_KEY: &'static str = "INTEGER PRIMARY KEY AUTOINCREMENT";

    async fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
        let path = url.strip_prefix("sqlite:").expect("the URL of a file");
        tidewater_centre_sqlite::connect(path).await
    }

    async fn try_execute(&self, sql: &str) -> Result<(), String> {
        self.connection()
            .execute_batch(sql)
            .map_err(|error| error.to_string())
    }

    async fn query(&self, sql: &str) -> Vec<String> {
        let connection = self.connection();
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let values = (0..columns).map(|index| {
                Ok(match row.get_ref(index)? {
                    ValueRef::Null => "NULL".into(),
                    ValueRef::Integer(integer) => integer.to_string(),
                    ValueRef::Real(real) => real.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    ValueRef::Blob(blob) => format!("{blob:02x?}"),
                })
            });
            Ok(values.collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    async fn begin(&self) -> SqliteTransaction {
        let connection = self.connection();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        SqliteTransaction { connection }
    }

    fn fill_trigger() -> String {
        "CREATE TRIGGER fill AFTER INSERT ON note WHEN NEW.owner IS NULL BEGIN
           UPDATE note SET owner = body WHERE id = NEW.id; END"
            .into()
    }

    fn who_trigger() -> String {
        "CREATE TRIGGER who AFTER INSERT ON note BEGIN
           INSERT INTO seen VALUES (NEW.id, (SELECT username FROM tidewater_centre_uploading),
             (SELECT remote_id FROM tidewater_centre_uploading)); END;"
            .into()
    }

    fn own_table(name: &str) -> String {
        format!("tidewater_centre_{name}")
    }

    fn stock_trigger() -> String {
        "CREATE TRIGGER stock AFTER INSERT ON customer BEGIN
             UPDATE product SET name = 'tea of ' || NEW.name WHERE product_id = 1;
             UPDATE customer SET name = upper(name) WHERE customer_id = NEW.customer_id;
         END"
        .into()
    }

    fn stamp_trigger() -> String {
        "CREATE TRIGGER stamp_inserted AFTER INSERT ON note BEGIN
           UPDATE note SET stamp = stamp + 100 WHERE id = NEW.id; END;
         CREATE TRIGGER stamp_updated AFTER UPDATE OF body ON note BEGIN
           UPDATE note SET stamp = stamp + 100 WHERE id = NEW.id; END"
            .into()
    }

    async fn traces(&self) -> Vec<String> {
        self.query("SELECT name FROM sqlite_schema WHERE name LIKE '%tidewater%' ORDER BY 1")
            .await
    }
}

/// An open write transaction.
pub(crate) struct SqliteTransaction {
    connection: Connection,
}

impl ApplicationTransaction for SqliteTransaction {
    async fn execute(&mut self, sql: &str) {
        self.connection.execute_batch(sql).unwrap();
    }

    async fn commit(self) {
        self.connection.execute_batch("COMMIT").unwrap();
    }
}
