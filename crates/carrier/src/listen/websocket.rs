//! A connection in the messages of a WebSocket, listened for.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::{Sink, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::ByteStream;
use crate::websocket::config;

/// The largest message that is written.
const MESSAGE_BYTES: usize = 128 << 10;

/// A connection that waits keeps a buffer of this size.
const READ_BYTES: usize = 4 << 10;

/// The bytes in a WebSocket on which both sides have agreed.
pub async fn websocket<S: ByteStream>(stream: S) -> impl ByteStream {
    let config = config().read_buffer_size(READ_BYTES).write_buffer_size(0);
    WebSocketStreamReader {
        socket: WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await,
        message: Bytes::new(),
    }
}

/// What a server answers in `Sec-WebSocket-Accept` to a key that it is asked with.
pub fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

struct WebSocketStreamReader<S> {
    socket: WebSocketStream<S>,
    /// What came and was not read yet.
    message: Bytes,
}

fn from_socket_error(error: Error) -> io::Error {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => ErrorKind::BrokenPipe.into(),
        Error::Io(error) => error,
        other => io::Error::new(ErrorKind::InvalidData, other),
    }
}

impl<S: ByteStream> AsyncRead for WebSocketStreamReader<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.message.is_empty() {
            match ready!(Pin::new(&mut this.socket).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => this.message = bytes,
                None | Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed)) => {
                    return Poll::Ready(Ok(()));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(from_socket_error(error))),
            }
        }
        let count = this.message.len().min(buffer.remaining());
        buffer.put_slice(&this.message[..count]);
        this.message.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: ByteStream> AsyncWrite for WebSocketStreamReader<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut socket = Pin::new(&mut self.get_mut().socket);
        ready!(socket.as_mut().poll_ready(context)).map_err(from_socket_error)?;
        let piece = &bytes[..bytes.len().min(MESSAGE_BYTES)];
        let message = Message::Binary(Bytes::copy_from_slice(piece));
        socket.start_send(message).map_err(from_socket_error)?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Pin::new(&mut self.get_mut().socket);
        socket.poll_flush(context).map_err(from_socket_error)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Pin::new(&mut self.get_mut().socket);
        match ready!(socket.poll_close(context)) {
            // The other side was quicker.
            Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(from_socket_error(error))),
        }
    }
}
