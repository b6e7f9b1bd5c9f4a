//! Taking the numbers of uploads, and opening the tables that they write, in one flight.

use super::incoming_rows::IncomingTable;
use super::row_batch::ClaimedSequence;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{take, taken};
use crate::engine::assumed_role::{AssumedRole, RoleQuestion};
use crate::engine::connection::{DatabaseConnection, SystemStatement};
use crate::engine::flight::FlightStep;
use crate::engine::publication::Publication;
use crate::engine::scope::asking::share;
use crate::engine::scope::{ScopePurpose, ScopeQuestions};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::error::CentreError;
use crate::scope::Partitions;
use crate::upload::SyncUpload;

type Result<T> = std::result::Result<T, CentreError>;

/// The questions of one upload, in the name of its user.
struct UploadQuestions<'u> {
    says: Vec<SystemStatement>,
    scope: ScopeQuestions<'u>,
    answers: Vec<Partitions>,
}

/// Takes the numbers of uploads of one publication, sees to it that nobody changes their tables, and
/// evaluates their scopes, in their order. `None` if the number does not follow.
pub(super) async fn claim_sequence<'u, R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &'u Publication<R::Tables>,
    uploads: &[&'u SyncUpload],
    tables: &[IncomingTable<'u, R::Tables>],
) -> Result<Vec<Option<ClaimedSequence>>> {
    let dialect = R::Connection::DIALECT;
    let publications = [publication];
    // Rows of several are written for all of them: nobody looks who uploads. Their queries may.
    let alone = match uploads {
        [upload] => Some(&upload.context),
        _ => None,
    };
    let mut questions: Vec<UploadQuestions<'_>> = Vec::with_capacity(uploads.len());
    for upload in uploads {
        let remote = upload.context.remote_id.to_string();
        let scope = ScopeQuestions::new(&upload.context, &publications, ScopePurpose::Writing);
        questions.push(UploadQuestions {
            says: dialect.say_caller(&upload.context.user, &remote, alone.is_none()),
            answers: scope.no_answers(),
            scope,
        });
    }
    let role = alone.map(|context| RoleQuestion::new(context, publication));
    let mut roles = Vec::new();
    let mut live = R::LiveTables::default();
    let lock = lock(dialect, tables);
    let take = take(uploads);
    let nobody = match alone {
        Some(_) => Vec::new(),
        None => dialect.say_caller("", "", true),
    };
    let mut steps: Vec<FlightStep<'_, R::Tables>> = vec![FlightStep::run(lock)];
    steps.extend(take.iter().map(FlightStep::System));
    let is_taken = steps.len();
    steps.extend(R::look_at_tables(tables, &mut live));
    // The number of each upload's first question.
    let mut places = Vec::with_capacity(questions.len());
    for asked in &mut questions {
        steps.extend(asked.says.iter().map(FlightStep::System));
        places.push(steps.len());
        steps.extend(asked.scope.steps(&publications, &mut asked.answers));
    }
    steps.extend(nobody.iter().map(FlightStep::System));
    let role_step = steps.len();
    steps.extend(role.as_ref().and_then(|it| it.step(&mut roles)));
    let answers = match rows.connection().run("admitting an upload", steps).await {
        Ok(answers) => answers,
        Err(failure) => {
            // What is wrong with a question is no matter of an upload that is not taken.
            let done = failure.done.as_ref().and_then(|it| it.get(..is_taken));
            let taken = done.map(|it| taken(it, uploads)).transpose()?;
            if taken.is_some_and(|it| it.iter().all(Option::is_none)) {
                return Ok(uploads.iter().map(|_| None).collect());
            }
            if let Some(role) = role.as_ref().filter(|_| failure.step == role_step) {
                return Err(role.explain(failure.error));
            }
            let of = places.iter().zip(&questions);
            let of = of.rev().find(|(first, _)| **first <= failure.step);
            return Err(match of {
                Some((first, asked)) => {
                    let number = failure.step - first;
                    asked.scope.explain(&publications, number, failure.error)
                }
                None => failure.error,
            });
        }
    };
    let taken = taken(&answers[..is_taken], uploads)?;
    if taken.iter().all(Option::is_none) {
        return Ok(taken.into_iter().map(|_| None).collect());
    }
    let role = role.map(|it| it.role(dialect, &roles)).transpose()?;
    rows.open_tables(live, role.unwrap_or_default());
    let mut claimed = Vec::with_capacity(uploads.len());
    for (serials, asked) in taken.into_iter().zip(questions) {
        claimed.push(match serials {
            None => None,
            Some(serials) => Some(ClaimedSequence {
                serials,
                scope: asked.scope.scope(0, &share(asked.answers))?,
            }),
        });
    }
    Ok(claimed)
}

/// Sees to it that nobody changes these tables, of which rows are written that no remote uploads.
pub(super) async fn lock_tables<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    tables: &[IncomingTable<'_, R::Tables>],
) -> Result<()> {
    let dialect = R::Connection::DIALECT;
    let nobody = dialect.forget_caller();
    let mut live = R::LiveTables::default();
    let mut steps = vec![FlightStep::run(lock(dialect, tables))];
    steps.extend(R::look_at_tables(tables, &mut live));
    steps.extend(nobody.iter().map(FlightStep::System));
    rows.connection().run("opening tables", steps).await?;
    rows.open_tables(live, AssumedRole::default());
    Ok(())
}

/// With this nobody can change the tables or add a trigger before the transaction ends.
fn lock<T: TableAdapter>(dialect: &dyn SqlDialect, tables: &[IncomingTable<'_, T>]) -> String {
    let written = tables.iter().filter(|it| it.is_open);
    let mut names: Vec<&str> = written.map(|it| it.table.sql_name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => String::new(),
        false => dialect.lock_written(&names.join(", ")),
    }
}
