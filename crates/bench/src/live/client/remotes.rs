//! Remotes that sync, that are live, and that wait.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prost::Message as _;
use tempfile::TempDir;
use tidewater_carrier::{Carrier, CompressionOptions, DialOptions, ReceiveOutcome, ServerUrl};
use tidewater_client::{LiveEvent, LiveOptions, Remote, SyncReason};
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Call, CallKind};
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{Now, ProofKind, SessionOptions, SessionOutcome as SyncOutcome};
use tidewater_remote::spool::{MemorySpool, NoDownloadStore};
use tidewater_remote::{RemoteConnection, SyncDirection, VerifyMode};
use tidewater_server::Environment;

use super::super::events::ROWS;
use super::{Job, JobOutcome};
use crate::driver::{edit, employee, folder, user};
use crate::options::FilesPlace;
use crate::processes::raise_open_files;
use crate::report::TimedOperation;
use crate::server::PUBLICATION;

/// Only touched pages count.
const STACK_BYTES: usize = 512 << 10;

/// Remotes that sync for the first time at once.
const BEGINNING_AT_ONCE: u32 = 16;

/// Files of a live remote: its own, SQLite's two beside it, what it receives, a socket.
const FILES_EACH: u64 = 6;
const OTHER_FILES: u64 = 64;

/// How long the beginning takes when all have come.
const SETTLES: Duration = Duration::from_secs(1);

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(job: &Job, folder: &Path, number: u32) -> anyhow::Result<Remote> {
    let mut remote = Remote::open(path(folder, number))?;
    remote.subscribe(&job.server, &user(number), &[PUBLICATION])?;
    remote.set_password(job.password.clone());
    Ok(remote)
}

fn path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{}.db", user(number)))
}

/// Remotes that have synced for the first time.
pub(super) struct SyncedRemotes {
    remotes: Vec<Remote>,
    folder: TempDir,
}

impl SyncedRemotes {
    pub(super) fn start(job: &Job, remotes: u32) -> anyhow::Result<SyncedRemotes> {
        let folder = folder(&FilesPlace::Memory)?;
        let synced = (0..remotes).map(|number| {
            let mut remote = open(job, folder.path(), number)?;
            remote.sync(&mut |_| ControlFlow::Continue(()))?;
            Ok(remote)
        });
        Ok(SyncedRemotes {
            remotes: synced.collect::<anyhow::Result<_>>()?,
            folder,
        })
    }

    pub(super) fn run(self, job: &Job) -> anyhow::Result<JobOutcome> {
        let begun = Instant::now();
        let length = Duration::from_secs_f64(job.seconds);
        let threads = (0..).zip(self.remotes).map(|(number, mut remote)| {
            let path = path(self.folder.path(), number);
            thread::spawn(move || -> anyhow::Result<Vec<f64>> {
                let mut times = Vec::new();
                while begun.elapsed() < length {
                    let done = times.len() as u32;
                    edit(&path, employee(number), TimedOperation::Update, ROWS, done)?;
                    let started = Instant::now();
                    remote.sync(&mut |_| ControlFlow::Continue(()))?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                }
                Ok(times)
            })
        });
        let threads: Vec<JoinHandle<_>> = threads.collect();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(joined(thread)?);
        }
        Ok(JobOutcome::of_times(times, begun.elapsed()))
    }
}

fn joined<T>(thread: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    let joined = thread.join();
    joined.map_err(|_| anyhow::anyhow!("a thread has panicked"))?
}

/// Remotes that stay in sync, a thread each.
pub(super) struct Live {
    stop: Arc<AtomicBool>,
    told: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    folder: TempDir,
}

impl Live {
    /// Returns when all are live.
    pub(super) fn start(job: &Job, first: u32, remotes: u32) -> anyhow::Result<Live> {
        raise_open_files(u64::from(remotes) * FILES_EACH + OTHER_FILES);
        let folder = folder(&FilesPlace::Memory)?;
        let mut live = Live {
            stop: Arc::default(),
            told: Arc::default(),
            threads: Vec::new(),
            folder,
        };
        let (sender, receiver) = mpsc::channel();
        let mut arrived = 0;
        for started in 0..remotes {
            let mut remote = open(job, live.folder.path(), first + started)?;
            let (stop, told, sender) = (live.stop.clone(), live.told.clone(), sender.clone());
            let stay = move || -> anyhow::Result<()> {
                let mut is_live = false;
                let result = remote.live(&LiveOptions::default(), &mut |event| {
                    if let LiveEvent::Synced { why, .. } = event {
                        if !std::mem::replace(&mut is_live, true) {
                            // If nobody waits any more, it is told to stop.
                            let _ = sender.send(());
                        }
                        told.fetch_add(u64::from(*why == SyncReason::Told), Ordering::Relaxed);
                    }
                    match stop.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                Ok(result?)
            };
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            live.threads.push(thread.spawn(stay)?);
            let begun = started + 1;
            let is_last = begun == remotes;
            while begun - arrived >= BEGINNING_AT_ONCE || is_last && arrived < remotes {
                let came = receiver.recv_timeout(PATIENCE);
                if came.is_err() {
                    live.stop()?;
                    bail!("only {arrived} of {remotes} remotes came to be live");
                }
                arrived += 1;
            }
        }
        // Whoever came before the server looked for the first time is told to be sure.
        thread::sleep(SETTLES);
        live.told.store(0, Ordering::Relaxed);
        Ok(live)
    }

    pub(super) fn stop(self) -> anyhow::Result<JobOutcome> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            joined(thread)?;
        }
        let told = self.told.load(Ordering::Relaxed);
        self.folder.close()?;
        Ok(JobOutcome::counted(told, Duration::ZERO))
    }
}

