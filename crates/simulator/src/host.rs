//! A server's place in the world: processes that serve there one after the other, and how
//! they end.
//!
//! A killed process does nothing any more that anybody could notice: none of its
//! transactions commits, and its connections are cut. What is left of it in memory is
//! cleared away.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep};

use tidewater_centre::records::RetentionTimes;
use tidewater_centre::{Centre, CentreError, MarkFrequency};
use tidewater_centre_sqlite::{DeploymentCommits, Jobs, SqliteEnvironment, connect_in};
use tidewater_server::environment::{BlockingRunner, Clock, Environment, Randomness};
use tidewater_server::{Config, RunningServer, Server};

use crate::besides::Besides;
use crate::calendar::BEGIN_MS;
use crate::chronicle::Chronicle;
use crate::defects;
use crate::failure::SimulationFailure;
use crate::intruder::Intruder;
use crate::kit;
use crate::network::{Address, ConnectionRoute, Farm, Inlet, Traces, Weather, dial_in_requests};
use crate::random::SeededRandom;
use crate::scenario;
use crate::server_life::Life;
use crate::vfs;

/// Something did not fit a server's memory: it went to a file or beyond, or was refused.
pub(crate) const EXHAUSTED: &str = "memory budget exhausted";

/// What is deployed is not what was served before.
pub(crate) const DEPLOYED: &str = "changed schema deployed";

/// The log of changes has only what is needed for who has just synced.
pub(crate) const PRUNED: &str = "log of changes pruned";

/// What is kept so long is there as long as the world: ten years.
const FOREVER_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1_000;

/// How often a process is started again that fails to start.
const STARTS: u64 = 100;

/// A server's place.
pub(crate) struct Host {
    place: usize,
    /// Whether it serves calls and events.
    is_live: bool,
    besides: Besides,
    /// What it serves, if that is not the scenario.
    served: Option<Config>,
    began: Instant,
    random: RefCell<SeededRandom>,
    intruder: Intruder,
    /// How far the clock is ahead.
    clock_ms: Arc<AtomicI64>,
    process: RefCell<Option<Process>>,
}

/// A server that runs.
struct Process {
    address: Address,
    life: Arc<Life>,
    running: RunningServer,
    /// For connections in requests.
    inlet: Inlet,
}

impl Host {
    pub(crate) fn new(
        place: usize,
        began: Instant,
        random: SeededRandom,
        intruder: Intruder,
    ) -> Host {
        Host {
            place,
            is_live: false,
            besides: Besides::default(),
            served: None,
            began,
            random: RefCell::new(random),
            intruder,
            clock_ms: Arc::default(),
            process: RefCell::default(),
        }
    }

    /// One that serves calls and events, if so wanted.
    pub(crate) fn live(self, is_live: bool) -> Host {
        Host { is_live, ..self }
    }

    /// One of a centre that has this beside the tables of all.
    pub(crate) fn with(self, besides: Besides) -> Host {
        Host { besides, ..self }
    }

    /// One that serves this.
    pub(crate) fn serving(self, config: &Config) -> Host {
        Host {
            served: Some(config.clone()),
            ..self
        }
    }

    /// The centre as a new process opens it.
    async fn open(&self, path: PathBuf) -> Result<(Arc<dyn Centre>, Arc<Life>), SimulationFailure> {
        let (process, path) = vfs::start_beside(&path)
            .ok_or_else(|| SimulationFailure("the centre has no machine".into()))?;
        let life = Arc::new(Life::new(process));
        let environment =
            sqlite_environment(&mut self.random.borrow_mut(), life.clone(), &self.intruder);
        let centre = connect_in(path.clone(), environment).await?;
        Ok((defects::meddle(centre, path), life))
    }

    /// Deploys what the servers serve, as soon as nobody else writes.
    pub(crate) async fn deploy(&self, path: PathBuf) -> Result<Arc<dyn Centre>, SimulationFailure> {
        let (centre, _) = self.open(path).await?;
        let config = self.published()?;
        patiently(|| async {
            let mut deployed = centre.deploy(&config.publications, false, BEGIN_MS).await;
            if let Err(CentreError::RemotesHeldUp { .. }) = deployed {
                let insisting = centre.deploy_refusing_pending(&config.publications, BEGIN_MS);
                deployed = insisting.await;
            }
            Ok(deployed.map(|_| ())?)
        })
        .await?;
        Ok(centre)
    }

