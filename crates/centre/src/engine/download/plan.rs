//! What a download has to send of each table, decided before anything is read.

use std::ops::Range;

use prost::Message;

use tidewater_protocol::Table;
use tidewater_protocol::message::{UncomparedReason, UncomparedTable};

use super::OpenedSubscription;
use super::catching_up::{self, Filler};
use super::resuming::{ReadPosition, ResumedPart};
use crate::download::{DownloadSubscription, MarkFrequency, ToldSettled};
use crate::engine::comparing;
use crate::engine::publication::{PublishedSchema, rules_of};
use crate::engine::scope::{RuleDifference, SerialValidity};
use crate::engine::scripts::Scripts;
use crate::engine::watermark::{self, PresentedCheckpoint};
use crate::follow::RemoteHolding;
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
    Rest {
        /// The first, by each of its rules.
        since: Vec<RulePlan>,
        /// The rest is of what these say; otherwise it is all.
        rest: Option<Vec<RulePlan>>,
    },
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
pub(super) struct SubscriptionPlan {
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
    /// See [`Watermark::is_by_clock`](crate::watermark::Watermark::is_by_clock).
    pub(super) is_by_clock: bool,
    /// Whether the change logs may have something new.
    pub(super) has_changes: bool,
    /// What operators have settled of the remote's refused rows, if that is told.
    pub(super) settled: Option<ToldSettled>,
    /// How old the checkpoint is, as far as that is known.
    pub(super) age_ms: Option<i64>,
    /// How often there are marks in it, if it has any.
    pub(super) marks: Option<MarkFrequency>,
    /// What has come of it already, if it is gone on with.
    pub(super) resumed: Option<ResumedPart>,
    /// See [`crate::download::DownloadStart::covers_image`].
    pub(super) covers_image: bool,
}

impl SubscriptionPlan {
    /// What the remote holds of which it is told when something of it changes: not of tables of which
    /// a script says who gets which rows. Only that knows whom a change concerns, and to tell everybody
    /// would tell of rows of others.
    pub(super) fn holding(&self) -> RemoteHolding {
        let mut holding = RemoteHolding::from_scope(&self.published.rules, &self.scope);
        let rules = self.published.rules.iter();
        let by_script = rules
            .filter(|it| matches!(self.tables[it.table], TablePlan::Scripted { .. }))
            .map(|it| it.id);
        let by_script: Vec<i64> = by_script.collect();
        holding.rules.retain(|(rule, _)| !by_script.contains(rule));
        holding
    }

