//! Refusing, one by one, the uploaded rows that the publication has nothing for any more.
//!
//! A table may leave the publication, or change, while remotes still have changes of it.
//! Their uploads are accepted all the same: these rows are refused under the header that
//! the remote sent, so that it finds them, and kept with their values for people. Which
//! rows these are is [`crate::engine::upload::column_map`]' affair. Changes of single columns that have left are
//! only recorded: the rest of their rows is applied.

use tidewater_protocol::pack::same;
use tidewater_protocol::{Code, Datum, Op, RowsWriter, UnpackedRow};

use crate::engine::upload::column_map::{ColumnMap, UnpublishedRows};
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::row_json;
use crate::engine::upload::{UploadRecords, UploadRefusal};
use crate::error::CentreError;
use crate::upload::{ResultTable, UploadTable};

/// The code of every such refusal.
const CODE: Code = Code::RowNotPublished;

/// Refuses every row of a table of an upload.
///
/// # Errors
/// The rows cannot be read.
pub(crate) fn refuse(
    table: &UploadTable,
    unpublished: &UnpublishedRows,
    builder: &mut ResultBuilder<'_>,
    records: &mut UploadRecords,
) -> Result<(), CentreError> {
    let reason = &unpublished.reason;
    let mut writer = RowsWriter::new(&unpublished.shape);
    table.each_row(&unpublished.shape, |row, op| {
        writer.refused(&row.key, op, CODE.number(), reason);
        builder.note_refused(unpublished.index, &row.key, op);
        let refused = refused(table, row, op, image(table, row), reason);
        records.refused.push(refused);
    })?;
    if !writer.is_empty() {
        let mut begin = table.begin.clone();
        begin.replace = false;
        begin.expected_rows = writer.rows();
        builder.add_table(ResultTable {
            begin,
            rows: writer.take(),
        });
    }
    Ok(())
}

/// Records what an upload says of columns that are not published any more. No row is refused for
/// that: the rest of it is applied. The remote writes the same down by itself, because it knows
/// which columns its new schema lacks.
///
/// # Errors
/// The rows cannot be read.
pub(crate) fn record_dropped(
    table: &UploadTable,
    map: &ColumnMap,
    records: &mut UploadRecords,
) -> Result<(), CentreError> {
    let columns = &table.begin.columns;
    let is_dropped = |index: &usize| !map.sources.contains(&Some(*index));
    let dropped: Vec<usize> = (0..columns.len()).filter(is_dropped).collect();
    if dropped.is_empty() {
        return Ok(());
    }
    let mut named = dropped.clone();
    named.splice(0..0, map.shape.key.iter().copied());
    let names: Vec<String> = dropped
        .iter()
        .map(|&index| format!("{:?}", columns[index].name))
        .collect();
    let reason = format!("not published any more: {}", names.join(", "));
    table.each_row(&map.shape, |row, op| {
        let is_changed = |&index: &usize| match op {
            Op::Insert => row.new[index] != Datum::Null,
            Op::Update => !same(&row.old[index], &row.new[index]),
            _ => false,
        };
        if !dropped.iter().any(is_changed) {
            return;
        }
        let values: Vec<Datum<'_>> = named.iter().map(|&index| row.new[index]).collect();
        let names = named.iter().map(|&index| columns[index].name.as_str());
        let image = row_json::row(names, &values);
        let dropped = refused(table, row, op, image, &reason);
        records.dropped_values.push(dropped);
    })
}

fn refused(
    table: &UploadTable,
    row: &UnpackedRow<'_>,
    op: Op,
    image: String,
    reason: &str,
) -> UploadRefusal {
    UploadRefusal {
        table: table.begin.table.clone(),
        key: row_json::key(&row.key),
        op,
        row: image,
        pre_image: (op != Op::Insert).then(|| named(table, &row.old)),
        code: CODE,
        reason: reason.to_owned(),
        parent: None,
    }
}

fn image(table: &UploadTable, row: &UnpackedRow<'_>) -> String {
    named(
        table,
        if row.new.is_empty() {
            &row.old
        } else {
            &row.new
        },
    )
}

fn named(table: &UploadTable, values: &[Datum<'_>]) -> String {
    let names = table
        .begin
        .columns
        .iter()
        .map(|column| column.name.as_str());
    row_json::row(names, values)
}
