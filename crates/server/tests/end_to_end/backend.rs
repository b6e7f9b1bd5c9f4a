//! Consolidated databases as applications see them, the same for every adapter.
//!
//! Failures panic: the test cannot go on.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;
use tidewater_testing::chinook;
use tidewater_testing::postgres::{self, connect, shared_postgres};
use tidewater_testing::purchase::{self, Purchase};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, SimpleQueryMessage};

/// How long an application waits for a lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// What drives the applications' connections to PostgreSQL.
pub(crate) static APPLICATIONS: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the system has threads")
});

/// Tables have other numbers in a restored database, which is in another place besides: here as
/// if it were still the same one.
const AS_IF_NEVER_DUMPED: &str = "
    UPDATE tidewater.change_log SET table_oid = table_name::regclass::oid;
    DELETE FROM tidewater.tracked;
    UPDATE tidewater.history SET place = concat_ws('/',
        (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        'tidewater.history'::regclass::oid)";

/// The newest transaction that a dumped database knows of.
const NEWEST_TRANSACTION: &str = "
    SELECT max(version::text::bigint) FROM (
        SELECT version FROM tidewater.everything
        UNION ALL SELECT log_floor FROM tidewater.history
        UNION ALL SELECT oldest_running FROM tidewater.horizon) AS known (version)";

/// A consolidated database of a test's own; gone when dropped.
pub(crate) trait Backend: Sized + Send + Sync + 'static {
    /// An application's open transaction; rolled back when dropped.
    type Transaction: Transaction;

    /// For names of folders.
    const NAME: &str;

    /// Whether one application can write while another's transaction is open.
    const CONCURRENT_WRITERS: bool;

    /// An expression: the transaction, as text; empty if the database does not tell.
    const TRANSACTION: &str;

    /// An empty database.
    fn new() -> Self;

    /// What to write after `consolidated =`.
    fn url(&self) -> String;

    /// Runs statements as an application.
    fn execute(&self, sql: &str);

    /// Runs a statement as an application, unless a constraint is against it.
    fn try_execute(&self, sql: &str);

    /// Puts a copy of the database into this folder.
    fn save(&self, folder: &Path);

    /// A database as [`Self::save`] left it: the same one in all that Tidewater relies on,
    /// as if nothing but the program had changed.
    fn restore(folder: &Path) -> Self;

    /// Runs a query as an application: values as text, NULL as `NULL`, joined by `|`.
    fn rows(&self, sql: &str) -> Vec<String>;

    /// Begins a transaction that has written something after its first statement.
    fn begin(&self) -> Self::Transaction;

    /// An expression: a decimal in canonical form.
    fn decimal(column: &str, scale: u8) -> String;

    /// An expression: a timestamp in canonical form.
    fn timestamp(column: &str) -> String;

    /// A trigger that runs a statement after each insert into a table, as late as this
    /// database can: at the commit, if it has deferred triggers.
    fn late_trigger(table: &str, statement: &str) -> String;

    /// Fills the tables of Chinook.
    fn load_chinook(&self);

    /// Fills the table of purchases.
    fn load_purchases(&self, rows: impl Iterator<Item = Purchase> + Send);

    /// Statements that make a table `audit` and triggers that put a line into it for every
    /// row of these tables that anybody changes: (table, key column, text column).
    fn audit(tables: &[(&str, &str, &str)]) -> String;
}

/// An application's open transaction.
pub(crate) trait Transaction: Send {
    /// Runs statements.
    fn execute(&mut self, sql: &str);

    /// Runs a statement; whether no constraint was against it. If one was, that is the end.
    fn try_execute(&mut self, sql: &str) -> bool;

    /// Commits.
    fn commit(self);
}

/// An SQLite file.
pub(crate) struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("centre.db")
    }
}

