//! A device: a remote's file that syncs on and on, in processes that die, run out of disk, or
//! meet another that syncs the same file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rusqlite::ErrorCode;

use crate::chance::Chance;
use crate::program::{Program, ProgramRun};
use crate::stage::{POLL, Stage};
use crate::world::{USERS, password};

/// How long a device may take to come to rest after everything was healed: so many syncs, and
/// so much time, whichever is more.
const HEALING_SYNCS: usize = 100;
const HEALING_TIME: Duration = Duration::from_secs(300);
/// What the small disk has left while it is as good as full.
const LEFT_ON_DISK_BITS: u64 = 17;

pub(crate) struct Device {
    stage: Arc<Stage>,
    pub(crate) name: String,
    pub(crate) user: &'static str,
    pub(crate) path: PathBuf,
    program: Program,
    /// Server, user, publication: until the first sync is through.
    account: Vec<String>,
    has_synced: bool,
    /// The remote id that the file has had since then.
    identity: Vec<u8>,
    /// Its file is on a disk of its own, which is small.
    has_small_disk: bool,
    chance: Chance,
}

/// What happens to the process of a sync.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SyncAccident {
    None,
    KilledAfter(Duration),
    /// It stays in sync until it is killed.
    Live(Duration),
    /// Files do not grow beyond so many blocks; whether that ends the process.
    Limited(u64, bool),
    DiskFull,
    Twice,
}

