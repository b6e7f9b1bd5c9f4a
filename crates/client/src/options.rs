//! How to sync.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_carrier::{CompressionOptions, DialOptions, Pin};
use tidewater_connection::device::{DeviceError, UserProof};
use tidewater_remote::database::AdoptionRule;
use tidewater_remote::{SyncDirection, VerifyMode};

use crate::bearer_token::{BearerToken, ClientCertificate};
use crate::request::{PROGRAM, SILENCE};
use crate::retry_policy::RetryPolicy;

/// How to sync.
#[derive(Clone)]
pub struct SyncOptions {
    /// The user's password, for the first sync or when the credential is no longer valid.
    pub password: Option<String>,
    /// A token of an identity provider, in place of the password.
    pub bearer: Option<BearerToken>,
    /// The certificate to connect with over `tls://`. Without a token it stands in place of the
    /// password.
    pub certificate: Option<ClientCertificate>,
    /// Another address of the server than the one that the remote remembers. It is
    /// remembered as soon as the server there lets the remote in.
    pub server: Option<String>,
    /// Whether the file may go over to another centre: its rows then take the place of those
    /// that the file has of the former one. Otherwise that is [`SyncError::AnotherCentre`](crate::SyncError::AnotherCentre).
    pub other_centre: bool,
    /// What becomes of tables that the file has already under the names of published ones: see
    /// [`AdoptionRule`]. Without it they are in the way.
    pub adopt: Option<AdoptionRule>,
    /// Which way.
    pub direction: SyncDirection,
    /// Whether everything is compared instead: see [`VerifyMode`].
    pub verify: VerifyMode,
    /// A PEM file with the authorities to trust, instead of those that the remote
    /// remembers.
    pub ca_file: Option<PathBuf>,
    /// The server's key, instead of the one that the remote remembers, and of all authorities: a
    /// server that has it is trusted.
    pub pin: Option<Pin>,
    /// Whether what is not encrypted may go to other machines.
    pub insecure: bool,
    /// The HTTP proxy through which other machines are reached, `http://host:port`, or `none`. If
    /// nothing is said, what `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY` name, but for the hosts of
    /// `NO_PROXY`.
    pub proxy: Option<String>,
    /// How what goes over the network is packed. Said at each sync: the remote remembers nothing
    /// of it.
    pub compression: CompressionOptions,
    /// How long the server may be silent.
    pub timeout: Duration,
    /// What becomes of a sync that the server turns away with a time to come back.
    pub retry: RetryPolicy,
    /// The program that syncs, for the server's logs.
    pub client: String,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions {
            password: None,
            bearer: None,
            certificate: None,
            server: None,
            other_centre: false,
            adopt: None,
            direction: SyncDirection::Both,
            verify: VerifyMode::No,
            ca_file: None,
            pin: None,
            insecure: false,
            proxy: None,
            compression: CompressionOptions::default(),
            timeout: SILENCE,
            retry: RetryPolicy::default(),
            client: PROGRAM.into(),
        }
    }
}

impl SyncOptions {
    /// How the server is reached, with these authorities or this key.
    pub(crate) fn dial<'o>(
        &'o self,
        ca_file: Option<&'o Path>,
        pin: Option<Pin>,
    ) -> DialOptions<'o> {
        DialOptions {
            ca_file,
            pin,
            certificate: self.certificate.as_ref(),
            insecure: self.insecure,
            proxy: self.proxy.as_deref(),
            compression: self.compression,
            timeout: self.timeout,
        }
    }

    /// What the user has to prove himself with. A token that cannot be read matters only to a
    /// remote that has nothing else.
    pub(crate) fn user_proof(&self, is_needed: bool) -> Result<Option<UserProof>, DeviceError> {
        Ok(match (&self.bearer, &self.certificate, &self.password) {
            (Some(bearer), _, _) => match bearer.read() {
                Ok(token) => Some(UserProof::Bearer(token)),
                Err(error) if is_needed => return Err(error),
                Err(_) => None,
            },
            (None, Some(_), _) => Some(UserProof::Certificate),
            (None, None, password) => password.clone().map(UserProof::Password),
        })
    }
}

/// A password is not for logs.
impl fmt::Debug for SyncOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncOptions")
            .field("password", &self.password.as_ref().map(|_| "..."))
            .field("bearer", &self.bearer)
            .field("certificate", &self.certificate)
            .field("server", &self.server)
            .field("other_centre", &self.other_centre)
            .field("adopt", &self.adopt)
            .field("direction", &self.direction)
            .field("verify", &self.verify)
            .field("ca_file", &self.ca_file)
            .field("pin", &self.pin)
            .field("insecure", &self.insecure)
            .field("proxy", &self.proxy.as_ref().map(|_| "..."))
            .field("compression", &self.compression)
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .field("client", &self.client)
            .finish()
    }
}
