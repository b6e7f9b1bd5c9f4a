//! The program `tidewater-bench`, which `tidewater bench` runs. Owns its arguments and its exit code;
//! everything else is the library's.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tidewater_bench::{
    BadInput, DriveOptions, FilesPlace, LiveBenchOptions, LiveScenario, Options, Protocol, Retry,
    Scenario, Supervise, TrackingSetting, Watcher, Workers,
};
use tidewater_carrier::Compression;
use tidewater_centre::CentreError;
use tidewater_client::ClientError;
use tidewater_protocol::Code;
use tidewater_server::{ConfigError, ServerError};
use tidewater_terminal::{
    CommandOutcome, Failure, Interrupt, output, run_program, with_exit_codes,
};

/// Measure a deployment under load: thousands of real remotes, kept in step
///
/// Starts a server and processes with remotes (SQLite files) of their own, and lets all of them
/// sync at once with a consolidated database: downloads, updates, deletes, inserts. Prints a
/// table of how long that took and where the time went. The database has to be empty, and is
/// empty again afterwards.
#[derive(Debug, Parser)]
#[command(
    name = "tidewater-bench",
    // As users call it, and as all documents write it.
    bin_name = "tidewater bench",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench remotes                                     # an SQLite file, two minutes
  tidewater bench remotes --consolidated postgres://me@127.0.0.1/empty
  tidewater bench workers --consolidated postgres://me@127.0.0.1/empty --repeat 3 --json
  tidewater bench size --repeat 3 --report size.html          # charts, too
  tidewater bench supervise remotes --listen 10.0.0.1:7450 --wait-for 4 --remotes 10000
  tidewater bench drive --supervisor 10.0.0.1:7450            # on each of four machines"))]
struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// From few remotes with many rows each to many with few
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench remotes
  tidewater bench remotes --remotes 10000 --rows 1000 --tracking off --consolidated postgres://me@127.0.0.1/empty"))]
    Remotes(RunArgs),
    /// From one row a sync to ten thousand, at the same number of rows altogether
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench size
  tidewater bench size --rows 100,10000 --total 1000000 --remotes 1000 --sets 10"))]
    Size(RunArgs),
    /// Numbers of workers in the server
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench workers --repeat 3
  tidewater bench workers --workers 1,4,16,auto --consolidated postgres://me@127.0.0.1/empty"))]
    Workers(RunArgs),
    /// What the databases do with the same rows when nothing of Tidewater is between
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench limit
  tidewater bench limit --rows 1000 --remotes 1000 --consolidated postgres://me@127.0.0.1/empty"))]
    Limit(RunArgs),
    /// A limit of connections, and when remotes come back that were sent away
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench retry --repeat 3
  tidewater bench retry --remotes 10000 --rows 1000 --connections 1024 --retry advised,0,5,50"))]
    Retry(RunArgs),
    /// Subscribers that update rows of their own and sync, again and again
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench merge --seconds 30
  tidewater bench merge --remotes 1200 --rows 1000 --seconds 600 --consolidated postgres://me@127.0.0.1/empty"))]
    Merge(RunArgs),
    /// Remotes with slow lines beside remotes with fast ones
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench slow
  tidewater bench slow --remotes 1000 --fast 100 --line 480 --workers 10"))]
    Slow(RunArgs),
    /// Server and database confined to some cores
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench cpus --cpus 1,2,4"))]
    Cpus(RunArgs),
    /// What carries connections, encrypted and not, packed and not
    ///
    /// Compares each way with TCP as it is, in alternation: downloads, updates, deletes, inserts,
    /// and syncs with nothing to do. The server listens at this machine's own address, because on
    /// loopback nothing is packed unless that is asked for: do this on a network that you trust.
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench protocols                                   # a few minutes
  tidewater bench protocols --carriers tcp,https,relay --compression off,auto --repeat 3
  tidewater bench protocols --remotes 1000 --rows 1000 --consolidated postgres://me@127.0.0.1/empty"))]
    Protocols(RunArgs),
    /// Your own configuration and data: what one synced file has pending, many times over
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench own -c tidewater.toml --remote nancy.db --remotes 100 --consolidated postgres://me@127.0.0.1/copy"))]
    Own(RunArgs),
    /// Calls a second: of the server, over HTTP, of the database
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench calls
  tidewater bench calls --seconds 10 --repeat 3 --consolidated postgres://me@127.0.0.1/empty"))]
    Calls(LiveArgs),
    /// Events a second: passed on to many, kept in the database, beside syncs
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench events
  tidewater bench events --repeat 3 --consolidated postgres://me@127.0.0.1/empty"))]
    Events(LiveArgs),
    /// From a commit in the centre to the row on the device, and what live remotes cost
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench wake
  tidewater bench wake --remotes 100 --idle 1000 --consolidated postgres://me@127.0.0.1/empty"))]
    Wake(WakeArgs),
    /// The first sync of a remote with many rows: by rows, and from an image
    ///
    /// The server makes the image and gives it away itself; some rows have changed since.
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench images --rows 100000
  tidewater bench images --repeat 5 --consolidated postgres://me@127.0.0.1/empty"))]
    Images(ImagesArgs),
    /// A program of a measure of the live layer
    #[command(hide = true, after_help = with_exit_codes!("\