    /// A configuration with all that is published.
    fn published(&self) -> Result<Config, SimulationFailure> {
        if let Some(served) = &self.served {
            return Ok(served.clone());
        }
        // What a handler is provided by stands among what is live.
        let mut config = Config::parse(&scenario::live_config("", self.besides))?;
        config.publications[0].scripts = scenario::scripts();
        Ok(config)
    }

    /// The centre as a command of the operator's opens it. Unlike servers it gives up at once.
    pub(crate) async fn command(
        &self,
        path: PathBuf,
    ) -> Result<Arc<dyn Centre>, SimulationFailure> {
        let (centre, _) = self.open(path).await?;
        centre.load(&self.published()?.publications).await?;
        Ok(centre)
    }

    /// Lets a user in, or out, as soon as nobody else writes.
    pub(crate) async fn set_disabled(
        &self,
        path: PathBuf,
        user: &str,
        disabled: bool,
    ) -> Result<(), SimulationFailure> {
        patiently(|| async {
            let (centre, _) = self.open(path.clone()).await?;
            Ok(centre.set_disabled(user, disabled).await.map(drop)?)
        })
        .await
    }

    /// Removes every change from the log that is not needed for who has just synced.
    pub(crate) async fn prune_log(
        &self,
        path: PathBuf,
        now_ms: i64,
    ) -> Result<(), SimulationFailure> {
        let retention = RetentionTimes {
            log_ms: 0,
            history_ms: FOREVER_MS,
            conflicts_ms: FOREVER_MS,
        };
        patiently(|| async {
            let (centre, _) = self.open(path.clone()).await?;
            Ok(centre.prune(retention, now_ms).await.map(drop)?)
        })
        .await
    }

    /// Starts a server, as soon as nobody else writes.
    pub(crate) async fn start(&self, path: PathBuf) -> Result<(), SimulationFailure> {
        patiently(|| self.try_to_start(path.clone())).await
    }

    async fn try_to_start(&self, path: PathBuf) -> Result<(), SimulationFailure> {
        let (centre, life) = self.open(path).await?;
        let (address, environment, config) = {
            let mut random = self.random.borrow_mut();
            let address = Address::default();
            let environment = Environment {
                clock: Arc::new(SimulatedClock {
                    began: self.began,
                    ahead_ms: self.clock_ms.clone(),
                }),
                randomness: Arc::new(SeededRandomness(Mutex::new(random.fork()))),
                blocking: Arc::new(Inline),
                network: Arc::new(address.clone()),
            };
            let config = match &self.served {
                Some(config) => config.clone(),
                None => self.scenario(&mut random)?,
            };
            (address, environment, config)
        };
        let running = Server::start(config, centre, environment).await?;
        let inlet = Inlet::new(running.exchanges(), address.clone(), life.clone());
        *self.process.borrow_mut() = Some(Process {
            address,
            life,
            running,
            inlet,
        });
        Ok(())
    }

    /// The scenario as it is served here.
    fn scenario(&self, random: &mut SeededRandom) -> Result<Config, SimulationFailure> {
        let limits = ["", "memory = 2000", "backlog = 1", "sync_timeout = \"10s\""];
        let limits = random.pick(&limits).unwrap_or_default();
        let limits = format!("{limits}\nshutdown_timeout = \"1s\"");
        let config = match self.is_live {
            true => defects::configured(scenario::live_config(&limits, self.besides)),
            false => scenario::config(&limits, self.besides),
        };
        let mut config = Config::parse(&config)?;
        config.publications[0].scripts = scenario::scripts();
        // Even downloads of some rows break in the middle.
        config.server.limits.marks = MarkFrequency {
            bytes: 100,
            changes_after_ms: 0,
        };
        Ok(config)
    }

    /// A connection in this weather; `None` if nobody serves here.
    pub(crate) fn dial(
        &self,
        weather: Weather,
        traces: &Rc<Traces>,
        again: Rc<dyn Fn() -> Option<DuplexStream>>,
        chronicle: &Rc<Chronicle>,
    ) -> Option<DuplexStream> {
        let process = self.process.borrow();
        let process = process.as_ref()?;
        let way = self.way(process, traces, again, chronicle);
        process.address.dial(weather, way)
    }

