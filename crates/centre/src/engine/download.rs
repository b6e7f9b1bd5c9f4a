//! Downloads: what each table of a subscription has to bring, and in which order.
//!
//! All of a sync is read from one snapshot, which the adapter opens. Of each table it tells what the
//! remote holds and whether its changes since then are known; here is decided what that means: the
//! table whole, or partitions that came and went and the changes in those that stayed. Before the
//! first row goes out there is a mark: everything in the snapshot is durable, and the serials of new
//! scopes are noted with it.

mod catching_up;
mod output;
mod plan;
mod resuming;
mod shared;
mod table;

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;

use tidewater_protocol::{Datum, PublicationSchema, RowShape, Value};

use self::output::{Counts, Output};
use self::plan::{Plan, TablePlan};
use self::shared::Shared;
use self::table::TableReading;
use super::connection::{Answer, Own};
use super::evolution::PastSchemas;
use super::publication::{Rule, rules_of};
use super::scope::{Difference, Differences, ScopeChange, Standing, keep};
use super::scripts::{Scripting, Statement, Versions, chosen};
use super::watermark::{TableCursor, Watermark};
use crate::centre::CentreResult;
use crate::context::SyncContext;
use crate::download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadStart, DownloadSubscription, Downloaded,
    Downloading, TableRequest, ToldSettled,
};
use crate::engine::comparing::{self, Comparison};
use crate::engine::refusals;
use crate::engine::upload::columns::{Announced, ColumnMap};
use crate::error::CentreError;
use crate::publication::HandledSpec;
use crate::scope::{Checkpoint, RuleScope, Scope};

type Result<T> = std::result::Result<T, CentreError>;

/// Takes rows, each as it is read: the published columns, and what decides beside them who holds it
/// ([`crate::engine::publication::Publication::row_types`]). An error ends the reading.
pub type TakeRow<'t> = &'t mut (dyn FnMut(&[Datum<'_>]) -> Result<()> + Send);

/// Takes keys (or rows), each with the row that is there now.
pub type TakeKey<'t> = &'t mut (dyn FnMut(&[Datum<'_>], Option<&[Datum<'_>]>) -> Result<()> + Send);

/// A table of a download: the subscription's number in the snapshot, the table's in the publication.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The number of the subscription, counted over all jobs.
    pub subscription: usize,
    /// Index of the table in its publication.
    pub table: usize,
}

/// A publication as it is served: its schema, and how the rows of its tables are packed.
#[derive(Clone, Debug)]
pub struct PublishedSchema {
    /// As the database has it.
    pub schema: Arc<PublicationSchema>,
    /// As remotes are told of it.
    pub announced: Arc<PublicationSchema>,
    /// How rows are packed, in the order of the tables.
    pub shapes: Arc<[RowShape]>,
    /// The tables' rules.
    pub rules: Arc<[Rule]>,
    /// What it was before; some remotes still have that.
    pub past: Arc<PastSchemas>,
    /// The scripts, by version.
    pub scripts: Versions,
    /// What handlers have to say of the tables.
    pub handled: Arc<[HandledSpec]>,
}

/// Rows of a table by one of its rules. More may be read: what is in scope is decided by the rows.
#[derive(Clone, Debug)]
pub struct Part<'p> {
    /// The number of the rule among the table's.
    pub rule: usize,
    /// Those in these partitions; none are asked for by a rule that gives everybody the same.
    pub partitions: Vec<&'p [u8]>,
    /// And in these windows.
    pub bounds: Vec<Bound>,
    /// They are read to be removed where nothing else gives them: also those that the role under
    /// which the remote acts does not see.
    pub leaves: bool,
    /// They come in the order of their keys, as the database has it. Only of one partition.
    pub order: Option<Order<'p>>,
}

/// In the order of the keys.
#[derive(Clone, Debug, Default)]
pub struct Order<'p> {
    /// Only rows behind this key; empty: all.
    pub after: Vec<Datum<'p>>,
}

/// A range of values of a window's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The number of the window among the rule's.
    pub window: usize,
    /// The first value.
    pub from: i64,
    /// The first one behind it, if there is one.
    pub to: Option<i64>,
}

