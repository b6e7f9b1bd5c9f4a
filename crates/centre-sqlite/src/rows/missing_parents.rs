//! Which rows refer to something that is not there: SQLite only says that some foreign key is
//! violated.

use rusqlite::params_from_iter;

use super::UploadRows;
use crate::publication::SqliteTables;
use crate::row::SqliteIncomingTable;
use crate::{failure, quote};
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::missing_parent_reason::is_own_parent;
use tidewater_centre::engine::upload::upload_writer::ParentReference;
use tidewater_centre::error::CentreError;
use tidewater_protocol::UnpackedRow;

impl UploadRows<'_> {
    /// See [`UploadWriter::find_rows_without_parent`](tidewater_centre::engine::upload::upload_writer::UploadWriter::find_rows_without_parent).
    pub(super) fn select_rows_without_parent(
        &self,
        table: &SqliteIncomingTable<'_>,
        reference: &ParentReference<'_, SqliteTables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>, CentreError> {
        let looking = failure("looking for what rows refer to");
        let writer = self.writer(table)?;
        let parent = writer.schema_of(reference.parent);
        let conditions = reference.parent_columns.iter().enumerate();
        let conditions = conditions.map(|(number, &column)| {
            format!("{} = ?{}", quote(&parent.columns[column].name), number + 1)
        });
        let sql = format!(
            "SELECT 1 FROM {} WHERE {}",
            reference.parent_table.sql_name,
            conditions.collect::<Vec<_>>().join(" AND ")
        );
        let mut statement = self.connection.prepare_cached(&sql).map_err(looking)?;
        let mut parentless = Vec::new();
        table.rows(rows, |at, row: &UnpackedRow<'_>| {
            let mut buffer = Vec::new();
            let new = table.arranged(&row.new, &mut buffer);
            let refers_to_itself = reference.parent == table.index
                && is_own_parent(reference.columns, reference.parent_columns, new);
            let Some(values) = writer.referring(reference.columns, &row.new) else {
                return Ok(());
            };
            if !refers_to_itself
                && !statement
                    .exists(params_from_iter(values))
                    .map_err(looking)?
            {
                parentless.push(rows[at]);
            }
            Ok(())
        })?;
        Ok(parentless)
    }
}
