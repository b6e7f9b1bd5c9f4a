//! A consolidated database, the servers that serve it, and a folder for remotes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tempfile::TempDir;
use tidewater_centre::deploy_report::{DeployReport, HeldUpRemote};
use tidewater_centre::records::{
    ConflictRecord, IncidentKind, ProvenIdentity, RefusedRecord, UserRecord,
};
use tidewater_centre::{Centre, CentreError};
use tidewater_protocol::RemoteId;
use tidewater_server::databases::connect;
use tidewater_server::environment::Clock;
use tidewater_server::{Config, Environment, RunningServer, Server, ServerError};
use tokio::runtime::Runtime;

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::Scenario;

/// Everybody's password.
pub(crate) const PASSWORD: &str = "correct horse";

/// Hashing is slow on purpose, but not here: at the least cost that there is.
static HASH: LazyLock<String> = LazyLock::new(|| {
    let cost = Params::new(Params::MIN_M_COST, 1, 1, None).expect("the least cost is a cost");
    let salt = SaltString::from_b64("dGlkZXdhdGVyIHNhbHQ").expect("it is Base64");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, cost)
        .hash_password(PASSWORD.as_bytes(), &salt)
        .expect("the password is not too long")
        .to_string()
});

/// The time of records that tests make.
const NOW_MS: i64 = 1_700_000_000_000;

/// A deployed database with one server that serves it.
pub(crate) struct World<B> {
    // The server goes first: it holds the database open.
    pub(crate) server: LiveServer,
    pub(crate) backend: B,
    pub(crate) scenario: Scenario,
    /// What is published now: at first what the scenario says.
    pub(crate) publication: String,
    folder: TempDir,
}

impl<B: Backend> World<B> {
    /// Creates, deploys and serves a scenario.
    pub(crate) fn open(scenario: Scenario) -> World<B> {
        World::open_in(B::new(), scenario)
    }

    /// In this empty database.
    pub(crate) fn open_in(backend: B, scenario: Scenario) -> World<B> {
        World::open_changed(backend, scenario, |_| {})
    }

    /// With another configuration.
    pub(crate) fn open_changed(
        backend: B,
        scenario: Scenario,
        change: impl FnOnce(&mut Config),
    ) -> World<B> {
        backend.execute(&scenario.schema);
        let mut config = config(&backend, &scenario, scenario.publication);
        change(&mut config);
        let server = LiveServer::deploy(&config, scenario.users);
        let folder = tempfile::tempdir().expect("a temporary folder");
        World {
            server,
            backend,
            publication: scenario.publication.to_owned(),
            scenario,
            folder,
        }
    }

    /// A remote whose file is a copy of this one.
    pub(crate) fn device_from(&self, user: &str, file: &Path) -> Device {
        let path = self.folder.path().join(format!("{user}.db"));
        std::fs::copy(file, &path).expect("the file is there");
        Device::in_file(&path, user, self.server.address)
    }

    /// One more server of the same database, whose configuration is a little different.
    pub(crate) fn server_with(&self, change: impl FnOnce(&mut Config)) -> LiveServer {
        let mut config = config(&self.backend, &self.scenario, &self.publication);
        change(&mut config);
        LiveServer::start(&config)
    }

    /// One more server of the same database, which speaks HTTP too.
    pub(crate) fn web_server(&self) -> LiveServer {
        self.server_with(|config| config.server.http = Some("http://127.0.0.1:0".into()))
    }

    /// The same with a clock of its own.
    pub(crate) fn server_in(
        &self,
        environment: Environment,
        change: impl FnOnce(&mut Config),
    ) -> LiveServer {
        let mut config = config(&self.backend, &self.scenario, &self.publication);
        change(&mut config);
        LiveServer::start_in(&config, environment)
    }

    /// One more server of the same database.
    pub(crate) fn another_server(&self) -> LiveServer {
        LiveServer::start(&config(&self.backend, &self.scenario, &self.publication))
    }

    /// One more server, with another clock.
    pub(crate) fn another_server_at(&self, clock: Arc<dyn Clock>) -> LiveServer {
        let config = config(&self.backend, &self.scenario, &self.publication);
        let environment = Environment {
            clock,
            ..Environment::real()
        };
        LiveServer::start_in(&config, environment)
    }

