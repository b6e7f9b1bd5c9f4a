//! Rows of an upload whose fate does not depend on what the database says to them.
//!
//! When a row is refused, or loses, a row of the same upload that refers to what it would have
//! been must not be taken either: its key may be that of somebody else's row, and the child would
//! attach itself to that. When the delete of a parent loses, so do the deletes of its children that
//! went with it on the remote (`ON DELETE CASCADE`): the family comes back as a whole. When a parent
//! does not get another key, its children do not follow it. And a row that turns out to be in
//! nobody's scope but others' is refused.
//!
//! Which rows these are shows when all of an upload has been applied; then it is undone and
//! applied anew without them.

use std::collections::HashSet;
use std::sync::Arc;

use tidewater_protocol::pack::{pack_values, same};
use tidewater_protocol::{
    Code, ColumnType, Datum, ForeignKeyAction, Op, PublicationSchema, Row, Table,
};

use super::rows::Refusal;
use super::scoped::Barred;
use super::verdicts::Fates;
use crate::engine::exact::Barrier;
use crate::engine::upload::columns::ColumnMap;
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::ties::Tie;
use crate::error::CentreError;
use crate::upload::UploadTable;

/// A row, by the index of the table in the publication and the packed key.
pub(crate) type RowKey = (usize, Vec<u8>);

/// Rows.
pub(crate) type RowKeys = HashSet<RowKey>;

/// The reason of refusals of rows that refer to refused ones.
const REASON: &str = "the row that it refers to was refused";

/// So often is an upload applied anew before everything that could depend on something is given
/// up.
const ROUNDS: u32 = 8;

/// The packed key of a row.
pub(crate) fn pack_key(table: &Table, key: &[Datum<'_>]) -> Vec<u8> {
    let types: Vec<ColumnType> = table.key_columns().map(|key| key.column_type).collect();
    let mut packed = Vec::new();
    pack_values(&mut packed, &types, key);
    packed
}

/// An uploaded table that is published.
#[derive(Clone, Copy)]
pub(crate) struct Uploaded<'u> {
    pub(crate) upload: &'u UploadTable,
    /// Its index in the publication.
    pub(crate) index: usize,
    /// How its rows are read.
    pub(crate) map: &'u ColumnMap,
    /// Whether it has updates that give rows other keys.
    pub(crate) has_moves: bool,
}

impl Uploaded<'_> {
    /// Whether an update gives its row another key.
    pub(crate) fn moves(&self, row: &Row<'_>) -> bool {
        gives_another_key(self.map, row)
    }
}

/// Whether an update gives its row another key.
pub(crate) fn gives_another_key(map: &ColumnMap, row: &Row<'_>) -> bool {
    let mut key = map.shape.key.iter();
    key.any(|&column| !same(&row.old[column], &row.new[column]))
}

/// What is decided of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is refused.
    Refused(Refusal),
    /// It loses against what the centre has.
    Lost,
    /// A handler has seen to it.
    Handled,
}

/// The rows of which something is decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decided {
    /// They refer to refused rows.
    orphans: RowKeys,
    /// They lose with their parents.
    lost: RowKeys,
    /// They would be out of scope.
    outside: Barred,
    /// They were out of scope before.
    foreign: RowKeys,
    /// What handlers have decided.
    fates: Arc<Fates>,
    tables: HashSet<usize>,
    rounds: u32,
}

/// Values to which rows of the upload refer in vain, by the number of the tie.
#[derive(Default)]
struct Missing {
    /// The rows that were to have them were refused.
    refused: HashSet<(usize, Vec<u8>)>,
    /// They lost, or are lost with others.
    lost: HashSet<(usize, Vec<u8>)>,
    /// The rows that have them were to be deleted, and stay.
    kept: HashSet<(usize, Vec<u8>)>,
}

impl Missing {
    fn count(&self) -> usize {
        self.refused.len() + self.lost.len() + self.kept.len()
    }

    /// Notes what comes of a row that does not take effect.
    fn add(&mut self, ties: &[Tie], it: &Uploaded<'_>, row: &Row<'_>, op: Op, is_lost: bool) {
        for (number, tie) in ties.iter().enumerate() {
            if tie.parent != it.index {
                continue;
            }
            let old = (op != Op::Insert).then(|| tie.referred(it.map, &row.old));
            if op == Op::Delete {
                let kept = old.flatten().filter(|_| is_lost);
                self.kept.extend(kept.map(|value| (number, value)));
                continue;
            }
            let new = tie.referred(it.map, &row.new);
            // Whoever inserted the same has it now.
            if old.as_ref() == Some(&new) || is_lost && op == Op::Insert {
                continue;
            }
            let missing = match is_lost {
                true => &mut self.lost,
                false => &mut self.refused,
            };
            missing.extend(new.map(|value| (number, value)));
        }
    }
}

impl Decided {
    /// Whether something is decided of rows of a table.
    pub(crate) fn concerns(&self, table: usize) -> bool {
        self.tables.contains(&table)
    }

    /// Whether rows that are not in scope before the upload are refused at once.
    pub(crate) fn gives_up_outside(&self) -> bool {
        self.rounds > ROUNDS
    }

