//! The object that `tidewater sync --json` prints.
//!
//! A report as the library gives it, with keys as JSON and not as text that holds JSON,
//! and with what the file knows beyond the one sync. Fields are only ever added.

use serde::Serialize;
use tidewater_client::{DownloadedRows, OutboxCounts, RefusedInterest, Report, UploadedRows};

use crate::kept::{JsonText, embedded};

#[derive(Serialize)]
pub(crate) struct SyncObject<'a> {
    uploaded: UploadedRows,
    downloaded: DownloadedRows,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    starts_over: bool,
    conflicts: u64,
    conflict_rows: Vec<LostRow<'a>>,
    refused: u64,
    refused_rows: Vec<KeptRow<'a>>,
    refused_before: u64,
    stale_count: u64,
    stale: Vec<KeptRow<'a>>,
    not_restored: &'a [String],
    outbox: OutboxCounts,
    inbox: u64,
    refused_interests: &'a [RefusedInterest],
    bytes_sent: u64,
    bytes_received: u64,
    bytes_kept: u64,
    retries: u64,
    duration_ms: u64,
}

#[derive(Serialize)]
struct LostRow<'a> {
    table: &'a str,
    key: JsonText,
}

#[derive(Serialize)]
struct KeptRow<'a> {
    table: &'a str,
    key: JsonText,
    reason: &'a str,
}

impl SyncObject<'_> {
    /// The object of a report; `refused_before` are refused rows of earlier syncs.
    pub(crate) fn new(report: &Report, refused_before: u64) -> SyncObject<'_> {
        let lost = report.conflict_rows.iter().map(|row| LostRow {
            table: &row.table,
            key: embedded(&row.key),
        });
        let refused = report.refused_rows.iter().map(|row| KeptRow {
            table: &row.table,
            key: embedded(&row.key),
            reason: &row.reason,
        });
        let stale = report.stale.iter().map(|row| KeptRow {
            table: &row.table,
            key: embedded(&row.key),
            reason: &row.reason,
        });
        SyncObject {
            uploaded: report.uploaded,
            downloaded: report.downloaded,
            starts_over: report.starts_over,
            conflicts: report.conflicts,
            conflict_rows: lost.collect(),
            refused: report.refused,
            refused_rows: refused.collect(),
            refused_before,
            stale_count: report.stale_count,
            stale: stale.collect(),
            not_restored: &report.not_restored,
            outbox: report.outbox,
            inbox: report.inbox,
            refused_interests: &report.refused_interests,
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            bytes_kept: report.bytes_kept,
            retries: report.retries,
            duration_ms: report.duration_ms,
        }
    }
}
