//! The server processes, and who starts them again, as a service manager does.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::keeper::Keeper;
use crate::program::Program;
use crate::stage::{POLL, Stage, lock};

/// The exit code of a server whose database is away when it starts.
const DATABASE_AWAY: i32 = 2;
/// Below what systems hand out to outgoing connections, so that none of those takes the port
/// of a server that is down.
const PORTS: std::ops::Range<u16> = 11_000..14_900;

/// A server that always comes back to its two addresses.
#[derive(Debug)]
pub(crate) struct Server {
    number: usize,
    pub(crate) plain_port: u16,
    pub(crate) tls_port: u16,
    configuration: String,
    state: Mutex<State>,
    ends: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    child: Option<Child>,
    /// It has told its addresses.
    has_listened: Arc<AtomicBool>,
    /// We have ended it.
    was_told_to_end: bool,
    /// It is to stay away for so long.
    away: Duration,
}

impl Server {
    pub(crate) fn new(number: usize, configuration: &str) -> anyhow::Result<Server> {
        Ok(Server {
            number,
            plain_port: free_port()?,
            tls_port: free_port()?,
            configuration: configuration.to_owned(),
            state: Mutex::default(),
            ends: AtomicBool::new(false),
        })
    }

    /// Keeps the server running until [`Server::end`].
    pub(crate) fn supervise(
        self: Arc<Self>,
        stage: Arc<Stage>,
        program: Program,
        keeper: Arc<Keeper>,
    ) -> std::thread::JoinHandle<anyhow::Result<()>> {
        std::thread::spawn(move || {
            while !self.ends.load(Ordering::SeqCst) {
                let process = self.launch(&stage, &program)?;
                keeper.watch(process)?;
                self.wait(&stage)?;
                keeper.forget(process)?;
                let away = std::mem::take(&mut lock(&self.state).away);
                std::thread::sleep(away.max(POLL));
            }
            Ok(())
        })
    }

    fn launch(&self, stage: &Stage, program: &Program) -> anyhow::Result<u32> {
        let log = stage.log(&format!("server-{}.log", self.number))?;
        let plain = format!("tcp://127.0.0.1:{}", self.plain_port);
        let tls = format!("tls://127.0.0.1:{}", self.tls_port);
        let arguments = [
            "serve",
            "-c",
            &self.configuration,
            "--listen",
            &plain,
            "--listen",
            &tls,
        ];
        let mut child = program
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("the server does not start")?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let process = child.id();
        let has_listened = Arc::new(AtomicBool::new(false));
        *lock(&self.state) = State {
            child: Some(child),
            has_listened: has_listened.clone(),
            ..State::default()
        };
        std::thread::spawn(move || read_addresses(stdout, &has_listened));
        Ok(process)
    }

    /// Until it has ended. That it ends by itself is a finding, unless it could not start
    /// because its database was away.
    fn wait(&self, stage: &Stage) -> anyhow::Result<()> {
        loop {
            let mut state = lock(&self.state);
            let child = state.child.as_mut().context("a server was launched")?;
            if let Some(status) = child.try_wait()? {
                state.child = None;
                let listened = state.has_listened.load(Ordering::SeqCst);
                let refused = !listened && status.code() == Some(DATABASE_AWAY);
                if refused {
                    stage.fault("server found no database at its start");
                } else if !state.was_told_to_end {
                    stage.finding(format!("server {} ended by itself: {status}", self.number));
                }
                return Ok(());
            }
            drop(state);
            std::thread::sleep(POLL);
        }
    }

    /// Ends the process by a signal; it comes back after `away`. False if there is none.
    pub(crate) fn signal(&self, signal: Signal, away: Duration) -> bool {
        let mut state = lock(&self.state);
        let Some(process) = state.child.as_ref().map(Child::id) else {
            return false;
        };
        state.was_told_to_end = true;
        state.away = away;
        // It is our child and was not waited for, so the number is still its own.
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        process.is_some_and(|it| kill_process(it, signal).is_ok())
    }

    /// Ends the server for good.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.signal(Signal::KILL, Duration::ZERO);
    }
}

/// Reads what the server prints until it ends.
fn read_addresses(stdout: ChildStdout, has_listened: &AtomicBool) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line.starts_with("listening on ") {
            has_listened.store(true, Ordering::SeqCst);
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    use std::sync::atomic::AtomicU16;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let first = (std::process::id() % u32::from(span)) as u16;
    (0..span)
        .map(|_| PORTS.start + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % span)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .context("no port is free")
}
