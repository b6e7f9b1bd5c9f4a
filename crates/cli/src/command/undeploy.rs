//! `tidewater undeploy`: removes every trace from the consolidated database, after what
//! only Tidewater knows has been brought to safety.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use tidewater_protocol::Code;
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, output, with_exit_codes};

use crate::centre::OpenCentre;
use crate::command::deploy;
use crate::kept::{ConflictLine, RefusedLine};
use crate::password;
use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::records::{ConflictRecord, RefusedRecord};

/// How long sessions of programs that have just ended may still be there, and how often they are
/// looked for.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Remove every trace of Tidewater from the central database
///
/// Triggers, change logs, users, remotes and all other server state go; your tables and their rows
/// stay. Remotes can no longer sync. It says how much of what goes, and asks; a script says --yes.
/// While a server serves the database, nothing is removed.
///
/// The kept conflicts and refused rows are the only place where some of your users' work is
/// recorded, so while there are any, say what becomes of them: --export or --discard.
///
/// The role of the database has to own the published tables and the schema tidewater, or to have
/// their owners' rights.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater undeploy --dry-run
  tidewater undeploy --export kept/     # writes kept/conflicts.jsonl and kept/refused.jsonl
  tidewater undeploy --yes --json | jq .goes

The object of --json: that of `tidewater deploy --json`, and
  {\"goes\":{\"users\",\"remotes\",\"log_entries\",\"tables\":[..],\"conflicts\",\"open_conflicts\",
   \"refused\"}}
goes is null where it cannot be read any more."))]
pub(crate) struct UndeployArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// First write conflicts and refused rows to this folder, as JSON Lines
    #[arg(long, value_name = "DIR", conflicts_with = "discard")]
    export: Option<PathBuf>,
    /// Give up the kept conflicts and refused rows
    #[arg(long)]
    discard: bool,
    /// Ask nothing
    #[arg(long)]
    yes: bool,
    /// Remove it although a server seems to serve the database, which will answer no remote any more
    #[arg(long)]
    force: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &UndeployArgs) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    let mut planned = centre.undeploy(true)?;
    let goes = Goes::read(&centre)?;
    if args.dry_run {
        print(&planned, goes.as_ref(), args)?;
        return Ok(CommandOutcome::Complete);
    }
    if !planned.missing_rights.is_empty() {
        return Err(deploy::not_allowed("undeploy", &planned));
    }
    if !args.force {
        refuse_while_served(&centre)?;
    }
    let (conflicts, refused) = kept(&centre, args)?;
    if !planned.steps.is_empty() && !args.yes {
        confirm(goes.as_ref())?;
    }
    if let Some(folder) = &args.export {
        export(folder, &conflicts, &refused)?;
    }
    planned = centre.undeploy(false)?;
    centre.remove_serving_lock();
    print(&planned, goes.as_ref(), args)?;
    Ok(CommandOutcome::Complete)
}

