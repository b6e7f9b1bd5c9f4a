//! A server with a centre in memory, a clock that tests move, and sockets that count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_server::environment::{
    BoxFuture, ByteStream, Clock, Environment, IncomingStream, ServerNetwork, StreamListener,
};
use tidewater_server::{Config, RunningServer, Server, ServerError, hash_password};

use crate::centre::{Handle, MemoryCentre};
use crate::client::{Client, Remote};

pub(crate) const PASSWORD: &str = "correct horse";

/// Hashing is slow on purpose; once is enough.
static HASH: LazyLock<String> =
    LazyLock::new(|| hash_password(&Environment::real(), PASSWORD).unwrap());

pub(crate) const HOUR_MS: i64 = 60 * 60 * 1_000;

pub(crate) struct World {
    pub(crate) centre: Arc<MemoryCentre>,
    pub(crate) running: RunningServer,
    pub(crate) clock: Arc<TestClock>,
    /// Writes to sockets.
    pub(crate) writes: Arc<AtomicUsize>,
}

pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl World {
    pub(crate) async fn start() -> World {
        World::with_limits("").await
    }

    /// With lines for `[server.limits]`.
    pub(crate) async fn with_limits(limits: &str) -> World {
        World::beside(&MemoryCentre::new(), limits).await
    }

    /// Another server of the same centre.
    pub(crate) async fn beside(centre: &Arc<MemoryCentre>, limits: &str) -> World {
        let text = "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\n";
        World::try_start(centre, text, limits).await.unwrap()
    }

    /// With the beginning of the configuration.
    pub(crate) async fn try_start(
        centre: &Arc<MemoryCentre>,
        head: &str,
        limits: &str,
    ) -> Result<World, ServerError> {
        World::run(centre, World::config(head, limits)?).await
    }

    /// With a configuration.
    pub(crate) async fn run(
        centre: &Arc<MemoryCentre>,
        config: Config,
    ) -> Result<World, ServerError> {
        for name in ["ada", "bob", "eve"] {
            let user = UserRecord {
                name: name.into(),
                password_hash: HASH.clone(),
                disabled: false,
                created_ms: 0,
                proven: ProvenIdentity::default(),
            };
            centre.state().users.entry(name.into()).or_insert(user);
        }
        let clock = Arc::new(TestClock(AtomicI64::new(1_700_000_000_000)));
        let real = Environment::real();
        let writes = Arc::new(AtomicUsize::new(0));
        let environment = Environment {
            clock: clock.clone(),
            network: Arc::new(CountingNetwork {
                real: real.network.clone(),
                writes: writes.clone(),
            }),
            ..real
        };
        let handle = Arc::new(Handle(centre.clone()));
        let running = Server::start(config, handle, environment).await?;
        Ok(World {
            centre: centre.clone(),
            running,
            clock,
            writes,
        })
    }

    /// The same configuration.
    pub(crate) fn config(head: &str, limits: &str) -> Result<Config, ServerError> {
        let config = format!(
            "{head}\nconsolidated = \"sqlite:x\"\n[server.limits]\n{limits}\n\
             [retention]\ninterval = \"50ms\"\n\
             [[publication]]\nname = \"notes\"\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n"
        );
        Ok(Config::parse(&config)?)
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(&self.running.addresses[0]).await
    }

    /// A remote that has signed in and synced once.
    pub(crate) async fn remote(&self, user: &str) -> Remote {
        let mut remote = Remote::new(user);
        let mut client = self.connect().await;
        let reply = client.sync(remote.password(PASSWORD)).await;
        assert!(reply.complete, "{reply:?}");
        remote.learn(&reply);
        remote
    }
}

/// Waits for something that another task does soon.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

struct CountingNetwork {
    real: Arc<dyn ServerNetwork>,
    writes: Arc<AtomicUsize>,
}

impl ServerNetwork for CountingNetwork {
    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>> {
        Box::pin(async move {
            let listener = self.real.listen(address).await?;
            Ok(Box::new(CountingListener {
                listener,
                writes: self.writes.clone(),
            }) as Box<dyn StreamListener>)
        })
    }
}

struct CountingListener {
    listener: Box<dyn StreamListener>,
    writes: Arc<AtomicUsize>,
}

impl StreamListener for CountingListener {
    fn address(&self) -> String {
        self.listener.address()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async move {
            let IncomingStream { stream, peer } = self.listener.accept().await?;
            let writes = self.writes.clone();
            let stream = Box::new(CountingStream { stream, writes });
            Ok(IncomingStream { stream, peer })
        })
    }
}

struct CountingStream {
    stream: Box<dyn ByteStream>,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for CountingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.writes.fetch_add(1, Ordering::SeqCst);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
