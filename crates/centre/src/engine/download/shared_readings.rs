//! What many ask for at the same time, read and packed once.
//!
//! Several downloads are read from one snapshot. A table that everybody gets is the same for all
//! who have it as of the same position, or not at all: the first one's rows are noted as they are
//! packed, and given to the others.

use std::collections::HashMap;
use std::sync::Arc;

use super::TablePlace;
use super::plan::{SubscriptionPlan, TablePlan};
use super::snapshot::DownloadSnapshot;
use super::snapshot_driver::SnapshotDriver;
use crate::download::DownloadSubscription;
use crate::engine::publication::rules_of;
use crate::engine::watermark::PresentedCheckpoint;
use crate::error::CentreError;

/// What is noted of a table at most; more is read again for each.
const NOTED_BYTES: usize = 4 << 20;

/// What is the same for all who ask for it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedRequest {
    publication: String,
    table: usize,
    /// The position since which changes are asked for; `None`: all rows.
    since: Option<Vec<u8>>,
    /// Whether there are marks between the rows.
    pub(super) has_marks: bool,
}

impl SharedRequest {
    /// What a subscription asks for of a table, if that does not depend on who it is.
    pub(super) fn for_table(
        plan: &SubscriptionPlan,
        table: usize,
        subscription: &DownloadSubscription,
    ) -> Option<SharedRequest> {
        let published = &plan.published;
        let mut rules = published.rules[rules_of(&published.rules, table)].iter();
        let is_everyones = rules.all(|rule| rule.query.is_none() && rule.windows.is_empty());
        if plan.resumed.is_some() {
            return None;
        }
        let has_uploaded = subscription.own.is_some() || !subscription.gained.is_empty();
        if !is_everyones || has_uploaded || !plan.role.is_empty() || !plan.added[table].is_empty() {
            return None;
        }
        let since = match plan.tables[table] {
            TablePlan::Whole => None,
            TablePlan::Changes(_) => {
                let checkpoint = subscription.checkpoint.as_ref();
                Some(
                    checkpoint
                        .and_then(PresentedCheckpoint::from_checkpoint)?
                        .watermark
                        .position,
                )
            }
            _ => return None,
        };
        Some(SharedRequest {
            publication: published.schema.name.clone(),
            table,
            since,
            has_marks: false,
        })
    }
}

/// What was handed over of a table.
pub(super) enum NotedPiece {
    Rows(Vec<u8>),
    /// A mark, and the rows of the table before it.
    Mark(Vec<u8>, u64),
}

/// The rows of a table as they were packed for one.
#[derive(Default)]
pub(super) struct NotedRows {
    /// It was announced, also if there are no rows.
    pub(super) is_announced: bool,
    pub(super) pieces: Vec<NotedPiece>,
    pub(super) upserts: u64,
    pub(super) removals: u64,
    bytes: usize,
}

impl NotedRows {
    /// Notes a piece; false if that is too much.
    pub(super) fn piece(&mut self, rows: &[u8]) -> bool {
        self.bytes += rows.len();
        let fits = self.bytes <= NOTED_BYTES;
        if fits {
            self.pieces.push(NotedPiece::Rows(rows.to_vec()));
        }
        fits
    }
}

/// What was read from a snapshot for one, and others may ask for.
#[derive(Default)]
pub(super) struct SharedReadings {
    /// Only where there are others.
    is_of_many: bool,
    noted: HashMap<SharedRequest, Arc<NotedRows>>,
    /// By publication and table: whether it may weigh more than what is between two marks.
    heavy: HashMap<(String, usize), bool>,
}

impl SharedReadings {
    /// Of so many downloads.
    pub(super) fn new(downloads: usize) -> SharedReadings {
        SharedReadings {
            is_of_many: downloads > 1,
            noted: HashMap::new(),
            heavy: HashMap::new(),
        }
    }

    /// Whether a plan has marks, and a table may weigh more than what is between two of them.
    pub(super) async fn is_heavy<D: SnapshotDriver>(
        &mut self,
        plan: &SubscriptionPlan,
        place: TablePlace,
        snapshot: &mut DownloadSnapshot<D>,
    ) -> Result<bool, CentreError> {
        let Some(marks) = plan.marks else {
            return Ok(false);
        };
        let name = (plan.published.schema.name.clone(), place.table);
        if let Some(is_heavy) = self.heavy.get(&name) {
            return Ok(*is_heavy);
        }
        let is_heavy = snapshot.may_weigh(place, marks.bytes as u64).await?;
        self.heavy.insert(name, is_heavy);
        Ok(is_heavy)
    }

    /// What is the same for all, if there are others.
    pub(super) fn asked(
        &self,
        plan: &SubscriptionPlan,
        table: usize,
        subscription: &DownloadSubscription,
    ) -> Option<SharedRequest> {
        match self.is_of_many {
            true => SharedRequest::for_table(plan, table, subscription),
            false => None,
        }
    }

    /// What was read of it for somebody else.
    pub(super) fn noted(&self, asked: &SharedRequest) -> Option<Arc<NotedRows>> {
        self.noted.get(asked).cloned()
    }

    /// It was read.
    pub(super) fn note(&mut self, asked: SharedRequest, noted: NotedRows) {
        self.noted.insert(asked, Arc::new(noted));
    }
}