Examples:
  tidewater bench live-client"))]
    LiveClient,
    /// Run a scenario with drivers on other machines
    ///
    /// Waits until so many have come (tidewater bench drive --supervisor HOST:PORT), and begins.
    /// The server is started here, at the same address.
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench supervise remotes --listen 10.0.0.1:7450 --wait-for 4 --remotes 10000"))]
    Supervise(SuperviseArgs),
    /// Drive remotes for a supervisor on another machine
    #[command(after_help = with_exit_codes!("\
Examples:
  tidewater bench drive --supervisor 10.0.0.1:7450
  tidewater bench drive --supervisor 10.0.0.1:7450 --files /var/tmp"))]
    Drive(DriveArgs),
}

#[derive(Debug, Args)]
struct LiveArgs {
    /// The consolidated database: postgres://user@host:5432/database or sqlite:path; it has to be
    /// empty [default: an SQLite file in a temporary folder]
    #[arg(long, value_name = "URL")]
    consolidated: Option<String>,
    /// Seconds of each point (calls, events, wake)
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    seconds: f64,
    /// How often everything is measured
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    repeat: u32,
    /// The folder for files [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
    /// Print one JSON object; docs/bench.md tells its fields
    #[arg(long)]
    json: bool,
    /// Write a page with a table and charts, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct WakeArgs {
    /// Remotes that are live while one of them is told
    #[arg(long, value_name = "NUMBER", default_value = "1000")]
    remotes: u32,
    /// Remotes that are live while the server's memory is measured
    #[arg(long, value_name = "NUMBER", default_value = "10000")]
    idle: u32,
    #[command(flatten)]
    live: LiveArgs,
}

