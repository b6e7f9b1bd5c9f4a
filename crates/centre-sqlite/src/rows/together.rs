//! Rows that need each other, applied with all foreign keys checked at the end; see
//! the engine.

use std::cmp::Reverse;

use bytes::Bytes;

use tidewater_protocol::{Op, Row, RowsReader};

use super::{Result, UploadRows, ended};
use crate::deferred_violations;
use crate::publication::PublishedTable;
use crate::row::{Fate, Incoming, RowError};
use tidewater_centre::engine::upload::incoming::malformed;
use tidewater_centre::engine::upload::rows::{Ends, Part};
use tidewater_centre::error::CentreError;

/// A row: its part, and its place there.
type Place = (usize, usize);

/// Applies parts.
struct Attempt<'a, 'c, 'u> {
    rows: &'a mut UploadRows<'c>,
    parts: &'a [Part<'a, 'u, PublishedTable>],
    /// By part, the packed rows, and those that take their places.
    packed: Vec<[Vec<Bytes>; 2]>,
    written: Vec<Vec<usize>>,
}

impl UploadRows<'_> {
    /// See [`Rows::together`](tidewater_centre::engine::upload::rows::Rows::together).
    pub(super) fn apply_together(
        &mut self,
        parts: &[Part<'_, '_, PublishedTable>],
        ends: Ends,
    ) -> Result<Option<Vec<Vec<usize>>>> {
        self.savepoint("SAVEPOINT tidewater_together")?;
        self.savepoint("PRAGMA defer_foreign_keys = ON")?;
        let immediate = std::mem::replace(&mut self.immediate, false);
        let written = Attempt::new(self, parts).and_then(Attempt::run);
        self.immediate = immediate;
        if written.is_err() {
            // It may be an upload's own error, after which others go on.
            let _ = self.savepoint("PRAGMA defer_foreign_keys = OFF");
        }
        let written = written?;
        let mut pairs = parts.iter().zip(&written);
        let is_whole = pairs.all(|(part, written)| {
            let may_lose = part.op == Op::Update && part.successors.is_empty();
            may_lose || written.len() == part.rows.len()
        });
        let is_well = is_whole
            && written.iter().any(|rows| !rows.is_empty())
            && !deferred_violations(self.connection)?;
        if !is_well || ends == Ends::Undone {
            self.savepoint("ROLLBACK TO tidewater_together")?;
        }
        self.savepoint("PRAGMA defer_foreign_keys = OFF")?;
        self.savepoint("RELEASE tidewater_together")?;
        Ok(is_well.then_some(written))
    }
}

