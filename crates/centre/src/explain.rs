//! Why a row is, is not, or was removed from a remote: what is asked, and what is found.
//!
//! Everything is read from what the centre has anyway: rows, rules, change logs, the history of
//! syncs, refused rows and conflicts. What only the remote knows is said to be so.

use std::collections::BTreeMap;

use serde::Serialize;

use tidewater_protocol::RemoteId;
use tidewater_protocol::datetime::push_timestamp;

use crate::records::{ConflictRecord, RefusedRecord, SyncRecord};

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainQuestion {
    /// The remote.
    pub remote_id: RemoteId,
    /// The table, by its name on remotes or in the centre.
    pub table: String,
    /// The key: a JSON array, or the values separated by commas.
    pub key: String,
    /// What the remote has set, as far as the operator knows: the centre does not keep it.
    pub parameters: BTreeMap<String, String>,
    /// The clock, in milliseconds since 1970.
    pub now_ms: i64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What it comes to.
    pub verdict: ExplainVerdict,
    /// The same in a sentence.
    pub sentence: String,
    /// The remote.
    pub remote: ExplainedRemote,
    /// The table, by its name on remotes.
    pub table: String,
    /// The key as a JSON array.
    #[serde(serialize_with = "json")]
    pub key: String,
    /// The row in the centre, a JSON object of the columns that are published; `None` if there is
    /// none.
    #[serde(serialize_with = "maybe_json")]
    pub row: Option<String>,
    /// The remote's publications that have the table.
    pub publications: Vec<ExplainedPublication>,
    /// Who may have changed the row last.
    pub last_change: Option<LastChange>,
    /// What the centre does not know, and other things to be aware of.
    pub notes: Vec<String>,
    /// What was refused of the row, whichever remote sent it; newest first.
    #[serde(skip)]
    pub refused: Vec<RefusedRecord>,
    /// The conflicts about it, newest first.
    #[serde(skip)]
    pub conflicts: Vec<ConflictRecord>,
}

/// What an explanation comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExplainVerdict {
    /// The remote holds the row, and has it as it is, as far as the centre can tell.
    Held,
    /// The row comes with the next sync, or comes changed.
    Comes,
    /// The row is there, and not the remote's.
    NotHeld,
    /// It was the remote's, and has left it.
    Left,
    /// It was the remote's, and leaves it with the next sync.
    Leaves,
    /// It was deleted in the centre, and is not on the remote any more.
    Gone,
    /// It was deleted in the centre, and leaves the remote with the next sync.
    Goes,
    /// There is no such row, and nothing is known of one.
    Absent,
    /// The table's rows do not come down.
    NotDownloaded,
    /// A script or a handler says which rows come down.
    NotByRules,
    /// It depends on what the remote has set, which the centre does not keep.
    Unknown,
}

/// The remote that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRemote {
    /// Its id.
    pub id: String,
    /// Its user.
    pub user: String,
    /// Whether it is kept out.
    pub revoked: bool,
    /// Whether its user is.
    pub disabled: bool,
    /// When it last synced, in milliseconds since 1970; `None` if never.
    pub last_sync_ms: Option<i64>,
}

/// A publication of the remote that has the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedPublication {
    /// Its name.
    pub name: String,
    /// Which way the table's rows travel: `both`, `download` or `upload`.
    pub direction: &'static str,
    /// What says which rows come down: `rules`, `script` or `handler`.
    pub source: &'static str,
    /// The script that says which rows come down, if one does.
    pub download_script: Option<String>,
    /// What decides of uploaded rows in the place of generated statements: scripts, or the handler.
    pub uploads_by: Vec<String>,
    /// Whether any of the rules holds the row for the user; `None` if that is not known.
    pub holds: Option<bool>,
    /// The rules of the table.
    pub rules: Vec<ExplainedRule>,
    /// Whether remotes of the user may write the row.
    pub writes: ExplainedWrites,
    /// The role of the database under which the remote reads, if that is not the server's own.
    pub role: Option<ExplainedRole>,
    /// Whether changes of the table are tracked; if not, every download sends it whole.
    pub is_tracked: bool,
    /// What the change logs have of the key, newest first.
    pub log: Vec<ExplainedEntry>,
}

