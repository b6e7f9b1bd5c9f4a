//! Opening a snapshot: where it is in the change logs, what each subscription's remote has seen of
//! them, and what its user holds now; in one flight where the database can.

use std::sync::Arc;

use super::snapshot::{DownloadSnapshot, SubscriptionAccess};
use super::snapshot_driver::{
    HistoryAnswer, HistoryQuestion, OpeningFailure, SafeTime, SnapshotDriver,
};
use super::{OpenedSubscription, RuleHolding};
use crate::download::DownloadJob;
use crate::engine::acting::DatabaseRole;
use crate::engine::assumed_role::{AssumedRole, RoleQuestion};
use crate::engine::connection::{DatabaseConnection, SystemStatement, TransactionMode};
use crate::engine::exact::unpack;
use crate::engine::flight::{
    FlightStep, RowParameters as _, RowSource, TableStatement, ValueTypes,
};
use crate::engine::publication::Publication;
use crate::engine::scope::asking::share;
use crate::engine::scope::{ScopePurpose, ScopeQuestions, SerialValidity};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::condition_arguments::ConditionArguments;
use crate::engine::sql::reading::new_entries;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::watermark::PresentedCheckpoint;
use crate::error::CentreError;
use crate::scope::{Partitions, Scope};

type Result<T> = std::result::Result<T, CentreError>;

/// What is asked for one job, in the name of its user.
struct JobQuestions<'j, T: TableAdapter> {
    publications: Vec<&'j Publication<T>>,
    says: Vec<SystemStatement>,
    scopes: ScopeQuestions<'j>,
    answers: Vec<Partitions>,
    /// By publication.
    roles: Vec<(RoleQuestion<'j>, Vec<DatabaseRole>)>,
}

impl<'j, T: TableAdapter> JobQuestions<'j, T> {
    fn new(
        says: Vec<SystemStatement>,
        job: &DownloadJob,
        publications: Vec<&'j Publication<T>>,
    ) -> JobQuestions<'j, T> {
        let scopes = ScopeQuestions::new(&job.context, &publications, ScopePurpose::Reading);
        let roles = publications.iter();
        let roles = roles.map(|it| (RoleQuestion::new(&job.context, *it), Vec::new()));
        JobQuestions {
            roles: roles.collect(),
            says,
            answers: scopes.no_answers(),
            scopes,
            publications,
        }
    }

    fn steps<'s>(&'s mut self) -> Vec<FlightStep<'s, T>> {
        let mut steps: Vec<FlightStep<'s, T>> = self.says.iter().map(FlightStep::System).collect();
        steps.extend(self.scopes.steps(&self.publications, &mut self.answers));
        let roles = self.roles.iter_mut();
        steps.extend(roles.filter_map(|(question, found)| question.step(found)));
        steps
    }

    /// What it means that one of the steps has failed.
    fn explain(&self, step: usize, error: CentreError) -> CentreError {
        let Some(question) = step.checked_sub(self.says.len()) else {
            return error;
        };
        let Some(role) = question.checked_sub(self.scopes.list.len()) else {
            return self.scopes.explain(&self.publications, question, error);
        };
        let mut asked = self.roles.iter().filter(|it| it.0.is_asked());
        match asked.nth(role) {
            Some((question, _)) => question.explain(error),
            None => error,
        }
    }

    /// What the user holds, and the role that reads it, by publication.
    fn scopes<C: DatabaseConnection>(self) -> Result<Vec<(Scope, AssumedRole)>> {
        let answers = share(self.answers);
        let roles = self.roles.iter().enumerate();
        let scopes = roles.map(|(index, (question, found))| {
            let scope = self.scopes.scope(index, &answers)?;
            Ok((scope, question.role(C::DIALECT, found)?))
        });
        scopes.collect()
    }
}

impl<D: SnapshotDriver> DownloadSnapshot<D> {
    /// Opens the snapshot in which some jobs are read, and looks what each subscription has. The
    /// publications are those of the subscriptions, in their order.
    ///
    /// # Errors
    /// The database failed, or a query of an operator.
    pub async fn open(
        mut driver: D,
        publications: Vec<Arc<Publication<D::Tables>>>,
        jobs: &[&DownloadJob],
    ) -> Result<DownloadSnapshot<D>> {
        let now_ms = jobs.iter().map(|it| it.context.now_ms).min();
        let has_scripts = publications.iter().flat_map(|it| it.scripts.values());
        // Before the snapshot: who is not in it has begun by then, or later.
        let safe_time = match has_scripts.into_iter().any(|it| it.has_downloads()) {
            true => Some(driver.find_safe_time(now_ms.unwrap_or_default()).await?),
            false => None,
        };
        let (opened, readings) = loop {
            if let Some(found) = try_to_open(&mut driver, &publications, jobs, safe_time).await? {
                break found;
            }
            driver.connection().rollback().await?;
        };
        let who = jobs.iter().map(|it| &it.context);
        let who = who.map(|it| [it.user.clone(), it.remote_id.to_string()]);
        let who = who.collect();
        Ok(DownloadSnapshot::new(
            driver,
            publications,
            who,
            opened,
            readings,
        ))
    }
}

type OpenedReadings<S> = (Vec<OpenedSubscription>, Vec<SubscriptionAccess<S>>);

