//! The leader: whichever thread waits at the socket, and reads and writes for all.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use tidewater_connection::device::{DeviceError, ServerNotice};
use tidewater_protocol::frame::{MESSAGE_HEADER_BYTES, Message};
use tidewater_protocol::message::{Call, CallKind};

use super::state::{LinkState, SharedLink};
use crate::carrier_loop::TICK;
use crate::machine::LinkEvent;

impl SharedLink {
    /// Waits at the socket once, and hands out what has come.
    pub(super) fn lead<'s>(
        self: &'s Arc<Self>,
        state: MutexGuard<'s, LinkState>,
    ) -> MutexGuard<'s, LinkState> {
        let mut state = state;
        if state.lost.is_none() {
            let patience = state.line.patience();
            let wants = match state.line.has_output() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            state = self.wait_at_socket(state, wants, patience);
        }
        self.pump(&mut state);
        state
    }

    fn wait_at_socket<'s>(
        &'s self,
        state: MutexGuard<'s, LinkState>,
        wants: PollFlags,
        patience: Duration,
    ) -> MutexGuard<'s, LinkState> {
        drop(state);
        let patience = Timespec::try_from(patience).ok();
        // Whatever comes of it, what follows finds out.
        let _ = poll(&mut [PollFd::new(&self.socket, wants)], patience.as_ref());
        self.state()
    }

    /// Takes what has come, without waiting.
    pub(super) fn pump(self: &Arc<Self>, state: &mut MutexGuard<'_, LinkState>) {
        if state.lost.is_some() {
            return;
        }
        if let Err(error) = state.line.take() {
            state.lose(error.into());
        }
        while let Some(event) = state.line.connection.poll_event() {
            if let LinkEvent::Failed(error) = event {
                state.lose(error.into());
            }
        }
        while let Some(message) = state.line.connection.poll_call_to_hold() {
            let credit = message.credit();
            match state.take(message, self) {
                true => state.held += credit,
                false => state.line.connection.let_go(credit),
            }
        }
        self.poll_events(state);
        if let Err(error) = state.line.give() {
            state.lose(error.into());
        }
        // A sync that failed takes the connection along.
        if state.line.connection.has_ended() {
            state.lose(DeviceError::Closed.into());
        }
        if state.lost.is_some() {
            self.is_lost.store(true, Ordering::Release);
            self.quiet.notify_all();
            self.notices.wake();
            self.spaces.close();
        }
        if let Some(waiting) = &mut state.syncing
            && let Some(thread) = waiting.take()
        {
            thread.unpark();
        }
    }

    /// Sends what is queued; waits while the network takes nothing.
    pub(super) fn flush(self: &Arc<Self>, state: MutexGuard<'_, LinkState>) {
        let mut state = state;
        loop {
            if state.lost.is_none()
                && let Err(error) = state.line.give()
            {
                state.lose(error.into());
            }
            if state.lost.is_some() || !state.line.has_output() {
                return;
            }
            state = self.wait_at_socket(state, PollFlags::OUT, TICK);
        }
    }
}

impl LinkState {
    /// Somebody else is to wait at the socket.
    pub(super) fn resign(&mut self) {
        self.led = false;
        let mut others = self.waiting.values_mut();
        let next = others.find_map(|it| it.thread.take());
        let next = next.or_else(|| self.syncing.as_mut()?.take());
        if let Some(thread) = next {
            thread.unpark();
        }
    }

    /// Whether the server is not to send more in its place yet.
    fn take(&mut self, message: Message, shared: &Arc<SharedLink>) -> bool {
        let Message {
            id,
            deadline_ms,
            flags,
            payload,
        } = message;
        let credit = MESSAGE_HEADER_BYTES + payload.len();
        let Some(kind) = CallKind::from_flags(flags) else {
            return false;
        };
        match kind {
            CallKind::Call | CallKind::OneWay => {
                let call = Call::decode(payload).unwrap_or_default();
                shared.spaces.told(&call);
                if let Some(word) = ServerNotice::from_call(&call) {
                    shared.notices.push(word);
                    return false;
                }
                if call.procedure.starts_with("tidewater.") {
                    return false;
                }
                let reply = (kind == CallKind::Call).then(|| shared.reply(id));
                shared.providers.called(id, call, deadline_ms, reply);
            }
            CallKind::Cancel => shared.providers.cancelled(id),
            CallKind::Accepted | CallKind::Answer | CallKind::Piece | CallKind::Failed => {
                // Others would wait behind what this one does not take.
                let is_alone = self.waiting.len() == 1;
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    return waiting.take(kind, payload, credit) && is_alone;
                }
            }
        }
        false
    }
}
