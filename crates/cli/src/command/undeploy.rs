//! `tidewater undeploy`: removes every trace from the consolidated database, after what
//! only Tidewater knows has been brought to safety.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_consolidated::records::{ConflictRecord, RefusedRecord};
use tidewater_protocol::Code;

use crate::Done;
use crate::args::{ConfigArgs, with_exit_codes};
use crate::centre::OpenCentre;
use crate::command::deploy;
use crate::failure::Failure;
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
}

pub(crate) fn run(args: &UndeployArgs) -> Result<Done, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    if !args.dry_run {
        let (conflicts, refused) = match centre.kept_records() {
            // What was never deployed keeps nothing, but may have left traces.
            Err(failure) if failure.code == Code::NotDeployed => Default::default(),
            kept => kept?,
        };
        if let Some(folder) = &args.export {
            export(folder, &conflicts, &refused)?;
        } else if !(args.discard || conflicts.is_empty() && refused.is_empty()) {
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
    output::text(&deploy::describe(&report, args.dry_run))?;
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

/// The text of a JSON value, so that it does not become JSON within a string. It is kept
/// to the letter (a parsed number would lose digits); what is no JSON stays a string.
#[derive(Serialize)]
#[serde(untagged)]
enum Embedded {
    Json(Box<RawValue>),
    Text(String),
}

fn embedded(text: &str) -> Embedded {
    // A line end in JSON is white space, and would end our line.
    match RawValue::from_string(text.replace(['\n', '\r'], " ")) {
        Ok(json) => Embedded::Json(json),
        Err(_) => Embedded::Text(text.to_owned()),
    }
}

#[derive(Serialize)]
struct ConflictLine<'a> {
    at_ms: i64,
    remote_id: String,
    user: &'a str,
    publication: &'a str,
    table: &'a str,
    key: Embedded,
    operation: &'a str,
    pre_image: Option<Embedded>,
    uploaded: Option<Embedded>,
    winner: Option<Embedded>,
}

impl ConflictLine<'_> {
    fn of(record: &ConflictRecord) -> ConflictLine<'_> {
        ConflictLine {
            at_ms: record.at_ms,
            remote_id: record.remote_id.to_string(),
            user: &record.user,
            publication: &record.publication,
            table: &record.table,
            key: embedded(&record.key),
            operation: &record.operation,
            pre_image: record.pre_image.as_deref().map(embedded),
            uploaded: record.uploaded.as_deref().map(embedded),
            winner: record.winner.as_deref().map(embedded),
        }
    }
}

#[derive(Serialize)]
struct RefusedLine<'a> {
    at_ms: i64,
    remote_id: String,
    user: &'a str,
    publication: &'a str,
    table: &'a str,
    key: Embedded,
    operation: &'a str,
    row: Embedded,
    code: &'a str,
    reason: &'a str,
}

impl RefusedLine<'_> {
    fn of(record: &RefusedRecord) -> RefusedLine<'_> {
        RefusedLine {
            at_ms: record.at_ms,
            remote_id: record.remote_id.to_string(),
            user: &record.user,
            publication: &record.publication,
            table: &record.table,
            key: embedded(&record.key),
            operation: &record.operation,
            row: embedded(&record.row),
            code: &record.code,
            reason: &record.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_images_keep_every_digit() {
        let image = "{\"id\":9007199254740993,\n\"cost\":123456789012345678901.120000}";
        let line = serde_json::to_string(&embedded(image)).unwrap();
        assert_eq!(line, image.replace('\n', " "));
        assert_eq!(
            serde_json::to_string(&embedded("not json")).unwrap(),
            "\"not json\""
        );
    }
}
