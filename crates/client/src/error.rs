//! Why a program could not connect, call or sync.

use tidewater_carrier::{CarrierError, UrlError};
use tidewater_connection::device::DeviceError;
use tidewater_protocol::Code;
#[cfg(feature = "sync")]
use tidewater_remote::{RemoteError, SyncError};

/// Why something failed. A remote's file is as it was before, except for what the error is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A sync.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Sync(SyncError),
    /// The connection failed, or the server did not let the program in.
    #[error(transparent)]
    Connection(DeviceError),
    /// There is no connection to the server.
    #[error(transparent)]
    Carrier(CarrierError),
    /// The server's address is none.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The line breaks again and again, and brings nothing more of the download.
    #[cfg(feature = "sync")]
    #[error(
        "the connection broke {tries} times in a row before it brought more of the download, of \
         which {bytes_kept} bytes are kept: {last}"
    )]
    Broken {
        /// How often.
        tries: u32,
        /// What the next sync need not fetch again.
        bytes_kept: u64,
        /// What happened the last time.
        last: Box<ClientError>,
    },
    /// An image cannot be begun from.
    #[cfg(feature = "sync")]
    #[error("{message}")]
    Image {
        /// The stable code.
        code: Code,
        /// What is wrong.
        message: String,
        /// What to do next.
        hint: &'static str,
    },
}

/// What to do where something else than a Tidewater server answers.
const WRONG_ADDRESS: &str = "see that scheme, host and port are those of a Tidewater server \
     (tls://host:port, https://host, tcp:// on loopback)";

impl ClientError {
    /// What the connection under a sync, or a program's own, has failed of.
    pub fn device_error(&self) -> Option<&DeviceError> {
        match self {
            #[cfg(feature = "sync")]
            ClientError::Sync(SyncError::Connection(error)) => Some(error),
            ClientError::Connection(error) => Some(error),
            _ => None,
        }
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            #[cfg(feature = "sync")]
            ClientError::Sync(error) => error.code(),
            ClientError::Connection(error) => error.code(),
            ClientError::Url(_) => Code::Usage,
            #[cfg(feature = "sync")]
            ClientError::Broken { last, .. } => last.code(),
            #[cfg(feature = "sync")]
            ClientError::Image { code, .. } => *code,
            ClientError::Carrier(error) => match error {
                CarrierError::Exposed { .. }
                | CarrierError::HostName { .. }
                | CarrierError::ProxyUrl(_)
                | CarrierError::Mistaken { .. }
                | CarrierError::File { .. } => Code::Usage,
                CarrierError::Unreachable { .. }
                | CarrierError::Tls { .. }
                | CarrierError::NoSuchName { .. }
                | CarrierError::Away { .. }
                | CarrierError::Proxy { .. }
                | CarrierError::Other { .. } => Code::Unreachable,
                CarrierError::Certificate { .. } | CarrierError::OtherKey { .. } => {
                    Code::CertificateInvalid
                }
                CarrierError::Blocks { .. } => Code::MalformedFrame,
                _ => Code::Internal,
            },
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        let error = match self {
            #[cfg(feature = "sync")]
            ClientError::Sync(error) => return error.hint(),
            ClientError::Connection(error) => return error.hint(),
            ClientError::Url(_) => {
                return "write it as tls://host:port or tcp://127.0.0.1:port".into();
            }
            #[cfg(feature = "sync")]
            ClientError::Image { hint, .. } => return (*hint).into(),
            #[cfg(feature = "sync")]
            ClientError::Broken { .. } => {
                return "nothing is lost, and the next sync goes on with what is kept; sync again over \
                        a better line; if it breaks here each time, a single row may be larger than \
                        what this line carries before it breaks"
                    .into();
            }
            ClientError::Carrier(error) => error,
        };
        match error {
            CarrierError::Exposed { .. } => {
                "use tls://, wss:// or https://, or allow it with the option `insecure`"
            }
            CarrierError::ProxyUrl(_) => {
                "write the proxy as http://host:port, or none (--proxy, HTTPS_PROXY)"
            }
            CarrierError::Proxy { .. } => {
                "see that the proxy is right (--proxy, HTTPS_PROXY) and lets you through to this \
                 port"
            }
            CarrierError::Other { .. } => {
                "see that host, port and path are those of a Tidewater server that listens for \
                 this scheme there; or the network may want you to sign in on a web page first"
            }
            CarrierError::Mistaken { .. } => WRONG_ADDRESS,
            CarrierError::HostName { .. } => "write the server's address as tls://host:port",
            CarrierError::File { .. } => {
                "name a PEM file with the certificate of the server's authority"
            }
            CarrierError::Unreachable { .. } => {
                "see that the server runs, that its address is right and that the network lets \
                 you through"
            }
            CarrierError::Certificate {
                by_the_clock: true, ..
            } => {
                "see that date and time of this device are right; if they are, the server's \
                 certificate has to be renewed"
            }
            CarrierError::Certificate { .. } => {
                "see that the address is right; for a certificate of your own, name the file \
                 with the certificate of its authority (--ca FILE)"
            }
            CarrierError::OtherKey { .. } => {
                "ask the server's operator; if its key was replaced on purpose, pin the new one with \
                 --pin, else somebody else answers at this address"
            }
            CarrierError::Tls { .. } => {
                "try again later: a balancer without a server that is ready closes connections, \
                 too; if it stays so, see that the server listens for this scheme at this port, \
                 and its log"
            }
            CarrierError::NoSuchName { .. } => {
                "see that the host name in the address is the server's own, which its relay has \
                 under [[server]]"
            }
            CarrierError::Away { .. } => {
                "try again later; if it stays so, see that the server runs and that its log says \
                 that it is registered at the relay"
            }
            CarrierError::Blocks { .. } => {
                "see that a Tidewater server listens at this address, and that nothing on the way \
                 changes what it sends; try it with --compression off"
            }
            _ => "update both programs, and report it if it happens again",
        }
        .into()
    }

