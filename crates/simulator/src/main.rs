//! `tidewater-simulator`: runs simulations and tells what they found.

use std::ops::Range;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use tidewater_simulator::{Plan, Summary, regression_test, run, run_all, shrink};

/// Real remotes, servers and an SQLite centre in a simulated world.
#[derive(Parser)]
struct Arguments {
    /// Replays one seed and tells everything that happens in it.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Runs the seeds from the first to below the second, on all cores.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_range, required_unless_present = "seed")]
    seeds: Option<Range<u64>>,
    /// Prints what a range came to as one JSON object.
    #[arg(long, requires = "seeds")]
    json: bool,
    /// How many threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return Ok(replay(Plan::of(seed)));
    }
    let seeds = arguments.seeds.context("name --seed or --seeds")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = run_all(seeds, arguments.threads.unwrap_or(cores).max(1));
    if arguments.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        tell(&summary);
    }
    Ok(code(summary.failures.is_empty()))
}

/// The log of a seed; if it failed, the smallest plan that does, as a test.
fn replay(plan: Plan) -> ExitCode {
    let ended = run(plan, true);
    for line in &ended.lines {
        println!("{line}");
    }
    println!("history {:016x}, {} sessions", ended.hash, ended.sessions);
    let Some(failure) = ended.failure else {
        return ExitCode::SUCCESS;
    };
    let smallest = shrink(plan);
    let failure = run(smallest, false).failure.unwrap_or(failure);
    println!(
        "\nThe smallest plan that fails:\n\n{}",
        regression_test(smallest, &failure)
    );
    ExitCode::FAILURE
}

fn tell(summary: &Summary) {
    println!(
        "{} seeds, {} sessions, {} simulated seconds",
        summary.seeds, summary.sessions, summary.simulated_seconds
    );
    for (kind, count) in &summary.faults {
        println!("{count:>10} {kind}");
    }
    for failure in &summary.failures {
        println!("seed {} failed: {}", failure.seed, failure.what);
    }
}

fn code(held: bool) -> ExitCode {
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse_range(text: &str) -> anyhow::Result<Range<u64>> {
    let (from, to) = text
        .split_once("..")
        .context("write FROM..TO, for example 0..1000")?;
    let range = from.parse()?..to.parse()?;
    if range.is_empty() {
        bail!("there is no seed from {from} to below {to}");
    }
    Ok(range)
}