async fn try_to_open<D: SnapshotDriver>(
    driver: &mut D,
    publications: &[Arc<Publication<D::Tables>>],
    jobs: &[&DownloadJob],
    safe_time: Option<SafeTime>,
) -> Result<Option<OpenedReadings<D::Seen>>> {
    let dialect = D::Connection::DIALECT;
    let mut rest = publications.iter().map(|it| &**it);
    let (mut asking, mut asked, mut of_job) = (Vec::new(), Vec::new(), Vec::new());
    for (number, job) in jobs.iter().enumerate() {
        let own: Vec<_> = rest.by_ref().take(job.subscriptions.len()).collect();
        for (&publication, subscription) in own.iter().zip(&job.subscriptions) {
            let checkpoint = subscription.checkpoint.as_ref();
            asked.push(HistoryQuestion {
                remote_id: job.context.remote_id,
                now_ms: job.context.now_ms,
                publication,
                subscription,
                presented: checkpoint.and_then(PresentedCheckpoint::from_checkpoint),
            });
            of_job.push(number);
        }
        let context = &job.context;
        let says = dialect.say_caller(&context.user, &context.remote_id.to_string(), true);
        asking.push(JobQuestions::new(says, job, own));
    }
    let begin = FlightStep::run(begin::<D>(publications));
    let (mut others, mut places) = (Vec::new(), Vec::new());
    for job in &mut asking {
        places.push(others.len());
        others.extend(job.steps());
    }
    let answers = driver.open(&asked, begin, others).await;
    let answers = answers.map_err(|OpeningFailure { other, error }| {
        let step = other.unwrap_or(usize::MAX);
        let job = places.iter().rposition(|first| *first <= step);
        match (other, job) {
            (Some(step), Some(job)) => asking[job].explain(step - places[job], error),
            _ => error,
        }
    })?;
    let Some(answers) = answers else {
        return Ok(None);
    };
    let mut scopes = Vec::with_capacity(asked.len());
    for job in asking {
        scopes.extend(job.scopes::<D::Connection>()?);
    }
    let (mut opened, mut readings) = (Vec::new(), Vec::new());
    let all = asked.iter().zip(answers).zip(scopes).zip(of_job);
    for (((asked, answer), (scope, acting)), job) in all {
        let news = answer.news || has_news(driver, asked, &answer, &scope).await?;
        let rules = asked.publication.rules.iter().zip(&answer.is_traced);
        let held = rules.map(|(rule, &is_traced)| RuleHolding {
            place: asked.presented.as_ref().and_then(|it| it.place(rule.id)),
            is_traced,
        });
        let watermark = asked.presented.as_ref().map(|it| &it.watermark);
        // Times of another history say nothing of this one.
        let watermark = watermark.filter(|_| answer.marked_ms.is_some());
        let last_download = watermark.and_then(|it| it.last_download);
        let serial = asked.subscription.checkpoint.as_ref().map(|it| it.serial);
        opened.push(OpenedSubscription {
            published: asked.publication.published(),
            position: answer.position,
            role: acting.role().to_owned(),
            scope,
            held: held.collect(),
            standing: SerialValidity::from_serials(serial, answer.serials),
            news,
            marked_ms: answer.marked_ms,
            safe_until: safe_time.map(|it| it.for_remote(last_download)),
        });
        readings.push(SubscriptionAccess {
            job,
            seen: answer.seen,
            acting,
        });
    }
    Ok(Some((opened, readings)))
}

/// Begins the snapshot with the tables locked as reading them would: what does not go by
/// snapshots has happened for all of the download or for none of it.
fn begin<D: SnapshotDriver>(publications: &[Arc<Publication<D::Tables>>]) -> String {
    let dialect = D::Connection::DIALECT;
    let begin = dialect.begin(TransactionMode::Reading);
    let tables = publications.iter().flat_map(|it| &it.tables);
    let tables = tables.filter(|table| table.direction.downloads());
    let mut tables: Vec<&str> = tables.map(|table| table.sql_name.as_str()).collect();
    tables.sort_unstable();
    tables.dedup();
    let lock = match tables.is_empty() {
        true => String::new(),
        false => dialect.lock_read(&tables.join(", ")),
    };
    match lock.is_empty() {
        true => begin.to_owned(),
        false => format!("{begin}; {lock}"),
    }
}

/// Whether the logs of which it is not known yet have anything new for what is held now. If other
/// partitions were held, there is something to do anyway.
async fn has_news<D: SnapshotDriver>(
    driver: &mut D,
    asked: &HistoryQuestion<'_, D::Tables>,
    answer: &HistoryAnswer<D::Seen>,
    scope: &Scope,
) -> Result<bool> {
    let dialect = D::Connection::DIALECT;
    let Some(seen) = &answer.seen else {
        return Ok(false);
    };
    let tables = asked.publication.tables.iter().flat_map(|it| &it.rules);
    let tables: Vec<_> = tables.collect();
    for &number in &answer.unasked {
        let (rule, of_table) = (&asked.publication.rules[number], tables[number]);
        let mut arguments = ConditionArguments::new(dialect);
        let unseen = D::unseen(seen, number, &mut arguments);
        let kinds: Vec<_> = of_table.columns.iter().map(|it| it.kind()).collect();
        let mut rows = <D::Tables as ValueTypes>::Rows::new(&kinds);
        let has_partitions = !of_table.columns.is_empty();
        let source = match has_partitions {
            false => RowSource::none(),
            true => {
                for packed in scope.rules[number].partitions.iter() {
                    rows.push(&unpack(packed, &rule.types)?);
                }
                <D::Tables as ValueTypes>::Rows::source(&kinds, arguments.next())
            }
        };
        let sql = new_entries(dialect, of_table, &source, &unseen);
        let mut statement = TableStatement::new("looking for changes", sql);
        statement.arguments = arguments.into_list();
        statement.rows.extend(has_partitions.then_some(&rows));
        let mut is_found = false;
        let step = FlightStep::table(statement, |_| {
            is_found = true;
            Ok(())
        });
        driver
            .connection()
            .run("looking for changes", vec![step])
            .await?;
        if is_found {
            return Ok(true);
        }
    }
    Ok(false)
}
