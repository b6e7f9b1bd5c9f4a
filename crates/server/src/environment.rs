//! Where the server takes time, randomness, threads and connections from, so that a
//! simulator can run the real server in a world of its own.
//!
//! Deadlines are tokio's: a simulator pauses tokio's clock. What rows mean, TLS and
//! the protocol are left to the layers above.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everything that the server takes from outside.
#[derive(Clone)]
pub struct Environment {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Ids, credentials, salts, jitter.
    pub randomness: Arc<dyn Randomness>,
    /// Work that keeps a core busy.
    pub blocking: Arc<dyn Blocking>,
    /// Who connects.
    pub network: Arc<dyn Network>,
}

impl Environment {
    /// The operating system's.
    pub fn real() -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            randomness: Arc::new(SystemRandomness(SystemRandom::new())),
            blocking: Arc::new(TokioBlocking),
            network: Arc::new(TcpNetwork),
        }
    }
}

/// The time of day.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;
}

/// A source of random bytes fit for secrets.
pub trait Randomness: Send + Sync {
    /// Fills the bytes.
    ///
    /// # Errors
    /// The source has failed.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// Runs what would hold up the other tasks.
pub trait Blocking: Send + Sync {
    /// Runs the job soon, elsewhere.
    fn run(&self, job: Box<dyn FnOnce() + Send>);
}

/// Makes listeners.
pub trait Network: Send + Sync {
    /// Listens on `host:port`.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>>;
}

/// Yields connections.
pub trait Listener: Send {
    /// The address that it is bound to, `host:port`.
    fn address(&self) -> String;

    /// The next connection. May be dropped and called again without losing one.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>>;
}

/// A connection, before anything is read from it.
pub struct Incoming {
    /// The bytes.
    pub stream: Box<dyn Stream>,
    /// Where it comes from: what failed attempts are counted by, without a port.
    pub peer: String,
}

/// A stream of bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Random bytes of a fixed number.
pub(crate) fn random<const N: usize>(randomness: &dyn Randomness) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    randomness.fill(&mut bytes)?;
    Ok(bytes)
}

struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where the server reads the real clock"
    )]
    fn now_ms(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| {
                i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
            })
    }
}

struct SystemRandomness(SystemRandom);

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0
            .fill(bytes)
            .map_err(|_| io::Error::other("the system's random source failed"))
    }
}

struct TokioBlocking;

impl Blocking for TokioBlocking {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(job);
    }
}

struct TcpNetwork;

impl Network for TcpNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }
}

impl Listener for TcpListener {
    fn address(&self) -> String {
        self.local_addr()
            .map_or_else(|_| "unknown".into(), |address| address.to_string())
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            // Replies leave whole; waiting for more would only delay them.
            stream.set_nodelay(true)?;
            Ok(Incoming {
                stream: Box::new(stream),
                peer: peer.ip().to_string(),
            })
        })
    }
}
