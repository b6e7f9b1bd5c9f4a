//! The admin endpoint: whether a program lives, whether it is ready, and its figures.
//!
//! Owns the paths and their answers. A request only looks at what the program knows already.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Connections at the same time; others wait.
const CONNECTIONS: usize = 32;

/// How long a request may take to arrive, and a connection may be without one.
const REQUEST: Duration = Duration::from_secs(10);

/// How long a connection is kept, also one that takes no answers.
const CONNECTION: Duration = Duration::from_secs(30);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is told at the endpoint; both are answered at once.
pub trait ProbeTarget: Send + Sync + 'static {
    /// Why nobody is to be sent here at the moment; `None` if all is well.
    fn trouble(&self) -> Option<String>;

    /// The figures, in OpenMetrics' text format.
    ///
    /// # Errors
    /// They cannot be written.
    fn figures(&self) -> Result<String, fmt::Error>;
}

/// Serves `/healthz`, `/readyz` and `/metrics` over HTTP until it is dropped.
pub async fn serve<P: ProbeTarget>(listener: TcpListener, probed: Arc<P>) {
    let router = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(metrics::<P>))
        .with_state(probed);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin endpoint cannot be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asks sees for himself how it ended.
            let _ = timeout(CONNECTION, connection).await;
            drop(place);
        });
    }
}

async fn readyz<P: ProbeTarget>(State(probed): State<Arc<P>>) -> Response {
    match probed.trouble() {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics<P: ProbeTarget>(State(probed): State<Arc<P>>) -> Response {
    match probed.figures() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
