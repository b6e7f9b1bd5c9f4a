//! The servers: where each listens, and how it is started.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context;

use crate::program::Program;
use crate::standing::{Ends, Standing};

/// The exit code of a server whose database is away when it starts.
const DATABASE_AWAY: i32 = 2;
/// Below what systems hand out to outgoing connections, so that none of those takes the port
/// of a program that is down.
const PORTS: std::ops::Range<u16> = 11_000..14_900;

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
            plain: free_port()?,
            tls: free_port()?,
            web: free_port()?,
            admin: free_port()?,
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

pub(crate) fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let first = (std::process::id() % u32::from(span)) as u16;
    (0..span)
        .map(|_| PORTS.start + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % span)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .context("no port is free")
}
