//! `tidewater refused list -c FILE`: what the centre refused, for its operator.
//!
//! The centre records every attempt; here a row of a remote is one line, however often
//! it was sent.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;
use tidewater_centre::records::RefusedRecord;

use crate::Done;
use crate::args::ConfigArgs;
use crate::centre::OpenCentre;
use crate::failure::Failure;
use crate::kept::RefusedLine;
use crate::output::{self, moment, printable};

/// Lists the rows that were refused last, newest first.
pub(super) fn list(config: PathBuf, limit: u64, json: bool) -> Result<Done, Failure> {
    let records = OpenCentre::open(&ConfigArgs { path: config })?.refused()?;
    let mut rows = rows(&records);
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    if json {
        let refused = rows.iter().map(ListedRow::of).collect();
        output::json(&ListedRows { refused })?;
    } else if rows.is_empty() {
        output::note("no refused rows are kept");
    } else {
        output::text(&describe(&rows))?;
    }
    Ok(Done::Fully)
}

/// A refused row of a remote.
struct RefusedRow<'a> {
    last: &'a RefusedRecord,
    attempts: u64,
}

/// The rows of records that are in the order in which they were made, newest first.
fn rows(records: &[RefusedRecord]) -> Vec<RefusedRow<'_>> {
    let mut places = HashMap::new();
    let mut rows: Vec<RefusedRow<'_>> = Vec::new();
    for record in records.iter().rev() {
        let row = (
            record.remote_id,
            &record.publication,
            &record.table,
            &record.key,
        );
        let place = *places.entry(row).or_insert_with(|| {
            rows.push(RefusedRow {
                last: record,
                attempts: 0,
            });
            rows.len() - 1
        });
        rows[place].attempts += 1;
    }
    rows
}

/// A paragraph for each row: whole rows and reasons do not fit a table.
fn describe(rows: &[RefusedRow<'_>]) -> String {
    let mut text = String::new();
    for row in rows {
        let last = row.last;
        let attempts = match row.attempts {
            1 => String::new(),
            attempts => format!("  ({attempts} attempts)"),
        };
        let line = format!(
            "{}  {}  {} {} {}{attempts}",
            moment(last.at_ms),
            last.user,
            last.operation,
            last.table,
            last.key,
        );
        let _ = writeln!(text, "{}", printable(&line));
        let reason = format!("{}: {}", last.code, last.reason);
        let _ = writeln!(text, "    {}", printable(&reason));
        let _ = writeln!(text, "    row     {}", printable(&last.row));
        let _ = writeln!(text, "    remote  {}", last.remote_id);
    }
    text
}

#[derive(Serialize)]
struct ListedRows<'a> {
    refused: Vec<ListedRow<'a>>,
}

#[derive(Serialize)]
struct ListedRow<'a> {
    #[serde(flatten)]
    last: RefusedLine<'a>,
    attempts: u64,
}

impl ListedRow<'_> {
    fn of<'a>(row: &RefusedRow<'a>) -> ListedRow<'a> {
        ListedRow {
            last: RefusedLine::of(row.last),
            attempts: row.attempts,
        }
    }
}
