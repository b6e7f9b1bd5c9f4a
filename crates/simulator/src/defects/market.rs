//! Defects that a market shows: of sums that several sides change, of families whose sales meet, of
//! what an operator sends past scripts and handlers, and of files that are copied.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use tidewater_centre::upload::UploadTable;
use tidewater_centre::{
    ConflictChoice, ConflictVersion, RefusedChoice, RefusedRowAction, SettleOutcome, SyncUpload,
    UploadOutcome,
};
use tidewater_protocol::{Datum, Op, RemoteId, UnpackedRow};

use super::list::{Defect, current, is_on};
use super::uploads::{each_row, rewrite};
use crate::application;

thread_local! {
    /// By how much the last upload of each remote changes rows of the stock.
    static DIFFERENCES: RefCell<HashMap<RemoteId, Vec<(i64, i64)>>> = RefCell::default();
}

/// A world begins.
pub(super) fn forget_all() {
    DIFFERENCES.with_borrow_mut(HashMap::clear);
}

/// Whether a table is the stock of a market.
fn is_stock(table: &UploadTable) -> bool {
    let mut columns = table.begin.columns.iter();
    table.begin.table == "stock" && columns.any(|it| it.name == "label")
}

/// A number among the values of a row, by its column.
fn number(table: &UploadTable, values: &[Datum<'_>], column: &str) -> Option<i64> {
    let mut columns = table.begin.columns.iter();
    match values.get(columns.position(|it| it.name == column)?)? {
        Datum::Integer(number) => Some(*number),
        _ => None,
    }
}

fn text(table: &UploadTable, values: &[Datum<'_>], column: &str) -> Option<String> {
    let mut columns = table.begin.columns.iter();
    match values.get(columns.position(|it| it.name == column)?)? {
        Datum::Text(text) => Some((*text).to_owned()),
        _ => None,
    }
}

/// Changes an upload before the centre applies it.
pub(super) fn alter(upload: &mut SyncUpload, centre: &Connection) {
    match current() {
        Some(Defect::CopySendsAgain) => upload.copied = false,
        Some(Defect::EqualSumDropped) => {
            for table in upload.tables.iter_mut().filter(|it| is_stock(it)) {
                let of = table.clone();
                rewrite(table, &mut |row, _| {
                    (!is_equal_sum(&of, row, centre)).then_some(())
                });
            }
        }
        Some(Defect::MeetingInsertLost) => {
            let tables = upload.tables.iter_mut();
            for table in tables.filter(|it| it.begin.table == "voucher") {
                let of = table.clone();
                rewrite(table, &mut |row, _| {
                    (!is_met(&of, row, centre)).then_some(())
                });
            }
        }
        _ => {}
    }
}

/// Whether the centre has what an update makes of the stock.
fn is_equal_sum(table: &UploadTable, row: &UnpackedRow<'_>, centre: &Connection) -> bool {
    let (old, new) = (
        number(table, &row.old, "quantity"),
        number(table, &row.new, "quantity"),
    );
    let key = number(table, &row.new, "stock_id");
    let sql = "SELECT quantity FROM stock WHERE stock_id = ?1";
    let now = centre.query_row(sql, [key], |row| row.get::<_, i64>(0));
    row.op == Some(Op::Update) && old != new && now.ok() == new
}

/// Whether the centre has a voucher under the key of an insert.
fn is_met(table: &UploadTable, row: &UnpackedRow<'_>, centre: &Connection) -> bool {
    let key = number(table, &row.new, "voucher_id");
    let sql = "SELECT 1 FROM voucher WHERE voucher_id = ?1";
    let there = centre.query_row(sql, [key], |_| Ok(())).optional();
    row.op == Some(Op::Insert) && matches!(there, Ok(Some(())))
}

/// What an upload brings, as far as a defect goes by it.
#[derive(Default)]
pub(super) struct UploadContents {
    remote_id: Option<RemoteId>,
    is_given_back: bool,
    /// By how much it changes rows of the stock.
    differences: Vec<(i64, i64)>,
    /// Lines of sales that it inserts: sale, number, entry, family.
    lines: Vec<(i64, i64, String, String)>,
}

/// Looks through an upload.
pub(super) fn look_through(upload: &SyncUpload) -> UploadContents {
    let mut brought = UploadContents::default();
    let defects = [
        Defect::SumCountedOnRetry,
        Defect::GivenBackTwice,
        Defect::LinesUnderWinner,
        Defect::LaterLinesTaken,
    ];
    if !defects.into_iter().any(is_on) {
        return brought;
    }
    brought.remote_id = Some(upload.context.remote_id);
    brought.is_given_back = upload.given_back;
    let mut sales = Vec::new();
    for table in &upload.tables {
        each_row(table, |row| {
            let of = |values: &[Datum<'_>], column: &str| number(table, values, column);
            match (table.begin.table.as_str(), row.op) {
                ("stock", Some(Op::Update)) if is_stock(table) => {
                    let (old, new) = (of(&row.old, "quantity"), of(&row.new, "quantity"));
                    if let (Some(key), Some(old), Some(new)) = (of(&row.new, "stock_id"), old, new)
                    {
                        brought.differences.push((key, new - old));
                    }
                }
                ("sale", Some(Op::Insert)) => sales.extend(of(&row.new, "sale_id")),
                ("sale_line", Some(Op::Insert)) => {
                    let line = (
                        of(&row.new, "sale_id"),
                        of(&row.new, "number"),
                        text(table, &row.new, "entry"),
                        text(table, &row.new, "family"),
                    );
                    if let (Some(sale), Some(number), Some(entry), Some(family)) = line {
                        brought.lines.push((sale, number, entry, family));
                    }
                }
                _ => {}
            }
        });
    }
    brought
        .lines
        .retain(|it| sales.contains(&it.0) == is_on(Defect::LinesUnderWinner));
    brought
}

/// An upload has come to this.
pub(super) fn applied(centre: &Path, brought: UploadContents, outcome: &UploadOutcome) {
    let Some(remote_id) = brought.remote_id else {
        return;
    };
    match (current(), outcome) {
        (Some(Defect::SumCountedOnRetry), UploadOutcome::Applied { .. }) => {
            DIFFERENCES.with_borrow_mut(|last| last.insert(remote_id, brought.differences));
        }
        (Some(Defect::SumCountedOnRetry), UploadOutcome::AlreadyApplied { .. }) => {
            add_again(centre, remote_id);
        }
        (Some(Defect::GivenBackTwice), UploadOutcome::Applied { .. }) if brought.is_given_back => {
            add(centre, brought.differences);
        }
        (
            Some(Defect::LinesUnderWinner | Defect::LaterLinesTaken),
            UploadOutcome::Applied { .. },
        ) => {
            let Ok(centre) = application::open(centre) else {
                return;
            };
            for (sale, number, entry, family) in brought.lines {
                let sql = "INSERT OR IGNORE INTO sale_line SELECT ?1, ?2, ?3, ?4
                           WHERE EXISTS (SELECT 1 FROM sale WHERE sale_id = ?1)";
                let _ = centre.execute(sql, params![sale, number, entry, family]);
            }
        }
        _ => {}
    }
}

/// A remote asks what became of its last upload: its differences count once more.
pub(super) fn add_again(centre: &Path, remote_id: RemoteId) {
    let last = DIFFERENCES.with_borrow_mut(|last| last.remove(&remote_id));
    add(centre, last.unwrap_or_default());
}

/// Adds differences to rows of the stock. Where somebody else writes, it is as it should be.
fn add(centre: &Path, differences: Vec<(i64, i64)>) {
    let Ok(centre) = application::open(centre) else {
        return;
    };
    for difference in differences {
        let sql = "UPDATE stock SET quantity = quantity + ?2 WHERE stock_id = ?1";
        let _ = centre.execute(sql, difference);
    }
}

/// Has a handler that an operator asks agree to everything.
pub(super) fn agree(choice: &mut RefusedChoice) {
    if is_on(Defect::ReplayPastHandler) {
        choice.judgement.verdicts = BTreeMap::from([(0, BTreeMap::new())]);
    }
}

/// What a refused row of a shelf was to be.
pub(super) fn value_sent(centre: &Path, choice: &RefusedChoice) -> Option<(String, i64)> {
    if !is_on(Defect::ReplayWritesValue) || choice.action != RefusedRowAction::Replay {
        return None;
    }
    let sql = "SELECT row_key, uploaded ->> 'quantity' FROM tidewater_centre_refused
               WHERE id = ?1 AND table_name = 'shelf'";
    let centre = application::open(centre).ok()?;
    centre
        .query_row(sql, [choice.refused], |row| Ok((row.get(0)?, row.get(1)?)))
        .ok()
}

/// An operator has had a refused row written again.
pub(super) fn replayed(centre: &Path, sent: Option<(String, i64)>, outcome: &SettleOutcome) {
    if let (Some((key, value)), SettleOutcome::Settled { .. }) = (sent, outcome)
        && let Ok(centre) = application::open(centre)
    {
        let sql = "UPDATE shelf SET quantity = ?2 WHERE json_array(shelf_id) = ?1";
        let _ = centre.execute(sql, params![key, value]);
    }
}

/// An operator has resolved a conflict.
pub(super) fn resolved(centre: &Path, choice: &ConflictChoice, outcome: &SettleOutcome) {
    if is_on(Defect::ResolvePastScripts)
        && choice.version == ConflictVersion::Uploaded
        && matches!(outcome, SettleOutcome::Settled { .. })
        && let Ok(centre) = application::open(centre)
    {
        let sql = "UPDATE report SET text = c.uploaded ->> 'text'
                   FROM tidewater_centre_conflict AS c
                   WHERE c.id = ?1 AND c.table_name = 'report'
                   AND c.row_key = json_array(report_id)";
        let _ = centre.execute(sql, [choice.conflict]);
    }
}

/// The identity of a file and its numbers, before it syncs.
pub(crate) struct FileNumbers {
    remote_id: Option<Vec<u8>>,
    blocks: Vec<[Value; 5]>,
}

const BLOCKS: &str = "id, subscription, table_name, next, last";

impl FileNumbers {
    /// Only where a defect goes by them.
    pub(crate) fn read_from(file: &Path) -> Option<FileNumbers> {
        if !is_on(Defect::NumbersKept) {
            return None;
        }
        let file = application::open(file).ok()?;
        let sql = format!("SELECT {BLOCKS} FROM tidewater_identity_block");
        let mut statement = file.prepare(&sql).ok()?;
        let blocks = statement.query_map([], |row| {
            Ok([
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
            ])
        });
        let blocks = blocks.ok()?.collect::<rusqlite::Result<_>>().ok()?;
        Some(FileNumbers {
            remote_id: remote_id(&file).ok()?,
            blocks,
        })
    }

    /// A file that has another identity since goes on numbering.
    pub(crate) fn keep(self, file: &Path) {
        let Ok(file) = application::open(file) else {
            return;
        };
        let is_another = remote_id(&file).is_ok_and(|it| it != self.remote_id);
        if !is_another || self.remote_id.is_none() || self.blocks.is_empty() {
            return;
        }
        let _ = file.execute("DELETE FROM tidewater_identity_block", []);
        let sql = format!("INSERT INTO tidewater_identity_block ({BLOCKS}) VALUES (?, ?, ?, ?, ?)");
        for block in self.blocks {
            let _ = file.execute(&sql, block);
        }
    }
}

fn remote_id(file: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    file.query_row("SELECT remote_id FROM tidewater_state", [], |row| {
        row.get(0)
    })
}

/// A device that has a sale of its own under a key shows what the centre has under that.
pub(crate) fn show_lines(file: &Path, centre: &Path) {
    if !is_on(Defect::OthersLinesShown) {
        return;
    }
    let show = || -> rusqlite::Result<()> {
        let (file, centre) = (application::open(file)?, application::open(centre)?);
        let sql = "SELECT key_sale_id FROM tidewater_change_sale WHERE NOT present";
        let mut statement = file.prepare(sql)?;
        let own = statement.query_map([], |row| row.get::<_, i64>(0))?;
        let sql = "SELECT number, entry, family FROM sale_line WHERE sale_id = ?1";
        let mut theirs = centre.prepare(sql)?;
        for sale in own.collect::<rusqlite::Result<Vec<_>>>()? {
            let mut lines = theirs.query([sale])?;
            while let Some(line) = lines.next()? {
                let values: (i64, String, String) = (line.get(0)?, line.get(1)?, line.get(2)?);
                let sql = "INSERT OR IGNORE INTO sale_line VALUES (?1, ?2, ?3, ?4)";
                if file.execute(sql, params![sale, values.0, values.1, values.2])? > 0 {
                    let sql = "DELETE FROM tidewater_change_sale_line
                               WHERE key_sale_id = ?1 AND key_number = ?2";
                    file.execute(sql, params![sale, values.0])?;
                }
            }
        }
        Ok(())
    };
    // Whoever meets another who writes does nothing.
    let _ = show();
}
