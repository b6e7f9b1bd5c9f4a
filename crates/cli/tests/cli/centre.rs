//! Both kinds of consolidated databases behind one face, for tests that must hold for
//! either.

use std::path::PathBuf;

use tidewater_testing::shared_postgres;
use tokio_postgres::SimpleQueryMessage;

use crate::program::{Place, sqlite};

/// A central database of a test's own.
#[derive(Clone)]
pub(crate) enum Centre {
    Sqlite(PathBuf),
    /// Its URL.
    Postgres(String),
}

/// An open session.
pub(crate) struct Session {
    client: tokio_postgres::Client,
    runtime: tokio::runtime::Runtime,
}

impl Session {
    /// Runs statements; what they locked stays locked until their transaction ends.
    pub(crate) fn execute(&self, sql: &str) {
        let run = self.runtime.block_on(self.client.batch_execute(sql));
        run.expect("valid SQL");
    }
}

/// Runs a test once on each kind of centre, each time in a place of its own.
pub(crate) fn on_both_centres(test: impl Fn(&Place, &Centre)) {
    let place = Place::new();
    test(&place, &Centre::sqlite(&place));
    test(&Place::new(), &Centre::postgres());
}

impl Centre {
    pub(crate) fn sqlite(place: &Place) -> Centre {
        Centre::Sqlite(place.path("centre.db"))
    }

    pub(crate) fn postgres() -> Centre {
        Centre::Postgres(shared_postgres().fresh_database())
    }

    /// What to write after `consolidated =`.
    pub(crate) fn url(&self) -> String {
        match self {
            Centre::Sqlite(path) => format!("sqlite:{}", path.display()),
            Centre::Postgres(url) => url.clone(),
        }
    }

    /// A session of an application that stays open, on PostgreSQL.
    pub(crate) fn session(&self) -> Option<Session> {
        let Centre::Postgres(url) = self else {
            return None;
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(tidewater_testing::postgres::connect(url));
        Some(Session {
            client: client.expect("the database lets us in"),
            runtime,
        })
    }

    /// A copy, as a backup has it. Nobody else may be connected meanwhile.
    pub(crate) fn copy(&self, place: &Place) -> Centre {
        match self {
            Centre::Sqlite(path) => {
                let copy = place.path("backup.db");
                let vacuum = format!("VACUUM INTO '{}'", copy.display());
                sqlite(path).execute_batch(&vacuum).expect("it is copied");
                Centre::Sqlite(copy)
            }
            Centre::Postgres(url) => Centre::Postgres(shared_postgres().copy_database(url)),
        }
    }

    /// Runs statements as an application does.
    pub(crate) fn execute(&self, sql: &str) {
        match self {
            Centre::Sqlite(path) => sqlite(path).execute_batch(sql).expect("valid SQL"),
            Centre::Postgres(url) => drop(postgres_rows(url, sql)),
        }
    }

    /// Rows as text, columns joined by `|`, NULL as nothing.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        match self {
            Centre::Sqlite(path) => sqlite_rows(&sqlite(path), sql),
            Centre::Postgres(url) => postgres_rows(url, sql),
        }
    }
}

/// Rows as text, columns joined by `|`, NULL as nothing.
pub(crate) fn sqlite_rows(connection: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).expect("valid SQL");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cells = (0..columns).map(|index| {
            Ok(match row.get_ref(index)? {
                rusqlite::types::ValueRef::Null => String::new(),
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                rusqlite::types::ValueRef::Real(number) => number.to_string(),
                rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                rusqlite::types::ValueRef::Blob(bytes) => format!("{bytes:?}"),
            })
        });
        Ok(cells.collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
    });
    rows.and_then(Iterator::collect).expect("the query runs")
}

fn postgres_rows(url: &str, sql: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let messages = runtime.block_on(async {
        let client = tidewater_testing::postgres::connect(url).await?;
        anyhow::Ok(client.simple_query(sql).await?)
    });
    let rows = messages.expect("the query runs").into_iter();
    rows.filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells = (0..row.len()).map(|index| row.get(index).unwrap_or_default());
            Some(cells.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    })
    .collect()
}
