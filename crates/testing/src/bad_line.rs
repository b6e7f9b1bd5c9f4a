//! A line that breaks each connection when so many bytes have come down, or goes mute: what is sent
//! then is taken and never arrives, and nobody is told. It passes the bytes of any carrier.
//!
//! [`crate::proxy`] does something at one place of the frames that pass; this one understands nothing
//! of them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;

/// A line to a server on loopback.
pub struct BadLine {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    acceptor: Option<JoinHandle<()>>,
}

struct State {
    /// Both ends of each connection.
    connections: Vec<[TcpStream; 2]>,
    /// Connections before this one are mute.
    mute_before: usize,
    /// What each connection brings down before it breaks.
    carries: u64,
    passed: u64,
    cuts: usize,
    closing: bool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BadLine {
    /// Listens on a free port and passes on to a server; nothing is wrong with it yet.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(server: SocketAddr) -> anyhow::Result<BadLine> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            connections: Vec::new(),
            mute_before: 0,
            carries: u64::MAX,
            passed: 0,
            cuts: 0,
            closing: false,
        }));
        let acceptor = thread::spawn({
            let state = state.clone();
            move || accept_all(&listener, server, &state)
        });
        Ok(BadLine {
            address,
            state,
            acceptor: Some(acceptor),
        })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections from now on bring down so much.
    pub fn carry(&self, bytes: u64) {
        lock(&self.state).carries = bytes;
    }

    /// Nothing passes any more over the connections that there are.
    pub fn mute(&self) {
        let mut state = lock(&self.state);
        state.mute_before = state.connections.len();
    }

    /// What has come down over all connections.
    pub fn passed(&self) -> u64 {
        lock(&self.state).passed
    }

    /// How many connections have broken.
    pub fn cuts(&self) -> usize {
        lock(&self.state).cuts
    }
}

impl Drop for BadLine {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.closing = true;
        for end in state.connections.iter().flatten() {
            // One that has ended already is closed.
            let _ = end.shutdown(Shutdown::Both);
        }
        drop(state);
        // Wakes the acceptor, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &TcpListener, server: SocketAddr, state: &Arc<Mutex<State>>) {
    let mut pumps = Vec::new();
    while let Ok((near, _)) = listener.accept() {
        if lock(state).closing {
            break;
        }
        // Who cannot be passed on sees the connection end.
        if let Ok(both) = connect(near, server, state) {
            pumps.extend(both);
        }
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

fn connect(
    near: TcpStream,
    server: SocketAddr,
    state: &Arc<Mutex<State>>,
) -> std::io::Result<[JoinHandle<()>; 2]> {
    let far = TcpStream::connect(server)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let kept = [near.try_clone()?, far.try_clone()?];
    let (from_far, to_near) = (far.try_clone()?, near.try_clone()?);
    let (number, carries) = {
        let mut state = lock(state);
        state.connections.push(kept);
        (state.connections.len() - 1, state.carries)
    };
    let pump = |from, to, left| {
        let pump = Pump {
            number,
            left,
            state: state.clone(),
        };
        thread::spawn(move || pump.run(from, to))
    };
    Ok([
        pump(near, far, None),
        pump(from_far, to_near, Some(carries)),
    ])
}

/// One direction of a connection.
struct Pump {
    number: usize,
    /// What it brings before it breaks, on the way down.
    left: Option<u64>,
    state: Arc<Mutex<State>>,
}

impl Pump {
    fn is_mute(&self) -> bool {
        let state = lock(&self.state);
        self.number < state.mute_before && !state.closing
    }

    /// Passes bytes on until one side ends. Where the line is mute, also the end is not told.
    fn run(mut self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if self.is_mute() {
                continue;
            }
            let through = self.left.map_or(count, |left| {
                usize::try_from(left).unwrap_or(usize::MAX).min(count)
            });
            let is_written = to.write_all(&piece[..through]).is_ok();
            let mut is_cut = false;
            if let Some(left) = &mut self.left {
                *left -= through as u64;
                is_cut = *left == 0;
                let mut state = lock(&self.state);
                state.passed += through as u64;
                state.cuts += usize::from(is_cut);
            }
            if is_cut || !is_written {
                // Whichever side is gone already is broken enough.
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
        if !self.is_mute() {
            // The other direction may still have something to say.
            let _ = to.shutdown(Shutdown::Write);
        }
    }
}
