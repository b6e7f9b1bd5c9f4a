//! `tidewater undeploy`: removes every trace from the consolidated database, after what
//! only Tidewater knows has been brought to safety.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tidewater_centre::records::{ConflictRecord, RefusedRecord};
use tidewater_protocol::Code;

use crate::Done;
use crate::args::{ConfigArgs, with_exit_codes};
use crate::centre::OpenCentre;
use crate::command::deploy;
use crate::failure::Failure;
use crate::kept::{ConflictLine, RefusedLine};
use crate::output;

/// Remove every trace of Tidewater from the central database
///
/// Triggers, change logs, users, remotes and all other server state go; your tables and
/// their rows stay. Remotes can no longer sync. The kept conflicts and refused rows are
/// the only place where some of your users' work is recorded, so while there are any,
/// say what becomes of them: --export or --discard. Stop the servers first.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater undeploy --dry-run
  tidewater undeploy --export kept/     # writes kept/conflicts.jsonl and kept/refused.jsonl"))]
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
    /// Print one JSON object, that of `tidewater deploy --json`
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &UndeployArgs) -> Result<Done, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    if !args.dry_run && !args.discard {
        let (conflicts, refused) = match centre.kept_records() {
            // What was never deployed keeps nothing, but may have left traces.
            Err(failure) if failure.code == Code::NotDeployed => Default::default(),
            kept => kept?,
        };
        if let Some(folder) = &args.export {
            export(folder, &conflicts, &refused)?;
        } else if !(conflicts.is_empty() && refused.is_empty()) {
            return Err(Failure::usage(
                format!(
                    "{} and {} are kept in the database and would be lost",
                    output::counted(conflicts.len() as u64, "conflict", "conflicts"),
                    output::counted(refused.len() as u64, "refused row", "refused rows"),
                ),
                "write them to files with --export DIR, or give them up with --discard",
            ));
        }
    }
    let report = centre.undeploy(args.dry_run)?;
    deploy::print(&report, args.dry_run, args.json)?;
    Ok(Done::Fully)
}

fn export(
    folder: &Path,
    conflicts: &[ConflictRecord],
    refused: &[RefusedRecord],
) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .map_err(|error| Failure::file("create the folder", folder, &error))?;
    let conflicts = conflicts.iter().map(ConflictLine::of);
    let refused = refused.iter().map(RefusedLine::of);
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
