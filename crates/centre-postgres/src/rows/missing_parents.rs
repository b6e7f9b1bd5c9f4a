//! Which rows refer to something that is not there, by one query for many: PostgreSQL tells of one
//! row only, in the language of the server.

use tidewater_protocol::Datum;

use super::sql::PostgresIncomingTable;
use super::statements::{batch_size, ordinal};
use super::{Result, UploadRows};
use crate::array::Array;
use crate::publication::PostgresTables;
use crate::rows::execute::as_parameters;
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::missing_parent_reason::is_own_parent;
use tidewater_centre::engine::upload::upload_writer::ParentReference;

impl UploadRows<'_> {
    /// See [`UploadWriter::find_rows_without_parent`](tidewater_centre::engine::upload::upload_writer::UploadWriter::find_rows_without_parent).
    pub(super) async fn select_rows_without_parent(
        &self,
        table: &PostgresIncomingTable<'_>,
        reference: &ParentReference<'_, PostgresTables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        let text = query(table, reference);
        let mut parentless = Vec::new();
        let mut rest = rows;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(batch_size(rest));
            rest = after;
            let (asked, arrays) = parameters(table, reference, some)?;
            if asked.is_empty() {
                continue;
            }
            self.savepoint("SAVEPOINT tidewater_missing_parents")
                .await?;
            let client = self.connection.client();
            // As the server itself, as the foreign key is checked. Types that cannot be compared so
            // tell nothing.
            let found = client.query(&text, &as_parameters(&arrays)).await;
            self.savepoint(
                "ROLLBACK TO tidewater_missing_parents; RELEASE tidewater_missing_parents",
            )
            .await?;
            let found = found.unwrap_or_default();
            parentless.extend(found.iter().map(|row| asked[ordinal(row, 0)]));
        }
        parentless.sort_unstable();
        Ok(parentless)
    }
}

fn query(
    table: &PostgresIncomingTable<'_>,
    reference: &ParentReference<'_, PostgresTables>,
) -> String {
    let count = reference.columns.len();
    let arrays = reference.columns.iter().enumerate();
    let arrays = arrays
        .map(|(number, &column)| Array::parameter(table.table.columns[column].kind, number + 1));
    let names: Vec<String> = (0..count).map(|number| format!("v{number}")).collect();
    let parent = reference.parent_table;
    let conditions = reference.parent_columns.iter().zip(&names);
    let conditions = conditions.map(|(&column, name)| {
        let column = &parent.columns[column];
        let value = column.input(&format!("r.{name}"));
        format!("p.{} = {value}", column.sql)
    });
    format!(
        "SELECT r.n FROM unnest({}) WITH ORDINALITY AS r({}, n) \
         WHERE NOT EXISTS (SELECT FROM {} p WHERE {})",
        arrays.collect::<Vec<_>>().join(", "),
        names.join(", "),
        parent.sql_name,
        conditions.collect::<Vec<_>>().join(" AND "),
    )
}

/// Those of the rows that refer to something, and their values.
fn parameters(
    table: &PostgresIncomingTable<'_>,
    reference: &ParentReference<'_, PostgresTables>,
    rows: &[RowRef],
) -> Result<(Vec<RowRef>, Vec<Array>)> {
    let columns = reference.columns.iter();
    let kinds = columns.map(|&it| table.table.columns[it].kind);
    let mut arrays: Vec<Array> = kinds.map(Array::new).collect();
    let mut asked = Vec::new();
    table.images(rows, |at, uploaded| {
        let Some(new) = uploaded.new else {
            return Ok(());
        };
        let mut values = reference.columns.iter().map(|&it| &new[it]);
        let refers_to_itself = reference.parent == table.index
            && is_own_parent(reference.columns, reference.parent_columns, new);
        if refers_to_itself || values.any(|it| *it == Datum::Null) {
            return Ok(());
        }
        let before: Vec<_> = arrays.iter().map(Array::position).collect();
        let values = reference.columns.iter().map(|&it| &new[it]);
        let pushed = arrays.iter_mut().zip(values);
        if pushed
            .map(|(array, value)| array.push(value))
            .all(|it| it.is_ok())
        {
            asked.push(rows[at]);
            return Ok(());
        }
        for (array, before) in arrays.iter_mut().zip(before) {
            array.truncate(before);
        }
        Ok(())
    })?;
    Ok((asked, arrays))
}