    /// Has the server go by what the scenario says now.
    pub(crate) fn reconfigure(&self) -> Result<(), ServerError> {
        let config = config(&self.backend, &self.scenario, &self.publication);
        self.server.reconfigure(config)
    }

    /// The same, a little different.
    pub(crate) fn reconfigure_with(
        &self,
        change: impl FnOnce(&mut Config),
    ) -> Result<(), ServerError> {
        let mut config = config(&self.backend, &self.scenario, &self.publication);
        change(&mut config);
        self.server.reconfigure(config)
    }

    /// Deploys another publication, which a server in place of the first one serves.
    pub(crate) fn republish(&mut self, publication: &str) {
        self.publication = publication.to_owned();
        let config = config(&self.backend, &self.scenario, publication);
        self.server = LiveServer::deploy(&config, &[]);
    }

    /// Undeploys and deploys again, with the same users, while the server is running.
    pub(crate) fn deploy_anew(&self) {
        let config = config(&self.backend, &self.scenario, &self.publication);
        self.server.ask(async |centre| {
            let undeployed = centre.undeploy(false).await;
            undeployed.expect("nothing else uses what is deployed");
            deploy(centre, &config, self.scenario.users).await;
        });
    }

    /// Puts this database in the place of the one that is served; deploys and serves it.
    pub(crate) fn replace(&mut self, backend: B) {
        let config = config(&backend, &self.scenario, &self.publication);
        self.server = LiveServer::deploy(&config, &[]);
        self.backend = backend;
    }

    /// Deploys another publication if no remote is held up by it; tells what it means.
    pub(crate) fn deploy_carefully(&self, publication: &str) -> DeployReport {
        let config = config(&self.backend, &self.scenario, publication);
        let deploy = async |centre: &dyn Centre| {
            let planned = centre.deploy(&config.publications, true, NOW_MS).await;
            let done = centre.deploy(&config.publications, false, NOW_MS).await;
            (planned, done)
        };
        let (planned, done) = self.server.ask(deploy);
        let planned = planned.expect("the publication fits the tables");
        match done {
            Ok(done) => assert_eq!(done, planned),
            Err(CentreError::RemotesHeldUp { remotes, .. }) => {
                // When they last synced is noted a moment after they have.
                let ids = |remotes: &[HeldUpRemote]| -> Vec<RemoteId> {
                    remotes.iter().map(|remote| remote.id).collect()
                };
                assert_eq!(ids(&remotes), ids(&planned.held_up));
            }
            Err(error) => panic!("{error}"),
        }
        planned
    }

    /// A remote of a user that has not synced yet.
    pub(crate) fn device(&self, user: &str) -> Device {
        Device::new(self.folder.path(), user, self.server.address)
    }

    /// A remote that has synced.
    pub(crate) fn synced(&self, user: &str) -> Device {
        let mut device = self.device(user);
        device.sync();
        device
    }

    /// Runs statements in the centre, as an application.
    pub(crate) fn execute(&self, sql: &str) {
        self.backend.execute(sql);
    }

    /// Runs a statement in the centre, unless a constraint is against it.
    pub(crate) fn try_execute(&self, sql: &str) {
        self.backend.try_execute(sql);
    }

    /// Runs a query in the centre.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        self.backend.rows(sql)
    }
}

fn config<B: Backend>(backend: &B, scenario: &Scenario, publication: &str) -> Config {
    let text = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = {:?}\n\
         [server.limits]\n{}\n{publication}",
        backend.url(),
        scenario.limits,
    );
    Config::parse(&text).expect("the configuration is right")
}

/// A server in threads of its own. To drop it is to kill it: connections break, and
/// nothing is said or finished.
pub(crate) struct LiveServer {
    pub(crate) address: SocketAddr,
    /// Where the web protocol is spoken.
    pub(crate) http: Option<String>,
    centre: Arc<dyn Centre>,
    running: Option<RunningServer>,
    runtime: Option<Runtime>,
}

