//! The program that `tidewater simulate` runs: the user's own configuration in a simulated world, with everything that
//! can go wrong, and the judges of the product.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;
use tidewater_centre::CentreError;
use tidewater_protocol::Code;
use tidewater_server::databases::{self, SqliteTranslation};
use tidewater_simulator::kit::{
    Extent, HandlerAnswers, Kit, KitError, KitOptions, MOST_BYTES, RangeOutcome, SeedOutcome,
    Tally, run_range,
};
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{
    CommandOutcome, ConfigArgs, CountLine, Failure, run_program, with_exit_codes,
};
use tokio::runtime::Builder;

/// So much of what happened before a promise broke is shown without --trace.
const LAST_LINES: usize = 12;

/// So much of a refused row is shown; `--json` has it whole.
const EXAMPLE_LETTERS: usize = 100;

/// Run your configuration in a simulated world, and see whether it keeps its promises
///
/// Takes a copy of the consolidated database, with your publications, scripts and constraints, and
/// has made-up devices edit and sync it while connections break, servers are killed, disks fail and
/// files are restored from copies. Then judges ask of every row what became of it. The database
/// itself is only read. A seed decides all that happens: the same seed is the same history.
///
/// PostgreSQL cannot run in simulated time: of such a database tables, rows and SQL are translated
/// into SQLite, and what cannot be is told. Handlers are not asked; a file can say what they answer.
#[derive(Debug, Parser)]
#[command(
    name = "tidewater-simulate",
    // As users call it, and as all documents write it.
    bin_name = "tidewater simulate",
    version,
    max_term_width = 100
)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater simulate
  tidewater simulate -c shop.toml --seeds 0..1000
  tidewater simulate --seed 17 --trace              # replays what seed 17 found
  tidewater simulate --handler-answers answers.jsonl
  tidewater simulate --json | jq .failure

Here, 5 also means: a promise was broken.

The object of --json:
  {\"seeds\":n,\"failure\":null|{\"seed\":n,\"promise\":\"I1\"..\"I6\",\"what\",\"replay\",\"lines\":[..]},
   \"tally\":{\"remotes\",\"connections\",\"syncs\",\"changes_of_remotes\",\"changes_of_centre\",
            \"impossible\",\"conflicts\",\"simulated_ms\",\"faults\":{KIND:n},
            \"refused\":{NAME:{\"table\",\"reason\",\"count\",\"example\"}}},
   \"remarks\":[what is otherwise than in the configuration]}"))]
struct SimulateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The seeds, from the first to below the second; it ends at the first that breaks a promise
    #[arg(long, value_name = "FROM..TO", value_parser = seeds, default_value = "0..20")]
    seeds: Range<u64>,
    /// One seed only
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Devices in each seed's world
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    remotes: u64,
    /// How often each of them syncs
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1000))]
    syncs: u64,
    /// Whose devices they are; repeatable [default: the users that there are, or names in the rows]
    #[arg(long = "user", value_name = "NAME")]
    users: Vec<String>,
    /// What devices set, as `tidewater sync --parameter`; repeatable, of several values of one name
    /// each device has one
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
    /// Take the tables only, and no rows
    #[arg(long)]
    empty: bool,
    /// A column in which scripts write something else than devices do (better say read_only in the
    /// configuration), or a table whose scripts put its rows elsewhere; repeatable
    #[arg(long = "centre-writes", value_name = "TABLE[.COLUMN]")]
    centre_writes: Vec<String>,
    /// What handlers say of uploaded rows: a file of JSON lines, each with table, verdict and, as
    /// wanted, key, where, operation, reason, new; the first that fits a row counts, and any other
    /// row is applied [default: handlers are not asked]
    #[arg(long, value_name = "FILE")]
    handler_answers: Option<PathBuf>,
    /// Show everything that happened before a promise broke, or in the one seed
    #[arg(long)]
    trace: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    run_program(
        std::env::args_os().collect(),
        |args: &SimulateArgs| args.json,
        |args| run(&args),
    )
}

