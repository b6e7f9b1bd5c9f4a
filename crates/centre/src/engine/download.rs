//! Downloads: what each table of a subscription has to bring, and in which order.
//!
//! All of a sync is read from one snapshot, which the adapter opens. Of each table it tells what the
//! remote holds and whether its changes since then are known; here is decided what that means: the
//! table whole, or partitions that came and went and the changes in those that stayed. Before the
//! first row goes out there is a mark: everything in the snapshot is durable, and the serials of new
//! scopes are noted with it.

mod catching_up;
pub mod opening;
mod output;
mod plan;
mod reading;
mod resuming;
mod shared_readings;
pub mod snapshot;
pub mod snapshot_driver;
mod table;

use prost::Message;

use tidewater_protocol::Datum;

use self::output::SentCounts;
use self::plan::SubscriptionPlan;
use self::reading::SubscriptionReading;
use self::shared_readings::SharedReadings;
use self::snapshot::DownloadSnapshot;
use self::snapshot_driver::SnapshotDriver;
use super::scope::{RuleDifference, ScopeChange, ScopeDifferences, SerialValidity, keep};
use super::scripts::{ScriptEnvironment, chosen};
use crate::context::SyncContext;
use crate::download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadStart, DownloadSubscription, Downloaded,
    RunningDownloads, ToldSettled,
};
use crate::engine::publication::PublishedSchema;
use crate::engine::refusals;
use crate::engine::served_publications::ServedPublications;
use crate::engine::window::WindowBound;
use crate::error::CentreError;
use crate::scope::{Checkpoint, RuleScope, Scope};
use crate::watermark::{TableCursor, Watermark};

type Result<T> = std::result::Result<T, CentreError>;

/// Takes keys (or rows), each with the row that is there now.
pub type TakeKey<'t> = &'t mut (dyn FnMut(&[Datum<'_>], Option<&[Datum<'_>]>) -> Result<()> + Send);

/// A table of a download: the subscription's number in the snapshot, the table's in the publication.
#[derive(Clone, Copy, Debug)]
pub struct TablePlace {
    /// The number of the subscription, counted over all jobs.
    pub subscription: usize,
    /// Index of the table in its publication.
    pub table: usize,
}

/// Rows of a table by one of its rules. More may be read: what is in scope is decided by the rows.
#[derive(Clone, Debug)]
pub struct RuleRows<'p> {
    /// The number of the rule among the table's.
    pub rule: usize,
    /// Those in these partitions; none are asked for by a rule that gives everybody the same.
    pub partitions: Vec<&'p [u8]>,
    /// And in these windows.
    pub bounds: Vec<WindowBound>,
    /// They are read to be removed where nothing else gives them: also those that the role under
    /// which the remote acts does not see.
    pub leaves: bool,
    /// They come in the order of their keys, as the database has it. Only of one partition.
    pub order: Option<KeyOrder<'p>>,
}

/// In the order of the keys.
#[derive(Clone, Debug, Default)]
pub struct KeyOrder<'p> {
    /// Only rows behind this key; empty: all.
    pub after: Vec<Datum<'p>>,
}

/// What is known of a subscription in the snapshot.
#[derive(Clone, Debug)]
pub struct OpenedSubscription {
    /// The publication.
    pub published: PublishedSchema,
    /// Where the snapshot is in the change logs.
    pub position: Vec<u8>,
    /// What the user holds now.
    pub scope: Scope,
    /// The role of the database that reads the rows; empty for the server's own.
    pub role: String,
    /// What the remote holds by each rule, as far as its checkpoint is understood.
    pub held: Vec<RuleHolding>,
    /// What the presented serial is worth.
    pub standing: SerialValidity,
    /// Whether the change logs have anything new for the partitions held.
    pub news: bool,
    /// When the mark that the remote presents was made; `None` if this is another history.
    pub marked_ms: Option<i64>,
    /// Everything that was written until then is in the snapshot, or never will be: in microseconds
    /// since 1970. `None` if no script gives rows: then nobody has asked.
    pub safe_until: Option<i64>,
}

impl OpenedSubscription {
    /// The same for a remote that holds nothing.
    fn unheld(self) -> OpenedSubscription {
        OpenedSubscription {
            held: vec![RuleHolding::default(); self.held.len()],
            standing: SerialValidity::Replaced,
            marked_ms: None,
            ..self
        }
    }
}

