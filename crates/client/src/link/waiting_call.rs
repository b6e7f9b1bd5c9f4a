//! What has come of a call so far.

use std::collections::VecDeque;
use std::thread::Thread;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use tidewater_protocol::Code;
use tidewater_protocol::message::{Answer, CallFailed, CallKind};

use crate::request::CallError;

/// A call whose answer has not come, or that nobody has taken yet.
pub(super) struct WaitingCall {
    pub(super) thread: Option<Thread>,
    returns: Answer,
    rows: BytesMut,
    /// Pieces are handed out as they come, with what each takes.
    pub(super) pieces: Option<VecDeque<(Answer, usize)>>,
    pub(super) outcome: Option<Result<Answer, CallError>>,
}

impl WaitingCall {
    pub(super) fn new(in_pieces: bool) -> WaitingCall {
        WaitingCall {
            thread: None,
            returns: Answer::default(),
            rows: BytesMut::new(),
            pieces: in_pieces.then(VecDeque::new),
            outcome: None,
        }
    }

    /// Whether it holds a piece, which takes so much, until somebody takes that.
    pub(super) fn take(&mut self, kind: CallKind, payload: Bytes, takes: usize) -> bool {
        let malformed = || {
            CallError::Failed(CallFailed::new(
                Code::MalformedMessage,
                "the answer cannot be read",
                "update the older of the two, this program or the server",
            ))
        };
        match kind {
            CallKind::Failed => {
                let failed = CallFailed::decode(payload).map_err(|_| malformed());
                self.end(Err(failed.map_or_else(|it| it, CallError::Failed)));
            }
            CallKind::Accepted => self.end(Ok(Answer::nothing())),
            _ if self.pieces.is_some() => match Answer::decode(payload) {
                Err(_) => self.end(Err(malformed())),
                Ok(piece) => {
                    let pieces = self.pieces.get_or_insert_default();
                    pieces.push_back((piece, takes));
                    match kind {
                        CallKind::Answer => self.end(Ok(Answer::nothing())),
                        _ => self.wake(),
                    }
                    return true;
                }
            },
            _ => match Answer::decode(payload) {
                Err(_) => self.end(Err(malformed())),
                Ok(answer) if kind == CallKind::Answer && self.rows.is_empty() => {
                    self.end(Ok(answer));
                }
                Ok(answer) => {
                    if self.rows.is_empty() {
                        self.returns = Answer {
                            rows: Bytes::new(),
                            ..answer.clone()
                        };
                    }
                    self.rows.extend_from_slice(&answer.rows);
                    if kind == CallKind::Answer {
                        let rows = std::mem::take(&mut self.rows).freeze();
                        let whole = std::mem::take(&mut self.returns);
                        self.end(Ok(Answer { rows, ..whole }));
                    }
                }
            },
        }
        false
    }

    pub(super) fn end(&mut self, outcome: Result<Answer, CallError>) {
        self.outcome = Some(outcome);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.unpark();
        }
    }
}
