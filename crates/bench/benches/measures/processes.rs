//! The processes of a benchmark: PostgreSQL, a server, a remote.
//!
//! Server and remote are this program again, started with a hidden command, so that
//! each has its own memory to measure.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::TempDir;

use tidewater_carrier::{Compression, CompressionOptions};
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_client::{Remote, SyncDirection};
use tidewater_purchase as purchase;
use tidewater_server::{Config, Environment, Server, hash_password};
use tidewater_testing::postgres::{Postgres, PostgresOptions};

const USER: &str = "bench";
pub(crate) const PASSWORD: &str = "bench-password";

/// A PostgreSQL that syncs to disk, as in production.
pub(crate) struct Centre {
    postgres: Postgres,
}

impl Centre {
    pub(crate) fn start() -> anyhow::Result<Centre> {
        let settings = [
            ("shared_buffers", "512MB"),
            ("max_wal_size", "8GB"),
            ("checkpoint_timeout", "30min"),
        ];
        let options = PostgresOptions {
            durable: true,
            settings: settings
                .map(|(name, value)| (name.into(), value.into()))
                .to_vec(),
        };
        Ok(Centre {
            postgres: Postgres::start_with(options)?,
        })
    }

    /// Makes an empty database; returns its URL.
    pub(crate) fn database(&self, name: &str) -> anyhow::Result<String> {
        self.postgres.create_database(name)?;
        Ok(self.postgres.url(name))
    }

    /// Makes the purchase table with so many rows.
    pub(crate) fn load(&self, url: &str, rows: i32) -> anyhow::Result<()> {
        tokio::runtime::Runtime::new()?.block_on(async {
            let client = tidewater_testing::postgres::connect(url).await?;
            client.batch_execute(purchase::postgres_schema()).await?;
            let rows = purchase::purchases(purchase::FIRST_EMP_ID, 0..rows);
            purchase::load_postgres(&client, rows).await?;
            client.batch_execute("VACUUM ANALYZE purchase").await?;
            Ok(())
        })
    }

    /// Deploys the purchase table.
    pub(crate) async fn deploy(
        &self,
        url: &str,
        tracking: &str,
        direction: &str,
    ) -> anyhow::Result<()> {
        self.deploy_with(
            url,
            &configuration(url, &purchase_table(tracking, direction)),
        )
        .await
    }

    async fn deploy_with(&self, url: &str, configuration: &str) -> anyhow::Result<()> {
        let config = Config::parse(configuration)?;
        let centre = tidewater_server::databases::connect(url).await?;
        centre.deploy(&config.publications, false, now_ms()).await?;
        add_user(&*centre, USER).await
    }
}

/// Adds a user with the [`PASSWORD`].
pub(crate) async fn add_user(
    centre: &dyn tidewater_centre::Centre,
    name: &str,
) -> anyhow::Result<()> {
    let user = UserRecord {
        name: name.into(),
        password_hash: hash_password(&Environment::real(), PASSWORD)?,
        disabled: false,
        created_ms: now_ms(),
        proven: ProvenIdentity::default(),
    };
    centre.add_user(&user).await?;
    Ok(())
}

fn configuration(url: &str, tables: &str) -> String {
    format!(
        "[server]\n\
         listen = [\"tcp://127.0.0.1:0\"]\n\
         consolidated = {url:?}\n\n\
         [[publication]]\n\
         name = \"bench\"\n\n{tables}"
    )
}

fn purchase_table(tracking: &str, direction: &str) -> String {
    format!(
        "[[publication.table]]\n\
         name = \"purchase\"\n\
         partition = {{ columns = [\"emp_id\"], values = \"SELECT {}\" }}\n\
         direction = \"{direction}\"\n\
         tracking = \"{tracking}\"\n",
        purchase::FIRST_EMP_ID
    )
}

/// The most memory that a process had resident.
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    pub(crate) kib: u64,
}

impl Peak {
    /// Of this process so far: `VmHWM` of proc(5).
    fn own() -> anyhow::Result<Peak> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib = kib
            .context("/proc/self/status has no VmHWM")?
            .trim()
            .parse()?;
        Ok(Peak { kib })
    }
}

/// Processor time of this process so far, user and system: `utime` and `stime` of
/// proc(5), in the hundredths of a second that Linux counts them in.
fn own_cpu() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in parentheses, and may hold anything.
    let fields = stat
        .rsplit_once(')')
        .context("/proc/self/stat has no name")?
        .1;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |index: usize| fields.get(index).context("/proc/self/stat is too short");
    let ticks = field(11)?.parse::<u64>()? + field(12)?.parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// What a remote's process tells.
pub(crate) struct Synced {
    /// From before the connection to after the commit.
    pub(crate) elapsed: Duration,
    /// Processor time of the remote in between.
    pub(crate) cpu: Duration,
    pub(crate) peak: Peak,
    /// What `tidewater sync --json` would print.
    pub(crate) report: serde_json::Value,
}

