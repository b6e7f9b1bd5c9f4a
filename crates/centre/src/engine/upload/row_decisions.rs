//! What is decided of rows of an upload before the database is asked: they are refused, lose, or
//! are left to a handler.
//!
//! The reasons are: the scope, before the upload and when all of it is in ([`super::authorization`]);
//! what handlers have said ([`super::handler_decisions`]); rows that did not take effect, on which
//! others depend ([`super::dependent_refusals`]); and an upload that is aborted.
//!
//! Some of that shows only when all of an upload has been applied. Then it is undone and applied
//! once more, in another round, by what is decided here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidewater_protocol::{Code, Datum, Op, PublicationSchema};

use super::UploadRefusal;
use super::dependent_refusals::{DependentRows, MissingParents, RefusedParent, RefusedParents};
use super::handler_decisions::HandlerDecisions;
use crate::engine::membership::Barrier;
use crate::engine::row_fault::RefusalReason;
use crate::engine::upload::foreign_keys::PublishedForeignKey;
use crate::engine::upload::refusal_reason::RowDecision;
use crate::engine::upload::result::ResultBuilder;
use crate::engine::upload::row_keys::{Barred, RowKey, RowKeys, UploadedTable, pack_key};
use crate::error::CentreError;

/// The reason of refusals of rows that refer to refused ones, which are named behind it.
const REASON: &str = "the row that it refers to was refused";

/// So often is an upload applied anew before everything that could depend on a row that does not
/// take effect is decided as if it did.
const ROUNDS: u32 = 8;

/// What is decided of the rows of an upload before they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowDecisions {
    /// They refer to refused rows: to these, where that is known.
    refused_with_parent: HashMap<RowKey, Option<RefusedParent>>,
    /// They lose with their parents.
    lost: RowKeys,
    /// They are out of scope when all of the upload is in.
    out_of_scope_after: Barred,
    /// They are out of scope before the upload.
    out_of_scope_before: RowKeys,
    /// What handlers have decided.
    handler_decisions: Arc<HandlerDecisions>,
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

impl RowDecisions {
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
    pub(crate) fn refuses_at_once(&self) -> bool {
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
        if let Some(barrier) = self
            .out_of_scope_after
            .get(&row)
            .filter(|_| op != Op::Delete)
        {
            return refused(RefusalReason::barred(*barrier));
        }
        if op != Op::Insert && self.out_of_scope_before.contains(&row) {
            return refused(RefusalReason::barred(Barrier::OutOfScope));
        }
        let fate = self.handler_decisions.find_decision(&row, op);
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
    pub(crate) fn follow_handlers(&mut self, decisions: Arc<HandlerDecisions>) {
        self.tables.extend(decisions.tables());
        self.handler_decisions = decisions;
    }

    /// What handlers have decided.
    pub(crate) fn handler_decisions(&self) -> &HandlerDecisions {
        &self.handler_decisions
    }

    /// Refuses changes of rows that are out of scope before the upload.
    pub(crate) fn refuse_out_of_scope_before(&mut self, rows: RowKeys) {
        self.tables.extend(rows.iter().map(|row| row.0));
        self.out_of_scope_before = rows;
    }

    /// Refuses rows because they are out of scope when all of the upload is in.
    pub(crate) fn refuse_out_of_scope_after(&mut self, rows: Barred) {
        self.rounds += 1;
        self.tables.extend(rows.keys().map(|row| row.0));
        self.out_of_scope_after.extend(rows);
    }

    /// Decides what depends on rows that did not take effect; true if the upload has to be applied
    /// anew, because some of that did.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn refuse_dependents(
        &mut self,
        schema: &PublicationSchema,
        foreign_keys: &[PublishedForeignKey],
        uploaded: &[UploadedTable<'_>],
        builder: &ResultBuilder<'_>,
    ) -> Result<bool, CentreError> {
        if foreign_keys.is_empty() || !builder.has_vain() {
            return Ok(false);
        }
        let assumes_worst = self.rounds >= ROUNDS;
        let mut missing = MissingParents::find(schema, foreign_keys, uploaded, builder)?;
        if missing.count() == 0 {
            return Ok(false);
        }
        let dependents = missing.spread(schema, foreign_keys, uploaded, assumes_worst)?;
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
        let mut missing = MissingParents::from_refused(refused);
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
