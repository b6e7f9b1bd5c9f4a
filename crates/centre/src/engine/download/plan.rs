//! What a download has to send of each table, decided before anything is read.

use std::ops::Range;

use prost::Message;

use super::catching_up::{self, Filler};
use super::resuming::Position;
use super::{Opened, Place, PublishedSchema, Snapshot};
use crate::download::{DownloadSubscription, Marks, ToldSettled};
use crate::engine::publication::rules_of;
use crate::engine::scope::{Difference, Standing};
use crate::engine::scripts::Scripts;
use crate::engine::watermark::{self, Presented};
use crate::follow::Holding;
use crate::scope::{RuleScope, Scope};
use crate::upload::GainedPartitions;

/// What has to be sent of one table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TablePlan {
    /// The remote never holds rows of it.
    Nothing,
    /// Everything in scope; it replaces what is there.
    Whole,
    /// What changed, by each of its rules.
    Changes(Vec<RulePlan>),
    /// What changed in the part that has come already, and the rest.
    Rest(Vec<RulePlan>),
    /// What its handler has told.
    Given {
        /// It replaces what is there.
        whole: bool,
        /// There is something of it.
        is_due: bool,
    },
    /// What its scripts yield; all of it, if the remote has nothing of them.
    Scripted {
        /// It replaces what is there.
        whole: bool,
    },
}

/// What has to be sent by one rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RulePlan {
    /// Partitions that came: their rows, and what changed in them since the watermark: the remote
    /// may have uploaded rows that are gone again.
    pub(super) gained: Vec<Vec<u8>>,
    /// Partitions that left: their rows, and what changed in them, go where no other rule has them.
    pub(super) lost: Vec<Vec<u8>>,
    /// Partitions that stay: what changed in them.
    pub(super) kept: Vec<Vec<u8>>,
    /// For each window from where to where its beginning moved.
    pub(super) moved: Vec<Range<i64>>,
}

/// What has to be done for one subscription.
pub(super) struct Plan {
    pub(super) published: PublishedSchema,
    pub(super) position: Vec<u8>,
    pub(super) role: String,
    pub(super) scope: Scope,
    pub(super) tables: Vec<TablePlan>,
    /// By table: see [`catching_up`].
    pub(super) added: Vec<Vec<(usize, Filler)>>,
    pub(super) scope_changed: bool,
    /// The serial that stays; `None` for one that is noted with the mark.
    pub(super) serial: Option<u64>,
    pub(super) arrived: bool,
    pub(super) is_due: bool,
    /// Up to when the remote has what scripts yield, and up to when it will have.
    pub(super) last_download: Option<i64>,
    pub(super) next_last_download: i64,
    /// Whether the change logs may have something new.
    pub(super) has_changes: bool,
    /// What operators have settled of the remote's refused rows, if that is told.
    pub(super) settled: Option<ToldSettled>,
    /// How often there are marks in it, if it has any.
    pub(super) marks: Option<Marks>,
    /// Where it goes on, if a part of it has come already.
    pub(super) resumed: Option<Position>,
    /// See [`crate::download::DownloadStart::covers_image`].
    pub(super) covers_image: bool,
}

impl Plan {
    /// What the remote holds of which it is told when something of it changes: not of tables of which
    /// a script says who gets which rows. Only that knows whom a change concerns, and to tell everybody
    /// would tell of rows of others.
    pub(super) fn holding(&self) -> Holding {
        let mut holding = Holding::of(&self.published.rules, &self.scope);
        let rules = self.published.rules.iter();
        let by_script = rules
            .filter(|it| matches!(self.tables[it.table], TablePlan::Scripted { .. }))
            .map(|it| it.id);
        let by_script: Vec<i64> = by_script.collect();
        holding.rules.retain(|(rule, _)| !by_script.contains(rule));
        holding
    }

    /// The tables of which a script or a handler says which rows come down.
    pub(super) fn uncompared(&self) -> Vec<String> {
        let schema = &self.published.schema;
        let tables = schema
            .tables
            .iter()
            .zip(&self.tables)
            .zip(self.published.handled.iter());
        let told = tables.filter(|((table, plan), handled)| {
            let by_script = matches!(plan, TablePlan::Scripted { .. });
            by_script || handled.download && table.direction.downloads()
        });
        told.map(|((table, _), _)| table.name.clone()).collect()
    }