    /// `differences`: how the scope differs from what is held, by rule.
    pub(super) fn new(
        subscription: &DownloadSubscription,
        opened: OpenedSubscription,
        differences: Vec<Option<RuleDifference>>,
        scripts: Option<&Scripts>,
        now_ms: i64,
    ) -> SubscriptionPlan {
        let published = opened.published;
        let rules = &published.rules;
        let checkpoint = subscription.checkpoint.as_ref();
        // What a remote compares, it gets to know all the same.
        let is_outdated =
            opened.standing == SerialValidity::Outdated && subscription.compares.is_empty();
        // What another role saw says nothing of what this one sees.
        let presented = checkpoint.and_then(PresentedCheckpoint::from_checkpoint);
        let is_another = presented
            .as_ref()
            .is_some_and(|it| it.watermark.role != opened.role);
        let last_download = presented.as_ref().filter(|_| !is_outdated && !is_another);
        let was_by_clock = last_download.is_some_and(|it| it.watermark.is_by_clock);
        let last_download = last_download.and_then(|it| it.watermark.last_download);
        let last_download = last_download.filter(|_| opened.marked_ms.is_some());
        let has_all = last_download.is_some() && !was_by_clock;
        // Only the script knows who gets a row: where it cannot be asked for one, all come.
        let asks = |table: &Table| {
            let mut requests = subscription.requests.iter();
            requests.any(|it| it.begin.table == table.name)
        };
        let by_script = |scripts: &Scripts, index: usize, table: &Table| {
            let is_asked_whole = asks(table) && scripts.by_key(index).is_none();
            TablePlan::Scripted {
                whole: !scripts.gives_nothing(index) && (!has_all || is_asked_whole),
            }
        };
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
                let scripts = scripts.filter(|it| it.downloads(index));
                match (of_table, scripts) {
                    _ if !table.direction.downloads() => TablePlan::Nothing,
                    _ if published.handled[index].download => given(subscription, &table.name),
                    (_, Some(scripts)) => by_script(scripts, index, table),
                    (Some(rules), None) if is_followed => TablePlan::Changes(rules),
                    _ => TablePlan::Whole,
                }
            });
        let tables: Vec<TablePlan> = tables.collect();
        let stays = matches!(
            opened.standing,
            SerialValidity::Known | SerialValidity::Arrived
        ) && !scope_changed;
        let arrived = stays && opened.standing == SerialValidity::Arrived;
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
        SubscriptionPlan {
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
            next_last_download: opened.safe_until.unwrap_or(now_ms.saturating_mul(1000)),
            is_by_clock: opened.safe_until.is_none(),
            has_changes,
            settled: None,
            age_ms: opened.marked_ms.map(|it| now_ms.saturating_sub(it)),
            marks: None,
            resumed: None,
        }
    }

    /// The tables that a remote compares, and that are not compared: nobody knows all that it is to
    /// hold of them.
    pub(super) fn uncompared(&self, subscription: &DownloadSubscription) -> Vec<UncomparedTable> {
        let compares = comparing::by_table(&self.published.schema, &subscription.compares);
        let tables = self.published.schema.tables.iter().zip(&self.tables);
        let uncompared = tables.zip(compares).filter_map(|((table, what), theirs)| {
            let theirs = theirs?;
            let reason = match what {
                TablePlan::Scripted { whole: false } if !theirs.untracked => {
                    UncomparedReason::Script
                }
                TablePlan::Given { .. }
                    if subscription
                        .given_table(&table.name)?
                        .everything()
                        .is_none() =>
                {
                    UncomparedReason::Handler
                }
                _ => return None,
            };
            Some(UncomparedTable {
                table: table.name.clone(),
                reason: reason.into(),
            })
        });
        uncompared.collect()
    }

    /// Goes on behind the mark of a download that broke off, if that can be: the scope is the same, and
    /// all changes since are known. `since`: what a remote is told that has all of it, which has that
    /// number in the snapshot and that index in its job; `held`: its scope's serial.
    pub(super) fn resume(
        &mut self,
        subscription: &DownloadSubscription,
        since: SubscriptionPlan,
        (number, index, held): (usize, usize, u64),
    ) {
        let mark = subscription.kept.as_deref().filter(|it| !it.is_empty());
        let Some(position) = mark.and_then(|it| ReadPosition::decode(it).ok()) else {
            return;
        };
        let stays = |table: &TablePlan| match table {
            TablePlan::Nothing => true,
            TablePlan::Changes(rules) => !rules.iter().any(RulePlan::is_due),
            _ => false,
        };
        let is_same_scope = since.serial.is_some() || since.arrived;
        let part = ResumedPart {
            position,
            number,
            index,
            has_changes: since.has_changes,
        };
        let (marked, is_inside) = (part.position.table(), part.position.is_inside());
        let tables = since.tables.into_iter().enumerate();
        let tables = tables.filter(|(table, _)| part.has(*table));
        let tables: Vec<TablePlan> = tables.map(|it| it.1).collect();
        let fits = match (self.tables.get(marked), tables.get(marked)) {
            _ if !is_inside => true,
            (Some(TablePlan::Whole), Some(TablePlan::Changes(_))) => part.position.is_of_whole(),
            (Some(TablePlan::Changes(_)), Some(TablePlan::Changes(_))) => {
                part.position.gained || part.position.changes && self.role.is_empty()
            }
            _ => false,
        };
        let can_go_on = is_same_scope && fits && self.can_be_marked(subscription);
        if !can_go_on || !tables.iter().all(stays) {
            return;
        }
        for (index, (table, since)) in self.tables.iter_mut().zip(tables).enumerate() {
            let own = std::mem::replace(table, since);
            if index < marked {
                self.added[index].clear();
            } else if let TablePlan::Changes(since) = table {
                *table = TablePlan::Rest {
                    since: std::mem::take(since),
                    rest: match own {
                        TablePlan::Changes(rules) => Some(rules),
                        _ => None,
                    },
                };
            }
        }
        // It is the scope that the part's first sync has noted.
        (self.serial, self.arrived) = (Some(held), false);
        self.is_due = true;
        self.resumed = Some(part);
    }

    /// Makes marks if the remote keeps what it gets.
    pub(super) fn make_marks(&mut self, subscription: &DownloadSubscription, marks: MarkFrequency) {
        let is_kept = subscription.kept.is_some() && self.is_due;
        self.marks = (is_kept && self.can_be_marked(subscription)).then_some(marks);
    }

    /// Whether it can be gone on with should it break. Only scripts and handlers know what is new since
    /// a part; what is compared is another thing by then.
    fn can_be_marked(&self, subscription: &DownloadSubscription) -> bool {
        let is_told =
            |it: &TablePlan| matches!(it, TablePlan::Given { .. } | TablePlan::Scripted { .. });
        let is_plain = subscription.compares.is_empty() && !subscription.from_image;
        is_plain && !self.tables.iter().any(is_told)
    }

    /// Whether changes are read in an order.
    pub(super) fn orders_changes(&self) -> bool {
        let after_ms = self.marks.map(|it| it.changes_after_ms);
        self.has_changes && self.role.is_empty() && after_ms.is_some() && self.age_ms >= after_ms
    }

    /// Whether a remote has something of a table by a part that is gone on with.
    pub(super) fn part_with(&self, table: usize) -> Option<&ResumedPart> {
        self.resumed.as_ref().filter(|it| it.has(table))
    }
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
    fn new(
        difference: RuleDifference,
        gave: Vec<Vec<u8>>,
        now: &RuleScope,
        lows: &[i64],
    ) -> RulePlan {
        let RuleDifference { gained, mut lost } = difference;
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

    /// The partitions of which changes are told.
    pub(super) fn concerned(&self) -> Vec<&[u8]> {
        let all = [&self.kept, &self.gained, &self.lost];
        all.into_iter().flatten().map(Vec::as_slice).collect()
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
            TablePlan::Whole | TablePlan::Rest { .. } | TablePlan::Scripted { .. } => true,
            TablePlan::Given { is_due, .. } => *is_due,
            TablePlan::Changes(rules) => rules.iter().any(RulePlan::is_due),
        }
    }
}