impl<'a, 'c, 'u> Attempt<'a, 'c, 'u> {
    fn new(
        rows: &'a mut UploadRows<'c>,
        parts: &'a [Part<'a, 'u, PublishedTable>],
    ) -> Result<Attempt<'a, 'c, 'u>> {
        let packed = parts.iter().map(|part| {
            let lists = [&part.rows, &part.successors];
            let [rows, successors] = lists.map(|rows| part.table.packed(rows));
            Ok([rows?, successors?])
        });
        Ok(Attempt {
            rows,
            parts,
            packed: packed.collect::<Result<_>>()?,
            written: vec![Vec::new(); parts.len()],
        })
    }

    /// First what leaves, then what takes another row's place, what frees, children first, then
    /// what takes; and what could not leave before is tried after each table. Gives, by part, those
    /// that could be applied.
    fn run(mut self) -> Result<Vec<Vec<usize>>> {
        let (mut updates, mut deletes, mut inserts) = (Vec::new(), Vec::new(), Vec::new());
        let mut successions = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let rows = (0..part.rows.len()).map(|at| (number, at));
            match part.op {
                _ if !part.successors.is_empty() => successions.extend(rows),
                Op::Update => updates.extend(rows),
                Op::Delete => deletes.push((part.table.index, rows.collect::<Vec<Place>>())),
                _ => inserts.extend(rows),
            }
        }
        deletes.sort_by_key(|(table, _)| Reverse(*table));
        self.those_that_can(&mut updates)?;
        // All of them before any: what one does by its foreign keys changes another.
        let mut able = Vec::with_capacity(successions.len());
        for place in successions {
            if self.can_succeed(place)? {
                able.push(place);
            }
        }
        self.those_that_succeed(&mut able, &mut updates)?;
        for (_, mut of_table) in deletes {
            self.those_that_can(&mut of_table)?;
            self.those_that_can(&mut updates)?;
        }
        self.those_that_succeed(&mut able, &mut updates)?;
        self.those_that_can(&mut inserts)?;
        self.those_that_can(&mut updates)?;
        Ok(self.written)
    }

    /// Applies what can be applied of some rows, which leaves the others of them.
    fn those_that_can(&mut self, places: &mut Vec<Place>) -> Result<()> {
        for (number, at) in std::mem::take(places) {
            let part = &self.parts[number];
            let (table, place) = (part.table, part.rows[at]);
            let is_ending = self.rows.ending(table, place).is_some();
            let packed = self.packed[number][0][at].clone();
            let fate = match is_ending {
                true => Ok(Fate::PassedOver),
                false => self.rows.writer(table)?.write(&unpacked(table, &packed)?),
            };
            match fate {
                Ok(Fate::Applied) => self.written[number].push(at),
                Ok(Fate::Missing) if part.op == Op::Delete => self.written[number].push(at),
                Ok(_) => places.push((number, at)),
                Err(RowError::Centre(error)) => return Err(error),
                Err(RowError::Ended(refusal)) => {
                    self.rows.note_ending(table, place, refusal);
                    return Err(ended());
                }
            }
        }
        Ok(())
    }

    /// Puts rows in the places of others, and tries after each what could not leave; leaves those
    /// that do not go.
    fn those_that_succeed(
        &mut self,
        places: &mut Vec<Place>,
        updates: &mut Vec<Place>,
    ) -> Result<()> {
        for (number, at) in std::mem::take(places) {
            let part = &self.parts[number];
            let [gone, row] = self.pair((number, at))?;
            let (gone, row) = (unpacked(part.table, &gone)?, unpacked(part.table, &row)?);
            match self.rows.writer(part.table)?.succeed(&gone, &row) {
                Ok(true) => {
                    self.written[number].push(at);
                    self.those_that_can(updates)?;
                }
                Ok(false) => places.push((number, at)),
                Err(RowError::Centre(error)) => return Err(error),
                Err(RowError::Ended(refusal)) => {
                    self.rows
                        .note_ending(part.table, part.successors[at], refusal);
                    return Err(ended());
                }
            }
        }
        Ok(())
    }

    /// Whether a row can be put in the place of another one.
    fn can_succeed(&self, (number, at): Place) -> Result<bool> {
        let part = &self.parts[number];
        let mut both = [part.rows[at], part.successors[at]].into_iter();
        if both.any(|at| self.rows.ending(part.table, at).is_some()) {
            return Ok(false);
        }
        let gone = &self.packed[number][0][at];
        let writer = self.rows.writer(part.table)?;
        writer.is_deletable(&unpacked(part.table, gone)?)
    }

    /// A row that is deleted, and the one in its place.
    fn pair(&self, (number, at): Place) -> Result<[Bytes; 2]> {
        let [rows, successors] = &self.packed[number];
        Ok([rows[at].clone(), successors[at].clone()])
    }
}

/// The one row that was packed.
fn unpacked<'b>(table: &'b Incoming<'_>, packed: &'b [u8]) -> Result<Row<'b>> {
    let mut row = Row::default();
    let read = RowsReader::new(&table.map.shape, packed).next(&mut row);
    match read {
        Ok(true) => Ok(row),
        Ok(false) => Err(malformed("a row that was there before is gone")),
        Err(error) => Err(CentreError::Internal {
            message: error.to_string(),
        }),
    }
}
