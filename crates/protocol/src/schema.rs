//! Publications as remotes know them: tables, columns, keys, references.

mod wire;

use std::collections::HashSet;

use prost::Message;
use sha2::{Digest, Sha256};

use crate::pack::RowShape;
use crate::value::ColumnType;

/// Which way the rows of a table travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Up and down.
    #[default]
    Both,
    /// Only from the centre to remotes.
    Download,
    /// Only from remotes to the centre.
    Upload,
}

impl Direction {
    /// Whether the centre takes changes of such a table.
    pub fn uploads(self) -> bool {
        self != Direction::Download
    }

    /// Whether remotes are sent rows of such a table.
    pub fn downloads(self) -> bool {
        self != Direction::Upload
    }
}

/// What a foreign key does to its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ForeignKeyAction {
    /// Refuse at the end of the statement.
    #[default]
    NoAction,
    /// Refuse at once.
    Restrict,
    /// Do the same to the children.
    Cascade,
    /// Set the reference to NULL.
    SetNull,
    /// Set the reference to its default.
    SetDefault,
}

impl ForeignKeyAction {
    /// Whether it changes the children.
    pub fn acts(self) -> bool {
        !matches!(
            self,
            ForeignKeyAction::NoAction | ForeignKeyAction::Restrict
        )
    }

    /// Whether children stay, as other rows than they were.
    pub fn changes_rows(self) -> bool {
        matches!(
            self,
            ForeignKeyAction::SetNull | ForeignKeyAction::SetDefault
        )
    }
}

/// A published column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, the same in the centre and on remotes.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// The default on remotes: an SQL literal, or an expression in parentheses that SQLite's
    /// built-in functions compute. It never contains anything else, and stands in DDL as it is.
    pub default: Option<String>,
}

/// A rule for the values of a row that a remote can check as well as the centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConstraint {
    /// What a remote's error says: the table, the columns, and the centre's constraint.
    pub name: String,
    /// The condition, as SQL over the table's columns and SQLite's built-in functions.
    pub condition: String,
}

/// A column whose values are numbers that each remote has a store of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityColumn {
    /// The column, as an index into [`Table::columns`]; an integer.
    pub column: usize,
    /// How many numbers a remote gets at once.
    pub block: u32,
    /// It gets more when it has fewer than this left.
    pub refill_below: u32,
}

/// A reference to a table of the same publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKey {
    /// The referring columns, as indexes into [`Table::columns`].
    pub columns: Vec<usize>,
    /// The referred table's name on remotes.
    pub parent: String,
    /// The referred columns' names.
    pub parent_columns: Vec<String>,
    /// What deleting the parent does.
    pub on_delete: ForeignKeyAction,
    /// What changing the parent's key does.
    pub on_update: ForeignKeyAction,
}

/// A published table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name on remotes: the centre's without the schema.
    pub name: String,
    /// The published columns.
    pub columns: Vec<Column>,
    /// The primary key, as indexes into `columns`, in key order.
    pub key: Vec<usize>,
    /// The partition columns, as indexes into `columns`; empty for "everyone".
    pub partition: Vec<usize>,
    /// Secondary unique constraints over published columns. Plain indexes on remotes.
    pub unique: Vec<Vec<usize>>,
    /// References to tables of the same publication.
    pub foreign_keys: Vec<ForeignKey>,
    /// Which way the rows travel.
    pub direction: Direction,
    /// What remotes check when a row is written.
    pub checks: Vec<CheckConstraint>,
    /// The column that numbers are handed out for.
    pub identity: Option<IdentityColumn>,
}

/// A publication: what a remote that subscribes to it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationSchema {
    /// Its name.
    pub name: String,
    /// Its tables, parents before children where the references allow it.
    pub tables: Vec<Table>,
    /// Whether each transaction of the application's is an upload of its own; if not, an upload
    /// has the net changes of all since the last one.
    pub transactional: bool,
}

