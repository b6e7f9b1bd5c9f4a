//! First downloads that break off, and are gone on with from another snapshot.
//!
//! A table that is sent whole is read in units: what one rule gives, partition by partition in the
//! order of the keys; of many partitions some together, in no order. Between units, and in those
//! that have an order also between rows, a mark says how far the download is. Who has it up to a
//! mark holds what was read, as of the snapshot of its first part: the changes since then in the
//! tables up to the marked one, and what comes behind the mark, complete it in another snapshot.

use prost::Message;

use tidewater_protocol::{Code, Datum, Op, Row, RowShape, RowsReader, RowsWriter};

use super::Part;
use crate::error::CentreError;

/// So many units a rule has at most: each is a query of its own.
const UNITS: usize = 64;

/// How far a download is: what its marks say.
#[derive(Clone, Eq, Message, PartialEq)]
pub(super) struct Position {
    /// Index of the table in its publication: those before it are complete.
    #[prost(uint32, tag = "1")]
    table: u32,
    /// Of the table's rules: the same.
    #[prost(uint32, tag = "2")]
    rule: u32,
    /// Of the rule's units: the same.
    #[prost(uint32, tag = "3")]
    unit: u32,
    /// Of the unit, the rows up to this key, packed as a request: the same. Empty: none.
    #[prost(bytes = "vec", tag = "4")]
    key: Vec<u8>,
    /// How many rows of the table have come.
    #[prost(uint64, tag = "5")]
    pub(super) rows: u64,
}

impl Position {
    /// The beginning of a unit.
    pub(super) fn of(table: usize, rule: usize, unit: usize) -> Position {
        Position {
            table: table as u32,
            rule: rule as u32,
            unit: unit as u32,
            key: Vec::new(),
            rows: 0,
        }
    }

    /// Behind a row of the unit.
    pub(super) fn behind(&self, shape: &RowShape, row: &[Datum<'_>]) -> Position {
        let key: Vec<Datum<'_>> = shape.key.iter().map(|&column| row[column]).collect();
        let mut writer = RowsWriter::new(shape);
        writer.key(Op::Request, &key);
        Position {
            key: writer.take(),
            ..self.clone()
        }
    }

    /// The index of the table.
    pub(super) fn table(&self) -> usize {
        self.table as usize
    }

    /// The numbers of the rule and of the unit.
    pub(super) fn unit(&self) -> (usize, usize) {
        (self.rule as usize, self.unit as usize)
    }

    /// Whether something of the table has come.
    pub(super) fn is_inside(&self) -> bool {
        self.unit() != (0, 0) || !self.key.is_empty()
    }

    /// The key of the last row of the unit that has come.
    ///
    /// # Errors
    /// It is no key of the table.
    pub(super) fn key<'s>(
        &'s self,
        shape: &'s RowShape,
    ) -> Result<Option<Vec<Datum<'s>>>, CentreError> {
        if self.key.is_empty() {
            return Ok(None);
        }
        let mut reader = RowsReader::new(shape, &self.key);
        let mut row = Row::default();
        match reader.next(&mut row) {
            Ok(true) if row.op == Some(Op::Request) => Ok(Some(row.key)),
            _ => Err(CentreError::Peer {
                message: "a mark of a download with a key that is none".into(),
                code: Code::MalformedMessage,
            }),
        }
    }
}

/// Some partitions that are read together, and whether that is in the order of the keys.
pub(super) fn units<'p>(whole: &Part<'p>, has_partitions: bool) -> Vec<(Part<'p>, bool)> {
    if !has_partitions {
        return vec![(whole.clone(), true)];
    }
    let partitions = &whole.partitions;
    let together = partitions.len().div_ceil(UNITS).max(1);
    let units = partitions.chunks(together).map(|some| {
        let part = Part {
            partitions: some.to_vec(),
            ..whole.clone()
        };
        (part, together == 1)
    });
    units.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_partitions_are_read_some_together() {
        let names: Vec<[u8; 2]> = (0..1_000_u16).map(u16::to_be_bytes).collect();
        for (count, expected, in_order) in
            [(0, 0, true), (1, 1, true), (64, 64, true), (65, 33, false)]
        {
            let whole = Part {
                rule: 0,
                partitions: names[..count].iter().map(|it| &it[..]).collect(),
                bounds: Vec::new(),
                leaves: false,
                order: None,
            };
            let units = units(&whole, true);
            assert_eq!(units.len(), expected);
            assert!(units.iter().all(|it| it.1 == in_order));
            let all: Vec<&[u8]> = units
                .iter()
                .flat_map(|it| it.0.partitions.clone())
                .collect();
            assert_eq!(all, whole.partitions);
        }
    }
}
