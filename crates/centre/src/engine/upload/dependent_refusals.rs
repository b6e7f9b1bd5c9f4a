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

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidewater_protocol::{Code, Datum, ForeignKeyAction, Op, PublicationSchema, UnpackedRow};

use super::UploadRefusal;
use super::handler_decisions::HandlerDecisions;
use crate::engine::membership::Barrier;
use crate::engine::upload::foreign_keys::PublishedForeignKey;
use crate::engine::upload::refusal_reason::{RefusalReason, RowDecision};
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::row_json;
use crate::engine::upload::row_keys::{Barred, RowKey, RowKeys, UploadedTable, pack_key};
use crate::error::CentreError;

/// The reason of refusals of rows that refer to refused ones, which are named behind it.
const REASON: &str = "the row that it refers to was refused";

/// A refused row that others refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedParent {
    /// The index of its table.
    pub(crate) table: usize,
    /// A JSON array.
    pub(crate) key: String,
}

/// Refused rows, by the number of a tie and the packed value by which others refer to them.
pub(crate) type RefusedParents = HashMap<(usize, Vec<u8>), RefusedParent>;

/// So often is an upload applied anew before everything that could depend on something is given
/// up.
const ROUNDS: u32 = 8;

/// Why a row cannot take effect.
#[derive(PartialEq, Eq)]
enum LossReason {
    /// It loses with others.
    Loses,
    /// It refers to a row that is not there: to this one, if it was refused.
    RefusedWith(Option<RefusedParent>),
}

/// The rows of which something is decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct DependentRefusals {
    /// They refer to refused rows: to these, where that is known.
    refused_with_parent: HashMap<RowKey, Option<RefusedParent>>,
    /// They lose with their parents.
    lost: RowKeys,
    /// They would be out of scope.
    outside: Barred,
    /// They were out of scope before.
    foreign: RowKeys,
    /// What handlers have decided.
    decisions: Arc<HandlerDecisions>,
    tables: HashSet<usize>,
    rounds: u32,
    /// All rows are refused.
    aborted: Option<Arc<AbortedUpload>>,
}

/// Some rows of an upload were refused that goes in whole or not at all.
#[derive(Debug)]
pub(crate) struct AbortedUpload {
    /// Why they were.
    own: HashMap<(String, String), RefusalReason>,
    /// Why the others are.
    others: RefusalReason,
}

impl AbortedUpload {
    /// Why a row is refused, by its table and the JSON of its key.
    pub(crate) fn refusal(&self, table: &str, key: String) -> &RefusalReason {
        self.own
            .get(&(table.to_owned(), key))
            .unwrap_or(&self.others)
    }
}

/// Values to which rows of the upload refer in vain, by the number of the tie.
#[derive(Default)]
struct MissingParents {
    /// The rows that were to have them were refused: these.
    refused: RefusedParents,
    /// They lost, or are lost with others.
    lost: HashSet<(usize, Vec<u8>)>,
    /// The rows that have them were to be deleted, and stay.
    kept: HashSet<(usize, Vec<u8>)>,
}

/// Rows that cannot take effect, because others did not.
#[derive(Default)]
struct DependentRows {
    /// They are refused: with these.
    refused_with_parent: HashMap<RowKey, Option<RefusedParent>>,
    /// They lose.
    lost: RowKeys,
}

impl MissingParents {
    fn count(&self) -> usize {
        self.refused.len() + self.lost.len() + self.kept.len()
    }

    /// Notes what comes of a row that does not take effect.
    fn add(
        &mut self,
        foreign_keys: &[PublishedForeignKey],
        it: &UploadedTable<'_>,
        row: &UnpackedRow<'_>,
        op: Op,
        is_lost: bool,
    ) {
        for (number, foreign_key) in foreign_keys.iter().enumerate() {
            if foreign_key.parent != it.index {
                continue;
            }
            let old = (op != Op::Insert).then(|| foreign_key.referred(it.map, &row.old));
            if op == Op::Delete {
                let kept = old.flatten().filter(|_| is_lost);
                self.kept.extend(kept.map(|value| (number, value)));
                continue;
            }
            let new = foreign_key.referred(it.map, &row.new);
            // Whoever inserted the same has it now.
            if old.as_ref() == Some(&new) || is_lost && op == Op::Insert {
                continue;
            }
            let Some(new) = new else { continue };
            match is_lost {
                true => drop(self.lost.insert((number, new))),
                false => {
                    let parent = RefusedParent {
                        table: it.index,
                        key: row_json::key(&row.key),
                    };
                    self.refused.entry((number, new)).or_insert(parent);
                }
            }
        }
    }
}

