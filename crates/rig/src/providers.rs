//! Programs that provide a procedure, and NATS between the servers. Both die; whoever died is
//! started again.

use std::time::Duration;

use tidewater_testing::nats::Nats;

use crate::program::Program;
use crate::standing::{Ends, Standing};
use crate::world::{PROVIDER, password};

/// A program that provides a procedure, wherever it finds a server; it gives up while it finds none.
pub(crate) fn provider(program: &Program, number: usize, server: String) -> Standing {
    let program = program.clone();
    Standing::new(format!("provider-{number}"), Ends::Sometimes, move || {
        let arguments = [
            "provide",
            "stamp",
            "--server",
            &server,
            "--user",
            PROVIDER,
            "--exec",
            "sleep 0.02; cat",
        ];
        let mut command = program.command(&arguments);
        command.env("TIDEWATER_PASSWORD", password(PROVIDER));
        command
    })
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
