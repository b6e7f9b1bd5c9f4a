//! A network that breaks where a test says: between a remote and a server, frame by frame.
//!
//! Owns the sockets and threads of a loopback proxy that understands frames as far as to
//! count them. What has to be true after the accident is the affair of the tests.

#![allow(
    clippy::disallowed_methods,
    reason = "real threads are waited for, with deadlines of real time"
)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::BytesMut;
use tidewater_protocol::frame::{Frame, HEADER_BYTES, PREFACE, take_frame};
use tidewater_protocol::message::Control;

/// Nobody waits longer for anything, however loaded the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which way a frame travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the remote to the server. Frame 0 is the preface.
    Up,
    /// From the server to the remote.
    Down,
}

/// Where in one connection something happens.
pub struct Place {
    way: Way,
    is_here: Box<Condition>,
}

/// The number of a frame in its direction, and the frame if it is one.
type Condition = dyn Fn(usize, Option<&Frame>) -> bool + Send;

impl Place {
    /// The frame with this number, counted from 0 in its direction.
    pub fn frame(way: Way, number: usize) -> Place {
        Place {
            way,
            is_here: Box::new(move |at, _| at == number),
        }
    }

    /// The first control message of which this is true.
    pub fn message(way: Way, is_it: impl Fn(&Control) -> bool + Send + 'static) -> Place {
        Place {
            way,
            is_here: Box::new(move |_, frame| match frame {
                Some(Frame::Control {
                    control: Some(control),
                    ..
                }) => is_it(control),
                _ => false,
            }),
        }
    }
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accident {
    /// The connection breaks right after it.
    CutAfter,
    /// The connection breaks when half of its bytes have passed.
    CutInside,
    /// It waits, with everything that follows in its direction, until
    /// [`FrameProxy::release`] or [`FrameProxy::break_connections`].
    Stall,
}

/// How a connection went.
#[derive(Debug, Clone, Default)]
pub struct Journey {
    /// Frames that passed up, the preface among them.
    pub up: Vec<Vec<u8>>,
    /// Frames that passed down.
    pub down: Vec<Vec<u8>>,
}

/// A loopback proxy. Connections pass untouched unless an accident is planned.
pub struct FrameProxy {
    address: SocketAddr,
    world: Arc<World>,
    acceptor: Option<JoinHandle<()>>,
}

struct World {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: SocketAddr,
    plan: Option<(Place, Accident)>,
    cut: Option<(Way, usize)>,
    happened: bool,
    stalled: bool,
    released: bool,
    given_up: bool,
    record: bool,
    /// Two sockets for each connection, and what passed.
    connections: Vec<(TcpStream, TcpStream, Journey)>,
    closing: bool,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A pump that panicked left nothing half-done.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl FrameProxy {
    /// Listens on a free port and passes on to `target`.
    pub fn start(target: SocketAddr) -> anyhow::Result<FrameProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let world = Arc::new(World {
            state: Mutex::new(State {
                target,
                plan: None,
                cut: None,
                happened: false,
                stalled: false,
                released: false,
                given_up: false,
                record: false,
                connections: Vec::new(),
                closing: false,
            }),
            changed: Condvar::new(),
        });
        let acceptor = std::thread::spawn({
            let world = world.clone();
            move || accept_all(&listener, &world)
        });
        Ok(FrameProxy {
            address,
            world,
            acceptor: Some(acceptor),
        })
    }