/// A connection of a remote whose file somebody else has by now.
pub(super) struct Idle {
    carrier: Carrier,
    connection: RemoteConnection,
    begun: Instant,
}

/// Connections that have synced one and the same file, one after the other, and have asked to be
/// told when something changes.
pub(super) fn idle(job: &Job, remotes: u32) -> anyhow::Result<Vec<Idle>> {
    raise_open_files(u64::from(remotes) + OTHER_FILES);
    let folder = folder(&FilesPlace::Memory)?;
    let mut first = open(job, folder.path(), 0)?;
    if let Some(ca_file) = &job.ca_file {
        first.set_ca_file(Some(ca_file))?;
    }
    first.sync(&mut |_| ControlFlow::Continue(()))?;
    drop(first);
    let url: ServerUrl = job.server.parse()?;
    let mut database = RemoteDatabase::open(&path(folder.path(), 0))?;
    let mut all = Vec::with_capacity(remotes as usize);
    for _ in 0..remotes {
        let idle;
        (idle, database) = Idle::start(&url, job.ca_file.as_deref(), database)?;
        all.push(idle);
    }
    Ok(all)
}

impl Idle {
    fn start(
        url: &ServerUrl,
        ca_file: Option<&Path>,
        database: RemoteDatabase,
    ) -> anyhow::Result<(Idle, RemoteDatabase)> {
        let options = DialOptions {
            certificate: None,
            ca_file,
            pin: None,
            insecure: false,
            proxy: None,
            compression: CompressionOptions::default(),
            timeout: PATIENCE,
        };
        let begun = Instant::now();
        let mut idle = Idle {
            carrier: Carrier::dial(url, &options, &mut || ControlFlow::Continue(()))?,
            connection: RemoteConnection::dial("bench", PATIENCE, now(begun)),
            begun,
        };
        let mut seed = [0; 32];
        Environment::real().randomness.fill(&mut seed)?;
        let options = SessionOptions {
            direction: SyncDirection::Both,
            verify: VerifyMode::default(),
            user_proof: None,
            server: None,
            other_centre: false,
            adopt: None,
            first_proof: ProofKind::Token,
            spool: Box::new(MemorySpool::default()),
            keep: Box::new(NoDownloadStore),
        };
        idle.connection.sync(database, options, seed);
        idle.turn_while(|it| it.connection.is_syncing())?;
        let ended = idle.connection.end_sync();
        let (database, outcome) = ended.context("the sync has no end")?;
        match outcome {
            SyncOutcome::Done(_) => {}
            other => bail!("a remote does not sync: {other:?}"),
        }
        let call = Call {
            procedure: "tidewater.live".into(),
            ..Call::default()
        };
        idle.connection.send_call(Message {
            id: 1,
            deadline_ms: 0,
            flags: CallKind::Call as u8,
            payload: call.encode_to_vec().into(),
        })?;
        let mut answer = None;
        idle.turn_while(|it| {
            answer = it.connection.poll_call();
            answer.is_none()
        })?;
        let kind = answer.and_then(|it| CallKind::from_flags(it.flags));
        anyhow::ensure!(
            matches!(kind, Some(CallKind::Answer)),
            "the server does not let the remote be live"
        );
        // What is sent later is the server's pings, and nobody answers: it is long over by then.
        Ok((idle, database))
    }

    /// Sends and receives.
    fn turn_while(&mut self, mut goes_on: impl FnMut(&mut Idle) -> bool) -> anyhow::Result<()> {
        while goes_on(self) {
            while self.carrier.takes_output()
                && let Some(bytes) = self.connection.poll_transmit()
            {
                self.carrier.push(bytes);
                self.carrier.send(true)?;
            }
            let (connection, now) = (&mut self.connection, now(self.begun));
            let mut handle = |bytes: &[u8]| connection.handle_bytes(bytes, now);
            match self
                .carrier
                .receive(Some(Duration::from_millis(1)), &mut handle)?
            {
                ReceiveOutcome::Nothing | ReceiveOutcome::Bytes => {}
                ReceiveOutcome::End(_) => bail!("the server has closed a connection"),
            }
            if self.carrier.has_output() {
                self.carrier.send(true)?;
            }
            self.connection.handle_timeout(now);
            self.connection.work(now);
            anyhow::ensure!(
                self.begun.elapsed() < PATIENCE,
                "the server does not answer"
            );
        }
        Ok(())
    }
}

fn now(begun: Instant) -> Now {
    Now {
        ticks_ms: begun.elapsed().as_millis() as u64,
        unix_ms: Environment::real().clock.now_ms(),
    }
}