/// What a remote holds by a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleHolding {
    /// The rule's place in the checkpoint.
    pub place: Option<usize>,
    /// Whether all changes since then are in the change log.
    pub is_traced: bool,
}

/// What reading from a snapshot came to.
pub struct SnapshotReading {
    /// What became of the downloads.
    pub outcomes: Downloaded,
    /// Nothing more can be read from the snapshot.
    pub is_broken: bool,
}

/// So many rows are read from one snapshot before those that wait have to wait for another one.
const ENOUGH_ROWS: u64 = 20_000;

/// Reads downloads, several from one snapshot: as long as nobody's rows are read under a role, which
/// holds for all of a transaction. Of what is left `None` is told.
///
/// # Errors
/// The database failed, or a query of an operator.
pub async fn read_downloads<D: SnapshotDriver>(
    driver: D,
    served: &ServedPublications<D::Tables>,
    downloads: &mut [RunningDownloads<'_>],
) -> Result<SnapshotReading> {
    let publications = |downloads: &[RunningDownloads<'_>]| {
        let names = downloads.iter().flat_map(|it| &it.job.subscriptions);
        let found = names.map(|it| served.publication(&it.publication).cloned());
        found.collect::<Result<Vec<_>>>()
    };
    let acts = publications(downloads)?
        .iter()
        .any(|it| it.act_as.is_some());
    let count = match acts {
        true => downloads.len().min(1),
        false => downloads.len(),
    };
    let (some, rest) = downloads.split_at_mut(count);
    let jobs: Vec<&DownloadJob> = some.iter().map(|it| &it.job).collect();
    let mut snapshot = DownloadSnapshot::open(driver, publications(some)?, &jobs).await?;
    let mut reading = download(&mut snapshot, some).await?;
    reading.outcomes.extend(rest.iter().map(|_| None));
    Ok(reading)
}

/// Reads the downloads of some jobs, whose subscriptions are numbered one job after the other.
async fn download<D: SnapshotDriver>(
    snapshot: &mut DownloadSnapshot<D>,
    downloads: &mut [RunningDownloads<'_>],
) -> Result<SnapshotReading> {
    let mut opened = snapshot.take_opened().into_iter();
    let mut all: Vec<Result<PlannedJob>> = Vec::with_capacity(downloads.len());
    let mut first = 0;
    for RunningDownloads { job, .. } in &mut *downloads {
        let opened: Vec<OpenedSubscription> =
            opened.by_ref().take(job.subscriptions.len()).collect();
        all.push(plan(snapshot, job, first, opened).await?);
        first += job.subscriptions.len();
    }
    let jobs: Vec<&DownloadJob> = downloads.iter().map(|it| &it.job).collect();
    mark(snapshot, &jobs, &mut all).await?;
    let mut rows = 0;
    let mut shared = SharedReadings::new(all.len());
    let mut outcomes = Vec::with_capacity(all.len());
    let mut is_broken = false;
    for (planned, RunningDownloads { job, sink }) in all.into_iter().zip(downloads) {
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
    Ok(SnapshotReading {
        outcomes,
        is_broken,
    })
}

/// What is going to be read of one job.
struct PlannedJob {
    /// The number of its first subscription.
    first: usize,
    plans: Vec<SubscriptionPlan>,
    /// The mark, if one was due.
    mark: Vec<u8>,
}

/// Finds out what a job needs. What cannot be gone on with begins anew.
///
/// # Errors
/// The snapshot is of no more use; the inner error is the job's own.
async fn plan<D: SnapshotDriver>(
    snapshot: &mut DownloadSnapshot<D>,
    job: &mut DownloadJob,
    first: usize,
    opened: Vec<OpenedSubscription>,
) -> Result<Result<PlannedJob>> {
    let told = job.subscriptions.iter().map(|it| &it.schema);
    let mut told = opened.iter().zip(told);
    if let Some((now, _)) = told.find(|(now, told)| now.published.announced != **told) {
        return Ok(Err(CentreError::Redeployed {
            publication: now.published.announced.name.clone(),
        }));
    }
    let is_own = |it: &&DownloadSubscription| it.part_of.is_none();
    let own = job.subscriptions.iter().filter(is_own).count();
    let (subscriptions, parts) = job.subscriptions.split_at_mut(own);
    let mut opened = opened.into_iter();
    let all: Vec<OpenedSubscription> = opened.by_ref().take(own).collect();
    let mut parts: Vec<_> = (own..).zip(parts.iter().zip(opened)).collect();
    let mut plans: Vec<SubscriptionPlan> = Vec::with_capacity(own);
    for (number, (opened, subscription)) in all.into_iter().zip(subscriptions).enumerate() {
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
        let mut plan = SubscriptionPlan::new(subscription, opened, differences, scripts, now_ms);
        let of_this = parts.iter().position(|it| it.1.0.part_of == Some(number));
        if let Some((index, (part, opened))) = of_this.map(|at| parts.swap_remove(at))
            && let Some(checkpoint) = &part.checkpoint
        {
            // What a result tells to be lost again is of the part, too.
            let part = DownloadSubscription {
                gained: subscription.gained.clone(),
                ..part.clone()
            };
            let differences = self::differences(snapshot, &part, &opened).await?;
            let since = SubscriptionPlan::new(&part, opened, differences, scripts, now_ms);
            plan.resume(
                subscription,
                since,
                (first + index, index, checkpoint.serial),
            );
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
    Ok(Ok(PlannedJob {
        first,
        plans,
        mark: Vec::new(),
    }))
}

/// Makes one mark for all plans that need one, and has it note what became of their scopes.
async fn mark<D: SnapshotDriver>(
    snapshot: &mut DownloadSnapshot<D>,
    jobs: &[&DownloadJob],
    all: &mut [Result<PlannedJob>],
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

impl PlannedJob {
    async fn read<D: SnapshotDriver>(
        self,
        snapshot: &mut DownloadSnapshot<D>,
        job: &DownloadJob,
        sink: &mut dyn DownloadSink,
        rows: &mut u64,
        shared: &mut SharedReadings,
    ) -> Result<()> {
        for (index, (plan, subscription)) in
            self.plans.into_iter().zip(&job.subscriptions).enumerate()
        {
            let mut counts = SentCounts::new(plan.marks);
            let mut checkpoint = None;
            let rules = plan.published.rules.iter();
            let watermark = Watermark {
                mark: self.mark.clone(),
                rules: rules.map(|rule| rule.id).collect(),
                position: plan.position.clone(),
                role: plan.role.clone(),
                last_download: None,
                cursors: cursors(subscription),
                is_by_clock: false,
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
                    checkpoint: match &plan.resumed {
                        Some(part) => job.subscriptions[part.index].checkpoint.clone(),
                        None => from,
                    },
                    resumed: plan.resumed.is_some(),
                    covers_image: plan.covers_image,
                    uncompared: plan.uncompared(subscription),
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
                let scripting = ScriptEnvironment::for_sync(versions, &job.context, name)?
                    .map(|it| it.between(plan.last_download, plan.next_last_download));
                let next_last_download = scripting
                    .as_ref()
                    .map(ScriptEnvironment::next_last_download);
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
                    is_by_clock: plan.is_by_clock && next_last_download.is_some(),
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
async fn settled<D: SnapshotDriver>(
    snapshot: &mut DownloadSnapshot<D>,
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
fn is_covered(opened: &OpenedSubscription, differences: &[Option<RuleDifference>]) -> bool {
    let mut rules = opened.held.iter().zip(differences);
    rules.all(|(held, difference)| match difference {
        // A rule that the image knows nothing of.
        None => held.place.is_none(),
        Some(difference) => difference.lost.is_empty(),
    })
}

/// Whether nothing of an image's checkpoint is of a time when other rules or another role decided who
/// holds what.
fn is_understood(opened: &OpenedSubscription, subscription: &DownloadSubscription) -> bool {
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
async fn differences<D: SnapshotDriver>(
    snapshot: &mut DownloadSnapshot<D>,
    subscription: &DownloadSubscription,
    opened: &OpenedSubscription,
) -> Result<Vec<Option<RuleDifference>>> {
    let checkpoint = subscription.checkpoint.as_ref();
    let held = opened.held.iter();
    let held = held.map(|held| Some(&checkpoint?.rules[held.place?]));
    let mut differences = ScopeDifferences::new(opened.scope.rules.iter().zip(held));
    loop {
        let asked = differences.ask();
        if asked.is_empty() {
            return Ok(differences.found());
        }
        let answers = snapshot.own(asked).await?;
        differences.answer(&answers)?;
    }
}