#[derive(Debug, Args)]
struct ImagesArgs {
    /// Rows of the remote
    #[arg(long, value_name = "NUMBER", default_value = "1000000",
          value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    rows: u32,
    #[command(flatten)]
    live: LiveArgs,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The consolidated database: postgres://user@host:5432/database or sqlite:path; it has to be
    /// empty [default: an SQLite file in a temporary folder]
    #[arg(long, value_name = "URL")]
    consolidated: Option<String>,
    /// Remotes that sync at once
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    remotes: Vec<u32>,
    /// Rows of each sync
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    rows: Vec<u32>,
    /// Rows of all syncs together, where the scenario keeps that the same
    #[arg(long, value_name = "NUMBER")]
    total: Option<u64>,
    /// Sets, each of remotes of its own; their times are added up
    #[arg(long, value_name = "NUMBER")]
    sets: Option<u32>,
    /// Workers for uploads and for downloads: numbers, or auto
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = workers)]
    workers: Vec<Workers>,
    /// Processes that drive remotes [default: one for each core]
    #[arg(long, value_name = "NUMBER")]
    drivers: Option<u32>,
    /// Servers of the database, between which the processes that drive remotes are divided
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    servers: u32,
    /// The server's limit of connections [default: none]
    #[arg(long, value_name = "NUMBER")]
    connections: Option<u32>,
    /// Change tracking in the centre
    #[arg(long, value_name = "log|off", default_value = "log")]
    tracking: TrackingArg,
    /// Measure each point so often, in alternation
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    repeat: u32,
    /// Measure what the databases do alone, too
    #[arg(long)]
    with_limit: bool,
    /// The setting of the published papers: takes long, and many cores
    #[arg(long)]
    paper: bool,
    /// Where remotes have their files: memory, or a folder
    #[arg(long, value_name = "memory|FOLDER", default_value = "memory", value_parser = files)]
    files: FilesPlace,
    /// Remotes of one driver that sync at once [default: all]
    #[arg(long, value_name = "NUMBER")]
    at_once: Option<u32>,
    /// Remotes keep their files open between syncs, as a program does that runs all day [default:
    /// each sync opens its file, as a program does that is started for it]
    #[arg(long)]
    keep_open: bool,
    /// When remotes that were sent away come back: advised (by the server), or after so many
    /// seconds
    #[arg(long, value_name = "DELAYS", value_delimiter = ',', value_parser = retry)]
    retry: Vec<Retry>,
    /// How long subscribers go on (merge)
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// The speed of slow lines (slow)
    #[arg(long, value_name = "BYTES A SECOND")]
    line: Option<u64>,
    /// Remotes with fast lines (slow)
    #[arg(long, value_name = "NUMBER")]
    fast: Option<u32>,
    /// Cores for server and database (cpus)
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    cpus: Vec<u32>,
    /// What carries connections (protocols): tcp, ws, http, tls-ecc, tls-rsa, tls-resumed, wss, https,
    /// relay [default: each as it is, and tcp with each compression]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    carriers: Vec<Protocol>,
    /// How connections are packed (protocols): off, auto, zstd, deflate
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    compression: Vec<Compression>,
    /// Your configuration (own)
    #[arg(short = 'c', long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Your synced file, with pending changes (own)
    #[arg(long, value_name = "FILE")]
    remote: Option<PathBuf>,
    /// Leave the tables in the database
    #[arg(long)]
    keep: bool,
    /// Print one JSON object; docs/bench.md tells its fields
    #[arg(long)]
    json: bool,
    /// Write a page with tables and charts, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct SuperviseArgs {
    /// The scenario
    #[arg(value_parser = scenarios())]
    scenario: Scenario,
    /// Where drivers reach the supervisor; the server listens at the same host
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// How many drivers there will be
    #[arg(long, value_name = "NUMBER")]
    wait_for: u32,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Args)]
struct DriveArgs {
    /// Where the supervisor is
    #[arg(long, value_name = "HOST:PORT")]
    supervisor: String,
    /// Where remotes have their files: memory, or a folder
    #[arg(long, value_name = "memory|FOLDER", default_value = "memory", value_parser = files)]
    files: FilesPlace,
    /// What the supervisor is to call this driver
    #[arg(long)]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TrackingArg {
    Log,
    Off,
}

/// The scenarios by their names.
fn scenarios() -> impl TypedValueParser<Value = Scenario> {
    let names = PossibleValuesParser::new(Scenario::ALL.map(Scenario::name));
    names.try_map(|name| {
        let mut all = Scenario::ALL.into_iter();
        all.find(|it| it.name() == name).ok_or("no scenario")
    })
}

fn workers(text: &str) -> Result<Workers, String> {
    match text {
        "auto" => Ok(Workers::Auto),
        number => match number.parse() {
            Ok(number @ 1..) => Ok(Workers::Fixed(number)),
            _ => Err("write a number from 1, or auto".into()),
        },
    }
}

fn files(text: &str) -> Result<FilesPlace, String> {
    Ok(match text {
        "memory" => FilesPlace::Memory,
        folder => FilesPlace::Folder(folder.into()),
    })
}

