//! The columns that a remote announces, matched with the publication's current ones.
//!
//! A remote may still have an older version of the schema. A column that it sends and
//! that is no longer published is ignored; a published column that it does not send
//! is not written. A column whose type changed cannot be reconciled.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, Datum, PublicationSchema, RowShape, Table};

use crate::error::CentreError;

/// How the columns of packed rows from a remote relate to a published table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ColumnMap {
    /// What unpacking the remote's rows needs. Its partition is empty: no operation
    /// of a remote has one.
    pub(crate) shape: RowShape,
    /// For each column of the published table: where it is in the remote's rows.
    pub(crate) sources: Vec<Option<usize>>,
}

impl ColumnMap {
    /// Finds the announced table and matches its columns; gives the table's index.
    ///
    /// # Errors
    /// [`CentreError::Peer`]: the table is not published, a type is unknown or
    /// changed, a name stands twice, or a key column is missing.
    pub(crate) fn find(
        schema: &PublicationSchema,
        begin: &TableBegin,
    ) -> Result<(usize, ColumnMap), CentreError> {
        let index = schema
            .tables
            .iter()
            .position(|table| table.name == begin.table);
        let index = index.ok_or_else(|| {
            let publication = &schema.name;
            mismatch(format!(
                "rows of the table {:?}, which the publication {publication:?} does not have",
                begin.table
            ))
        })?;
        Ok((index, ColumnMap::of(&schema.tables[index], begin)?))
    }

    /// Matches the announced columns with those of the table.
    ///
    /// # Errors
    /// See [`Self::find`].
    pub(crate) fn of(table: &Table, begin: &TableBegin) -> Result<ColumnMap, CentreError> {
        let mut shape = RowShape {
            columns: Vec::with_capacity(begin.columns.len()),
            key: Vec::with_capacity(table.key.len()),
            partition: Vec::new(),
        };
        let mut sources = vec![None; table.columns.len()];
        for (position, header) in begin.columns.iter().enumerate() {
            let describe = || format!("the column {:?}.{:?}", table.name, header.name);
            let column_type = header
                .column_type()
                .ok_or_else(|| mismatch(format!("{} in an unknown type", describe())))?;
            shape.columns.push(column_type);
            let Some(current) = table.column(&header.name) else {
                continue;
            };
            if table.columns[current].column_type != column_type {
                return Err(mismatch(format!(
                    "{} as {column_type:?}, but it is now {:?}",
                    describe(),
                    table.columns[current].column_type
                )));
            }
            if sources[current].replace(position).is_some() {
                return Err(mismatch(format!("{} twice", describe())));
            }
        }
        for &key in &table.key {
            let source = sources[key].ok_or_else(|| {
                let name = &table.columns[key].name;
                mismatch(format!(
                    "rows of {:?} without the key column {name:?}",
                    table.name
                ))
            })?;
            shape.key.push(source);
        }
        Ok(ColumnMap { shape, sources })
    }

    /// Whether the remote sends every published column.
    pub(crate) fn is_complete(&self) -> bool {
        self.sources.iter().all(Option::is_some)
    }

    /// The values of an uploaded row in the order of the published columns; `None`
    /// for those that the remote does not send (all of them for an image that the
    /// operation does not have).
    pub(crate) fn arrange<'v>(&self, uploaded: &[Datum<'v>]) -> Vec<Option<Datum<'v>>> {
        let sources = self.sources.iter();
        sources
            .map(|source| source.and_then(|position| uploaded.get(position).copied()))
            .collect()
    }
}

fn mismatch(message: String) -> CentreError {
    CentreError::Peer {
        message,
        code: Code::SchemaMismatch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::{Column, ColumnType, Direction};

    fn table(columns: &[(&str, ColumnType)]) -> Table {
        let columns = columns.iter().map(|&(name, column_type)| Column {
            name: name.into(),
            column_type,
            nullable: true,
            default: None,
        });
        Table {
            name: "t".into(),
            columns: columns.collect(),
            key: vec![0],
            partition: vec![],
            unique: vec![],
            foreign_keys: vec![],
            direction: Direction::Both,
        }
    }

    #[test]
    fn columns_are_matched_by_name_whatever_their_order() {
        let old = table(&[
            ("gone", ColumnType::Text),
            ("a", ColumnType::Text),
            ("id", ColumnType::Integer),
        ]);
        let new = table(&[
            ("id", ColumnType::Integer),
            ("a", ColumnType::Text),
            ("b", ColumnType::Real),
        ]);
        let map = ColumnMap::of(&new, &TableBegin::of(&old)).unwrap();
        assert_eq!(map.sources, [Some(2), Some(1), None]);
        assert_eq!(map.shape.key, [2]);
        assert!(!map.is_complete());
        let uploaded = [Datum::Text("x"), Datum::Text("y"), Datum::Integer(1)];
        assert_eq!(
            map.arrange(&uploaded),
            [Some(Datum::Integer(1)), Some(Datum::Text("y")), None]
        );
    }

    #[test]
    fn a_changed_type_or_a_missing_key_cannot_be_reconciled() {
        let current = table(&[("id", ColumnType::Integer), ("a", ColumnType::Text)]);
        for announced in [
            table(&[("id", ColumnType::Integer), ("a", ColumnType::Real)]),
            table(&[("a", ColumnType::Text)]),
            table(&[("id", ColumnType::Integer), ("id", ColumnType::Integer)]),
        ] {
            let error = ColumnMap::of(&current, &TableBegin::of(&announced)).unwrap_err();
            assert_eq!(error.code(), Code::SchemaMismatch);
        }
    }
}
