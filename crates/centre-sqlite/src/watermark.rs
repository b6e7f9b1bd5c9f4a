//! Watermarks, and the marks that tie them to this history of the file.
//!
//! SQLite has one writer at a time, so the entries of a change log are numbered in the
//! order of their commits: everything after a position in a later snapshot was
//! committed after the snapshot in which that was the last. A watermark is the position
//! of each log in the download's snapshot, and a mark.
//!
//! An application may write with `synchronous = NORMAL`: what it committed can be lost
//! with the power, and the numbers be given out again. The mark is a random row,
//! committed with `synchronous = FULL` after the snapshot was taken: the write-ahead log
//! is synced up to and with it, so everything that the snapshot shows is durable before
//! a row of it leaves. A file in which the mark of a watermark is not found has another
//! history.

use std::sync::{Arc, Mutex, PoisonError};

use prost::Message;
use rusqlite::{OptionalExtension, TransactionBehavior, params};

use super::connection::SqliteConnection;
use super::environment::{Jobs, SqliteEnvironment};
use super::file::{DatabaseFile, OpenFile};
use super::{connection, failure, state};
use tidewater_centre::engine::download::snapshot_driver::DurableMark;
use tidewater_centre::engine::marks::{self, MarkQueue};
use tidewater_centre::engine::scope::ScopeChange;
use tidewater_centre::engine::thread::{self, ThreadOwner};
use tidewater_centre::error::CentreError;

/// How far change logs go.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogPositions {
    #[prost(message, repeated, tag = "1")]
    pub(super) logs: Vec<LogPosition>,
}

/// How far one goes.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LogPosition {
    #[prost(int64, tag = "1")]
    pub(super) log: i64,
    #[prost(int64, tag = "2")]
    pub(super) position: i64,
}

/// A download that needs a mark: when, and what became of its scopes.
type Request = (i64, Vec<ScopeChange>);

/// Makes marks, one for all downloads that wait at the same moment.
#[derive(Clone)]
pub(super) enum Marker {
    /// On a thread of its own.
    Thread(MarkQueue<Request, DurableMark>),
    /// On the thread of everything, in a simulation.
    Task(Arc<Mutex<OpenFile>>, SqliteEnvironment),
}

impl Marker {
    /// Starts the thread that makes marks on a connection of its own. It ends with
    /// the last clone of this.
    pub(super) fn start(file: &DatabaseFile) -> Result<Marker, CentreError> {
        let environment = file.environment().clone();
        let mut file = file.open()?;
        if let Jobs::Tasks(_) = environment.jobs {
            return Ok(Marker::Task(Arc::new(Mutex::new(file)), environment));
        }
        let (marks, mut asking) = marks::queue();
        thread::spawn("connection for marks", move || {
            while let Some((asked, waiting)) = asking.next_blocking() {
                waiting.answer(make(&mut file, &environment, &asked));
            }
        })?;
        Ok(Marker::Thread(marks))
    }

    /// A mark that is committed after this call began, together with the changes.
    /// Blocks.
    pub(super) fn mark(
        &self,
        now_ms: i64,
        changes: Vec<ScopeChange>,
    ) -> Result<DurableMark, CentreError> {
        match self {
            Marker::Thread(marks) => marks.ask_blocking((now_ms, changes)),
            Marker::Task(file, environment) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let made = make(&mut file, environment, &[(now_ms, changes)])?;
                made.into_iter().next().ok_or_else(thread::ended)
            }
        }
    }
}

fn make(
    file: &mut OpenFile,
    environment: &SqliteEnvironment,
    asked: &[Request],
) -> Result<Vec<DurableMark>, CentreError> {
    let mut id = [0; 16];
    environment.random(&mut id)?;
    file.run(|connection| commit(connection, id, asked))
}

fn commit(
    connection: &mut SqliteConnection,
    id: [u8; 16],
    asked: &[Request],
) -> Result<Vec<DurableMark>, CentreError> {
    let marking = failure("making a mark");
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(marking)?;
    let now_ms = asked.iter().map(|(now_ms, _)| *now_ms).max();
    insert_mark(&transaction, id, now_ms.unwrap_or_default())?;
    let mut marks = Vec::with_capacity(asked.len());
    for (_, changes) in asked {
        let notes = changes.iter().map(|change| {
            let notes = change.note();
            let noted = notes.iter().map(|note| connection::run(&transaction, note));
            let noted: Vec<_> = noted
                .collect::<Result<_, _>>()
                .map_err(failure("noting a scope"))?;
            change.noted(&noted)
        });
        let serials = notes.collect::<Result<_, CentreError>>()?;
        marks.push(DurableMark {
            id: id.to_vec(),
            serials,
        });
    }
    transaction.commit().map_err(marking)?;
    Ok(marks)
}

/// When a mark was made; `None` if this history of the file has no such mark.
pub(super) fn mark_created(
    connection: &SqliteConnection,
    id: &[u8],
) -> Result<Option<i64>, CentreError> {
    connection
        .prepare_cached("SELECT created_ms FROM tidewater_centre_mark WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id], |row| row.get(0)).optional())
        .map_err(failure("looking for a mark"))
}

/// Adds a mark of this random id with the positions of all logs.
pub(super) fn insert_mark(
    connection: &rusqlite::Connection,
    id: [u8; 16],
    now_ms: i64,
) -> Result<(), CentreError> {
    let marking = failure("making a mark");
    let mut positions = LogPositions::default();
    let mut stamp = 0;
    for log in state::logs(connection)? {
        let position = state::log_position(connection, log)?;
        stamp += position;
        positions.logs.push(LogPosition { log, position });
    }
    connection
        .prepare_cached("INSERT INTO tidewater_centre_mark VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut statement| {
            statement.execute(params![id, now_ms, stamp, positions.encode_to_vec()])
        })
        .map_err(marking)?;
    Ok(())
}