/// A snapshot of the database in which a job is read.
pub trait Snapshot: Send {
    /// What was found out when the snapshot was opened, by subscription; once.
    fn take_opened(&mut self) -> Vec<Opened>;

    /// Sees to it that what the snapshot shows is durable, and notes what became of scopes, in one
    /// transaction if the database can.
    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, Mark>;

    /// About how many rows a table has; 0 if that is not known.
    fn row_estimate(&self, place: Place) -> u64;

    /// Whether a table may have so many rows.
    fn may_have(&self, place: Place, rows: u64) -> bool;

    /// Whether everybody for whom the server's own role reads a table sees the same rows.
    fn is_same_for_all(&mut self, place: Place) -> CentreResult<'_, bool> {
        let _ = place;
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Runs statements on the server's own tables, in the snapshot.
    fn own(&mut self, statements: Vec<Own>) -> CentreResult<'_, Vec<Answer>>;

    /// Reads rows of a table.
    fn rows<'s>(
        &'s mut self,
        place: Place,
        part: &'s Part<'s>,
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()>;

    /// Reads the same rows, each first as a remote keeps it and then as it is sent.
    fn kept_rows<'s>(
        &'s mut self,
        place: Place,
        part: &'s Part<'s>,
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let mut take = |row: &[Datum<'_>]| take(row, Some(row));
            self.rows(place, part, &mut take).await
        })
    }

    /// How many rows of a part, in whatever order, have no key; see
    /// [`keyless_rows`](super::database::Tracking::keyless_rows).
    fn keyless_rows<'s>(&'s mut self, place: Place, part: &'s Part<'s>) -> CentreResult<'s, u64> {
        let _ = (place, part);
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Reads the keys that have changed since what the remote holds, by each of the table's rules
    /// in these partitions; `None`: of everybody.
    fn changes<'s>(
        &'s mut self,
        place: Place,
        asked: &'s [Option<Vec<&'s [u8]>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()>;

    /// Reads rows by their keys.
    fn by_keys<'s>(
        &'s mut self,
        place: Place,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()>;

    /// Runs a query of a script, and reads the rows that it yields.
    fn script<'s>(
        &'s mut self,
        place: Place,
        statement: &'s Statement,
        values: &'s [Value],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()>;

    /// Ends it.
    fn end(&mut self) -> CentreResult<'_, ()>;
}

/// What is known of a subscription in the snapshot.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The publication.
    pub published: PublishedSchema,
    /// Where the snapshot is in the change logs.
    pub position: Vec<u8>,
    /// What the user holds now.
    pub scope: Scope,
    /// The role of the database that reads the rows; empty for the server's own.
    pub role: String,
    /// What the remote holds by each rule, as far as its checkpoint is understood.
    pub held: Vec<Held>,
    /// What the presented serial is worth.
    pub standing: Standing,
    /// Whether the change logs have anything new for the partitions held.
    pub news: bool,
    /// When the mark that the remote presents was made; `None` if this is another history.
    pub marked_ms: Option<i64>,
    /// Everything that was written until then is in the snapshot, or never will be: in microseconds
    /// since 1970. It is only asked for where there are scripts.
    pub safe_until: i64,
}

impl Opened {
    /// The same for a remote that holds nothing.
    fn unheld(self) -> Opened {
        Opened {
            held: vec![Held::default(); self.held.len()],
            standing: Standing::Replaced,
            marked_ms: None,
            ..self
        }
    }
}

/// What a remote holds by a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The rule's place in the checkpoint.
    pub place: Option<usize>,
    /// Whether all changes since then are in the change log.
    pub is_traced: bool,
}

/// A mark that is durable, and the serials in the order of the changes.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The random id.
    pub id: Vec<u8>,
    /// The serials of the scopes that were noted with it, in their order.
    pub serials: Vec<u64>,
}

/// What reading from a snapshot came to.
pub struct Reading {
    /// What became of the downloads.
    pub outcomes: Downloaded,
    /// Nothing more can be read from the snapshot.
    pub is_broken: bool,
}

