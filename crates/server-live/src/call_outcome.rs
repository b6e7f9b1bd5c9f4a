//! What comes of a call, from the database to the caller, and as it is kept under a key.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use tokio::sync::oneshot;

use tidewater_centre::CentreError;
use tidewater_centre::procedure::{AnswerColumn, CallOutcome};
use tidewater_protocol::Code;
use tidewater_protocol::message::{Answer, CallFailed, CallKind, ColumnHeader, Returns};

use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::HeldMemory;

/// What came of a call that was done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcedureAnswer {
    /// What the procedure returns.
    pub returns: Option<Returns>,
    /// The columns of the rows.
    pub columns: Vec<ColumnHeader>,
    /// Packed rows; where one piece ends says nothing about where rows end.
    pub rows: Vec<Bytes>,
    /// The memory that they are in.
    pub held: HeldMemory,
}

impl From<Answer> for ProcedureAnswer {
    fn from(answer: Answer) -> ProcedureAnswer {
        ProcedureAnswer {
            returns: Returns::try_from(answer.returns).ok(),
            columns: answer.columns,
            rows: vec![answer.rows],
            held: HeldMemory::default(),
        }
    }
}

/// The whole of it, in one piece.
impl From<ProcedureAnswer> for Answer {
    fn from(answered: ProcedureAnswer) -> Answer {
        let mut rows = answered.rows.into_iter();
        let rows = match (rows.next(), rows.len()) {
            (None, _) => Bytes::new(),
            (Some(only), 0) => only,
            (Some(first), _) => rows
                .fold(BytesMut::from(first), |mut all, piece| {
                    all.extend_from_slice(&piece);
                    all
                })
                .freeze(),
        };
        Answer {
            returns: answered.returns.unwrap_or(Returns::Nothing) as i32,
            columns: answered.columns,
            rows,
        }
    }
}

/// How a call ends.
pub type CallResult = Result<ProcedureAnswer, CallFailed>;

/// The size of a piece of an answer.
const PIECE_BYTES: usize = 256 << 10;

/// What a statement came to.
pub(crate) fn of_script(
    name: &str,
    returns: Returns,
    (outcome, held): (CallOutcome, HeldMemory),
) -> CallResult {
    match outcome {
        CallOutcome::Answer(answer) => Ok(ProcedureAnswer {
            held,
            returns: Some(returns),
            columns: headers(&answer.columns),
            rows: answer.rows,
        }),
        CallOutcome::NotAllowed => Err(CallFailed::new(
            Code::NotAllowed,
            format!("you may not call {name:?}"),
            "ask the server's operator",
        )),
        CallOutcome::Failed { code, message } => Err(refused(name, code, message)),
        CallOutcome::TooLarge => Err(too_large()),
        CallOutcome::SeveralRows => Err(CallFailed::new(
            Code::ProcedureFailed,
            format!("the procedure {name:?} found more than the one row that it returns"),
            "tell the server's operator, who declares what it returns",
        )),
        CallOutcome::Interrupted => Err(CallFailed::new(
            Code::DeadlineExceeded,
            format!("the procedure {name:?} took longer than it was given"),
            "give it more time, or have the server's operator raise its timeout",
        )),
        CallOutcome::Busy { message } => {
            tracing::debug!(procedure = name, message, "a call found its rows locked");
            Err(CallFailed {
                hint: "call again".into(),
                ..busy(format!("somebody else is in the way of {name:?}"))
            })
        }
        CallOutcome::KeyTaken => Err(key_taken()),
    }
}

/// The caller is told what the procedure's author and his data say, and of everything else that
/// it is for the operator.
fn refused(name: &str, code: String, message: String) -> CallFailed {
    let of_author = code.starts_with("P0")
        || code.starts_with("22")
        || code.starts_with("23")
        || code.starts_with("SQLITE_CONSTRAINT");
    let (message, hint) = if of_author {
        (message, "")
    } else {
        tracing::warn!(
            procedure = name,
            code,
            message,
            "the database refused a call"
        );
        (
            format!("the database refused the procedure {name:?}"),
            "tell the server's operator to look into its log",
        )
    };
    CallFailed {
        own_code: code,
        ..CallFailed::new(Code::ProcedureFailed, message, hint)
    }
}

/// There was no memory for an answer.
pub fn no_room(is_repeatable: bool) -> CallFailed {
    let message = "the server has no memory for the answer at the moment";
    match is_repeatable {
        true => busy(message),
        false => CallFailed::new(
            Code::OutcomeUnknown,
            message,
            "it was done: find out what came of it before you call again, and read answers faster",
        ),
    }
}

/// There is too much at once.
pub(crate) fn busy(message: impl Into<String>) -> CallFailed {
    CallFailed {
        retry_after_ms: 1_000,
        ..CallFailed::new(Code::Busy, message, "call again later")
    }
}

/// The key was used for another call.
pub fn key_taken() -> CallFailed {
    CallFailed::new(
        Code::NameTaken,
        "the key was used for another call",
        "make a random key for each call, and use it for nothing else",
    )
}

pub(crate) fn internal(detail: &str) -> CallFailed {
    of_fault(Fault::internal(detail))
}