    /// `differences`: how the scope differs from what is held, by rule.
    pub(super) fn new(
        subscription: &DownloadSubscription,
        opened: Opened,
        differences: Vec<Option<Difference>>,
        scripts: Option<&Scripts>,
        now_ms: i64,
    ) -> Plan {
        let published = opened.published;
        let rules = &published.rules;
        let checkpoint = subscription.checkpoint.as_ref();
        // What a remote compares, it gets to know all the same.
        let is_outdated = opened.standing == Standing::Outdated && subscription.compares.is_empty();
        // What another role saw says nothing of what this one sees.
        let presented = checkpoint.and_then(Presented::of);
        let is_another = presented
            .as_ref()
            .is_some_and(|it| it.watermark.role != opened.role);
        let last_download = presented.as_ref().filter(|_| !is_outdated && !is_another);
        let last_download = last_download.and_then(|it| it.watermark.last_download);
        // Only scripts know who gets a row: one that is asked for comes with all.
        let tables = &published.schema.tables;
        let by_script = |index: usize| scripts.is_some_and(|it| it.downloads(index));
        let asks = subscription.requests.iter().any(|request| {
            let asked = tables.iter().position(|it| it.name == request.begin.table);
            asked.is_some_and(by_script)
        });
        // What a remote compares may have been edited while nothing tracked it, and the server does
        // not look at what it compares of a table whose rows a script says: there all rows come, and
        // each is held against the remote's.
        let compares = !subscription.compares.is_empty();
        let comes_whole = asks || compares || opened.marked_ms.is_none();
        let last_download = last_download.filter(|_| !comes_whole);
        let mut scope_changed = false;
        let mut by_rule = Vec::with_capacity(rules.len());
        let of_rules = rules.iter().zip(&opened.scope.rules).zip(&opened.held);
        for (((rule, now), held), difference) in of_rules.zip(differences) {
            let place = held.place.zip(checkpoint);
            let lows = place.map(|(place, it)| &it.rules[place].lows);
            scope_changed |= lows != Some(&now.lows);
            scope_changed |= difference.as_ref().is_none_or(|it| !it.is_none());
            let is_traced = held.is_traced && !is_outdated && !is_another;
            by_rule.push(
                difference
                    .zip(lows)
                    .filter(|_| is_traced)
                    .map(|(difference, lows)| {
                        let gained = &subscription.gained;
                        let gave = GainedPartitions::lost(gained, rule.id, &now.partitions);
                        RulePlan::new(difference, gave.cloned().collect(), now, lows)
                    }),
            );
        }
        let mut added = Vec::with_capacity(published.schema.tables.len());
        let before = subscription.before.as_ref();
        let before = before.map(|hash| published.past.get(hash));
        let tables = published
            .schema
            .tables
            .iter()
            .enumerate()
            .map(|(index, table)| {
                let new = match before {
                    None => Some(Vec::new()),
                    Some(before) => catching_up::added(before, table),
                };
                let is_followed = new.is_some();
                added.push(new.unwrap_or_default());
                let of_table = by_rule[rules_of(rules, index)].iter_mut().map(Option::take);
                let of_table = of_table.collect::<Option<Vec<RulePlan>>>();
                match of_table {
                    _ if !table.direction.downloads() => TablePlan::Nothing,
                    _ if published.handled[index].download => given(subscription, &table.name),
                    _ if scripts.is_some_and(|it| it.downloads(index)) => TablePlan::Scripted {
                        whole: last_download.is_none(),
                    },
                    Some(rules) if is_followed => TablePlan::Changes(rules),
                    _ => TablePlan::Whole,
                }
            });
        let tables: Vec<TablePlan> = tables.collect();
        let stays =
            matches!(opened.standing, Standing::Known | Standing::Arrived) && !scope_changed;
        let arrived = stays && opened.standing == Standing::Arrived;
        let own = subscription.own.as_ref();
        // What is new was only looked for in the partitions that the remote held.
        let has_changes = opened.news || tables.iter().any(TablePlan::is_due);
        let is_due = opened.news
            || watermark::is_old(opened.marked_ms, now_ms)
            || !stays
            || arrived
            || !subscription.requests.is_empty()
            || !subscription.compares.is_empty()
            || own.is_some_and(|own| own.version != 0)
            || before.is_some()
            || tables.iter().any(TablePlan::is_due);
        Plan {
            published,
            position: opened.position,
            role: opened.role,
            scope: opened.scope,
            tables,
            added,
            scope_changed,
            serial: checkpoint.map(|it| it.serial).filter(|_| stays && !arrived),
            arrived,
            covers_image: false,
            is_due,
            last_download,
            next_last_download: opened.safe_until,
            has_changes,
            settled: None,
            marks: None,
            resumed: None,
        }
    }