    /// As [`Host::dial`], in requests that a balancer brings here first.
    pub(crate) fn dial_in_requests(
        &self,
        weather: Weather,
        traces: &Rc<Traces>,
        farm: Farm,
        chronicle: &Rc<Chronicle>,
    ) -> Option<DuplexStream> {
        let process = self.process.borrow();
        let nobody: Rc<dyn Fn() -> Option<DuplexStream>> = Rc::new(|| None);
        let way = self.way(process.as_ref()?, traces, nobody, chronicle);
        Some(dial_in_requests(self.place, weather, way, farm))
    }

    fn way(
        &self,
        process: &Process,
        traces: &Rc<Traces>,
        again: Rc<dyn Fn() -> Option<DuplexStream>>,
        chronicle: &Rc<Chronicle>,
    ) -> ConnectionRoute {
        ConnectionRoute {
            server: process.life.clone(),
            trace: traces.begin(self.place, chronicle),
            again,
            chronicle: chronicle.clone(),
        }
    }

    /// Where the process takes requests, if there is one.
    pub(crate) fn inlet(&self) -> Option<Inlet> {
        let process = self.process.borrow();
        process.as_ref().map(|process| process.inlet.clone())
    }

    /// The process will be killed by its so many-th commit, before or after it takes effect.
    pub(crate) fn kill_at_commit(&self, commit: u64, takes_effect: bool) -> Option<Arc<Life>> {
        let process = self.process.borrow();
        let life = &process.as_ref()?.life;
        life.die_at_commit(commit, takes_effect);
        Some(life.clone())
    }

    /// Whether the process lives, if there is one.
    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        let process = self.process.borrow();
        process.as_ref().map(|process| process.life.clone())
    }

    /// Kills the process at once.
    pub(crate) fn kill(&self) {
        if let Some(process) = &*self.process.borrow() {
            process.life.die();
        }
    }

    /// Ends the process: in good order, if it lives.
    ///
    /// # Errors
    /// It keeps memory that nobody uses any more.
    pub(crate) async fn stop(&self, chronicle: &Chronicle) -> Result<(), SimulationFailure> {
        let Some(process) = self.process.borrow_mut().take() else {
            return Ok(());
        };
        process.address.close();
        let memory = process.running.memory();
        process.running.shutdown().await;
        process.inlet.close().await;
        if memory.times_exhausted() > 0 {
            chronicle.fault(EXHAUSTED);
        }
        match memory.reserved_bytes() {
            0 => Ok(()),
            left => Err(SimulationFailure(format!(
                "a stopped server keeps {left} bytes"
            ))),
        }
    }

    /// The server's clock jumps.
    pub(crate) fn set_clock_ahead(&self, ms: i64) {
        self.clock_ms.store(ms, Ordering::Relaxed);
    }
}

/// Tries again every second: as what starts and watches servers does.
async fn patiently<F: Future<Output = Result<(), SimulationFailure>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<(), SimulationFailure> {
    for _ in 1..STARTS {
        if attempt().await.is_ok() {
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
    attempt().await
}

pub(crate) fn sqlite_environment(
    random: &mut SeededRandom,
    life: Arc<Life>,
    intruder: &Intruder,
) -> SqliteEnvironment {
    let intruder = intruder.clone();
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
        files: Arc::new(|path| {
            let file = vfs::identity(path).map(Some);
            file.ok_or_else(|| std::io::ErrorKind::NotFound.into())
        }),
        opened: Arc::new(move |connection: &Connection| {
            let life = life.clone();
            // There is only one thread: who waits would wait for itself.
            let _ = connection.busy_timeout(Duration::ZERO);
            connection.commit_hook(Some(move || life.refuses_commit()));
            intruder.watch(connection);
            defects::leave_out_serving(connection);
            kit::opened(connection);
        }),
        deployment_commits: DeploymentCommits::Together,
    }
}

struct SimulatedClock {
    began: Instant,
    ahead_ms: Arc<AtomicI64>,
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> i64 {
        let elapsed = self.began.elapsed().as_millis();
        let elapsed = i64::try_from(elapsed).unwrap_or(i64::MAX);
        BEGIN_MS + elapsed + self.ahead_ms.load(Ordering::Relaxed)
    }
}

struct SeededRandomness(Mutex<SeededRandom>);

impl Randomness for SeededRandomness {
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        let mut random = self.0.lock().map_err(|_| std::io::ErrorKind::Other)?;
        random.fill(bytes);
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
