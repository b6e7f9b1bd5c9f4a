//! A centre with its servers, and files that sync with it: what the smaller worlds beside the
//! large one are made of.
//!
//! Owns how servers are started, dialled and killed. What the tables are, what people do with them
//! and what must hold in the end is the affair of each world.

mod node;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep, timeout};

use tidewater_server::Config;

pub(crate) use self::node::Node;
use crate::application;
use crate::chronicle::Chronicle;
use crate::disks::CentreDisk;
use crate::failure::SimulationFailure;
use crate::host::Host;
use crate::intruder::Intruder;
use crate::network::{Farm, Traces, Weather};
use crate::random::SeededRandom;
use crate::template;
use crate::vfs;

/// How long a process has to meet the commit that kills it.
pub(crate) const AMBUSH: Duration = Duration::from_secs(15);

/// How often a file may have to sync, when nothing fails any more.
const PATIENCE: usize = 24;

/// A centre with its servers.
pub(crate) struct Site {
    pub(crate) disk: CentreDisk,
    pub(crate) hosts: Vec<Host>,
    next_host: Cell<usize>,
    pub(crate) chronicle: Rc<Chronicle>,
    pub(crate) began: Instant,
}

impl Site {
    pub(crate) fn new(
        name: &str,
        servers: u64,
        config: &Config,
        chronicle: &Rc<Chronicle>,
        random: &mut SeededRandom,
    ) -> Site {
        let began = Instant::now();
        let nobody = Intruder::new(random.fork());
        nobody.leave();
        let hosts = (0..servers as usize)
            .map(|place| Host::new(place, began, random.fork(), nobody.clone()).serving(config));
        Site {
            hosts: hosts.collect(),
            disk: CentreDisk::named(name, random.fork()),
            next_host: Cell::default(),
            chronicle: chronicle.clone(),
            began,
        }
    }

    /// Deploys what is served, lets users in, and serves.
    pub(crate) async fn serve(&self, users: &[&str]) -> Result<(), SimulationFailure> {
        let first = self.hosts.first();
        let first = first.ok_or_else(|| SimulationFailure("a site without servers".into()))?;
        let centre = first.deploy(self.disk.path()).await?;
        template::add_users(&*centre, users).await?;
        for host in &self.hosts {
            host.start(self.disk.path()).await?;
        }
        Ok(())
    }

    /// A connection to one server after the other.
    pub(crate) fn dial(
        self: &Rc<Self>,
        weather: Weather,
        traces: &Rc<Traces>,
        in_requests: bool,
    ) -> Option<DuplexStream> {
        let next = self.next_host.get();
        self.next_host.set((next + 1) % self.hosts.len());
        if in_requests {
            let site = Rc::downgrade(self);
            let farm = Farm {
                places: self.hosts.len(),
                inlet: Rc::new(move |place| site.upgrade()?.hosts[place].inlet()),
                remembers: Rc::new(|| true),
            };
            return self.hosts[next].dial_in_requests(weather, traces, farm, &self.chronicle);
        }
        let (site, random) = (Rc::downgrade(self), weather.random.clone());
        let again = move || {
            let fine = Weather::fine(random.clone());
            site.upgrade()?.dial(fine, &Rc::default(), false)
        };
        self.hosts[next].dial(weather, traces, Rc::new(again), &self.chronicle)
    }

    /// A connection to the server at a place, if one serves there.
    pub(crate) fn dial_at(self: &Rc<Self>, place: usize, weather: Weather) -> Option<DuplexStream> {
        let nobody = Rc::new(|| None);
        self.hosts[place].dial(weather, &Rc::default(), nobody, &self.chronicle)
    }

    /// What somebody sees who looks at the centre's file.
    pub(crate) fn look(&self) -> Result<Connection, SimulationFailure> {
        Ok(application::open(&self.disk.path())?)
    }

    /// Another process takes the place of one.
    pub(crate) async fn replace(
        &self,
        host: &Host,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        host.stop(&self.chronicle).await?;
        sleep(Duration::from_millis(random.below(3_000))).await;
        host.start(self.disk.path()).await
    }

    /// Whoever is dead is started again.
    pub(crate) async fn restart(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        for host in &self.hosts {
            if host.life().is_some_and(|life| life.is_dead()) {
                self.replace(host, random).await?;
            }
        }
        Ok(())
    }

    /// Kills a process at a commit to come, before or after it takes effect. Whether it met one.
    pub(crate) async fn ambush(
        &self,
        random: &mut SeededRandom,
    ) -> Result<bool, SimulationFailure> {
        let places: Vec<usize> = (0..self.hosts.len()).collect();
        let host = &self.hosts[random.pick(&places).unwrap_or_default()];
        let Some(life) = host.kill_at_commit(random.between(1, 6), random.percent(50)) else {
            return Ok(false);
        };
        let met = timeout(AMBUSH, life.ended()).await.is_ok();
        host.kill();
        self.replace(host, random).await?;
        Ok(met)
    }
}

/// Where another process of the same machine finds a file.
pub(crate) fn started_beside(path: &std::path::Path) -> PathBuf {
    vfs::start_beside(path).map_or_else(|| path.to_owned(), |(_, path)| path)
}

/// Syncs a file until a sync is done.
pub(crate) async fn settle(
    node: &Node,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    for _ in 0..PATIENCE {
        let fine = Weather::fine(random.fork());
        match node.sync(fine, random).await? {
            Some(after_ms) => sleep(Duration::from_millis(after_ms)).await,
            None => return Ok(()),
        }
    }
    Err(SimulationFailure("I6: a file does not come to rest".into()))
}
