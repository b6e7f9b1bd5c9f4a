//! A line that can go mute: what is sent over its connections is taken and never arrives, and nobody
//! is told. It passes bytes of any carrier.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;

/// A line to a server on loopback.
pub struct MuteLine {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Both ends of each connection.
    connections: Vec<[TcpStream; 2]>,
    /// Connections before this one are mute.
    mute_before: usize,
    closing: bool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MuteLine {
    /// Listens on a free port and passes on to `target`.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(target: SocketAddr) -> anyhow::Result<MuteLine> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let acceptor = thread::spawn({
            let state = state.clone();
            move || accept_all(&listener, target, &state)
        });
        Ok(MuteLine {
            address,
            state,
            acceptor: Some(acceptor),
        })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing passes any more over the connections that there are.
    pub fn mute(&self) {
        let mut state = lock(&self.state);
        state.mute_before = state.connections.len();
    }
}

impl Drop for MuteLine {
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

fn accept_all(listener: &TcpListener, target: SocketAddr, state: &Arc<Mutex<State>>) {
    let mut pumps = Vec::new();
    while let Ok((near, _)) = listener.accept() {
        if lock(state).closing {
            break;
        }
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        let clones = [
            near.try_clone(),
            far.try_clone(),
            near.try_clone(),
            far.try_clone(),
        ];
        let [Ok(kept_near), Ok(kept_far), Ok(other_near), Ok(other_far)] = clones else {
            continue;
        };
        let number = {
            let mut state = lock(state);
            state.connections.push([kept_near, kept_far]);
            state.connections.len() - 1
        };
        for (from, to) in [(near, far), (other_far, other_near)] {
            let state = state.clone();
            pumps.push(thread::spawn(move || pass(from, to, number, &state)));
        }
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// Passes bytes on until one side ends; where the line is mute, also the end is not told.
fn pass(mut from: TcpStream, mut to: TcpStream, number: usize, state: &Mutex<State>) {
    let is_mute = || {
        let state = lock(state);
        number < state.mute_before && !state.closing
    };
    let mut chunk = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if !is_mute() && to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    if !is_mute() {
        // The other direction may still have something to say.
        let _ = to.shutdown(Shutdown::Write);
    }
}
