//! The servers: where each listens, and how it is started.

use tidewater_testing::claim_port;

use crate::program::Program;
use crate::standing::{Ends, Standing};

/// The exit code of a server whose database is away when it starts.
const DATABASE_AWAY: i32 = 2;

/// The addresses of a server, all on 127.0.0.1; it always comes back to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) plain: u16,
    pub(crate) tls: u16,
    pub(crate) web: u16,
    pub(crate) admin: u16,
}

impl Ports {
    pub(crate) fn free() -> anyhow::Result<Ports> {
        Ok(Ports {
            plain: claim_port()?,
            tls: claim_port()?,
            web: claim_port()?,
            admin: claim_port()?,
        })
    }
}

/// The server with this number, and the configuration `server-NUMBER.toml`.
pub(crate) fn server(program: &Program, number: usize, ports: Ports) -> Standing {
    let Ports {
        plain, tls, web, ..
    } = ports;
    let listens = [("tcp", plain), ("tls", tls), ("http", web)];
    let listens = listens.map(|(scheme, port)| format!("--listen={scheme}://127.0.0.1:{port}"));
    let program = program.clone();
    let ends = Ends::AtStart(DATABASE_AWAY, "server found no database at its start");
    Standing::new(format!("server-{number}"), ends, move || {
        let file = format!("server-{number}.toml");
        let mut arguments = vec!["serve", "-c", &file];
        arguments.extend(listens.iter().map(String::as_str));
        program.command(&arguments)
    })
}
