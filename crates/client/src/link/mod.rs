//! [`Link`]: one connection, shared by the threads of a program, for calls and events.
//!
//! Whoever waits for an answer reads for all: while one thread, the *leader*, waits at the socket,
//! the others write their requests and wait for what it reads for them; when it has its own answer,
//! another one takes over. So a single caller pays for no second thread, and many share every
//! read. When nobody waits, a thread of the link's own, the *keeper*, reads: it answers pings and
//! takes what the server says of its own accord.

mod calls;
mod events;
mod keeper;
mod leader;
mod provided;
mod rows;
mod state;
mod sync;

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tidewater_carrier::{CarrierError, ServerUrls};
use tidewater_protocol::message::{FailureNotice, PasswordChange, Proof};
use tidewater_remote::{DriverEvent, SyncError};

pub use self::calls::PendingCall;
pub use self::rows::AnswerRows;
pub(crate) use self::state::SharedLink;
use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::options::SyncOptions;
use crate::provider::Handler;
use crate::request::{CallError, LinkOptions, LinkProof, Request};
use crate::server_notice::ServerNotice;
use crate::socket_loop::{SocketLoop, TICK};

/// A connection for calls and events. Clones share it; it closes with the last one.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) shared: Arc<SharedLink>,
    /// Ends the keeper.
    _alive: Arc<LinkGuard>,
}

#[derive(Debug)]
struct LinkGuard(Weak<SharedLink>);

impl Drop for LinkGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.close();
        }
    }
}

impl Link {
    /// Connects a program without a file, and signs it in.
    ///
    /// # Errors
    /// The server cannot be reached, or does not let the program in.
    pub fn connect(server: &str, options: &LinkOptions) -> Result<Link, ClientError> {
        let urls: ServerUrls = server.parse()?;
        let dial = SyncOptions {
            insecure: options.insecure,
            proxy: options.proxy.clone(),
            timeout: options.timeout,
            client: options.client.clone(),
            certificate: match &options.proof {
                LinkProof::Certificate(certificate) => Some(certificate.clone()),
                _ => None,
            },
            ..SyncOptions::default()
        };
        let go_on = &mut || ControlFlow::Continue(());
        let ca_file = options.ca_file.as_deref();
        let mut line = SocketLoop::dial(
            &urls,
            ca_file,
            options.pin,
            &dial,
            DriverClock::start(),
            go_on,
        )?;
        let proof = match &options.proof {
            LinkProof::Password(password) => Proof::Password(password.clone()),
            LinkProof::PasswordChange {
                password,
                new_password,
            } => Proof::PasswordChange(PasswordChange {
                password: password.clone(),
                new_password: new_password.clone(),
            }),
            LinkProof::Token(token) => Proof::Token(token.clone()),
            LinkProof::Bearer(bearer) => Proof::Bearer(bearer.read()?),
            LinkProof::Certificate(_) => Proof::Certificate(true),
        };
        line.connection.sign_in_program(&options.user, proof);
        while !line.connection.is_open() {
            line.turn()?;
            while let Some(event) = line.connection.poll_event() {
                if let DriverEvent::Failed(error) = event {
                    return Err(error.into());
                }
            }
        }
        let link = Link::over(line)?;
        link.keep()?;
        Ok(link)
    }

    /// Over an open connection. Until [`Link::keep`], it is read only while somebody waits.
    pub(crate) fn over(line: SocketLoop) -> Result<Link, ClientError> {
        let socket = line.socket().map_err(CarrierError::Lost)?;
        let shared = Arc::new(SharedLink::over(line, socket));
        Ok(Link {
            _alive: Arc::new(LinkGuard(Arc::downgrade(&shared))),
            shared,
        })
    }

    /// Has a thread read when nobody else does, so that the connection can last.
    pub(crate) fn keep(&self) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.shared.state().kept, true) {
            return Ok(());
        }
        let keeper = Arc::downgrade(&self.shared);
        let thread = thread::Builder::new().name("tidewater-link".into());
        let started = thread.spawn(move || keeper::keep(&keeper));
        started.map_err(|_| SyncError::Defect {
            what: "the system starts no thread",
        })?;
        Ok(())
    }

    /// Whether another sync can begin on it.
    pub(crate) fn can_sync(&self) -> bool {
        self.shared.state().can_sync()
    }

    /// Bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.shared.state().line.traffic()
    }

    /// Says good-bye. Whoever still waits for an answer gets none.
    pub(crate) fn hang_up(&self) {
        let mut state = self.shared.state();
        state.closing = true;
        state.line.hang_up();
        state.lose(SyncError::Cancelled.into());
        self.shared.is_lost.store(true, Ordering::Release);
        self.shared.spaces.close();
        self.shared.quiet.notify_all();
        let _ = self.shared.socket.shutdown(Shutdown::Both);
    }

    /// Has the server say when something has changed that the remote holds.
    pub(crate) fn stay(&self, provided: &[(String, Handler)]) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.shared.state().stays, true) {
            return Ok(());
        }
        let mut asked = self.call(&Request::new("tidewater.live")).map(|_| ());
        for (name, handler) in provided {
            asked = asked.and_then(|()| self.provide_with(name, handler.clone()));
        }
        asked.map_err(|error| match error {
            CallError::Lost(lost) => ClientError::from_shared(&lost),
            CallError::Failed(failed) => SyncError::from(FailureNotice {
                code: failed.code,
                message: failed.message,
                hint: failed.hint,
                retry_after_ms: failed.retry_after_ms,
                subject: String::new(),
            })
            .into(),
        })
    }

    /// Waits for a word of the server, at most so long.
    pub(crate) fn wait_for_notice(&self, patience: Duration) -> Option<ServerNotice> {
        self.shared.notices.next(patience)
    }

    /// Why the connection is lost, if it is.
    pub fn lost(&self) -> Option<Arc<ClientError>> {
        self.shared.state().lost.clone()
    }

    /// Waits until the connection is lost, and tells why.
    pub fn wait_until_lost(&self) -> Arc<ClientError> {
        let mut state = self.shared.state();
        loop {
            if let Some(lost) = &state.lost {
                return lost.clone();
            }
            let waited = self.shared.quiet.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
