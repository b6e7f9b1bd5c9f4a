//! What can go wrong under a connection.

use std::io;
use std::path::{Path, PathBuf};

use crate::block::BlockError;
use crate::pin::Pin;
use crate::url::UrlError;

/// Where a server that speaks no HTTP says so to whoever does: the scheme for which it listens.
pub const SCHEME_HEADER: &str = "tidewater-scheme";

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarrierError {
    /// The address would have everything sent readable over a network.
    #[error("{server} would send everything readable over the network")]
    Exposed {
        /// Its URL.
        server: String,
    },
    /// A host has a name that no certificate can have.
    #[error("{host:?} is not a host name that a certificate can have")]
    HostName {
        /// The name.
        host: String,
    },
    /// A file with a certificate or a key cannot be used.
    #[error("{}: {what}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The server does not answer.
    #[error("{server} cannot be reached: {source}")]
    Unreachable {
        /// Its URL.
        server: String,
        /// What the system says.
        source: io::Error,
    },
    /// The server's certificate is not trusted.
    #[error("the certificate of {server} is not trusted: {what}")]
    Certificate {
        /// Its URL.
        server: String,
        /// Why.
        what: String,
        /// Whether only because of what time it is here.
        by_the_clock: bool,
    },
    /// The server has another key than the one that is pinned.
    #[error("{server} has another key than the one that is pinned: {found}")]
    OtherKey {
        /// Its URL.
        server: String,
        /// The pin of the key that it has.
        found: Pin,
    },
    /// There is no encrypted connection.
    #[error("no encrypted connection with {server}: {what}")]
    Tls {
        /// Its URL.
        server: String,
        /// Why.
        what: String,
    },
    /// What answers, a relay most likely, knows no server of this name.
    #[error("at {server} no server of this name is known")]
    NoSuchName {
        /// Its URL.
        server: String,
    },
    /// What answers cannot serve now: a relay, most likely, at which the server is not.
    #[error("{server} is away: what answers at its address cannot serve now")]
    Away {
        /// Its URL.
        server: String,
    },
    /// The proxy has no URL that could be one.
    #[error("the proxy: {0}")]
    ProxyUrl(#[from] UrlError),
    /// A proxy does not connect us with the server.
    #[error("the proxy {proxy} is of no help: {what}")]
    Proxy {
        /// Its URL.
        proxy: String,
        /// Why.
        what: String,
    },
    /// What answers is no Tidewater server: a login page, another program, a proxy.
    #[error("something else answers in place of {server}: {what}")]
    Other {
        /// Its URL.
        server: String,
        /// What it says.
        what: String,
    },
    /// What answers speaks another protocol than the address says: the address is wrong.
    #[error("{server} is not the address of a Tidewater server: {what}")]
    Mistaken {
        /// Its URL.
        server: String,
        /// What it says.
        what: String,
    },
    /// What the server sends is not packed as it has to be.
    #[error("{server} sends what cannot be unpacked: {what}")]
    Blocks {
        /// Its URL.
        server: String,
        /// Why.
        what: BlockError,
    },
    /// The socket is of no use any more.
    #[error("the connection is lost: {0}")]
    Lost(#[source] io::Error),
    /// Whoever waited does not want to any longer.
    #[error("connecting was cancelled")]
    Cancelled,
    /// The TLS library refuses its own defaults.
    #[error("the TLS library refuses its own defaults: {0}")]
    Defect(#[source] rustls::Error),
}

impl CarrierError {
    /// A server ends the connection in the middle of the handshake.
    pub(crate) fn closes(server: &impl ToString) -> CarrierError {
        CarrierError::Tls {
            server: server.to_string(),
            what: "the server does not answer to TLS, but closes the connection".into(),
        }
    }

    /// An answer of HTTP that is not of the protocol, with what is said of it in short and what
    /// [`SCHEME_HEADER`] says. A page to sign in at, and a balancer without a server, are in the
    /// way for a while; another server is there to stay.
    pub(crate) fn by_answer(
        server: String,
        status: u16,
        what: String,
        scheme: Option<&str>,
    ) -> CarrierError {
        if let Some(scheme) = scheme {
            let what = format!("a Tidewater server listens there, but for {scheme}://");
            return CarrierError::Mistaken { server, what };
        }
        match status {
            400 | 404..=406 | 410 | 426 | 501 | 505 => CarrierError::Mistaken {
                server,
                what: format!("a web server answers there: {what}"),
            },
            _ => CarrierError::Other { server, what },
        }
    }

    pub(crate) fn file(file: &Path, what: impl ToString) -> CarrierError {
        CarrierError::File {
            file: file.to_owned(),
            what: what.to_string(),
        }
    }
}