/// Waits.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let mut tries = 0..3_000;
    while !is_so() {
        assert!(tries.next().is_some(), "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Deploys and adds users.
async fn deploy(centre: &dyn Centre, config: &Config, users: &[&str]) {
    let deploy = centre.deploy_refusing_pending(&config.publications, NOW_MS);
    let deployed = deploy.await;
    deployed.expect("the publication fits the tables");
    for user in users {
        let user = UserRecord {
            name: (*user).into(),
            password_hash: HASH.clone(),
            disabled: false,
            created_ms: NOW_MS,
            proven: ProvenIdentity::default(),
        };
        assert!(centre.add_user(&user).await.expect("a user can be added"));
    }
}

impl LiveServer {
    /// Waits until it has seen that everybody is gone.
    pub(crate) fn is_left_by_all(&self) {
        let running = self.running.as_ref().expect("it runs");
        until(|| running.connected().is_empty());
    }

    /// Deploys, adds users and serves.
    pub(crate) fn deploy(config: &Config, users: &[&str]) -> LiveServer {
        LiveServer::deploy_in(config, users, Environment::real())
    }

    /// With a clock that is wrong, perhaps.
    pub(crate) fn deploy_in(
        config: &Config,
        users: &[&str],
        environment: Environment,
    ) -> LiveServer {
        LiveServer::prepare(config, environment, async |centre| {
            deploy(centre, config, users).await;
        })
    }

    /// Serves what is deployed.
    pub(crate) fn start(config: &Config) -> LiveServer {
        LiveServer::start_in(config, Environment::real())
    }

    /// With a clock that is wrong, perhaps.
    pub(crate) fn start_in(config: &Config, environment: Environment) -> LiveServer {
        LiveServer::prepare(config, environment, async |_| {})
    }

    fn prepare(
        config: &Config,
        environment: Environment,
        prepare: impl AsyncFnOnce(&dyn Centre),
    ) -> LiveServer {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("the system has threads");
        let (centre, running) = runtime.block_on(async {
            let url = &config.server.consolidated;
            let centre = connect(url).await.expect("the database can be reached");
            prepare(&*centre).await;
            let running = Server::start(config.clone(), centre.clone(), environment).await;
            (centre, running.expect("the server starts"))
        });
        let address = running.addresses[0].trim_start_matches("tcp://");
        LiveServer {
            address: address.parse().expect("a server tells its address"),
            http: running.http.clone(),
            centre,
            running: Some(running),
            runtime: Some(runtime),
        }
    }

    /// Asks the database something through the adapter.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&dyn Centre) -> T) -> T {
        let runtime = self.runtime.as_ref().expect("it is there until dropped");
        runtime.block_on(question(&*self.centre))
    }

    /// Tells the server what is above it, as whoever keeps a branch's line does.
    pub(crate) fn set_above(&self, above: Vec<String>) {
        let running = self.running.as_ref().expect("it runs");
        running.upstream().set_above(above);
    }

    fn reconfigure(&self, config: Config) -> Result<(), ServerError> {
        let runtime = self.runtime.as_ref().expect("it is there until dropped");
        let running = self.running.as_ref().expect("it runs");
        runtime.block_on(running.reconfigure(config)).map(|_| ())
    }

    /// The conflicts that the centre has kept.
    pub(crate) fn conflicts(&self) -> Vec<ConflictRecord> {
        self.ask(async |centre| centre.conflicts().await)
            .expect("conflicts can be read")
    }

    /// The refused rows that the centre has kept.
    pub(crate) fn refused(&self) -> Vec<RefusedRecord> {
        self.ask(async |centre| centre.refused().await)
            .expect("refused rows can be read")
    }

    /// What remotes and the centre were found at odds about, the last 20, by kind: noted in
    /// the background, so there are at least so many.
    pub(crate) fn incidents(&self, at_least: usize) -> Vec<(IncidentKind, String)> {
        for _ in 0..10_000 {
            let status = self.ask(async |centre| centre.status().await);
            let status = status.expect("the status can be read");
            if status.incidents.len() >= at_least {
                let incidents = status.incidents.into_iter();
                let mut incidents: Vec<_> = incidents.map(|it| (it.kind, it.user)).collect();
                incidents.sort();
                incidents.dedup();
                return incidents;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("fewer than {at_least} incidents");
    }

    /// Stops in good order.
    pub(crate) fn shut_down(mut self) {
        let runtime = self.runtime.as_ref().expect("it is there until dropped");
        if let Some(running) = self.running.take() {
            runtime.block_on(running.shutdown());
        }
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
