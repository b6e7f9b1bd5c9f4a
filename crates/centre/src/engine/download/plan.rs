//! What a download has to send of each table, decided before anything is read.

use std::collections::BTreeSet;

use super::{Opened, PublishedSchema};
use crate::download::DownloadSubscription;
use crate::engine::exact::types_of;
use crate::engine::scope::Standing;
use crate::engine::watermark;
use crate::scope::Scope;
use crate::upload::GainedPartitions;

/// What has to be sent of one table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TablePlan {
    /// The remote never holds rows of it.
    Nothing,
    /// Everything in scope; it replaces what is there.
    Whole,
    /// Partitions gained and lost, and changes in those kept.
    Changes {
        gained: Vec<Vec<u8>>,
        lost: Vec<Vec<u8>>,
        kept: Vec<Vec<u8>>,
    },
}

/// What has to be done for one subscription.
pub(super) struct Plan {
    pub(super) published: PublishedSchema,
    pub(super) position: Vec<u8>,
    pub(super) scope: Scope,
    pub(super) tables: Vec<TablePlan>,
    pub(super) scope_changed: bool,
    /// The serial that stays; `None` for one that is noted with the mark.
    pub(super) serial: Option<u64>,
    pub(super) arrived: bool,
    pub(super) is_due: bool,
}

impl Plan {
    pub(super) fn new(subscription: &DownloadSubscription, opened: Opened, now_ms: i64) -> Plan {
        let published = opened.published;
        let checkpoint = subscription.checkpoint.as_ref();
        // What a remote compares, it gets to know all the same.
        let is_outdated = opened.standing == Standing::Outdated && subscription.compares.is_empty();
        let mut scope_changed = false;
        let mut tables = Vec::with_capacity(published.schema.tables.len());
        for (index, table) in published.schema.tables.iter().enumerate() {
            let now = &opened.scope.tables[index];
            let held = opened.held[index];
            let place = held.place.zip(checkpoint);
            let holds = place.and_then(|(place, it)| it.scope.tables.get(place));
            scope_changed |= holds != Some(now);
            let traced = holds.filter(|_| held.is_traced && !is_outdated);
            tables.push(match traced {
                _ if !table.direction.downloads() => TablePlan::Nothing,
                None => TablePlan::Whole,
                Some(held) => {
                    let types =
                        types_of(&published.shapes[index], &published.shapes[index].partition);
                    let gained = &subscription.gained;
                    let gave = GainedPartitions::lost(gained, &table.name, &types, now);
                    TablePlan::changes(held, now, gave)
                }
            });
        }
        let stays =
            matches!(opened.standing, Standing::Known | Standing::Arrived) && !scope_changed;
        let arrived = stays && opened.standing == Standing::Arrived;
        let own = subscription.own.as_ref();
        let is_due = opened.news
            || watermark::is_old(opened.marked_ms, now_ms)
            || !stays
            || arrived
            || !subscription.requests.is_empty()
            || !subscription.compares.is_empty()
            || own.is_some_and(|own| own.version != 0)
            || tables.iter().any(TablePlan::is_due);
        Plan {
            published,
            position: opened.position,
            scope: opened.scope,
            tables,
            scope_changed,
            serial: checkpoint.map(|it| it.serial).filter(|_| stays && !arrived),
            arrived,
            is_due,
        }
    }
}

impl TablePlan {
    fn changes<'p>(
        held: &BTreeSet<Vec<u8>>,
        now: &BTreeSet<Vec<u8>>,
        gave: impl Iterator<Item = &'p Vec<u8>>,
    ) -> TablePlan {
        let gained: Vec<Vec<u8>> = now.difference(held).cloned().collect();
        let mut lost: Vec<Vec<u8>> = held.difference(now).cloned().collect();
        let kept: Vec<Vec<u8>> = now.intersection(held).cloned().collect();
        lost.extend(gave.cloned());
        TablePlan::Changes { gained, lost, kept }
    }

    /// Whether rows or removals have to be sent, whatever the logs say.
    fn is_due(&self) -> bool {
        match self {
            TablePlan::Nothing => false,
            TablePlan::Whole => true,
            TablePlan::Changes { gained, lost, .. } => !gained.is_empty() || !lost.is_empty(),
        }
    }
}
