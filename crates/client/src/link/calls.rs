//! Calls that the program makes, and their answers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use tidewater_protocol::Code;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, CallFailed, CallKind};
use tidewater_remote::SyncError;

use super::Link;
use super::state::Shared;
use crate::line::TICK;
use crate::request::{CallError, Request};

/// A call that was made. To drop it is to cancel it.
pub struct Pending {
    shared: Arc<Shared>,
    id: u64,
}

/// A call whose answer has not come, or that nobody has taken yet.
pub(super) struct Waiting {
    pub(super) thread: Option<Thread>,
    returns: Answer,
    rows: BytesMut,
    outcome: Option<Result<Answer, CallError>>,
}

impl Link {
    /// Calls a procedure and waits for what comes of it.
    ///
    /// # Errors
    /// It came to nothing, or nobody knows what came of it.
    pub fn call(&self, request: &Request) -> Result<Answer, CallError> {
        self.begin(request)?.wait()
    }

    /// Calls a procedure and waits for what comes of it, as long as `go_on` does not break, which
    /// is asked a few times a second.
    pub(crate) fn call_while(
        &self,
        request: &Request,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Answer, CallError> {
        let pending = self.begin(request)?;
        self.shared.wait(pending.id, Some(go_on))
    }

    /// Calls a procedure; what comes of it can be had later.
    ///
    /// # Errors
    /// There is no connection any more, or the request is too large.
    pub fn begin(&self, request: &Request) -> Result<Pending, CallError> {
        self.shared.begin(request, CallKind::Call)
    }

    pub(crate) fn begin_telling(&self, request: &Request) -> Result<Pending, CallError> {
        self.shared.begin(request, CallKind::OneWay)
    }

    /// Has a procedure called whose outcome is of no interest. Waits until the server has accepted
    /// that.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn tell(&self, request: &Request) -> Result<(), CallError> {
        let accepted = self.shared.begin(request, CallKind::OneWay)?.wait();
        accepted.map(|_| ())
    }
}

impl Pending {
    /// Waits for what comes of it.
    ///
    /// # Errors
    /// It came to nothing, or nobody knows what came of it.
    pub fn wait(self) -> Result<Answer, CallError> {
        self.shared.wait(self.id, None)
    }

    /// Lets the call go on; what comes of it is of no interest.
    pub(crate) fn forget(self) {
        self.shared.state().waiting.remove(&self.id);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.cancel(self.id);
    }
}

impl Shared {
    fn begin(self: &Arc<Self>, request: &Request, kind: CallKind) -> Result<Pending, CallError> {
        let payload = Bytes::from(request.call.encode_to_vec());
        let within = request.within.map(|it| it.as_millis().max(1));
        let deadline_ms = within.map_or(0, |it| u32::try_from(it).unwrap_or(u32::MAX));
        let mut state = self.state();
        state.check()?;
        state.last_id += 1;
        state.last_call = Instant::now();
        let id = state.last_id;
        state.send(Message {
            id,
            deadline_ms,
            flags: kind as u8,
            payload,
        })?;
        state.waiting.insert(
            id,
            Waiting {
                thread: None,
                returns: Answer::default(),
                rows: BytesMut::new(),
                outcome: None,
            },
        );
        self.flush(state);
        Ok(Pending {
            shared: self.clone(),
            id,
        })
    }

    /// Reads for all until this call is answered, unless somebody else does.
    fn wait(
        self: &Arc<Self>,
        id: u64,
        mut go_on: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Answer, CallError> {
        let mut state = self.state();
        let mut leads = false;
        loop {
            if let Some(go_on) = &mut go_on {
                drop(state);
                let broken = go_on().is_break();
                state = self.state();
                if broken {
                    if leads {
                        state.resign();
                    }
                    return Err(CallError::Lost(Arc::new(SyncError::Cancelled.into())));
                }
            }
            let led = state.led;
            let waiting = state.waiting.get_mut(&id);
            let waiting = waiting.expect("its call waits");
            if let Some(outcome) = waiting.outcome.take() {
                state.waiting.remove(&id);
                if leads {
                    state.resign();
                }
                return outcome;
            }
            if leads || !led {
                leads = true;
                state.led = true;
                state = self.lead(state);
            } else {
                waiting.thread = Some(thread::current());
                drop(state);
                match go_on {
                    Some(_) => thread::park_timeout(TICK),
                    None => thread::park(),
                }
                state = self.state();
            }
        }
    }

    fn cancel(self: &Arc<Self>, id: u64) {
        let mut state = self.state();
        if state.waiting.remove(&id).is_some() && state.lost.is_none() {
            let cancel = Message {
                id,
                deadline_ms: 0,
                flags: CallKind::Cancel as u8,
                payload: Bytes::new(),
            };
            if state.send(cancel).is_ok() {
                self.flush(state);
            }
        }
    }
}

impl Waiting {
    pub(super) fn take(&mut self, kind: CallKind, payload: Bytes) {
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
    }

    pub(super) fn end(&mut self, outcome: Result<Answer, CallError>) {
        self.outcome = Some(outcome);
        if let Some(thread) = self.thread.take() {
            thread.unpark();
        }
    }
}
