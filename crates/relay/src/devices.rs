//! Devices: whom they want to reach, by their first bytes, and what goes both ways afterwards.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy,
    copy_bidirectional_with_sizes, sink,
};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use tidewater_carrier::listen::{ByteStream, IncomingStream, StreamListener};

use crate::client_hello::{ClientHelloReader, NoHello, RequestedServer};
use crate::relay_state::RelayState;
use crate::tunnel_pool::NoTunnel;

/// How long a device may take to say whom it wants to reach.
const HELLO: Duration = Duration::from_secs(10);

/// Whoever is sent away may take so long to read why, and then to close.
const LINGER: Duration = Duration::from_secs(2);

/// A connection over which nothing goes for so long is given up: what is alive pings more often.
const IDLE: Duration = Duration::from_secs(300);

/// How much is read at once, each way: a record of TLS.
const CHUNK: usize = 16 << 10;

/// Devices over the limit that are told so at the same time; others are only closed.
const TURNED_AWAY: usize = 1_024;

/// What TLS says in place of an answer.
#[derive(Clone, Copy)]
enum TlsAlert {
    UnexpectedMessage = 10,
    DecodeError = 50,
    InternalError = 80,
    UnrecognizedName = 112,
}

/// Takes devices until it is dropped.
pub(crate) async fn accept_all(shared: Arc<RelayState>, mut listener: Box<dyn StreamListener>) {
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                // Out of file descriptors, most likely: some will be closed.
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match shared.enter() {
            Some(guard) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    serve(&shared, incoming).await;
                    drop(guard);
                });
            }
            None => {
                shared.metrics.refused("full");
                if let Ok(place) = turned_away.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        send_away(incoming.stream, &alert(TlsAlert::InternalError)).await;
                        drop(place);
                    });
                }
            }
        }
    }
}

/// One connection from its first byte to its last.
pub(crate) async fn serve(shared: &RelayState, incoming: IncomingStream) {
    let IncomingStream { mut stream, peer } = incoming;
    let mut hello = ClientHelloReader::default();
    let wanted = match timeout(HELLO, hear(&mut stream, &mut hello)).await {
        Ok(Ok(Some(wanted))) => wanted,
        // Somebody who looked whether we are there.
        Ok(Ok(None) | Err(HelloError::Lost(_))) => return,
        Ok(Err(HelloError::Wrong(why))) => {
            shared.metrics.refused("not_tls");
            tracing::info!(peer, %why, "a connection is refused");
            let answer = match why {
                NoHello::Http => HTTP.as_bytes().to_vec(),
                NoHello::Other => alert(TlsAlert::UnexpectedMessage),
                NoHello::Malformed | NoHello::TooLong => alert(TlsAlert::DecodeError),
            };
            return send_away(stream, &answer).await;
        }
        Err(_) => {
            shared.metrics.refused("silent");
            tracing::info!(peer, "whom it wants to reach was not said in time");
            return;
        }
    };
    let Ok(client) = peer.parse::<IpAddr>() else {
        return;
    };
    let name = wanted.name.as_deref().unwrap_or_default();
    let given = shared
        .lines
        .give(name, client, wanted.is_web, hello.bytes());
    match given.await {
        Ok((line, place)) => {
            tracing::debug!(peer, name, "a device is with its server");
            shared.metrics.relayed();
            relay(shared, stream, line).await;
            drop(place);
        }
        Err(why) => {
            let (word, answer) = match why {
                NoTunnel::Unknown => ("unknown_name", TlsAlert::UnrecognizedName),
                NoTunnel::Unregistered => ("unregistered", TlsAlert::InternalError),
                NoTunnel::Late => ("late", TlsAlert::InternalError),
            };
            shared.metrics.refused(word);
            tracing::info!(peer, name, %why, "a connection is refused");
            send_away(stream, &alert(answer)).await;
        }
    }
}

/// Why it is not known whom a device wants to reach.
enum HelloError {
    Wrong(NoHello),
    Lost(#[expect(dead_code, reason = "nobody is told")] io::Error),
}

/// Reads until it is known whom a device wants to reach; `None` if it ends before.
async fn hear(
    stream: &mut Box<dyn ByteStream>,
    hello: &mut ClientHelloReader,
) -> Result<Option<RequestedServer>, HelloError> {
    let mut bytes = [0; 4_096];
    loop {
        let count = stream.read(&mut bytes).await.map_err(HelloError::Lost)?;
        if count == 0 {
            return Ok(None);
        }
        let heard = hello.push(&bytes[..count]);
        if let Some(wanted) = heard.map_err(HelloError::Wrong)? {
            return Ok(Some(wanted));
        }
    }
}

/// A record of TLS with a fatal alert.
fn alert(what: TlsAlert) -> Vec<u8> {
    vec![0x15, 3, 3, 0, 2, 2, what as u8]
}

/// Clients show the first line.
const HTTP: &str = "HTTP/1.1 400 TLS only: write https, wss or tls\r\nContent-Length: 0\r\n\
Connection: close\r\n\r\n";

/// Says why, and waits until that is read: what is closed with bytes unread takes it back.
async fn send_away(mut stream: Box<dyn ByteStream>, answer: &[u8]) {
    let goodbye = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        copy(&mut stream, &mut sink()).await
    };
    let _ = timeout(LINGER, goodbye).await;
}

/// Lets bytes go both ways until both have ended, or nothing goes any more.
async fn relay(shared: &RelayState, device: Box<dyn ByteStream>, line: Box<dyn ByteStream>) {
    let moved = Arc::new(AtomicU64::new(0));
    let counted = |stream| CountedStream {
        moved: moved.clone(),
        stream,
    };
    let (mut device, mut line) = (counted(device), counted(line));
    let idle = async {
        let mut before = 0;
        loop {
            sleep(IDLE).await;
            let now = moved.load(Ordering::Relaxed);
            if now == before {
                return;
            }
            before = now;
        }
    };
    tokio::select! {
        // However it ended, both sides see it.
        _ = copy_bidirectional_with_sizes(&mut device, &mut line, CHUNK, CHUNK) => {}
        () = idle => tracing::info!("a connection over which nothing goes is closed"),
        () = shared.aborted() => {}
    }
    shared.metrics.moved(moved.load(Ordering::Relaxed));
}

/// Counts what is read.
struct CountedStream {
    moved: Arc<AtomicU64>,
    stream: Box<dyn ByteStream>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        let news = into.filled().len() - before;
        self.moved.fetch_add(news as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for CountedStream {
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
