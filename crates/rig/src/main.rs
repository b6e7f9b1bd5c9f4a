//! The fault rig: real servers on a real PostgreSQL, real remotes, and a network that breaks
//! all of them; at the end every change and every row is judged. See DESIGN.md.

#![allow(
    clippy::disallowed_methods,
    reason = "real processes run in real time, and nothing replays them"
)]

mod accidents;
mod application;
mod between;
mod chance;
mod cluster;
mod device;
mod judge;
mod keeper;
mod ledger;
mod network;
mod office;
mod program;
mod providers;
mod run;
mod servers;
mod stage;
mod standing;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Breaks real servers, remotes and PostgreSQL at random, and judges what is left of the data.
///
/// Needs the programs of PostgreSQL (in TIDEWATER_PG_BIN, in PATH or where distributions put
/// them), NATS and HAProxy, and starts its own of them. As root it runs them as another user, and gives a
/// device a small file system of its own to fill.
///
/// Exit code 0: nothing was found; 1: something was, and the folder is kept; 2: the rig itself
/// could not go on.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// How long things break, in seconds: at least that long, and until each accident of the
    /// servers, of PostgreSQL and of the whole network has happened once. Healing and judging
    /// come after.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Decides what is drawn, but not when it happens [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// How many devices sync.
    #[arg(long, default_value_t = 6)]
    devices: usize,
    /// How many servers there are.
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// The tidewater program [default: the one beside this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Where files and logs go, kept in any case [default: a temporary folder, kept if
    /// something was found]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run::run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: the rig cannot go on: {error:#}");
            ExitCode::from(2)
        }
    }
}
