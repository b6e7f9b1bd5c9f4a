//! Words the reason when the database says that a parent is missing, in the names of the device.
//!
//! Databases name a constraint, or not even that. Which value it is, and of which table, is found
//! here, by looking for the parents when all rows have been tried. The reason says of a parent that it
//! is not there, and no more: the value is the device's own, and of rows of other scopes nothing is
//! said that the refusal itself does not say.

use std::collections::HashMap;

use tidewater_protocol::{Code, Datum, Op, Table};

use super::foreign_keys::PublishedForeignKey;
use super::incoming_rows::{IncomingTable, RowRef};
use super::row_batch::ParentReference;
use super::upload_driver::UploadDriver;
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::upload_run::UploadRun;
use crate::error::CentreError;

/// The most characters of a value that a reason has.
const TOLD_CHARACTERS: usize = 60;

impl<R: UploadDriver> UploadRun<'_, R> {
    /// Says of rows that failed at a foreign key which parents are missing, where that is known.
    pub(super) async fn name_missing(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        failed: &mut [FailedRow],
    ) -> Result<(), CentreError> {
        // What a script writes may refer to anything.
        if op == Op::Delete || self.is_scripted(table.index, op) {
            return Ok(());
        }
        let refused = failed
            .iter()
            .filter(|it| it.refusal.code == Code::RowForeignKey);
        let mut refused: Vec<RowRef> = refused.map(|it| it.at).collect();
        refused.sort_unstable();
        if refused.is_empty() {
            return Ok(());
        }
        let mut told: HashMap<RowRef, Vec<String>> = HashMap::new();
        let tables = &self.publication.schema.tables;
        for foreign_key in self
            .key_cascades
            .foreign_keys
            .iter()
            .filter(|it| it.child == table.index)
        {
            let reference = ParentReference {
                columns: &foreign_key.columns,
                parent: foreign_key.parent,
                parent_table: &self.publication.tables[foreign_key.parent],
                parent_columns: &foreign_key.parent_columns,
            };
            let missing = self
                .rows
                .find_rows_without_parent(table, &reference, &refused)
                .await?;
            table.images(&missing, |at, uploaded| {
                if let Some(new) = uploaded.new {
                    let reason = describe(
                        foreign_key,
                        (&tables[foreign_key.child], &tables[foreign_key.parent]),
                        new,
                    );
                    told.entry(missing[at]).or_default().push(reason);
                }
                Ok(())
            })?;
        }
        for it in failed {
            if let Some(reasons) = told.remove(&it.at) {
                it.refusal.reason = reasons.join("; ");
            }
        }
        Ok(())
    }
}

/// Whether a row refers to itself.
pub fn is_own_parent(reference: &[usize], parent_columns: &[usize], row: &[Datum<'_>]) -> bool {
    let mut pairs = reference.iter().zip(parent_columns);
    pairs.all(|(&own, &parent)| tidewater_protocol::pack::same(&row[own], &row[parent]))
}

/// The row of invoice with invoice_id = 99 is not there.
fn describe(
    foreign_key: &PublishedForeignKey,
    (child, parent): (&Table, &Table),
    row: &[Datum<'_>],
) -> String {
    let values = foreign_key.columns.iter().zip(&foreign_key.parent_columns);
    let values = values
        .map(|(&own, &theirs)| format!("{} = {}", parent.columns[theirs].name, told(&row[own])));
    let own = foreign_key.columns.iter();
    let own = own.map(|&it| format!("{}.{}", child.name, child.columns[it].name));
    let own: Vec<String> = own.collect();
    let refer = match own.len() {
        1 => "refers",
        _ => "refer",
    };
    format!(
        "the row of {} with {} is not there; {} {refer} to it",
        parent.name,
        values.collect::<Vec<_>>().join(" and "),
        own.join(" and "),
    )
}

fn told(value: &Datum<'_>) -> String {
    let mut text = match value {
        Datum::Text(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    if let Some((end, _)) = text.char_indices().nth(TOLD_CHARACTERS) {
        text.truncate(end);
        text.push('…');
    }
    text
}