/// So many rows are read from one snapshot before those that wait have to wait for another one.
const ENOUGH_ROWS: u64 = 20_000;

/// Reads the downloads of some jobs, whose subscriptions are numbered one job after the other.
pub async fn download(
    snapshot: &mut dyn Snapshot,
    downloads: &mut [Downloading<'_>],
) -> Result<Reading> {
    let mut opened = snapshot.take_opened().into_iter();
    let mut all: Vec<Result<Planned>> = Vec::with_capacity(downloads.len());
    let mut first = 0;
    for Downloading { job, .. } in &mut *downloads {
        let opened: Vec<Opened> = opened.by_ref().take(job.subscriptions.len()).collect();
        all.push(plan(snapshot, job, first, opened).await?);
        first += job.subscriptions.len();
    }
    let jobs: Vec<&DownloadJob> = downloads.iter().map(|it| &it.job).collect();
    mark(snapshot, &jobs, &mut all).await?;
    let mut rows = 0;
    let mut shared = Shared::of(all.len());
    let mut outcomes = Vec::with_capacity(all.len());
    let mut is_broken = false;
    for (planned, Downloading { job, sink }) in all.into_iter().zip(downloads) {
        if is_broken || rows > ENOUGH_ROWS {
            outcomes.push(None);
            continue;
        }
        let outcome = match planned {
            Ok(planned) => match planned
                .read(snapshot, job, *sink, &mut rows, &mut shared)
                .await
            {
                Err(error) => {
                    is_broken = !matches!(error, CentreError::Cancelled);
                    Err(error)
                }
                read => read,
            },
            Err(error) => Err(error),
        };
        outcomes.push(Some(outcome));
    }
    if !is_broken {
        snapshot.end().await?;
    }
    Ok(Reading {
        outcomes,
        is_broken,
    })
}

/// What is going to be read of one job.
struct Planned {
    /// The number of its first subscription.
    first: usize,
    plans: Vec<Plan>,
    /// The mark, if one was due.
    mark: Vec<u8>,
}

/// Finds out what a job needs. What cannot be gone on with begins anew.
///
/// # Errors
/// The snapshot is of no more use; the inner error is the job's own.
async fn plan(
    snapshot: &mut dyn Snapshot,
    job: &mut DownloadJob,
    first: usize,
    opened: Vec<Opened>,
) -> Result<Result<Planned>> {
    let told = job.subscriptions.iter().map(|it| &it.schema);
    let mut told = opened.iter().zip(told);
    if let Some((now, _)) = told.find(|(now, told)| now.published.announced != **told) {
        return Ok(Err(CentreError::Redeployed {
            publication: now.published.announced.name.clone(),
        }));
    }
    let mut plans: Vec<Plan> = Vec::with_capacity(job.subscriptions.len());
    for (opened, subscription) in opened.into_iter().zip(&mut job.subscriptions) {
        if let Err(error) = check_given(&opened.published, subscription) {
            return Ok(Err(error));
        }
        let mut opened = opened;
        let mut differences = differences(snapshot, subscription, &opened).await?;
        let is_covered = is_covered(&opened, &differences);
        let covers_image =
            subscription.from_image && is_covered && is_understood(&opened, subscription);
        if subscription.from_image && !is_covered {
            // What leaves the remote would tell keys that its user must not know.
            differences = vec![None; opened.held.len()];
            subscription.checkpoint = None;
            opened = opened.unheld();
        }
        let versions = &opened.published.scripts;
        let scripts = match chosen(versions, &job.context, &subscription.publication) {
            Ok(scripts) => scripts,
            Err(error) => return Ok(Err(error)),
        };
        let scripts = scripts.as_deref();
        let now_ms = job.context.now_ms;
        let resumes = subscription.kept.is_some() && subscription.checkpoint.is_some();
        let whole = resumes.then(|| opened.clone());
        let mut plan = Plan::new(subscription, opened, differences, scripts, now_ms);
        if let Some(opened) = whole.filter(|_| !plan.resume(subscription)) {
            let nothing = vec![None; opened.held.len()];
            subscription.checkpoint = None;
            plan = Plan::new(subscription, opened.unheld(), nothing, scripts, now_ms);
        }
        plan.covers_image = covers_image;
        if job.only_opens {
            plan.is_due = false;
            plans.push(plan);
            continue;
        }
        plan.make_marks(subscription, job.marks);
        plan.settled = settled(snapshot, &job.context, subscription).await?;
        plans.push(plan);
    }
    Ok(Ok(Planned {
        first,
        plans,
        mark: Vec::new(),
    }))
}

/// Makes one mark for all plans that need one, and has it note what became of their scopes.
async fn mark(
    snapshot: &mut dyn Snapshot,
    jobs: &[&DownloadJob],
    all: &mut [Result<Planned>],
) -> Result<()> {
    let mut changes = Vec::new();
    let mut now_ms = None;
    for (planned, job) in all.iter().zip(jobs) {
        let plans = planned.iter().flat_map(|it| &it.plans);
        for (plan, subscription) in plans.zip(&job.subscriptions) {
            if !plan.is_due {
                continue;
            }
            now_ms = now_ms.max(Some(job.context.now_ms));
            if plan.serial.is_none() {
                changes.push(ScopeChange {
                    remote_id: job.context.remote_id,
                    publication: subscription.publication.clone(),
                    presented: subscription.checkpoint.as_ref().map(|it| it.serial),
                    arrived: plan.arrived,
                    kept: keep(&plan.scope.rules, job.context.now_ms),
                });
            }
        }
    }
    let Some(now_ms) = now_ms else {
        return Ok(());
    };
    let made = snapshot.mark(now_ms, changes).await?;
    let mut serials = made.serials.into_iter();
    for planned in all.iter_mut().flatten() {
        planned.mark.clone_from(&made.id);
        for plan in planned.plans.iter_mut().filter(|plan| plan.is_due) {
            if plan.serial.is_none() {
                plan.serial = serials.next();
            }
        }
    }
    Ok(())
}

impl Planned {
    async fn read(
        self,
        snapshot: &mut dyn Snapshot,
        job: &DownloadJob,
        sink: &mut dyn DownloadSink,
        rows: &mut u64,
        shared: &mut Shared,
    ) -> Result<()> {
        for (index, (plan, subscription)) in
            self.plans.into_iter().zip(&job.subscriptions).enumerate()
        {
            let mut counts = Counts::new(plan.marks);
            let mut checkpoint = None;
            let rules = plan.published.rules.iter();
            let watermark = Watermark {
                mark: self.mark.clone(),
                rules: rules.map(|rule| rule.id).collect(),
                position: plan.position.clone(),
                role: plan.role.clone(),
                last_download: None,
                cursors: cursors(subscription),
            };
            let reached = |serial, watermark: Watermark| Checkpoint {
                serial,
                watermark: watermark.encode_to_vec(),
                rules: plan.scope.rules.iter().map(RuleScope::held).collect(),
            };
            let serial = plan.serial.filter(|_| plan.marks.is_some());
            let from = serial.map(|serial| reached(serial, watermark.clone()));
            sink.begin(
                index,
                DownloadStart {
                    scope_changed: plan.scope_changed,
                    checkpoint: match plan.resumed {
                        Some(_) => subscription.checkpoint.clone(),
                        None => from,
                    },
                    resumed: plan.resumed.is_some(),
                    covers_image: plan.covers_image,
                    uncompared: match subscription.compares.is_empty() {
                        true => Vec::new(),
                        false => plan.uncompared(),
                    },
                },
            );
            if let Some(told) = plan.settled.clone() {
                sink.settled(told);
            }
            let holding = plan.holding();
            if plan.is_due {
                let serial = plan.serial.ok_or_else(|| CentreError::Internal {
                    message: "a scope has got no serial".into(),
                })?;
                let versions = &plan.published.scripts;
                let name = &subscription.publication;
                let scripting = Scripting::of(versions, &job.context, name)?
                    .map(|it| it.between(plan.last_download, plan.next_last_download));
                let next_last_download = scripting.as_ref().map(Scripting::next_last_download);
                let reading = SubscriptionReading {
                    scripting,
                    snapshot: &mut *snapshot,
                    subscription,
                    number: self.first + index,
                    plan: &plan,
                };
                reading.read(&mut counts, sink, shared).await?;
                let watermark = Watermark {
                    last_download: next_last_download,
                    ..watermark
                };
                checkpoint = Some(reached(serial, watermark));
            }
            *rows += counts.upserts + counts.removals;
            let outcome = DownloadOutcome {
                checkpoint,
                upserts: counts.upserts,
                removals: counts.removals,
            };
            sink.holds(index, holding);
            sink.end(index, outcome);
        }
        Ok(())
    }
}

/// What operators have settled of the remote's refused rows.
async fn settled(
    snapshot: &mut dyn Snapshot,
    context: &SyncContext,
    subscription: &DownloadSubscription,
) -> Result<Option<ToldSettled>> {
    let from = subscription.refused_from;
    if from == 0 {
        return Ok(None);
    }
    let (remote_id, name) = (context.remote_id, &subscription.publication);
    let asked = refusals::ask_settled(remote_id, name, from, subscription.settled_after);
    let answers = snapshot.own(vec![asked]).await?;
    let told = answers.first().map(refusals::settled).transpose()?;
    Ok(told.filter(|it| *it != ToldSettled::default() || subscription.settled_after > 0))
}

/// Whether a user holds all the partitions that an image does.
fn is_covered(opened: &Opened, differences: &[Option<Difference>]) -> bool {
    let mut rules = opened.held.iter().zip(differences);
    rules.all(|(held, difference)| match difference {
        // A rule that the image knows nothing of.
        None => held.place.is_none(),
        Some(difference) => difference.lost.is_empty(),
    })
}

/// Whether nothing of an image's checkpoint is of a time when other rules or another role decided who
/// holds what.
fn is_understood(opened: &Opened, subscription: &DownloadSubscription) -> bool {
    let Some(checkpoint) = &subscription.checkpoint else {
        return false;
    };
    let placed = opened.held.iter().filter(|it| it.place.is_some()).count();
    let watermark = Watermark::read(&checkpoint.watermark);
    placed == checkpoint.rules.len() && watermark.is_some_and(|it| it.role == opened.role)
}

/// Up to where the remote has what handlers have told, once it has the download.
fn cursors(subscription: &DownloadSubscription) -> Vec<TableCursor> {
    let given = subscription.given.iter();
    let cursors = given.map(|it| TableCursor {
        table: it.table.clone(),
        cursor: it.cursor.clone(),
    });
    cursors.collect()
}

/// Whether handlers have told of all tables that are theirs, and what is new only to remotes that
/// have what was before.
fn check_given(published: &PublishedSchema, subscription: &DownloadSubscription) -> Result<()> {
    let tables = published.schema.tables.iter().zip(&*published.handled);
    for (table, _) in tables.filter(|it| it.1.download && it.0.direction.downloads()) {
        let mut given = subscription.given.iter();
        let Some(given) = given.find(|it| it.table == table.name) else {
            return Err(CentreError::NotDeployed {
                message: format!(
                    "the table {:?} is deployed with a handler for downloads, and this server's \
                     configuration names none",
                    table.name
                ),
            });
        };
        let checkpoint = subscription.checkpoint.as_ref();
        if !given.whole && checkpoint.and_then(|it| it.cursor(&table.name)).is_none() {
            return Err(CentreError::Internal {
                message: format!("what is new in {:?} was given to nobody", table.name),
            });
        }
    }
    Ok(())
}

/// How the scope differs from what the remote holds, by rule.
async fn differences(
    snapshot: &mut dyn Snapshot,
    subscription: &DownloadSubscription,
    opened: &Opened,
) -> Result<Vec<Option<Difference>>> {
    let checkpoint = subscription.checkpoint.as_ref();
    let held = opened.held.iter();
    let held = held.map(|held| Some(&checkpoint?.rules[held.place?]));
    let mut differences = Differences::of(opened.scope.rules.iter().zip(held));
    loop {
        let asked = differences.ask();
        if asked.is_empty() {
            return Ok(differences.found());
        }
        let answers = snapshot.own(asked).await?;
        differences.answer(&answers)?;
    }
}

/// One subscription as it is read.
struct SubscriptionReading<'a> {
    snapshot: &'a mut dyn Snapshot,
    subscription: &'a DownloadSubscription,
    /// Its number in the snapshot.
    number: usize,
    plan: &'a Plan,
    scripting: Option<Scripting<'a>>,
}

