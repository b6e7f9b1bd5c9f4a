//! Connections that a blocking program dials.
//!
//! Owns the waiting at the socket of an open connection, of which each has an end, and the order of
//! the layers.

use std::io;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::block_layer::{self, BlockLayer};
use crate::compression::Compression;
use crate::dialer::{DialOptions, Dialer, open};
use crate::error::CarrierError;
use crate::exchange_stream;
use crate::layer::{Layer, is_patience};
use crate::tls;
use crate::url::{ServerUrl, ServerUrls, Transport};
use crate::websocket::WebSocketLayer;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How long a write waits for the server before we look whether it has sent something.
const WRITE_SLICE: Duration = Duration::from_millis(20);

/// What came of listening.
#[derive(Debug)]
pub enum ReceiveOutcome {
    /// Bytes were handed over.
    Bytes,
    /// Nothing yet.
    Nothing,
    /// The server closed, or the connection broke.
    End(Option<io::Error>),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Carrier {
    layers: Box<dyn Layer>,
    /// Bytes that wait to be sent.
    output: Bytes,
    buffer: Vec<u8>,
    nonblocking: bool,
    read_timeout: Option<Duration>,
    /// The server takes nothing more. It may have said why.
    deaf: bool,
    server: String,
}

impl Carrier {
    /// Connects, as long as `go_on` does not break. What the layers have to agree on with
    /// the server happens along with sending and receiving.
    ///
    /// # Errors
    /// The server cannot be reached, or the options cannot be used.
    pub fn dial(
        url: &ServerUrl,
        options: &DialOptions<'_>,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Carrier, CarrierError> {
        Carrier::connect(url, options, false, go_on)
    }

    /// The same. `opens`: what TLS has to agree on is agreed on before it returns.
    fn connect(
        url: &ServerUrl,
        options: &DialOptions<'_>,
        opens: bool,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Carrier, CarrierError> {
        let server = url.to_string();
        let dialer = Dialer::new(url, options)?;
        let mut layers = dialer.dial(go_on)?;
        let mut packing = options.compression;
        if packing.compression == Compression::Auto && dialer.is_here(layers.socket()) {
            // Nothing is as fast as this machine's own memory.
            packing.compression = Compression::Off;
        }
        match url.transport {
            Transport::Tcp | Transport::Tls if opens => open(&mut layers, &dialer, go_on)?,
            Transport::Tcp | Transport::Tls => {}
            Transport::Ws | Transport::Wss => {
                layers = Box::new(WebSocketLayer::open(layers, &dialer, go_on)?);
            }
            Transport::Http | Transport::Https => {
                layers = Box::new(exchange_stream::begin(layers, dialer, go_on)?);
            }
        }
        layers = Box::new(BlockLayer::new(packing, layers));
        let set = layers.socket().set_write_timeout(Some(WRITE_SLICE));
        set.map_err(CarrierError::Lost)?;
        Ok(Carrier {
            layers,
            output: Bytes::new(),
            buffer: vec![0; READ_BYTES],
            nonblocking: false,
            read_timeout: None,
            deaf: false,
            server,
        })
    }

    /// Connects to the first address at which a server answers, and says which it is. The error is
    /// that of the first one.
    ///
    /// # Errors
    /// None of them can be reached, or the options cannot be used.
    pub fn dial_any<'u>(
        urls: &'u ServerUrls,
        options: &DialOptions<'_>,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(Carrier, &'u ServerUrl), CarrierError> {
        let mut first = None;
        for url in urls.urls() {
            // Who has no other way learns soon enough whether it is one.
            let opens = urls.urls().len() > 1;
            match Carrier::connect(url, options, opens, go_on) {
                Ok(carrier) => return Ok((carrier, url)),
                Err(CarrierError::Cancelled) => return Err(CarrierError::Cancelled),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(CarrierError::Cancelled))
    }

    /// Whether bytes wait to be sent that can be.
    pub fn has_output(&self) -> bool {
        let waiting = !self.output.is_empty() && !self.layers.is_opening();
        !self.deaf && (waiting || self.layers.owes())
    }

    /// Whether new bytes may be pushed.
    pub fn takes_output(&self) -> bool {
        self.output.is_empty() && !self.deaf
    }

    /// Whether TLS has gone on from an earlier connection of this process, which costs less.
    pub fn is_resumed(&self) -> bool {
        self.layers.is_resumed()
    }

    /// Bytes sent and received so far, without what TLS adds.
    pub fn traffic(&self) -> [u64; 2] {
        self.layers.traffic()
    }

    /// The socket, for whoever waits for it without reading.
    pub fn socket(&self) -> &TcpStream {
        self.layers.socket()
    }

    /// Bytes to send, when [`Carrier::takes_output`].
    pub fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.takes_output());
        self.output = bytes;
    }