fn retry(text: &str) -> Result<Retry, String> {
    if text == "advised" {
        return Ok(Retry::Advised);
    }
    let seconds = text.parse::<f64>();
    let seconds = seconds.map_err(|_| "write advised, or a number of seconds".to_owned())?;
    if !(0.0..=3_600.0).contains(&seconds) {
        return Err("write a number of seconds from 0 to 3600".into());
    }
    Ok(Retry::FixedMs((seconds * 1_000.0) as u64))
}

impl BenchArgs {
    /// Whether the result is to be one JSON object.
    fn wants_json(&self) -> bool {
        match &self.command {
            BenchCommand::Supervise(args) => args.run.json,
            command => match (command.live(), command.scenario()) {
                (Some((_, args)), _) => args.json,
                (None, Some((_, args))) => args.json,
                (None, None) => false,
            },
        }
    }
}

impl BenchCommand {
    fn scenario(&self) -> Option<(Scenario, &RunArgs)> {
        Some(match self {
            BenchCommand::Remotes(args) => (Scenario::Remotes, args),
            BenchCommand::Size(args) => (Scenario::Size, args),
            BenchCommand::Workers(args) => (Scenario::Workers, args),
            BenchCommand::Limit(args) => (Scenario::Limit, args),
            BenchCommand::Retry(args) => (Scenario::Retry, args),
            BenchCommand::Merge(args) => (Scenario::Merge, args),
            BenchCommand::Slow(args) => (Scenario::Slow, args),
            BenchCommand::Cpus(args) => (Scenario::Cpus, args),
            BenchCommand::Protocols(args) => (Scenario::Protocols, args),
            BenchCommand::Own(args) => (Scenario::Own, args),
            BenchCommand::Supervise(args) => (args.scenario, &args.run),
            BenchCommand::Drive(_)
            | BenchCommand::Calls(_)
            | BenchCommand::Events(_)
            | BenchCommand::Wake(_)
            | BenchCommand::Images(_)
            | BenchCommand::LiveClient => return None,
        })
    }

    fn live(&self) -> Option<(LiveScenario, &LiveArgs)> {
        Some(match self {
            BenchCommand::Calls(args) => (LiveScenario::Calls, args),
            BenchCommand::Events(args) => (LiveScenario::Events, args),
            BenchCommand::Wake(args) => {
                let scenario = LiveScenario::Wake {
                    remotes: args.remotes,
                    idle: args.idle,
                };
                (scenario, &args.live)
            }
            BenchCommand::Images(args) => (LiveScenario::Images { rows: args.rows }, &args.live),
            _ => return None,
        })
    }
}

impl RunArgs {
    fn options(&self, scenario: Scenario) -> Options {
        Options {
            consolidated: self.consolidated.clone(),
            remotes: self.remotes.clone(),
            rows: self.rows.clone(),
            total: self.total,
            sets: self.sets,
            workers: self.workers.clone(),
            drivers: self.drivers,
            servers: self.servers,
            connections: self.connections,
            tracking: match self.tracking {
                TrackingArg::Log => TrackingSetting::Log,
                TrackingArg::Off => TrackingSetting::Off,
            },
            repeat: self.repeat,
            with_limit: self.with_limit,
            paper: self.paper,
            keep: self.keep,
            files: self.files.clone(),
            at_once: self.at_once,
            keep_open: self.keep_open,
            seconds: self.seconds,
            line: self.line,
            fast: self.fast,
            retries: self.retry.clone(),
            cpus: self.cpus.clone(),
            carriers: self.carriers.clone(),
            compressions: self.compression.clone(),
            config: self.config.clone(),
            remote: self.remote.clone(),
            ..Options::new(scenario)
        }
    }
}

fn main() -> ExitCode {
    run_program(
        std::env::args_os().collect(),
        BenchArgs::wants_json,
        |args| run(&args),
    )
}