impl Device {
    /// A device with a number from 1, in a folder of its own.
    pub(crate) fn new(
        stage: &Arc<Stage>,
        program: &Program,
        number: usize,
        server: &str,
        chance: Chance,
    ) -> anyhow::Result<Device> {
        let folder = stage.path(&format!("device-{number}"));
        std::fs::create_dir_all(&folder)?;
        let user = USERS[number % USERS.len()].0;
        let mut account = ["--server", server, "--user", user, "--publication", "field"].to_vec();
        if !server.starts_with("tcp://") {
            account.extend(["--ca", "tls/tidewater-dev.pem"]);
        }
        Ok(Device {
            stage: stage.clone(),
            name: format!("device-{number}"),
            user,
            path: folder.join("remote.db"),
            program: program.clone(),
            account: account.into_iter().map(String::from).collect(),
            has_synced: false,
            identity: Vec::new(),
            has_small_disk: false,
            chance,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    pub(crate) fn set_small_disk(&mut self) {
        self.has_small_disk = true;
    }

    /// Syncs until the end of the run.
    pub(crate) fn run(mut self) -> anyhow::Result<Device> {
        while self.stage.runs() {
            let accident = self.draw();
            self.sync(accident)?;
            let pause = Duration::from_millis(self.chance.of_any_size(10));
            self.stage.pause(pause);
        }
        Ok(self)
    }

    fn draw(&mut self) -> SyncAccident {
        if !self.stage.breaks() {
            return SyncAccident::None;
        }
        match self.chance.below(100) {
            0..8 => SyncAccident::KilledAfter(Duration::from_millis(self.chance.of_any_size(10))),
            8..12 if self.has_synced => {
                SyncAccident::Live(Duration::from_millis(self.chance.of_any_size(13)))
            }
            12..20 => {
                let size = std::fs::metadata(&self.path).map_or(0, |it| it.len());
                let blocks = match self.chance.percent(50) {
                    true => self.chance.of_any_size(10),
                    false => size / 512 + self.chance.of_any_size(10),
                };
                SyncAccident::Limited(blocks, self.chance.percent(50))
            }
            20..32 if self.has_small_disk => SyncAccident::DiskFull,
            32..35 => SyncAccident::Twice,
            _ => SyncAccident::None,
        }
    }

    /// One sync; what it says must be something that the accidents explain.
    fn sync(&mut self, accident: SyncAccident) -> anyhow::Result<()> {
        match accident {
            SyncAccident::None => {
                let run = ProgramRun::from_command(&mut self.command(None))?;
                self.ended(&run, accident);
            }
            SyncAccident::KilledAfter(time) => {
                let child = self.spawn()?;
                let run = self.kill_after(child, time)?;
                self.ended(&run, accident);
            }
            SyncAccident::Live(time) => {
                let file = self.path.display().to_string();
                let mut command = self.program.command(&["live", &file, "--json"]);
                let child = piped(&mut command)?;
                let run = self.kill_after(child, time)?;
                self.ended(&run, accident);
            }
            SyncAccident::Limited(..) => {
                let run = ProgramRun::from_command(&mut self.command(Some(accident)))?;
                if run.code.is_none() || run.outcome() == "remote_database" {
                    self.stage.fault("remote's disk full (limit)");
                }
                self.ended(&run, accident);
            }
            SyncAccident::DiskFull => {
                let ballast = self.fill_disk()?;
                let run = ProgramRun::from_command(&mut self.command(None))?;
                std::fs::remove_file(ballast)?;
                if run.outcome() == "remote_database" {
                    self.stage.fault("remote's disk full (file system)");
                }
                self.ended(&run, accident);
            }
            SyncAccident::Twice => {
                let children = [self.spawn()?, self.spawn()?];
                self.stage.fault("file synced twice at once");
                for child in children {
                    let run = child.wait_with_output()?.into();
                    self.ended(&run, accident);
                }
            }
        }
        self.check_identity()
    }

    /// The sync command; a small part of them goes one way only.
    fn command(&mut self, limit: Option<SyncAccident>) -> Command {
        let file = self.path.display().to_string();
        // Who is turned away is seen, and comes again by itself.
        let mut arguments = vec!["sync", &file, "--json", "--quiet", "--no-retry"];
        if !self.has_synced {
            arguments.extend(self.account.iter().map(String::as_str));
        } else if self.stage.breaks() && self.chance.percent(8) {
            arguments.push(self.chance.pick(&["--upload-only", "--download-only"]));
        }
        let mut command = match limit {
            Some(SyncAccident::Limited(blocks, is_fatal)) => {
                self.program.limited(&arguments, blocks, is_fatal)
            }
            _ => self.program.command(&arguments),
        };
        if !self.has_synced {
            command.env("TIDEWATER_PASSWORD", password(self.user));
        }
        command
    }

    fn spawn(&mut self) -> anyhow::Result<Child> {
        piped(&mut self.command(None))
    }

    fn kill_after(&mut self, mut child: Child, time: Duration) -> anyhow::Result<ProgramRun> {
        let end = Instant::now() + time;
        while child.try_wait()?.is_none() {
            if Instant::now() > end {
                // It may have been faster.
                child.kill()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let run: ProgramRun = child.wait_with_output()?.into();
        if run.code.is_none() {
            self.stage.fault("remote killed");
        }
        Ok(run)
    }

    /// Fills the small disk but for a few pages; gives the file to remove.
    fn fill_disk(&mut self) -> anyhow::Result<PathBuf> {
        let path = self.folder().join("ballast");
        let mut ballast = std::fs::File::create(&path)?;
        let piece = vec![0; 1 << 16];
        while ballast.write_all(&piece).is_ok() {}
        let length = ballast.metadata()?.len();
        let left = self.chance.of_any_size(LEFT_ON_DISK_BITS);
        ballast.set_len(length.saturating_sub(left))?;
        Ok(path)
    }

    fn ended(&mut self, run: &ProgramRun, accident: SyncAccident) {
        let outcome = run.outcome();
        self.stage
            .note(&format!("{} {accident:?}: {outcome}", self.name));
        self.stage.sync_ended(&outcome);
        if matches!(run.code, Some(0 | 6)) {
            self.has_synced = true;
        }
        if run.panicked() || !is_explained(&outcome, accident) {
            let name = &self.name;
            self.stage
                .finding(format!("{name} {accident:?} {outcome}: {run:?}"));
        }
    }

    /// Nobody restores or copies files here: who has an identity keeps it.
    fn check_identity(&mut self) -> anyhow::Result<()> {
        if !self.has_synced {
            return Ok(());
        }
        let identity = match self.identity_now() {
            // The application may have taken the room that was left; it is looked at next time.
            Err(error) if self.stage.breaks() && is_about_disk(&error) => return Ok(()),
            identity => identity?,
        };
        if self.identity.is_empty() {
            self.identity.clone_from(&identity);
        }
        if identity != self.identity {
            self.stage
                .finding(format!("{} got another identity", self.name));
            self.identity = identity;
        }
        Ok(())
    }

    pub(crate) fn identity(&self) -> &[u8] {
        &self.identity
    }

    fn identity_now(&self) -> rusqlite::Result<Vec<u8>> {
        let sql = "SELECT remote_id FROM tidewater_state";
        self.open()?.query_row(sql, [], |row| row.get(0))
    }

    pub(crate) fn open(&self) -> rusqlite::Result<rusqlite::Connection> {
        let connection = rusqlite::Connection::open(&self.path)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        Ok(connection)
    }

    /// One sync without an accident after everything was healed; whether it moved anything.
    pub(crate) fn sync_healed(&mut self) -> anyhow::Result<bool> {
        let deadline = Instant::now() + HEALING_TIME;
        let mut tries = 0;
        loop {
            tries += 1;
            let run = ProgramRun::from_command(&mut self.command(None))?;
            let outcome = run.outcome();
            self.stage.note(&format!("{} healed: {outcome}", self.name));
            self.stage.sync_ended(&format!("after healing: {outcome}"));
            // With 2 it says: try again later.
            if run.panicked() || !matches!(run.code, Some(0 | 2 | 6)) {
                self.stage
                    .finding(format!("{} healed, but: {run:?}", self.name));
            }
            if matches!(run.code, Some(0 | 6)) {
                self.has_synced = true;
                self.check_identity()?;
                return Ok(moved(&run));
            }
            let in_time = tries < HEALING_SYNCS || Instant::now() < deadline;
            ensure!(in_time, "{} does not heal: {run:?}", self.name);
            std::thread::sleep(POLL * 5);
        }
    }

    /// Gives up what the centre has refused.
    pub(crate) fn discard_refused(&self) -> anyhow::Result<()> {
        let file = self.path.display().to_string();
        self.program.done(&["refused", "discard", &file, "--all"])?;
        Ok(())
    }

    /// Whether the product itself finds the file equal to the centre.
    pub(crate) fn verify(&self) -> anyhow::Result<ProgramRun> {
        let file = self.path.display().to_string();
        ProgramRun::from_command(
            &mut self
                .program
                .command(&["verify", &file, "--json", "--quiet"]),
        )
    }
}

fn piped(command: &mut Command) -> anyhow::Result<Child> {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("a sync does not start")
}

fn is_about_disk(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
    )
}

/// Whether a sync that was done moved a row, a call or an event, or has some to move.
fn moved(run: &ProgramRun) -> bool {
    let Some(report) = run.json() else {
        return true;
    };
    let count = |part: &str, what: &str| report[part][what].as_u64().unwrap_or(1);
    ["inserts", "updates", "deletes"]
        .iter()
        .map(|it| count("uploaded", it))
        .chain(
            ["upserts", "removals"]
                .iter()
                .map(|it| count("downloaded", it)),
        )
        .chain(
            ["answered", "failed", "pending"]
                .iter()
                .map(|it| count("outbox", it)),
        )
        .chain([report["inbox"].as_u64().unwrap_or(1)])
        .any(|it| it > 0)
}

/// Whether accidents that may be going on explain how a sync ended. After healing, see
/// [`Device::sync_healed`], nothing does.
fn is_explained(outcome: &str, accident: SyncAccident) -> bool {
    match outcome {
        "done" | "done, with refused rows" => true,
        "remote_locked" | "sync_in_progress" => true,
        "unreachable"
        | "connection_lost"
        | "timeout"
        | "busy"
        | "handler_away"
        | "shutting_down"
        | "consolidated_unavailable" => true,
        "remote_database" => {
            matches!(accident, SyncAccident::Limited(..) | SyncAccident::DiskFull)
        }
        "ended by a signal" => {
            matches!(
                accident,
                SyncAccident::KilledAfter(_)
                    | SyncAccident::Live(_)
                    | SyncAccident::Limited(_, true)
            )
        }
        _ => false,
    }
}
