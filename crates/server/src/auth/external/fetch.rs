//! Documents of identity providers, over HTTP.
//!
//! Owns one request with its limits: of size, and that no redirect is followed, so that nobody but
//! whom the operator named tells which keys count. How long it may take is its caller's affair.

use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use tidewater_carrier::listen::Stream;
use tidewater_carrier::{CarrierError, Transport, tls};

use crate::config::WebAddress;

/// No document of a provider is longer.
const MAX_BYTES: usize = 256 << 10;

/// Fetches documents, trusting certain authorities.
pub(super) struct Fetcher(Arc<ClientConfig>);

impl Fetcher {
    pub(super) fn new(ca: Option<&Path>) -> Result<Fetcher, CarrierError> {
        tls::client(ca).map(Fetcher)
    }

    /// The document at an address.
    ///
    /// # Errors
    /// There is none, for people.
    pub(super) async fn fetch(&self, address: &WebAddress) -> Result<Vec<u8>, String> {
        let fetched = self.ask(address).await;
        fetched.map_err(|error| format!("{}: {error}", address.url))
    }

    async fn ask(
        &self,
        address: &WebAddress,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let host = &address.host;
        let stream = TcpStream::connect(host.address()).await?;
        let stream: Box<dyn Stream> = match host.transport {
            Transport::Tcp => Box::new(stream),
            Transport::Tls => {
                let name = ServerName::try_from(host.host.clone())?;
                let connector = TlsConnector::from(self.0.clone());
                Box::new(connector.connect(name, stream).await?)
            }
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends when this is dropped.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let request = hyper::Request::get(&address.path)
            .header(HOST, authority(address))
            .header(ACCEPT, "application/json")
            .body(Body::empty())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        if status.is_redirection() {
            return Err(format!(
                "it answers with status {status}: write the address that it redirects to"
            )
            .into());
        }
        if !status.is_success() {
            return Err(format!("it answers with status {status}").into());
        }
        let body = to_bytes(Body::new(response.into_body()), MAX_BYTES).await;
        let body = body.map_err(|error| {
            format!("the answer cannot be read, or has more than {MAX_BYTES} bytes: {error}")
        })?;
        Ok(body.to_vec())
    }
}

/// The host as a header has it: with its port only if that is not the scheme's own.
fn authority(address: &WebAddress) -> String {
    let host = &address.host;
    let own = match host.transport {
        Transport::Tcp => 80,
        Transport::Tls => 443,
    };
    let full = host.address();
    match host.port == own {
        true => full[..full.len() - format!(":{own}").len()].to_owned(),
        false => full,
    }
}
