//! MariaDB's databases as the suite's databases: one server for all tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, Row, Value};

use tidewater_centre::{Centre, CentreError};
pub(crate) use tidewater_centre_conformance::fixture::{ApplicationTransaction, Fixture};
use tidewater_testing::generate::Dialect;
use tidewater_testing::shared_mariadb;

/// The databases that were made.
static DATABASES: AtomicU64 = AtomicU64::new(0);

/// A fresh database of the shared server.
pub(crate) struct MysqlFixture {
    url: String,
}

/// A connection as an application opens it.
async fn open(url: &str) -> Conn {
    let options = Opts::from_url(url).expect("the URL of a database");
    let mut connection = Conn::new(options).await.unwrap();
    // The suite is written in standard SQL.
    let settings = "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_ALL_TABLES'";
    connection.query_drop(settings).await.unwrap();
    connection
}

/// A value as text.
fn text(value: Value) -> String {
    match value {
        Value::NULL => "NULL".into(),
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => other.as_sql(true).trim_matches('\'').to_owned(),
    }
}

impl Fixture for MysqlFixture {
    type Transaction = MysqlTransaction;

    const CONCURRENT_WRITERS: bool = true;
    const DIALECT: Dialect = Dialect::Mysql;
    const BYTES: &'static str = "LONGBLOB";
    const EMPTY_TABLE: &'static str = "TRUNCATE {}";
    const NUMBERED_KEY: &'static str = "INTEGER AUTO_INCREMENT PRIMARY KEY";

    async fn new() -> Self {
        // Starting the server takes seconds of this thread.
        let server = tokio::task::spawn_blocking(shared_mariadb).await.unwrap();
        let name = format!("fresh_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
        let mut connection = open(&server.url("")).await;
        connection.query_drop(create).await.unwrap();
        connection.disconnect().await.unwrap();
        Self {
            url: server.url(&name),
        }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
        tidewater_centre_mysql::connect(url).await
    }

    async fn try_execute(&self, sql: &str) -> Result<(), String> {
        let done = open(&self.url).await.query_drop(sql).await;
        done.map_err(|error| error.to_string())
    }

    async fn query(&self, sql: &str) -> Vec<String> {
        let found: Vec<Row> = open(&self.url).await.query(sql).await.unwrap();
        let rows = found.into_iter().map(|row| {
            let values = row.unwrap().into_iter().map(text);
            values.collect::<Vec<_>>().join("|")
        });
        rows.collect()
    }

    async fn begin(&self) -> MysqlTransaction {
        let mut connection = open(&self.url).await;
        connection.query_drop("START TRANSACTION").await.unwrap();
        MysqlTransaction { connection }
    }

    fn fill_trigger() -> String {
        "CREATE TRIGGER fill BEFORE INSERT ON note FOR EACH ROW
           SET NEW.owner = coalesce(NEW.owner, NEW.body)"
            .into()
    }

    fn who_trigger() -> String {
        "CREATE TRIGGER who AFTER INSERT ON note FOR EACH ROW
           INSERT INTO seen VALUES (NEW.id, @tidewater_username, @tidewater_remote_id)"
            .into()
    }

    fn own_table(name: &str) -> String {
        format!("tidewater_{name}")
    }

    /// A trigger cannot update the table that it is of: the capitals come before the insert.
    fn stock_trigger() -> String {
        "CREATE TRIGGER stock BEFORE INSERT ON customer FOR EACH ROW BEGIN
             UPDATE product SET name = concat('tea of ', NEW.name) WHERE product_id = 1;
             SET NEW.name = upper(NEW.name);
         END"
        .into()
    }

    fn stamp_trigger() -> String {
        "CREATE TRIGGER stamp_inserted BEFORE INSERT ON note FOR EACH ROW
           SET NEW.stamp = NEW.stamp + 100;
         CREATE TRIGGER stamp_updated BEFORE UPDATE ON note FOR EACH ROW
           SET NEW.stamp = IF(NEW.body <=> OLD.body, NEW.stamp, NEW.stamp + 100)"
            .into()
    }

    async fn traces(&self) -> Vec<String> {
        self.query(
            "SELECT table_name FROM information_schema.tables
               WHERE table_schema = database() AND table_name LIKE '%tidewater%'
             UNION ALL SELECT trigger_name FROM information_schema.triggers
               WHERE trigger_schema = database() AND trigger_name LIKE '%tidewater%'
             UNION ALL SELECT routine_name FROM information_schema.routines
               WHERE routine_schema = database() AND routine_name LIKE '%tidewater%'
             ORDER BY 1",
        )
        .await
    }
}

/// An open transaction.
pub(crate) struct MysqlTransaction {
    connection: Conn,
}

impl ApplicationTransaction for MysqlTransaction {
    async fn execute(&mut self, sql: &str) {
        self.connection.query_drop(sql).await.unwrap();
    }

    async fn commit(mut self) {
        self.connection.query_drop("COMMIT").await.unwrap();
    }
}
