//! Everything that a scenario needs, made before it and removed after it: the database's tables,
//! a server, drivers with remotes that have synced for the first time.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::base::{self, Base};
use crate::driver::{employee, folder, room, user};
use crate::error::BadInput;
use crate::gate::{Aim, GateStep, Group, GroupReport, Setup, Task};
use crate::limit;
use crate::machine;
use crate::options::{FilesPlace, Options, Scenario, TrackingSetting};
use crate::own::OwnDatabase;
use crate::password::Password;
use crate::processes::{self, GLANCE};
use crate::program::find_tidewater;
use crate::relay::RelayProcess;
use crate::report::{Cpu, Limit, MachineReport, OperationRun};
use crate::server::{PUBLICATION, ServerProcess, Settings};
use crate::supervisor::{Between, Drivers, Entrance, Watcher};
use crate::way::{BEHIND_RELAY, Key, Protocol, own_address};

/// Users of one statement.
const USERS_AT_ONCE: u32 = 5_000;
/// How long the server may lag behind with its history.
const HISTORY_LAG: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Fleet<'a> {
    pub(crate) options: &'a Options,
    pub(crate) watcher: &'a Watcher<'a>,
    pub(crate) base: Box<dyn Base>,
    settings: Settings,
    /// The tracking that is deployed.
    deployed: Option<TrackingSetting>,
    /// One, or several of one database.
    servers: Vec<ServerProcess>,
    /// Where the servers listen, and drivers find their supervisor.
    ip: IpAddr,
    relay: Option<RelayProcess>,
    /// Those of the servers, always the same, because remotes remember them.
    ports: Vec<u16>,
    entrance: Option<Entrance>,
    drivers: Option<Drivers>,
    password: Password,
    /// The user's own configuration and data, instead of the sample table.
    pub(crate) own: Option<OwnDatabase>,
    /// Users that there are.
    users: u32,
    /// Remotes that have synced for the first time.
    begun: u32,
    /// Whether server and database are confined to some cores.
    confined: bool,
    /// The remotes' files of drivers of this machine, and everything else.
    folder: TempDir,
}

/// What a timed step came to.
pub(crate) struct TimedStep {
    /// One for each group.
    pub(crate) groups: Vec<GroupReport>,
    /// From the first start to the last end of each group, by the drivers' clock.
    pub(crate) spans: Vec<f64>,
    /// The same of all groups, by the server's history.
    pub(crate) history_span: Option<f64>,
    pub(crate) cpu: Cpu,
    pub(crate) server_peak_bytes: Option<u64>,
}

impl<'a> Fleet<'a> {
    /// Prepares database and folder, and opens the gate for drivers.
    pub(crate) fn gather(
        options: &'a Options,
        watcher: &'a Watcher<'a>,
        settings: Settings,
        own: Option<OwnDatabase>,
    ) -> anyhow::Result<Fleet<'a>> {
        find_tidewater()?;
        let folder = folder(&options.files)?;
        let url = match &options.consolidated {
            Some(url) => url.clone(),
            None => {
                let path = folder.path().join("consolidated.db");
                let path = path.to_str().context("the folder's name is not UTF-8")?;
                format!("sqlite:{path}")
            }
        };
        let address = options.supervise.as_ref().map(|supervise| supervise.listen);
        let here = match options.scenario {
            Scenario::Protocols => own_address(),
            _ => [127, 0, 0, 1].into(),
        };
        let address = address.unwrap_or((here, 0).into());
        let entrance = Entrance::open(address)?;
        let mut base = base::open(&url)?;
        match &own {
            None => base::prepare(&mut *base)?,
            Some(_) => base::check_marker(&mut *base)?,
        }
        Ok(Fleet {
            options,
            watcher,
            base,
            settings,
            deployed: None,
            servers: Vec::new(),
            ip: entrance.ip(),
            relay: None,
            ports: vec![0; options.servers as usize],
            entrance: Some(entrance),
            drivers: None,
            password: Password::random()?,
            own,
            users: 0,
            begun: 0,
            confined: false,
            folder,
        })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn note(&self, text: &str) {
        (self.watcher.note)(text);
    }

