//! The columns that a remote announces, matched with the publication's current ones.
//!
//! A remote may still have an older version of the schema. A column that it sends and
//! that is no longer published is not written; the values that it has changed there are kept for
//! people (by `unpublished_rows`). A published column that it does not send is not written
//! either. Rows with a column whose type changed, and rows of a table that is
//! gone, are refused; but never does one of them keep the rest of an upload out.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, Datum, PublicationSchema, RowShape, Table};

use crate::error::CentreError;

/// What the publication has for the rows of a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncedColumns {
    /// The table with this index.
    Published(usize, ColumnMap),
    /// Nothing that they could be written to.
    Unpublished(UnpublishedRows),
}

/// Rows that were changed under an older version of the publication and do not fit the
/// current one: they are refused one by one, whatever they say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishedRows {
    /// The table's index, if it is still published under the same key.
    pub index: Option<usize>,
    /// How the rows are packed, as the remote says.
    pub shape: RowShape,
    /// Why they are refused.
    pub reason: String,
}

impl UnpublishedRows {
    fn announce(
        begin: &TableBegin,
        index: Option<usize>,
        reason: String,
    ) -> Result<AnnouncedColumns, CentreError> {
        let shape = begin.shape().ok_or_else(|| {
            mismatch(format!(
                "rows of the table {:?} under a header without a key: {reason}",
                begin.table
            ))
        })?;
        Ok(AnnouncedColumns::Unpublished(UnpublishedRows {
            index,
            shape,
            reason,
        }))
    }
}

/// How the columns of packed rows from a remote relate to a published table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnMap {
    /// What unpacking the remote's rows needs. Its partition is empty: no operation
    /// of a remote has one.
    pub shape: RowShape,
    /// For each column of the published table: where it is in the remote's rows.
    pub sources: Vec<Option<usize>>,
}

impl ColumnMap {
    /// Finds the announced table and matches its columns.
    ///
    /// # Errors
    /// [`CentreError::Peer`]: the header makes no sense, whatever is published.
    pub fn find(
        schema: &PublicationSchema,
        begin: &TableBegin,
    ) -> Result<AnnouncedColumns, CentreError> {
        let index = schema
            .tables
            .iter()
            .position(|table| table.name == begin.table);
        let unpublished = |index, reason| UnpublishedRows::announce(begin, index, reason);
        let Some(index) = index else {
            let reason = format!("the table {:?} is not published any more", begin.table);
            return unpublished(None, reason);
        };
        let table = &schema.tables[index];
        if !begin.key.is_empty() && !begin.has_key_of(table) {
            let reason = format!("the table {:?} has another key now", begin.table);
            return unpublished(None, reason);
        }
        match ColumnMap::new(table, begin)? {
            Ok(map) => Ok(AnnouncedColumns::Published(index, map)),
            Err(reason) => unpublished(Some(index), reason),
        }
    }

    /// Matches the announced columns with those of the table; or tells why rows with
    /// these columns cannot be written to it any more.
    fn new(table: &Table, begin: &TableBegin) -> Result<Result<ColumnMap, String>, CentreError> {
        let mut shape = RowShape {
            columns: Vec::with_capacity(begin.columns.len()),
            key: Vec::with_capacity(table.key.len()),
        };
        let mut sources = vec![None; table.columns.len()];
        let mut changed = None;
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
                changed.get_or_insert_with(|| {
                    format!("the column {:?} has another type now", header.name)
                });
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
        let mut partition = table.partition.iter();
        if let Some(&missing) = partition.find(|&&column| sources[column].is_none()) {
            let name = &table.columns[missing].name;
            changed.get_or_insert_with(|| {
                format!("the column {name:?} tells who holds the row now, and did not come with it")
            });
        }
        Ok(match changed {
            Some(reason) => Err(reason),
            None => Ok(ColumnMap { shape, sources }),
        })
    }

    /// Whether the remote sends columns that are not published any more.
    pub fn has_dropped(&self) -> bool {
        self.sources.iter().flatten().count() < self.shape.columns.len()
    }

    /// Whether the remote sends every published column.
    pub fn is_complete(&self) -> bool {
        self.sources.iter().all(Option::is_some)
    }

    /// The values of an uploaded row in the order of the published columns; `None`
    /// for those that the remote does not send (all of them for an image that the
    /// operation does not have).
    pub fn arrange<'v>(&self, uploaded: &[Datum<'v>]) -> Vec<Option<Datum<'v>>> {
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
            checks: Vec::new(),
            identity: None,
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
        let map = ColumnMap::new(&new, &TableBegin::for_table(&old))
            .unwrap()
            .unwrap();
        assert_eq!(map.sources, [Some(2), Some(1), None]);
        assert_eq!(map.shape.key, [2]);
        assert!(!map.is_complete());
        let uploaded = [Datum::Text("x"), Datum::Text("y"), Datum::Integer(1)];
        assert_eq!(
            map.arrange(&uploaded),
            [Some(Datum::Integer(1)), Some(Datum::Text("y")), None]
        );
    }

    fn reason(current: Vec<Table>, begin: &TableBegin) -> (Option<usize>, String) {
        let schema = PublicationSchema {
            name: "p".into(),
            tables: current,
            transactional: false,
        };
        match ColumnMap::find(&schema, begin).unwrap() {
            AnnouncedColumns::Unpublished(unpublished) => (unpublished.index, unpublished.reason),
            published => panic!("{published:?}"),
        }
    }

    #[test]
    fn what_does_not_fit_any_more_is_told_by_name() {
        let current = table(&[("id", ColumnType::Integer), ("a", ColumnType::Text)]);
        let begin = TableBegin::for_table(&current);
        let with = |columns: &[(&str, ColumnType)]| vec![table(columns)];
        assert_eq!(
            reason(Vec::new(), &begin),
            (None, "the table \"t\" is not published any more".into())
        );
        assert_eq!(
            reason(with(&[("id", ColumnType::Text)]), &begin),
            (None, "the table \"t\" has another key now".into())
        );
        assert_eq!(
            reason(with(&[("a", ColumnType::Text)]), &begin),
            (None, "the table \"t\" has another key now".into())
        );
        assert_eq!(
            reason(
                with(&[("id", ColumnType::Integer), ("a", ColumnType::Real)]),
                &begin
            ),
            (Some(0), "the column \"a\" has another type now".into())
        );
        let mut partitioned = with(&[("id", ColumnType::Integer), ("r", ColumnType::Text)]);
        partitioned[0].partition = vec![1];
        assert_eq!(reason(partitioned, &begin).0, Some(0));
    }

    #[test]
    fn a_header_that_makes_no_sense_is_an_error() {
        let current = table(&[("id", ColumnType::Integer), ("a", ColumnType::Text)]);
        let schema = PublicationSchema {
            name: "p".into(),
            tables: vec![current],
            transactional: false,
        };
        let mut keyless = TableBegin::for_table(&table(&[("a", ColumnType::Text)]));
        keyless.key.clear();
        let mut unknown = keyless.clone();
        unknown.table = "gone".into();
        let twice = table(&[("id", ColumnType::Integer), ("id", ColumnType::Integer)]);
        for begin in [keyless, unknown, TableBegin::for_table(&twice)] {
            let error = ColumnMap::find(&schema, &begin).unwrap_err();
            assert_eq!(error.code(), Code::SchemaMismatch);
        }
    }
}