impl DependentRefusals {
    /// Whether something is decided of rows of a table.
    pub(crate) fn concerns(&self, table: usize) -> bool {
        self.tables.contains(&table)
    }

    /// Refuses all rows, because these were.
    pub(crate) fn abort(&mut self, refused: &[UploadRefusal]) {
        let first = refused.iter().find(|it| it.parent.is_none());
        let first = first.or(refused.first());
        let reason = first.map_or_else(String::new, |it| {
            format!(
                "row {} of table {} was refused: {}",
                it.key, it.table, it.reason
            )
        });
        let refusals = refused.iter().map(|it| {
            let (code, reason) = (it.code, it.reason.clone());
            (
                (it.table.clone(), it.key.clone()),
                RefusalReason::new(code, reason),
            )
        });
        self.aborted = Some(Arc::new(AbortedUpload {
            own: refusals.collect(),
            others: RefusalReason {
                code: Code::RowAborted,
                reason,
                database_code: None,
            },
        }));
    }

    /// Why all rows are refused, if they are.
    pub(crate) fn aborted(&self) -> Option<Arc<AbortedUpload>> {
        self.aborted.clone()
    }

    /// Whether rows that are not in scope before the upload are refused at once.
    pub(crate) fn gives_up_outside(&self) -> bool {
        self.rounds > ROUNDS
    }

    /// What is decided of a row.
    pub(crate) fn find_decision(
        &self,
        schema: &PublicationSchema,
        table: usize,
        op: Op,
        key: &[Datum<'_>],
    ) -> Option<RowDecision> {
        if !self.concerns(table) {
            return None;
        }
        let refused = |refusal| Some(RowDecision::Refused(refusal));
        let row = (table, pack_key(&schema.tables[table], key));
        if let Some(barrier) = self.outside.get(&row).filter(|_| op != Op::Delete) {
            return refused(RefusalReason::barred(*barrier));
        }
        if op != Op::Insert && self.foreign.contains(&row) {
            return refused(RefusalReason::barred(Barrier::OutOfScope));
        }
        let fate = self.decisions.find_decision(&row, op);
        if let Some(refused @ RowDecision::Refused(_)) = fate {
            return Some(refused.clone());
        }
        if let Some(parent) = self
            .refused_with_parent
            .get(&row)
            .filter(|_| op != Op::Delete)
        {
            let reason = match parent {
                None => REASON.to_owned(),
                Some(it) => format!("{REASON}: {} {}", schema.tables[it.table].name, it.key),
            };
            let code = Code::RowForeignKey;
            return refused(RefusalReason::new(code, reason));
        }
        if let Some(fate) = fate {
            return Some(fate.clone());
        }
        (op != Op::Insert && self.lost.contains(&row)).then_some(RowDecision::Lost)
    }

    /// Table and key of the refused row that one refers to, which is refused for that.
    pub(crate) fn parent(
        &self,
        schema: &PublicationSchema,
        table: usize,
        key: &[Datum<'_>],
    ) -> Option<(String, String)> {
        if self.refused_with_parent.is_empty() {
            return None;
        }
        let row = (table, pack_key(&schema.tables[table], key));
        let parent = self.refused_with_parent.get(&row)?.as_ref()?;
        Some((schema.tables[parent.table].name.clone(), parent.key.clone()))
    }

    /// Goes by what handlers have decided.
    pub(crate) fn judged(&mut self, decisions: Arc<HandlerDecisions>) {
        self.tables.extend(decisions.tables());
        self.decisions = decisions;
    }

    /// What they have.
    pub(crate) fn decisions(&self) -> &HandlerDecisions {
        &self.decisions
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
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        builder: &ResultBuilder<'_>,
    ) -> Result<bool, CentreError> {
        if foreign_keys.is_empty() || !builder.has_vain() {
            return Ok(false);
        }
        let gives_up = self.rounds >= ROUNDS;
        let mut missing = MissingParents::default();
        for it in uploaded {
            if !foreign_keys
                .iter()
                .any(|foreign_key| foreign_key.parent == it.index)
            {
                continue;
            }
            let table = &schema.tables[it.index];
            it.upload.each_row(&it.map.shape, |row, op| {
                let key = (it.index, pack_key(table, &row.key));
                if builder.is_refused(&key, op) {
                    missing.add(foreign_keys, it, row, op, false);
                } else if builder.is_lost(&key) {
                    missing.add(foreign_keys, it, row, op, true);
                }
            })?;
        }
        if missing.count() == 0 {
            return Ok(false);
        }
        let dependents = missing.spread(schema, foreign_keys, uploaded, gives_up)?;
        self.rounds += 1;
        Ok(self.add(dependents, builder))
    }

    /// Refuses what refers to rows of which the remote was told before that they are refused. There
    /// may be other rows under their keys.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn refuse_children(
        &mut self,
        schema: &PublicationSchema,
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        refused: RefusedParents,
    ) -> Result<(), CentreError> {
        if refused.is_empty() {
            return Ok(());
        }
        let mut missing = MissingParents {
            refused,
            ..MissingParents::default()
        };
        let DependentRows {
            refused_with_parent,
            lost,
        } = missing.spread(schema, foreign_keys, uploaded, false)?;
        self.tables
            .extend(refused_with_parent.keys().chain(&lost).map(|row| row.0));
        self.refused_with_parent.extend(refused_with_parent);
        self.lost.extend(lost);
        Ok(())
    }

    /// Adds rows; whether some of them took effect.
    fn add(&mut self, dependents: DependentRows, builder: &ResultBuilder<'_>) -> bool {
        let DependentRows {
            refused_with_parent,
            lost,
        } = dependents;
        let is_vain = |row: &RowKey| builder.is_lost(row) || builder.is_refused(row, Op::Update);
        let mut anew = false;
        for row in lost {
            self.tables.insert(row.0);
            let is_vain = is_vain(&row);
            anew |= self.lost.insert(row) && !is_vain;
        }
        for (row, parent) in refused_with_parent {
            self.tables.insert(row.0);
            // Why the database has refused it is said again, by the parent. One that lost goes with
            // its parent all the same: what it lost against belongs to another family.
            let is_said =
                builder.is_refused(&row, Op::Update) && !builder.is_refused_by_foreign_key(&row);
            if let Entry::Vacant(undecided) = self.refused_with_parent.entry(row) {
                undecided.insert(parent);
                anew |= !is_said;
            }
        }
        anew
    }
}

impl MissingParents {
    /// Finds what depends on rows that do not take effect, and what depends on that.
    fn spread(
        &mut self,
        schema: &PublicationSchema,
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        gives_up: bool,
    ) -> Result<DependentRows, CentreError> {
        let mut dependents = DependentRows::default();
        loop {
            let before = self.count();
            for it in uploaded {
                if !foreign_keys
                    .iter()
                    .any(|foreign_key| foreign_key.child == it.index)
                {
                    continue;
                }
                let table = &schema.tables[it.index];
                it.upload.each_row(&it.map.shape, |row, op| {
                    let Some(fate) = self.tells(foreign_keys, it, row, op, gives_up) else {
                        return;
                    };
                    let key = (it.index, pack_key(table, &row.key));
                    self.add(foreign_keys, it, row, op, fate == LossReason::Loses);
                    match fate {
                        LossReason::Loses => drop(dependents.lost.insert(key)),
                        LossReason::RefusedWith(parent) => {
                            dependents.refused_with_parent.entry(key).or_insert(parent);
                        }
                    }
                })?;
            }
            if self.count() == before {
                return Ok(dependents);
            }
        }
    }

