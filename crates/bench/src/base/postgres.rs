//! A PostgreSQL as bench needs it.

use std::ops::Range;

use anyhow::Context;
use tidewater_purchase::{load_postgres, purchases};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::{Base, DatabaseContent, History, MARKER, TABLES};
use crate::error::BadInput;
use crate::processes;

/// Rows of one COPY: the triggers of change tracking see them as one statement.
const ROWS_AT_ONCE: u32 = 100_000;

/// The advisory lock of whoever benches in a database: "benchtid" in ASCII.
const LOCK: i64 = 0x6265_6e63_6874_6964;

/// How often it is tried to get that: the backend of one that was killed is there a little longer.
const TRIES: u32 = 50;

/// See the module.
pub(super) struct PostgresBase {
    url: String,
    runtime: Runtime,
    client: Client,
    /// The first process, if it runs here.
    process: Option<u32>,
}

impl PostgresBase {
    pub(super) fn connect(url: &str) -> anyhow::Result<PostgresBase> {
        let runtime = super::runtime()?;
        let client = runtime.block_on(connect(url))?;
        let session = "SELECT pg_backend_pid()";
        let session: i32 = runtime.block_on(client.query_one(session, &[]))?.get(0);
        // A process of this number here is another one, if the server is elsewhere.
        let is_here = is_here(url);
        let process = is_here.then(|| processes::postmaster(session as u32));
        Ok(PostgresBase {
            url: url.to_owned(),
            runtime,
            client,
            process: process.flatten(),
        })
    }

    fn number(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(self
            .runtime
            .block_on(self.client.query_one(sql, &[]))?
            .get(0))
    }
}

/// Connects without TLS. The server may do better: bench's own statements carry nothing secret.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(|error| {
        let text = anyhow::Error::new(error);
        BadInput::error(
            format!("the consolidated database cannot be reached: {text:#}"),
            "see that it runs, and that the URL, the user and the password are right",
        )
    })?;
    // Whoever uses the client sees the error.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

fn is_here(url: &str) -> bool {
    let Ok(config) = url.parse::<tokio_postgres::Config>() else {
        return false;
    };
    config.get_hosts().iter().all(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => {
            host == "localhost"
                || host
                    .parse()
                    .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(_) => true,
    })
}

impl Base for PostgresBase {
    fn url(&self) -> &str {
        &self.url
    }

    fn claim(&mut self) -> anyhow::Result<bool> {
        // It ends with the connection.
        let lock = format!("SELECT pg_try_advisory_lock({LOCK})::int::int8");
        for _ in 0..TRIES {
            if self.number(&lock)? > 0 {
                return Ok(true);
            }
            std::thread::sleep(processes::GLANCE);
        }
        Ok(false)
    }

    fn has_table(&mut self, name: &str) -> anyhow::Result<bool> {
        let there = format!("SELECT count(*) FROM pg_class WHERE oid = to_regclass('{name}')");
        Ok(self.number(&there)? > 0)
    }

    fn found(&mut self) -> anyhow::Result<DatabaseContent> {
        let mut tables = Vec::new();
        for table in TABLES {
            if self.has_table(table)? {
                tables.push(format!("the table {table}"));
            }
        }
        if self.number("SELECT count(*) FROM pg_namespace WHERE nspname = 'tidewater'")? > 0 {
            tables.push("what a Tidewater server keeps".into());
        }
        Ok(DatabaseContent::from_tables(
            self.has_table(MARKER)?,
            tables,
        ))
    }

    fn execute(&mut self, sql: &str) -> anyhow::Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    fn insert(&mut self, employees: Range<i32>, rows: u32) -> anyhow::Result<()> {
        let each = (ROWS_AT_ONCE / rows.max(1)).max(1) as usize;
        for first in employees.clone().step_by(each) {
            let last = employees.end.min(first.saturating_add(each as i32));
            let rows = (first..last).flat_map(|employee| purchases(employee, 0..rows as i32));
            self.runtime.block_on(load_postgres(&self.client, rows))?;
        }
        Ok(())
    }

    fn count(&mut self, table: &str) -> anyhow::Result<u64> {
        Ok(self.number(&format!("SELECT count(*) FROM {table}"))? as u64)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.execute("VACUUM ANALYZE purchase, bench_user")
    }

    fn history_position(&mut self) -> anyhow::Result<i64> {
        self.number("SELECT coalesce(max(id), 0)::bigint FROM tidewater.sync_history")
    }

    fn history_after(&mut self, position: i64) -> anyhow::Result<History> {
        let sql =
            "SELECT count(*), coalesce(max(started_ms + duration_ms) - min(started_ms), 0)::bigint
                   FROM tidewater.sync_history WHERE id > $1::bigint AND error = ''";
        let row = self
            .runtime
            .block_on(self.client.query_one(sql, &[&position]))?;
        Ok(History {
            syncs: row.get::<_, i64>(0) as u64,
            span_ms: row.get::<_, i64>(1) as u64,
        })
    }

    fn look_up(&mut self, at_a_time: u32, seconds: f64) -> anyhow::Result<u64> {
        let until = std::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
        self.runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..at_a_time {
                let client = connect(&self.url).await?;
                let sql = "SELECT cost FROM purchase WHERE emp_id = $1 AND purch_id = $2";
                let statement = client.prepare(sql).await?;
                clients.push((client, statement));
            }
            let looking =
                clients
                    .iter()
                    .enumerate()
                    .map(|(index, (client, statement))| async move {
                        let mut count = 0;
                        while std::time::Instant::now() < until {
                            let (employee, purchase) = super::key_of((index as u64) << 32 | count);
                            client.query_one(statement, &[&employee, &purchase]).await?;
                            count += 1;
                        }
                        anyhow::Ok(count)
                    });
            let counts = futures_util::future::try_join_all(looking).await?;
            Ok(counts.iter().sum())
        })
    }

    fn describe(&mut self) -> anyhow::Result<String> {
        let sql = "SELECT concat('PostgreSQL ', current_setting('server_version'), ', fsync ',
                   current_setting('fsync'), ', synchronous_commit ',
                   current_setting('synchronous_commit'), ', shared_buffers ',
                   current_setting('shared_buffers'))";
        let row = self.runtime.block_on(self.client.query_one(sql, &[]));
        Ok(row.context("reading PostgreSQL's settings")?.get(0))
    }

    fn process(&self) -> Option<u32> {
        self.process
    }

    fn is_embedded(&self) -> bool {
        false
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