/// Why bytes are no schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// Not the encoding of a schema.
    #[error("the schema cannot be decoded: {0}")]
    Encoding(String),
    /// Decoded, but it makes no sense.
    #[error("the schema is not consistent: {0}")]
    Inconsistent(String),
}

impl Table {
    /// What packing and unpacking rows of the table needs to know.
    pub fn shape(&self) -> RowShape {
        RowShape {
            columns: self
                .columns
                .iter()
                .map(|column| column.column_type)
                .collect(),
            key: self.key.clone(),
        }
    }

    /// The index of a column, by its name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The columns of the primary key, in key order.
    pub fn key_columns(&self) -> impl Iterator<Item = &Column> {
        self.key.iter().map(|&index| &self.columns[index])
    }
}

impl PublicationSchema {
    /// A table, by its name on remotes.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// The schema as it travels (Protocol Buffers, see `docs/protocol.md`).
    pub fn encode(&self) -> Vec<u8> {
        wire::PublicationMessage::from(self).encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are not a schema, or an index in it points nowhere, or lists in it do not
    /// fit together. Whether its names can be names in SQLite is for remotes to say.
    pub fn decode(bytes: &[u8]) -> Result<Self, SchemaError> {
        let wire = wire::PublicationMessage::decode(bytes)
            .map_err(|error| SchemaError::Encoding(error.to_string()))?;
        Self::try_from(wire)
    }

    /// A name that no table or column of a remote can have, and why. SQLite's names differ by
    /// more than upper and lower case, and some beginnings are reserved.
    pub fn unusable_name(&self) -> Option<String> {
        let is_no_name = |name: &str| name.is_empty() || name.contains('\0');
        let mut tables = HashSet::new();
        for table in &self.tables {
            let (name, lower) = (&table.name, table.name.to_ascii_lowercase());
            if is_no_name(name) {
                return Some(format!("{name:?} is no name for a table"));
            }
            if lower.starts_with("sqlite_") || lower.starts_with("tidewater_") {
                return Some(format!(
                    "the name of table {name:?} begins with a reserved prefix"
                ));
            }
            if !tables.insert(lower) {
                return Some(format!(
                    "two tables differ from {name:?} only by upper and lower case"
                ));
            }
            let mut columns = HashSet::new();
            for column in &table.columns {
                let column = &column.name;
                if is_no_name(column) {
                    return Some(format!(
                        "table {name:?}: {column:?} is no name for a column"
                    ));
                }
                if !columns.insert(column.to_ascii_lowercase()) {
                    return Some(format!(
                        "table {name:?}: two columns differ from {column:?} only by upper and \
                         lower case"
                    ));
                }
            }
        }
        None
    }

    /// SHA-256 of the encoding: two sides with the same hash agree on every detail.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.encode()).into()
    }
}

/// The number of a type on the wire; with the scale plus one for decimals.
pub fn column_type_to_wire(column_type: ColumnType) -> (u32, u32) {
    match column_type {
        ColumnType::Integer => (1, 0),
        ColumnType::Decimal { scale } => (2, scale.map_or(0, |scale| u32::from(scale) + 1)),
        ColumnType::Real => (3, 0),
        ColumnType::Boolean => (4, 0),
        ColumnType::Text => (5, 0),
        ColumnType::Bytes => (6, 0),
        ColumnType::Date => (7, 0),
        ColumnType::Time => (8, 0),
        ColumnType::Timestamp => (9, 0),
        ColumnType::TimestampTz => (10, 0),
        ColumnType::Uuid => (11, 0),
        ColumnType::Json => (12, 0),
        ColumnType::Opaque => (13, 0),
    }
}

