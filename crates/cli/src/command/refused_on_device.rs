//! `tidewater refused` on a device: its changes that the centre did not take are listed, sent again,
//! changed, restored and given up.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_client::{RefusedRow, RowSelection, SettledChange};
use tidewater_terminal::{CommandOutcome, Failure, output};

use crate::kept::{JsonText, embedded};
use crate::remote_file;

/// The changes with these numbers, or all.
fn which<'i>(
    remote: &Path,
    ids: &'i [i64],
    refused: &[RefusedRow],
) -> Result<RowSelection<'i>, Failure> {
    check_ids(remote, ids, refused)?;
    Ok(match ids {
        [] => RowSelection::All,
        ids => RowSelection::Ids(ids),
    })
}

/// Makes changes pending again.
pub(super) fn retry(remote: &Path, ids: &[i64]) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(remote)?;
    let refused = database.refused()?;
    let which = which(remote, ids, &refused)?;
    let count = database.retry_refused(which)?;
    output::note(&format!(
        "{} to be sent again with the next sync",
        output::counted(count, "change", "changes")
    ));
    let is_meant = |row: &&RefusedRow| ids.is_empty() || ids.contains(&row.id);
    let meant = refused.iter().filter(is_meant);
    let without_row = meant.filter(|row| row.values.is_some()).count();
    if without_row > 0 {
        output::note(&format!(
            "{} cannot be: only the values are left of {}, not the row; write them \
             again (tidewater refused restore {})",
            output::counted(without_row as u64, "change", "changes"),
            if without_row == 1 { "it" } else { "them" },
            remote.display()
        ));
    }
    Ok(CommandOutcome::Complete)
}

/// Gives a row a new key, and has it sent again under that; an empty key: the one that its table gives.
pub(super) fn renumber(remote: &Path, ids: &[i64], key: &str) -> Result<CommandOutcome, Failure> {
    let &[id] = ids else {
        return Err(Failure::usage(
            "each row needs a new key of its own",
            "name one row, as tidewater refused list shows it",
        ));
    };
    let key = Some(key).filter(|it| !it.is_empty());
    let key = remote_file::open(remote)?.renumber_refused(id, key)?;
    output::note(&format!(
        "refused change {id} has the key {}, and what refers to it follows; both go up with the next \
         sync",
        output::printable(&key)
    ));
    Ok(CommandOutcome::Complete)
}

/// Writes again what is only left as values.
pub(super) fn restore(remote: &Path, ids: &[i64]) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(remote)?;
    let refused = database.refused()?;
    let which = which(remote, ids, &refused)?;
    let count = database.restore_refused(which)?;
    output::note(&format!(
        "{} written again; the next sync uploads what differs from the centre",
        output::counted(count, "row", "rows")
    ));
    let is_meant = |row: &&RefusedRow| ids.is_empty() || ids.contains(&row.id);
    let left = (refused.iter().filter(is_meant).count() as u64).saturating_sub(count);
    if left > 0 {
        output::note(&format!(
            "{} left as {}: a row that is still in the file goes up again with refused \
             retry, and of others a table, a column or a value that it needs is missing, or \
             somebody else's row has the key by now: write that row anew under a key of its own, \
             and discard the change (tidewater refused list {})",
            output::counted(left, "change", "changes"),
            if left == 1 { "it is" } else { "they are" },
            remote.display()
        ));
    }
    Ok(CommandOutcome::Complete)
}

/// Gives changes up.
pub(super) fn discard(remote: &Path, ids: &[i64], all: bool) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(remote)?;
    if ids.is_empty() && !all {
        return Err(Failure::usage(
            "which changes are to be given up?",
            format!(
                "name their numbers, as tidewater refused list {} shows them, or --all",
                remote.display()
            ),
        ));
    }
    check_ids(remote, ids, &database.refused()?)?;
    let which = if all {
        RowSelection::All
    } else {
        RowSelection::Ids(ids)
    };
    let count = database.discard_refused(which)?;
    output::note(&format!(
        "{} given up; the next sync brings what the centre has",
        output::counted(count, "change", "changes")
    ));
    Ok(CommandOutcome::Complete)
}

/// Writes other values into a refused row.
pub(super) fn edit(remote: &Path, id: i64, values: &str) -> Result<CommandOutcome, Failure> {
    let mut database = remote_file::open(remote)?;
    check_ids(remote, &[id], &database.refused()?)?;
    database.edit_refused(id, values)?;
    output::note(&format!(
        "refused change {id} is written anew; it goes up with the next sync"
    ));
    Ok(CommandOutcome::Complete)
}