    /// Where to connect to.
    pub fn url(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Connections from now on go to another server.
    pub fn redirect(&self, target: SocketAddr) {
        self.world.lock().target = target;
    }

    /// Plans an accident for the next connection, and forgets the one before.
    pub fn plan(&self, place: Place, accident: Accident) {
        let mut state = self.world.lock();
        state.plan = Some((place, accident));
        state.happened = false;
        state.stalled = false;
        state.released = false;
        state.given_up = false;
    }

    /// Plans that the next connection breaks when so many bytes have passed one way: all of them
    /// arrive.
    pub fn plan_cut(&self, way: Way, bytes: usize) {
        let mut state = self.world.lock();
        state.cut = Some((way, bytes));
        state.happened = false;
    }

    /// Takes a plan back that has not met a connection. Whether the last accident happened.
    pub fn finish_plan(&self) -> bool {
        let mut state = self.world.lock();
        state.plan = None;
        state.cut = None;
        state.happened
    }

    /// Whether the planned accident has happened.
    pub fn happened(&self) -> bool {
        self.world.lock().happened
    }

    /// Waits until a frame stalls.
    ///
    /// # Errors
    /// None does within a minute, or somebody knows that none will.
    pub fn wait_for_stall(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.world.lock();
        while !state.stalled {
            if state.given_up {
                bail!("the sync was over before the frame that was to stall");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the frame that was to stall never came");
            }
            state = match self.world.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        Ok(())
    }

    /// Tells whoever waits that no frame will stall any more.
    pub fn give_up_stall(&self) {
        self.world.lock().given_up = true;
        self.world.changed.notify_all();
    }

    /// Lets the stalled frame pass.
    pub fn release(&self) {
        self.world.lock().released = true;
        self.world.changed.notify_all();
    }

    /// Breaks all connections.
    pub fn break_connections(&self) {
        let mut state = self.world.lock();
        state.released = true;
        state.stalled = false;
        for (remote, server, _) in &state.connections {
            // A connection that has ended already is broken enough.
            let _ = remote.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        self.world.changed.notify_all();
    }

    /// From now on keeps what passes.
    pub fn record(&self) {
        self.world.lock().record = true;
    }

    /// What has passed in every connection so far, if it was recorded.
    pub fn journeys(&self) -> Vec<Journey> {
        let state = self.world.lock();
        let journeys = state.connections.iter();
        journeys.map(|(_, _, journey)| journey.clone()).collect()
    }
}

impl Drop for FrameProxy {
    fn drop(&mut self) {
        self.world.lock().closing = true;
        self.break_connections();
        // Wakes the acceptor, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &TcpListener, world: &Arc<World>) {
    let mut pumps = Vec::new();
    while let Ok((remote, _)) = listener.accept() {
        if world.lock().closing {
            break;
        }
        // Who cannot be passed on sees the connection end, like from a server that is gone.
        if let Ok(both) = pass_on(remote, world) {
            pumps.extend(both);
        }
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

fn pass_on(remote: TcpStream, world: &Arc<World>) -> io::Result<[JoinHandle<()>; 2]> {
    let target = world.lock().target;
    let server = TcpStream::connect_timeout(&target, PATIENCE)?;
    remote.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut state = world.lock();
    let number = state.connections.len();
    let sockets = (remote.try_clone()?, server.try_clone()?);
    state
        .connections
        .push((sockets.0, sockets.1, Journey::default()));
    let (up, down) = match state.plan.take() {
        Some(plan) if plan.0.way == Way::Up => (Some(plan), None),
        plan => (None, plan),
    };
    let cut = state.cut.take();
    let pump = |way, from: &TcpStream, to: &TcpStream, plan| -> io::Result<JoinHandle<()>> {
        let mut pump = Pump {
            world: world.clone(),
            number,
            way,
            from: from.try_clone()?,
            to: to.try_clone()?,
            plan,
            left: cut
                .filter(|(there, _)| *there == way)
                .map(|(_, bytes)| bytes),
        };
        Ok(std::thread::spawn(move || pump.run()))
    };
    Ok([
        pump(Way::Up, &remote, &server, up)?,
        pump(Way::Down, &server, &remote, down)?,
    ])
}

/// One direction of one connection.
struct Pump {
    world: Arc<World>,
    number: usize,
    way: Way,
    from: TcpStream,
    to: TcpStream,
    plan: Option<(Place, Accident)>,
    /// The bytes that pass before it breaks, if it is to break by itself.
    left: Option<usize>,
}

impl Pump {
    fn run(&mut self) {
        let ended = self.pump();
        // What passes before a planned cut arrives, however much the receiver has to do: he closes
        // once he has read it.
        let is_planned = self.left == Some(0);
        match ended {
            Err(_) if !is_planned => self.cut(),
            _ => {
                // The other direction may still have something to say.
                let _ = self.to.shutdown(Shutdown::Write);
            }
        }
    }

    fn cut(&self) {
        let _ = self.from.shutdown(Shutdown::Both);
        let _ = self.to.shutdown(Shutdown::Both);
    }

    /// Passes frames on until the sender ends; an error breaks the connection.
    fn pump(&mut self) -> io::Result<()> {
        let mut arrived = BytesMut::new();
        let mut chunk = vec![0; 64 << 10];
        let mut count = 0;
        loop {
            while let Some((bytes, frame)) = next_frame(&mut arrived, self.way, count) {
                self.pass(count, &bytes, frame.as_ref())?;
                count += 1;
            }
            match self.from.read(&mut chunk)? {
                0 => return self.write(&arrived),
                length => arrived.extend_from_slice(&chunk[..length]),
            }
        }
    }

    fn pass(&mut self, count: usize, bytes: &[u8], frame: Option<&Frame>) -> io::Result<()> {
        let accident = match &self.plan {
            Some((place, accident)) if (place.is_here)(count, frame) => Some(*accident),
            _ => None,
        };
        if accident.is_some() {
            self.plan = None;
            self.world.lock().happened = true;
        }
        match accident {
            Some(Accident::CutInside) => {
                self.to.write_all(&bytes[..bytes.len() / 2])?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Some(Accident::Stall) => self.stall()?,
            Some(Accident::CutAfter) | None => {}
        }
        self.write(bytes)?;
        let mut state = self.world.lock();
        if state.record {
            let journey = &mut state.connections[self.number].2;
            let passed = match self.way {
                Way::Up => &mut journey.up,
                Way::Down => &mut journey.down,
            };
            passed.push(bytes.to_vec());
        }
        drop(state);
        match accident {
            Some(Accident::CutAfter) => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(left) = &mut self.left else {
            return self.to.write_all(bytes);
        };
        let through = bytes.len().min(*left);
        *left -= through;
        self.to.write_all(&bytes[..through])?;
        if through == bytes.len() {
            return Ok(());
        }
        self.world.lock().happened = true;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    fn stall(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.world.lock();
        state.stalled = true;
        self.world.changed.notify_all();
        while !state.released {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = match self.world.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        state.stalled = false;
        Ok(())
    }
}

/// Takes the next whole frame off what has arrived; the preface is one too. Bytes that are no
/// frame pass as they are.
fn next_frame(arrived: &mut BytesMut, way: Way, count: usize) -> Option<(BytesMut, Option<Frame>)> {
    if way == Way::Up && count == 0 {
        return (arrived.len() >= PREFACE.len()).then(|| (arrived.split_to(PREFACE.len()), None));
    }
    let header = arrived.get(..HEADER_BYTES)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if arrived.len() < HEADER_BYTES + length {
        return None;
    }
    let bytes = arrived.split_to(HEADER_BYTES + length);
    let frame = take_frame(&mut bytes.clone()).ok().flatten();
    Some((bytes, frame))
}
