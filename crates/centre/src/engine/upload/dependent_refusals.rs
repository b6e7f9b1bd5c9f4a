//! Rows of an upload that cannot take effect because others did not.
//!
//! When a row is refused, or loses, a row of the same upload that refers to what it would have
//! been must not be taken either: its key may be that of somebody else's row, and the child would
//! attach itself to that. When the delete of a parent loses, so do the deletes of its children that
//! went with it on the remote (`ON DELETE CASCADE`): the family comes back as a whole. When a parent
//! does not get another key, its children do not follow it.
//!
//! Which rows these are shows when all of an upload has been applied. [`super::row_decisions`] keeps
//! them for the next round.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::{ForeignKeyAction, Op, PublicationSchema, UnpackedRow};

use crate::engine::upload::foreign_keys::PublishedForeignKey;
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::row_json;
use crate::engine::upload::row_keys::{RowKey, RowKeys, UploadedTable, pack_key};
use crate::error::CentreError;

/// A refused row that others refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedParent {
    /// The index of its table.
    pub(crate) table: usize,
    /// A JSON array.
    pub(crate) key: String,
}

/// Refused rows, by the number of a foreign key and the packed value by which others refer to them.
pub(crate) type RefusedParents = HashMap<(usize, Vec<u8>), RefusedParent>;

/// Why a row cannot take effect.
#[derive(PartialEq, Eq)]
enum LossReason {
    /// It loses with others.
    Loses,
    /// It refers to a row that is not there: to this one, if it was refused.
    RefusedWith(Option<RefusedParent>),
}

/// Values to which rows of the upload refer in vain, by the number of the foreign key.
#[derive(Default)]
pub(super) struct MissingParents {
    /// The rows that were to have them were refused: these.
    refused: RefusedParents,
    /// They lost, or are lost with others.
    lost: HashSet<(usize, Vec<u8>)>,
    /// The rows that have them were to be deleted, and stay.
    kept: HashSet<(usize, Vec<u8>)>,
}

/// Rows that cannot take effect, because others did not.
#[derive(Default)]
pub(super) struct DependentRows {
    /// They are refused: with these.
    pub(super) refused_with_parent: HashMap<RowKey, Option<RefusedParent>>,
    /// They lose.
    pub(super) lost: RowKeys,
}

impl MissingParents {
    /// Finds the rows of an upload that were refused or have lost, and that others may refer to.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(super) fn find(
        schema: &PublicationSchema,
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        builder: &ResultBuilder<'_>,
    ) -> Result<MissingParents, CentreError> {
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
        Ok(missing)
    }

    /// Those that were refused in earlier uploads.
    pub(super) fn from_refused(refused: RefusedParents) -> MissingParents {
        MissingParents {
            refused,
            ..MissingParents::default()
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
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

    /// Finds what depends on rows that do not take effect, and what depends on that. With
    /// `assumes_worst`, whatever could depend on such a row is counted among it.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(super) fn spread(
        &mut self,
        schema: &PublicationSchema,
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        assumes_worst: bool,
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
                    let Some(fate) =
                        self.find_loss_reason(foreign_keys, it, row, op, assumes_worst)
                    else {
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
    fn find_loss_reason(
        &self,
        foreign_keys: &[PublishedForeignKey],
        it: &UploadedTable<'_>,
        row: &UnpackedRow<'_>,
        op: Op,
        assumes_worst: bool,
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
                if old.is_some_and(|value| assumes_worst || self.kept.contains(&(number, value))) {
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
            if parent.is_some() || assumes_worst {
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
