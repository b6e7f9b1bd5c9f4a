//! An open connection to a server: the loop between a [`Connection`] and its carrier.
//!
//! One thread reads and writes, and never waits for the server to read without reading itself:
//! two sides that only write would wait for each other for ever. Another one applies what has
//! come, so that the connection stays alive meanwhile, however long that takes.

use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tidewater_carrier::{Carrier, CarrierError, DialOptions, Received, ServerUrl};
use tidewater_remote::session::Work;
use tidewater_remote::{Connection, Progress};

use crate::clock::Clock;
use crate::error::ClientError;
use crate::options::SyncOptions;

/// How often the progress callback is asked whether to go on while nothing happens.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// How often the connection is looked at while something is applied.
const GLANCE: Duration = Duration::from_millis(20);

/// How long the last words may take: nothing depends on them.
const FAREWELL: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Line {
    pub(crate) connection: Connection,
    carrier: Carrier,
    clock: Clock,
}

impl Line {
    /// Opens a connection, as long as `go_on` does not break.
    pub(crate) fn dial(
        url: &ServerUrl,
        ca_file: Option<&Path>,
        options: &SyncOptions,
        clock: Clock,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Line, ClientError> {
        let dial = DialOptions {
            ca_file,
            insecure: options.insecure,
            timeout: options.timeout,
        };
        Ok(Line {
            carrier: Carrier::dial(url, &dial, go_on)?,
            connection: Connection::dial(&options.client, options.timeout, clock.now()),
            clock,
        })
    }

    /// Goes on until the sync has ended.
    pub(crate) fn run(
        &mut self,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<(), CarrierError> {
        let mut broken = Ok(());
        while self.connection.is_syncing() {
            if let Some(work) = self.connection.poll_work() {
                self.work(work, progress);
            } else if let Err(error) = self.turn() {
                broken = Err(error);
                self.connection.cancel();
            }
            let now = self.connection.progress();
            if now.is_some_and(|now| progress(now).is_break()) {
                self.connection.cancel();
            }
        }
        broken
    }

    /// Sends and receives what is possible now, or waits a moment for it.
    pub(crate) fn turn(&mut self) -> Result<(), CarrierError> {
        self.refill();
        if !self.carrier.has_output() {
            self.receive(Some(self.patience()))?;
        } else {
            let mut sent = self.carrier.send(false)?;
            if !self.receive(None)? && !sent {
                sent = self.carrier.send(true)?;
            }
            if sent {
                self.connection.handle_sent(self.clock.now());
            }
        }
        self.connection.handle_timeout(self.clock.now());
        Ok(())
    }

    /// Takes what has come, without waiting.
    pub(crate) fn take(&mut self) -> Result<(), CarrierError> {
        self.receive(None)?;
        self.connection.handle_timeout(self.clock.now());
        Ok(())
    }

    /// Sends what the network takes at once.
    pub(crate) fn give(&mut self) -> Result<(), CarrierError> {
        loop {
            self.refill();
            if !self.carrier.has_output() || !self.carrier.send(false)? {
                return Ok(());
            }
            self.connection.handle_sent(self.clock.now());
        }
    }

    /// Whether the network has yet to take something.
    pub(crate) fn has_output(&self) -> bool {
        self.carrier.has_output()
    }

    /// The socket, for whoever waits for it.
    pub(crate) fn socket(&self) -> std::io::Result<TcpStream> {
        self.carrier.socket().try_clone()
    }

    /// Has work done beside the connection, or in its place if that takes no time.
    fn work(&mut self, mut work: Work, progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>) {
        let cancelled = AtomicBool::new(false);
        let clock = self.clock;
        if !work.is_short() {
            let mut last = work.progress().clone();
            thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                let work = &mut work;
                let apply = || {
                    let sender = sender;
                    while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
                        work.step(clock.now());
                        // The other side waits until this one is done.
                        let _ = sender.send(work.progress().clone());
                    }
                };
                let thread = thread::Builder::new().name("tidewater-apply".into());
                if thread.spawn_scoped(scope, apply).is_err() {
                    return;
                }
                loop {
                    match receiver.recv_timeout(GLANCE) {
                        Ok(progress) => last = progress,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    self.glance();
                    if progress(&last).is_break() {
                        cancelled.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
            work.step(clock.now());
            if !work.is_done() && progress(work.progress()).is_break() {
                cancelled.store(true, Ordering::Relaxed);
            }
        }
        self.connection.handle_work(work);
    }

    /// Sends and receives without waiting. Everything of the sync has come: that the connection
    /// may end now is of no importance.
    fn glance(&mut self) {
        self.refill();
        let sent = self.carrier.send(false);
        if sent.and_then(|_| self.receive(None)).is_err() {
            self.connection.handle_end(None);
        }
        self.connection.handle_timeout(self.clock.now());
    }

    fn refill(&mut self) {
        if self.carrier.takes_output()
            && let Some(bytes) = self.connection.poll_transmit()
        {
            self.carrier.push(bytes);
        }
    }

    /// Whether something came.
    fn receive(&mut self, wait: Option<Duration>) -> Result<bool, CarrierError> {
        let (connection, clock) = (&mut self.connection, self.clock);
        let mut handle = |bytes: &[u8]| connection.handle_bytes(bytes, clock.now());
        match self.carrier.receive(wait, &mut handle)? {
            Received::Nothing => return Ok(false),
            Received::Bytes => {}
            Received::End(error) => self.connection.handle_end(error),
        }
        Ok(true)
    }

    /// How long nothing may happen before we look up.
    pub(crate) fn patience(&self) -> Duration {
        let deadline = self.connection.poll_timeout().unwrap_or(u64::MAX);
        let left = deadline.saturating_sub(self.clock.now().ticks_ms);
        Duration::from_millis(left.max(1)).min(TICK)
    }

    /// Sends what is left and waits for the server to close: to close with unread bytes would
    /// destroy what is still on its way. Bytes sent and received over the whole connection.
    pub(crate) fn hang_up(mut self) -> (u64, u64) {
        // What is left to say is a courtesy to the server.
        let _ = self.farewell();
        self.connection.traffic()
    }

    fn farewell(&mut self) -> Result<(), CarrierError> {
        let end = Instant::now() + FAREWELL;
        loop {
            self.refill();
            if !self.carrier.has_output() || Instant::now() >= end {
                break;
            }
            if !self.carrier.send(true)? {
                self.carrier.receive(None, &mut |_| {})?;
            }
        }
        self.carrier.close()?;
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            match self.carrier.receive(Some(left), &mut |_| {})? {
                Received::End(_) => break,
                Received::Bytes | Received::Nothing => {}
            }
        }
        Ok(())
    }
}
