//! An open connection to a server: between a [`LinkMachine`] and its carrier.
//!
//! Whoever writes never waits for the server to read without reading itself: two sides that only
//! write would wait for each other for ever.

use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Duration;
#[cfg(feature = "sync")]
use std::time::Instant;

use tidewater_carrier::{
    Carrier, CarrierError, DialOptions, ReceiveOutcome, ServerUrl, ServerUrls,
};

use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::machine::LinkMachine;

/// How often the progress callback is asked whether to go on while nothing happens.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct CarrierLoop {
    pub(crate) connection: LinkMachine,
    carrier: Carrier,
    pub(crate) clock: DriverClock,
}

impl CarrierLoop {
    /// Opens a connection to the first address that answers, which it tells, as long as `go_on` does
    /// not break.
    /// `client` is the program that connects, for the server's logs.
    pub(crate) fn dial(
        urls: &ServerUrls,
        options: &DialOptions<'_>,
        client: &str,
        clock: DriverClock,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(CarrierLoop, ServerUrl), ClientError> {
        let (carrier, url) = Carrier::dial_any(urls, options, go_on)?;
        let line = CarrierLoop {
            carrier,
            connection: LinkMachine::dial(client, options.timeout, clock.now()),
            clock,
        };
        Ok((line, url.clone()))
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
            ReceiveOutcome::Nothing => return Ok(false),
            ReceiveOutcome::Bytes => {}
            ReceiveOutcome::End(error) => self.connection.handle_end(error),
        }
        Ok(true)
    }

    /// How long nothing may happen before we look up.
    pub(crate) fn patience(&self) -> Duration {
        let deadline = self.connection.poll_timeout().unwrap_or(u64::MAX);
        let left = deadline.saturating_sub(self.clock.now().ticks_ms);
        Duration::from_millis(left.max(1)).min(TICK)
    }
}

/// How long the last words of [`CarrierLoop::hang_up`] may take: nothing depends on them.
#[cfg(feature = "sync")]
const FAREWELL: Duration = Duration::from_secs(2);

/// What a sync counts, and how it ends its connection.
#[cfg(feature = "sync")]
impl CarrierLoop {
    /// Bytes sent and received so far, as the network had them.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let [sent, received] = self.carrier.traffic();
        (sent, received)
    }

    /// Sends what is left and waits for the server to close: to close with unread bytes would
    /// destroy what is still on its way.
    pub(crate) fn hang_up(&mut self) {
        // What is left to say is a courtesy to the server.
        let _ = self.farewell();
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
                ReceiveOutcome::End(_) => break,
                ReceiveOutcome::Bytes | ReceiveOutcome::Nothing => {}
            }
        }
        Ok(())
    }
}
