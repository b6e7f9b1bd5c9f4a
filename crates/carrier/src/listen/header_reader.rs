//! The first bytes of an accepted connection: the PROXY header that a balancer puts in front, and
//! the refusal of one that comes from anybody else. What such a header says is
//! [`proxied`]'s affair.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::{ByteStream, IncomingStream};
use crate::proxy_header::{self, ConnectionOrigin, HeaderScan, MAX_HEADER_BYTES};

impl IncomingStream {
    /// Of a connection from a balancer: reads what that says of its client, who is the peer from
    /// then on. Without a header the balancer stays the peer. `None` if it only looked whether
    /// somebody is there. Waits for the first bytes, so the caller has to have a deadline.
    ///
    /// # Errors
    /// A header is malformed or breaks off.
    pub async fn introduced(mut self) -> io::Result<Option<IncomingStream>> {
        let mut seen = BytesMut::new();
        let mut is_introduced = false;
        loop {
            let beginning = match is_introduced {
                // The balancer's own connections may end here.
                true if seen.is_empty() => HeaderScan::Unfinished,
                true => HeaderScan::Other,
                false => proxy_header::read(&seen).map_err(invalid)?,
            };
            match beginning {
                HeaderScan::Other => break,
                HeaderScan::Header { bytes, from } => {
                    seen.advance(bytes);
                    is_introduced = true;
                    if let ConnectionOrigin::Client(address) = from {
                        self.peer = address.to_string();
                        break;
                    }
                }
                HeaderScan::Unfinished => {
                    // Not more than a header can have.
                    let room = MAX_HEADER_BYTES - seen.len().min(MAX_HEADER_BYTES - 1);
                    let mut room = AsyncReadExt::take(&mut self.stream, room as u64);
                    match room.read_buf(&mut seen).await {
                        Ok(0) | Err(_) if seen.is_empty() => return Ok(None),
                        Ok(0) => return Err(invalid("the connection ends in a PROXY header")),
                        Ok(_) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        if !seen.is_empty() {
            self.stream = Box::new(PeekedStream {
                seen: seen.freeze(),
                stream: self.stream,
            });
        }
        Ok(Some(self))
    }

    /// Of a connection from anybody else: one that begins with such a header fails when it is
    /// read, and `refused` hears of it.
    pub fn unintroduced(mut self, refused: impl FnOnce() + Send + 'static) -> IncomingStream {
        self.stream = Box::new(HeaderWatchStream {
            seen: Some(Vec::new()),
            refused: Some(Box::new(refused)),
            stream: self.stream,
        });
        self
    }
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

/// A stream of which something was read already.
pub(super) struct PeekedStream {
    pub(super) seen: Bytes,
    pub(super) stream: Box<dyn ByteStream>,
}

impl AsyncRead for PeekedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seen.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let bytes = self.seen.len().min(into.remaining());
        into.put_slice(&self.seen.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

/// A stream that must not begin with a header.
struct HeaderWatchStream {
    /// The first bytes, as long as they may be one.
    seen: Option<Vec<u8>>,
    refused: Option<Box<dyn FnOnce() + Send>>,
    stream: Box<dyn ByteStream>,
}

impl AsyncRead for HeaderWatchStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        let Some(seen) = &mut self.seen else {
            return Poll::Ready(Ok(()));
        };
        let news = &into.filled()[before..];
        // More than both beginnings have.
        seen.extend_from_slice(&news[..news.len().min(16)]);
        match proxy_header::is_header(seen) {
            None => {}
            Some(false) => {
                self.seen = None;
                self.refused = None;
            }
            Some(true) => {
                into.set_filled(before);
                if let Some(refused) = self.refused.take() {
                    refused();
                }
                return Poll::Ready(Err(invalid(
                    "a PROXY header from an address that is no proxy",
                )));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Writing goes to the stream below.
macro_rules! writes_below {
    ($layer:ident) => {
        impl AsyncWrite for $layer {
            fn poll_write(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.stream).poll_write(context, bytes)
            }

            fn poll_flush(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.stream).poll_flush(context)
            }

            fn poll_shutdown(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.stream).poll_shutdown(context)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
            }

            fn is_write_vectored(&self) -> bool {
                self.stream.is_write_vectored()
            }
        }
    };
}

writes_below!(PeekedStream);
writes_below!(HeaderWatchStream);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::AsyncWriteExt;

    use super::*;

    const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    const CLIENT: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n";

    /// A connection that brings these pieces and ends.
    fn incoming(pieces: &[&[u8]]) -> IncomingStream {
        let (stream, mut other) = tokio::io::duplex(64);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|it| it.to_vec()).collect();
        tokio::spawn(async move {
            for piece in pieces {
                let _ = other.write_all(&piece).await;
                tokio::task::yield_now().await;
            }
        });
        IncomingStream {
            stream: Box::new(stream),
            peer: "10.0.0.9".into(),
        }
    }

    async fn rest(mut incoming: IncomingStream) -> (String, Vec<u8>) {
        let mut rest = Vec::new();
        incoming.stream.read_to_end(&mut rest).await.unwrap();
        (incoming.peer, rest)
    }

    #[tokio::test]
    async fn a_balancer_says_who_the_peer_is() {
        for (pieces, peer, bytes) in [
            (&[CLIENT, b"hello"][..], "192.0.2.7", &b"hello"[..]),
            (&[&CLIENT[..9], &CLIENT[9..]], "192.0.2.7", b""),
            (&[b"hello"], "10.0.0.9", b"hello"),
            (&[LOCAL, b"hello"], "10.0.0.9", b"hello"),
            // Only the first word counts: what follows is the client's.
            (&[CLIENT, CLIENT], "192.0.2.7", CLIENT),
            (&[LOCAL, CLIENT], "10.0.0.9", CLIENT),
        ] {
            let introduced = incoming(pieces).introduced().await.unwrap().unwrap();
            assert_eq!(rest(introduced).await, (peer.to_owned(), bytes.to_vec()));
        }
        for looks in [&[][..], &[LOCAL]] {
            assert!(incoming(looks).introduced().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn a_header_that_is_none_ends_the_connection() {
        let huge = [&LOCAL[..14], &[255, 255], &[0; 100]].concat();
        for wrong in [&CLIENT[..9], &LOCAL[..15], b"PROXY TCP4 what?\r\n", &huge] {
            let error = incoming(&[wrong]).introduced().await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
    }

    #[tokio::test]
    async fn a_header_of_anybody_else_is_refused_and_nothing_of_it_is_read() {
        for pieces in [&[CLIENT][..], &[LOCAL], &[&LOCAL[..5], &LOCAL[5..]]] {
            let told = Arc::new(AtomicBool::new(false));
            let tells = told.clone();
            let tell = move || tells.store(true, Ordering::Relaxed);
            let mut watched = incoming(pieces).unintroduced(tell);
            let mut read = Vec::new();
            let error = watched.stream.read_to_end(&mut read).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(told.load(Ordering::Relaxed) && read.len() < 12);
        }
        let watched = incoming(&[b"PRO", b"PER", CLIENT]).unintroduced(|| panic!("no header"));
        let (_, read) = rest(watched).await;
        assert_eq!(read, [b"PROPER", CLIENT].concat());
    }
}
