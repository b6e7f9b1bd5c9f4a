//! What a finished sync tells; `tidewater sync --json` prints it, with keys as JSON.
//!
//! Fields are only ever added.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::database::{
    ApplySummary, ConflictSummary, OutboxCounts, ROWS_TOLD, RefusedSummary, RemoteDatabase,
    StaleRow, TableDifferences,
};
use crate::error::RemoteError;

/// What a sync moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What the uploads of this sync changed in the centre. An upload whose first
    /// acknowledgement was lost is told here once more.
    pub uploaded: UploadedRows,
    /// What the downloads of this sync changed on the remote.
    pub downloaded: DownloadedRows,
    /// The tables of which downloads changed rows.
    pub tables: BTreeSet<String>,
    /// The server took the file for a copy, or for one that was restored from a backup: it is another
    /// remote since, with numbers of its own, and what it had pending goes up as what its original may
    /// have sent, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub starts_over: bool,
    /// Changes that lost against the centre.
    pub conflicts: u64,
    /// The first 100 of them.
    pub conflict_rows: Vec<ConflictSummary>,
    /// Changes that the centre refused.
    pub refused: u64,
    /// The first 100 of them.
    pub refused_rows: Vec<RefusedSummary>,
    /// Rows that the centre has otherwise, or not any more, and that something here keeps as they
    /// are: they will be asked for again.
    pub stale_count: u64,
    /// The first 100 of them.
    pub stale: Vec<StaleRow>,
    /// The SQL of indexes, triggers and views of the application that a new schema has made
    /// impossible. Indexes and triggers of synced tables are gone; views, and triggers of
    /// the application's own tables, are still there and fail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
    /// How each table differs from the centre, where that was asked.
    #[serde(skip)]
    pub compared: Vec<TableDifferences>,
    /// What became of the outbox.
    pub outbox: OutboxCounts,
    /// Rows that came into the inbox.
    pub inbox: u64,
    /// What the application is interested in and does not get, if the file did not say so before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_interests: Vec<RefusedInterest>,
    /// Bytes of the protocol sent, over all connections of this sync. Whoever drives them counts.
    pub bytes_sent: u64,
    /// Bytes of the protocol received.
    pub bytes_received: u64,
    /// Bytes of a download that earlier syncs had received before they broke.
    pub bytes_kept: u64,
    /// How often the server turned it away and it was tried again. Whoever drives it counts.
    pub retries: u64,
    /// How long it took, from the first connection on, waiting to try again included.
    pub duration_ms: u64,
}

/// Events that the application is interested in and does not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedInterest {
    /// The space.
    pub space: String,
    /// Their subject.
    pub subject: String,
    /// Why, for people.
    pub reason: String,
}

/// Rows that took effect in the centre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UploadedRows {
    /// Inserted.
    pub inserts: u64,
    /// Updated.
    pub updates: u64,
    /// Deleted.
    pub deletes: u64,
}

impl UploadedRows {
    /// Adds what a server says, which may be any number.
    pub(crate) fn add(&mut self, more: UploadedRows) {
        self.inserts = self.inserts.saturating_add(more.inserts);
        self.updates = self.updates.saturating_add(more.updates);
        self.deletes = self.deletes.saturating_add(more.deletes);
    }
}

/// Rows that took effect on the remote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DownloadedRows {
    /// Written.
    pub upserts: u64,
    /// Removed. Of a table that was sent whole: by how many rows it has become smaller.
    pub removals: u64,
}

