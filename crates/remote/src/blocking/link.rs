//! A connection: a TCP socket, plain or under TLS.
//!
//! Owns the socket and its waiting. Every wait has an end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustls::ClientConnection;

use super::{connect, tls};
use crate::server_url::{ServerUrl, Transport};
use crate::session::SyncError;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// What came of listening.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes were handed over.
    Bytes,
    /// Nothing yet.
    Nothing,
    /// The server closed, or the connection broke.
    End(Option<io::Error>),
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Link {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Plain bytes that wait to be sent.
    output: Bytes,
    buffer: Vec<u8>,
    nonblocking: bool,
    read_timeout: Option<Duration>,
    /// The server takes nothing more. It may have said why.
    deaf: bool,
    server: String,
}

impl Link {
    /// Connects, as long as `go_on` does not break. The TLS handshake happens along with
    /// sending and receiving.
    pub(super) fn connect(
        url: &ServerUrl,
        ca_file: Option<&Path>,
        insecure: bool,
        timeout: Duration,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Link, SyncError> {
        let server = url.to_string();
        let plain_allowed = insecure || url.is_loopback();
        if url.transport == Transport::Tcp && !plain_allowed {
            return Err(SyncError::Usage {
                what: format!("{server} would send everything readable over the network"),
                hint: "use tls://, or allow it with the option `insecure`".into(),
            });
        }
        let tls = match url.transport {
            Transport::Tcp => None,
            Transport::Tls => Some(Box::new(tls::client(&url.host, ca_file)?)),
        };
        let unreachable = |source| SyncError::Unreachable {
            server: server.clone(),
            source,
        };
        let loopback_only = !insecure && url.transport == Transport::Tcp;
        let socket = connect::connect(url, loopback_only, timeout, go_on)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        socket
            .set_write_timeout(Some(super::WRITE_SLICE))
            .map_err(unreachable)?;
        Ok(Link {
            socket,
            tls,
            output: Bytes::new(),
            buffer: vec![0; READ_BYTES],
            nonblocking: false,
            read_timeout: None,
            deaf: false,
            server,
        })
    }

    /// Whether bytes wait to be sent that can be.
    pub(super) fn has_output(&self) -> bool {
        if self.deaf {
            return false;
        }
        match &self.tls {
            None => !self.output.is_empty(),
            Some(tls) => tls.wants_write() || (!self.output.is_empty() && !tls.is_handshaking()),
        }
    }

    /// Whether new bytes may be pushed.
    pub(super) fn takes_output(&self) -> bool {
        self.output.is_empty() && !self.deaf
    }

    /// Bytes to send, when [`Link::takes_output`].
    pub(super) fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.takes_output());
        self.output = bytes;
    }

    /// Sends what the network takes at once or, if `wait`, within a moment. Returns whether
    /// that was anything.
    pub(super) fn send(&mut self, wait: bool) -> Result<bool, SyncError> {
        self.set_nonblocking(!wait)?;
        let sent = match &mut self.tls {
            None => send_plain(&mut self.socket, &mut self.output),
            Some(tls) => send_tls(&mut self.socket, tls, &mut self.output),
        };
        match sent {
            Ok(sent) => Ok(sent),
            Err(error) if is_patience(&error) => Ok(false),
            Err(_) => {
                // Reading will tell what happened.
                self.deaf = true;
                self.output = Bytes::new();
                Ok(false)
            }
        }
    }

    /// Hands over what has come. Waits for it at most so long, or not at all.
    pub(super) fn receive(
        &mut self,
        wait: Option<Duration>,
        handle: &mut dyn FnMut(&[u8]),
    ) -> Result<Received, SyncError> {
        self.set_nonblocking(wait.is_none())?;
        if let Some(wait) = wait {
            self.set_read_timeout(wait.max(Duration::from_millis(1)))?;
        }
        let read = match &mut self.tls {
            None => self.socket.read(&mut self.buffer),
            Some(tls) => tls.read_tls(&mut self.socket),
        };
        let count = match read {
            Ok(count) => count,
            Err(error) if is_patience(&error) => return Ok(Received::Nothing),
            Err(error) => return self.ended(Some(error)),
        };
        if count == 0 {
            return self.ended(None);
        }
        let Some(tls) = &mut self.tls else {
            handle(&self.buffer[..count]);
            return Ok(Received::Bytes);
        };
        if let Err(error) = tls.process_new_packets() {
            // The server learns what we do not like about it, if it still listens.
            let _ = send_tls(&mut self.socket, tls, &mut self.output);
            return Err(tls::failed(error, &self.server));
        }
        loop {
            match tls.reader().read(&mut self.buffer) {
                Ok(0) => return self.ended(None),
                Ok(count) => handle(&self.buffer[..count]),
                Err(error) if is_patience(&error) => return Ok(Received::Bytes),
                Err(error) => return self.ended(Some(error)),
            }
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn close(&mut self) -> Result<(), SyncError> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            self.send(true)?;
        }
        self.socket
            .shutdown(Shutdown::Write)
            .map_err(|error| lost(Some(error)))
    }

    fn ended(&self, error: Option<io::Error>) -> Result<Received, SyncError> {
        match &self.tls {
            Some(tls) if tls.is_handshaking() => Err(SyncError::Tls {
                server: self.server.clone(),
                what: "the server does not answer to TLS, but closes the connection".into(),
            }),
            _ => Ok(Received::End(error)),
        }
    }

    fn set_nonblocking(&mut self, nonblocking: bool) -> Result<(), SyncError> {
        if self.nonblocking != nonblocking {
            self.socket
                .set_nonblocking(nonblocking)
                .map_err(|error| lost(Some(error)))?;
            self.nonblocking = nonblocking;
        }
        Ok(())
    }

    fn set_read_timeout(&mut self, timeout: Duration) -> Result<(), SyncError> {
        if self.read_timeout != Some(timeout) {
            self.socket
                .set_read_timeout(Some(timeout))
                .map_err(|error| lost(Some(error)))?;
            self.read_timeout = Some(timeout);
        }
        Ok(())
    }
}

fn lost(source: Option<io::Error>) -> SyncError {
    SyncError::ConnectionLost {
        during: "at the socket",
        source,
    }
}

/// Whether an error only says that it is not time yet.
fn is_patience(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn send_plain(socket: &mut TcpStream, output: &mut Bytes) -> io::Result<bool> {
    if output.is_empty() {
        return Ok(false);
    }
    let count = socket.write(output)?;
    output.advance(count);
    Ok(count > 0)
}

fn send_tls(
    socket: &mut TcpStream,
    tls: &mut ClientConnection,
    output: &mut Bytes,
) -> io::Result<bool> {
    let mut any = false;
    loop {
        while tls.wants_write() {
            match tls.write_tls(socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => any = true,
                Err(error) if any && is_patience(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        if output.is_empty() || tls.is_handshaking() {
            return Ok(any);
        }
        let count = tls.writer().write(output)?;
        output.advance(count);
    }
}
