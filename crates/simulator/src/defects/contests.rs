//! Defects in what becomes of conflicts, of what operators settle, and of what handlers say.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use rusqlite::Connection;

use tidewater_centre::upload::ResultTable;
use tidewater_centre::{
    RefusedChoice, RefusedRowAction, RowVerdict, SyncUpload, TableVerdicts, UploadResult,
};
use tidewater_protocol::{Datum, Op, RemoteId, RowsReader, RowsWriter, UnpackedRow};

use super::list::{Defect, current, is_on};
use super::uploads::each_row;
use crate::application;
use crate::besides::FIELDS;

thread_local! {
    /// By how much the last upload of each remote changes the sums of tallies.
    static DIFFERENCES: RefCell<HashMap<RemoteId, Vec<(i64, i64)>>> = RefCell::default();
}

/// A world begins.
pub(super) fn forget_all() {
    DIFFERENCES.with_borrow_mut(HashMap::clear);
}

/// The key under which a handler hears of a row; so many it has heard of before.
pub(crate) fn key_as_heard(key: &str, heard: usize) -> String {
    match is_on(Defect::HandlerAskedAnew) {
        true => format!("{key}/{heard}"),
        false => key.to_owned(),
    }
}

/// Takes what handlers have said of an upload otherwise.
pub(super) fn misread(upload: &mut SyncUpload) {
    for verdicts in upload.verdicts.values_mut() {
        match current() {
            Some(Defect::HandledRowWritten) => {
                verdicts.retain(|_, it| !matches!(it, RowVerdict::Handled));
            }
            Some(Defect::HandlerChangeForgotten) => {
                verdicts.retain(|_, it| !matches!(it, RowVerdict::Change(_)));
            }
            Some(Defect::VerdictOfAnotherRow) => {
                let others = std::mem::take(verdicts).into_iter();
                *verdicts = others
                    .map(|(row, it)| (row ^ 1, it))
                    .collect::<TableVerdicts>();
            }
            _ => {}
        }
    }
}

/// Notes by how much a remote's upload changes the sums of tallies.
pub(super) fn note_differences(upload: &SyncUpload) {
    if !is_on(Defect::DifferenceAddedTwice) {
        return;
    }
    let mut all = Vec::new();
    for table in upload.tables.iter().filter(|it| it.begin.table == "tally") {
        each_row(table, |row| {
            let integer = |of: &[Datum<'_>], at: usize| match of.get(at) {
                Some(Datum::Integer(value)) => *value,
                _ => 0,
            };
            all.push((
                integer(&row.key, 0),
                integer(&row.new, 1) - integer(&row.old, 1),
            ));
        });
    }
    DIFFERENCES.with_borrow_mut(|last| last.insert(upload.context.remote_id, all));
}

/// A remote asks what became of its last upload: adds its differences once more.
pub(super) fn add_again(centre: &Path, remote_id: RemoteId) {
    let last = DIFFERENCES.with_borrow_mut(|last| last.remove(&remote_id));
    let Ok(centre) = application::open(centre) else {
        return;
    };
    for difference in last.into_iter().flatten() {
        let sql = "UPDATE tally SET amount = amount + ?2 WHERE tally_id = ?1";
        // Where somebody else writes, it is as it should be.
        let _ = centre.execute(sql, difference);
    }
}

/// The number of the last conflict.
pub(super) fn last_conflict(centre: &Connection) -> i64 {
    let sql = "SELECT coalesce(max(id), 0) FROM tidewater_centre_conflict";
    centre.query_row(sql, [], |row| row.get(0)).unwrap_or(0)
}

/// Writes what has come to wait for the operator since this conflict.
pub(super) fn write_parked(centre: &Connection, since: i64) {
    let fields = FIELDS.map(|it| format!("{it} = c.uploaded ->> '{it}'"));
    let sql = format!(
        "UPDATE form SET {} FROM tidewater_centre_conflict AS c
         WHERE c.table_name = 'form' AND c.outcome = 'parked' AND c.id > ?1
         AND c.row_key = json_array(form_id)",
        fields.join(", ")
    );
    let _ = centre.execute(&sql, [since]);
}

/// Tells what is merged as what was made of the own change alone.
pub(super) fn tell_as_made(result: &mut UploadResult) {
    let tables = result.tables.iter_mut();
    for ResultTable { begin, rows } in tables.filter(|it| it.begin.table == "tally") {
        let Some(shape) = begin.shape() else {
            continue;
        };
        let mut writer = RowsWriter::new(&shape);
        let mut reader = RowsReader::new(&shape, rows);
        let mut row = UnpackedRow::default();
        while let Ok(true) = reader.next(&mut row) {
            match row.op {
                Some(Op::Merged) => {
                    result.conflicts -= 1;
                    writer.row(Op::Made, &row.new);
                }
                // A tally is neither refused nor gone.
                Some(op) => writer.row(op, &row.new),
                None => {}
            }
        }
        *rows = writer.take();
    }
}

/// Gives up what is to be replayed; whether it is to be noted as replayed.
pub(super) fn give_up(choice: &mut RefusedChoice) -> bool {
    let is_replay = choice.action == RefusedRowAction::Replay;
    if !is_on(Defect::ReplayNotWritten) || !is_replay {
        return false;
    }
    choice.action = RefusedRowAction::Discard(String::new());
    true
}

/// Notes it as replayed.
pub(super) fn note_replayed(centre: &Path, refused: i64) {
    let sql = "UPDATE tidewater_centre_settled_refusal SET settled_as = 'replayed' WHERE id = ?1";
    if let Ok(centre) = application::open(centre) {
        let _ = centre.execute(sql, [refused]);
    }
}
