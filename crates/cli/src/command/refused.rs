//! `tidewater refused`: what becomes of changes that the centre did not take.
//!
//! On the device they are sent again, changed or given up ([`crate::command::refused_on_device`]);
//! the operator, who has the centre's record of them, replays, edits or discards them
//! ([`crate::command::refused_in_centre`]).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value as Json};
use tidewater_centre::records::RefusedFilter;
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, describe, with_exit_codes};

use super::refused_in_centre::OperatorArgs;
use crate::command::{refused_in_centre, refused_on_device};

const HELP: &str = with_exit_codes!(
    "\
Examples, on a device:
  tidewater refused list nancy.db
  tidewater refused retry nancy.db         # all of them, with the next sync
  tidewater refused retry nancy.db 2 --new-key   # row 2 and what refers to it, under a new key
  tidewater refused edit nancy.db 3 --set name=Zoe
  tidewater refused discard nancy.db 3 4   # rows 3 and 4 go back to what the centre has
  tidewater refused restore nancy.db 5     # what is left of row 5 becomes a pending change
Examples, of the operator (in the folder of tidewater.toml, or with -c FILE):
  tidewater refused list --open            # what nobody has settled
  tidewater refused show 17
  tidewater refused replay 17              # write it as it was sent, now that it fits
  tidewater refused replay --cause foreign_key
  tidewater refused edit 17 --set name=Zoe # write it with another value
  tidewater refused discard 17 --reason \"entered twice\"

The object of list --json, of a device (key is an array):
  {\"refused\":[{\"id\",\"publication\",\"table\",\"key\",\"operation\",\"code\",\"reason\",\"sequence\",
               \"at_ms\",\"values\"}],
   \"settled\":[the same and {\"outcome\",\"by\",\"settled_at_ms\"}]}
outcome is retried (it goes up again), taken, lost, given_up, or by an operator replayed,
edited or discarded.
Of the centre, newest first; of show --json one such object:
  {\"refused\":[{\"id\",\"at_ms\",\"remote_id\",\"device_name\",\"user\",\"publication\",\"table\",\"key\",\"operation\",\"row\",
               \"code\",\"reason\",\"pre_image\",\"sequence\",\"attempts\":n,\"parent\",\"settled\"}]}
id, at_ms and the rest are of the last attempt; parent {\"table\",\"key\"} is the refused row that
it refers to; settled {\"at_ms\",\"by\",\"as\",\"row\",\"reason\"} says how it ended: as is replayed,
edited, discarded, taken, lost or given_up.
Of replay, and of edit and discard of the operator, --json:
  {\"settled\":[{\"id\",\"as\",\"row\"}]}, and \"added\":{COLUMN:DIFFERENCE} where others have changed sums, too"
);

/// The operator's configuration, in the folder where commands are given.
const CONFIGURATION: &str = "tidewater.toml";

/// List and settle changes of devices that the centre refused
///
/// A refused change stays in the device's file and does not hold up others. It goes up
/// again after you change the row, after `retry`, and by itself after your partitions
/// or what is deployed change (unless the publication says `replay = \"manual\"`). One of which only
/// the values are left (its row or column left the device) does not: `restore` writes them again,
/// or you write them where they belong.
/// The operator can write a refused change into the centre himself (`replay`), with other values
/// (`edit`), or give it up (`discard`): the device hears of it with its next sync.
/// Whoever settles a row, both lists say how.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RefusedArgs {
    #[command(subcommand)]
    action: RefusedAction,
}

#[derive(Debug, Subcommand)]
enum RefusedAction {
    /// List the refused changes with their reasons, and how they were settled
    ///
    /// Of a device's file, or of the centre (-c FILE): what it refused of any device, each row
    /// once, for as long as the configuration keeps it.
    #[command(after_help = HELP)]
    List(RefusedListArgs),
    /// Show one of them with its values
    #[command(after_help = HELP)]
    Show(RefusedShowArgs),
    /// Send refused changes of a device again with the next sync, and those that refer to them
    ///
    /// Where somebody else has inserted another row under the key of one (`key_in_use`), give yours a
    /// new key: `--new-key`.
    #[command(after_help = HELP)]
    Retry(RetryArgs),
    /// Write the values of rows that left a device as pending changes
    #[command(after_help = HELP)]
    Restore(Retrial),
    /// Write a refused row with other values: on a device as a change that goes up with the next
    /// sync, in the centre at once
    ///
    /// Values that still do not fit change nothing: the error says why.
    #[command(after_help = HELP)]
    Edit(EditArgs),
    /// Write refused changes into the centre as they were sent, and those that refer to them
    ///
    /// Each in a transaction of its own, parents first. What devices may not write the operator may;
    /// keys, foreign keys and checks hold for him too.
    #[command(after_help = HELP)]
    Replay(ReplayArgs),
    /// Give refused changes up: on a device their rows go back to what the centre last had, in the
    /// centre its rows stand
    #[command(after_help = HELP)]
    Discard(DiscardArgs),
}

#[derive(Debug, Args)]
struct RefusedListArgs {
    /// The device's file
    #[arg(value_name = "REMOTE.db")]
    remote: Option<PathBuf>,
    /// List what the centre of this configuration file refused instead [default: tidewater.toml,
    /// if there is one and no REMOTE.db is named]
    #[arg(short, long, value_name = "FILE", conflicts_with = "remote")]
    config: Option<PathBuf>,
    /// What nobody has settled only
    #[arg(long)]
    open: bool,
    /// Of the centre: of this table only
    #[arg(long, value_name = "NAME", conflicts_with = "remote")]
    table: Option<String>,
    /// Of the centre: of this user's changes only
    #[arg(long, value_name = "NAME", conflicts_with = "remote")]
    user: Option<String>,
    /// Of the centre: what was refused for this only, as the list names it (check, key_in_use)
    #[arg(long, value_name = "CODE", conflicts_with = "remote")]
    cause: Option<String>,
    /// Of the centre: so many rows and no more
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "remote",
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RefusedShowArgs {
    /// The device's file, if it is one of a device; and the row's number, as `list` shows it
    #[arg(value_name = "[REMOTE.db] ID", required = true, num_args = 1..=2)]
    which: Vec<String>,
    /// The configuration of the centre [default: tidewater.toml, if no REMOTE.db is named]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Retrial {
    /// The device's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The changes' numbers, as `list` shows them [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
}

#[derive(Debug, Args)]
struct RetryArgs {
    #[command(flatten)]
    retrial: Retrial,
    /// Give the one row, which was inserted here, a new key first, and have everything of this device
    /// that refers to it follow: the next number of a table with numbers, a random UUID, or KEY (of
    /// several columns, a JSON array)
    #[arg(long, value_name = "KEY", num_args = 0..=1, require_equals = true,
          default_missing_value = "", requires = "ids")]
    new_key: Option<String>,
}

#[derive(Debug, Args)]
struct EditArgs {
    /// The device's file, if it is one of a device; the row's number, as `list` shows it; and
    /// perhaps a file with the new values as a JSON object: columns that it lacks stay as they are
    #[arg(value_name = "[REMOTE.db] ID [FILE.json]", required = true, num_args = 1..=3)]
    which: Vec<String>,
    /// A new value; JSON where the column has no text (`null` everywhere: NULL)
    #[arg(long, value_name = "COLUMN=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    operator: OperatorArgs,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    /// The rows' numbers, as `list` shows them
    #[arg(value_name = "ID", conflicts_with_all = ["cause", "all"])]
    ids: Vec<i64>,
    /// All that were refused for this and that nobody has settled
    #[arg(long, value_name = "CODE", conflicts_with = "all")]
    cause: Option<String>,
    /// All that nobody has settled
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    operator: OperatorArgs,
}

#[derive(Debug, Args)]
struct DiscardArgs {
    /// The device's file, if they are those of a device; and the changes' numbers, as `list` shows
    /// them
    #[arg(value_name = "[REMOTE.db] ID")]
    which: Vec<String>,
    /// Give up every refused change
    #[arg(long)]
    all: bool,
    /// In the centre: why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// Whose refused rows are meant.
enum RefusedPlace<'a> {
    Device(&'a Path),
    Centre(ConfigArgs),
}

/// The operator's configuration: the named one, or that of the folder.
fn config(named: Option<&PathBuf>) -> ConfigArgs {
    ConfigArgs {
        path: named.map_or_else(|| CONFIGURATION.into(), Clone::clone),
    }
}

/// Tells a device's file, which comes first if it is there, from numbers and what follows them.
fn place<'a>(named: Option<&PathBuf>, words: &'a [String]) -> (RefusedPlace<'a>, &'a [String]) {
    match words {
        [file, rest @ ..] if named.is_none() && file.parse::<i64>().is_err() => {
            (RefusedPlace::Device(Path::new(file)), rest)
        }
        words => (RefusedPlace::Centre(config(named)), words),
    }
}

fn number(word: &str) -> Result<i64, Failure> {
    word.parse().map_err(|_| {
        Failure::usage(
            format!("{word:?} is no number of a refused row"),
            "name it as tidewater refused list shows it",
        )
    })
}

fn one(words: &[String]) -> Result<i64, Failure> {
    match words {
        [word] => number(word),
        _ => Err(Failure::usage(
            "which refused row is meant?",
            "name the number of one, as tidewater refused list shows it",
        )),
    }
}

impl RefusedArgs {
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            RefusedAction::List(args) => args.json,
            RefusedAction::Show(args) => args.json,
            RefusedAction::Edit(args) => args.operator.json,
            RefusedAction::Replay(args) => args.operator.json,
            RefusedAction::Discard(args) => args.operator.json,
            RefusedAction::Retry(_) | RefusedAction::Restore(_) => false,
        }
    }
}

pub(crate) fn run(args: &RefusedArgs) -> Result<CommandOutcome, Failure> {
    match &args.action {
        RefusedAction::List(args) => list(args),
        RefusedAction::Show(args) => {
            let (place, rest) = place(args.config.as_ref(), &args.which);
            let id = one(rest)?;
            match place {
                RefusedPlace::Device(remote) => refused_on_device::show(remote, id, args.json),
                RefusedPlace::Centre(config) => refused_in_centre::show(&config, id, args.json),
            }
        }
        RefusedAction::Retry(RetryArgs { retrial, new_key }) => match new_key {
            None => refused_on_device::retry(&retrial.remote, &retrial.ids),
            Some(key) => refused_on_device::renumber(&retrial.remote, &retrial.ids, key),
        },
        RefusedAction::Restore(args) => refused_on_device::restore(&args.remote, &args.ids),
        RefusedAction::Edit(args) => edit(args),
        RefusedAction::Replay(args) => {
            let config = config(args.operator.config.as_ref());
            let which = match (&args.cause, args.all) {
                (Some(cause), _) => refused_in_centre::Which::Cause(cause),
                (None, true) => refused_in_centre::Which::All,
                (None, false) => refused_in_centre::Which::Ids(&args.ids),
            };
            refused_in_centre::replay(&config, &which, &args.operator)
        }
        RefusedAction::Discard(args) => discard(args),
    }
}

fn list(args: &RefusedListArgs) -> Result<CommandOutcome, Failure> {
    if let Some(remote) = &args.remote {
        return refused_on_device::list(remote, args.open, args.json);
    }
    if args.config.is_none() && !Path::new(CONFIGURATION).exists() {
        return Err(Failure::usage(
            format!("no remote is named, and there is no {CONFIGURATION} here"),
            "name the remote's file, or the centre's configuration (-c FILE)",
        ));
    }
    let filter = RefusedFilter {
        table: args.table.clone(),
        user: args.user.clone(),
        cause: args.cause.clone(),
        open: args.open,
        limit: args.limit,
    };
    refused_in_centre::list(&config(args.config.as_ref()), &filter, args.json)
}

fn discard(args: &DiscardArgs) -> Result<CommandOutcome, Failure> {
    let (place, rest) = place(args.operator.config.as_ref(), &args.which);
    let ids = rest.iter().map(|word| number(word));
    let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
    if args.all && !ids.is_empty() {
        return Err(Failure::usage(
            "either numbers are named, or --all",
            "leave out one of them",
        ));
    }
    match place {
        RefusedPlace::Device(remote) => refused_on_device::discard(remote, &ids, args.all),
        RefusedPlace::Centre(config) => {
            let which = match args.all {
                true => refused_in_centre::Which::All,
                false => refused_in_centre::Which::Ids(&ids),
            };
            let reason = args.reason.as_deref().ok_or_else(|| {
                Failure::usage(
                    "why are they given up?",
                    "say it for the record: --reason TEXT",
                )
            })?;
            refused_in_centre::discard(&config, &which, reason, &args.operator)
        }
    }
}

fn edit(args: &EditArgs) -> Result<CommandOutcome, Failure> {
    let (place, rest) = place(args.operator.config.as_ref(), &args.which);
    let (id, file) = match rest {
        [id] => (number(id)?, None),
        [id, file] => (number(id)?, Some(Path::new(file))),
        _ => {
            return Err(Failure::usage(
                "which refused row is meant?",
                "name its number, and its new values: --set COLUMN=VALUE, or a file",
            ));
        }
    };
    if args.set.is_empty() == file.is_none() {
        return Err(Failure::usage(
            "what is the row to be?",
            "give its new values: --set COLUMN=VALUE, or a file with a JSON object",
        ));
    }
    let values = |kept: &str| match file {
        Some(file) => object_in(file),
        None => set(&args.set, kept),
    };
    match place {
        RefusedPlace::Device(remote) => {
            let kept = refused_on_device::values(remote, id)?;
            refused_on_device::edit(remote, id, &values(&kept)?)
        }
        RefusedPlace::Centre(config) => {
            let kept = refused_in_centre::open_row(&config, id)?;
            refused_in_centre::edit(&config, kept.id, values(&kept.row)?, &args.operator)
        }
    }
}

fn object_in(file: &Path) -> Result<String, Failure> {
    let hint = "write the new values as {\"column\": value, ...}";
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(
            format!("cannot read {}: {}", file.display(), describe(&error)),
            "name a file with the new values as a JSON object, or use --set COLUMN=VALUE",
        )
    })?;
    match serde_json::from_str::<Json>(&text) {
        Ok(Json::Object(_)) => Ok(text),
        Ok(_) => Err(Failure::usage(
            format!("{} has no JSON object", file.display()),
            hint,
        )),
        Err(error) => Err(Failure::usage(
            format!("{} is no JSON: {error}", file.display()),
            hint,
        )),
    }
}

/// The values of `--set` as a JSON object: what was text stays text.
fn set(words: &[String], kept: &str) -> Result<String, Failure> {
    let kept: Map<String, Json> = serde_json::from_str(kept).unwrap_or_default();
    let mut values = Map::new();
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            Failure::usage(
                format!("--set {word:?} names no column and value"),
                "write --set COLUMN=VALUE",
            )
        })?;
        let is_text = matches!(kept.get(name), Some(Json::String(_)));
        let value = match serde_json::from_str::<Json>(value) {
            Ok(json @ (Json::Null | Json::String(_))) => json,
            Ok(json) if !is_text => json,
            _ => Json::String(value.to_owned()),
        };
        values.insert(name.to_owned(), value);
    }
    Ok(Json::Object(values).to_string())
}
