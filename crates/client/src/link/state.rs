//! What the threads that share a link have in common.

use std::collections::HashMap;
use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Instant;

use tidewater_connection::device::DeviceError;
use tidewater_protocol::Code;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::CallFailed;

use super::waiting_call::WaitingCall;
use crate::carrier_loop::CarrierLoop;
use crate::error::ClientError;
use crate::event_subscriptions::EventSubscriptions;
use crate::notice_queue::NoticeQueue;
use crate::provider::Providers;
use crate::request::CallError;

pub(crate) struct SharedLink {
    state: Mutex<LinkState>,
    /// Wakes the keeper.
    pub(super) quiet: Condvar,
    /// For whoever waits at it.
    pub(super) socket: TcpStream,
    pub(super) providers: Providers,
    pub(crate) notices: Arc<NoticeQueue>,
    pub(crate) spaces: EventSubscriptions,
    /// As [`LinkState::lost`] says, without its lock.
    pub(super) is_lost: AtomicBool,
}

impl fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

pub(super) struct LinkState {
    pub(super) line: CarrierLoop,
    /// Somebody waits at the socket.
    pub(super) led: bool,
    /// There is a keeper.
    pub(super) kept: bool,
    /// Calls that wait for their answers.
    pub(super) waiting: HashMap<u64, WaitingCall>,
    /// A sync is under way, and its thread may wait for others to read.
    pub(super) syncing: Option<Option<Thread>>,
    pub(super) last_id: u64,
    /// Bytes of pieces of an answer that were not asked to be replaced yet.
    pub(super) held: usize,
    pub(super) last_call: Instant,
    pub(super) lost: Option<Arc<ClientError>>,
    pub(super) closing: bool,
    #[cfg(feature = "sync")]
    pub(super) sync: LinkSyncs,
}

/// What a link knows of its syncs.
#[cfg(feature = "sync")]
#[derive(Default)]
pub(super) struct LinkSyncs {
    /// The server tells what has changed.
    pub(super) stays: bool,
    /// Why the connection is lost, for the sync that this broke.
    pub(super) broken: Option<ClientError>,
}

impl SharedLink {
    pub(super) fn over(line: CarrierLoop, socket: TcpStream) -> SharedLink {
        SharedLink {
            state: Mutex::new(LinkState {
                line,
                led: false,
                kept: false,
                waiting: HashMap::new(),
                syncing: None,
                last_id: 0,
                held: 0,
                last_call: Instant::now(),
                lost: None,
                closing: false,
                #[cfg(feature = "sync")]
                sync: LinkSyncs::default(),
            }),
            quiet: Condvar::new(),
            socket,
            providers: Providers::default(),
            notices: Arc::default(),
            spaces: EventSubscriptions::default(),
            is_lost: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest call or event that the server takes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.state().line.connection.message_bytes()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn why_lost(&self) -> CallError {
        match &self.state().lost {
            Some(lost) => CallError::Lost(lost.clone()),
            None => CallError::Lost(Arc::new(DeviceError::Closed.into())),
        }
    }

    pub(super) fn close(&self) {
        self.spaces.close();
        let mut state = self.state();
        state.closing = true;
        self.quiet.notify_all();
        // Whoever waits at the socket comes back.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl LinkState {
    pub(super) fn check(&self) -> Result<(), CallError> {
        match &self.lost {
            Some(lost) => Err(CallError::Lost(lost.clone())),
            None => Ok(()),
        }
    }

    /// The server may send as much more as this took, if it was held.
    pub(super) fn release_credit(&mut self, credit: usize) {
        let credit = credit.min(self.held);
        self.held -= credit;
        if credit > 0 {
            self.line.connection.let_go(credit);
        }
    }

    pub(super) fn send(&mut self, message: Message) -> Result<(), CallError> {
        let sent = self.line.connection.send_call(message);
        sent.map_err(|_| {
            let most = self.line.connection.message_bytes();
            CallError::Failed(CallFailed::new(
                Code::LimitExceeded,
                format!("the call is larger than the server's limit of {most} bytes"),
                "send less, sync it, or have the server's operator raise limits.message_size",
            ))
        })
    }

    pub(super) fn lose(&mut self, error: ClientError) {
        if self.lost.is_none() {
            #[cfg(feature = "sync")]
            let error = self.break_sync(error);
            let error = Arc::new(error);
            for waiting in self.waiting.values_mut() {
                waiting.end(Err(CallError::Lost(error.clone())));
            }
            self.lost = Some(error);
        }
    }
}