fn run(args: &BenchArgs) -> Result<CommandOutcome, Failure> {
    if let BenchCommand::Drive(args) = &args.command {
        let options = DriveOptions {
            supervisor: args.supervisor.clone(),
            files: args.files.clone(),
            name: args.name.clone(),
        };
        tidewater_bench::drive(&options).map_err(failure)?;
        return Ok(CommandOutcome::Complete);
    }
    if let BenchCommand::LiveClient = &args.command {
        tidewater_bench::client().map_err(failure)?;
        return Ok(CommandOutcome::Complete);
    }
    if let Some((scenario, args)) = args.command.live() {
        return run_live(scenario, args);
    }
    let Some((scenario, run)) = args.command.scenario() else {
        return Ok(CommandOutcome::Complete);
    };
    let mut options = run.options(scenario);
    if let BenchCommand::Supervise(args) = &args.command {
        options.supervise = Some(Supervise {
            listen: address(&args.listen)?,
            drivers: args.wait_for,
        });
    }
    let interrupt = Interrupt::listen()?;
    let watcher = Watcher {
        note: &output::note,
        interrupted: &|| interrupt.is_raised(),
    };
    let report = tidewater_bench::run(&options, &watcher).map_err(failure)?;
    if run.json {
        output::json(&report)?;
    } else {
        output::text(&tidewater_bench::table(&report))?;
    }
    match &run.report {
        None => Ok(CommandOutcome::Complete),
        Some(path) => with_report(path, tidewater_bench::html(&report)),
    }
}

/// What took so long is printed by now, and stays the one thing on standard output.
fn with_report(path: &Path, page: anyhow::Result<String>) -> Result<CommandOutcome, Failure> {
    match page.map_err(failure).and_then(|it| write_report(path, &it)) {
        Ok(()) => Ok(CommandOutcome::Complete),
        Err(failure) => {
            output::failure(&failure, false);
            Ok(CommandOutcome::WithFailure(failure.exit_code()))
        }
    }
}

fn run_live(scenario: LiveScenario, args: &LiveArgs) -> Result<CommandOutcome, Failure> {
    if args.seconds.is_nan() || args.seconds <= 0.0 || args.repeat == 0 {
        return Err(Failure::usage(
            "nothing would be measured",
            "give --seconds and --repeat numbers above zero",
        ));
    }
    let interrupt = Interrupt::listen()?;
    let watcher = Watcher {
        note: &output::note,
        interrupted: &|| interrupt.is_raised(),
    };
    let options = LiveBenchOptions {
        scenario,
        consolidated: args.consolidated.clone(),
        seconds: args.seconds,
        repeat: args.repeat,
        files: args.files.clone(),
    };
    let report = tidewater_bench::run_live(&options, &watcher).map_err(failure)?;
    match args.json {
        true => output::json(&report)?,
        false => output::text(&tidewater_bench::live_table(&report))?,
    }
    match &args.report {
        None => Ok(CommandOutcome::Complete),
        Some(path) => with_report(path, tidewater_bench::live_html(&report)),
    }
}

fn write_report(path: &Path, page: &str) -> Result<(), Failure> {
    let failed = |error| Failure::file("write the report", path, &error);
    let mut file = File::create(path).map_err(failed)?;
    file.write_all(page.as_bytes()).map_err(|error| {
        // Half a page would be taken for a whole one.
        if path.is_file() {
            let _ = std::fs::remove_file(path);
        }
        failed(error)
    })
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().ok().and_then(|mut it| it.next());
    found.ok_or_else(|| {
        Failure::usage(
            format!("{text:?} is no address of this machine"),
            "write --listen HOST:PORT",
        )
    })
}

/// What went wrong, with a code: that of whatever is at the bottom of it.
fn failure(error: anyhow::Error) -> Failure {
    if let Some(input) = error.downcast_ref::<BadInput>() {
        return Failure::usage(format!("{error:#}"), input.hint.clone());
    }
    let message = format!("{error:#}");
    if let Some(error) = error.downcast_ref::<CentreError>() {
        return Failure::new(error.code(), message, error.hint());
    }
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        return Failure::new(error.code(), message, error.hint());
    }
    if let Some(error) = error.downcast_ref::<ServerError>() {
        return Failure::new(error.code(), message, error.hint());
    }
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return Failure::new(error.code(), message, error.hint());
    }
    Failure::new(Code::Internal, message, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_shows_examples_and_exit_codes() {
        tidewater_terminal::check_help(BenchArgs::command());
    }
}
