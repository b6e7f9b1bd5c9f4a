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
#[cfg(feature = "sync")]
mod staying;
#[cfg(feature = "sync")]
mod sync;
mod waiting_call;

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use tidewater_carrier::{CarrierError, ServerUrls};
use tidewater_connection::device::{DeviceError, SignInRequest};
use tidewater_protocol::message::{PasswordChange, Proof};

pub use self::calls::PendingCall;
pub use self::rows::AnswerRows;
pub(crate) use self::state::SharedLink;
use crate::carrier_loop::{CarrierLoop, TICK};
use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::machine::LinkEvent;
use crate::request::{LinkOptions, LinkProof};

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
        let (dial, clock) = (options.dial(), DriverClock::start());
        let go_on = &mut || ControlFlow::Continue(());
        let (mut line, _) = CarrierLoop::dial(&urls, &dial, &options.client, clock, go_on)?;
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
        let request = SignInRequest::for_program(&options.user, proof);
        line.connection.sign_in(request)?;
        while !line.connection.is_open() {
            line.turn()?;
            while let Some(event) = line.connection.poll_event() {
                if let LinkEvent::Failed(error) = event {
                    return Err(error.into());
                }
            }
        }
        let link = Link::over(line)?;
        link.keep()?;
        Ok(link)
    }

    /// Over an open connection. Until [`Link::keep`], it is read only while somebody waits.
    pub(crate) fn over(line: CarrierLoop) -> Result<Link, ClientError> {
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
        started.map_err(|_| DeviceError::Defect {
            what: "the system starts no thread",
        })?;
        Ok(())
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
