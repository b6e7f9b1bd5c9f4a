//! The simulated world: a centre, its servers, the network, the remotes, and what happens.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use futures_util::future::{join_all, try_join, try_join_all};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep};

use tidewater_consolidated::Centre;
use tidewater_consolidated::records::UserRecord;
use tidewater_consolidated::sqlite::{Jobs, SqliteEnvironment, connect_in};
use tidewater_remote::session::Now;
use tidewater_server::environment::{Blocking, Clock, Environment, Randomness};
use tidewater_server::{Config, Running, Server};

use crate::application::{self, Application, FreshKeys};
use crate::chronicle::Chronicle;
use crate::judge;
use crate::network::{Address, Weather};
use crate::plan::Plan;
use crate::random::Random;
use crate::remote::Remote;
use crate::scenario::{self, SCHEMA, USERS};

/// Everybody's password.
pub(crate) const PASSWORD: &str = "correct horse";

/// When every simulation begins, in milliseconds since 1970.
const BEGIN_MS: i64 = 1_700_000_000_000;

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// Hashing is slow on purpose, but not here: at the least cost that there is.
static HASH: LazyLock<String> = LazyLock::new(|| {
    let cost = Params::new(Params::MIN_M_COST, 1, 1, None).expect("the least cost is a cost");
    let salt = SaltString::encode_b64(b"a simulated salt").expect("it is short enough");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, cost)
        .hash_password(PASSWORD.as_bytes(), &salt)
        .expect("the password is not too long")
        .to_string()
});

/// A promise is broken, or something that cannot be has happened.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(format!("unexpected: {error}"))
    }
}

/// What everybody in a simulation shares.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) chronicle: Rc<Chronicle>,
    pub(crate) keys: FreshKeys,
    folder: TempDir,
    began: Instant,
    /// The servers' addresses; a remote takes any.
    servers: Vec<Address>,
    next_server: Cell<usize>,
    /// The judges' own connection, which only reads.
    centre: RefCell<Connection>,
    /// The regions that a user has had at any time.
    ever_held: RefCell<BTreeMap<&'static str, BTreeSet<i64>>>,
}

/// Runs a simulation from beginning to end.
pub(crate) async fn play(plan: Plan, chronicle: Rc<Chronicle>) {
    let played = simulate(plan, &chronicle).await;
    if let Err(Failed(what)) = played {
        chronicle.failed(what);
    }
}

async fn simulate(plan: Plan, chronicle: &Rc<Chronicle>) -> Result<(), Failed> {
    let mut random = Random::new(plan.seed);
    let folder = folder()?;
    let path = folder.path().join("centre.db");
    Connection::open(&path)?.execute_batch(&format!("{SCHEMA}{}", scenario::audit()))?;
    let sqlite = sqlite_environment(&mut random);
    let servers = random.between(1, 3) as usize;
    let addresses: Vec<Address> = (0..servers).map(|_| Address::default()).collect();
    let began = Instant::now();
    let mut running = Vec::new();
    for address in &addresses {
        let centre = connect_in(path.clone(), sqlite.clone()).await?;
        let config = Config::parse(&scenario::config(limits(&mut random)))?;
        if running.is_empty() {
            prepare(&*centre, &config).await?;
        }
        let environment = environment(began, address, &mut random);
        running.push(Server::start(config, centre, environment).await?);
    }
    let centre = application::open(&path)?;
    let world = Rc::new(World {
        plan,
        chronicle: chronicle.clone(),
        keys: FreshKeys::new(),
        folder,
        began,
        servers: addresses,
        next_server: Cell::new(0),
        centre: RefCell::new(centre),
        ever_held: RefCell::default(),
    });
    let result = live(&world, &mut random, &path).await;
    for address in &world.servers {
        address.close();
    }
    join_all(running.into_iter().map(Running::shutdown)).await;
    result
}

/// Everybody does as the seed says; then the world heals, and is judged.
async fn live(world: &Rc<World>, random: &mut Random, centre: &Path) -> Result<(), Failed> {
    world.note_held()?;
    let mut remotes = Vec::new();
    for number in 0..world.plan.remotes {
        let user = USERS[(number % USERS.len() as u64) as usize];
        let name = format!("r{number}");
        remotes.push(Remote::new(world, name, user, random.fork())?);
    }
    let lives = remotes.iter().map(|remote| {
        let (own, other) = (random.fork(), random.fork());
        let steps = world.plan.steps;
        try_join(remote.live(own, steps), remote.disturb(other, steps / 2))
    });
    let lives: Vec<_> = lives.collect();
    let application = Application::new(
        application::open(centre)?,
        "centre".into(),
        random.fork(),
        false,
    );
    let steps = world.plan.centre_steps;
    let centre_life = world.centre_life(application, random.fork(), steps);
    try_join(try_join_all(lives), centre_life).await?;
    world.chronicle.note("the world heals");
    sleep(HEALING).await;
    // Twice: what the last one uploads, the first one does not have.
    for _ in 0..2 {
        for remote in &remotes {
            remote.settle(random).await?;
        }
    }
    let found = judge::applied_twice(&world.centre_connection())?;
    found.map_or(Ok(()), |found| Err(Failed(found)))?;
    for remote in &remotes {
        remote.judge_at_rest()?;
    }
    Ok(())
}

