//! One subscription as it is read: its tables in their order, then what is compared.

use std::collections::HashMap;

use tidewater_protocol::PublicationSchema;

use super::TablePlace;
use super::output::{Output, SentCounts};
use super::plan::{SubscriptionPlan, TablePlan};
use super::resuming::ReadPosition;
use super::shared_readings::SharedReadings;
use super::snapshot::DownloadSnapshot;
use super::snapshot_driver::SnapshotDriver;
use super::table::TableReading;
use crate::download::{DownloadSink, DownloadSubscription, GivenTable};
use crate::engine::comparing::{self, RangeSums};
use crate::engine::publication::{PublishedSchema, rules_of};
use crate::engine::scripts::ScriptEnvironment;
use crate::engine::upload::column_map::{AnnouncedColumns, ColumnMap};
use crate::error::CentreError;
use crate::packed_rows::TableRequest;

type Result<T> = std::result::Result<T, CentreError>;

/// One subscription as it is read.
pub(super) struct SubscriptionReading<'a, D: SnapshotDriver> {
    pub(super) snapshot: &'a mut DownloadSnapshot<D>,
    pub(super) subscription: &'a DownloadSubscription,
    /// Its number in the snapshot.
    pub(super) number: usize,
    pub(super) plan: &'a SubscriptionPlan,
    pub(super) scripting: Option<ScriptEnvironment<'a>>,
}

