//! Downloads that break off, and are gone on with from another snapshot.
//!
//! A table that is sent whole, partitions of a table that were gained, and what may be many changes are
//! read in units: what one rule gives, partition by partition in the order of the keys; of many partitions some together, in
//! no order. Between tables and units, and in those that have an order also between rows, a mark says
//! how far the download is. Who has it up to a mark holds, together with what he had before, what was
//! read, as of the snapshot of its first part. Two checkpoints tell the rest in another snapshot:
//!
//! - In the tables up to the marked one, the changes since the first part's.
//! - In the others, what a download brings that begins from the remote's own; of the marked table,
//!   if it is marked inside, the units behind the mark.

use prost::Message;

use tidewater_protocol::{Code, Datum, Op, RowShape, RowsReader, RowsWriter, UnpackedRow};

use super::{KeyOrder, RuleRows};
use crate::error::CentreError;

/// So many units a rule has at most: each is a query of its own.
const UNITS: usize = 64;

/// How far a download is: what its marks say.
#[derive(Clone, Eq, Message, PartialEq)]
pub(super) struct ReadPosition {
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
    /// The units are of partitions that were gained; all else that the table brings has come.
    #[prost(bool, tag = "6")]
    pub(super) gained: bool,
    /// The units are of changes: what left has come, and what was gained comes behind them.
    #[prost(bool, tag = "7")]
    pub(super) changes: bool,
}

/// What a remote has of a download that broke.
pub(super) struct ResumedPart {
    /// Up to where.
    pub(super) position: ReadPosition,
    /// The number, in the snapshot, of what tells the changes since.
    pub(super) number: usize,
    /// The index of the same in its job.
    pub(super) index: usize,
    /// Whether the change logs have something new since.
    pub(super) has_changes: bool,
}

impl ResumedPart {
    /// Whether the remote has something of a table.
    pub(super) fn has(&self, table: usize) -> bool {
        match self.position.is_inside() {
            true => table <= self.position.table(),
            false => table < self.position.table(),
        }
    }
}

/// A unit of a table that is still to be read.
pub(super) struct UnitLeft<'p> {
    /// With its order, if it has one.
    pub(super) part: RuleRows<'p>,
    /// Where it begins.
    pub(super) position: ReadPosition,
    /// Some of it has come.
    pub(super) goes_on: bool,
}

impl ReadPosition {
    /// The beginning of a table.
    pub(super) fn before(table: usize) -> ReadPosition {
        ReadPosition {
            table: table as u32,
            ..ReadPosition::default()
        }
    }

    /// Before the changes of a table: what left has come.
    pub(super) fn before_changes(table: usize) -> ReadPosition {
        ReadPosition {
            changes: true,
            ..ReadPosition::before(table)
        }
    }

    /// Before the partitions of a table that were gained: all else of it has come.
    pub(super) fn before_gained(table: usize) -> ReadPosition {
        ReadPosition {
            gained: true,
            ..ReadPosition::before(table)
        }
    }

    /// The units of a rule that are left from this position on.
    pub(super) fn units_left<'p>(
        &'p self,
        whole: &RuleRows<'p>,
        has_partitions: bool,
        shape: &'p RowShape,
    ) -> Result<Vec<UnitLeft<'p>>, CentreError> {
        let mut left = Vec::new();
        for (number, (mut part, is_ordered)) in units(whole, has_partitions).into_iter().enumerate()
        {
            let unit = (whole.rule, number);
            if unit < self.unit() {
                continue;
            }
            let after = match unit == self.unit() {
                true => self.key(shape)?,
                false => None,
            };
            let goes_on = after.is_some();
            part.order = is_ordered.then(|| KeyOrder {
                after: after.unwrap_or_default(),
            });
            left.push(UnitLeft {
                part,
                position: self.at(whole.rule, number),
                goes_on,
            });
        }
        Ok(left)
    }

    /// The beginning of a unit of the same table.
    pub(super) fn at(&self, rule: usize, unit: usize) -> ReadPosition {
        ReadPosition {
            rule: rule as u32,
            unit: unit as u32,
            key: Vec::new(),
            ..self.clone()
        }
    }

    /// Behind a row of the unit.
    pub(super) fn behind(&self, shape: &RowShape, row: &[Datum<'_>]) -> ReadPosition {
        let key: Vec<Datum<'_>> = shape.key.iter().map(|&column| row[column]).collect();
        self.behind_key(shape, &key)
    }

    /// Behind the row of the unit that has this key.
    pub(super) fn behind_key(&self, shape: &RowShape, key: &[Datum<'_>]) -> ReadPosition {
        let mut writer = RowsWriter::new(shape);
        writer.key(Op::Request, key);
        ReadPosition {
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

    /// Whether the units are of all rows.
    pub(super) fn is_of_whole(&self) -> bool {
        !self.gained && !self.changes
    }

    /// Whether something of the table has come.
    pub(super) fn is_inside(&self) -> bool {
        self.gained || self.changes || self.unit() != (0, 0) || !self.key.is_empty()
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
        let mut row = UnpackedRow::default();
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
fn units<'p>(whole: &RuleRows<'p>, has_partitions: bool) -> Vec<(RuleRows<'p>, bool)> {
    if !has_partitions {
        return vec![(whole.clone(), true)];
    }
    let partitions = &whole.partitions;
    let together = partitions.len().div_ceil(UNITS).max(1);
    let units = partitions.chunks(together).map(|some| {
        let part = RuleRows {
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
            let whole = RuleRows {
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
