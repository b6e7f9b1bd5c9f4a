//! Comparing tables: the sums in one pass of the snapshot, what differs in a second one.

use rusqlite::Connection;
use rusqlite::types::Value as Native;

use tidewater_protocol::{ColumnType, Datum, ValueRef};

use super::read::all_rows;
use super::{Download, Event, Output, Plan};
use crate::comparing::Comparison;
use crate::error::CentreError;
use crate::sqlite::failure;

impl Download<'_, '_> {
    /// Compares a table, and sends the rows where it differs; gives their number.
    pub(super) fn compare(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        mut comparison: Comparison<'_>,
    ) -> Result<u64, CentreError> {
        let connection = self.connection;
        let types = &plan.publication.shapes[index].columns;
        all_rows(connection, plan, index, |row| {
            match with_kept(connection, types, row, |kept| comparison.add(kept))? {
                true => (self.emit)(Event::Comparing),
                false => Ok(()),
            }
        })?;
        let Some(differences) = comparison.outcome() else {
            return Ok(0);
        };
        let selection = differences.selection()?;
        let mut output = Output::new(plan, index);
        if let Some(begin) = &mut output.begin {
            // Of a table that would go whole, nobody knows what changed in it.
            let planned = &plan.tables[index];
            differences.announce(begin, planned.downloads && !planned.whole);
        }
        self.flush(&mut output)?;
        all_rows(connection, plan, index, |row| {
            if with_kept(connection, types, row, |kept| selection.has(kept))? {
                output.upsert(row)?;
            }
            self.flush_if_full(&mut output)
        })?;
        self.flush(&mut output)?;
        Ok(output.upserts)
    }
}

/// A row as a remote keeps it: a number in a column that is text there becomes text, as
/// SQLite spells it, and may be a value of the column's type then.
fn with_kept<R>(
    connection: &Connection,
    types: &[ColumnType],
    row: &[Datum<'_>],
    take: impl FnOnce(&[Datum<'_>]) -> R,
) -> Result<R, CentreError> {
    let number = |(value, column_type): (&Datum<'_>, &ColumnType)| {
        match value {
            Datum::Loose(ValueRef::Integer(integer)) => Some(Native::Integer(*integer)),
            Datum::Loose(ValueRef::Real(real)) => Some(Native::Real(*real)),
            _ => None,
        }
        .filter(|_| column_type.sqlite_type() == "TEXT")
    };
    if row.iter().zip(types).all(|pair| number(pair).is_none()) {
        return Ok(take(row));
    }
    let mut texts = Vec::with_capacity(row.len());
    for pair in row.iter().zip(types) {
        let spelled = number(pair).map(|number| {
            connection
                .prepare_cached("SELECT CAST(?1 AS TEXT)")
                .and_then(|mut statement| statement.query_row([number], |row| row.get(0)))
                .map_err(failure("spelling a number"))
        });
        let spelled: Option<String> = spelled.transpose()?;
        texts.push(spelled);
    }
    let kept = row.iter().zip(types).zip(&texts);
    let kept = kept.map(|((value, column_type), text)| match text {
        Some(text) => column_type.datum(ValueRef::Text(text)).0,
        None => *value,
    });
    Ok(take(&kept.collect::<Vec<_>>()))
}
