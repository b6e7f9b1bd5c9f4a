//! Remotes whose schema is an older one: which tables follow from what they hold.
//!
//! A remote keeps the rows of a table when columns come or go, and fills in what is new. So it
//! needs the changes that it has not seen, as ever, and the rows in which a new column does not
//! have what it fills in. Only a table that is another one in any other way goes whole.

use tidewater_protocol::{Column, ColumnType, Datum, PublicationSchema, Table};

use crate::engine::compile::follows;

/// What a remote fills into a column that it did not have.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Filler {
    Null,
    Integer(i64),
    Text(String),
    /// Nothing that can be compared here: every row is sent.
    Unknown,
}

/// The new columns of a table, by their index, and what a remote fills in. `None`: it goes whole.
pub(super) fn added(
    before: Option<&PublicationSchema>,
    table: &Table,
) -> Option<Vec<(usize, Filler)>> {
    let old = before?.table(&table.name)?;
    if !follows(old, table) {
        return None;
    }
    let new = table.columns.iter().enumerate();
    let new = new.filter(|(_, column)| old.column(&column.name).is_none());
    Some(
        new.map(|(index, column)| (index, Filler::for_column(column)))
            .collect(),
    )
}

impl Filler {
    fn for_column(column: &Column) -> Filler {
        let Some(default) = &column.default else {
            return match column.nullable {
                true => Filler::Null,
                false => Filler::Unknown,
            };
        };
        let quoted = default
            .strip_prefix('\'')
            .and_then(|it| it.strip_suffix('\''));
        match (column.column_type, quoted) {
            (ColumnType::Text, Some(text)) => Filler::Text(text.replace("''", "'")),
            (ColumnType::Integer | ColumnType::Boolean, None) => {
                default.parse().map_or(Filler::Unknown, Filler::Integer)
            }
            _ => Filler::Unknown,
        }
    }

    fn is(&self, value: &Datum<'_>) -> bool {
        match (self, value) {
            (Filler::Null, Datum::Null) => true,
            (Filler::Integer(filler), Datum::Integer(value)) => filler == value,
            (Filler::Text(filler), Datum::Text(value)) => filler == value,
            _ => false,
        }
    }
}

/// Whether a remote has all of a row that it holds already.
pub(super) fn is_filled_in(added: &[(usize, Filler)], row: &[Datum<'_>]) -> bool {
    added.iter().all(|(index, filler)| filler.is(&row[*index]))
}
