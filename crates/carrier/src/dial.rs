//! Connections that a blocking program dials.
//!
//! Owns the waiting at the socket, of which each has an end, and the order of the layers.

#![allow(
    clippy::disallowed_methods,
    reason = "waiting for the network needs real time"
)]

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use rustls::ClientConfig;

use crate::block_layer::{self, BlockLayer};
use crate::compression::{Compression, CompressionOptions};
use crate::error::CarrierError;
use crate::exchange_stream;
use crate::pin::Pin;
use crate::proxy::{self, Proxy};
use crate::tcp;
use crate::tls::{self, ClientCertificate, TlsLayer};
use crate::url::{ServerUrl, ServerUrls, Transport};
use crate::websocket::WebSocketLayer;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How often `go_on` is asked.
pub(crate) const TICK: Duration = Duration::from_millis(200);

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

/// One layer of a connection. Reading only reads from the layer below and writing only
/// writes to it: two sides that wait for each other to read would wait for ever. An error
/// for which [`ErrorKind`] is `WouldBlock`, `TimedOut` or `Interrupted` means: not yet.
pub trait Layer: Read + Write + Send + fmt::Debug {
    /// Whether the two sides are still agreeing on how to go on. Nothing is taken until then.
    fn is_opening(&self) -> bool {
        false
    }

    /// Whether the two sides have gone on from an earlier connection.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Whether it keeps bytes that it still has to send.
    fn owes(&self) -> bool {
        false
    }

    /// Whether something can be read without anything coming.
    fn holds(&self) -> bool {
        false
    }

    /// Bytes that it has given to the layer below, and taken from it, where it counts them.
    fn traffic(&self) -> [u64; 2] {
        [0; 2]
    }

    /// Sends what it owes, as far as the network takes it. Returns whether that was anything.
    ///
    /// # Errors
    /// Nothing could be sent.
    fn write_own(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Says that nothing more will be written.
    ///
    /// # Errors
    /// The socket is broken.
    fn close(&mut self) -> io::Result<()>;

    /// What is at the bottom.
    fn socket(&self) -> &TcpStream;
}

impl Layer for TcpStream {
    fn close(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn socket(&self) -> &TcpStream {
        self
    }
}

/// How to dial.
#[derive(Clone, Copy, Debug)]
pub struct DialOptions<'a> {
    /// A PEM file with the authorities to trust, instead of those that browsers trust.
    pub ca_file: Option<&'a Path>,
    /// The key of the server, which is then trusted for that alone: authorities do not count.
    pub pin: Option<Pin>,
    /// Who we are, for a server that asks.
    pub certificate: Option<&'a ClientCertificate>,
    /// Whether what is not encrypted may go to other machines.
    pub insecure: bool,
    /// The proxy through which other machines are reached; `none` for none. If nothing is said, what
    /// the environment names: see [`Proxy::from_environment`].
    pub proxy: Option<&'a str>,
    /// How what is sent is packed, and what the server may send packed.
    pub compression: CompressionOptions,
    /// How long the server may be silent.
    pub timeout: Duration,
}

/// All that it takes to reach a server, once more too.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) url: ServerUrl,
    tls: Option<Arc<ClientConfig>>,
    proxy: Option<Proxy>,
    loopback_only: bool,
    /// How long the server may be silent.
    pub(crate) timeout: Duration,
}

impl Dialer {
    pub(crate) fn new(url: &ServerUrl, options: &DialOptions<'_>) -> Result<Dialer, CarrierError> {
        if url.is_exposed() && !options.insecure {
            let server = url.to_string();
            return Err(CarrierError::Exposed { server });
        }
        let is_encrypted = url.transport.is_encrypted();
        Ok(Dialer {
            url: url.clone(),
            tls: match is_encrypted {
                true => Some(tls::config(options)?),
                false => None,
            },
            proxy: match options.proxy {
                Some("none") => None,
                Some(proxy) => Some(proxy.parse()?),
                None => Proxy::from_environment(url, |name| std::env::var(name).ok())?,
            },
            loopback_only: !options.insecure && !is_encrypted,
            timeout: options.timeout,
        })
    }

    /// A new line to the server, on which nothing has been said yet.
    pub(crate) fn dial(
        &self,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Box<dyn Layer>, CarrierError> {
        let client = match &self.tls {
            None => None,
            Some(config) => {
                let speaks_http = self.url.transport.is_web();
                Some(tls::new_client(config, &self.url.host, speaks_http)?)
            }
        };
        let socket = match &self.proxy {
            None => tcp::dial(&self.url, self.loopback_only, self.timeout, go_on)?,
            Some(proxy) => proxy::dial(proxy, self, go_on)?,
        };
        socket
            .set_nodelay(true)
            .map_err(|source| self.unreachable(source))?;
        Ok(match client {
            None => Box::new(socket),
            Some(client) => Box::new(TlsLayer {
                client,
                below: Box::new(socket),
            }),
        })
    }

    /// Whether the server is on this machine.
    fn is_here(&self, socket: &TcpStream) -> bool {
        self.proxy.is_none() && socket.peer_addr().is_ok_and(|it| it.ip().is_loopback())
    }

    pub(crate) fn unreachable(&self, source: io::Error) -> CarrierError {
        CarrierError::Unreachable {
            server: self.url.to_string(),
            source,
        }
    }

    /// What has gone wrong while the two sides were agreeing on how to go on.
    fn objection(&self, error: io::Error) -> CarrierError {
        match error.downcast::<CarrierError>() {
            Ok(told) => told,
            Err(error) => {
                let objection = tls::objection(&error, &self.url.to_string());
                objection.unwrap_or_else(|| self.unreachable(error))
            }
        }
    }

    /// Has two sides that take turns agree: repeats what is not done yet, as long as `go_on` does
    /// not break and the server is not silent for too long.
    pub(crate) fn agree<T>(
        &self,
        socket: &TcpStream,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        mut step: impl FnMut() -> io::Result<Option<T>>,
    ) -> Result<T, CarrierError> {
        let timeouts = socket
            .set_read_timeout(Some(TICK))
            .and_then(|()| socket.set_write_timeout(Some(TICK)));
        timeouts.map_err(|error| self.unreachable(error))?;
        let end = Instant::now() + self.timeout;
        loop {
            match step() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) if is_patience(&error) => {}
                Err(error) => return Err(self.objection(error)),
            }
            if go_on().is_break() {
                return Err(CarrierError::Cancelled);
            }
            if Instant::now() >= end {
                return Err(self.unreachable(ErrorKind::TimedOut.into()));
            }
        }
    }
}

/// Has the two sides of a layer agree on how to go on.
pub(crate) fn open(
    layer: &mut Box<dyn Layer>,
    dialer: &Dialer,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), CarrierError> {
    let handle = layer.socket().try_clone().map_err(CarrierError::Lost)?;
    dialer.agree(&handle, go_on, || {
        if layer.owes() {
            layer.write_own()?;
        }
        if !layer.is_opening() {
            return Ok(Some(()));
        }
        match layer.read(&mut [0]) {
            Ok(0) => Err(io::Error::other(CarrierError::closes(&dialer.url))),
            // Who waits for a request does not speak first.
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(error) if is_patience(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })
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

/// Whether an error only says that it is not time yet.
pub(crate) fn is_patience(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