    /// When to come back, where the server said so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "sync")]
            ClientError::Sync(error) => error.retry_after_ms(),
            ClientError::Connection(error) => error.retry_after_ms(),
            #[cfg(feature = "sync")]
            ClientError::Broken { last, .. } => last.retry_after_ms(),
            _ => None,
        }
    }
}

#[cfg(feature = "sync")]
impl ClientError {
    /// An error that several hear of.
    pub(crate) fn from_shared(error: &ClientError) -> ClientError {
        ClientError::Connection(DeviceError::ConnectionLost {
            during: "while others used the connection",
            source: Some(std::io::Error::other(error.to_string())),
        })
    }

    /// Of a sync whose connection failed: what to do about it is to sync again.
    pub(crate) fn in_sync(self) -> ClientError {
        match self {
            ClientError::Connection(error) => ClientError::Sync(error.into()),
            other => other,
        }
    }

    /// Whether the address is none of a Tidewater server, by what answers there.
    pub(crate) fn is_of_the_address(&self) -> bool {
        matches!(self, ClientError::Carrier(CarrierError::Mistaken { .. }))
            || matches!(self.device_error(), Some(DeviceError::NotTidewater { .. }))
    }
}

impl From<DeviceError> for ClientError {
    fn from(error: DeviceError) -> ClientError {
        ClientError::Connection(error)
    }
}

#[cfg(feature = "sync")]
impl From<SyncError> for ClientError {
    fn from(error: SyncError) -> ClientError {
        ClientError::Sync(error)
    }
}

#[cfg(feature = "sync")]
impl From<RemoteError> for ClientError {
    fn from(error: RemoteError) -> ClientError {
        ClientError::Sync(error.into())
    }
}

/// That a connection is lost, or nobody waits for it, is the same wherever it is noticed.
impl From<CarrierError> for ClientError {
    fn from(error: CarrierError) -> ClientError {
        match error {
            CarrierError::Lost(source) => ClientError::Connection(DeviceError::ConnectionLost {
                during: "at the socket",
                source: Some(source),
            }),
            CarrierError::Cancelled => ClientError::Connection(DeviceError::Cancelled),
            other => ClientError::Carrier(other),
        }
    }
}
