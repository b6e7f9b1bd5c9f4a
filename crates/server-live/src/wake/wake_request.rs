//! One HTTP request to an address of the operator's.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use tidewater_carrier::listen::ByteStream;
use tidewater_carrier::tls;

use tidewater_server_config::{WakeConfig, WebAddress};
use tidewater_server_jobs::error::ServerError;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// As much of an answer is looked at.
const STATUS_BYTES: u64 = 512;

/// Where requests go.
pub struct WakeTarget {
    config: WakeConfig,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl WakeTarget {
    /// # Errors
    /// The authorities to trust cannot be read, or the host can have no certificate.
    pub fn new(config: &WakeConfig) -> Result<WakeTarget, ServerError> {
        let wrong = |what: &dyn std::fmt::Display| {
            ServerError::configuration(
                format!("wake: {}: {what}", config.address.url),
                "write url = \"https://HOST/PATH\", and ca = \"FILE.pem\" if the host's \
                 certificate is not from a public authority",
            )
        };
        let secure = || -> Result<_, ServerError> {
            let client = tls::client(config.ca.as_deref()).map_err(|it| wrong(&it))?;
            let name =
                ServerName::try_from(config.address.host.host.clone()).map_err(|it| wrong(&it))?;
            Ok((TlsConnector::from(client), name))
        };
        Ok(WakeTarget {
            tls: match config.address.host.transport.is_encrypted() {
                true => Some(secure()?),
                false => None,
            },
            config: config.clone(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.config.address.url
    }

    fn request(&self, body: &str) -> String {
        let WakeConfig { address, token, .. } = &self.config;
        let WebAddress { host, path, .. } = address;
        let token = token.as_ref();
        let token = token.map(|it| format!("authorization: Bearer {it}\r\n"));
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{}\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            host.address(),
            token.unwrap_or_default(),
            body.len(),
        )
    }
}

/// Sends a JSON text.
///
/// # Errors
/// It was not taken (200 to 299), as far as is known.
pub(crate) async fn post(target: &WakeTarget, body: &str) -> io::Result<()> {
    let exchange = async {
        let stream = TcpStream::connect(target.config.address.host.address()).await?;
        let mut stream: Box<dyn ByteStream> = match &target.tls {
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
            None => Box::new(stream),
        };
        stream.write_all(target.request(body).as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        while !answer.contains(&b'\n') && (answer.len() as u64) < STATUS_BYTES {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        let line = String::from_utf8_lossy(&answer);
        let status = line.split(' ').nth(1).unwrap_or_default();
        match status.len() == 3 && status.starts_with('2') {
            true => Ok(()),
            false => Err(io::Error::other(format!("the answer is {status:?}"))),
        }
    };
    let exchanged = timeout(PATIENCE, exchange).await;
    exchanged.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
