//! The columns that a remote announces, matched with the publication's current ones.
//!
//! A remote may still have an older version of the schema. A column that it sends and
//! that is no longer published is ignored; a published column that it does not send
//! is not written. Rows with a column whose type changed are refused, one by one: the
//! remote gets the new schema in the same sync and sends them again under it. Rows of a
//! table that is not published any more, or that are told apart by another key, are passed
//! over: the remote itself keeps what the user wrote when it takes the new schema.

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
    /// Why every one of the rows has to be refused.
    pub(crate) obstacle: Option<String>,
}

impl ColumnMap {
    /// Finds the announced table and matches its columns; gives the table's index. `None`
    /// if the publication has no such table, or none with this key.
    ///
    /// # Errors
    /// [`CentreError::Peer`]: a type is unknown, or a name stands twice.
    pub(crate) fn find(
        schema: &PublicationSchema,
        begin: &TableBegin,
    ) -> Result<Option<(usize, ColumnMap)>, CentreError> {
        let mut tables = schema.tables.iter();
        let Some(index) = tables.position(|table| table.name == begin.table) else {
            return Ok(None);
        };
        let map = ColumnMap::of(&schema.tables[index], begin)?;
        Ok(map.map(|map| (index, map)))
    }

    /// Matches the announced columns with those of the table.
    ///
    /// # Errors
    /// See [`Self::find`].
    pub(crate) fn of(table: &Table, begin: &TableBegin) -> Result<Option<ColumnMap>, CentreError> {
        let mut shape = RowShape {
            columns: Vec::with_capacity(begin.columns.len()),
            key: Vec::with_capacity(table.key.len()),
            partition: Vec::new(),
        };
        let mut sources = vec![None; table.columns.len()];
        let mut obstacle = None;
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
                if table.key.contains(&current) {
                    return Ok(None);
                }
                obstacle = Some(format!(
                    "the column {} has another type in the centre now",
                    header.name
                ));
            }
            if sources[current].replace(position).is_some() {
                return Err(mismatch(format!("{} twice", describe())));
            }
        }
        for &key in &table.key {
            let Some(source) = sources[key] else {
                return Ok(None);
            };
            shape.key.push(source);
        }
        let mut partition = table.partition.iter();
        if let Some(&missing) = partition.find(|&&column| sources[column].is_none()) {
            obstacle = Some(format!(
                "the partition column {} is not among the columns of this remote yet",
                table.columns[missing].name
            ));
        }
        Ok(Some(ColumnMap {
            shape,
            sources,
            obstacle,
        }))
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
        let map = ColumnMap::of(&new, &TableBegin::of(&old)).unwrap().unwrap();
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
    fn rows_with_a_changed_type_are_refused_those_with_another_key_passed_over() {
        let current = table(&[("id", ColumnType::Integer), ("a", ColumnType::Text)]);
        let of = |columns| ColumnMap::of(&current, &TableBegin::of(&table(columns)));
        let changed = of(&[("id", ColumnType::Integer), ("a", ColumnType::Real)]);
        assert!(changed.unwrap().unwrap().obstacle.is_some());
        assert_eq!(of(&[("a", ColumnType::Text)]).unwrap(), None);
        assert_eq!(of(&[("id", ColumnType::Text)]).unwrap(), None);
        let twice = of(&[("id", ColumnType::Integer), ("id", ColumnType::Integer)]);
        assert_eq!(twice.unwrap_err().code(), Code::SchemaMismatch);
    }
}
