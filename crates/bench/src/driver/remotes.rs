//! The remotes of a driver: real files, real syncs, a thread for each that is at it.
//!
//! A remote is open only while it is at something, so ten thousand of them cost ten thousand
//! files on the disk between two gates, and nothing else; unless they are to keep their files open.

use std::collections::HashMap;
use std::fs;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tidewater_carrier::{Compression, CompressionOptions};
use tidewater_client::{self as client, Remote, Report, SyncDirection, SyncPhase, SyncProgress};
use tidewater_purchase::FIRST_EMP_ID;

use super::edits::{edit, replay};
use super::line::Relay;
use crate::error::BadInput;
use crate::gate::{
    Aim, GateStep, Group, GroupReport, MovedRows, Retry, Setup, StepReport, Sync, Task,
};
use crate::processes::{monotonic_ns, own_cpu_seconds, raise_open_files};
use crate::report::{Phases, TimedOperation};

/// Only touched pages count; SQLite needs some.
const STACK_BYTES: usize = 512 << 10;
/// First syncs at once: their passwords are checked a few at a time anyway.
const BEGINNING_AT_ONCE: usize = 16;
/// Files that are written at once, between gates.
const EDITING_AT_ONCE: usize = 4;
/// What a remote that syncs has open: its file, SQLite's two beside it, what it receives, a
/// socket.
const FILES_EACH: u64 = 5;
/// What else a driver has open.
const OTHER_FILES: u64 = 64;
/// How long a server may be silent: it has thousands of remotes.
const TIMEOUT: Duration = Duration::from_secs(1_800);
/// How long remotes change and sync again at most.
const LONGEST_CHURN: Duration = Duration::from_secs(1_000_000);
/// Behind the certificate: how often it was there for the first time.
const TIMES: &str = "# ";
/// How long a server may take until it can be reached through a relay.
const REACHABLE_AFTER: Duration = Duration::from_secs(20);
/// How often a thread that waits looks whether it is still to wait.
const TICK: Duration = Duration::from_millis(100);

/// The user of a remote.
pub(crate) fn user(number: u32) -> String {
    format!("b{number}")
}

/// The `emp_id` of a remote: its partition.
pub(crate) fn employee(number: u32) -> i32 {
    FIRST_EMP_ID + number as i32
}

/// How many remotes can sync at once in a process that may open so many files.
pub(crate) fn room(open_files: u64) -> u64 {
    (open_files.saturating_sub(OTHER_FILES) / FILES_EACH).max(1)
}

/// Where the threads of a step wait, and by what they are told to give up.
#[derive(Default)]
pub(super) struct Gate {
    /// When it was opened, and the driver's processor time until then.
    opened: Mutex<Option<(Instant, f64)>>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Gate {
    pub(super) fn open(&self) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = Some((Instant::now(), own_cpu_seconds()));
        self.changed.notify_all();
    }

    /// Whoever waits or syncs gives up.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until it opens; none if that is not to be expected any more.
    fn wait(&self) -> Option<(Instant, f64)> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        while opened.is_none() && !self.is_closed() {
            let waited = self.changed.wait_timeout(opened, TICK);
            opened = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        opened.filter(|_| !self.is_closed())
    }

    /// Sleeps, unless it is closed meanwhile.
    fn sleep(&self, duration: Duration) {
        let until = Instant::now() + duration;
        while !self.is_closed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(TICK));
        }
    }
}

/// A driver's share of the remotes.
pub(super) struct Share {
    folder: PathBuf,
    setup: Setup,
    server: SocketAddr,
    /// Remotes that keep their files open until their next sync.
    open: Mutex<HashMap<u32, Remote>>,
}

/// A group of a step, while it is done.
struct GroupInProgress<'a> {
    group: &'a Group,
    remotes: Vec<u32>,
    next: AtomicUsize,
    relay: Option<Relay>,
    report: Mutex<GroupReport>,
}

impl Share {
    pub(super) fn new(folder: PathBuf, setup: Setup, server: SocketAddr) -> anyhow::Result<Share> {
        anyhow::ensure!(setup.drivers > 0, "there are no drivers");
        Ok(Share {
            folder,
            setup,
            server,
            open: Mutex::default(),
        })
    }

