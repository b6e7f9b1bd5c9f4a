//! `tidewater conflicts`: the changes that lost against others, which only the centre keeps.

use std::fmt::Write;

use clap::{Args, Subcommand};
use serde::Serialize;
use tidewater_centre::records::ConflictRecord;

use crate::Done;
use crate::args::{ConfigArgs, with_exit_codes};
use crate::centre::OpenCentre;
use crate::failure::Failure;
use crate::kept::ConflictLine;
use crate::output::{self, moment, printable};

const HELP: &str = with_exit_codes!(
    "\
Examples:
  tidewater conflicts list                  # the newest 100
  tidewater conflicts list -c /etc/tidewater.toml --limit 5
  tidewater conflicts list --json | jq '.conflicts[] | select(.table == \"customer\")'

The object of --json:
  {\"conflicts\":[{\"at_ms\",\"remote_id\",\"user\",\"publication\",\"table\",\"key\",\"operation\",
                 \"pre_image\",\"uploaded\",\"winner\"}]}
uploaded is what lost (null: a delete), winner what the centre kept (null: the row was
gone), pre_image what the user had seen before (null: nothing)."
);

/// List the changes that lost against somebody else's
///
/// When two sides change the same row, the first to arrive wins, and the other side gets
/// the winner's row. Both versions are kept in the centre, for as long as the
/// configuration says.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ConflictsArgs {
    #[command(subcommand)]
    action: ConflictsAction,
}

#[derive(Debug, Subcommand)]
enum ConflictsAction {
    /// List the newest conflicts, newest first: what lost, and what won
    #[command(after_help = HELP)]
    List(Listing),
}

#[derive(Debug, Args)]
struct Listing {
    #[command(flatten)]
    config: ConfigArgs,
    /// So many and no more
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

impl ConflictsArgs {
    pub(crate) fn wants_json(&self) -> bool {
        let ConflictsAction::List(args) = &self.action;
        args.json
    }
}

pub(crate) fn run(args: &ConflictsArgs) -> Result<Done, Failure> {
    let ConflictsAction::List(args) = &args.action;
    let conflicts = OpenCentre::open(&args.config)?.newest_conflicts(args.limit)?;
    if args.json {
        let conflicts = conflicts.iter().map(ConflictLine::of).collect();
        output::json(&ListedConflicts { conflicts })?;
    } else if conflicts.is_empty() {
        output::note("no conflicts are kept");
    } else {
        output::text(&describe(&conflicts))?;
    }
    Ok(Done::Fully)
}

/// A paragraph for each conflict: whole rows do not fit a table.
fn describe(conflicts: &[ConflictRecord]) -> String {
    let mut text = String::new();
    for conflict in conflicts {
        let line = format!(
            "{}  {}  {} {} {}",
            moment(conflict.at_ms),
            conflict.user,
            conflict.operation,
            conflict.table,
            conflict.key,
        );
        let _ = writeln!(text, "{}", printable(&line));
        let lost = conflict.uploaded.as_deref().unwrap_or("the delete");
        let won = conflict.winner.as_deref().unwrap_or("the row was gone");
        let _ = writeln!(text, "    lost  {}", printable(lost));
        let _ = writeln!(text, "    won   {}", printable(won));
    }
    text
}

#[derive(Serialize)]
struct ListedConflicts<'a> {
    conflicts: Vec<ConflictLine<'a>>,
}