fn run(args: &SimulateArgs) -> Result<CommandOutcome, Failure> {
    let config = args.config.load()?;
    let url = &config.server.consolidated;
    let (translation, known) = translated(url, args)?;
    let wanted = KitOptions {
        centre: PathBuf::from(url.strip_prefix("sqlite:").unwrap_or_default()),
        translation: translation.map(Arc::new),
        answers: args.answers()?.map(Arc::new),
        is_empty: args.empty,
        users: match args.users.is_empty() {
            true => known,
            false => args.users.clone(),
        },
        parameters: args.parameters.clone(),
        made_by_centre: args.centre_writes.clone(),
    };
    let kit = Kit::prepare(&config, &wanted).map_err(|error| match error {
        KitError::Configuration(error) => Failure::from(config.locate_error(error)),
        error => failure(error),
    })?;
    let seeds = match args.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => args.seeds.clone(),
    };
    let extent = Extent {
        remotes: args.remotes,
        syncs: args.syncs,
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let line = CountLine::new(!args.quiet, "seeds", seeds.end - seeds.start);
    let outcome = run_range(&kit, seeds, extent, threads.get(), &|done| line.show(done));
    drop(line);
    let traced = (args.trace && args.seed.is_some() && outcome.failed.is_none())
        .then(|| tidewater_simulator::kit::run(&kit, args.seed.unwrap_or_default(), extent, true));
    match args.json {
        true => output::json(&SimulationReport::new(args, &kit, &outcome))?,
        false => output::text(&describe(args, &kit, &outcome, traced.as_ref()))?,
    }
    Ok(match outcome.failed {
        None => CommandOutcome::Complete,
        Some(_) => CommandOutcome::WithDifferences,
    })
}

/// What stands in for a database that cannot run in simulated time, and its users.
fn translated(
    url: &str,
    args: &SimulateArgs,
) -> Result<(Option<SqliteTranslation>, Vec<String>), Failure> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::start(&error))?;
    runtime.block_on(async {
        let translation = databases::translate(url, !args.empty, MOST_BYTES).await?;
        if translation.is_none() {
            return Ok((None, Vec::new()));
        }
        // One to which nothing was deployed has none.
        let users = match databases::connect(url).await?.users().await {
            Ok(users) => users,
            Err(CentreError::NotDeployed { .. } | CentreError::StatementFailed { .. }) => {
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        let users = users.into_iter().filter(|it| !it.disabled);
        Ok((translation, users.map(|it| it.name).collect()))
    })
}

impl SimulateArgs {
    /// What the file says that handlers say.
    fn answers(&self) -> Result<Option<HandlerAnswers>, Failure> {
        let Some(path) = &self.handler_answers else {
            return Ok(None);
        };
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
        Ok(Some(HandlerAnswers::parse(&text).map_err(failure)?))
    }
}

/// The object of `--json`.
#[derive(Serialize)]
struct SimulationReport<'a> {
    seeds: u64,
    failure: Option<FailedSeed<'a>>,
    tally: &'a Tally,
    remarks: &'a [String],
}

#[derive(Serialize)]
struct FailedSeed<'a> {
    seed: u64,
    promise: &'a str,
    what: &'a str,
    replay: String,
    lines: &'a [String],
}

impl<'a> SimulationReport<'a> {
    fn new(args: &SimulateArgs, kit: &'a Kit, outcome: &'a RangeOutcome) -> SimulationReport<'a> {
        let failure = outcome.failed.as_ref().map(|played| {
            let (promise, what) = promise(played);
            FailedSeed {
                seed: played.seed,
                promise,
                what,
                replay: replay(args, played.seed),
                lines: &played.lines,
            }
        });
        SimulationReport {
            seeds: outcome.seeds,
            failure,
            tally: &outcome.tally,
            remarks: kit.remarks(),
        }
    }
}

/// Which promise was broken, and how.
fn promise(played: &SeedOutcome) -> (&str, &str) {
    let failure = played.failure.as_deref().unwrap_or_default();
    failure.split_once(": ").unwrap_or(("", failure))
}

/// What a run came to, for people.
fn describe(
    args: &SimulateArgs,
    kit: &Kit,
    outcome: &RangeOutcome,
    traced: Option<&SeedOutcome>,
) -> String {
    let mut text = String::new();
    for line in traced.iter().flat_map(|it| &it.lines) {
        text.push_str(&format!("{line}\n"));
    }
    for remark in kit.remarks() {
        text.push_str(&format!("note: {remark}\n"));
    }
    text.push_str(&done(outcome));
    match &outcome.failed {
        None => text.push_str("every promise was kept\n"),
        Some(played) => text.push_str(&broken(args, played)),
    }
    text
}