/// The answer of a worker.
pub(crate) fn of_worker<T>(
    answer: Result<Result<T, CentreError>, oneshot::error::RecvError>,
) -> Result<T, CallFailed> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(of_fault(Fault::from(error))),
        Err(_) => Err(internal("a worker dropped its task")),
    }
}

/// What the server's own trouble is to a caller.
pub fn of_fault(fault: Fault) -> CallFailed {
    if !fault.detail.is_empty() {
        tracing::warn!(
            code = fault.code.name(),
            detail = fault.detail,
            "a call failed"
        );
    }
    CallFailed {
        retry_after_ms: fault.retry_after_ms,
        ..CallFailed::new(fault.code, fault.message, fault.hint)
    }
}

pub(crate) fn headers(columns: &Arc<[AnswerColumn]>) -> Vec<ColumnHeader> {
    let columns = columns.iter();
    let headers = columns.map(|it| ColumnHeader::new(it.name.as_str(), it.column_type));
    headers.collect()
}

/// What is said of an outcome: an answer in pieces of a size that others can go between.
pub fn in_pieces(outcome: CallResult) -> impl Iterator<Item = (CallKind, Bytes)> {
    let (failed, answered) = match outcome {
        Ok(answered) => (None, answered),
        Err(failed) => (Some(failed), ProcedureAnswer::default()),
    };
    let mut answer = Answer {
        returns: answered.returns.unwrap_or_default() as i32,
        columns: answered.columns,
        rows: Bytes::new(),
    };
    let mut rows = answered.rows.into_iter().filter(|it| !it.is_empty());
    let mut rest = rows.next().unwrap_or_default();
    let mut is_over = false;
    std::iter::from_fn(move || {
        if std::mem::replace(&mut is_over, true) {
            return None;
        }
        if let Some(failed) = &failed {
            return Some((CallKind::Failed, failed.encode_to_vec().into()));
        }
        answer.rows = rest.split_to(rest.len().min(PIECE_BYTES));
        if rest.is_empty() {
            rest = rows.next().unwrap_or_default();
        }
        is_over = rest.is_empty();
        let kind = match is_over {
            true => CallKind::Answer,
            false => CallKind::Piece,
        };
        let piece = answer.encode_to_vec().into();
        answer.columns.clear();
        Some((kind, piece))
    })
}

/// The same of rows of an answer that goes on: `columns` are told with the first of them.
pub fn put_in_pieces(
    returns: Returns,
    columns: &mut Vec<ColumnHeader>,
    mut rows: Bytes,
    mut put: impl FnMut(Bytes) -> Result<(), Fault>,
) -> Result<(), Fault> {
    while !rows.is_empty() {
        let answer = Answer {
            returns: returns as i32,
            columns: std::mem::take(columns),
            rows: rows.split_to(rows.len().min(PIECE_BYTES)),
        };
        put(answer.encode_to_vec().into())?;
    }
    Ok(())
}

/// What is kept of what a provider made of a call: one byte, 1 for an answer and 2 for a failure,
/// and the message.
pub(crate) fn encode(outcome: &CallResult) -> Vec<u8> {
    let mut kept = Vec::new();
    match outcome {
        Ok(answered) => {
            kept.push(1);
            kept.extend(Answer::from(answered.clone()).encode_to_vec());
        }
        Err(failed) => {
            kept.push(2);
            kept.extend(failed.encode_to_vec());
        }
    }
    kept
}

/// Reads what [`encode`] wrote.
pub(crate) fn decode(kept: &[u8]) -> Result<CallResult, CallFailed> {
    let read = || {
        let (kind, rest) = kept.split_first()?;
        let rest = Bytes::copy_from_slice(rest);
        match kind {
            1 => Some(Ok(Answer::decode(rest).ok()?.into())),
            2 => Some(Err(CallFailed::decode(rest).ok()?)),
            _ => None,
        }
    };
    read().ok_or_else(|| internal("the outcome of a call is not kept as it was written"))
}

/// An answer has more bytes than one may have.
pub(crate) fn too_large() -> CallFailed {
    CallFailed::new(
        Code::AnswerTooLarge,
        "the answer has more bytes than the server's limits.answer_size allows",
        "ask for less at once, or have the server's operator raise the limit",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let answered =
            ProcedureAnswer::from(tidewater_protocol::json::to_answer(&serde_json::json!(7)));
        let failed = CallFailed::new(Code::ProcedureFailed, "no", "");
        for outcome in [Ok(answered), Err(failed)] {
            assert_eq!(decode(&encode(&outcome)), Ok(outcome));
        }
        assert!(decode(&[]).is_err() && decode(&[3]).is_err());
    }

    #[test]
    fn what_the_database_says_is_told_only_if_the_author_says_it() {
        let told = |code: &str| refused("p", code.into(), "secret".into()).message;
        assert_eq!(told("P0001"), "secret");
        assert_eq!(told("23505"), "secret");
        assert_eq!(told("SQLITE_CONSTRAINT_TRIGGER"), "secret");
        assert!(!told("42P01").contains("secret"));
    }
}