    /// Sees that a server with these settings runs.
    pub(crate) fn serve(&mut self, settings: &Settings) -> anyhow::Result<()> {
        self.watcher.check()?;
        let before = self.configuration(&self.settings, self.ports[0])?;
        self.see_to(settings)?;
        let configuration = self.configuration(settings, self.ports[0])?;
        let is_same = before == configuration && self.settings.cpus == settings.cpus;
        self.settings = settings.clone();
        if !self.servers.is_empty() && is_same {
            return Ok(());
        }
        self.stop_servers()?;
        if self.deployed != Some(settings.tracking) {
            base::deploy(&*self.base, &configuration)?;
            if let Some(own) = &self.own {
                base::set_password(&*self.base, &own.user, self.password.hash())?;
            }
            self.deployed = Some(settings.tracking);
        }
        for number in 0..self.ports.len() {
            let configuration = self.configuration(settings, self.ports[number])?;
            let mut folder = self.folder.path().to_owned();
            if number > 0 {
                folder.push(format!("server {}", number + 1));
                std::fs::create_dir_all(&folder)?;
            }
            let server = ServerProcess::start(&folder, &configuration)?;
            self.ports[number] = server.port;
            self.servers.push(server);
        }
        self.confine(settings.cpus)?;
        if let Some(entrance) = self.entrance.take() {
            self.drivers = Some(self.drivers(entrance)?);
        }
        Ok(())
    }

    fn stop_servers(&mut self) -> anyhow::Result<()> {
        self.servers.drain(..).try_for_each(ServerProcess::stop)
    }

    /// What a way needs: certificates, and a relay.
    fn see_to(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let Some(way) = settings.way else {
            return Ok(());
        };
        let folder = self.folder.path();
        if let Some(key) = way.protocol.key()
            && !key.certificate(folder).exists()
        {
            key.certify(folder, self.ip)?;
        }
        if way.protocol == Protocol::Relay && self.relay.is_none() {
            self.relay = Some(RelayProcess::start(folder)?);
        }
        Ok(())
    }

    /// How remotes go over to the way of the server, if that is told.
    pub(crate) fn aim(&self) -> anyhow::Result<Option<Aim>> {
        let Some(way) = self.settings.way else {
            return Ok(None);
        };
        let read = |key: Key| std::fs::read_to_string(key.certificate(self.folder.path()));
        let relay = self.relay.as_ref();
        let relay = relay.filter(|_| way.protocol == Protocol::Relay);
        Ok(Some(Aim {
            scheme: way.protocol.scheme().into(),
            host: relay.map(|_| BEHIND_RELAY.into()),
            port: relay.map_or(self.ports[0], |it| it.remotes),
            certificate: way.protocol.key().map(read).transpose()?,
            shares: way.protocol.resumes(),
            compression: way.compression.to_string(),
        }))
    }

    fn configuration(&self, settings: &Settings, port: u16) -> anyhow::Result<String> {
        let folder = self.folder.path();
        let mut plain = settings.configuration(self.base.url(), self.ip, port, folder);
        let is_relayed = settings
            .way
            .is_some_and(|it| it.protocol == Protocol::Relay);
        if let Some(relay) = self.relay.as_ref().filter(|_| is_relayed) {
            plain.push_str(&relay.section(folder));
        }
        match &self.own {
            Some(own) => own.configuration(&plain),
            None => Ok(plain),
        }
    }

    fn drivers(&self, entrance: Entrance) -> anyhow::Result<Drivers> {
        let setup = Setup {
            driver: 0,
            drivers: 0,
            server_ports: self.ports.clone(),
            publications: match &self.own {
                Some(own) => own.publications.clone(),
                None => vec![PUBLICATION.into()],
            },
            password: self.password.text().into(),
            user: self.own.as_ref().map(|own| own.user.clone()),
            parameters: self
                .own
                .as_ref()
                .map_or(Vec::new(), |own| own.parameters.clone()),
            keep_open: self.options.keep_open,
        };
        match &self.options.supervise {
            Some(supervise) => {
                self.note(&format!(
                    "waiting for {} at {}: tidewater bench drive --supervisor HOST:{}",
                    counted(supervise.drivers, "driver"),
                    entrance.address(),
                    entrance.address().port()
                ));
                entrance.wait(supervise.drivers, &setup, self.watcher)
            }
            None => {
                let drivers = self
                    .options
                    .drivers
                    .unwrap_or_else(|| self.enough_drivers());
                entrance.start(drivers, self.folder.path(), &setup, self.watcher)
            }
        }
    }