    /// What becomes of a row, if it cannot take effect.
    fn tells(
        &self,
        foreign_keys: &[PublishedForeignKey],
        it: &UploadedTable<'_>,
        row: &UnpackedRow<'_>,
        op: Op,
        gives_up: bool,
    ) -> Option<LossReason> {
        let mut fate = None;
        for (number, foreign_key) in foreign_keys.iter().enumerate() {
            if foreign_key.child != it.index {
                continue;
            }
            if op == Op::Delete {
                let goes_along = foreign_key.on_delete == ForeignKeyAction::Cascade;
                let old = goes_along
                    .then(|| foreign_key.referring(it.map, &row.old))
                    .flatten();
                if old.is_some_and(|value| gives_up || self.kept.contains(&(number, value))) {
                    return Some(LossReason::Loses);
                }
                continue;
            }
            let Some(new) = foreign_key.referring(it.map, &row.new) else {
                continue;
            };
            let is_new =
                op == Op::Insert || foreign_key.referring(it.map, &row.old).as_ref() != Some(&new);
            if !is_new {
                continue;
            }
            let place = (number, new);
            let parent = self.refused.get(&place);
            if parent.is_some() || gives_up {
                return Some(LossReason::RefusedWith(parent.cloned()));
            }
            if self.lost.contains(&place) {
                fate = Some(match op == Op::Update && foreign_key.on_update.acts() {
                    true => LossReason::Loses,
                    false => LossReason::RefusedWith(None),
                });
            }
        }
        fate
    }
}
