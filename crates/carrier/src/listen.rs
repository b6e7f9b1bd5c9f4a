//! Taking connections on tokio's sockets: listening on TCP, TLS and compression over what comes.
//!
//! A simulator listens on a [`ServerNetwork`] of its own.

mod block_stream;
mod header_reader;
mod relay_tunnel;
mod spoken_protocol;
mod websocket;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

pub use self::relay_tunnel::{
    IdleTunnel, NAME_BYTES, RegistrationRefusal, RelayToken, RelayTunnel, ServerRegistration,
    TunnelError,
};
pub use self::spoken_protocol::{SpokenProtocol, first, first_within};
pub use self::websocket::{accept_key, websocket};
use crate::error::CarrierError;
use crate::tls::{self, ClientAuthorities};

pub use block_stream::{BlockStream, ByteAccount, NoRoom};

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes listeners.
pub trait ServerNetwork: Send + Sync {
    /// Listens on `host:port`.
    fn listen<'a>(&'a self, address: &'a str)
    -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>>;
}

/// Yields connections.
pub trait StreamListener: Send {
    /// The address that it is bound to, `host:port`.
    fn address(&self) -> String;

    /// The next connection. May be dropped and called again without losing one.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>>;
}

/// A connection, before anything is read from it.
pub struct IncomingStream {
    /// The bytes.
    pub stream: Box<dyn ByteStream>,
    /// Where it comes from: what failed attempts are counted by, without a port.
    pub peer: String,
}

/// A stream of bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Connections that the system keeps until they are accepted, if it lets us: a crowd that comes at
/// once is not told to knock again after a second.
const QUEUE: u32 = 4_096;

/// The machine's network.
pub struct TcpNetwork;

impl ServerNetwork for TcpNetwork {
    fn listen<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>> {
        Box::pin(async move {
            let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
            for address in tokio::net::lookup_host(address).await? {
                result = listen(address);
                if result.is_ok() {
                    break;
                }
            }
            Ok(Box::new(result?) as Box<dyn StreamListener>)
        })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Or a server that is started anew could not listen for a while.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

impl StreamListener for TcpListener {
    fn address(&self) -> String {
        self.local_addr()
            .map_or_else(|_| "unknown".into(), |address| address.to_string())
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            // Replies leave whole; waiting for more would only delay them.
            stream.set_nodelay(true)?;
            Ok(IncomingStream {
                stream: Box::new(stream),
                peer: peer.ip().to_canonical().to_string(),
            })
        })
    }
}

/// The certificates that a client shows.
pub type PeerCertificates = Vec<CertificateDer<'static>>;

/// TLS over what comes.
#[derive(Clone)]
pub struct TlsServer(TlsAcceptor);

impl TlsServer {
    /// With this certificate and its key: see [`tls::server`].
    ///
    /// # Errors
    /// See [`tls::server`].
    pub fn new(certificate: &Path, key: &Path) -> Result<TlsServer, CarrierError> {
        Ok(TlsServer(TlsAcceptor::from(tls::server(certificate, key)?)))
    }

    /// The same, which asks clients who they are: see [`tls::server_for_known_clients`].
    ///
    /// # Errors
    /// See there.
    pub fn for_known_clients(
        certificate: &Path,
        key: &Path,
        authorities: &ClientAuthorities,
    ) -> Result<TlsServer, CarrierError> {
        let config = tls::server_for_known_clients(certificate, key, authorities)?;
        Ok(TlsServer(TlsAcceptor::from(config)))
    }

    /// Set up otherwise.
    pub fn from_config(config: Arc<ServerConfig>) -> TlsServer {
        TlsServer(TlsAcceptor::from(config))
    }

    /// Shakes hands. Gives the certificates that the client has shown, its own first, of which
    /// nothing is known but that the client has the key.
    ///
    /// # Errors
    /// The other side does not speak TLS, or does not trust us.
    pub async fn accept(
        &self,
        stream: Box<dyn ByteStream>,
    ) -> io::Result<(Box<dyn ByteStream>, PeerCertificates)> {
        let stream = self.0.accept(stream).await?;
        let (_, connection) = stream.get_ref();
        let shown = connection.peer_certificates().unwrap_or_default();
        let shown = shown.iter().map(|it| it.clone().into_owned()).collect();
        Ok((Box::new(stream), shown))
    }
}