/// A connection as an application opens it.
pub(crate) fn open_sqlite(path: &std::path::Path) -> Connection {
    let connection = Connection::open(path).expect("the file opens");
    connection
        .busy_timeout(LOCK_PATIENCE)
        .expect("a timeout can be set");
    connection
        .pragma_update(None, "foreign_keys", true)
        .expect("foreign keys can be switched on");
    connection
}

/// Runs statements.
#[track_caller]
pub(crate) fn execute_sqlite(connection: &Connection, sql: &str) {
    if let Err(error) = connection.execute_batch(sql) {
        panic!("{error}\nin: {sql}");
    }
}

/// Runs a query: values as text, NULL as `NULL`, joined by `|`.
#[track_caller]
pub(crate) fn rows_sqlite(connection: &Connection, sql: &str) -> Vec<String> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare(sql)?;
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let values = (0..columns).map(|index| {
                Ok(match row.get_ref(index)? {
                    ValueRef::Null => "NULL".to_owned(),
                    ValueRef::Integer(integer) => integer.to_string(),
                    ValueRef::Real(real) => real.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    ValueRef::Blob(blob) => format!("{blob:02x?}"),
                })
            });
            Ok(values.collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
        })?;
        rows.collect()
    };
    match read() {
        Ok(rows) => rows,
        Err(error) => panic!("{error}\nin: {sql}"),
    }
}

/// Copies a database.
pub(crate) fn save_sqlite(from: &Path, to: &Path) {
    let connection = open_sqlite(from);
    let _ = std::fs::remove_file(to);
    let copied = connection.execute("VACUUM INTO ?1", [to.to_string_lossy()]);
    copied.expect("the folder can be written");
}

impl Backend for Sqlite {
    type Transaction = SqliteTransaction;

    const NAME: &str = "sqlite";
    const CONCURRENT_WRITERS: bool = false;
    const TRANSACTION: &str = "''";

    fn new() -> Sqlite {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Sqlite { folder }
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn execute(&self, sql: &str) {
        execute_sqlite(&open_sqlite(&self.path()), sql);
    }

    fn try_execute(&self, sql: &str) {
        if let Err(error) = open_sqlite(&self.path()).execute_batch(sql) {
            let code = error.sqlite_error_code();
            let expected = rusqlite::ErrorCode::ConstraintViolation;
            assert_eq!(code, Some(expected), "{error}\nin: {sql}");
        }
    }

    fn save(&self, folder: &Path) {
        save_sqlite(&self.path(), &folder.join("centre.db"));
    }

    fn restore(folder: &Path) -> Sqlite {
        let backend = Sqlite::new();
        std::fs::copy(folder.join("centre.db"), backend.path()).expect("the copy is there");
        backend
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        rows_sqlite(&open_sqlite(&self.path()), sql)
    }

    fn begin(&self) -> SqliteTransaction {
        let connection = open_sqlite(&self.path());
        execute_sqlite(&connection, "BEGIN IMMEDIATE");
        SqliteTransaction(connection)
    }

    fn decimal(column: &str, scale: u8) -> String {
        format!("printf('%.{scale}f', {column})")
    }

    fn timestamp(column: &str) -> String {
        column.to_owned()
    }

    fn late_trigger(table: &str, statement: &str) -> String {
        format!("CREATE TRIGGER late_{table} AFTER INSERT ON {table} BEGIN {statement}; END;")
    }

    fn load_chinook(&self) {
        chinook::load_sqlite(&open_sqlite(&self.path())).expect("the rows fit");
    }

    fn load_purchases(&self, rows: impl Iterator<Item = Purchase> + Send) {
        purchase::load_sqlite(&open_sqlite(&self.path()), rows).expect("the rows fit");
    }

    fn audit(tables: &[(&str, &str, &str)]) -> String {
        let mut sql = "CREATE TABLE audit (id INTEGER PRIMARY KEY, line TEXT NOT NULL);".to_owned();
        for (table, key, text) in tables {
            for (operation, row) in [("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")] {
                let value = match operation {
                    "delete" => "''".to_owned(),
                    _ => format!("{row}.{text}"),
                };
                sql += &format!(
                    "CREATE TRIGGER audit_{table}_{operation} AFTER {operation} ON {table} BEGIN
                         INSERT INTO audit (line) VALUES
                             ('{table}|{operation}|' || {row}.{key} || '|' || {value});
                     END;"
                );
            }
        }
        sql
    }
}

/// An open write transaction.
pub(crate) struct SqliteTransaction(Connection);

impl Transaction for SqliteTransaction {
    fn execute(&mut self, sql: &str) {
        execute_sqlite(&self.0, sql);
    }

