//! `tidewater refused`: what becomes of changes that the centre did not take.
//!
//! On the device they can be listed, sent again and given up; the operator, who has only
//! the centre's record of them, can list them ([`crate::command::refused_in_centre`]).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_client::{RefusedRow, Which};

use crate::Done;
use crate::args::with_exit_codes;
use crate::command::refused_in_centre;
use crate::failure::Failure;
use crate::kept::{Embedded, embedded};
use crate::output;
use crate::remote_file;

const HELP: &str = with_exit_codes!(
    "\
Examples:
  tidewater refused list nancy.db
  tidewater refused retry nancy.db         # all of them, with the next sync
  tidewater refused discard nancy.db 3 4   # rows 3 and 4 go back to what the centre has
  tidewater refused restore nancy.db 5     # what is left of row 5 becomes a pending change
  tidewater refused list -c tidewater.toml # the operator: what the centre refused of all remotes

The object of list --json, of a remote (key is an array):
  {\"refused\":[{\"id\",\"publication\",\"table\",\"key\",\"operation\",\"code\",\"reason\",\"sequence\",
               \"at_ms\",\"values\"}]}
of the centre, newest first (at_ms and the rest are of the last attempt):
  {\"refused\":[{\"at_ms\",\"remote_id\",\"user\",\"publication\",\"table\",\"key\",\"operation\",\"row\",
               \"code\",\"reason\",\"attempts\":n}]}"
);

/// The operator's configuration, in the folder where commands are given.
const CONFIGURATION: &str = "tidewater.toml";

/// List, retry, restore or discard changes of a remote that the centre refused
///
/// A refused change stays in the remote's file and does not hold up others. It goes up
/// again after you change the row, after `retry`, and by itself after your partitions
/// or the tables' columns change. One of which only the values are left (its row or column
/// left the remote) does not: `restore` writes them again, or you write them where they belong.
/// Once the row has gone up and is taken, what was refused of it before is settled by itself.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RefusedArgs {
    #[command(subcommand)]
    action: RefusedAction,
}

#[derive(Debug, Subcommand)]
enum RefusedAction {
    /// List the refused changes with their reasons
    ///
    /// Of a remote's file: what waits in it. Of the centre (-c FILE): what it refused of
    /// any remote, each row once, for as long as the configuration keeps it, or until its
    /// remote has written it again and it is taken; what a remote gave up is still listed.
    #[command(after_help = HELP)]
    List(Listing),
    /// Send refused changes again with the next sync
    #[command(after_help = HELP)]
    Retry(Retrial),
    /// Write the values of rows that left the remote as pending changes
    #[command(after_help = HELP)]
    Restore(Retrial),
    /// Give refused changes up: their rows go back to what the centre last had
    #[command(after_help = HELP)]
    Discard(Discarding),
}

#[derive(Debug, Args)]
struct Listing {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: Option<PathBuf>,
    /// List what the centre of this configuration file refused instead [default: tidewater.toml,
    /// if there is one and no REMOTE.db is named]
    #[arg(short, long, value_name = "FILE", conflicts_with = "remote")]
    config: Option<PathBuf>,
    /// Of the centre: so many rows and no more
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "remote",
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Retrial {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The changes' numbers, as `list` shows them [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
}

#[derive(Debug, Args)]
struct Discarding {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The changes' numbers, as `list` shows them
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    /// Give up every refused change
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

impl RefusedArgs {
    pub(crate) fn wants_json(&self) -> bool {
        matches!(&self.action, RefusedAction::List(args) if args.json)
    }
}

pub(crate) fn run(args: &RefusedArgs) -> Result<Done, Failure> {
    match &args.action {
        RefusedAction::List(args) => match (&args.remote, &args.config) {
            (Some(remote), _) => list(remote, args.json),
            (None, config) => {
                let here = Path::new(CONFIGURATION);
                if config.is_none() && !here.exists() {
                    return Err(Failure::usage(
                        format!("no remote is named, and there is no {CONFIGURATION} here"),
                        "name the remote's file, or the centre's configuration (-c FILE)",
                    ));
                }
                let path = config.clone().unwrap_or_else(|| here.to_owned());
                refused_in_centre::list(path, args.limit, args.json)
            }
        },
        RefusedAction::Retry(args) => retry(args),
        RefusedAction::Restore(args) => restore(args),
        RefusedAction::Discard(args) => discard(args),
    }
}

/// Makes changes pending again.
fn retry(args: &Retrial) -> Result<Done, Failure> {
    let mut database = remote_file::open(&args.remote)?;
    let refused = database.refused()?;
    check_ids(&args.remote, &args.ids, &refused)?;
    let which = match args.ids.as_slice() {
        [] => Which::All,
        ids => Which::Ids(ids),
    };
    let count = database.retry_refused(which)?;
    output::note(&format!(
        "{} to be sent again with the next sync",
        output::counted(count, "change", "changes")
    ));
    let is_meant = |row: &&RefusedRow| args.ids.is_empty() || args.ids.contains(&row.id);
    let meant = refused.iter().filter(is_meant);
    let without_row = meant.filter(|row| row.values.is_some()).count();
    if without_row > 0 {
        output::note(&format!(
            "{} cannot be: only the values are left of {}, not the row; write them \
             again (tidewater refused restore {})",
            output::counted(without_row as u64, "change", "changes"),
            if without_row == 1 { "it" } else { "them" },
            args.remote.display()
        ));
    }
    Ok(Done::Fully)
}

/// Writes again what is only left as values.
fn restore(args: &Retrial) -> Result<Done, Failure> {
    let mut database = remote_file::open(&args.remote)?;
    let refused = database.refused()?;
    check_ids(&args.remote, &args.ids, &refused)?;
    let which = match args.ids.as_slice() {
        [] => Which::All,
        ids => Which::Ids(ids),
    };
    let count = database.restore_refused(which)?;
    output::note(&format!(
        "{} written again; the next sync uploads what differs from the centre",
        output::counted(count, "row", "rows")
    ));
    let is_meant = |row: &&RefusedRow| args.ids.is_empty() || args.ids.contains(&row.id);
    let left = (refused.iter().filter(is_meant).count() as u64).saturating_sub(count);
    if left > 0 {
        output::note(&format!(
            "{} left as {}: a row that is still in the file goes up again with refused \
             retry, and of others a table, a column or a value that it needs is missing \
             (tidewater refused list {})",
            output::counted(left, "change", "changes"),
            if left == 1 { "it is" } else { "they are" },
            args.remote.display()
        ));
    }
    Ok(Done::Fully)
}

/// Gives changes up.
fn discard(args: &Discarding) -> Result<Done, Failure> {
    let mut database = remote_file::open(&args.remote)?;
    if args.ids.is_empty() && !args.all {
        return Err(Failure::usage(
            "which changes are to be given up?",
            format!(
                "name their numbers, as tidewater refused list {} shows them, or --all",
                args.remote.display()
            ),
        ));
    }
    check_ids(&args.remote, &args.ids, &database.refused()?)?;
    let which = if args.all {
        Which::All
    } else {
        Which::Ids(&args.ids)
    };
    let count = database.discard_refused(which)?;
    output::note(&format!(
        "{} given up; the next sync brings what the centre has",
        output::counted(count, "change", "changes")
    ));
    Ok(Done::Fully)
}

/// A mistyped number must not pass for a change that was dealt with.
fn check_ids(path: &Path, ids: &[i64], refused: &[RefusedRow]) -> Result<(), Failure> {
    match ids.iter().find(|id| refused.iter().all(|it| it.id != **id)) {
        None => Ok(()),
        Some(id) => Err(Failure::usage(
            format!("there is no refused change {id}; nothing was changed"),
            format!("see: tidewater refused list {}", path.display()),
        )),
    }
}

fn list(remote: &Path, json: bool) -> Result<Done, Failure> {
    let refused = remote_file::open(remote)?.refused()?;
    if json {
        let refused = refused.iter().map(ListedRow::of).collect();
        output::json(&ListedRows { refused })?;
    } else if refused.is_empty() {
        output::note("no refused changes");
    } else {
        output::text(&describe(&refused))?;
    }
    Ok(Done::Fully)
}

/// A paragraph for each change: reasons are sentences, and do not fit a table.
fn describe(refused: &[RefusedRow]) -> String {
    let mut text = String::new();
    for row in refused {
        let line = format!(
            "{}  {} {} {}  (upload {} of {}, {})",
            row.id,
            row.operation,
            row.table,
            row.key,
            row.sequence,
            row.publication,
            output::moment(row.at_ms),
        );
        let _ = writeln!(text, "{}", output::printable(&line));
        let reason = format!("{}: {}", row.code, row.reason);
        let _ = writeln!(text, "    {}", output::printable(&reason));
        if let Some(values) = &row.values {
            let _ = writeln!(text, "    your values: {}", output::printable(values));
        }
    }
    text
}

#[derive(Serialize)]
struct ListedRows<'a> {
    refused: Vec<ListedRow<'a>>,
}

#[derive(Serialize)]
struct ListedRow<'a> {
    id: i64,
    publication: &'a str,
    table: &'a str,
    key: Embedded,
    operation: &'a str,
    code: &'a str,
    reason: &'a str,
    sequence: u64,
    at_ms: i64,
    values: Option<Box<RawValue>>,
}

impl ListedRow<'_> {
    fn of(row: &RefusedRow) -> ListedRow<'_> {
        let values = row.values.as_ref();
        ListedRow {
            id: row.id,
            publication: &row.publication,
            table: &row.table,
            key: embedded(&row.key),
            operation: &row.operation,
            code: &row.code,
            reason: &row.reason,
            sequence: row.sequence,
            at_ms: row.at_ms,
            values: values.and_then(|it| RawValue::from_string(it.clone()).ok()),
        }
    }
}