    /// Does a step: `ready` is called when all wait for the gate.
    pub(super) fn step(
        &self,
        step: &GateStep,
        gate: &Gate,
        ready: &(dyn Fn() + std::marker::Sync),
    ) -> anyhow::Result<StepReport> {
        let doing = step.groups.iter().map(|group| self.doing(group));
        let doing: Vec<GroupInProgress<'_>> = doing.collect::<anyhow::Result<_>>()?;
        let threads = |doing: &GroupInProgress<'_>| {
            let most = match doing.group.task {
                Task::Begin { timed: false } => BEGINNING_AT_ONCE,
                Task::Edit { .. } | Task::Replay { .. } | Task::Aim(_) => EDITING_AT_ONCE,
                Task::Begin { timed: true } | Task::Sync(_) | Task::Churn { .. } => {
                    step.at_once.map_or(usize::MAX, |most| most as usize)
                }
            };
            doing.remotes.len().min(most.max(1))
        };
        let all: usize = doing.iter().map(threads).sum();
        for doing in &doing {
            self.forget(doing)?;
        }
        let open = match self.setup.keep_open {
            true => self.begun(step),
            false => 0,
        };
        make_room(open, all as u64)?;
        let arrived = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        thread::scope(|scope| {
            for doing in &doing {
                for _ in 0..threads(doing) {
                    let (arrived, failed) = (&arrived, &failed);
                    let work = move || {
                        if arrived.fetch_add(1, Ordering::Relaxed) + 1 == all {
                            ready();
                        }
                        if let Err(error) = self.work(doing, gate) {
                            gate.close();
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            failed.get_or_insert(error);
                        }
                    };
                    let thread = thread::Builder::new().stack_size(STACK_BYTES);
                    if let Err(error) = thread.spawn_scoped(scope, work) {
                        gate.close();
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert(no_thread(&error, all));
                        return;
                    }
                }
            }
            if all == 0 {
                ready();
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        // Without remotes nobody has waited for it yet.
        let (_, cpu_before) = gate.wait().context("the step was given up")?;
        let report = |doing: GroupInProgress<'_>| {
            let report = doing.report.into_inner();
            report.unwrap_or_else(PoisonError::into_inner)
        };
        Ok(StepReport {
            groups: doing.into_iter().map(report).collect(),
            cpu_seconds: own_cpu_seconds() - cpu_before,
        })
    }

    fn doing<'a>(&self, group: &'a Group) -> anyhow::Result<GroupInProgress<'a>> {
        let ours = |number: &u32| number % self.setup.drivers == self.setup.driver;
        let relay = group.line.map(|speed| Relay::start(self.server, speed));
        Ok(GroupInProgress {
            group,
            remotes: (group.first..group.first + group.count)
                .filter(ours)
                .collect(),
            next: AtomicUsize::new(0),
            relay: relay.transpose()?,
            report: Mutex::default(),
        })
    }

    /// One thread of a group: takes one remote after the other.
    fn work(&self, doing: &GroupInProgress<'_>, gate: &Gate) -> anyhow::Result<()> {
        let Some((opened, _)) = gate.wait() else {
            return Ok(());
        };
        gate.sleep(Duration::from_millis(doing.group.delay_ms));
        let mut mine = GroupReport::default();
        while !gate.is_closed()
            && let Some(&number) = doing
                .remotes
                .get(doing.next.fetch_add(1, Ordering::Relaxed))
        {
            let done = self.one(doing, number, gate, opened);
            mine.add(done.with_context(|| format!("remote {}", user(number)))?);
        }
        let mut report = doing.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.add(mine);
        Ok(())
    }

    fn one(
        &self,
        doing: &GroupInProgress<'_>,
        number: u32,
        gate: &Gate,
        opened: Instant,
    ) -> anyhow::Result<GroupReport> {
        let path = self.path(number);
        match &doing.group.task {
            Task::Begin { .. } => self.begin(number, gate),
            Task::Aim(aim) => self.aim(number, aim, gate),
            Task::Replay { tables, remotes } => {
                replay(&path, tables, number, *remotes)?;
                Ok(GroupReport::default())
            }
            Task::Edit { operation, rows } => {
                edit(&path, employee(number), *operation, *rows, 0)?;
                Ok(GroupReport::default())
            }
            Task::Sync(sync) => {
                let relay = doing.relay.as_ref().map(Relay::address);
                self.sync(number, sync, relay, gate)
            }
            Task::Churn { rows, seconds } => {
                let time = Duration::try_from_secs_f64(*seconds);
                let time = time.ok().filter(|it| *it <= LONGEST_CHURN);
                let until = opened + time.context("the supervisor names no time")?;
                let sync = Sync {
                    expected: Some(MovedRows::by(TimedOperation::Update, u64::from(*rows))),
                    ..Sync::default()
                };
                let mut report = GroupReport::default();
                let mut times = 0;
                while Instant::now() < until && !gate.is_closed() {
                    edit(
                        &path,
                        employee(number),
                        TimedOperation::Update,
                        *rows,
                        times,
                    )?;
                    report.add(self.sync(number, &sync, None, gate)?);
                    times += 1;
                }
                Ok(report)
            }
        }
    }

    /// How many remotes of this driver there are after a step, as far as the step tells.
    fn begun(&self, step: &GateStep) -> u64 {
        let last = step.groups.iter().map(|it| it.first + it.count).max();
        u64::from(last.unwrap_or(0).div_ceil(self.setup.drivers))
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u32, Remote>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remote(&self, number: u32) -> anyhow::Result<Remote> {
        match self.open().remove(&number) {
            Some(remote) => Ok(remote),
            None => Ok(Remote::open(self.path(number))?),
        }
    }

    /// A remote has synced.
    fn rest(&self, number: u32, remote: Remote) {
        if self.setup.keep_open {
            self.open().insert(number, remote);
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{}.db", user(number)))
    }

    /// Has nothing left that TLS could go on from, where a step wants that: what the process keeps
    /// belongs to a file with authorities, as it is.
    fn forget(&self, doing: &GroupInProgress<'_>) -> anyhow::Result<()> {
        let afresh = matches!(&doing.group.task, Task::Sync(sync) if sync.afresh);
        for &number in doing.remotes.iter().filter(|_| afresh) {
            let file = self.certificate(number);
            let text = fs::read_to_string(&file)?;
            let (text, times) = text.rsplit_once(TIMES).unwrap_or((&text, "0"));
            let times: u64 = times.trim().parse()?;
            fs::write(&file, format!("{text}{TIMES}{}\n", times + 1))?;
        }
        Ok(())
    }

    fn certificate(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{}.pem", user(number)))
    }

    /// The first sync of a remote.
    fn begin(&self, number: u32, gate: &Gate) -> anyhow::Result<GroupReport> {
        let mut syncing = WatchedSync::start(gate, Retry::Advised);
        let mut remote = self.remote(number)?;
        let server = format!("tcp://{}", self.server);
        let publications: Vec<&str> = self.setup.publications.iter().map(String::as_str).collect();
        remote.subscribe(&server, &self.user(number), &publications)?;
        for (name, value) in &self.setup.parameters {
            remote.set_parameter(name, Some(value))?;
        }
        remote.set_password(self.setup.password.clone());
        let report = syncing.run(&mut remote)?;
        self.rest(number, remote);
        Ok(syncing.report(&report))
    }

    /// A sync over another way, which the file remembers.
    fn aim(&self, number: u32, aim: &Aim, gate: &Gate) -> anyhow::Result<GroupReport> {
        let mut remote = self.remote(number)?;
        let own = self.server.ip().to_string();
        let host = aim.host.as_ref().unwrap_or(&own);
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        let server = format!("{}://{host}:{}", aim.scheme, aim.port);
        remote.subscribe(&server, &self.user(number), &[])?;
        if let Some(certificate) = &aim.certificate {
            // A set-up of TLS belongs to the file that it was made of.
            let file = match aim.shares {
                true => self.folder.join("ca.pem"),
                false => self.certificate(number),
            };
            replace(&file, certificate, number)?;
            remote.set_ca_file(Some(&file))?;
        }
        remote.set_compression(packing(&aim.compression)?);
        let until = Instant::now() + REACHABLE_AFTER;
        let report = loop {
            let mut syncing = WatchedSync::start(gate, Retry::Advised);
            match syncing.run(&mut remote) {
                Ok(report) => break syncing.report(&report),
                // A relay that has just been told of the server.
                Err(error) if Instant::now() >= until || gate.is_closed() => return Err(error),
                Err(_) => gate.sleep(TICK),
            }
        };
        self.rest(number, remote);
        let moved = report.moved;
        anyhow::ensure!(moved == MovedRows::default(), "a sync moved {moved:?}");
        Ok(report)
    }

    fn user(&self, number: u32) -> String {
        let common = self.setup.user.as_ref();
        common.cloned().unwrap_or_else(|| user(number))
    }

    fn sync(
        &self,
        number: u32,
        sync: &Sync,
        relay: Option<SocketAddr>,
        gate: &Gate,
    ) -> anyhow::Result<GroupReport> {
        let mut syncing = WatchedSync::start(gate, sync.retry);
        let mut remote = self.remote(number)?;
        remote.set_direction(match sync.upload_only {
            true => SyncDirection::UploadOnly,
            false => SyncDirection::Both,
        });
        if let Some(compression) = &sync.compression {
            remote.set_compression(packing(compression)?);
        }
        let home = sync.home.then_some(self.server);
        if let Some(address) = relay.or(home) {
            // It subscribes to all that it is to already.
            remote.subscribe(&format!("tcp://{address}"), &self.user(number), &[])?;
        }
        let report = syncing.run(&mut remote)?;
        self.rest(number, remote);
        let moved = moved(&report);
        if let Some(expected) = sync.expected
            && (moved != expected || report.conflicts + report.refused > 0)
        {
            bail!(
                "the sync moved {moved:?} with {} conflicts and {} refused rows, and should have \
                 moved {expected:?}",
                report.conflicts,
                report.refused
            );
        }
        Ok(syncing.report(&report))
    }
}

/// One sync, watched.
struct WatchedSync<'a> {
    gate: &'a Gate,
    retry: Retry,
    start_ns: u64,
    end_ns: u64,
    phases: Phases,
    /// What it is at, since when; none while the file is opened.
    at: Option<SyncPhase>,
    since: Instant,
}

