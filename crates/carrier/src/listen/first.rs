//! What somebody begins with, before it is decided how to go on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::Stream;

/// As many bytes as tell protocols apart.
const BYTES: usize = 4;

/// What is spoken, by the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// A handshake of TLS.
    Tls,
    /// The preface of a connection.
    Preface,
    /// Something else, HTTP most likely.
    Other,
}

impl First {
    fn of(bytes: &[u8]) -> First {
        match bytes {
            // A record with a handshake, of any version.
            [0x16, 3, ..] => First::Tls,
            b"TIDE" => First::Preface,
            _ => First::Other,
        }
    }
}

/// Waits for the first bytes, and gives the stream as if nobody had read them.
///
/// # Errors
/// The stream is broken.
pub async fn first(mut stream: Box<dyn Stream>) -> io::Result<(First, Box<dyn Stream>)> {
    let (mut bytes, mut count) = ([0; BYTES], 0);
    while count < BYTES {
        match stream.read(&mut bytes[count..]).await? {
            0 => break,
            more => count += more,
        }
    }
    let first = First::of(&bytes[..count]);
    let again = Again {
        stream,
        bytes,
        left: (0, count),
    };
    Ok((first, Box::new(again)))
}

/// A stream of which the first bytes have been read.
struct Again {
    stream: Box<dyn Stream>,
    bytes: [u8; BYTES],
    left: (usize, usize),
}

impl AsyncRead for Again {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (from, to) = self.left;
        if from == to {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = buffer.remaining().min(to - from);
        buffer.put_slice(&self.bytes[from..from + count]);
        self.left.0 += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Again {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