impl World {
    /// Where the files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The time as remotes know it.
    pub(crate) fn now(&self) -> Now {
        let elapsed_ms = self.chronicle.elapsed_ms();
        Now {
            ticks_ms: elapsed_ms,
            unix_ms: BEGIN_MS + i64::try_from(elapsed_ms).unwrap_or(i64::MAX),
        }
    }

    /// The moment of so many ticks.
    pub(crate) fn instant(&self, ticks_ms: u64) -> Instant {
        // Longer than any simulation, and short enough to be a time.
        self.began + Duration::from_millis(ticks_ms.min(1 << 40))
    }

    /// A connection to one server after the other.
    pub(crate) fn dial(&self, weather: Weather) -> Option<DuplexStream> {
        let next = self.next_server.get();
        self.next_server.set((next + 1) % self.servers.len());
        self.servers[next].dial(weather, &self.chronicle)
    }

    /// The judges' connection to the centre.
    pub(crate) fn centre_connection(&self) -> Ref<'_, Connection> {
        self.centre.borrow()
    }

    /// The regions that a user has now.
    pub(crate) fn regions(&self, user: &str) -> Result<Vec<i64>, Failed> {
        let centre = self.centre.borrow();
        let sql = "SELECT region FROM assignment WHERE login = ?1 ORDER BY region";
        let mut statement = centre.prepare_cached(sql)?;
        let regions = statement.query_map([user], |row| row.get(0))?;
        Ok(regions.collect::<rusqlite::Result<_>>()?)
    }

    /// The regions that a user has had at any time.
    pub(crate) fn ever_held(&self, user: &'static str) -> BTreeSet<i64> {
        let held = self.ever_held.borrow();
        held.get(user).cloned().unwrap_or_default()
    }

    fn note_held(&self) -> Result<(), Failed> {
        for user in USERS {
            let regions = self.regions(user)?;
            let mut held = self.ever_held.borrow_mut();
            held.entry(user).or_default().extend(regions);
        }
        Ok(())
    }

    async fn centre_life(
        &self,
        mut application: Application,
        mut random: Random,
        steps: u64,
    ) -> Result<(), Failed> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(3_000))).await;
            if random.percent(40) {
                application.administer(USERS)?;
                self.note_held()?;
                continue;
            }
            let touched = application.edit(&self.keys, &[1, 2, 3, 4])?;
            self.chronicle
                .note(&format!("the centre edits {touched:?}"));
        }
        Ok(())
    }
}

/// Deploys, and adds the users.
async fn prepare(centre: &dyn Centre, config: &Config) -> Result<(), Failed> {
    centre.deploy(&config.publications, false, BEGIN_MS).await?;
    for user in USERS {
        let user = UserRecord {
            name: (*user).into(),
            password_hash: HASH.clone(),
            disabled: false,
            created_ms: BEGIN_MS,
        };
        centre.add_user(&user).await?;
    }
    Ok(())
}

fn limits(random: &mut Random) -> &'static str {
    let choices = ["", "memory = \"64KiB\"", "backlog = 1", "sync = \"10s\""];
    random.pick(&choices).unwrap_or_default()
}

/// In memory where the system offers that: nothing here depends on a disk.
fn folder() -> io::Result<TempDir> {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new())
}

fn sqlite_environment(random: &mut Random) -> SqliteEnvironment {
    let delays = Mutex::new(random.fork());
    let bytes = Mutex::new(random.fork());
    SqliteEnvironment {
        jobs: Jobs::Tasks(Arc::new(move || {
            let most = delays.lock().map_or(0, |mut random| random.below(20));
            // Most jobs take no time worth mentioning.
            Duration::from_millis(most.saturating_sub(12))
        })),
        randomness: Arc::new(move |buffer| {
            let filled = bytes.lock().map(|mut random| random.fill(buffer));
            filled.is_ok()
        }),
        opened: Arc::new(|_| {}),
        ..SqliteEnvironment::real()
    }
}

fn environment(began: Instant, address: &Address, random: &mut Random) -> Environment {
    Environment {
        clock: Arc::new(SimulatedClock { began }),
        randomness: Arc::new(SeededRandomness(Mutex::new(random.fork()))),
        blocking: Arc::new(Inline),
        network: Arc::new(address.clone()),
    }
}

struct SimulatedClock {
    began: Instant,
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> i64 {
        let elapsed = self.began.elapsed().as_millis();
        BEGIN_MS + i64::try_from(elapsed).unwrap_or(i64::MAX)
    }
}

struct SeededRandomness(Mutex<Random>);

impl Randomness for SeededRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut random = self.0.lock().map_err(|_| io::ErrorKind::Other)?;
        random.fill(bytes);
        Ok(())
    }
}

/// There is one thread only.
struct Inline;

impl Blocking for Inline {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}
