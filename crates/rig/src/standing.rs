//! Programs that are to be there all the time, and who starts them again, as a service manager does.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::keeper::Keeper;
use crate::stage::{POLL, Stage, lock};

/// A service manager's pause before it starts a program again that gave up.
const PAUSE: Duration = Duration::from_millis(500);

/// A program that always comes back.
pub(crate) struct Standing {
    name: String,
    command: Box<dyn Fn() -> Command + Send + Sync>,
    ends: Ends,
    state: Mutex<State>,
}

/// When it is right that a program ends by itself; else it is a finding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Ends {
    Never,
    /// With this exit code before it has said anything; what that is called.
    AtStart(i32, &'static str),
    /// It gives up, and is started again after a pause.
    Sometimes,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    /// It has told where it listens.
    has_spoken: Arc<AtomicBool>,
    /// We have ended it.
    was_told_to_end: bool,
    /// It is to stay away for so long.
    away: Duration,
}

impl Standing {
    pub(crate) fn new(
        name: impl Into<String>,
        ends: Ends,
        command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Standing {
        Standing {
            name: name.into(),
            command: Box::new(command),
            ends,
            state: Mutex::default(),
        }
    }

    /// Where it writes what happens to it.
    pub(crate) fn log(&self) -> String {
        format!("{}.log", self.name)
    }

    /// Keeps it running until the end of the run.
    pub(crate) fn supervise(
        self: &Arc<Self>,
        stage: &Arc<Stage>,
        keeper: &Arc<Keeper>,
    ) -> JoinHandle<anyhow::Result<()>> {
        let (standing, stage, keeper) = (self.clone(), stage.clone(), keeper.clone());
        std::thread::spawn(move || {
            while !stage.is_over() {
                let process = standing.launch(&stage)?;
                keeper.watch(process)?;
                standing.wait(&stage)?;
                keeper.forget(process)?;
                let away = std::mem::take(&mut lock(&standing.state).away);
                let least = if standing.ends == Ends::Sometimes {
                    PAUSE
                } else {
                    POLL
                };
                std::thread::sleep(away.max(least));
            }
            Ok(())
        })
    }

    fn launch(&self, stage: &Stage) -> anyhow::Result<u32> {
        let mut child = (self.command)()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stage.log(&self.log())?)
            .spawn()
            .with_context(|| format!("{} does not start", self.name))?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let process = child.id();
        let has_spoken = Arc::new(AtomicBool::new(false));
        *lock(&self.state) = State {
            child: Some(child),
            has_spoken: has_spoken.clone(),
            ..State::default()
        };
        std::thread::spawn(move || listen_to(stdout, &has_spoken));
        Ok(process)
    }

    /// Until it has ended.
    fn wait(&self, stage: &Stage) -> anyhow::Result<()> {
        loop {
            let mut state = lock(&self.state);
            let child = state.child.as_mut().context("it was launched")?;
            if stage.is_over() {
                child.kill()?;
                child.wait()?;
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                state.child = None;
                if !state.was_told_to_end {
                    self.ended_by_itself(stage, status, state.has_spoken.load(Ordering::SeqCst));
                }
                return Ok(());
            }
            drop(state);
            std::thread::sleep(POLL);
        }
    }

    fn ended_by_itself(&self, stage: &Stage, status: ExitStatus, had_spoken: bool) {
        match self.ends {
            Ends::Sometimes => {}
            Ends::AtStart(code, fault) if !had_spoken && status.code() == Some(code) => {
                stage.fault(fault);
            }
            _ => stage.finding(format!("{} ended by itself: {status}", self.name)),
        }
    }

    pub(crate) fn kill(&self, away: Duration) -> bool {
        self.signal(Signal::KILL, away)
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
}

/// Reads what a program prints until it ends.
fn listen_to(stdout: ChildStdout, has_spoken: &AtomicBool) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line.starts_with("listening on ") {
            has_spoken.store(true, Ordering::SeqCst);
        }
    }
}
