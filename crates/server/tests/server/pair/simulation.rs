//! The simulated world: time, randomness and a network in memory for the real server.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_remote::session::Now;
use tidewater_server::environment::{
    BlockingRunner, BoxFuture, Clock, Environment, IncomingStream, Randomness, ServerNetwork,
    StreamListener,
};
use tidewater_server::{Config, RunningServer, Server};

use crate::centre::{Handle, MemoryCentre};

pub(super) const PASSWORD: &str = "correct horse";

/// When every simulation begins, in milliseconds since 1970.
const BEGIN_MS: i64 = 1_700_000_000_000;

/// What the network holds of each direction of a connection.
const WIRE_BYTES: usize = 1_024;

/// Runs a simulation: one thread, and time that passes only when everybody waits.
pub(super) fn simulate<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in so many times.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

/// A server, its centre and the network to it.
pub(super) struct Simulation {
    pub(super) centre: Arc<MemoryCentre>,
    began: Instant,
    environment: Environment,
    address: Arc<Address>,
    running: Option<RunningServer>,
    /// What happened, a line each: the same for the same seed.
    history: RefCell<Vec<String>>,
}

impl Simulation {
    /// A server with lines for `[server.limits]`.
    pub(super) async fn start(centre: Arc<MemoryCentre>, seed: u64, limits: &str) -> Simulation {
        let began = Instant::now();
        let address = Arc::new(Address::default());
        let environment = Environment {
            clock: Arc::new(SimulatedClock { began }),
            randomness: Arc::new(SeededRandomness(Mutex::new(Random::new(seed)))),
            blocking: Arc::new(Inline),
            network: Arc::new(MemoryNetwork(address.clone())),
        };
        let mut simulation = Simulation {
            centre,
            began,
            environment,
            address,
            running: None,
            history: RefCell::default(),
        };
        simulation.add_users();
        simulation.start_server(limits).await;
        simulation
    }

    /// Another server of the same centre, after [`Simulation::stop_server`].
    pub(super) async fn start_server(&mut self, limits: &str) {
        let config = format!(
            "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\nconsolidated = \"sqlite:x\"\n\
             [server.limits]\n{limits}\n\
             [[publication]]\nname = \"notes\"\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n"
        );
        let config = Config::parse(&config).unwrap();
        let handle = Arc::new(Handle(self.centre.clone()));
        let server = Server::start(config, handle, self.environment.clone()).await;
        self.running = Some(server.unwrap());
    }

    /// Ends when the server has.
    pub(super) fn stop_server(&mut self) -> impl Future<Output = ()> + 'static {
        let running = self.running.take().unwrap();
        running.shutdown()
    }

    fn add_users(&self) {
        // What a password costs is no matter here.
        let params = Params::new(Params::MIN_M_COST, 1, 1, None).unwrap();
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let salt = SaltString::encode_b64(b"a simulated salt").unwrap();
        let hash = argon2.hash_password(PASSWORD.as_bytes(), &salt).unwrap();
        for name in ["ada", "bob"] {
            let user = UserRecord {
                name: name.into(),
                password_hash: hash.to_string(),
                disabled: false,
                created_ms: 0,
                proven: ProvenIdentity::default(),
            };
            self.centre.state().users.insert(name.into(), user);
        }
    }

    pub(super) fn now(&self) -> Now {
        let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        Now {
            ticks_ms: elapsed_ms,
            unix_ms: BEGIN_MS + i64::try_from(elapsed_ms).unwrap(),
        }
    }

    /// The time of a session's deadline.
    pub(super) fn instant(&self, ticks_ms: u64) -> Instant {
        self.began + Duration::from_millis(ticks_ms)
    }

    /// A connection; `None` if nobody listens.
    pub(super) fn dial(&self) -> Option<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        let waiting = self.address.0.lock().unwrap().clone()?;
        waiting.send(theirs).ok()?;
        Some(ours)
    }

    pub(super) fn note(&self, line: String) {
        let now_ms = self.now().ticks_ms;
        self.history.borrow_mut().push(format!("{now_ms} {line}"));
    }

    pub(super) fn history(&self) -> Vec<String> {
        self.history.borrow().clone()
    }
}

struct SimulatedClock {
    began: Instant,
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> i64 {
        BEGIN_MS + i64::try_from(self.began.elapsed().as_millis()).unwrap()
    }
}

struct SeededRandomness(Mutex<Random>);

impl Randomness for SeededRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.lock().unwrap().fill(bytes);
        Ok(())
    }
}

/// There is one thread only.
struct Inline;

impl BlockingRunner for Inline {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

/// Where connections to whoever listens go.
#[derive(Default)]
struct Address(Mutex<Option<UnboundedSender<DuplexStream>>>);

struct MemoryNetwork(Arc<Address>);

impl ServerNetwork for MemoryNetwork {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>> {
        let (sender, connections) = unbounded_channel();
        *self.0.0.lock().unwrap() = Some(sender);
        Box::pin(
            async move { Ok(Box::new(MemoryListener(connections)) as Box<dyn StreamListener>) },
        )
    }
}

struct MemoryListener(UnboundedReceiver<DuplexStream>);

impl StreamListener for MemoryListener {
    fn address(&self) -> String {
        "127.0.0.1:7439".into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(stream) => Ok(IncomingStream {
                    stream: Box::new(stream),
                    peer: "device".into(),
                }),
                None => std::future::pending().await,
            }
        })
    }
}
