//! Physical copies of a server: snapshots of its volume that are put back, and standbys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};

use super::programs::Programs;
use super::{Postgres, copy_tree};
use crate::account::Account;

/// Waits for a standby, for a minute at most.
const IN_STEP: &str = "DO $$ BEGIN
    FOR tries IN 1..6000 LOOP
        IF EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync') THEN RETURN; END IF;
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
    RAISE 'no standby follows';
END $$";

/// A copy of a server's volume at one moment. It goes with the server.
#[derive(Debug)]
pub struct Snapshot(PathBuf);

impl Postgres {
    /// Copies the volume as it would be found after a power failure at this moment. Sessions
    /// end.
    pub fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let data = self.data_directory();
        let mut number = 0;
        let target = loop {
            let target = self.folder.join(format!("snapshot-{number}"));
            if !target.exists() {
                break target;
            }
            number += 1;
        };
        self.kill()?;
        copy_tree(&data, &target, self.account).context("cannot copy PostgreSQL's data")?;
        self.restart()?;
        Ok(Snapshot(target))
    }

    /// Puts a snapshot in the place of the data: the same server, as it was then.
    pub fn put_back(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        let data = self.data_directory();
        self.kill()?;
        fs::remove_dir_all(&data)?;
        copy_tree(&snapshot.0, &data, self.account).context("cannot put PostgreSQL's data back")?;
        // It is from another process.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        self.restart()
    }

    /// A standby that streams from this server and begins with what it has now. It answers
    /// questions, and takes changes from [`Self::promote`] on.
    pub fn standby(&self) -> anyhow::Result<Postgres> {
        let make_data = |programs: &Programs, account: Option<Account>, folder: &Path| {
            let program = programs.initdb.with_file_name("pg_basebackup");
            let output = programs
                .command(&program, account, folder)
                .args([
                    "--username=postgres",
                    "--host=127.0.0.1",
                    "--wal-method=stream",
                ])
                .args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync"])
                .arg(format!("--port={}", self.port()))
                .arg("--pgdata")
                .arg(folder.join("data"))
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("cannot run {}", program.display()))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                bail!("pg_basebackup failed ({}):\n{said}", output.status);
            }
            Ok(())
        };
        Postgres::start_on(self.options.clone(), make_data)
    }

    /// From now on nothing is committed here before a standby has it, too. Returns when one has
    /// everything.
    pub fn commit_with_standby(&self) -> anyhow::Result<()> {
        for sql in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
            IN_STEP,
        ] {
            self.execute("postgres", sql)?;
        }
        Ok(())
    }

    /// Makes a standby a primary of its own, on another timeline.
    pub fn promote(&self) -> anyhow::Result<()> {
        self.execute("postgres", "DO $$ BEGIN ASSERT pg_promote(); END $$")
    }
}