    fn try_execute(&mut self, sql: &str) -> bool {
        match self.0.execute_batch(sql) {
            Ok(()) => true,
            Err(error) => {
                let code = error.sqlite_error_code();
                let expected = rusqlite::ErrorCode::ConstraintViolation;
                assert_eq!(code, Some(expected), "{error}\nin: {sql}");
                false
            }
        }
    }

    fn commit(self) {
        execute_sqlite(&self.0, "COMMIT");
    }
}

/// A database of the PostgreSQL server that all tests share, or of one of its own.
pub(crate) struct Postgres {
    url: String,
    own: Option<Arc<Mutex<postgres::Postgres>>>,
}

impl Postgres {
    /// A database of a server of the test's own.
    pub(crate) fn at(url: String) -> Postgres {
        Postgres { url, own: None }
    }

    /// A database of a PostgreSQL that may be killed.
    pub(crate) fn mortal() -> Postgres {
        let own = postgres::Postgres::start().expect("another PostgreSQL can be started");
        Postgres {
            url: own.fresh_database(),
            own: Some(Arc::new(Mutex::new(own))),
        }
    }

    /// A copy of the database in the same PostgreSQL. Nobody is connected to it.
    pub(crate) fn copy(&self) -> Postgres {
        let url = match &self.own {
            Some(own) => own
                .lock()
                .expect("nobody panics with it")
                .copy_database(&self.url),
            None => shared_postgres().copy_database(&self.url),
        };
        Postgres {
            url,
            own: self.own.clone(),
        }
    }

    /// Kills PostgreSQL, and starts it again. Only a mortal one.
    pub(crate) fn crash(&self) {
        let own = self.own.as_ref().expect("others use it");
        let mut own = own.lock().expect("nobody panics with it");
        own.kill().expect("it can be killed");
        own.restart().expect("it recovers");
    }

    /// Runs statements one after the other in one connection, without a transaction.
    pub(crate) fn execute_each(&self, statements: &[&str]) {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            for sql in statements {
                if let Err(error) = client.batch_execute(sql).await {
                    panic!("{error:?}\nin: {sql}");
                }
            }
        });
    }
}

async fn rows_postgres(client: &Client, sql: &str) -> Vec<String> {
    let messages = match client.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) => panic!("{error:?}\nin: {sql}"),
    };
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let values = (0..row.len()).map(|index| row.get(index).unwrap_or("NULL"));
            Some(values.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    rows.collect()
}

impl Backend for Postgres {
    type Transaction = PostgresTransaction;

    const NAME: &str = "postgres";
    const CONCURRENT_WRITERS: bool = true;
    const TRANSACTION: &str = "pg_current_xact_id()::text";

