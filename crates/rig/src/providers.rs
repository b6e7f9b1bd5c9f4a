//! Programs that provide a procedure, and NATS between the servers. Both die; whoever died is
//! started again.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use tidewater_testing::nats::Nats;

use crate::keeper::Keeper;
use crate::program::Program;
use crate::stage::{POLL, Stage, lock};
use crate::world::{PROVIDER, password};

/// A service manager's pause before it starts a program again that ended by itself.
const PAUSE: Duration = Duration::from_millis(500);

/// A program that provides a procedure, wherever it finds a server.
#[derive(Debug)]
pub(crate) struct Provider {
    number: usize,
    server: String,
    child: Mutex<Option<Child>>,
}

impl Provider {
    pub(crate) fn new(number: usize, server: String) -> Provider {
        Provider {
            number,
            server,
            child: Mutex::default(),
        }
    }

    /// Keeps it running until the end of the run: gives it back dead.
    pub(crate) fn supervise(
        self: Arc<Self>,
        stage: Arc<Stage>,
        program: Program,
        keeper: Arc<Keeper>,
    ) -> std::thread::JoinHandle<anyhow::Result<()>> {
        std::thread::spawn(move || {
            while !stage.is_over() {
                let process = self.launch(&stage, &program)?;
                keeper.watch(process)?;
                self.wait(&stage)?;
                keeper.forget(process)?;
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })
    }

    fn launch(&self, stage: &Stage, program: &Program) -> anyhow::Result<u32> {
        let log = stage.log(&self.log())?;
        let arguments = [
            "provide",
            "stamp",
            "--server",
            &self.server,
            "--user",
            PROVIDER,
            "--exec",
            "sleep 0.02; cat",
        ];
        let child = program
            .command(&arguments)
            .env("TIDEWATER_PASSWORD", password(PROVIDER))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("a provider does not start")?;
        let process = child.id();
        *lock(&self.child) = Some(child);
        Ok(process)
    }

    /// Where it writes what happens to it.
    pub(crate) fn log(&self) -> String {
        format!("provider-{}.log", self.number)
    }

    /// Until it has ended; that it gives up is right while nobody can be reached.
    fn wait(&self, stage: &Stage) -> anyhow::Result<()> {
        loop {
            let mut child = lock(&self.child);
            let running = child.as_mut().context("a provider was launched")?;
            if stage.is_over() {
                running.kill()?;
            }
            if running.try_wait()?.is_some() {
                *child = None;
                return Ok(());
            }
            drop(child);
            std::thread::sleep(POLL);
        }
    }

    /// False if there is none at the moment.
    pub(crate) fn kill(&self) -> bool {
        match lock(&self.child).as_mut() {
            // Who waits for it starts another one.
            Some(child) => child.kill().is_ok(),
            None => false,
        }
    }
}

/// NATS between the servers.
pub(crate) struct Post {
    nats: Nats,
}

impl Post {
    pub(crate) fn start() -> anyhow::Result<Post> {
        Ok(Post {
            nats: Nats::start()?,
        })
    }

    pub(crate) fn url(&self) -> String {
        self.nats.url()
    }

    /// It dies, and comes back to its address after a while.
    pub(crate) fn crash(&mut self, away: Duration) -> anyhow::Result<()> {
        self.nats.stop();
        std::thread::sleep(away);
        self.nats.restart()
    }
}