    /// One for each core, and more if they could not have all remotes at once.
    fn enough_drivers(&self) -> u32 {
        let cores = machine::cores() as u64;
        let at_once = self.options.at_once.filter(|_| !self.options.keep_open);
        let needed = match (at_once, processes::most_open_files()) {
            (None, Some(most)) => u64::from(self.settings.remotes).div_ceil(room(most)),
            _ => 1,
        };
        u32::try_from(cores.min(u64::from(self.settings.remotes)).max(needed))
            .unwrap_or(1)
            .max(self.options.servers)
    }

    /// Confines server and database to so many cores; to all, if it does not say.
    fn confine(&mut self, cpus: Option<u32>) -> anyhow::Result<()> {
        if cpus.is_none() && !self.confined {
            return Ok(());
        }
        let mut cores = processes::allowed_cores();
        cores.truncate(cpus.map_or(usize::MAX, |cpus| cpus as usize));
        let mut all: Vec<u32> = self.servers.iter().map(ServerProcess::process).collect();
        if let Some(postmaster) = self.base.process() {
            all.push(postmaster);
            all.extend(processes::children(postmaster));
        }
        for process in all {
            processes::confine(process, &cores).map_err(|error| {
                BadInput::error(
                    format!("the process {process} cannot be confined to {cores:?}: {error}"),
                    "run bench as the user of the database's processes, or as root",
                )
            })?;
        }
        self.confined = cpus.is_some();
        Ok(())
    }

    /// Sees that there are so many remotes, and that each has synced for the first time.
    pub(crate) fn remotes(&mut self, count: u32) -> anyhow::Result<()> {
        if count <= self.begun {
            return Ok(());
        }
        let begun = self.begun;
        self.note(&format!("making {}", counted(count - begun, "remote")));
        while self.users < count {
            let last = count.min(self.users + USERS_AT_ONCE);
            self.add_users(self.users..last)?;
            self.users = last;
        }
        self.base.settle()?;
        self.step(vec![group(begun..count, Task::Begin { timed: false })])?;
        self.begun = count;
        Ok(())
    }

    /// The numbers of so many remotes that have not synced yet, and are about to.
    pub(crate) fn fresh(&mut self, count: u32) -> Range<u32> {
        let first = self.begun;
        self.begun += count;
        first..self.begun
    }

    fn add_users(&mut self, numbers: Range<u32>) -> anyhow::Result<()> {
        let values = numbers.clone().map(|number| {
            let (login, employee) = (user(number), employee(number));
            format!("('{login}', {employee})")
        });
        let values: Vec<String> = values.collect();
        let values = values.join(", ");
        self.base.execute(&format!(
            "INSERT INTO bench_user (login, emp_id) VALUES {values}"
        ))?;
        let names: Vec<String> = numbers.map(user).collect();
        base::add_users(&*self.base, &names, self.password.hash())
    }

    /// Leads the drivers through a step that nobody times.
    pub(crate) fn step(&mut self, groups: Vec<Group>) -> anyhow::Result<Vec<GroupReport>> {
        let (reports, _) = self.lead(groups)?;
        Ok(reports)
    }

    /// Leads the drivers through a step, and measures what it takes. So many syncs have to be in
    /// the history afterwards, if that is known.
    pub(crate) fn timed(
        &mut self,
        groups: Vec<Group>,
        syncs: Option<u64>,
    ) -> anyhow::Result<TimedStep> {
        let position = self.base.history_position()?;
        for server in &self.servers {
            processes::reset_peak(server.process());
        }
        let (groups, measured) = self.lead(groups)?;
        Ok(TimedStep {
            groups,
            spans: measured.spans,
            history_span: self.history_span(position, syncs)?,
            cpu: measured.cpu,
            server_peak_bytes: measured.peak,
        })
    }

    fn history_span(&mut self, position: i64, syncs: Option<u64>) -> anyhow::Result<Option<f64>> {
        let Some(syncs) = syncs else {
            return Ok(None);
        };
        let until = Instant::now() + HISTORY_LAG;
        loop {
            let history = self.base.history_after(position)?;
            if history.syncs >= syncs {
                let is_whole = history.syncs == syncs;
                return Ok(is_whole.then_some(history.span_ms as f64 / 1_000.0));
            }
            if Instant::now() > until {
                return Ok(None);
            }
            std::thread::sleep(GLANCE);
        }
    }