/// A rule by which rows of the table are held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRule {
    /// Its number among the table's, from 1.
    pub number: usize,
    /// Whether it holds the row for the user; `None` if that is not known, or there is no row.
    pub holds: Option<bool>,
    /// The way to the row that decides, parent by parent; empty if the row decides itself.
    pub follows: Vec<ExplainedParent>,
    /// The partition columns, of the table at the end of the way; none for `everyone`.
    pub columns: Vec<String>,
    /// What the row has in them now; `None` if there is no row, or no parent.
    pub values: Option<Vec<String>>,
    /// The query that yields what the user holds.
    pub query: Option<String>,
    /// What the query names and the centre does not know.
    pub unknown_parameters: Vec<String>,
    /// How many partitions the user holds now.
    pub held_count: usize,
    /// The first of them.
    pub held: Vec<Vec<String>>,
    /// The windows in which a row has to be.
    pub windows: Vec<ExplainedWindow>,
}

/// A row above the one in question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedParent {
    /// Its table.
    pub table: String,
    /// The columns by which it is referred to, with what stands in them.
    pub refers: Vec<(String, String)>,
    /// Whether there is such a row.
    pub is_there: bool,
}

/// A window of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedWindow {
    /// The column, with its table.
    pub column: String,
    /// How far it reaches back.
    pub last: String,
    /// Where it begins now.
    pub from: String,
    /// What the row has in the column; `None` if there is no row.
    pub value: Option<String>,
    /// Whether that is in the window.
    pub is_in: Option<bool>,
}

/// What remotes of the user may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedWrites {
    /// Whether they may write the row; `None` if there is none, or that is not known.
    pub may: Option<bool>,
    /// Why, or why not.
    pub reason: String,
    /// The columns that they do not write.
    pub read_only: Vec<String>,
}

/// The role under which a remote reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRole {
    /// Its name.
    pub name: String,
    /// Whether it sees the row.
    pub sees: bool,
}

/// An entry of a change log: the row was changed, in this partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedEntry {
    /// The number of the rule whose change log it is.
    pub rule: usize,
    /// The version, in the database's own terms.
    pub version: String,
    /// It was made after this time, in milliseconds since 1970; `None` if that is not known.
    pub after_ms: Option<i64>,
    /// And before this one.
    pub before_ms: Option<i64>,
    /// What the row had in the partition columns.
    pub partition: Vec<String>,
    /// Whether the user holds that partition now; `None` if that is not known.
    pub is_held: Option<bool>,
    /// Whether the remote's last sync has come behind it, as far as the centre can tell.
    pub is_covered: bool,
}

/// What is known of the last change of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LastChange {
    /// It was made after this time, in milliseconds since 1970.
    pub after_ms: Option<i64>,
    /// And before this one.
    pub before_ms: Option<i64>,
    /// Uploads to the remote's publications in that time that changed rows: one of them may have
    /// been it. The centre keeps no origin of a row.
    pub uploads: Vec<CandidateUpload>,
}

/// An upload in whose time a row was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CandidateUpload {
    /// The remote.
    pub remote_id: Option<String>,
    /// Its user.
    pub user: String,
    /// When its sync began, in milliseconds since 1970.
    pub started_ms: i64,
    /// How many rows it inserted, updated and deleted.
    pub rows: [u64; 3],
}

impl CandidateUpload {
    pub(crate) fn from_sync(sync: &SyncRecord) -> CandidateUpload {
        CandidateUpload {
            remote_id: sync.remote_id.map(|it| it.to_string()),
            user: sync.user.clone(),
            started_ms: sync.started_ms,
            rows: sync.uploaded,
        }
    }
}

/// A moment for people: `2026-03-31 13:45:00 UTC`.
pub(crate) fn moment(ms: i64) -> String {
    let mut text = String::new();
    push_timestamp(ms.saturating_mul(1_000), &mut text);
    let seconds = text.split('.').next().unwrap_or_default();
    format!("{} UTC", seconds.replace('T', " "))
}

/// JSON text as what it says.
fn json<S: serde::Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => value.serialize(serializer),
        Err(_) => serializer.serialize_str(text),
    }
}

fn maybe_json<S: serde::Serializer>(
    text: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => json(text, serializer),
        None => serializer.serialize_none(),
    }
}
