//! Calls that the program makes, and their answers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;

use tidewater_connection::device::DeviceError;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, CallKind};

use super::Link;
use super::state::{LinkState, SharedLink};
use super::waiting_call::WaitingCall;
use crate::carrier_loop::TICK;
use crate::request::{CallError, Request};

/// A call that was made. To drop it is to cancel it.
pub struct PendingCall {
    pub(super) shared: Arc<SharedLink>,
    pub(super) id: u64,
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
    #[cfg(feature = "sync")]
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
    pub fn begin(&self, request: &Request) -> Result<PendingCall, CallError> {
        self.shared.begin(request, CallKind::Call, false)
    }

    pub(crate) fn begin_telling(&self, request: &Request) -> Result<PendingCall, CallError> {
        self.shared.begin(request, CallKind::OneWay, false)
    }

    /// Has a procedure called whose outcome is of no interest. Waits until the server has accepted
    /// that.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn tell(&self, request: &Request) -> Result<(), CallError> {
        let accepted = self.shared.begin(request, CallKind::OneWay, false)?.wait();
        accepted.map(|_| ())
    }
}

impl PendingCall {
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

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.shared.cancel(self.id);
    }
}

impl SharedLink {
    pub(super) fn begin(
        self: &Arc<Self>,
        request: &Request,
        kind: CallKind,
        in_pieces: bool,
    ) -> Result<PendingCall, CallError> {
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
        // What nobody takes is not to hold up this one.
        let held = state.held;
        state.release_credit(held);
        state.waiting.insert(id, WaitingCall::new(in_pieces));
        self.flush(state);
        Ok(PendingCall {
            shared: self.clone(),
            id,
        })
    }

    /// Waits until this call is answered.
    fn wait(
        self: &Arc<Self>,
        id: u64,
        go_on: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Answer, CallError> {
        let ended = self.wait_for(id, go_on, |state| {
            let outcome = state.waiting.get_mut(&id)?.outcome.take()?;
            state.waiting.remove(&id);
            Some(outcome)
        });
        ended.and_then(|outcome| outcome)
    }

    /// The next piece of an answer; `None` behind the last one.
    pub(super) fn next_piece(self: &Arc<Self>, id: u64) -> Result<Option<Answer>, CallError> {
        let piece = self.wait_for(id, None, |state| {
            let waiting = state.waiting.get_mut(&id)?;
            if let Some((piece, credit)) = waiting.pieces.as_mut()?.pop_front() {
                state.release_credit(credit);
                return Some(Ok(Some(piece)));
            }
            let outcome = waiting.outcome.take()?;
            state.waiting.remove(&id);
            Some(outcome.map(|_| None))
        });
        let piece = piece.and_then(|piece| piece);
        self.flush(self.state());
        piece
    }

    /// Reads for all until something is there for this call, unless somebody else does.
    fn wait_for<T>(
        self: &Arc<Self>,
        id: u64,
        mut go_on: Option<&mut dyn FnMut() -> ControlFlow<()>>,
        mut take: impl FnMut(&mut LinkState) -> Option<T>,
    ) -> Result<T, CallError> {
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
                    return Err(CallError::Lost(Arc::new(DeviceError::Cancelled.into())));
                }
            }
            if let Some(found) = take(&mut state) {
                if leads {
                    state.resign();
                }
                return Ok(found);
            }
            let led = state.led;
            let waiting = state.waiting.get_mut(&id);
            let waiting = waiting.expect("its call waits");
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
        // What was held of it is nobody's any more.
        let waiting = state.waiting.remove(&id);
        let pieces = waiting.as_ref().and_then(|it| it.pieces.as_ref());
        let held = pieces.map_or(0, |it| it.iter().map(|(_, takes)| takes).sum());
        state.release_credit(held);
        if waiting.is_some() && state.lost.is_none() {
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
