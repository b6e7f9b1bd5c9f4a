//! Procedures and their calls, as they cross the boundary.
//!
//! A *procedure* is a statement of the operator's, or something that a program provides and of which
//! the centre only knows who may call it. Who is asked, deadlines and the way back are the server's
//! affair; [`crate::engine::procedure`] has the rules of what is run, and [`crate::engine::call`] runs it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use tidewater_protocol::schema::{column_type_from_wire, column_type_to_wire};
use tidewater_protocol::{ColumnType, RemoteId, Value};

use crate::records::UserClaims;

pub use crate::engine::callable_procedure::CallableProcedure;
pub use tidewater_protocol::message::Returns;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user who signed in.
    pub user: String,
    /// The remote, if it is one.
    pub remote_id: Option<RemoteId>,
}

/// One call of a procedure.
#[derive(Clone, Debug)]
pub struct ProcedureCall {
    /// The procedure.
    pub procedure: Arc<CallableProcedure>,
    /// For whom it is run.
    pub caller: Caller,
    /// What is known of him, if [`CallableProcedure::names_claims`].
    pub claims: UserClaims,
    /// A canonical value for each argument, in their declared order.
    pub arguments: Vec<Value>,
    /// Under this key the user's call takes effect once: whoever calls again with it is told what
    /// came of it. Of a procedure that only reads it means nothing.
    pub once: Option<[u8; 16]>,
    /// How long each statement may take; longer ones are interrupted.
    pub timeout: Duration,
    /// The most bytes that the answer's rows may have, packed; what a sink takes does not count.
    pub max_bytes: usize,
    /// Takes the rows of a long answer while they are read, if the procedure only reads and answers
    /// with rows. Of a short one it is given nothing.
    pub sink: Option<Arc<dyn AnswerSink>>,
    /// Ends it early.
    pub cancel: Cancel,
}

/// Takes the rows of an answer while the database is still read. What is left of them in the end, and
/// what became of the call, its outcome tells.
pub trait AnswerSink: fmt::Debug + Send + Sync {
    /// Takes whole packed rows, without waiting for anybody.
    fn take(&self, columns: &Arc<[AnswerColumn]>, rows: Vec<u8>) -> SinkReply;

    /// Whether it has been given something: then the call is not run once more.
    fn has_begun(&self) -> bool;
}

/// Whether a sink takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkReply {
    /// It does.
    More,
    /// The whole answer has more bytes than it may.
    TooMuch,
    /// Nobody waits for the answer any more.
    Unwanted,
}

impl SinkReply {
    /// What becomes of a call whose sink takes no more.
    pub fn ends(self) -> Option<CallOutcome> {
        match self {
            SinkReply::More => None,
            SinkReply::TooMuch => Some(CallOutcome::TooLarge),
            SinkReply::Unwanted => Some(CallOutcome::Interrupted),
        }
    }
}

impl ProcedureCall {
    /// What takes the rows while they are read.
    pub fn streams_to(&self) -> Option<&dyn AnswerSink> {
        let streams = self.procedure.is_read_only() && self.procedure.returns() == Returns::Rows;
        self.sink.as_deref().filter(|_| streams)
    }

    /// Whether rows have left already, so that it cannot be run once more.
    pub fn has_begun_to_answer(&self) -> bool {
        self.sink.as_ref().is_some_and(|it| it.has_begun())
    }
}

/// Stands for a call that somebody may want to end. Clones stand for the same one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The call is not wanted any more. To end what runs already, use [`CallInterrupt::interrupt`].
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it is not wanted any more.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether both stand for the same call.
    pub fn is(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Ends calls on the connection of one worker, from any thread.
pub trait CallInterrupt: Send + Sync {
    /// Ends this call: a statement of it that runs now is interrupted and undone, and one that has
    /// not begun yet does not. Nothing else is, whatever runs on the connection by then.
    fn interrupt(&self, call: &Cancel);
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It is done.
    Answer(CallAnswer),
    /// The caller may not call it. Nothing was done.
    NotAllowed,
    /// The database refused it. Nothing was done.
    Failed {
        /// SQLSTATE, or SQLite's name of the error.
        code: String,
        /// What the database says.
        message: String,
    },
    /// The answer has more bytes than it may. Nothing was done.
    TooLarge,
    /// One row was to be the answer, and there were more. Nothing was done.
    SeveralRows,
    /// It was not wanted any more, or took longer than it may. Nothing was done.
    Interrupted,
    /// Somebody else is in the way for longer than we wait. Nothing was done; the same call may
    /// succeed later.
    Busy {
        /// What the database says.
        message: String,
    },
    /// The user has used the key for something else. Nothing was done.
    KeyTaken,
}

impl CallOutcome {
    /// Whether it stays so: the same call under the same key is told this again.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            CallOutcome::Interrupted | CallOutcome::Busy { .. } | CallOutcome::KeyTaken
        )
    }
}

