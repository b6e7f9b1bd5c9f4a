//! The server's own tables in the database: making them, and whether they are there.

use super::connection::DatabaseConnection;
use super::deployment_journal::DeploymentJournal;
use super::sql::system::meta;
use super::sql::tables;
use crate::engine::change_tracking::ChangeTracking;
use crate::error::CentreError;

/// The format version that this code reads and writes.
const FORMAT_VERSION: i64 = 1;

/// What there is of the server's own tables.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundState {
    /// None of them.
    Nothing,
    /// Some, or none, because the deployment that made or dropped them has ended before it had done:
    /// they are of no use to anybody.
    Remains,
    /// All of them.
    Whole {
        /// Whether the last deployment has ended before it had done everything.
        is_unfinished: bool,
    },
}

/// The statements that make the server's own tables. Its row in `META` is the last thing that is made.
pub fn create_tables<T: ChangeTracking>() -> Vec<String> {
    let dialect = T::dialect();
    let mut statements: Vec<String> = Vec::new();
    statements.extend(dialect.state_prelude().iter().map(|&it| it.to_owned()));
    let others = tables::ALL.iter().filter(|it| it.name != tables::META.name);
    statements.extend(others.flat_map(|it| dialect.create_table(it)));
    statements.extend(T::LOGS.iter().map(|it| {
        let mut sql = String::new();
        dialect.push_text(&mut sql, it);
        sql
    }));
    statements.extend(dialect.create_table(&tables::META));
    statements.push(dialect.spell(meta::insert().sql));
    statements
}

/// The server's own tables but for the journal, by their neutral names, in the order in which they
/// are dropped. Of the adapter's each `CREATE TABLE` begins a line.
pub fn own_tables<T: ChangeTracking>() -> Vec<&'static str> {
    let logs = T::LOGS.iter().flat_map(|it| it.lines());
    let logs = logs.filter_map(|line| line.strip_prefix("CREATE TABLE tidewater."));
    let logs = logs.filter_map(|table| table.split_whitespace().next());
    tables::ALL.iter().map(|it| it.name).chain(logs).collect()
}

/// Looks what there is of the server's own tables.
///
/// # Errors
/// Some are missing, though others are there, and no deployment is the reason; or a newer program has
/// been here.
pub(super) async fn find_state<T: ChangeTracking>(
    connection: &mut T::Connection,
) -> Result<FoundState, CentreError> {
    let journal = DeploymentJournal::read::<T>(connection).await?;
    let wanted = own_tables::<T>();
    let found = T::found_tables(connection, &wanted).await?;
    let mut version = None;
    if found.contains(&tables::META.name) {
        let answer = connection.run_one("reading the state's version", meta::read_version());
        let row = answer.await?.rows.into_iter().next();
        version = row.map(|row| row.get::<i64>(0)).transpose()?;
        if let Some(version) = version.filter(|&version| version != FORMAT_VERSION) {
            return Err(newer(version));
        }
    }
    if version.is_none() && journal.is_of_state() {
        return Ok(FoundState::Remains);
    }
    let missing = wanted.iter().filter(|table| !found.contains(table));
    let missing: Vec<String> = missing.map(|it| T::Connection::DIALECT.table(it)).collect();
    match (found.is_empty(), missing.is_empty()) {
        (true, _) => Ok(FoundState::Nothing),
        (false, true) => Ok(FoundState::Whole {
            is_unfinished: !journal.is_empty(),
        }),
        (false, false) => Err(incomplete(&missing)),
    }
}

/// Whether the server's own tables are there.
///
/// # Errors
/// See [`find_state`]; and [`CentreError::NotDeployed`] if the last deployment has to be finished.
pub async fn check<T: ChangeTracking>(connection: &mut T::Connection) -> Result<bool, CentreError> {
    match find_state::<T>(connection).await? {
        FoundState::Nothing => Ok(false),
        FoundState::Whole {
            is_unfinished: false,
        } => Ok(true),
        FoundState::Remains | FoundState::Whole { .. } => Err(unfinished()),
    }
}

/// The last deployment has to be finished before anything else.
pub(super) fn unfinished() -> CentreError {
    CentreError::NotDeployed {
        message: "the last deployment ended before it had done everything; until it is finished \
                  nothing is served"
            .into(),
    }
}

fn newer(version: i64) -> CentreError {
    CentreError::Configuration {
        message: format!(
            "the server's tables in the database have format version {version}, made by a newer \
             Tidewater; this one knows {FORMAT_VERSION}"
        ),
        hint: "update this Tidewater".into(),
    }
}

/// Some of the tables are not there, though others are.
fn incomplete(tables: &[String]) -> CentreError {
    let (noun, verb) = match tables {
        [_] => ("table", "is"),
        _ => ("tables", "are"),
    };
    CentreError::Configuration {
        message: format!(
            "the server's {noun} {} {verb} missing from the database",
            tables.join(", ")
        ),
        hint: "restore the database from a backup; without one, run tidewater undeploy (with \
               --discard if it cannot read what is kept), tidewater deploy and tidewater user \
               add: the remotes then begin anew, and what they have pending goes up"
            .into(),
    }
}
