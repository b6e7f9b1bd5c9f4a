//! Foreign keys between tables of a publication, and the values by which rows of an upload refer
//! to each other.

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{ColumnType, Datum, ForeignKeyAction, PublicationSchema, Value};

use crate::engine::upload::column_map::ColumnMap;

/// A foreign key whose columns, on both sides, are published.
#[derive(Debug)]
pub(crate) struct PublishedForeignKey {
    /// The table that refers.
    pub(crate) child: usize,
    /// Its columns.
    pub(crate) columns: Vec<usize>,
    /// The table that is referred to.
    pub(crate) parent: usize,
    /// Its columns.
    pub(crate) parent_columns: Vec<usize>,
    /// What happens to children when their parent is deleted.
    pub(crate) on_delete: ForeignKeyAction,
    /// What happens to them when what they refer to changes.
    pub(crate) on_update: ForeignKeyAction,
    /// What values are compared as.
    types: Vec<ColumnType>,
}

impl PublishedForeignKey {
    /// Those of a publication.
    pub(crate) fn all(schema: &PublicationSchema) -> Vec<PublishedForeignKey> {
        let mut foreign_keys = Vec::new();
        for (child, table) in schema.tables.iter().enumerate() {
            for key in &table.foreign_keys {
                let mut tables = schema.tables.iter();
                let Some(parent) = tables.position(|it| it.name == key.parent) else {
                    continue;
                };
                let of_parent = &schema.tables[parent];
                let columns = key.parent_columns.iter().map(|it| of_parent.column(it));
                let Some(parent_columns) = columns.collect::<Option<Vec<usize>>>() else {
                    continue;
                };
                let types = parent_columns.iter();
                foreign_keys.push(PublishedForeignKey {
                    child,
                    columns: key.columns.clone(),
                    parent,
                    types: types.map(|&it| of_parent.columns[it].column_type).collect(),
                    parent_columns,
                    on_delete: key.on_delete,
                    on_update: key.on_update,
                });
            }
        }
        foreign_keys
    }

    /// The packed value by which an uploaded row refers; `None` if it refers to nothing.
    pub(crate) fn referring(&self, map: &ColumnMap, row: &[Datum<'_>]) -> Option<Vec<u8>> {
        pack_sent(&self.columns, &self.types, map, row)
    }

    /// The packed value by which others refer to an uploaded row.
    pub(crate) fn referred(&self, map: &ColumnMap, row: &[Datum<'_>]) -> Option<Vec<u8>> {
        pack_sent(&self.parent_columns, &self.types, map, row)
    }

    /// The packed value by which others refer to a row of these values, by column.
    pub(crate) fn referred_value(&self, row: &[(usize, Value)]) -> Option<Vec<u8>> {
        pack_values_of(&self.parent_columns, &self.types, |column| {
            let value = row.iter().find(|it| it.0 == column);
            value.map(|(_, value)| Datum::Loose(value.as_ref()))
        })
    }

    /// The packed value by which a row of these values refers to others.
    pub(crate) fn referring_value(&self, row: &[(usize, Value)]) -> Option<Vec<u8>> {
        pack_values_of(&self.columns, &self.types, |column| {
            let value = row.iter().find(|it| it.0 == column);
            value.map(|(_, value)| Datum::Loose(value.as_ref()))
        })
    }

    /// The packed value by which a row of all published columns refers.
    pub(crate) fn referring_whole(&self, row: &[Datum<'_>]) -> Option<Vec<u8>> {
        pack_values_of(&self.columns, &self.types, |column| {
            row.get(column).copied()
        })
    }
}

/// The packed values of some published columns of an uploaded row; `None` if one of them is NULL or
/// not sent.
pub(crate) fn pack_sent(
    columns: &[usize],
    types: &[ColumnType],
    map: &ColumnMap,
    row: &[Datum<'_>],
) -> Option<Vec<u8>> {
    pack_values_of(columns, types, |column| {
        row.get(map.sources[column]?).copied()
    })
}

fn pack_values_of<'a>(
    columns: &[usize],
    types: &[ColumnType],
    value: impl Fn(usize) -> Option<Datum<'a>>,
) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    for (&column, &column_type) in columns.iter().zip(types) {
        let value = value(column)?.to_value();
        let datum = column_type.datum(value.as_ref()).0;
        if datum == Datum::Null {
            return None;
        }
        pack_values(&mut packed, &[column_type], &[datum]);
    }
    Some(packed)
}
