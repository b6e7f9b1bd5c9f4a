//! `tidewater conflicts list|apply|dismiss REMOTE.db`: changes of a device that met somebody
//! else's, for whoever made them.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use tidewater_client::{ConflictedChange, RowSelection};
use tidewater_terminal::output::{self, moment, printable};
use tidewater_terminal::{CommandOutcome, Failure};

use crate::kept::{JsonText, embedded};
use crate::remote_file;

pub(super) fn list(path: &Path, json: bool) -> Result<CommandOutcome, Failure> {
    let conflicts = remote_file::open(path)?.conflicts()?;
    if json {
        let conflicts = conflicts.iter().map(ListedConflict::from_change).collect();
        output::json(&ListedConflicts { conflicts })?;
    } else if conflicts.is_empty() {
        output::note("no conflicts");
    } else {
        output::text(&describe(&conflicts))?;
    }
    Ok(CommandOutcome::Complete)
}

/// Writes the device's versions again.
pub(super) fn apply(path: &Path, ids: &[i64], json: bool) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(path)?;
    check_ids(path, ids, &database.conflicts()?)?;
    let applied = database.apply_conflicts(RowSelection::Ids(ids))?;
    if json {
        output::json(&AppliedReport { applied })?;
    } else {
        output::note(&format!(
            "{} written again; the next sync uploads what differs from the centre",
            output::counted(applied, "row", "rows")
        ));
    }
    Ok(CommandOutcome::Complete)
}

/// Writes an insert under a new key; an empty one: the key that its table gives.
pub(super) fn renumber(
    path: &Path,
    ids: &[i64],
    key: &str,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let &[id] = ids else {
        return Err(Failure::usage(
            "each row needs a new key of its own",
            "name one conflict, as tidewater conflicts list shows it",
        ));
    };
    let key = Some(key).filter(|it| !it.is_empty());
    let key = remote_file::open(path)?.renumber_conflict(id, key)?;
    if json {
        let key = embedded(&key);
        output::json(&RenumberedReport { applied: 1, key })?;
    } else {
        output::note(&format!(
            "the row of conflict {id} is written under the key {}; it goes up with the next sync",
            printable(&key)
        ));
    }
    Ok(CommandOutcome::Complete)
}

/// Takes conflicts off the list; without numbers, all of them.
pub(super) fn dismiss(
    path: &Path,
    ids: Option<&[i64]>,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(path)?;
    let which = match ids {
        None => RowSelection::All,
        Some([]) => {
            return Err(Failure::usage(
                "which conflicts are to be dismissed?",
                format!(
                    "name their numbers, as tidewater conflicts list {} shows them, or --all",
                    path.display()
                ),
            ));
        }
        Some(ids) => {
            check_ids(path, ids, &database.conflicts()?)?;
            RowSelection::Ids(ids)
        }
    };
    let dismissed = database.dismiss_conflicts(which)?;
    if json {
        output::json(&DismissedReport { dismissed })?;
    } else {
        let conflicts = output::counted(dismissed, "conflict", "conflicts");
        output::note(&format!("{conflicts} dismissed"));
    }
    Ok(CommandOutcome::Complete)
}

/// A mistyped number must not pass for a conflict that was dealt with.
fn check_ids(path: &Path, ids: &[i64], conflicts: &[ConflictedChange]) -> Result<(), Failure> {
    let mut ids = ids.iter();
    match ids.find(|id| conflicts.iter().all(|it| it.id != **id)) {
        None => Ok(()),
        Some(id) => Err(Failure::usage(
            format!("there is no conflict {id}; nothing was changed"),
            format!("see: tidewater conflicts list {}", path.display()),
        )),
    }
}

/// A paragraph for each: whole rows do not fit a table.
fn describe(conflicts: &[ConflictedChange]) -> String {
    let mut text = String::new();
    for conflict in conflicts {
        let line = format!(
            "{}  {} {} {} {}  ({}, {})",
            conflict.id,
            conflict.outcome,
            conflict.operation,
            conflict.table,
            conflict.key,
            conflict.publication,
            moment(conflict.at_ms),
        );
        let _ = writeln!(text, "{}", printable(&line));
        let mine = conflict.mine.as_deref().unwrap_or("deleted");
        let theirs = conflict.theirs.as_deref().unwrap_or("gone");
        let _ = writeln!(text, "    mine    {}", printable(mine));
        let _ = writeln!(text, "    theirs  {}", printable(theirs));
        if conflict.operation == "insert" {
            let _ = writeln!(
                text,
                "    both were inserted: apply FILE {} --new-key=KEY writes mine beside theirs",
                conflict.id
            );
        }
    }
    text
}

#[derive(Serialize)]
struct AppliedReport {
    applied: u64,
}

#[derive(Serialize)]
struct RenumberedReport {
    applied: u64,
    key: JsonText,
}

#[derive(Serialize)]
struct DismissedReport {
    dismissed: u64,
}

#[derive(Serialize)]
struct ListedConflicts<'a> {
    conflicts: Vec<ListedConflict<'a>>,
}

#[derive(Serialize)]
struct ListedConflict<'a> {
    id: i64,
    publication: &'a str,
    table: &'a str,
    key: JsonText,
    operation: &'a str,
    outcome: &'a str,
    at_ms: i64,
    pre_image: Option<JsonText>,
    mine: Option<JsonText>,
    theirs: Option<JsonText>,
}

impl ListedConflict<'_> {
    fn from_change(conflict: &ConflictedChange) -> ListedConflict<'_> {
        ListedConflict {
            id: conflict.id,
            publication: &conflict.publication,
            table: &conflict.table,
            key: embedded(&conflict.key),
            operation: &conflict.operation,
            outcome: &conflict.outcome,
            at_ms: conflict.at_ms,
            pre_image: conflict.pre_image.as_deref().map(embedded),
            mine: conflict.mine.as_deref().map(embedded),
            theirs: conflict.theirs.as_deref().map(embedded),
        }
    }
}