    fn new() -> Postgres {
        Postgres::at(shared_postgres().fresh_database())
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn execute(&self, sql: &str) {
        self.execute_each(&[sql]);
    }

    fn try_execute(&self, sql: &str) {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            if let Err(error) = client.batch_execute(sql).await {
                // Class 23: integrity constraint violations.
                let code = error.code().map_or("", |state| state.code());
                assert!(code.starts_with("23"), "{error:?}\nin: {sql}");
            }
        });
    }

    fn save(&self, folder: &Path) {
        let dump = shared_postgres().dump(&self.url);
        let dump = dump.expect("PostgreSQL comes with pg_dump");
        // Commands of psql are not SQL.
        let lines = dump.lines().filter(|line| !line.starts_with('\\'));
        let dump = lines.collect::<Vec<_>>().join("\n");
        std::fs::write(folder.join("centre.sql"), dump).expect("the folder can be written");
    }

    fn restore(folder: &Path) -> Postgres {
        let dump = std::fs::read_to_string(folder.join("centre.sql"));
        let backend = Postgres::new();
        backend.execute(&dump.expect("the copy is there"));
        backend.execute(AS_IF_NEVER_DUMPED);
        let [reached] = &*backend.rows("SELECT pg_current_xact_id()") else {
            panic!("one row");
        };
        let [needed] = &*backend.rows(NEWEST_TRANSACTION) else {
            panic!("one row");
        };
        let number = |text: &str| text.parse::<u64>().expect("a transaction id");
        let missing = number(needed).saturating_sub(number(reached));
        assert!(missing < 1_000_000, "{missing} transactions");
        let spend = "SELECT pg_current_xact_id();";
        APPLICATIONS.block_on(async {
            let client = connect(&backend.url).await.expect("PostgreSQL runs");
            for _ in 0..=missing {
                client.batch_execute(spend).await.expect("an id is free");
            }
        });
        backend
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            rows_postgres(&client, sql).await
        })
    }

    fn begin(&self) -> PostgresTransaction {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            client.batch_execute("BEGIN").await.expect("it begins");
            PostgresTransaction(client)
        })
    }

    fn decimal(column: &str, _scale: u8) -> String {
        column.to_owned()
    }

    fn timestamp(column: &str) -> String {
        format!("to_char({column}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')")
    }

    fn late_trigger(table: &str, statement: &str) -> String {
        format!(
            "CREATE FUNCTION late_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN {statement}; RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {table}
                 DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION late_{table}();"
        )
    }

    fn load_chinook(&self) {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            chinook::load_postgres(&client).await.expect("the rows fit");
        });
    }

    fn load_purchases(&self, rows: impl Iterator<Item = Purchase> + Send) {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url).await.expect("PostgreSQL runs");
            let copied = purchase::load_postgres(&client, rows).await;
            copied.expect("the rows fit");
        });
    }

    fn audit(tables: &[(&str, &str, &str)]) -> String {
        let mut sql =
            "CREATE TABLE audit (id BIGSERIAL PRIMARY KEY, line TEXT NOT NULL);".to_owned();
        for (table, key, text) in tables {
            sql += &format!(
                "CREATE FUNCTION audit_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF TG_OP = 'DELETE' THEN
                         INSERT INTO audit (line) VALUES ('{table}|delete|' || OLD.{key} || '|');
                     ELSE
                         INSERT INTO audit (line) VALUES
                             ('{table}|' || lower(TG_OP) || '|' || NEW.{key} || '|' || NEW.{text});
                     END IF;
                     RETURN NULL;
                 END $$;
                 CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON {table}
                     FOR EACH ROW EXECUTE FUNCTION audit_{table}();"
            );
        }
        sql
    }
}

/// An open transaction.
pub(crate) struct PostgresTransaction(Client);

impl Transaction for PostgresTransaction {
    fn execute(&mut self, sql: &str) {
        if let Err(error) = APPLICATIONS.block_on(self.0.batch_execute(sql)) {
            panic!("{error:?}\nin: {sql}");
        }
    }

    fn try_execute(&mut self, sql: &str) -> bool {
        match APPLICATIONS.block_on(self.0.batch_execute(sql)) {
            Ok(()) => true,
            Err(error) => {
                let code = error.code().map_or("", |state| state.code());
                assert!(code.starts_with("23"), "{error:?}\nin: {sql}");
                false
            }
        }
    }

    fn commit(mut self) {
        self.execute("COMMIT");
    }
}