    fn lead(&mut self, groups: Vec<Group>) -> anyhow::Result<(Vec<GroupReport>, StepMeasure)> {
        let step = GateStep {
            groups,
            at_once: self.options.at_once,
        };
        let mut between = ServerWatch {
            servers: &mut self.servers,
            database: self.base.process(),
            is_embedded: self.base.is_embedded(),
            before: Cpu::default(),
        };
        let drivers = self.drivers.as_mut().context("there are no drivers")?;
        let reports = drivers.step(&step, &mut between, self.watcher)?;
        let mut cpu = between.spent();
        let servers = between.servers.iter();
        let peak = servers.map(|it| processes::peak_bytes(it.process())).sum();
        let mut merged: Vec<GroupReport> = step.groups.iter().map(|_| Default::default()).collect();
        let mut longest = vec![0; merged.len()];
        for report in reports {
            cpu.drivers += report.cpu_seconds;
            if report.groups.len() != merged.len() {
                bail!("a driver reports of other groups than it was given");
            }
            for (number, group) in report.groups.into_iter().enumerate() {
                longest[number] = group.span_ns().max(longest[number]);
                merged[number].add(group);
            }
        }
        // The clocks of several machines cannot be compared.
        let spans = match self.options.supervise {
            Some(_) => longest,
            None => merged.iter().map(GroupReport::span_ns).collect(),
        };
        let spans = spans.into_iter().map(|ns| ns as f64 / 1e9).collect();
        Ok((merged, StepMeasure { spans, cpu, peak }))
    }

    /// Measures what the databases do alone, where the runs were.
    pub(crate) fn limit(&mut self, runs: &[OperationRun]) -> anyhow::Result<Vec<Limit>> {
        limit::measure(&mut *self.base, self.folder.path(), runs, self.watcher)
    }

    /// What it runs on.
    pub(crate) fn machine(&mut self) -> anyhow::Result<MachineReport> {
        Ok(MachineReport {
            database: self.base.describe()?,
            database_is_here: self.base.is_embedded() || self.base.process().is_some(),
            files: match &self.options.files {
                FilesPlace::Memory => "memory".into(),
                FilesPlace::Folder(folder) => folder.display().to_string(),
            },
            drivers: self.drivers.as_ref().map_or(0, Drivers::count) as u64,
            drivers_are_elsewhere: self.options.supervise.is_some(),
            ..machine::look()
        })
    }

    /// Ends everything and removes what was made, unless it is to stay.
    pub(crate) fn disperse(mut self, well: bool) -> anyhow::Result<()> {
        // What went wrong is told already; that it does not end well now is no news.
        let confined = self.confine(None);
        let dismissed = match self.drivers.take() {
            Some(drivers) if well => drivers.dismiss(),
            drivers => {
                drop(drivers);
                Ok(())
            }
        };
        let stopped = self.stop_servers();
        let relayed = self.relay.take().map_or(Ok(()), RelayProcess::stop);
        // What a user brought is the user's.
        if !self.options.keep && self.own.is_none() {
            base::clear(&mut *self.base).context("bench's tables are still in the database")?;
        }
        confined.and(dismissed).and(stopped).and(relayed)
    }
}

/// A group of remotes with a task, on lines without a limit.
pub(crate) fn group(remotes: Range<u32>, task: Task) -> Group {
    Group {
        first: remotes.start,
        count: remotes.len() as u32,
        task,
        line: None,
        delay_ms: 0,
    }
}

pub(crate) fn counted(count: u32, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

struct StepMeasure {
    spans: Vec<f64>,
    cpu: Cpu,
    peak: Option<u64>,
}

/// Looks after the servers, and at the processor time of servers and database.
struct ServerWatch<'a> {
    servers: &'a mut [ServerProcess],
    database: Option<u32>,
    is_embedded: bool,
    before: Cpu,
}

impl ServerWatch<'_> {
    fn now(&self) -> Cpu {
        let servers = self.servers.iter();
        let servers = servers.filter_map(|it| processes::cpu_seconds(it.process()));
        Cpu {
            server: servers.sum(),
            database: match (self.is_embedded, self.database) {
                (true, _) => Some(0.0),
                (false, Some(process)) => processes::family_cpu_seconds(process),
                (false, None) => None,
            },
            drivers: 0.0,
        }
    }

    fn spent(&self) -> Cpu {
        let now = self.now();
        let database = now.database.zip(self.before.database);
        Cpu {
            server: now.server - self.before.server,
            database: database.map(|(now, before)| now - before),
            drivers: 0.0,
        }
    }
}

impl Between for ServerWatch<'_> {
    fn ready(&mut self) -> anyhow::Result<()> {
        self.before = self.now();
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.servers.iter_mut().try_for_each(ServerProcess::check)
    }
}