/// The type of this number, if this version knows it.
pub fn column_type_from_wire(number: u32, scale_plus_one: u32) -> Option<ColumnType> {
    Some(match number {
        1 => ColumnType::Integer,
        2 => ColumnType::Decimal {
            scale: match scale_plus_one {
                0 => None,
                plus_one => Some(u16::try_from(plus_one - 1).ok()?),
            },
        },
        3 => ColumnType::Real,
        4 => ColumnType::Boolean,
        5 => ColumnType::Text,
        6 => ColumnType::Bytes,
        7 => ColumnType::Date,
        8 => ColumnType::Time,
        9 => ColumnType::Timestamp,
        10 => ColumnType::TimestampTz,
        11 => ColumnType::Uuid,
        12 => ColumnType::Json,
        13 => ColumnType::Opaque,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PublicationSchema {
        let column = |name: &str, column_type| Column {
            name: name.into(),
            column_type,
            nullable: false,
            default: None,
        };
        PublicationSchema {
            name: "sales".into(),
            tables: vec![Table {
                name: "Purchase \"x\"".into(),
                columns: vec![
                    column("emp_id", ColumnType::Integer),
                    column("cost", ColumnType::Decimal { scale: Some(6) }),
                ],
                key: vec![0],
                partition: vec![0],
                unique: vec![vec![1]],
                foreign_keys: vec![ForeignKey {
                    columns: vec![0],
                    parent: "employee".into(),
                    parent_columns: vec!["id".into()],
                    on_delete: ForeignKeyAction::Cascade,
                    on_update: ForeignKeyAction::NoAction,
                }],
                direction: Direction::Upload,
                checks: vec![CheckConstraint {
                    name: "Purchase.cost: positive".into(),
                    condition: "cost > 0".into(),
                }],
                identity: Some(IdentityColumn {
                    column: 0,
                    block: 1000,
                    refill_below: 200,
                }),
            }],
            transactional: false,
        }
    }

    #[test]
    fn a_schema_comes_back_and_its_hash_tells_every_change() {
        let schema = sample();
        let decoded = PublicationSchema::decode(&schema.encode()).unwrap();
        assert_eq!(decoded, schema);
        assert_eq!(decoded.hash(), schema.hash());
        let mut changed = schema.clone();
        changed.tables[0].columns[1].nullable = true;
        assert_ne!(changed.hash(), schema.hash());
    }

    #[track_caller]
    fn assert_refused(change: impl Fn(&mut Table)) {
        let mut schema = sample();
        change(&mut schema.tables[0]);
        assert!(matches!(
            PublicationSchema::decode(&schema.encode()),
            Err(SchemaError::Inconsistent(_))
        ));
    }

    #[test]
    fn indexes_that_point_nowhere_are_refused() {
        assert_refused(|table| table.partition = vec![2]);
        assert_refused(|table| table.key = vec![]);
        assert_refused(|table| table.unique = vec![vec![0, 2]]);
        assert_refused(|table| table.foreign_keys[0].columns = vec![2]);
        assert_refused(|table| {
            let identity = table.identity.as_mut();
            identity.unwrap().column = 2;
        });
    }

    #[test]
    fn numbers_are_handed_out_for_integers_only() {
        assert_refused(|table| {
            let identity = table.identity.as_mut();
            identity.unwrap().column = 1;
        });
    }

    #[test]
    fn keys_and_partitions_that_name_a_column_twice_are_refused() {
        assert_refused(|table| table.key = vec![0, 1, 0]);
        assert_refused(|table| table.partition = vec![1, 1]);
    }

    #[test]
    fn references_with_more_columns_on_one_side_are_refused() {
        assert_refused(|table| table.foreign_keys[0].parent_columns = vec![]);
        assert_refused(|table| table.foreign_keys[0].columns = vec![0, 1]);
        assert_refused(|table| {
            table.foreign_keys[0].columns = vec![];
            table.foreign_keys[0].parent_columns = vec![];
        });
        assert_refused(|table| table.unique = vec![vec![]]);
    }

    #[test]
    fn a_unique_index_or_a_reference_may_name_a_column_twice() {
        let mut schema = sample();
        let table = &mut schema.tables[0];
        table.unique = vec![vec![1, 1]];
        table.foreign_keys[0].columns = vec![0, 0];
        table.foreign_keys[0].parent_columns = vec!["id".into(), "other".into()];
        assert_eq!(PublicationSchema::decode(&schema.encode()), Ok(schema));
    }
}