    /// Goes on behind the mark of a first download that broke off; false, and all is as it was, if
    /// that cannot be: it is another scope by now, or not all changes since then are known.
    pub(super) fn resume(&mut self, subscription: &DownloadSubscription) -> bool {
        let mark = subscription.kept.as_deref().filter(|it| !it.is_empty());
        let Some(position) = mark.and_then(|it| Position::decode(it).ok()) else {
            return false;
        };
        let stays = |table: &TablePlan| match table {
            TablePlan::Nothing => true,
            TablePlan::Changes(rules) => !rules.iter().any(RulePlan::is_due),
            _ => false,
        };
        if self.scope_changed || is_asked(subscription) || !self.tables.iter().all(stays) {
            return false;
        }
        for (index, table) in self.tables.iter_mut().enumerate().skip(position.table()) {
            if let TablePlan::Changes(rules) = table {
                *table = match index == position.table() && position.is_inside() {
                    true => TablePlan::Rest(std::mem::take(rules)),
                    false => TablePlan::Whole,
                };
            }
        }
        self.is_due = true;
        self.resumed = Some(position);
        true
    }

    /// Makes marks if it brings everything to a remote that keeps what it gets of it.
    pub(super) fn make_marks(&mut self, subscription: &DownloadSubscription, marks: Marks) {
        let is_whole = |it: &TablePlan| matches!(it, TablePlan::Nothing | TablePlan::Whole);
        let is_first = self.resumed.is_some() || self.tables.iter().all(is_whole);
        let is_kept = subscription.kept.is_some() && is_first && !is_asked(subscription);
        self.marks = is_kept.then_some(marks);
    }

    /// If a table is read in units: where that begins.
    pub(super) fn in_units_from(
        &self,
        table: usize,
        snapshot: &dyn Snapshot,
        place: Place,
    ) -> Option<Position> {
        match self.tables[table] {
            TablePlan::Rest(_) => self.resumed.clone(),
            TablePlan::Whole => {
                let marks = self.marks?;
                let is_large = snapshot.may_have(place, marks.rows);
                is_large.then(|| Position::of(table, 0, 0))
            }
            _ => None,
        }
    }
}

/// Whether a sync wants more than a first download brings.
fn is_asked(subscription: &DownloadSubscription) -> bool {
    !subscription.requests.is_empty()
        || !subscription.compares.is_empty()
        || subscription.own.as_ref().is_some_and(|it| it.version != 0)
        || subscription
            .before
            .as_ref()
            .is_some_and(|it| !it.is_empty())
}

/// What is sent of a table of which a handler has told what is new.
fn given(subscription: &DownloadSubscription, table: &str) -> TablePlan {
    let checkpoint = subscription.checkpoint.as_ref();
    let before = checkpoint.and_then(|it| it.cursor(table));
    let mut given = subscription.given.iter();
    match given.find(|it| it.table == table) {
        None => TablePlan::Nothing,
        Some(given) => TablePlan::Given {
            whole: given.whole,
            is_due: given.whole
                || !given.chunks.is_empty()
                || before.as_ref() != Some(&given.cursor),
        },
    }
}

impl RulePlan {
    fn new(difference: Difference, gave: Vec<Vec<u8>>, now: &RuleScope, lows: &[i64]) -> RulePlan {
        let Difference { gained, mut lost } = difference;
        let mut come = gained.iter().peekable();
        // Both are in order.
        let kept = now.partitions.iter().filter(|it| {
            let is_new = come.peek() == Some(it);
            if is_new {
                come.next();
            }
            !is_new
        });
        let kept = kept.cloned().collect();
        lost.extend(gave);
        let moved = lows.iter().zip(&now.lows).map(|(&from, &to)| from..to);
        RulePlan {
            gained,
            lost,
            kept,
            moved: moved.collect(),
        }
    }

    /// Whether rows or removals have to be sent, whatever the logs say.
    fn is_due(&self) -> bool {
        let mut moved = self.moved.iter();
        !self.gained.is_empty() || !self.lost.is_empty() || moved.any(|it| it.start != it.end)
    }
}

impl TablePlan {
    fn is_due(&self) -> bool {
        match self {
            TablePlan::Nothing => false,
            TablePlan::Whole | TablePlan::Rest(_) | TablePlan::Scripted { .. } => true,
            TablePlan::Given { is_due, .. } => *is_due,
            TablePlan::Changes(rules) => rules.iter().any(RulePlan::is_due),
        }
    }
}