impl<'a> WatchedSync<'a> {
    fn start(gate: &'a Gate, retry: Retry) -> WatchedSync<'a> {
        WatchedSync {
            gate,
            retry,
            start_ns: monotonic_ns(),
            end_ns: 0,
            phases: Phases::default(),
            at: None,
            since: Instant::now(),
        }
    }

    /// Syncs; comes back as often as the server sends the remote away.
    fn run(&mut self, remote: &mut Remote) -> anyhow::Result<Report> {
        remote.set_timeout(TIMEOUT);
        // The supervisor's word is that the network is trusted.
        remote.set_insecure(true);
        remote.set_retry(match self.retry {
            Retry::Advised => client::RetryPolicy::AsAdvised { limit: None },
            Retry::FixedMs(delay) => client::RetryPolicy::Fixed {
                delay: Duration::from_millis(delay),
                limit: None,
            },
        });
        self.enter(Some(SyncPhase::Connecting));
        let report = remote.sync(&mut |progress| self.watch(progress))?;
        self.end_ns = monotonic_ns();
        self.enter(Some(SyncPhase::Done));
        Ok(report)
    }

    fn report(self, report: &Report) -> GroupReport {
        GroupReport {
            starts_ns: vec![self.start_ns],
            ends_ns: vec![self.end_ns],
            moved: moved(report),
            conflicts: report.conflicts,
            refused: report.refused,
            retries: report.retries,
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            phases: self.phases,
        }
    }

    fn watch(&mut self, progress: &SyncProgress) -> ControlFlow<()> {
        let is_another = |at: SyncPhase| discriminant(&at) != discriminant(&progress.phase);
        if self.at.is_none_or(is_another) {
            self.enter(Some(progress.phase));
        }
        if self.gate.is_closed() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn enter(&mut self, phase: Option<SyncPhase>) {
        let now = Instant::now();
        let phases = &mut self.phases;
        let spent = match self.at {
            None => &mut phases.open,
            Some(SyncPhase::Connecting) => &mut phases.connect,
            Some(SyncPhase::Uploading | SyncPhase::Comparing) => &mut phases.upload,
            Some(SyncPhase::Waiting { .. } | SyncPhase::WaitingForHandler) => &mut phases.wait,
            Some(SyncPhase::Downloading) => &mut phases.download,
            Some(SyncPhase::Retrying { .. }) => &mut phases.retry,
            Some(_) => &mut phases.apply,
        };
        *spent += (now - self.since).as_secs_f64();
        self.at = phase;
        self.since = now;
    }
}

/// How a bench packs.
fn packing(compression: &str) -> anyhow::Result<CompressionOptions> {
    Ok(CompressionOptions {
        compression: compression.parse::<Compression>()?,
        level: None,
    })
}

/// Puts a text in the place of a file, while others may read that.
fn replace(file: &Path, text: &str, number: u32) -> anyhow::Result<()> {
    if fs::read_to_string(file).is_ok_and(|it| it == text) {
        return Ok(());
    }
    let new = file.with_extension(format!("{number}.new"));
    fs::write(&new, text)?;
    Ok(fs::rename(new, file)?)
}

fn moved(report: &Report) -> MovedRows {
    MovedRows {
        inserts: report.uploaded.inserts,
        updates: report.uploaded.updates,
        deletes: report.uploaded.deletes,
        upserts: report.downloaded.upserts,
        removals: report.downloaded.removals,
    }
}

/// Room for so many remotes whose files stay open, and so many that sync at once.
fn make_room(kept: u64, at_once: u64) -> anyhow::Result<()> {
    let open = kept.max(at_once);
    let wanted = open * FILES_EACH + OTHER_FILES;
    let Some(open_files) = raise_open_files(wanted).filter(|most| *most < wanted) else {
        return Ok(());
    };
    let less = match kept {
        0 => format!("let fewer sync at once (--at-once {})", room(open_files)),
        _ => "leave --keep-open out".into(),
    };
    Err(BadInput::error(
        format!(
            "{open} remotes that are open at once in one driver need {wanted} open files, and the \
             system's limit is {open_files}"
        ),
        format!("raise it (ulimit -n {wanted}), take more drivers, or {less}"),
    ))
}

fn no_thread(error: &std::io::Error, all: usize) -> anyhow::Error {
    BadInput::error(
        format!("the system has no threads for {all} remotes at once: {error}"),
        "raise its limit of processes (ulimit -u), or let fewer remotes sync at once (--at-once)",
    )
}
