//! A connection in the messages of a WebSocket (RFC 6455), dialed: the stream of bytes is cut into
//! binary messages anywhere.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;

use bytes::{Buf, Bytes};
use tungstenite::error::ProtocolError;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::generate_key;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, Message};

use crate::dialer::{Dialer, open};
use crate::error::{CarrierError, SCHEME_HEADER};
use crate::layer::{Layer, is_patience};

/// The largest message that is read: what servers send has no more than some 100 KiB.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// How both sides set it up.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES))
        .read_buffer_size(64 << 10)
        .write_buffer_size(64 << 10)
        .max_write_buffer_size(4 << 20)
}

/// See the module.
pub(crate) struct WebSocketLayer {
    socket: tungstenite::WebSocket<Box<dyn Layer>>,
    /// What came and was not read yet.
    message: Bytes,
    /// Messages after it may be here already: it was read with all that had come.
    has_more: bool,
    /// Something may wait to be sent.
    unsent: bool,
}

impl std::fmt::Debug for WebSocketLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebSocket over {:?}", self.socket.get_ref())
    }
}

impl WebSocketLayer {
    /// Agrees with the server to go on so.
    pub(crate) fn open(
        mut below: Box<dyn Layer>,
        dialer: &Dialer,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<WebSocketLayer, CarrierError> {
        open(&mut below, dialer, go_on)?;
        let url = &dialer.url;
        let request = tungstenite::http::Request::builder()
            .uri(format!("ws://{}{}", url.address(), url.path))
            .header("Host", url.authority())
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key())
            .body(());
        let request = request.map_err(|error| CarrierError::Other {
            server: url.to_string(),
            what: error.to_string(),
        })?;
        let handle = below.socket().try_clone().map_err(CarrierError::Lost)?;
        let mut next = Some(WebSocketHandshake::Begin(below, request));
        let (socket, _) = dialer.handshake().agree(&handle, go_on, || {
            let result = match next.take() {
                Some(WebSocketHandshake::Begin(below, request)) => {
                    tungstenite::client::client_with_config(request, below, Some(config()))
                }
                Some(WebSocketHandshake::Goes(handshake)) => handshake.handshake(),
                None => return Err(ErrorKind::NotConnected.into()),
            };
            match result {
                Ok(done) => Ok(Some(done)),
                Err(HandshakeError::Interrupted(handshake)) => {
                    next = Some(WebSocketHandshake::Goes(handshake));
                    Ok(None)
                }
                Err(HandshakeError::Failure(Error::Io(error))) => Err(error),
                Err(HandshakeError::Failure(error)) => {
                    Err(io::Error::other(refusal(error, url.to_string())))
                }
            }
        })?;
        Ok(WebSocketLayer {
            socket,
            message: Bytes::new(),
            has_more: false,
            unsent: false,
        })
    }
}

enum WebSocketHandshake {
    Begin(Box<dyn Layer>, tungstenite::http::Request<()>),
    Goes(tungstenite::handshake::MidHandshake<tungstenite::ClientHandshake<Box<dyn Layer>>>),
}

/// Why there is no WebSocket, for people.
fn refusal(error: Error, server: String) -> CarrierError {
    let response = match &error {
        Error::Http(response) => response,
        // It closed: a balancer without a server does so, too.
        Error::Protocol(ProtocolError::HandshakeIncomplete) => {
            let what = error.to_string();
            return CarrierError::Other { server, what };
        }
        Error::Protocol(ProtocolError::HttparseError(_)) | Error::HttpFormat(_) => {
            let what = "what answers there does not speak HTTP".into();
            return CarrierError::Mistaken { server, what };
        }
        Error::Protocol(_) => {
            let what = format!("what answers there does not speak WebSocket: {error}");
            return CarrierError::Mistaken { server, what };
        }
        other => {
            let what = other.to_string();
            return CarrierError::Other { server, what };
        }
    };
    let text = |name| response.headers().get(name).and_then(|it| it.to_str().ok());
    let what = match (text("location"), text("content-type")) {
        (Some(location), _) => format!("{}, go to {location}", response.status()),
        (None, Some(kind)) => format!("{} with {kind}", response.status()),
        (None, None) => response.status().to_string(),
    };
    CarrierError::by_answer(
        server,
        response.status().as_u16(),
        what,
        text(SCHEME_HEADER),
    )
}

/// An error of the library as one of a socket. `None`: the other side has closed.
fn from_socket_error(error: Error) -> Option<io::Error> {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => None,
        Error::Io(error) => Some(error),
        other => Some(io::Error::new(ErrorKind::InvalidData, other)),
    }
}

impl Read for WebSocketLayer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.message.is_empty() {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => self.message = bytes,
                Ok(Message::Close(_)) => return Ok(0),
                // Pings are answered with the next write.
                Ok(_) => self.unsent = true,
                Err(error) => {
                    self.has_more = false;
                    return from_socket_error(error).map_or(Ok(0), Err);
                }
            }
            self.has_more = true;
        }
        let count = buffer.len().min(self.message.len());
        self.message.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

impl Write for WebSocketLayer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(MAX_MESSAGE_BYTES)];
        let message = Message::Binary(Bytes::copy_from_slice(piece));
        match self.socket.write(message) {
            // What is not sent at once is kept.
            Ok(()) => {}
            Err(Error::Io(error)) if is_patience(&error) => {}
            Err(error) => {
                return Err(from_socket_error(error).unwrap_or(ErrorKind::BrokenPipe.into()));
            }
        }
        self.unsent = true;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_own().map(|_| ())
    }
}

impl Layer for WebSocketLayer {
    fn holds(&self) -> bool {
        self.has_more || !self.message.is_empty()
    }

    fn owes(&self) -> bool {
        self.unsent || self.socket.get_ref().owes()
    }

    fn write_own(&mut self) -> io::Result<bool> {
        let any = self.unsent;
        if any {
            let flushed = self.socket.flush();
            flushed.map_err(|error| {
                from_socket_error(error).unwrap_or(ErrorKind::BrokenPipe.into())
            })?;
            self.unsent = false;
        }
        Ok(self.socket.get_mut().write_own()? || any)
    }

    fn close(&mut self) -> io::Result<()> {
        // The layer below stays open: proxies take its end for that of both directions.
        let closed = self.socket.close(None);
        match closed.map_err(from_socket_error) {
            Ok(()) | Err(None) => {}
            Err(Some(error)) if is_patience(&error) => {}
            Err(Some(error)) => return Err(error),
        }
        self.unsent = true;
        match self.write_own() {
            Err(error) if !is_patience(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn socket(&self) -> &TcpStream {
        self.socket.get_ref().socket()
    }
}