/// The answer of a procedure; by default without rows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CallAnswer {
    /// What the rows have; nothing if it returns nothing.
    pub columns: Arc<[AnswerColumn]>,
    /// Packed rows of operation Upsert, whole ones, about 64 KiB in each piece: those that no sink has
    /// taken.
    pub rows: Vec<Bytes>,
    /// How many rows these are.
    pub count: u64,
}

impl fmt::Debug for CallAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.rows.iter().map(Bytes::len).sum();
        let count = self.count;
        write!(f, "{count} rows of {:?} in {bytes} bytes", self.columns)
    }
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
}

/// What a key of a user stands for that something is begun under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceKeyState {
    /// Nothing yet: it is begun now.
    New,
    /// It was begun before, and nobody knows what came of it.
    Unfinished {
        /// When, by the clock of who began it.
        begun_ms: i64,
    },
    /// It was done, with this outcome.
    Done(Vec<u8>),
    /// The user has used the key for something else.
    KeyTaken,
}

#[derive(Clone, PartialEq, Message)]
struct WireOutcome {
    /// 1 an answer, 2 not allowed, 3 failed, 4 too large, 5 several rows.
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(message, repeated, tag = "2")]
    columns: Vec<WireColumn>,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    rows: Vec<Bytes>,
    #[prost(uint64, tag = "4")]
    count: u64,
    #[prost(string, tag = "5")]
    code: String,
    #[prost(string, tag = "6")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireColumn {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    column_type: u32,
    #[prost(uint32, tag = "3")]
    scale: u32,
}

impl CallOutcome {
    /// The bytes under which a final outcome is kept; `None` for one that is not final.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut wire = WireOutcome::default();
        match self {
            CallOutcome::Answer(answer) => {
                wire.kind = 1;
                let columns = answer.columns.iter().map(|column| {
                    let (column_type, scale) = column_type_to_wire(column.column_type);
                    WireColumn {
                        name: column.name.clone(),
                        column_type,
                        scale,
                    }
                });
                wire.columns = columns.collect();
                wire.rows.clone_from(&answer.rows);
                wire.count = answer.count;
            }
            CallOutcome::NotAllowed => wire.kind = 2,
            CallOutcome::Failed { code, message } => {
                wire.kind = 3;
                wire.code.clone_from(code);
                wire.message.clone_from(message);
            }
            CallOutcome::TooLarge => wire.kind = 4,
            CallOutcome::SeveralRows => wire.kind = 5,
            CallOutcome::Interrupted | CallOutcome::Busy { .. } | CallOutcome::KeyTaken => {
                return None;
            }
        }
        Some(wire.encode_to_vec())
    }

    /// Reads what [`Self::encode`] wrote; `None` if it is something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<CallOutcome> {
        let wire = WireOutcome::decode(bytes).ok()?;
        Some(match wire.kind {
            1 => {
                let columns = wire.columns.into_iter().map(|column| {
                    Some(AnswerColumn {
                        column_type: column_type_from_wire(column.column_type, column.scale)?,
                        name: column.name,
                    })
                });
                CallOutcome::Answer(CallAnswer {
                    columns: columns.collect::<Option<_>>()?,
                    rows: wire.rows,
                    count: wire.count,
                })
            }
            2 => CallOutcome::NotAllowed,
            3 => CallOutcome::Failed {
                code: wire.code,
                message: wire.message,
            },
            4 => CallOutcome::TooLarge,
            5 => CallOutcome::SeveralRows,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_outcomes_are_kept_and_others_are_not() {
        let answer = CallAnswer {
            columns: Arc::new([AnswerColumn {
                name: "cost".into(),
                column_type: ColumnType::Decimal { scale: Some(2) },
            }]),
            rows: vec![Bytes::from_static(b"abc"), Bytes::from_static(b"d")],
            count: 3,
        };
        let failed = CallOutcome::Failed {
            code: "23505".into(),
            message: "is there".into(),
        };
        for outcome in [
            CallOutcome::Answer(answer),
            CallOutcome::NotAllowed,
            failed,
            CallOutcome::TooLarge,
            CallOutcome::SeveralRows,
        ] {
            assert!(outcome.is_final());
            let kept = outcome.encode().unwrap();
            assert_eq!(CallOutcome::decode(&kept), Some(outcome));
        }
        let busy = CallOutcome::Busy {
            message: String::new(),
        };
        for outcome in [CallOutcome::Interrupted, busy, CallOutcome::KeyTaken] {
            assert!(!outcome.is_final());
            assert_eq!(outcome.encode(), None);
        }
        assert_eq!(CallOutcome::decode(b"\xff"), None);
    }
}
