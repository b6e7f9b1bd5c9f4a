//! Following what is committed, on a connection of its own.
//!
//! Entries of change logs are numbered in the order of their commits, so a position is the last
//! number of each log.

use std::sync::{Arc, Mutex as Guarded, PoisonError};

use prost::Message;
use tokio::sync::Mutex;

use tidewater_protocol::Datum;

use super::connection::SqliteConnection;
use super::download::values as read_values;
use super::file::{DatabaseFile, OpenFile};
use super::publication::{ServedTable, SqliteTables};
use super::served::SqlitePublications;
use super::watermark::{LogPosition, LogPositions};
use super::{failure, quote, state, values};
use tidewater_centre::engine::follow::{CommittedChanges, LogChanges, logs};
use tidewater_centre::engine::publication::RowRule;
use tidewater_centre::engine::sql::served_table::log_column;
use tidewater_centre::engine::thread::ConnectionThread;
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::Partitions;

/// The number of no log, under which positions have how much was written to what partition queries
/// read.
const SCOPES: i64 = 0;

type Result<T> = std::result::Result<T, CentreError>;

/// The connection, once somebody follows, and what was seen last.
#[derive(Default)]
pub(super) struct Follower {
    thread: Mutex<Option<ConnectionThread<OpenFile>>>,
    seen: Arc<Guarded<Option<SeenPosition>>>,
}

/// Where the file was when it was looked at last.
#[derive(Clone, PartialEq)]
struct SeenPosition {
    /// The connection's counter of what others have committed.
    version: i64,
    position: Vec<u8>,
}

impl Follower {
    /// See [`Database::follow`](tidewater_centre::engine::database::Database::follow).
    pub(super) async fn follow(
        &self,
        file: &DatabaseFile,
        served: Arc<SqlitePublications>,
        since: Option<Vec<u8>>,
    ) -> Result<CommittedChanges> {
        let mut thread = self.thread.lock().await;
        let jobs = &file.environment().jobs;
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => {
                let of = file.clone();
                let opened = jobs.blocking(move || of.open()).await?;
                none.insert(ConnectionThread::start(opened, jobs)?)
            }
        };
        let seen = self.seen.clone();
        let follow = move |connection: &mut SqliteConnection| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            follow(connection, &served, since, &mut seen)
        };
        thread.run(follow).await
    }
}

fn follow(
    connection: &SqliteConnection,
    served: &SqlitePublications,
    since: Option<Vec<u8>>,
    seen: &mut Option<SeenPosition>,
) -> Result<CommittedChanges> {
    let following = failure("following changes");
    // Before the snapshot: what is committed in between is looked at twice.
    let version = connection
        .prepare_cached("PRAGMA data_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(following)?;
    let at_once = since.as_ref().map(|position| SeenPosition {
        version,
        position: position.clone(),
    });
    if let Some(SeenPosition { position, .. }) = at_once.filter(|it| Some(it) == seen.as_ref()) {
        return Ok(CommittedChanges {
            position,
            ..CommittedChanges::default()
        });
    }
    connection.execute_batch("BEGIN").map_err(following)?;
    let changes = read(connection, served, since)?;
    connection.execute_batch("COMMIT").map_err(following)?;
    *seen = Some(SeenPosition {
        version,
        position: changes.position.clone(),
    });
    Ok(changes)
}

/// Reads what the logs have in one snapshot.
fn read(
    connection: &SqliteConnection,
    served: &SqlitePublications,
    since: Option<Vec<u8>>,
) -> Result<CommittedChanges> {
    let known = since.map(|since| LogPositions::decode(&*since));
    let known = known.transpose().map_err(|_| CentreError::Internal {
        message: "changes are followed from a position that is none".into(),
    })?;
    let mut now = LogPositions::default();
    for log in state::logs(connection)? {
        let position = state::log_position(connection, log)?;
        now.logs.push(LogPosition { log, position });
    }
    let position = state::scope_version(connection)?;
    now.logs.push(LogPosition {
        log: SCOPES,
        position,
    });
    let mut changes = CommittedChanges {
        position: now.encode_to_vec(),
        ..CommittedChanges::default()
    };
    let Some(known) = known else {
        return Ok(changes);
    };
    let is_of_scopes = |it: &&LogPosition| it.log == SCOPES;
    changes.scopes = known.logs.iter().find(is_of_scopes) != now.logs.iter().find(is_of_scopes);
    for (id, rule, table, _) in logs::<SqliteTables>(served) {
        let of = |positions: &LogPositions| {
            let found = positions.logs.iter().find(|it| it.log == id);
            found.map(|it| it.position)
        };
        let (known, now) = (of(&known), of(&now));
        if known == now {
            continue;
        }
        let told = match known {
            Some(known) if Some(known) < now && state::goes_back_to(connection, id, known)? => {
                LogChanges::Partitions(partitions(connection, (id, table, rule), known)?)
            }
            _ => LogChanges::Everything,
        };
        changes.logs.push((id, told));
    }
    Ok(changes)
}

/// The partitions of a log's entries behind a position.
fn partitions(
    connection: &SqliteConnection,
    (id, _, rule): (i64, &ServedTable, &RowRule),
    since: i64,
) -> Result<Partitions> {
    let following = failure("following changes");
    let mut partitions = Partitions::new();
    if rule.types.is_empty() {
        return Ok(partitions);
    }
    let columns = (0..rule.types.len()).map(log_column);
    let sql = format!(
        "SELECT DISTINCT {} FROM {} WHERE id > ?1",
        columns.collect::<Vec<_>>().join(", "),
        quote(&state::log_table(id))
    );
    let mut statement = connection.prepare_cached(&sql).map_err(following)?;
    let mut rows = statement.query([since]).map_err(following)?;
    while let Some(row) = rows.next().map_err(following)? {
        let read = read_values(row, 0, &rule.types).map_err(following)?;
        let read = rule.types.iter().zip(read);
        let read: Vec<Datum<'_>> = read
            .map(|(&it, value)| values::normalize(it, value))
            .collect();
        rule.take(None, &mut partitions, &read);
    }
    Ok(partitions)
}
