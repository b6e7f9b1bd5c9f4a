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

use std::sync::{Arc, Mutex, mpsc};

use prost::Message;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::environment::{Jobs, SqliteEnvironment};
use super::file::{DatabaseFile, OpenFile};
use super::{failure, own, state, thread};
use crate::engine::download::Mark;
use crate::engine::scope::ScopeChange;
use crate::error::CentreError;

/// How far change logs go.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Positions {
    #[prost(message, repeated, tag = "1")]
    pub(super) logs: Vec<Position>,
}

/// How far one goes.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Position {
    #[prost(int64, tag = "1")]
    pub(super) log: i64,
    #[prost(int64, tag = "2")]
    pub(super) position: i64,
}

/// A download that waits for its mark.
pub(super) struct Request {
    now_ms: i64,
    changes: Vec<ScopeChange>,
    reply: mpsc::SyncSender<Result<Mark, CentreError>>,
}

/// Makes marks, one for all downloads that wait at the same moment.
#[derive(Clone)]
pub(super) enum Marker {
    /// On a thread of its own.
    Thread(mpsc::Sender<Request>),
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
        let (requests, queue) = mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("sqlite marks".into())
            .spawn(move || {
                while let Ok(first) = queue.recv() {
                    let mut waiting = vec![first];
                    waiting.extend(queue.try_iter());
                    answer(&mut file, &environment, waiting);
                }
            })
            .map_err(|error| CentreError::Unavailable {
                message: format!("no thread for marks: {error}"),
            })?;
        Ok(Marker::Thread(requests))
    }

    /// A mark that is committed after this call began, together with the changes.
    /// Blocks.
    pub(super) fn mark(&self, now_ms: i64, changes: Vec<ScopeChange>) -> Result<Mark, CentreError> {
        let (reply, wait) = mpsc::sync_channel(1);
        let request = Request {
            now_ms,
            changes,
            reply,
        };
        match self {
            Marker::Thread(requests) => requests.send(request).map_err(|_| thread::ended())?,
            Marker::Task(file, environment) => {
                let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                answer(&mut file, environment, vec![request]);
            }
        }
        wait.recv().unwrap_or_else(|_| Err(thread::ended()))
    }
}

fn answer(file: &mut OpenFile, environment: &SqliteEnvironment, waiting: Vec<Request>) {
    let mut id = [0; 16];
    let filled = environment.random(&mut id);
    let marks = filled.and_then(|()| file.run(|connection| commit(connection, id, &waiting)));
    // Nobody waits for a reply when the download was cancelled.
    match marks {
        Ok(marks) => {
            for (request, mark) in waiting.into_iter().zip(marks) {
                let _ = request.reply.send(Ok(mark));
            }
        }
        Err(error) => {
            let message = error.to_string();
            let retry = error.is_retryable();
            let unavailable = matches!(error, CentreError::Unavailable { .. });
            for request in waiting {
                let message = message.clone();
                let _ = request.reply.send(Err(if unavailable {
                    CentreError::Unavailable { message }
                } else {
                    CentreError::Refused {
                        what: "a mark".into(),
                        message,
                        sqlstate: None,
                        retry,
                    }
                }));
            }
        }
    }
}

fn commit(
    connection: &mut Connection,
    id: [u8; 16],
    waiting: &[Request],
) -> Result<Vec<Mark>, CentreError> {
    let marking = failure("making a mark");
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(marking)?;
    let now_ms = waiting.iter().map(|request| request.now_ms).max();
    insert_mark(&transaction, id, now_ms.unwrap_or_default())?;
    let mut marks = Vec::with_capacity(waiting.len());
    for request in waiting {
        let notes = request.changes.iter().map(|change| {
            let noted = own::run(&transaction, &change.note());
            change.noted(&noted.map_err(failure("noting a scope"))?)
        });
        let serials = notes.collect::<Result<_, CentreError>>()?;
        marks.push(Mark {
            id: id.to_vec(),
            serials,
        });
    }
    transaction.commit().map_err(marking)?;
    Ok(marks)
}

/// When a mark was made; `None` if this history of the file has no such mark.
pub(super) fn mark_created(connection: &Connection, id: &[u8]) -> Result<Option<i64>, CentreError> {
    connection
        .prepare_cached("SELECT created_ms FROM tidewater_mark WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id], |row| row.get(0)).optional())
        .map_err(failure("looking for a mark"))
}

/// Adds a mark of this random id with the positions of all logs.
pub(super) fn insert_mark(
    connection: &Connection,
    id: [u8; 16],
    now_ms: i64,
) -> Result<(), CentreError> {
    let marking = failure("making a mark");
    let mut positions = Positions::default();
    let mut stamp = 0;
    for log in state::logs(connection)? {
        let position = state::log_position(connection, log)?;
        stamp += position;
        positions.logs.push(Position { log, position });
    }
    connection
        .prepare_cached("INSERT INTO tidewater_mark VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut statement| {
            statement.execute(params![id, now_ms, stamp, positions.encode_to_vec()])
        })
        .map_err(marking)?;
    Ok(())
}
