//! PostgreSQL: a primary, a standby that acknowledges every commit, and the address that moves
//! with the primary.
//!
//! It is operated by the book: a standby is only promoted if it has everything that was
//! acknowledged, and an old primary never comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tidewater_testing::{Postgres, PostgresOptions};

use crate::network::Network;
use crate::stage::{POLL, Stage};

pub(crate) const DATABASE: &str = "rig";

/// How long anything of PostgreSQL may take; generous, because machines are loaded.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug)]
pub(crate) struct Cluster {
    stage: Arc<Stage>,
    primary: Postgres,
    standby: Option<Postgres>,
    address: Network,
    /// How many servers there were before.
    buried: usize,
}

/// How a PostgreSQL dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Death {
    /// `pg_ctl stop -m immediate`.
    Immediate,
    /// `kill -9` of the first process.
    FirstProcess,
}

impl Cluster {
    /// `address` leads to the primary from here on.
    pub(crate) fn start(
        stage: &Arc<Stage>,
        address: impl FnOnce(u16) -> anyhow::Result<Network>,
    ) -> anyhow::Result<Cluster> {
        let settings = [
            ("synchronous_standby_names", "*"),
            ("synchronous_commit", "on"),
            ("wal_retrieve_retry_interval", "100ms"),
            ("wal_keep_size", "256MB"),
            ("max_wal_size", "256MB"),
            ("shared_buffers", "64MB"),
            ("log_min_messages", "warning"),
        ];
        let primary = Postgres::start_with(PostgresOptions {
            durable: false,
            settings: settings
                .map(|(name, value)| (name.into(), value.into()))
                .to_vec(),
        })?;
        let mut cluster = Cluster {
            stage: stage.clone(),
            address: address(primary.port())?,
            primary,
            standby: None,
            buried: 0,
        };
        cluster.add_standby()?;
        cluster.primary.create_database(DATABASE)?;
        Ok(cluster)
    }

    /// The URL of the database at the address that moves with the primary.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/{DATABASE}",
            self.address.port
        )
    }

    pub(crate) fn execute(&self, sql: &str) -> anyhow::Result<()> {
        self.primary.execute(DATABASE, sql)
    }

    pub(crate) fn address(&self) -> &Network {
        &self.address
    }

    /// The primary dies and is started again.
    pub(crate) fn crash(&mut self, death: Death) -> anyhow::Result<()> {
        kill(&mut self.primary, death)?;
        self.primary.restart()
    }

    /// The standby dies, which keeps every commit waiting, and is started again after a while.
    pub(crate) fn crash_standby(&mut self, away: Duration) -> anyhow::Result<()> {
        let standby = self.standby.as_mut().context("there is a standby")?;
        kill(standby, Death::Immediate)?;
        std::thread::sleep(away);
        standby.restart()
    }

    /// The primary dies for good, the standby takes its place, and gets a standby of its own.
    pub(crate) fn fail_over(&mut self, death: Death) -> anyhow::Result<()> {
        self.wait_for_standby()?;
        kill(&mut self.primary, death)?;
        let standby = self.standby.take().context("there is a standby")?;
        let old = std::mem::replace(&mut self.primary, standby);
        // Its sessions may live on for a moment: nobody is to hear that they miss its files.
        self.address.cut_all();
        self.bury(old);
        eventually("the standby takes over", || self.primary.promote())?;
        self.address.redirect(self.primary.port());
        self.address.cut_all();
        self.add_standby()
    }

    /// Everything runs, and the standby has everything.
    pub(crate) fn heal(&mut self) -> anyhow::Result<()> {
        self.wait_for_standby()
    }

    /// Everything that is committed now is on the standby, and whatever is acknowledged later
    /// will be.
    ///
    /// A primary that crashed while a commit waited for the standby shows its rows after the
    /// restart, acknowledged by nobody. Who read them and relied on them would lose them with
    /// the primary; so a standby is not promoted before it has caught up.
    fn wait_for_standby(&mut self) -> anyhow::Result<()> {
        let streams = "DO $$ BEGIN ASSERT EXISTS (SELECT FROM pg_stat_replication \
                       WHERE state = 'streaming' AND sync_state = 'sync'); END $$";
        eventually("the standby streams", || {
            self.primary.execute(DATABASE, streams)
        })?;
        // This commit comes back when the standby has it, and so all before it.
        self.execute("INSERT INTO barrier SELECT count(*) FROM barrier")
    }

    fn add_standby(&mut self) -> anyhow::Result<()> {
        let mut added = None;
        eventually("a new standby is made", || {
            added = Some(self.primary.standby()?);
            Ok(())
        })?;
        self.standby = added;
        Ok(())
    }

    /// Keeps the log of a server that goes.
    fn bury(&mut self, postgres: Postgres) {
        self.buried += 1;
        let path = self.stage.path(&format!("postgres-{}.log", self.buried));
        // A log that cannot be kept keeps nobody from going on.
        let _ = std::fs::write(path, postgres.log());
    }

    /// Keeps what the database holds, as SQL.
    pub(crate) fn keep_database(&self) -> anyhow::Result<()> {
        let dump = self.primary.dump(&self.primary.url(DATABASE))?;
        Ok(std::fs::write(self.stage.path("centre.sql"), dump)?)
    }

    /// Keeps the logs of those that run.
    pub(crate) fn keep_logs(&self) {
        let write = |name: &str, postgres: &Postgres| {
            let _ = std::fs::write(self.stage.path(name), postgres.log());
        };
        write("postgres-primary.log", &self.primary);
        if let Some(standby) = &self.standby {
            write("postgres-standby.log", standby);
        }
    }
}

fn kill(postgres: &mut Postgres, death: Death) -> anyhow::Result<()> {
    match death {
        Death::Immediate => postgres.kill(),
        Death::FirstProcess => postgres.kill_first_process(),
    }
}

/// Tries until it works.
fn eventually(what: &str, mut attempt: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => bail!("not in time: {what}: {error:#}"),
            Err(_) => std::thread::sleep(POLL * 5),
        }
    }
}
