//! Requests to servers on the web that the operator named.
//!
//! Owns one request with its limits: of size, and that no redirect is followed, so that nobody but
//! whom the operator named is believed. How long it may take is its caller's affair; so is what
//! the answer means.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use tidewater_carrier::listen::ByteStream;
use tidewater_carrier::{CarrierError, tls};

use tidewater_server_config::WebAddress;

/// How long a connection is kept that nobody uses: less than most servers keep theirs.
const KEPT_FOR: Duration = Duration::from_secs(20);

/// Trusts certain authorities, and asks.
pub struct WebClient {
    tls: Arc<ClientConfig>,
    /// Connections that nobody uses at the moment, to the only address that is asked.
    idle: Mutex<Vec<Open>>,
    /// As many are kept.
    keeps: usize,
}

/// What is asked.
pub struct WebRequest<'a> {
    /// The method.
    pub method: Method,
    /// Names and values, beside those that HTTP needs.
    pub headers: &'a [(&'static str, String)],
    /// What is sent.
    pub body: Bytes,
    /// No answer is longer.
    pub max_bytes: usize,
}

/// What is answered.
#[derive(Debug)]
pub struct WebAnswer {
    /// The status.
    pub status: StatusCode,
    /// Empty if it is not told.
    pub content_type: String,
    /// What is answered.
    pub body: Bytes,
}

/// Why there is no answer, for people.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// It cannot be reached, or ends early.
    #[error("{0}")]
    Lost(String),
    /// It is longer than it may be.
    #[error("the answer cannot be read, or has more than {max_bytes} bytes: {what}")]
    TooLong {
        /// So many may be.
        max_bytes: usize,
        /// What was asked for.
        what: String,
    },
}

/// A connection.
struct Open {
    sender: SendRequest<Body>,
    /// It ends when this is dropped.
    _driver: JoinSet<()>,
    since: Instant,
}

impl WebClient {
    /// One that keeps so many connections, to one address, open for the next request.
    ///
    /// # Errors
    /// The authorities to trust cannot be read.
    pub fn new(ca: Option<&Path>, keeps: usize) -> Result<WebClient, CarrierError> {
        Ok(WebClient {
            tls: tls::client(ca)?,
            idle: Mutex::default(),
            keeps,
        })
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// There is none.
    pub async fn ask(
        &self,
        address: &WebAddress,
        request: WebRequest<'_>,
    ) -> Result<WebAnswer, WebError> {
        while let Some(open) = self.take_idle() {
            match self.send(open, address, &request).await {
                // The other side has closed it meanwhile, and read nothing of the request; or it
                // has: requests are such that they can be sent twice.
                Err(WebError::Lost(_)) => {}
                answered => return answered,
            }
        }
        let open = open(&self.tls, address).await;
        let open = open.map_err(|error| WebError::Lost(error.to_string()))?;
        self.send(open, address, &request).await
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Open>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<Open> {
        let mut idle = self.idle();
        idle.retain(|it| it.since.elapsed() < KEPT_FOR && !it.sender.is_closed());
        idle.pop()
    }

    async fn send(
        &self,
        mut open: Open,
        address: &WebAddress,
        request: &WebRequest<'_>,
    ) -> Result<WebAnswer, WebError> {
        let lost = |error: &dyn std::error::Error| WebError::Lost(told(error));
        open.sender.ready().await.map_err(|it| lost(&it))?;
        let built = hyper::Request::builder()
            .method(request.method.clone())
            .uri(&address.path)
            .header(HOST, address.host.authority());
        let headers = request.headers.iter();
        let built = headers.fold(built, |built, (name, value)| built.header(*name, value));
        let body = Body::from(request.body.clone());
        let built = built.body(body).map_err(|it| lost(&it))?;
        let sent = open.sender.send_request(built).await;
        let response = sent.map_err(|it| lost(&it))?;
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|it| it.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let body = to_bytes(Body::new(response.into_body()), request.max_bytes).await;
        let body = body.map_err(|error| WebError::TooLong {
            max_bytes: request.max_bytes,
            what: error.to_string(),
        })?;
        let mut idle = self.idle();
        if idle.len() < self.keeps && !open.sender.is_closed() {
            open.since = Instant::now();
            idle.push(open);
        }
        drop(idle);
        Ok(WebAnswer {
            status,
            content_type,
            body,
        })
    }
}

/// With what is behind it: "error sending request" alone helps nobody.
fn told(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

async fn open(
    tls: &Arc<ClientConfig>,
    address: &WebAddress,
) -> Result<Open, Box<dyn std::error::Error + Send + Sync>> {
    let host = &address.host;
    let stream = TcpStream::connect(host.address()).await?;
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn ByteStream> = match host.transport.is_encrypted() {
        false => Box::new(stream),
        true => {
            let name = ServerName::try_from(host.host.clone())?;
            let connector = TlsConnector::from(tls.clone());
            Box::new(connector.connect(name, stream).await?)
        }
    };
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // Whoever waits for an answer is told by its sender.
        let _ = connection.await;
    });
    Ok(Open {
        sender,
        _driver: driver,
        since: Instant::now(),
    })
}

/// An answer that tells what was wanted, and not to look elsewhere.
///
/// # Errors
/// It does not: why, for people.
pub fn successful(answer: WebAnswer) -> Result<WebAnswer, String> {
    let status = answer.status;
    if status.is_redirection() {
        return Err(format!(
            "it answers with status {status}: write the address that it redirects to"
        ));
    }
    match status.is_success() {
        true => Ok(answer),
        false => Err(format!("it answers with status {status}")),
    }
}