    /// Sends what the network takes at once or, if `wait`, within a moment. Returns whether
    /// that was anything.
    ///
    /// # Errors
    /// The socket is of no use. That the server takes no more is not one: reading tells.
    pub fn send(&mut self, wait: bool) -> Result<bool, CarrierError> {
        self.set_nonblocking(!wait)?;
        let mut any = false;
        match self.send_all(&mut any) {
            Err(error) if !is_patience(&error) => {
                // Reading will tell what happened.
                self.deaf = true;
                self.output = Bytes::new();
                Ok(false)
            }
            _ => Ok(any),
        }
    }

    fn send_all(&mut self, any: &mut bool) -> io::Result<()> {
        loop {
            *any |= self.layers.write_own()?;
            if self.output.is_empty() || self.layers.owes() || self.layers.is_opening() {
                return Ok(());
            }
            let count = self.layers.write(&self.output)?;
            self.output.advance(count);
            *any |= count > 0;
        }
    }

    /// Hands over what has come. Waits for it at most so long, or not at all.
    ///
    /// # Errors
    /// The server is not trusted, or the socket is of no use.
    pub fn receive(
        &mut self,
        wait: Option<Duration>,
        handle: &mut dyn FnMut(&[u8]),
    ) -> Result<ReceiveOutcome, CarrierError> {
        self.set_nonblocking(wait.is_none())?;
        if let Some(wait) = wait {
            self.set_read_timeout(wait.max(Duration::from_millis(1)))?;
        }
        let mut received = ReceiveOutcome::Nothing;
        loop {
            match self.layers.read(&mut self.buffer) {
                Ok(0) => return self.ended(None),
                Ok(count) => {
                    handle(&self.buffer[..count]);
                    received = ReceiveOutcome::Bytes;
                }
                Err(error) if is_patience(&error) => return Ok(received),
                Err(error) => return self.ended(Some(error)),
            }
            // Of what the layers hold, whoever waits at the socket would not hear.
            if !self.layers.holds() {
                return Ok(received);
            }
            self.set_nonblocking(true)?;
        }
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// The socket is of no use.
    pub fn close(&mut self) -> Result<(), CarrierError> {
        self.set_nonblocking(false)?;
        self.layers.close().map_err(CarrierError::Lost)
    }

    fn ended(&self, error: Option<io::Error>) -> Result<ReceiveOutcome, CarrierError> {
        let error = match error.map(io::Error::downcast::<CarrierError>) {
            Some(Ok(told)) => return Err(told),
            Some(Err(error)) => Some(error),
            None => None,
        };
        if let Some(what) = error.as_ref().and_then(block_layer::objection) {
            return Err(CarrierError::Blocks {
                server: self.server.clone(),
                what: what.clone(),
            });
        }
        let objection = error
            .as_ref()
            .and_then(|it| tls::objection(it, &self.server));
        match objection {
            Some(objection) => Err(objection),
            None if self.layers.is_opening() => Err(CarrierError::closes(&self.server)),
            None => Ok(ReceiveOutcome::End(error)),
        }
    }

    fn set_nonblocking(&mut self, nonblocking: bool) -> Result<(), CarrierError> {
        if self.nonblocking != nonblocking {
            let set = self.layers.socket().set_nonblocking(nonblocking);
            set.map_err(CarrierError::Lost)?;
            self.nonblocking = nonblocking;
        }
        Ok(())
    }

    fn set_read_timeout(&mut self, timeout: Duration) -> Result<(), CarrierError> {
        if self.read_timeout != Some(timeout) {
            let set = self.layers.socket().set_read_timeout(Some(timeout));
            set.map_err(CarrierError::Lost)?;
            self.read_timeout = Some(timeout);
        }
        Ok(())
    }
}
