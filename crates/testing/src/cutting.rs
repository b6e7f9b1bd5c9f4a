//! A line that breaks each time when so many bytes have come down: whatever it carries.
//!
//! Owns the sockets and threads. [`crate::proxy`] breaks a connection at one place of its frames;
//! this one understands nothing of what passes, and breaks every connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;

/// See the file.
pub struct CuttingProxy {
    address: SocketAddr,
    line: Arc<Line>,
}

struct Line {
    server: SocketAddr,
    /// What one connection brings down before it breaks.
    carries: AtomicU64,
    passed: AtomicU64,
    cuts: AtomicUsize,
    closing: AtomicBool,
}

impl CuttingProxy {
    /// Listens on a free port and passes on to a server; each connection carries so much.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(server: SocketAddr, carries: u64) -> anyhow::Result<CuttingProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let line = Arc::new(Line {
            server,
            carries: AtomicU64::new(carries),
            passed: AtomicU64::new(0),
            cuts: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let shared = line.clone();
        thread::spawn(move || {
            while let Ok((remote, _)) = listener.accept() {
                if shared.closing.load(Ordering::Relaxed) {
                    return;
                }
                // Who cannot be passed on sees the connection end.
                let _ = pass_on(remote, &shared);
            }
        });
        Ok(CuttingProxy { address, line })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections from now on carry so much.
    pub fn carry(&self, bytes: u64) {
        self.line.carries.store(bytes, Ordering::Relaxed);
    }

    /// What has come down over all connections.
    pub fn passed(&self) -> u64 {
        self.line.passed.load(Ordering::Relaxed)
    }

    /// How many connections have broken.
    pub fn cuts(&self) -> usize {
        self.line.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.line.closing.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(remote: TcpStream, line: &Arc<Line>) -> io::Result<()> {
    let server = TcpStream::connect(line.server)?;
    remote.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from, mut to) = (remote.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Write)
    });
    let line = line.clone();
    thread::spawn(move || {
        let (mut remote, mut server) = (remote, server);
        let mut left = line.carries.load(Ordering::Relaxed);
        let mut piece = vec![0; 16 << 10];
        while let Ok(count) = server.read(&mut piece) {
            if count == 0 {
                let _ = remote.shutdown(Shutdown::Write);
                return;
            }
            let through = left.min(count as u64);
            left -= through;
            line.passed.fetch_add(through, Ordering::Relaxed);
            if remote.write_all(&piece[..through as usize]).is_err() {
                break;
            }
            if left == 0 {
                line.cuts.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // Whichever side is gone already is broken enough.
        let _ = remote.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    Ok(())
}