fn refuse_while_served(centre: &OpenCentre) -> Result<(), Failure> {
    let mut looks = SESSIONS_END_WITHIN.as_millis() / LOOK_EVERY.as_millis();
    while let Some(sign) = centre.serving()? {
        if looks == 0 {
            return Err(Failure::usage(
                format!("a server serves this database: {sign}; nothing was removed"),
                "end every server first; where none runs any more, --force goes ahead",
            ));
        }
        looks -= 1;
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The records that are exported, once it is said what becomes of them.
fn kept(
    centre: &OpenCentre,
    args: &UndeployArgs,
) -> Result<(Vec<ConflictRecord>, Vec<RefusedRecord>), Failure> {
    if args.discard {
        return Ok(Default::default());
    }
    let (conflicts, refused) = match centre.kept_records() {
        // What was never deployed keeps nothing, but may have left traces.
        Err(failure) if failure.code == Code::NotDeployed => Default::default(),
        kept => kept?,
    };
    if args.export.is_none() && !(conflicts.is_empty() && refused.is_empty()) {
        return Err(Failure::usage(
            format!(
                "{} and {} are kept in the database and would be lost",
                output::counted(conflicts.len() as u64, "conflict", "conflicts"),
                output::counted(refused.len() as u64, "refused row", "refused rows"),
            ),
            "write them to files with --export DIR, or give them up with --discard",
        ));
    }
    Ok((conflicts, refused))
}

/// Asks whoever sits at the terminal.
fn confirm(goes: Option<&Goes>) -> Result<(), Failure> {
    if !password::can_ask() {
        return Err(Failure::usage(
            format!(
                "undeploy asks before it removes {}, and there is no terminal; nothing was removed",
                goes.map_or_else(|| "everything".to_owned(), Goes::in_short)
            ),
            "look with --dry-run, and then say --yes",
        ));
    }
    if let Some(goes) = goes {
        eprint!("{}", goes.describe());
    }
    eprint!("Remove all of it? Write yes: ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::file("read the answer from", Path::new("the terminal"), &error))?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(Failure::usage("nothing was removed", "")),
    }
}

/// How much of what goes.
#[derive(Debug, Serialize)]
struct Goes {
    users: u64,
    remotes: u64,
    /// Published tables that have change logs, and the entries of these.
    tables: Vec<String>,
    log_entries: u64,
    conflicts: u64,
    open_conflicts: u64,
    refused: u64,
}

impl Goes {
    /// Reads it; `None` if it cannot be read: what is not whole has to go, too.
    fn read(centre: &OpenCentre) -> Result<Option<Goes>, Failure> {
        let status = match centre.status() {
            Ok(status) => status,
            Err(failure) if failure.code == Code::ConsolidatedUnavailable => return Err(failure),
            Err(_) => return Ok(None),
        };
        let mut tables: Vec<String> = status.logs.iter().map(|(table, _)| table.clone()).collect();
        tables.dedup();
        Ok(Some(Goes {
            users: status.users[0],
            remotes: status.remotes[0],
            tables,
            log_entries: status.logs.iter().map(|(_, entries)| entries).sum(),
            conflicts: status.conflicts,
            open_conflicts: status.open_conflicts,
            refused: status.refused,
        }))
    }

    fn in_short(&self) -> String {
        format!(
            "{} and {}",
            output::counted(self.users, "user", "users"),
            output::counted(self.remotes, "remote", "remotes")
        )
    }

    /// For people.
    fn describe(&self) -> String {
        let counted = output::counted;
        let tables = match self.tables.is_empty() {
            true => String::new(),
            false => format!(" ({})", output::printable(&self.tables.join(", "))),
        };
        format!(
            "goes: change logs and triggers of {}{tables}, with {}\n\
             goes: {}, and {}, which can sync no more\n\
             goes: {}, {} of them open, and {}\n\
             goes: signing keys, blocks of numbers, history of syncs and incidents\n\
             stays: your tables and their rows\n",
            counted(self.tables.len() as u64, "table", "tables"),
            counted(self.log_entries, "entry", "entries"),
            counted(self.users, "user", "users"),
            counted(self.remotes, "remote", "remotes"),
            counted(self.conflicts, "conflict", "conflicts"),
            self.open_conflicts,
            counted(self.refused, "refused row", "refused rows"),
        )
    }
}

/// The object of `--json`.
#[derive(Serialize)]
struct UndeployObject<'a> {
    #[serde(flatten)]
    report: deploy::ReportObject<'a>,
    goes: Option<&'a Goes>,
}

fn print(report: &DeployReport, goes: Option<&Goes>, args: &UndeployArgs) -> Result<(), Failure> {
    if args.json {
        return output::json(&UndeployObject {
            report: deploy::ReportObject::new(report, args.dry_run),
            goes,
        });
    }
    let goes = goes.filter(|_| !report.steps.is_empty());
    let text = goes.map(Goes::describe).unwrap_or_default();
    output::text(&(text + &deploy::describe(report, args.dry_run)))
}

fn export(
    folder: &Path,
    conflicts: &[ConflictRecord],
    refused: &[RefusedRecord],
) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .map_err(|error| Failure::file("create the folder", folder, &error))?;
    let conflicts = conflicts.iter().map(ConflictLine::from_record);
    let refused = refused.iter().map(RefusedLine::from_record);
    for (name, count) in [
        (
            "conflicts.jsonl",
            write_lines(folder, "conflicts.jsonl", conflicts)?,
        ),
        (
            "refused.jsonl",
            write_lines(folder, "refused.jsonl", refused)?,
        ),
    ] {
        output::note(&format!("{}: {count} written", folder.join(name).display()));
    }
    Ok(())
}

/// Writes a file that is not there yet, durably: the originals are deleted next.
fn write_lines(
    folder: &Path,
    name: &str,
    lines: impl Iterator<Item = impl Serialize>,
) -> Result<u64, Failure> {
    let path = folder.join(name);
    let write = || -> io::Result<u64> {
        let mut file = BufWriter::new(File::create_new(&path)?);
        let mut count = 0;
        for line in lines {
            serde_json::to_writer(&mut file, &line)?;
            file.write_all(b"\n")?;
            count += 1;
        }
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        Ok(count)
    };
    write().map_err(|error| {
        let mut failure = Failure::file("write", &path, &error);
        if error.kind() == io::ErrorKind::AlreadyExists {
            failure.hint = "name a new folder, or move the file away".into();
        }
        failure
    })
}