/// The values of a refused row, a JSON object.
pub(super) fn values(remote: &Path, id: i64) -> Result<String, Failure> {
    let database = remote_file::open(remote)?;
    check_ids(remote, &[id], &database.refused()?)?;
    Ok(database.refused_values(id)?.unwrap_or_else(|| "{}".into()))
}

/// Shows one refused or settled change with its values.
pub(super) fn show(remote: &Path, id: i64, json: bool) -> Result<CommandOutcome, Failure> {
    let database = remote_file::open(remote)?;
    let refused = database.refused()?;
    if let Some(row) = refused.iter().find(|it| it.id == id) {
        let values = database.refused_values(id)?;
        if json {
            let values = values.and_then(|it| RawValue::from_string(it).ok());
            output::json(&ListedRow {
                values,
                ..ListedRow::from_row(row)
            })?;
        } else {
            let row = RefusedRow {
                values,
                ..row.clone()
            };
            output::text(&describe(&[row]))?;
        }
        return Ok(CommandOutcome::Complete);
    }
    let settled = database.settled_refused()?;
    let Some(row) = settled.iter().find(|it| it.refused.id == id) else {
        check_ids(remote, &[id], &[])?;
        return Ok(CommandOutcome::Complete);
    };
    match json {
        true => output::json(&SettledLine::from_change(row))?,
        false => output::text(&describe_settled(std::slice::from_ref(row)))?,
    }
    Ok(CommandOutcome::Complete)
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

pub(super) fn list(remote: &Path, open: bool, json: bool) -> Result<CommandOutcome, Failure> {
    let database = remote_file::open(remote)?;
    let refused = database.refused()?;
    let settled = match open {
        true => Vec::new(),
        false => database.settled_refused()?,
    };
    if json {
        output::json(&ListedRows {
            refused: refused.iter().map(ListedRow::from_row).collect(),
            settled: settled.iter().map(SettledLine::from_change).collect(),
        })?;
        return Ok(CommandOutcome::Complete);
    }
    if refused.is_empty() {
        output::note("no refused changes");
    } else {
        output::text(&describe(&refused))?;
    }
    if !settled.is_empty() {
        output::text(&describe_settled(&settled))?;
    }
    Ok(CommandOutcome::Complete)
}

/// A line for each, and the reason for which it was refused.
fn describe_settled(settled: &[SettledChange]) -> String {
    let mut text = String::new();
    for row in settled {
        let how = match &*row.outcome {
            "retried" => "goes up again, says".to_owned(),
            "given_up" => "given up by".to_owned(),
            "taken" | "lost" => format!("sent again and {} for", row.outcome),
            outcome => format!("settled by operator: {outcome} by"),
        };
        let refused = &row.refused;
        let line = format!(
            "{}  {} {} {}  ({how} {}, {})",
            refused.id,
            refused.operation,
            refused.table,
            refused.key,
            row.by,
            output::moment(row.settled_at_ms),
        );
        let _ = writeln!(text, "{}", output::printable(&line));
        let reason = format!("was refused: {}: {}", refused.code, refused.reason);
        let _ = writeln!(text, "    {}", output::printable(&reason));
    }
    text
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
    settled: Vec<SettledLine<'a>>,
}

#[derive(Serialize)]
struct SettledLine<'a> {
    #[serde(flatten)]
    refused: ListedRow<'a>,
    outcome: &'a str,
    by: &'a str,
    settled_at_ms: i64,
}

impl SettledLine<'_> {
    fn from_change(row: &SettledChange) -> SettledLine<'_> {
        SettledLine {
            refused: ListedRow::from_row(&row.refused),
            outcome: &row.outcome,
            by: &row.by,
            settled_at_ms: row.settled_at_ms,
        }
    }
}

#[derive(Serialize)]
struct ListedRow<'a> {
    id: i64,
    publication: &'a str,
    table: &'a str,
    key: JsonText,
    operation: &'a str,
    code: &'a str,
    reason: &'a str,
    sequence: u64,
    at_ms: i64,
    values: Option<Box<RawValue>>,
}

impl ListedRow<'_> {
    fn from_row(row: &RefusedRow) -> ListedRow<'_> {
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