/// A server, and a folder with remotes.
pub(crate) struct Fleet {
    folder: TempDir,
    server: Child,
    url: String,
}

impl Fleet {
    /// Deploys and starts a server process.
    pub(crate) fn start(
        centre: &Centre,
        url: &str,
        tracking: &str,
        direction: &str,
    ) -> anyhow::Result<Fleet> {
        Fleet::start_with(centre, url, &purchase_table(tracking, direction))
    }

    /// The same, with other tables.
    pub(crate) fn start_with(centre: &Centre, url: &str, tables: &str) -> anyhow::Result<Fleet> {
        let configuration = configuration(url, tables);
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(centre.deploy_with(url, &configuration))?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tidewater.toml");
        std::fs::write(&path, configuration)?;
        let mut server = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = server
            .stdout
            .as_mut()
            .context("the server has no standard output")?;
        let mut line = String::new();
        BufReader::with_capacity(1, output).read_line(&mut line)?;
        let url = line.trim().to_owned();
        anyhow::ensure!(!url.is_empty(), "the server did not start");
        Ok(Fleet {
            folder,
            server,
            url,
        })
    }

    /// A file of the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the server listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Syncs a remote in a process of its own.
    pub(crate) fn sync(&self, name: &str, options: &[&str]) -> anyhow::Result<Synced> {
        self.sync_over(&self.url, name, options)
    }

    /// The same, over something before the server.
    pub(crate) fn sync_over(
        &self,
        url: &str,
        name: &str,
        options: &[&str],
    ) -> anyhow::Result<Synced> {
        let output = Command::new(std::env::current_exe()?)
            .arg("sync")
            .arg(self.path(name))
            .arg(url)
            .args(options)
            .stderr(Stdio::inherit())
            .output()?;
        anyhow::ensure!(output.status.success(), "the remote's process failed");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let number = |name: &str| told[name].as_u64().context("the remote did not tell");
        Ok(Synced {
            elapsed: Duration::from_nanos(number("elapsed_ns")?),
            cpu: Duration::from_nanos(number("cpu_ns")?),
            peak: Peak {
                kib: number("peak_kib")?,
            },
            report: told["report"].clone(),
        })
    }

    /// Ends the server; returns its peak.
    pub(crate) fn stop(mut self) -> anyhow::Result<Peak> {
        drop(self.server.stdin.take());
        let mut told = String::new();
        let output = self
            .server
            .stdout
            .as_mut()
            .context("the server has no standard output")?;
        output.read_to_string(&mut told)?;
        self.server.wait()?;
        Ok(Peak {
            kib: told.trim().parse()?,
        })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // It is gone already after `stop`; otherwise the end of its input ends it.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// The hidden command `serve`: prints the URL, serves until standard input ends, prints
/// the peak of memory in KiB.
pub(crate) fn serve(configuration: &Path) -> anyhow::Result<()> {
    let config = Config::load(configuration)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let centre = tidewater_server::databases::connect(&config.server.consolidated).await?;
        let running = Server::start(config, centre, Environment::real()).await?;
        println!("{}", running.addresses[0]);
        std::io::stdout().flush()?;
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        running.shutdown().await;
        println!("{}", Peak::own()?.kib);
        Ok(())
    })
}

/// The arguments of the hidden command `sync`.
#[derive(clap::Args)]
pub(crate) struct SyncArguments {
    file: PathBuf,
    server: String,
    #[arg(long)]
    upload_only: bool,
    #[arg(long)]
    compression: Option<Compression>,
}

/// The hidden command `sync`: syncs once and prints one JSON object.
pub(crate) fn sync(arguments: &SyncArguments) -> anyhow::Result<()> {
    let mut remote = Remote::open(&arguments.file)?;
    remote.subscribe(&arguments.server, USER, &["bench"])?;
    remote.set_password(PASSWORD);
    // What is between is this machine's.
    remote.set_insecure(true);
    if let Some(compression) = arguments.compression {
        remote.set_compression(CompressionOptions {
            compression,
            level: None,
        });
    }
    if arguments.upload_only {
        remote.set_direction(SyncDirection::UploadOnly);
    }
    let (start, cpu_before) = (Instant::now(), own_cpu()?);
    let report = remote.sync(&mut |_| ControlFlow::Continue(()))?;
    let elapsed = start.elapsed();
    let told = serde_json::json!({
        "elapsed_ns": u64::try_from(elapsed.as_nanos())?,
        "cpu_ns": u64::try_from((own_cpu()? - cpu_before).as_nanos())?,
        "peak_kib": Peak::own()?.kib,
        "report": report,
    });
    println!("{told}");
    Ok(())
}

fn now_ms() -> i64 {
    Environment::real().clock.now_ms()
}
