//! The benchmarks behind `docs/performance.md`.
//!
//! Every figure is a median over several runs, with the spread; every claim is a
//! ratio to what the databases do without Tidewater, measured in the same run. The
//! parts are processes of their own, as in the field: a PostgreSQL that syncs to
//! disk, a server, a remote.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark is about real time, and nothing replays it"
)]

mod copy;
mod download;
mod families;
mod follows;
mod line;
mod lines;
mod machine;
mod measure;
mod memory;
mod processes;
mod rules;
mod tracking;
mod upload;

use clap::{Parser, Subcommand};

/// Measures Tidewater against what the databases do without it.
#[derive(Parser)]
#[command(version, after_help = "Without a command, everything is measured.")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Rows of the purchase table.
    #[arg(long, global = true, default_value_t = 500_000)]
    rows: i32,

    /// Runs of each measurement.
    #[arg(long, global = true, default_value_t = 5)]
    runs: usize,

    /// What `cargo bench` gives to every benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,

    /// Rows for the measurement of memory.
    #[arg(long, global = true, default_value_t = 2_000_000)]
    memory_rows: i32,
}

#[derive(Subcommand)]
enum Command {
    /// First download of a remote, against a prepared insert of the same rows into SQLite.
    Download,
    /// Upload of inserted rows, against a binary COPY of the same rows.
    Upload,
    /// Uploads of parents and children of which a third is bad.
    Families,
    /// Rows that follow others against rows with partitions of their own, and users with many
    /// partitions against users with few.
    Follows,
    /// What change tracking adds to bulk insert, update and delete in the centre.
    Tracking,
    /// Scripts against the generated path, resolvers against no conflict, and a download by time
    /// against its query.
    Rules,
    /// First downloads over a line that breaks, and over a slow one.
    Lines {
        /// Rows for the line that breaks: 200 MB of the protocol.
        #[arg(long, default_value_t = 2_000_000)]
        broken_rows: i32,
    },
    /// Peak memory of server and remote.
    Memory,
    /// A server process of a benchmark: reads the configuration's path, serves until its
    /// standard input ends.
    #[command(hide = true)]
    Serve {
        /// The configuration.
        configuration: std::path::PathBuf,
    },
    /// A remote process of a benchmark: syncs once.
    #[command(hide = true)]
    Sync(processes::SyncArguments),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let Arguments {
        rows,
        runs,
        memory_rows,
        ..
    } = arguments;
    match arguments.command {
        Some(Command::Serve { configuration }) => return processes::serve(&configuration),
        Some(Command::Sync(sync)) => return processes::sync(&sync),
        _ => machine::print(),
    }
    match arguments.command {
        Some(Command::Download) => download::run(rows, runs),
        Some(Command::Upload) => upload::run(rows, runs),
        Some(Command::Families) => families::run(runs),
        Some(Command::Follows) => follows::run(runs),
        Some(Command::Tracking) => tracking::run(rows, runs),
        Some(Command::Rules) => rules::run(runs),
        Some(Command::Lines { broken_rows }) => lines::run(broken_rows, runs),
        Some(Command::Memory) => memory::run(memory_rows),
        _ => {
            download::run(rows, runs)?;
            upload::run(rows, runs)?;
            families::run(runs)?;
            follows::run(runs)?;
            tracking::run(rows, runs)?;
            rules::run(runs)?;
            memory::run(memory_rows)
        }
    }
}