    /// What is decided of a row.
    pub(crate) fn of(
        &self,
        schema: &PublicationSchema,
        table: usize,
        op: Op,
        key: &[Datum<'_>],
    ) -> Option<Decision> {
        if !self.concerns(table) {
            return None;
        }
        let refused = |refusal| Some(Decision::Refused(refusal));
        let row = (table, pack_key(&schema.tables[table], key));
        if let Some(barrier) = self.outside.get(&row).filter(|_| op != Op::Delete) {
            return refused(Refusal::barred(*barrier));
        }
        if op != Op::Insert && self.foreign.contains(&row) {
            return refused(Refusal::barred(Barrier::OutOfScope));
        }
        let fate = self.fates.of(&row, op);
        if let Some(refused @ Decision::Refused(_)) = fate {
            return Some(refused.clone());
        }
        if op != Op::Delete && self.orphans.contains(&row) {
            let (code, reason) = (Code::RowForeignKey, REASON.to_owned());
            return refused(Refusal { code, reason });
        }
        if let Some(fate) = fate {
            return Some(fate.clone());
        }
        (op != Op::Insert && self.lost.contains(&row)).then_some(Decision::Lost)
    }

    /// Goes by what handlers have decided.
    pub(crate) fn judged(&mut self, fates: Arc<Fates>) {
        self.tables.extend(fates.tables());
        self.fates = fates;
    }

    /// What they have.
    pub(crate) fn fates(&self) -> &Fates {
        &self.fates
    }

    /// Takes no changes of rows that are out of scope.
    pub(crate) fn foreign(&mut self, rows: RowKeys) {
        self.tables.extend(rows.iter().map(|row| row.0));
        self.foreign = rows;
    }

    /// Refuses rows because they are out of scope.
    pub(crate) fn refuse_outside(&mut self, rows: Barred) {
        self.rounds += 1;
        self.tables.extend(rows.keys().map(|row| row.0));
        self.outside.extend(rows);
    }

    /// Adds what depends on rows that did not take effect; true if the upload has to be applied
    /// anew, because some of that did.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn find(
        &mut self,
        schema: &PublicationSchema,
        ties: &[Tie],
        uploaded: &[Uploaded<'_>],
        builder: &ResultBuilder<'_>,
    ) -> Result<bool, CentreError> {
        if ties.is_empty() || !builder.has_vain() {
            return Ok(false);
        }
        let gives_up = self.rounds >= ROUNDS;
        let mut missing = Missing::default();
        let (mut orphans, mut lost) = (RowKeys::new(), RowKeys::new());
        for it in uploaded {
            if !ties.iter().any(|tie| tie.parent == it.index) {
                continue;
            }
            let table = &schema.tables[it.index];
            it.upload.each_row(&it.map.shape, |row, op| {
                let key = (it.index, pack_key(table, &row.key));
                if builder.is_refused(&key, op) {
                    missing.add(ties, it, row, op, false);
                } else if builder.is_lost(&key) {
                    missing.add(ties, it, row, op, true);
                }
            })?;
        }
        loop {
            let before = missing.count();
            if before == 0 {
                return Ok(false);
            }
            for it in uploaded {
                let of_table = |tie: &&Tie| tie.child == it.index;
                if !ties.iter().any(|tie| of_table(&tie)) {
                    continue;
                }
                let table = &schema.tables[it.index];
                it.upload.each_row(&it.map.shape, |row, op| {
                    let Some(is_lost) = missing.tells(ties, it, row, op, gives_up) else {
                        return;
                    };
                    let key = (it.index, pack_key(table, &row.key));
                    missing.add(ties, it, row, op, is_lost);
                    match is_lost {
                        true => lost.insert(key),
                        false => orphans.insert(key),
                    };
                })?;
            }
            if missing.count() == before {
                break;
            }
        }
        self.rounds += 1;
        Ok(self.add(orphans, lost, builder))
    }

    /// Adds rows; whether some of them took effect.
    fn add(&mut self, orphans: RowKeys, lost: RowKeys, builder: &ResultBuilder<'_>) -> bool {
        let mut anew = false;
        for (rows, known) in [(orphans, &mut self.orphans), (lost, &mut self.lost)] {
            for row in rows {
                let is_vain = builder.is_lost(&row) || builder.is_refused(&row, Op::Update);
                self.tables.insert(row.0);
                anew |= known.insert(row) && !is_vain;
            }
        }
        anew
    }
}

impl Missing {
    /// Whether a row cannot take effect; and if so, whether it loses.
    fn tells(
        &self,
        ties: &[Tie],
        it: &Uploaded<'_>,
        row: &Row<'_>,
        op: Op,
        gives_up: bool,
    ) -> Option<bool> {
        let mut fate = None;
        for (number, tie) in ties.iter().enumerate() {
            if tie.child != it.index {
                continue;
            }
            if op == Op::Delete {
                let goes_along = tie.on_delete == ForeignKeyAction::Cascade;
                let old = goes_along
                    .then(|| tie.referring(it.map, &row.old))
                    .flatten();
                if old.is_some_and(|value| gives_up || self.kept.contains(&(number, value))) {
                    return Some(true);
                }
                continue;
            }
            let Some(new) = tie.referring(it.map, &row.new) else {
                continue;
            };
            let is_new = op == Op::Insert || tie.referring(it.map, &row.old).as_ref() != Some(&new);
            if !is_new {
                continue;
            }
            let place = (number, new);
            if self.refused.contains(&place) || gives_up {
                return Some(false);
            }
            if self.lost.contains(&place) {
                fate = Some(op == Op::Update && tie.on_update.acts());
            }
        }
        fate
    }
}
