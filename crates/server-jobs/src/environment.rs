//! Where the server takes time, randomness, threads and connections from, so that a
//! simulator can run the real server in a world of its own.
//!
//! Deadlines are tokio's: a simulator pauses tokio's clock. What rows mean, TLS and
//! the protocol are left to the layers above.

use std::io;
use std::sync::Arc;

use tidewater_carrier::listen::TcpNetwork;
use tidewater_carrier::tls;

pub use tidewater_carrier::listen::{
    BoxFuture, ByteStream, IncomingStream, ServerNetwork, StreamListener,
};

/// Everything that the server takes from outside.
#[derive(Clone)]
pub struct Environment {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Ids, credentials, salts, jitter.
    pub randomness: Arc<dyn Randomness>,
    /// Work that keeps a core busy.
    pub blocking: Arc<dyn BlockingRunner>,
    /// Who connects.
    pub network: Arc<dyn ServerNetwork>,
}

impl Environment {
    /// The operating system's.
    pub fn real() -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            randomness: Arc::new(SystemRandomness),
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
pub trait BlockingRunner: Send + Sync {
    /// Runs the job soon, elsewhere.
    fn run(&self, job: Box<dyn FnOnce() + Send>);
}

/// Random bytes of a fixed number.
pub fn random<const N: usize>(randomness: &dyn Randomness) -> io::Result<[u8; N]> {
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

struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        tls::random(bytes)
    }
}

struct TokioBlocking;

impl BlockingRunner for TokioBlocking {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(job);
    }
}