impl SubscriptionReading<'_> {
    async fn read(
        self,
        counts: &mut Counts,
        sink: &mut dyn DownloadSink,
        shared: &mut Shared,
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
            let place = Place {
                subscription: self.number,
                table: index,
            };
            let before = (counts.upserts, counts.removals);
            let shape = &shapes[index];
            let only_compared = *what == TablePlan::Whole && compares[index].is_some();
            let by_script = matches!(what, TablePlan::Scripted { .. });
            let whole = match what {
                TablePlan::Scripted { whole } | TablePlan::Given { whole, .. } => *whole,
                what => *what == TablePlan::Whole && !only_compared,
            };
            let in_units = self.plan.in_units_from(index, &*self.snapshot, place);
            let mut output = Output::new(table, shape, counts, &mut *sink);
            let goes_on = matches!(what, TablePlan::Rest(_));
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
                let mut given = self.subscription.given.iter();
                if let Some(given) = given.find(|it| it.table == table.name) {
                    reading.given(given, whole)?;
                }
            } else if let Some(scripting) = self.scripting.as_ref().filter(|_| by_script) {
                let own = self.subscription.own.as_ref();
                reading
                    .by_script(scripting, &table.name, whole, own)
                    .await?;
            } else if let Some(from) = in_units {
                if *what != TablePlan::Whole {
                    reading.planned(what, None, self.plan.has_changes).await?;
                }
                reading.in_units(&from).await?;
            } else if !only_compared {
                let mut same = shared.asked(self.plan, index, self.subscription);
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
                    reading.planned(what, own, self.plan.has_changes).await?;
                    let noted = reading.output.noted()?;
                    if let Some((same, noted)) = same.zip(noted) {
                        shared.note(same, noted);
                    }
                }
                let added = &self.plan.added[index];
                if let (TablePlan::Changes(_), false) = (what, added.is_empty()) {
                    reading.new_columns(added).await?;
                }
            }
            // A table that is sent whole has the requested rows already.
            if !whole {
                for (map, request) in asked.into_iter().flatten() {
                    reading.answer(&map, request).await?;
                }
            }
            output.flush(1)?;
            if let Some(scripting) = &self.scripting {
                let (upserts, removals) = (counts.upserts - before.0, counts.removals - before.1);
                for (name, count) in [("fetched_rows", upserts), ("deleted_rows", removals)] {
                    scripting.count(&table.name, name, count);
                }
            }
        }
        for (index, theirs) in compares.into_iter().enumerate() {
            // What a handler or a script tells is not what the rules yield.
            let is_told = matches!(
                self.plan.tables[index],
                TablePlan::Given { .. } | TablePlan::Scripted { .. }
            );
            let Some(theirs) = theirs.filter(|_| !is_told) else {
                continue;
            };
            let shape = &shapes[index];
            let mut output = Output::new(&schema.tables[index], shape, counts, &mut *sink);
            let mut reading = TableReading {
                snapshot: &mut *self.snapshot,
                place: Place {
                    subscription: self.number,
                    table: index,
                },
                shape,
                rules: &rules[rules_of(rules, index)],
                scope: &self.plan.scope.rules[rules_of(rules, index)],
                output: &mut output,
            };
            // Of a table that would go whole, nobody knows what changed in it.
            let follows = matches!(self.plan.tables[index], TablePlan::Changes { .. });
            reading
                .compare(Comparison::new(shape, theirs)?, follows)
                .await?;
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
        if let Announced::Published(index, map) = announced {
            by_table.entry(index).or_default().push((map, request));
        }
    }
    Ok(by_table)
}
