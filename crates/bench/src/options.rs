//! What a user can ask of a scenario.

use std::net::SocketAddr;
use std::path::PathBuf;

use tidewater_carrier::Compression;

use crate::gate::Retry;
use crate::way::Protocol;

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// From few remotes with many rows to many with few.
    Remotes,
    /// From one row a sync to ten thousand.
    Size,
    /// Numbers of workers.
    Workers,
    /// The databases alone.
    Limit,
    /// A limit of connections, and when remotes come back.
    Retry,
    /// Subscribers that change rows and sync, again and again.
    Merge,
    /// Slow lines beside fast ones.
    Slow,
    /// Server and database confined to some cores.
    Cpus,
    /// What carries connections, encrypted and not, packed and not.
    Protocols,
    /// The user's own configuration and data.
    Own,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 10] = [
        Scenario::Remotes,
        Scenario::Size,
        Scenario::Workers,
        Scenario::Limit,
        Scenario::Retry,
        Scenario::Merge,
        Scenario::Slow,
        Scenario::Cpus,
        Scenario::Protocols,
        Scenario::Own,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Remotes => "remotes",
            Scenario::Size => "size",
            Scenario::Workers => "workers",
            Scenario::Limit => "limit",
            Scenario::Retry => "retry",
            Scenario::Merge => "merge",
            Scenario::Slow => "slow",
            Scenario::Cpus => "cpus",
            Scenario::Protocols => "protocols",
            Scenario::Own => "own",
        }
    }
}

/// Change tracking in the centre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrackingSetting {
    /// Downloads send what has changed.
    #[default]
    Log,
    /// Downloads send partitions whole. Uploads are timed without a download, which would send
    /// back what went up.
    Off,
}

impl TrackingSetting {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TrackingSetting::Log => "log",
            TrackingSetting::Off => "off",
        }
    }
}

/// Workers for uploads and for downloads, each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// As the server decides.
    #[default]
    Auto,
    /// So many.
    Fixed(u32),
}

impl std::fmt::Display for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Workers::Auto => f.write_str("auto"),
            Workers::Fixed(number) => number.fmt(f),
        }
    }
}

/// Where the drivers' remotes have their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FilesPlace {
    /// In a temporary folder in memory, where the system has one.
    #[default]
    Memory,
    /// In a temporary folder below this one.
    Folder(PathBuf),
}

/// Everything that a scenario can be asked for. What is `None` or empty is as the scenario has it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which scenario.
    pub scenario: Scenario,
    /// The consolidated database; a file of SQLite in a temporary folder, if it is not said.
    pub consolidated: Option<String>,
    /// How many remotes.
    pub remotes: Vec<u32>,
    /// How many rows a sync.
    pub rows: Vec<u32>,
    /// Rows of all syncs of a point together, where that is to stay the same.
    pub total: Option<u64>,
    /// Sets, each of remotes of its own.
    pub sets: Option<u32>,
    /// How many workers.
    pub workers: Vec<Workers>,
    /// Driver processes on this machine.
    pub drivers: Option<u32>,
    /// Servers of the database, between which drivers are divided.
    pub servers: u32,
    /// The limit of connections; no limit by default.
    pub connections: Option<u32>,
    /// Change tracking in the centre.
    pub tracking: TrackingSetting,
    /// How often each point is measured.
    pub repeat: u32,
    /// Whether to measure the databases alone too.
    pub with_limit: bool,
    /// The setting of the papers, which takes its time.
    pub paper: bool,
    /// Leaves the tables in the database.
    pub keep: bool,
    /// Where remotes have their files.
    pub files: FilesPlace,
    /// Remotes of a driver that sync at once; all by default.
    pub at_once: Option<u32>,
    /// Whether remotes keep their files open between syncs.
    pub keep_open: bool,
    /// How long subscribers go on, in seconds.
    pub seconds: Option<f64>,
    /// The speed of slow lines, in bytes a second.
    pub line: Option<u64>,
    /// Remotes with fast lines beside slow ones.
    pub fast: Option<u32>,
    /// Seconds until a remote that was sent away comes back, where that is fixed.
    pub retries: Vec<Retry>,
    /// Numbers of cores.
    pub cpus: Vec<u32>,
    /// What carries connections.
    pub carriers: Vec<Protocol>,
    /// How they are packed.
    pub compressions: Vec<Compression>,
    /// The user's own configuration.
    pub config: Option<PathBuf>,
    /// A synced file of the user's own, whose pending changes are what is uploaded.
    pub remote: Option<PathBuf>,
    /// Waits for drivers on other machines instead of starting some.
    pub supervise: Option<Supervise>,
}

/// Drivers on other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervise {
    /// Where they reach the supervisor. The server listens at the same address, on another port.
    pub listen: SocketAddr,
    /// How many there will be.
    pub drivers: u32,
}

impl Options {
    /// A scenario as it runs when nothing else is said.
    pub fn new(scenario: Scenario) -> Options {
        Options {
            scenario,
            consolidated: None,
            remotes: Vec::new(),
            rows: Vec::new(),
            total: None,
            sets: None,
            workers: Vec::new(),
            drivers: None,
            servers: 1,
            connections: None,
            tracking: TrackingSetting::default(),
            repeat: 1,
            with_limit: false,
            paper: false,
            keep: false,
            files: FilesPlace::default(),
            at_once: None,
            keep_open: false,
            seconds: None,
            line: None,
            fast: None,
            retries: Vec::new(),
            cpus: Vec::new(),
            carriers: Vec::new(),
            compressions: Vec::new(),
            config: None,
            remote: None,
            supervise: None,
        }
    }
}
