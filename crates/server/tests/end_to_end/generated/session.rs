//! An application's connection to the centre of a generated case.

use bytes::Bytes;
use futures_util::SinkExt;
use rusqlite::Connection;
use rusqlite::types::ValueRef as Stored;
use tidewater_protocol::Value;
use tidewater_testing::generate::Dialect;
use tidewater_testing::generate::spelling::{from_postgres, from_sqlite_centre};
use tidewater_testing::generate::types::Type;
use tidewater_testing::postgres::connect;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::backend::{APPLICATIONS, Backend, Postgres, Sqlite, open_sqlite};

/// A database that generated cases run in.
pub(crate) trait Centre: Backend {
    /// How it writes SQL.
    const DIALECT: Dialect;

    /// A connection.
    type Session: Session;

    /// An empty database; `mortal` if it is to be killed.
    fn open(mortal: bool) -> Self;

    /// Kills the database, which comes back, if it is a process of its own. Who is connected has
    /// to connect anew.
    fn crash(&self);

    /// Connects.
    fn session(&self) -> Self::Session;

    /// A copy of all of it, which goes on by itself. No server runs, and whoever is connected
    /// has to connect anew.
    fn copy(&self) -> Self;
}

/// A connection to it.
pub(crate) trait Session {
    /// Runs one transaction; whether it was committed. Constraints may be against it;
    /// anything else panics.
    fn write(&mut self, statements: &[String], commit: bool) -> bool;

    /// Reads rows, as remotes store their values.
    fn read(&mut self, sql: &str, types: &[Type]) -> Vec<Vec<Value>>;
}

impl Centre for Sqlite {
    const DIALECT: Dialect = Dialect::Sqlite;

    type Session = Connection;

    fn open(_: bool) -> Sqlite {
        Sqlite::new()
    }

    /// It lives and dies with the server's process.
    fn crash(&self) {}

    fn session(&self) -> Connection {
        open_sqlite(&self.path())
    }

    fn copy(&self) -> Sqlite {
        let copy = Sqlite::new();
        let busy = read_stored(&self.session(), "PRAGMA wal_checkpoint(TRUNCATE)");
        assert_eq!(busy[0][0], Value::Integer(0), "somebody uses the file");
        std::fs::copy(self.path(), copy.path()).expect("a file can be copied");
        copy
    }
}

impl Session for Connection {
    fn write(&mut self, statements: &[String], commit: bool) -> bool {
        let end = if commit { "COMMIT" } else { "ROLLBACK" }.to_owned();
        let begin = "BEGIN IMMEDIATE".to_owned();
        let all = [&begin].into_iter().chain(statements).chain([&end]);
        for sql in all {
            let Err(error) = self.execute_batch(sql) else {
                continue;
            };
            let expected = matches!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::ConstraintViolation | rusqlite::ErrorCode::TypeMismatch)
            );
            assert!(expected, "{error}\nin: {sql}");
            if !self.is_autocommit() {
                self.execute_batch("ROLLBACK").expect("it is open");
            }
            return false;
        }
        commit
    }

    fn read(&mut self, sql: &str, types: &[Type]) -> Vec<Vec<Value>> {
        let rows = read_stored(self, sql).into_iter();
        let row = |row: Vec<Value>| {
            let values = row.into_iter().zip(types);
            values
                .map(|(value, it)| from_sqlite_centre(*it, value))
                .collect()
        };
        rows.map(row).collect()
    }
}

/// Rows of an SQLite database as they are stored.
pub(crate) fn read_stored(connection: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let read = || -> rusqlite::Result<Vec<Vec<Value>>> {
        let mut statement = connection.prepare_cached(sql)?;
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            (0..columns)
                .map(|index| Ok(value(row.get_ref(index)?)))
                .collect()
        })?;
        rows.collect()
    };
    match read() {
        Ok(rows) => rows,
        Err(error) => panic!("{error}\nin: {sql}"),
    }
}

fn value(stored: Stored<'_>) -> Value {
    match stored {
        Stored::Null => Value::Null,
        Stored::Integer(integer) => Value::Integer(integer),
        Stored::Real(real) => Value::Real(real),
        Stored::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        Stored::Blob(blob) => Value::Blob(blob.to_vec()),
    }
}

impl Centre for Postgres {
    const DIALECT: Dialect = Dialect::Postgres;

    type Session = Client;

    fn open(mortal: bool) -> Postgres {
        match mortal {
            true => Postgres::mortal(),
            false => Postgres::new(),
        }
    }

    fn crash(&self) {
        Postgres::crash(self);
    }

    fn session(&self) -> Client {
        APPLICATIONS.block_on(async {
            let client = connect(&self.url()).await.expect("PostgreSQL runs");
            // As the product reads them.
            let style = "SET intervalstyle = iso_8601";
            client.batch_execute(style).await.expect("it is a setting");
            client
        })
    }

    fn copy(&self) -> Postgres {
        Postgres::copy(self)
    }
}

/// Runs all statements, in one round trip if none of them is a COPY: an error ends it all
/// the same.
async fn transaction(
    client: &Client,
    statements: &[String],
    end: &str,
) -> Result<(), tokio_postgres::Error> {
    let mut batch = String::from("BEGIN");
    for statement in statements {
        let Some((copy, rows)) = statement
            .starts_with("COPY ")
            .then(|| statement.split_once('\n'))
            .flatten()
        else {
            batch += &format!(";\n{statement}");
            continue;
        };
        client.batch_execute(&std::mem::take(&mut batch)).await?;
        let sink = client.copy_in(copy).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::from(rows.to_owned())).await?;
        sink.finish().await?;
    }
    client.batch_execute(&format!("{batch};\n{end}")).await
}

impl Session for Client {
    fn write(&mut self, statements: &[String], commit: bool) -> bool {
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        APPLICATIONS.block_on(async {
            let sql = statements.join(";\n");
            let Err(error) = transaction(self, statements, end).await else {
                return commit;
            };
            // Class 23: constraints. Class 22: values. 428C9: a column that is always generated.
            let code = error.code().map_or("", |state| state.code());
            let expected = code.starts_with("23") || code.starts_with("22") || code == "428C9";
            assert!(expected, "{error:?}\nin: {sql}");
            self.batch_execute("ROLLBACK").await.expect("it is open");
            false
        })
    }

    fn read(&mut self, sql: &str, types: &[Type]) -> Vec<Vec<Value>> {
        let messages = APPLICATIONS.block_on(self.simple_query(sql));
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => panic!("{error:?}\nin: {sql}"),
        };
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let values = types
                    .iter()
                    .enumerate()
                    .map(|(index, it)| match row.get(index) {
                        Some(text) => from_postgres(*it, text),
                        None => Value::Null,
                    });
                Some(values.collect())
            }
            _ => None,
        });
        rows.collect()
    }
}
