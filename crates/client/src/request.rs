//! What a program says when it connects and calls, and why a call came to nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidewater_carrier::{CompressionOptions, DialOptions, Pin};
use tidewater_protocol::message::{Argument, ArgumentValue, Call, CallFailed};
use tidewater_protocol::{Code, RemoteId};

use crate::bearer_token::{BearerToken, ClientCertificate};
use crate::error::ClientError;

/// How long a server may be silent, if nobody says otherwise.
pub(crate) const SILENCE: Duration = Duration::from_secs(120);

/// The program, if nobody says otherwise.
pub(crate) const PROGRAM: &str = concat!("tidewater-client/", env!("CARGO_PKG_VERSION"));

/// Who a program is, and how it connects.
#[derive(Clone)]
pub struct LinkOptions {
    /// As whom it signs in.
    pub user: String,
    /// How it proves that.
    pub proof: LinkProof,
    /// A PEM file with the authorities to trust, instead of those that browsers trust.
    pub ca_file: Option<PathBuf>,
    /// The server's key, in place of all authorities.
    pub pin: Option<Pin>,
    /// Whether what is not encrypted may go to other machines.
    pub insecure: bool,
    /// The HTTP proxy through which other machines are reached, `http://host:port`, or `none`. If
    /// nothing is said, what `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY` name, but for the hosts of
    /// `NO_PROXY`.
    pub proxy: Option<String>,
    /// How long the server may be silent.
    pub timeout: Duration,
    /// The program, for the server's logs.
    pub client: String,
}

/// How a program proves who it is.
#[derive(Clone)]
pub enum LinkProof {
    /// The user's password.
    Password(String),
    /// The user's password, and another one that takes its place: see [`Link::connect`].
    ///
    /// [`Link::connect`]: crate::Link::connect
    PasswordChange {
        /// The password so far.
        password: String,
        /// The password from now on.
        new_password: String,
    },
    /// A token that it was given for one.
    Token(Vec<u8>),
    /// A token of an identity provider. The options need no user then.
    Bearer(BearerToken),
    /// The certificate that it connects with, over `tls://`. The options need no user then.
    Certificate(ClientCertificate),
}

impl LinkOptions {
    /// Signs in with a password.
    pub fn password(user: impl Into<String>, password: impl Into<String>) -> LinkOptions {
        LinkOptions::proven(user, LinkProof::Password(password.into()))
    }

    /// Signs in with anything else.
    pub fn proven(user: impl Into<String>, proof: LinkProof) -> LinkOptions {
        LinkOptions {
            user: user.into(),
            proof,
            ca_file: None,
            pin: None,
            insecure: false,
            proxy: None,
            timeout: SILENCE,
            client: PROGRAM.into(),
        }
    }

    /// How the server is reached.
    pub(crate) fn dial(&self) -> DialOptions<'_> {
        DialOptions {
            ca_file: self.ca_file.as_deref(),
            pin: self.pin,
            certificate: match &self.proof {
                LinkProof::Certificate(certificate) => Some(certificate),
                _ => None,
            },
            insecure: self.insecure,
            proxy: self.proxy.as_deref(),
            compression: CompressionOptions::default(),
            timeout: self.timeout,
        }
    }
}

/// A proof is not for logs.
impl fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkOptions")
            .field("user", &self.user)
            .field("ca_file", &self.ca_file)
            .field("pin", &self.pin)
            .field("insecure", &self.insecure)
            .field("timeout", &self.timeout)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Why a call came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server, or whoever provides the procedure, says so.
    #[error(transparent)]
    Failed(CallFailed),
    /// There is no connection any more; the call may have been done or not.
    #[error("{0}")]
    Lost(Arc<ClientError>),
}

impl CallError {
    /// The stable code, if this version knows it.
    pub fn code(&self) -> Option<Code> {
        match self {
            CallError::Failed(failed) => failed.code(),
            CallError::Lost(error) => Some(error.code()),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            CallError::Failed(failed) => failed.hint.clone(),
            CallError::Lost(error) => error.hint(),
        }
    }
}

impl From<CallFailed> for CallError {
    fn from(failed: CallFailed) -> CallError {
        CallError::Failed(failed)
    }
}

/// A call to be made.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub(crate) call: Call,
    pub(crate) within: Option<Duration>,
}

impl Request {
    /// Of a procedure.
    pub fn new(procedure: impl Into<String>) -> Request {
        Request {
            call: Call {
                procedure: procedure.into(),
                ..Call::default()
            },
            within: None,
        }
    }

    /// A call that was put together elsewhere.
    #[cfg(feature = "sync")]
    pub(crate) fn from_call(call: Call) -> Request {
        Request { call, within: None }
    }

    /// With an argument; NULL without a value.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        value: impl Into<Option<ArgumentValue>>,
    ) -> Request {
        self.call.arguments.push(Argument::new(name, value));
        self
    }

    /// Of those that provide it, one of this user's.
    #[must_use]
    pub fn to_user(mut self, user: &str) -> Request {
        self.call.to = format!("user:{user}");
        self
    }

    /// Of those that provide it, this remote.
    #[must_use]
    pub fn to_remote(mut self, remote_id: RemoteId) -> Request {
        self.call.to = format!("remote:{remote_id}");
        self
    }

    /// It is done once under this key, however often it is said: 16 random bytes.
    #[must_use]
    pub fn once(mut self, key: [u8; 16]) -> Request {
        self.call.key = Bytes::copy_from_slice(&key);
        self
    }

    /// Nobody works at it any longer than that, wherever it is.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Request {
        self.within = Some(time);
        self
    }
}
