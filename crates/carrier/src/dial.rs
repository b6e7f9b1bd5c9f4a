//! Connections that a blocking program dials.
//!
//! Owns the waiting at the socket, of which each has an end, and the order of the layers.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::compression::{Compression, Packing};
use crate::error::CarrierError;
use crate::packed::{self, Packed};
use crate::pin::Pin;
use crate::tcp;
use crate::tls::{self, ClientCertificate, Tls};
use crate::url::{ServerUrl, Transport};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How long a write waits for the server before we look whether it has sent something.
const WRITE_SLICE: Duration = Duration::from_millis(20);

/// What came of listening.
#[derive(Debug)]
pub enum Received {
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
    /// Whether `tcp://` to other machines is allowed.
    pub insecure: bool,
    /// How what is sent is packed, and what the server may send packed.
    pub packing: Packing,
    /// How long the server may be silent.
    pub timeout: Duration,
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
        let server = url.to_string();
        if url.is_exposed() && !options.insecure {
            return Err(CarrierError::Exposed { server });
        }
        let client = match url.transport {
            Transport::Tcp => None,
            Transport::Tls => Some(tls::dial(&url.host, options)?),
        };
        let loopback_only = !options.insecure && url.transport == Transport::Tcp;
        let socket = tcp::dial(url, loopback_only, options.timeout, go_on)?;
        let set_up = socket
            .set_nodelay(true)
            .and_then(|()| socket.set_write_timeout(Some(WRITE_SLICE)));
        set_up.map_err(|source| CarrierError::Unreachable {
            server: server.clone(),
            source,
        })?;
        let mut packing = options.packing;
        let is_here = socket.peer_addr().is_ok_and(|it| it.ip().is_loopback());
        if packing.compression == Compression::Auto && is_here {
            // Nothing is as fast as this machine's own memory.
            packing.compression = Compression::Off;
        }
        let mut layers: Box<dyn Layer> = Box::new(socket);
        if let Some(client) = client {
            layers = Box::new(Tls {
                client,
                below: layers,
            });
        }
        layers = Box::new(Packed::new(packing, layers));
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
    ) -> Result<Received, CarrierError> {
        self.set_nonblocking(wait.is_none())?;
        if let Some(wait) = wait {
            self.set_read_timeout(wait.max(Duration::from_millis(1)))?;
        }
        let mut received = Received::Nothing;
        loop {
            match self.layers.read(&mut self.buffer) {
                Ok(0) => return self.ended(None),
                Ok(count) => {
                    handle(&self.buffer[..count]);
                    received = Received::Bytes;
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

    fn ended(&self, error: Option<io::Error>) -> Result<Received, CarrierError> {
        if let Some(what) = error.as_ref().and_then(packed::objection) {
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
            None if self.layers.is_opening() => Err(CarrierError::Tls {
                server: self.server.clone(),
                what: "the server does not answer to TLS, but closes the connection".into(),
            }),
            None => Ok(Received::End(error)),
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