impl<D: SnapshotDriver> SubscriptionReading<'_, D> {
    pub(super) async fn read(
        self,
        counts: &mut SentCounts,
        sink: &mut dyn DownloadSink,
        shared: &mut SharedReadings,
    ) -> Result<()> {
        let PublishedSchema {
            schema,
            shapes,
            rules,
            ..
        } = &self.plan.published;
        let mut requests = requests_by_table(schema, &self.subscription.requests)?;
        let compares = comparing::by_table(schema, &self.subscription.compares);
        for (index, table) in schema.tables.iter().enumerate() {
            let what = &self.plan.tables[index];
            // What a handler tells, it has been asked for again already.
            let is_given = matches!(what, TablePlan::Given { .. });
            let asked = requests.remove(&index).filter(|_| !is_given);
            if *what == TablePlan::Nothing && asked.is_none() {
                continue;
            }
            let part = self.plan.part_with(index);
            let place = TablePlace {
                subscription: part.map_or(self.number, |it| it.number),
                table: index,
            };
            let before = *counts;
            let shape = &shapes[index];
            let only_compared = *what == TablePlan::Whole && compares[index].is_some();
            let by_script = matches!(what, TablePlan::Scripted { .. });
            let whole = match what {
                TablePlan::Scripted { whole } => *whole,
                TablePlan::Given { whole, .. } => *whole && compares[index].is_none(),
                what => *what == TablePlan::Whole && !only_compared,
            };
            let begins = match what {
                _ if part.is_some() => None,
                TablePlan::Whole if !only_compared => Some(ReadPosition::before(index)),
                TablePlan::Changes(_) if self.plan.orders_changes() => {
                    Some(ReadPosition::before_changes(index))
                }
                TablePlan::Changes(rules) if rules.iter().any(|it| !it.gained.is_empty()) => {
                    Some(ReadPosition::before_gained(index))
                }
                _ => None,
            };
            let in_units = match (what, begins) {
                (TablePlan::Rest { .. }, _) => part.map(|it| it.position.clone()),
                (_, Some(begins)) => {
                    let is_heavy = shared.is_heavy(self.plan, place, &mut *self.snapshot);
                    is_heavy.await?.then_some(begins)
                }
                _ => None,
            };
            let changes = match what {
                TablePlan::Changes(rules)
                | TablePlan::Rest {
                    rest: Some(rules), ..
                } => Some(rules),
                _ => None,
            };
            let own_place = TablePlace {
                subscription: self.number,
                table: index,
            };
            let mut output = Output::new(table, shape, counts, &mut *sink);
            let goes_on = matches!(what, TablePlan::Rest { .. });
            if let Some(begin) = output.begin.as_mut().filter(|_| whole || goes_on) {
                begin.replace = whole;
                let mut rules = self.plan.published.rules[rules_of(rules, index)].iter();
                if !is_given && rules.any(|rule| rule.query.is_none() && rule.windows.is_empty()) {
                    begin.expected_rows = self.snapshot.row_estimate(place);
                }
            }
            let mut reading = TableReading {
                snapshot: &mut *self.snapshot,
                place,
                shape,
                rules: &rules[rules_of(rules, index)],
                scope: &self.plan.scope.rules[rules_of(rules, index)],
                output: &mut output,
            };
            if is_given {
                // What replaces the rows of a table that is compared is only compared.
                let given = self.subscription.given_table(&table.name);
                let given = given.filter(|it| whole || !it.whole);
                if let Some(given) = given {
                    reading.given(given, whole)?;
                }
            } else if let Some(scripting) = self.scripting.as_ref().filter(|_| by_script) {
                let own = self.subscription.own.as_ref();
                reading
                    .by_script(scripting, &table.name, whole, own)
                    .await?;
            } else if !only_compared {
                let mut same = shared.asked(self.plan, index, self.subscription);
                if let Some(same) = &mut same {
                    same.has_marks = in_units.is_some();
                }
                if let Some(noted) = same.as_ref().and_then(|it| shared.noted(it)) {
                    reading.output.repeat(&noted)?;
                } else {
                    if same.is_some() && !reading.snapshot.is_same_for_all(place).await? {
                        same = None;
                    }
                    if same.is_some() {
                        reading.output.note();
                    }
                    let own = self.subscription.own.as_ref().filter(|it| !it.skip_version);
                    if *what != TablePlan::Whole || in_units.is_none() {
                        // A part may have an older value of what was uploaded.
                        let own = own.filter(|_| part.is_none());
                        let in_order =
                            part.is_none() && in_units.as_ref().is_some_and(|it| it.changes);
                        let has_changes = part.map_or(self.plan.has_changes, |it| it.has_changes);
                        let now = has_changes && !in_order;
                        reading.planned(what, own, now, in_units.is_some()).await?;
                    }
                    if let Some(from) = &in_units {
                        reading.place = own_place;
                        let mut from = from.clone();
                        if let Some(rules) = changes.filter(|_| from.changes) {
                            if self.plan.has_changes {
                                let own = own.filter(|_| part.is_none());
                                reading.changes_in_units(&from, rules, own).await?;
                            }
                            from = ReadPosition::before_gained(index);
                        }
                        let gained = changes.map(|it| it.iter().map(|it| &*it.gained).collect());
                        reading.in_units(&from, gained).await?;
                    }
                    let noted = reading.output.noted()?;
                    if let Some((same, noted)) = same.zip(noted) {
                        shared.note(same, noted);
                    }
                }
                let added = &self.plan.added[index];
                let follows = matches!(
                    what,
                    TablePlan::Changes(_) | TablePlan::Rest { rest: Some(_), .. }
                );
                if follows && !added.is_empty() {
                    reading.new_columns(added).await?;
                }
            }
            // A table that is sent whole has the requested rows already.
            if !whole {
                let scripting = self.scripting.as_ref().filter(|_| by_script);
                for (map, request) in asked.into_iter().flatten() {
                    match scripting {
                        None => reading.answer(&map, request).await?,
                        Some(it) => {
                            let asked = (&map, request);
                            reading.answer_by_script(it, &table.name, asked).await?;
                        }
                    }
                }
            }
            output.flush(1)?;
            // A mark before what has come would have it come again.
            if self
                .plan
                .resumed
                .as_ref()
                .is_none_or(|it| it.position.table() <= index)
            {
                output.mark_behind(index)?;
            }
            if let Some(scripting) = &self.scripting {
                let filtered = counts.own - before.own;
                for (name, count) in [
                    ("fetched_rows", counts.upserts - before.upserts + filtered),
                    ("deleted_rows", counts.removals - before.removals),
                    ("filtered_rows", filtered),
                    ("bytes", counts.bytes - before.bytes),
                ] {
                    scripting.count(&table.name, name, count);
                }
            }
        }
        for (index, theirs) in compares.into_iter().enumerate() {
            let Some(theirs) = theirs else {
                continue;
            };
            let (name, shape) = (&schema.tables[index].name, &shapes[index]);
            let mut output = Output::new(&schema.tables[index], shape, counts, &mut *sink);
            let mut reading = TableReading {
                snapshot: &mut *self.snapshot,
                place: TablePlace {
                    subscription: self.number,
                    table: index,
                },
                shape,
                rules: &rules[rules_of(rules, index)],
                scope: &self.plan.scope.rules[rules_of(rules, index)],
                output: &mut output,
            };
            let comparison = || RangeSums::new(shape, &theirs.ranges);
            match &self.plan.tables[index] {
                // What came whole is not compared besides.
                TablePlan::Scripted { whole: true } => {}
                // What scripts tell is not all that the remote is to hold, but all from which the
                // user can have made something.
                TablePlan::Scripted { whole: false } => {
                    if let Some(scripting) = self.scripting.as_ref().filter(|_| theirs.untracked) {
                        reading.untracked_by_script(scripting, name).await?;
                    }
                }
                TablePlan::Given { whole, .. } => {
                    let given = self.subscription.given_table(name);
                    if let Some(all) = given.and_then(GivenTable::everything) {
                        reading.compare_given(comparison()?, all, !whole)?;
                    }
                }
                // Of a table that would go whole, nobody knows what changed in it.
                what => {
                    let follows = matches!(what, TablePlan::Changes { .. });
                    reading.compare(comparison()?, follows).await?;
                }
            }
            output.flush(1)?;
        }
        Ok(())
    }
}

type Requests<'r> = HashMap<usize, Vec<(ColumnMap, &'r TableRequest)>>;

/// The requests of a subscription, by the table's index.
fn requests_by_table<'r>(
    schema: &PublicationSchema,
    requests: &'r [TableRequest],
) -> Result<Requests<'r>> {
    let mut by_table = Requests::new();
    for request in requests {
        // What does not fit the publication any more is sent anew as a whole, or gone.
        let announced = ColumnMap::find(schema, &request.begin)?;
        if let AnnouncedColumns::Published(index, map) = announced {
            by_table.entry(index).or_default().push((map, request));
        }
    }
    Ok(by_table)
}
