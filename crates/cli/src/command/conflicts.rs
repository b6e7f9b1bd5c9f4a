//! `tidewater conflicts`: changes of rows that two sides have changed.
//!
//! The device has those of its own changes, which it applies again or dismisses
//! ([`crate::command::conflicts_on_device`]); the operator has all of them, and settles them
//! ([`crate::command::conflicts_in_centre`]).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use tidewater_centre::records::{ConflictFilter, ConflictOutcome};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use super::conflicts_in_centre::ExportFormat;
use crate::command::{conflicts_in_centre, conflicts_on_device};

const HELP: &str = with_exit_codes!(
    "\
Examples, on a device:
  tidewater conflicts list nancy.db
  tidewater conflicts apply nancy.db 3     # my version again, with the next sync
  tidewater conflicts apply nancy.db 3 --new-key   # beside theirs, where both were inserted
  tidewater conflicts dismiss nancy.db 4 5 # I have seen them
Examples, of the operator:
  tidewater conflicts list                 # the newest 100
  tidewater conflicts list --open          # those that wait for a decision
  tidewater conflicts show 17
  tidewater conflicts resolve 17 --with uploaded
  tidewater conflicts resolve 17 --with row.json
  tidewater conflicts export --format csv > conflicts.csv

The object of list --json, of a device:
  {\"conflicts\":[{\"id\",\"publication\",\"table\",\"key\",\"operation\",\"outcome\",\"at_ms\",\"pre_image\",
                 \"mine\",\"theirs\"}]}
outcome is lost or merged; pre_image is what I had seen before (null: nothing), mine what I
wrote (null: a delete), theirs what the centre has since (null: the row is gone).
Of the centre, newest first; of show --json one such object, of export one a line:
  {\"conflicts\":[{\"id\",\"at_ms\",\"remote_id\",\"device_name\",\"user\",\"publication\",\"table\",\"key\",\"operation\",
                 \"outcome\",\"pre_image\",\"uploaded\",\"replaced\",\"winner\",\"settled\"}]}
outcome is centre, remote, merged or parked; uploaded is what the device wanted (null: a
delete), winner what the centre has had since (null: the row was gone), replaced what it had
before if that was something else, settled {\"at_ms\",\"by\",\"as\"} what an operator has chosen.
Of apply, dismiss and resolve --json:
  {\"applied\":n}  with --new-key {\"applied\":1,\"key\":[...]}  {\"dismissed\":n}  {\"id\",\"settled_as\",\"row\"}"
);

/// List and settle changes of rows that somebody else has changed, too
///
/// What becomes of such a row is said by `conflict` in the configuration; without it the first to
/// arrive wins. Both versions are kept: on the device whose change lost or was merged, until the
/// application or `dismiss` takes it off the list, and in the centre, for as long as the
/// configuration says. Choosing otherwise later, by `apply` on the device or `resolve` in the
/// centre, is an ordinary change that reaches everybody.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ConflictsArgs {
    #[command(subcommand)]
    action: ConflictsAction,
}

#[derive(Debug, Subcommand)]
enum ConflictsAction {
    /// List the conflicts of a device's changes, or of the centre the newest, newest first
    #[command(after_help = HELP)]
    List(ConflictListArgs),
    /// Write my versions again, as changes that go up with the next sync
    ///
    /// The row is written as I had it, whatever it is by now: one that is gone is inserted, and
    /// what I had deleted is deleted. All of the changes are made, or none.
    #[command(after_help = HELP)]
    Apply(ApplyArgs),
    /// Take conflicts off a device's list
    #[command(after_help = HELP)]
    Dismiss(DismissArgs),
    /// Show all versions of a row side by side
    #[command(after_help = HELP)]
    Show(ConflictShowArgs),
    /// Write one of the versions as an ordinary change of the centre, which reaches everybody
    ///
    /// It is refused where a key, a foreign key or a check is in the way, and where the row was
    /// changed after the conflict.
    #[command(after_help = HELP)]
    Resolve(ResolveArgs),
    /// Print the conflicts that the centre keeps, as JSON Lines or CSV
    #[command(after_help = HELP)]
    Export(ExportArgs),
}

#[derive(Debug, Args)]
struct ConflictListArgs {
    /// A device's file
    #[arg(value_name = "REMOTE.db")]
    remote: Option<PathBuf>,
    /// List what the centre of this configuration file keeps instead [default: tidewater.toml, if
    /// no REMOTE.db is named]
    #[arg(short, long, value_name = "FILE", conflicts_with = "remote")]
    config: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    /// Of the centre: so many and no more
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "remote",
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

/// Which of the centre's conflicts.
#[derive(Debug, Args)]
struct Filter {
    /// Of the centre: of this table only
    #[arg(long, value_name = "NAME", conflicts_with = "remote")]
    table: Option<String>,
    /// Of the centre: of this user's changes only
    #[arg(long, value_name = "NAME", conflicts_with = "remote")]
    user: Option<String>,
    /// Of the centre: what ended so only
    #[arg(long, conflicts_with = "remote")]
    outcome: Option<ConflictEnd>,
    /// Of the centre: what waits for a decision only
    #[arg(long, conflicts_with = "remote")]
    open: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ConflictEnd {
    /// The centre's row stood
    Centre,
    /// The row became as the device wanted it
    Remote,
    /// It got something of both
    Merged,
    /// The centre's row stands until you decide
    Parked,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    /// The device's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The conflicts' numbers, as `list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Write the one row, which was inserted here, under a new key, beside theirs: the next number of a
    /// table with numbers, a random UUID, or KEY (of several columns, a JSON array)
    #[arg(long, value_name = "KEY", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    new_key: Option<String>,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DismissArgs {
    /// The device's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The conflicts' numbers, as `list` shows them
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    /// Dismiss all of them
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ConflictShowArgs {
    /// The conflict's number, as `list` shows it
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ResolveArgs {
    /// The conflict's number, as `list` shows it
    #[arg(value_name = "ID")]
    id: i64,
    /// The version: `uploaded` is what the device wanted, `centre` what the centre had, `pre-image`
    /// what both began with; or a file with the row as a JSON object, of which the columns that it
    /// lacks stay as they are (`null`: the row is deleted)
    #[arg(long, value_name = "VERSION|FILE.json")]
    with: String,
    /// Who decides, for the record [default: the name of the system's user]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Also if the row was changed after the conflict, or rows that refer to it go with it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExportArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Of this table only
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Of this user's changes only
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// What ended so only
    #[arg(long)]
    outcome: Option<ConflictEnd>,
    /// What waits for a decision only
    #[arg(long)]
    open: bool,
    /// How
    #[arg(long, default_value = "json")]
    format: ExportFormat,
}

impl ConflictEnd {
    fn of_record(self) -> ConflictOutcome {
        match self {
            ConflictEnd::Centre => ConflictOutcome::Centre,
            ConflictEnd::Remote => ConflictOutcome::Remote,
            ConflictEnd::Merged => ConflictOutcome::Merged,
            ConflictEnd::Parked => ConflictOutcome::Parked,
        }
    }
}

impl ConflictsArgs {
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            ConflictsAction::List(args) => args.json,
            ConflictsAction::Apply(args) => args.json,
            ConflictsAction::Dismiss(args) => args.json,
            ConflictsAction::Show(args) => args.json,
            ConflictsAction::Resolve(args) => args.json,
            ConflictsAction::Export(_) => false,
        }
    }
}

pub(crate) fn run(args: &ConflictsArgs) -> Result<CommandOutcome, Failure> {
    match &args.action {
        ConflictsAction::List(args) => list(args),
        ConflictsAction::Apply(args) => {
            let (remote, ids) = (&args.remote, &args.ids);
            match &args.new_key {
                None => conflicts_on_device::apply(remote, ids, args.json),
                Some(key) => conflicts_on_device::renumber(remote, ids, key, args.json),
            }
        }
        ConflictsAction::Dismiss(args) => {
            let ids = (!args.all).then_some(args.ids.as_slice());
            conflicts_on_device::dismiss(&args.remote, ids, args.json)
        }
        ConflictsAction::Show(args) => conflicts_in_centre::show(&args.config, args.id, args.json),
        ConflictsAction::Resolve(args) => {
            let wanted = conflicts_in_centre::RowChoice {
                id: args.id,
                version: &args.with,
                by: args.by.as_deref(),
                force: args.force,
            };
            conflicts_in_centre::resolve(&args.config, &wanted, args.json)
        }
        ConflictsAction::Export(args) => {
            let filter = ConflictFilter {
                table: args.table.clone(),
                user: args.user.clone(),
                outcome: args.outcome.map(ConflictEnd::of_record),
                open: args.open,
                limit: u64::MAX,
            };
            conflicts_in_centre::export(&args.config, &filter, args.format)
        }
    }
}

fn list(args: &ConflictListArgs) -> Result<CommandOutcome, Failure> {
    if let Some(remote) = &args.remote {
        return conflicts_on_device::list(remote, args.json);
    }
    let path = args.config.clone();
    let path = path.unwrap_or_else(|| Path::new("tidewater.toml").to_owned());
    let filter = ConflictFilter {
        table: args.filter.table.clone(),
        user: args.filter.user.clone(),
        outcome: args.filter.outcome.map(ConflictEnd::of_record),
        open: args.filter.open,
        limit: args.limit,
    };
    conflicts_in_centre::list(&ConfigArgs { path }, &filter, args.json)
}
