//! `tidewater-simulator`: runs simulations and tells what they found.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use tidewater_simulator::{Defect, HUNTED, hunt_all, run_all_with, run_with};
use tidewater_simulator::{Plan, Summary, regression_test, run, run_all, shrink};

/// What runs without a range of seeds.
const NEED_NO_SEEDS: &[&str] = &["seed", "list_defects", "hunt"];

/// Real remotes, servers and an SQLite centre in a simulated world. A seed decides all that
/// happens in it.
///
/// Exit code 0: every promise was kept; 1: one was broken; 2: the arguments are wrong.
#[derive(Parser)]
struct Arguments {
    /// Replays one seed and tells everything that happens in it, each line after its simulated
    /// milliseconds. If it fails, the smallest world that does is printed as a test.
    #[arg(long, conflicts_with = "seeds", value_parser = parse_seed)]
    seed: Option<u64>,
    /// Runs the seeds from the first to below the second, on all cores.
    #[arg(long, value_name = "FROM..TO", value_parser = parse_range, required_unless_present_any = NEED_NO_SEEDS)]
    seeds: Option<Range<u64>>,
    /// Prints what a range came to as one JSON object.
    #[arg(long, requires = "seeds", conflicts_with = "seed")]
    json: bool,
    /// How many threads; all cores by default.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    wrong: Wrong,
}

/// What is wrong with the product that is simulated.
#[derive(clap::Args)]
struct Wrong {
    /// Simulates a product with this deliberate defect, to see whether a judge notices.
    #[arg(long, value_name = "NAME", value_parser = parse_defect)]
    defect: Option<Defect>,
    /// Lists the deliberate defects.
    #[arg(long, exclusive = true)]
    list_defects: bool,
    /// Looks for the first seed that shows each defect, and writes them into this file.
    #[arg(long, value_name = "FILE", exclusive = true)]
    hunt: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.wrong.list_defects {
        for defect in Defect::ALL {
            println!("{:<30}{}", defect.name(), defect.what());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(list) = &arguments.wrong.hunt {
        return hunt_into(list);
    }
    if let Some(defect) = arguments.wrong.defect {
        return with_defect(defect, &arguments);
    }
    if let Some(seed) = arguments.seed {
        return Ok(replay(Plan::for_seed(seed)));
    }
    let (seeds, threads) = range(&arguments)?;
    conclude(&run_all(seeds, threads), arguments.json)
}

/// The seeds, and how many threads run them.
fn range(arguments: &Arguments) -> anyhow::Result<(Range<u64>, usize)> {
    let seeds = arguments.seeds.clone();
    let seeds = seeds.context("name --seed or --seeds")?;
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Ok((seeds, arguments.threads.unwrap_or(cores).get()))
}

fn conclude(summary: &Summary, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string(summary)?);
    } else {
        tell(summary);
    }
    Ok(code(summary.failures.is_empty()))
}

/// The log of a seed, or what a range came to, of a product with a defect.
fn with_defect(defect: Defect, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(seed) = arguments.seed else {
        let (seeds, threads) = range(arguments)?;
        return conclude(&run_all_with(defect, seeds, threads), arguments.json);
    };
    let ended = run_with(defect, Plan::for_seed(seed), true);
    for line in &ended.lines {
        println!("{line}");
    }
    Ok(code(ended.failure.is_none()))
}

/// Hunts for every defect, and lists the seeds.
fn hunt_into(list: &Path) -> anyhow::Result<ExitCode> {
    let results = hunt_all(|_| HUNTED);
    let seeds = results.iter().filter_map(|(defect, caught)| {
        let caught = caught.as_ref()?;
        Some(format!("{} {}\n", defect.name(), caught.seed))
    });
    std::fs::write(list, seeds.collect::<String>())?;
    Ok(code(results.iter().all(|(_, caught)| caught.is_some())))
}

fn parse_defect(name: &str) -> anyhow::Result<Defect> {
    let mut all = Defect::ALL.iter();
    let found = all.find(|defect| defect.name() == name);
    found
        .copied()
        .with_context(|| format!("there is no defect {name:?}; --list-defects tells all"))
}

/// The log of a seed; if it failed, the smallest plan that does, as a test.
fn replay(plan: Plan) -> ExitCode {
    let ended = run(plan, true);
    for line in &ended.lines {
        println!("{line}");
    }
    println!("history {:016x}, {} sessions", ended.hash, ended.sessions);
    let Some(failure) = ended.failure else {
        println!("every promise was kept");
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

fn parse_seed(text: &str) -> anyhow::Result<u64> {
    text.parse()
        .context("a seed is a whole number, for example 7")
}

fn parse_range(text: &str) -> anyhow::Result<Range<u64>> {
    let (from, to) = text
        .split_once("..")
        .context("write FROM..TO, for example 0..1000")?;
    let range = parse_seed(from)?..parse_seed(to)?;
    if range.is_empty() {
        bail!("there is no seed from {from} to below {to}");
    }
    Ok(range)
}