impl Report {
    /// Takes over what a second sync moved that belongs to the same call.
    pub fn add(&mut self, later: Report) {
        self.uploaded.add(later.uploaded);
        self.downloaded.upserts += later.downloaded.upserts;
        self.downloaded.removals += later.downloaded.removals;
        self.tables.extend(later.tables);
        self.refused_interests.extend(later.refused_interests);
        self.starts_over |= later.starts_over;
        self.conflicts += later.conflicts;
        self.conflict_rows.extend(later.conflict_rows);
        self.conflict_rows.truncate(ROWS_TOLD);
        self.refused += later.refused;
        for row in later.refused_rows {
            // What is pending may go up twice in one call, and be refused twice.
            let is_same = |told: &RefusedSummary| told.table == row.table && told.key == row.key;
            if let Some(told) = self.refused_rows.iter().position(is_same) {
                self.refused_rows.remove(told);
                self.refused -= 1;
            }
            self.refused_rows.push(row);
        }
        self.refused_rows.truncate(ROWS_TOLD);
        self.stale_count = later.stale_count;
        self.stale = later.stale;
        self.not_restored.extend(later.not_restored);
        self.compared.extend(later.compared);
        self.outbox.answered += later.outbox.answered;
        self.outbox.failed += later.outbox.failed;
        self.outbox.pending = later.outbox.pending;
        self.inbox += later.inbox;
        self.bytes_sent += later.bytes_sent;
        self.bytes_received += later.bytes_received;
        self.bytes_kept += later.bytes_kept;
        self.retries += later.retries;
        self.duration_ms += later.duration_ms;
    }

    /// Tells which rows are stale once all is applied.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn tell_stale(&mut self, database: &RemoteDatabase) -> Result<(), RemoteError> {
        (self.stale_count, self.stale) = database.stale(ROWS_TOLD)?;
        Ok(())
    }

    /// Takes over what applying came to.
    pub(crate) fn add_applied(&mut self, summary: ApplySummary) {
        self.downloaded.upserts = summary.upserts;
        self.downloaded.removals = summary.removals;
        self.tables = summary.tables;
        self.conflicts = summary.conflicts;
        self.conflict_rows = summary.conflict_rows;
        self.refused = summary.refused;
        self.refused_rows = summary.refused_rows;
        self.not_restored = summary.not_restored;
        self.compared = summary.compared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_twice_in_one_call_is_told_once() {
        let refused = |key: &str| RefusedSummary {
            table: "t".into(),
            key: key.into(),
            reason: "no".into(),
        };
        let mut report = Report {
            refused: 2,
            refused_rows: vec![refused("[1]"), refused("[2]")],
            ..Report::default()
        };
        report.add(Report {
            refused: 2,
            refused_rows: vec![refused("[3]"), refused("[1]")],
            ..Report::default()
        });
        assert_eq!(report.refused, 3);
        let keys: Vec<_> = report.refused_rows.iter().map(|row| &row.key).collect();
        assert_eq!(keys, ["[2]", "[3]", "[1]"]);
    }

    #[test]
    fn the_names_in_json_are_the_documented_ones() {
        let report = Report {
            conflict_rows: vec![ConflictSummary {
                table: "t".into(),
                key: "[2]".into(),
            }],
            refused_rows: vec![RefusedSummary {
                table: "t".into(),
                key: "[1]".into(),
                reason: "no".into(),
            }],
            stale_count: 1,
            stale: vec![StaleRow {
                table: "t".into(),
                key: "[3]".into(),
                reason: "it is".into(),
            }],
            ..Report::default()
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            "{\"uploaded\":{\"inserts\":0,\"updates\":0,\"deletes\":0},\
             \"downloaded\":{\"upserts\":0,\"removals\":0},\"tables\":[],\"conflicts\":0,\
             \"conflict_rows\":[{\"table\":\"t\",\"key\":\"[2]\"}],\"refused\":0,\
             \"refused_rows\":[{\"table\":\"t\",\"key\":\"[1]\",\"reason\":\"no\"}],\
             \"stale_count\":1,\"stale\":[{\"table\":\"t\",\"key\":\"[3]\",\"reason\":\"it is\"}],\
             \"outbox\":{\"answered\":0,\"failed\":0,\"pending\":0},\"inbox\":0,\
             \"bytes_sent\":0,\"bytes_received\":0,\"bytes_kept\":0,\"retries\":0,\"duration_ms\":0}"
        );
    }
}
