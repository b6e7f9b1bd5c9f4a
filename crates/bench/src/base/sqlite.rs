//! A file of SQLite as bench needs it.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;
use tidewater_purchase::{load_sqlite, purchases};

use super::{Base, DatabaseContent, History, MARKER, TABLES};

/// How long the server may hold the file.
const PATIENCE: Duration = Duration::from_secs(120);
const EMPLOYEES_AT_ONCE: usize = 100;

/// See the module.
pub(super) struct Sqlite {
    url: String,
    path: PathBuf,
    connection: Option<Connection>,
    /// Whether bench has made the file.
    is_ours: bool,
}

impl Sqlite {
    pub(super) fn open(url: &str, path: &str) -> anyhow::Result<Sqlite> {
        let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
        // The server is started from another folder.
        let path = std::path::absolute(&path)?;
        let url = match path.to_str() {
            Some(path) => format!("sqlite:{path}"),
            None => url.to_owned(),
        };
        let is_ours = !path.exists();
        Ok(Sqlite {
            url,
            path,
            connection: None,
            is_ours,
        })
    }

    fn connection(&mut self) -> anyhow::Result<&Connection> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => {
                let connection = Connection::open(&self.path)?;
                connection.busy_timeout(PATIENCE)?;
                Ok(none.insert(connection))
            }
        }
    }

    fn number(&mut self, sql: &str) -> anyhow::Result<i64> {
        Ok(self.connection()?.query_row(sql, [], |row| row.get(0))?)
    }
}

impl Base for Sqlite {
    fn url(&self) -> &str {
        &self.url
    }

    fn has_table(&mut self, name: &str) -> anyhow::Result<bool> {
        let sql = format!("SELECT count(*) FROM sqlite_schema WHERE lower(name) = '{name}'");
        Ok(self.number(&sql)? > 0)
    }

    fn found(&mut self) -> anyhow::Result<DatabaseContent> {
        let mut tables = Vec::new();
        for table in TABLES {
            if self.has_table(table)? {
                tables.push(format!("the table {table}"));
            }
        }
        if self.has_table("tidewater_centre_meta")? {
            tables.push("what a Tidewater server keeps".into());
        }
        Ok(DatabaseContent::from_tables(
            self.has_table(MARKER)?,
            tables,
        ))
    }

    fn execute(&mut self, sql: &str) -> anyhow::Result<()> {
        let connection = self.connection()?;
        let done = connection.execute_batch(&format!("BEGIN IMMEDIATE; {sql}; COMMIT"));
        if done.is_err() && !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
        Ok(done?)
    }

    fn insert(&mut self, employees: Range<i32>, rows: u32) -> anyhow::Result<()> {
        let connection = self.connection()?;
        for first in employees.clone().step_by(EMPLOYEES_AT_ONCE) {
            let last = employees
                .end
                .min(first.saturating_add(EMPLOYEES_AT_ONCE as i32));
            let rows = (first..last).flat_map(|employee| purchases(employee, 0..rows as i32));
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let loaded = load_sqlite(connection, rows);
            let end = if loaded.is_ok() { "COMMIT" } else { "ROLLBACK" };
            connection.execute_batch(end)?;
            loaded?;
        }
        Ok(())
    }

    fn count(&mut self, table: &str) -> anyhow::Result<u64> {
        Ok(self.number(&format!("SELECT count(*) FROM {table}"))? as u64)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn history_position(&mut self) -> anyhow::Result<i64> {
        self.number("SELECT coalesce(max(id), 0) FROM tidewater_centre_sync_history")
    }

    fn history_after(&mut self, position: i64) -> anyhow::Result<History> {
        let sql = "SELECT count(*), coalesce(max(started_ms + duration_ms) - min(started_ms), 0)
                   FROM tidewater_centre_sync_history WHERE id > ?1 AND error = ''";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(History {
                syncs: row.get::<_, i64>(0)? as u64,
                span_ms: row.get::<_, i64>(1)? as u64,
            })
        };
        Ok(self.connection()?.query_row(sql, [position], read)?)
    }

    fn look_up(&mut self, at_a_time: u32, seconds: f64) -> anyhow::Result<u64> {
        let until = std::time::Instant::now() + Duration::from_secs_f64(seconds);
        let path = &self.path;
        let threads = at_a_time.min(crate::machine::cores() as u32);
        std::thread::scope(|scope| {
            let threads = (0..u64::from(threads)).map(|index| {
                scope.spawn(move || -> anyhow::Result<u64> {
                    let connection = Connection::open(path)?;
                    let sql = "SELECT cost FROM purchase WHERE emp_id = ?1 AND purch_id = ?2";
                    let mut statement = connection.prepare(sql)?;
                    let mut count = 0;
                    while std::time::Instant::now() < until {
                        let key = super::key_of(index << 32 | count);
                        let cost: rusqlite::types::Value =
                            statement.query_row(key, |row| row.get(0))?;
                        drop(cost);
                        count += 1;
                    }
                    Ok(count)
                })
            });
            let threads: Vec<_> = threads.collect();
            let counts = threads.into_iter().map(|it| match it.join() {
                Ok(count) => count,
                Err(_) => anyhow::bail!("a thread has panicked"),
            });
            counts.sum()
        })
    }

    fn describe(&mut self) -> anyhow::Result<String> {
        Ok(format!(
            "SQLite {}, embedded in the server",
            rusqlite::version()
        ))
    }

    fn process(&self) -> Option<u32> {
        None
    }

    fn is_embedded(&self) -> bool {
        true
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        self.connection = None;
        if self.is_ours {
            for suffix in ["", "-wal", "-shm"] {
                let mut path = self.path.clone().into_os_string();
                path.push(suffix);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
