//! `tidewater explain REMOTE.db TABLE KEY`: what a device's file knows of a row.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use tidewater_client::{ExplainedRow, PendingChange};
use tidewater_terminal::output::{self, counted, moment, printable};
use tidewater_terminal::{CommandOutcome, Failure};

use crate::kept::{JsonText, embedded};
use crate::remote_file;

pub(super) fn run(
    remote: &Path,
    table: &str,
    key: &str,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let found = remote_file::open(remote)?.explain(table, key)?;
    match json {
        true => output::json(&RowObject::from_row(&found))?,
        false => output::text(&describe(&found, remote))?,
    }
    Ok(CommandOutcome::Complete)
}

/// What it comes to.
fn sentence(found: &ExplainedRow) -> String {
    let is = match found.row.is_some() {
        true => "The row is on this device",
        false => "The row is not on this device",
    };
    let mut said = Vec::new();
    if let Some(last) = found.pending.last() {
        let how = match last.in_flight {
            true => "was sent, and its answer is missing: the next sync asks for it",
            false => "goes up with the next sync",
        };
        said.push(format!("its {} here {how}", last.operation));
    }
    if let Some(refused) = found.refused.last() {
        let kept = match refused.values {
            Some(_) => ", and only the values of it are left",
            None => "",
        };
        said.push(format!(
            "its {} here was refused: {}: {}{kept}",
            refused.operation, refused.code, refused.reason
        ));
    }
    if let Some(reason) = &found.stale {
        said.push(format!("the centre has it otherwise, and {reason}"));
    }
    if let Some(lost) = found.conflicts.last() {
        said.push(format!(
            "an earlier {} here was {}",
            lost.operation, lost.outcome
        ));
    }
    if said.is_empty() {
        said.push(match (found.row.is_some(), found.last_sync_ms) {
            (_, None) => "it has never synced".to_owned(),
            (true, _) => {
                "nothing of it is pending, refused or stale: it is as it last came".to_owned()
            }
            (false, _) => {
                "nothing of it is pending, refused or stale: the centre has not sent it, or \
                           has removed it (ask there: tidewater explain --remote ID TABLE KEY)"
                    .to_owned()
            }
        });
    }
    format!("{is}: {}.", said.join("; "))
}

fn describe(found: &ExplainedRow, remote: &Path) -> String {
    let mut text = format!("{}\n\n", printable(&sentence(found)));
    let mut say = |name: &str, what: &str| {
        let _ = writeln!(text, "{name:<12} {}", printable(what));
    };
    if let Some(row) = &found.row {
        say("row", row);
    }
    let last = match found.last_sync_ms {
        Some(at) => format!("last sync {}", moment(at)),
        None => "never synced".to_owned(),
    };
    say("publication", &format!("{}, {last}", found.publication));
    for pending in &found.pending {
        let before = pending.pre_image.as_deref().unwrap_or("no row");
        let now = pending.row.as_deref().unwrap_or("no row");
        say(
            "pending",
            &format!("{}: {before} becomes {now}", pending.operation),
        );
    }
    let path = remote.display();
    for refused in &found.refused {
        say(
            "refused",
            &format!(
                "{} {}: {}: {}; see: tidewater refused show {path} {}",
                refused.operation,
                moment(refused.at_ms),
                refused.code,
                refused.reason,
                refused.id
            ),
        );
    }
    for settled in &found.settled {
        say(
            "settled",
            &format!(
                "{} that was refused: {} by {}, {}",
                settled.refused.operation,
                settled.outcome,
                settled.by,
                moment(settled.settled_at_ms)
            ),
        );
    }
    for conflict in &found.conflicts {
        say(
            "conflict",
            &format!(
                "{} {} {}; see: tidewater conflicts list {path}",
                conflict.operation,
                conflict.outcome,
                moment(conflict.at_ms)
            ),
        );
    }
    if let Some(reason) = &found.stale {
        say("stale", reason);
    }
    if found.compare_due {
        say("note", "the next sync compares everything with the centre");
    }
    if found.pending.len() > 1 {
        let changes = counted(found.pending.len() as u64, "change", "changes");
        say(
            "note",
            &format!("{changes} of it go up one after the other"),
        );
    }
    text
}

#[derive(Serialize)]
struct RowObject<'a> {
    sentence: String,
    publication: &'a str,
    table: &'a str,
    key: JsonText,
    row: Option<JsonText>,
    uploads: bool,
    downloads: bool,
    pending: Vec<PendingObject>,
    refused: Vec<RefusedObject<'a>>,
    settled: Vec<SettledObject<'a>>,
    conflicts: Vec<ConflictObject<'a>>,
    stale: Option<&'a str>,
    last_sync_ms: Option<i64>,
    compare_due: bool,
}

#[derive(Serialize)]
struct PendingObject {
    operation: &'static str,
    in_flight: bool,
    pre_image: Option<JsonText>,
    row: Option<JsonText>,
}

#[derive(Serialize)]
struct RefusedObject<'a> {
    id: i64,
    operation: &'a str,
    code: &'a str,
    reason: &'a str,
    at_ms: i64,
    values: Option<JsonText>,
}

#[derive(Serialize)]
struct SettledObject<'a> {
    id: i64,
    operation: &'a str,
    outcome: &'a str,
    by: &'a str,
    settled_at_ms: i64,
}

#[derive(Serialize)]
struct ConflictObject<'a> {
    id: i64,
    operation: &'a str,
    outcome: &'a str,
    at_ms: i64,
    mine: Option<JsonText>,
    theirs: Option<JsonText>,
}

impl RowObject<'_> {
    fn from_row(found: &ExplainedRow) -> RowObject<'_> {
        let pending = |it: &PendingChange| PendingObject {
            operation: it.operation,
            in_flight: it.in_flight,
            pre_image: it.pre_image.as_deref().map(embedded),
            row: it.row.as_deref().map(embedded),
        };
        let refused = found.refused.iter().map(|it| RefusedObject {
            id: it.id,
            operation: &it.operation,
            code: &it.code,
            reason: &it.reason,
            at_ms: it.at_ms,
            values: it.values.as_deref().map(embedded),
        });
        let settled = found.settled.iter().map(|it| SettledObject {
            id: it.refused.id,
            operation: &it.refused.operation,
            outcome: &it.outcome,
            by: &it.by,
            settled_at_ms: it.settled_at_ms,
        });
        let conflicts = found.conflicts.iter().map(|it| ConflictObject {
            id: it.id,
            operation: &it.operation,
            outcome: &it.outcome,
            at_ms: it.at_ms,
            mine: it.mine.as_deref().map(embedded),
            theirs: it.theirs.as_deref().map(embedded),
        });
        RowObject {
            sentence: sentence(found),
            publication: &found.publication,
            table: &found.table,
            key: embedded(&found.key),
            row: found.row.as_deref().map(embedded),
            uploads: found.uploads,
            downloads: found.downloads,
            pending: found.pending.iter().map(pending).collect(),
            refused: refused.collect(),
            settled: settled.collect(),
            conflicts: conflicts.collect(),
            stale: found.stale.as_deref(),
            last_sync_ms: found.last_sync_ms,
            compare_due: found.compare_due,
        }
    }
}
