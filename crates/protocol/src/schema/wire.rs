//! The Protocol Buffers messages behind [`PublicationSchema`].

use std::collections::HashSet;

use super::{
    CheckConstraint as OwnCheck, Column as OwnColumn, Direction, ForeignKey as OwnForeignKey,
    ForeignKeyAction, IdentityColumn as OwnIdentity, PublicationSchema, SchemaError,
    Table as OwnTable, column_type_from_wire, column_type_to_wire,
};
use crate::pack::MAX_COLUMNS;
use crate::value::ColumnType;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PublicationMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    tables: Vec<TableMessage>,
    #[prost(bool, tag = "3")]
    transactional: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TableMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    columns: Vec<ColumnMessage>,
    #[prost(uint32, repeated, tag = "3")]
    key: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    partition: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    unique: Vec<UniqueMessage>,
    #[prost(message, repeated, tag = "6")]
    foreign_keys: Vec<ForeignKeyMessage>,
    #[prost(uint32, tag = "7")]
    direction: u32,
    #[prost(message, repeated, tag = "8")]
    checks: Vec<CheckMessage>,
    #[prost(message, optional, tag = "9")]
    identity: Option<IdentityMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CheckMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    condition: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct IdentityMessage {
    #[prost(uint32, tag = "1")]
    column: u32,
    #[prost(uint32, tag = "2")]
    block: u32,
    #[prost(uint32, tag = "3")]
    refill_below: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ColumnMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    column_type: u32,
    #[prost(uint32, tag = "3")]
    scale_plus_one: u32,
    #[prost(bool, tag = "4")]
    nullable: bool,
    #[prost(string, optional, tag = "5")]
    default: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UniqueMessage {
    #[prost(uint32, repeated, tag = "1")]
    columns: Vec<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ForeignKeyMessage {
    #[prost(uint32, repeated, tag = "1")]
    columns: Vec<u32>,
    #[prost(string, tag = "2")]
    parent: String,
    #[prost(string, repeated, tag = "3")]
    parent_columns: Vec<String>,
    #[prost(uint32, tag = "4")]
    on_delete: u32,
    #[prost(uint32, tag = "5")]
    on_update: u32,
}

fn indexes_to_wire(indexes: &[usize]) -> Vec<u32> {
    indexes.iter().map(|&index| index as u32).collect()
}

fn names_one_twice(indexes: &[usize]) -> bool {
    let mut seen = HashSet::with_capacity(indexes.len());
    !indexes.iter().all(|index| seen.insert(index))
}

const ACTIONS: [ForeignKeyAction; 5] = [
    ForeignKeyAction::NoAction,
    ForeignKeyAction::Restrict,
    ForeignKeyAction::Cascade,
    ForeignKeyAction::SetNull,
    ForeignKeyAction::SetDefault,
];

const DIRECTIONS: [Direction; 3] = [Direction::Both, Direction::Download, Direction::Upload];

fn position<T: PartialEq>(all: &[T], one: &T) -> u32 {
    all.iter().position(|each| each == one).unwrap_or(0) as u32
}

impl From<&PublicationSchema> for PublicationMessage {
    fn from(schema: &PublicationSchema) -> Self {
        PublicationMessage {
            name: schema.name.clone(),
            tables: schema.tables.iter().map(TableMessage::from).collect(),
            transactional: schema.transactional,
        }
    }
}

impl From<&OwnTable> for TableMessage {
    fn from(table: &OwnTable) -> Self {
        let columns = table.columns.iter().map(|column| {
            let (column_type, scale_plus_one) = column_type_to_wire(column.column_type);
            ColumnMessage {
                name: column.name.clone(),
                column_type,
                scale_plus_one,
                nullable: column.nullable,
                default: column.default.clone(),
            }
        });
        let foreign_keys = table
            .foreign_keys
            .iter()
            .map(|foreign_key| ForeignKeyMessage {
                columns: indexes_to_wire(&foreign_key.columns),
                parent: foreign_key.parent.clone(),
                parent_columns: foreign_key.parent_columns.clone(),
                on_delete: position(&ACTIONS, &foreign_key.on_delete),
                on_update: position(&ACTIONS, &foreign_key.on_update),
            });
        TableMessage {
            name: table.name.clone(),
            columns: columns.collect(),
            key: indexes_to_wire(&table.key),
            partition: indexes_to_wire(&table.partition),
            unique: table
                .unique
                .iter()
                .map(|columns| UniqueMessage {
                    columns: indexes_to_wire(columns),
                })
                .collect(),
            foreign_keys: foreign_keys.collect(),
            direction: position(&DIRECTIONS, &table.direction),
            checks: table
                .checks
                .iter()
                .map(|check| CheckMessage {
                    name: check.name.clone(),
                    condition: check.condition.clone(),
                })
                .collect(),
            identity: table.identity.map(|identity| IdentityMessage {
                column: identity.column as u32,
                block: identity.block,
                refill_below: identity.refill_below,
            }),
        }
    }
}

impl TryFrom<PublicationMessage> for PublicationSchema {
    type Error = SchemaError;

    fn try_from(wire: PublicationMessage) -> Result<Self, SchemaError> {
        let tables = wire.tables.into_iter().map(OwnTable::try_from);
        let tables = tables.collect::<Result<_, _>>()?;
        Ok(PublicationSchema {
            name: wire.name,
            tables,
            transactional: wire.transactional,
        })
    }
}

impl TryFrom<TableMessage> for OwnTable {
    type Error = SchemaError;

    fn try_from(wire: TableMessage) -> Result<Self, SchemaError> {
        let inconsistent =
            |what: &str| SchemaError::Inconsistent(format!("table {:?}: {what}", wire.name));
        let count = wire.columns.len();
        if count == 0 || count > MAX_COLUMNS {
            return Err(inconsistent("number of columns"));
        }
        let indexes = |indexes: &[u32]| {
            let indexes = indexes.iter().map(|&index| index as usize);
            let indexes: Vec<usize> = indexes.collect();
            if indexes.iter().any(|&index| index >= count) {
                return Err(inconsistent("a column index points nowhere"));
            }
            Ok(indexes)
        };
        let key = indexes(&wire.key)?;
        if key.is_empty() {
            return Err(inconsistent("no primary key"));
        }
        if names_one_twice(&key) {
            return Err(inconsistent("the primary key names a column twice"));
        }
        let partition = indexes(&wire.partition)?;
        if names_one_twice(&partition) {
            return Err(inconsistent("the partition names a column twice"));
        }
        // A unique constraint or a reference may well name a column twice: databases
        // allow it.
        let unique = wire.unique.iter().map(|unique| indexes(&unique.columns));
        let unique: Vec<Vec<usize>> = unique.collect::<Result<_, _>>()?;
        if unique.iter().any(Vec::is_empty) {
            return Err(inconsistent("a unique constraint without columns"));
        }
        let action = |number: u32| {
            ACTIONS
                .get(number as usize)
                .copied()
                .ok_or_else(|| inconsistent("unknown foreign-key action"))
        };
        let mut foreign_keys = Vec::with_capacity(wire.foreign_keys.len());
        for foreign_key in &wire.foreign_keys {
            let (own, parents) = (&foreign_key.columns, &foreign_key.parent_columns);
            if own.is_empty() || own.len() != parents.len() {
                return Err(inconsistent(
                    "a foreign key without a parent for each column",
                ));
            }
            foreign_keys.push(OwnForeignKey {
                columns: indexes(&foreign_key.columns)?,
                parent: foreign_key.parent.clone(),
                parent_columns: foreign_key.parent_columns.clone(),
                on_delete: action(foreign_key.on_delete)?,
                on_update: action(foreign_key.on_update)?,
            });
        }
        let direction = DIRECTIONS
            .get(wire.direction as usize)
            .copied()
            .ok_or_else(|| inconsistent("unknown direction"))?;
        let mut columns = Vec::with_capacity(count);
        for column in &wire.columns {
            columns.push(OwnColumn {
                name: column.name.clone(),
                column_type: column_type_from_wire(column.column_type, column.scale_plus_one)
                    .ok_or_else(|| inconsistent("unknown column type"))?,
                nullable: column.nullable,
                default: column.default.clone(),
            });
        }
        let identity = wire.identity.map(|identity| {
            let column = indexes(&[identity.column])?[0];
            match columns[column].column_type {
                ColumnType::Integer => Ok(OwnIdentity {
                    column,
                    block: identity.block,
                    refill_below: identity.refill_below,
                }),
                _ => Err(inconsistent("numbers for a column that holds none")),
            }
        });
        let identity = identity.transpose()?;
        let checks = wire.checks.into_iter().map(|check| OwnCheck {
            name: check.name,
            condition: check.condition,
        });
        Ok(OwnTable {
            checks: checks.collect(),
            identity,
            name: wire.name,
            columns,
            key,
            partition,
            unique,
            foreign_keys,
            direction,
        })
    }
}