/// What was done.
fn done(outcome: &RangeOutcome) -> String {
    let tally = &outcome.tally;
    let seconds = tally.simulated_ms / 1_000;
    let counted = output::counted;
    let mut text = format!(
        "{}: {}, {}, {}\n{} on devices, {} in the centre; {}\n",
        counted(outcome.seeds, "seed", "seeds"),
        counted(tally.remotes, "device", "devices"),
        counted(tally.syncs, "sync", "syncs"),
        counted(seconds, "simulated second", "simulated seconds"),
        counted(tally.changes_of_remotes, "change", "changes"),
        tally.changes_of_centre,
        counted(tally.conflicts, "conflict", "conflicts"),
    );
    if !tally.refused.is_empty() {
        let mut refused = TextTable::new(&["refused in", "why", ">times", "for example"]);
        for rows in tally.refused.values() {
            refused.row([
                rows.table.clone(),
                rows.reason.clone(),
                rows.count.to_string(),
                shortened(&rows.example),
            ]);
        }
        let _ = write!(text, "\n{}", refused.render(0));
    }
    if !tally.faults.is_empty() {
        let mut faults = TextTable::new(&["what went wrong", ">times"]);
        for (kind, count) in &tally.faults {
            faults.row([(*kind).to_owned(), count.to_string()]);
        }
        let _ = writeln!(text, "\n{}", faults.render(0));
    }
    text
}

/// As much of a row as has room on a line.
fn shortened(example: &str) -> String {
    match example.char_indices().nth(EXAMPLE_LETTERS) {
        Some((at, _)) => format!("{}..", &example[..at]),
        None => example.to_owned(),
    }
}

/// A promise that was broken, and what happened before.
fn broken(args: &SimulateArgs, played: &SeedOutcome) -> String {
    let (promise, what) = promise(played);
    let mut text = format!("seed {} broke a promise\n", played.seed);
    let meaning = meaning(promise);
    match meaning.is_empty() {
        true => text.push_str(&format!("{promise} {what}\n")),
        false => text.push_str(&format!("{promise} ({meaning}): {what}\n")),
    }
    let shown = match args.trace {
        true => 0,
        false => played.lines.len().saturating_sub(LAST_LINES),
    };
    text.push_str("\nwhat happened before, after its simulated milliseconds:\n");
    for line in &played.lines[shown..] {
        if !line.contains(" BROKEN: ") {
            text.push_str(&format!("{line}\n"));
        }
    }
    text.push_str(&format!(
        "\nto see it again: {}\n",
        replay(args, played.seed)
    ));
    if matches!(promise, "I1" | "I2") {
        text.push_str(
            "if it is meant so: read_only in the configuration, or --centre-writes TABLE.COLUMN\n",
        );
    }
    text
}

/// The promise in words.
fn meaning(promise: &str) -> &'static str {
    match promise {
        "I1" => "nothing is lost, nothing is applied twice",
        "I2" => "every change is somewhere",
        "I3" => "no change is skipped",
        "I4" => "a download is atomic, and overwrites no local change",
        "I5" => "no row leaves its scope",
        "I6" => "all end equal",
        _ => "",
    }
}

/// The command that does a seed again.
fn replay(args: &SimulateArgs, seed: u64) -> String {
    let mut text = format!(
        "tidewater simulate -c {} --seed {seed} --remotes {} --syncs {}",
        quoted(&args.config.path.display().to_string()),
        args.remotes,
        args.syncs
    );
    for user in &args.users {
        text.push_str(&format!(" --user {}", quoted(user)));
    }
    for (name, value) in &args.parameters {
        text.push_str(&format!(
            " --parameter {}",
            quoted(&format!("{name}={value}"))
        ));
    }
    for column in &args.centre_writes {
        text.push_str(&format!(" --centre-writes {}", quoted(column)));
    }
    if let Some(path) = &args.handler_answers {
        let path = quoted(&path.display().to_string());
        text.push_str(&format!(" --handler-answers {path}"));
    }
    if args.empty {
        text.push_str(" --empty");
    }
    text.push_str(" --trace");
    text
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./=:".contains(it);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().ok();
    let range = text.split_once("..");
    let range = range.and_then(|(from, to)| Some(number(from)?..number(to)?));
    match range {
        Some(range) if !range.is_empty() => Ok(range),
        _ => Err("write FROM..TO, for example 0..1000".into()),
    }
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

/// What went wrong, with a code.
fn failure(error: KitError) -> Failure {
    let message = error.to_string();
    match error {
        KitError::Centre { hint, .. } | KitError::Usage { hint, .. } => {
            Failure::usage(message, hint)
        }
        KitError::Configuration(error) => error.into(),
        _ => Failure::new(Code::Internal, message, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_shows_examples_and_exit_codes() {
        tidewater_terminal::check_help(SimulateArgs::command());
    }
}
