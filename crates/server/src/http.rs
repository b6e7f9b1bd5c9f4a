//! What a server has on the web: the web protocol, which is the same procedures and spaces over HTTP
//! with JSON, and connections that come in HTTP ([`carry`]).
//!
//! Owns the paths, what a request must carry, and how errors are told
//! (`application/problem+json`). What a call is, and who may call, is [`tidewater_server_live::calls`]'s affair.

mod caller;
mod carry;
mod describe;
mod events;
pub(crate) mod exchange;
mod forwarded;
mod images;
mod problem;
mod provide;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::unfold;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;

use tidewater_carrier::listen::{ByteStream, PeerCertificates};
use tidewater_carrier::{DEFAULT_PATH, MAX_BODY_BYTES};
use tidewater_protocol::json;
use tidewater_protocol::message::{
    Answer, Argument, Call, ColumnHeader, MAX_BEARER_BYTES, Returns,
};

use self::caller::{IdentifiedCaller, Peer};
use self::carry::CarriedConnections;
use self::images::AllowedImages;
use self::problem::Problem;
use self::provide::WebProviders;
use crate::connection::ConnectionService;
use crate::listener::SpokenProtocols;
use tidewater_carrier::proxy_header::IpNetworks;
use tidewater_server_config::{BUILT_IN_PREFIX, ImagesConfig, ServerLimits};
use tidewater_server_identity::sign_in::SignInService;
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::admission::{Shutdown, SyncAdmission};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::lanes::WorkerLanes;
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_jobs::publications::Publications;
use tidewater_server_live::built_in;
use tidewater_server_live::calls::{self, AnswerPart, AnswerStart, AnswerStream, Calls};
use tidewater_server_live::event_requests::EventRequests;

/// How long the head of a request may take to arrive.
const HEAD: Duration = Duration::from_secs(30);

/// How long the body of a request may take, of whoever has said who he is.
const BODY: Duration = Duration::from_secs(60);

/// How long a connection is heard on after the server has begun to shut down: a request that was
/// under way by then is answered, with the word that the connection ends.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Bytes of a sign-in: nobody knows who sends them. A token that is somewhat too long is read, so that
/// it is refused in the same words as elsewhere.
const SIGN_IN_BYTES: usize = 2 * MAX_BEARER_BYTES;

/// What the web needs of the server.
pub(crate) struct WebServices {
    /// Connections that come in HTTP.
    pub(crate) connections: Arc<ConnectionService>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) events: EventRequests,
    pub(crate) sign_in: Arc<SignInService>,
    pub(crate) signer: Arc<Signer>,
    pub(crate) lanes: Arc<WorkerLanes>,
    pub(crate) publications: Arc<Publications>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<SyncAdmission>,
    pub(crate) shutdown: Shutdown,
    pub(crate) budget: MemoryBudget,
    pub(crate) limits: ServerLimits,
    pub(crate) environment: Environment,
    /// Whose word counts about whom a request comes from.
    pub(crate) proxies: IpNetworks,
    /// The files from which new remotes begin.
    pub(crate) images: Option<ImagesConfig>,
}

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Web {
    services: Arc<WebServices>,
    callers: Arc<caller::Callers>,
    providers: Arc<WebProviders>,
    carried: Arc<CarriedConnections>,
    allowed: Arc<AllowedImages>,
}

/// All that a server has on the web: the web protocol, and connections that come in HTTP.
pub(crate) struct Site {
    web: Web,
}

impl Site {
    /// `places`: for connections in HTTP; `alive` is gone when the server shuts down and nothing is
    /// under way any more.
    pub(crate) fn new(
        services: Arc<WebServices>,
        places: Arc<Semaphore>,
        alive: mpsc::WeakSender<()>,
    ) -> Arc<Site> {
        let budget = services.budget.clone();
        let web = Web {
            services,
            callers: Arc::default(),
            providers: Arc::default(),
            carried: Arc::new(CarriedConnections::new(places, alive, budget)),
            allowed: Arc::default(),
        };
        Arc::new(Site { web })
    }

    /// What there is at an address where this is spoken.
    pub(crate) fn router(&self, spoken: SpokenProtocols) -> Router {
        let web = &self.web;
        let mut router = match spoken.web {
            true => Site::web_protocol(web),
            false => Router::new(),
        };
        let mut carries = None;
        if spoken.http {
            let carry = post(carry::carry).layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
            carries = Some(carry);
        }
        if spoken.websocket {
            carries = Some(carries.unwrap_or_default().get(carry::upgrade));
        }
        if let Some(carries) = carries {
            router = router.route(DEFAULT_PATH, carries);
        }
        router
            .fallback(async || Problem::not_found("there is nothing under this path"))
            .method_not_allowed_fallback(async || Problem::method())
            .layer(map_response(problem::of_response))
            .layer(map_response_with_state(
                web.services.clone(),
                last_while_draining,
            ))
            .with_state(web.clone())
    }

    fn web_protocol(web: &Web) -> Router<Web> {
        Router::new()
            .route("/openapi.json", get(describe::openapi))
            .route(images::PATH, get(images::fetch))
            .route(
                "/v1/sign-in",
                post(caller::sign_in).layer(DefaultBodyLimit::max(SIGN_IN_BYTES)),
            )
            .route("/v1/call/{name}", post(call))
            .route("/v1/publish/{space}/{subject}", post(events::publish))
            .route("/v1/events/{space}", get(events::subscribe))
            .route(
                "/v1/provide/{name}",
                get(provide::take).delete(provide::leave),
            )
            .route("/v1/answer/{call}", post(provide::answer))
            .route("/v1/fail/{call}", post(provide::fail))
            .layer(DefaultBodyLimit::max(web.services.limits.message_bytes))
            .layer(from_fn_with_state(web.clone(), unless_draining))
    }

    /// Serves one connection until it ends, or the server shuts down. `shown`: the certificates that
    /// were shown there.
    pub(crate) async fn serve(
        &self,
        router: Router,
        stream: Box<dyn ByteStream>,
        peer: String,
        shown: PeerCertificates,
    ) {
        let router = router.layer(axum::Extension(Peer(peer)));
        let router = router.layer(axum::Extension(shown));
        let service = TowerToHyperService::new(router);
        let services = &self.web.services;
        // Whoever asks and never reads would keep his place for ever.
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(services.limits.idle));
        let stream = Box::pin(stream);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        if !services.shutdown.is_draining() {
            let last_asked = async {
                services.shutdown.draining().await;
                // Or the server must end before.
                let _ = timeout(LAST_REQUEST, services.shutdown.aborted()).await;
            };
            tokio::select! {
                biased;
                // Whoever asks sees for himself how it ended.
                _ = &mut connection => return,
                () = last_asked => connection.as_mut().graceful_shutdown(),
            }
        }
        tokio::select! {
            biased;
            _ = &mut connection => {}
            () = services.shutdown.aborted() => {}
        }
    }

    /// Gives up providers that do not come back for more, and connections in requests.
    pub(crate) async fn sweep(&self) {
        let providers = self.web.providers.sweep(&self.web.services);
        tokio::join!(providers, self.web.carried.exchanges.sweep());
    }
}

/// The body of a request, which has to come within a time.
struct RequestBody(Bytes);

impl FromRequest<Web> for RequestBody {
    type Rejection = Response;

    async fn from_request(request: Request, web: &Web) -> Result<RequestBody, Response> {
        let most = web.services.limits.message_bytes;
        receive(request, web, BODY, most).await.map(RequestBody)
    }
}

/// The body of a request, which may have so many bytes.
async fn receive(
    request: Request,
    web: &Web,
    within: Duration,
    max_bytes: usize,
) -> Result<Bytes, Response> {
    match timeout(within, Bytes::from_request(request, web)).await {
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Problem::too_long(max_bytes).into_response())
        }
        Ok(received) => received.map_err(IntoResponse::into_response),
        Err(_) => Err(Problem::late().into_response()),
    }
}

/// While the server shuts down, calls that are under way are finished, and nothing is begun.
async fn unless_draining(State(web): State<Web>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let finishes = ["/v1/answer/", "/v1/fail/"]
        .iter()
        .any(|it| path.starts_with(it));
    match web.services.shutdown.is_draining() && !finishes {
        true => Problem::from(Fault::shutting_down()).into_response(),
        false => next.run(request).await,
    }
}

/// While the server shuts down, every answer is the last of its connection.
async fn last_while_draining(
    State(services): State<Arc<WebServices>>,
    mut response: Response,
) -> Response {
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if services.shutdown.is_draining() && !switches {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// What is answered without a look at the request when there are too many connections.
pub(crate) fn too_many(busy: Fault) -> Vec<u8> {
    let seconds = busy.retry_after_ms.div_ceil(1_000);
    let body = Problem::from(busy).body();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: {seconds}\r\ncontent-type: {}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        problem::CONTENT_TYPE,
        body.len(),
    );
    [head.into_bytes(), body].concat()
}

/// Calls a procedure.
async fn call(
    State(web): State<Web>,
    Path(name): Path<String>,
    who: IdentifiedCaller,
    headers: HeaderMap,
    RequestBody(body): RequestBody,
) -> Result<Response, Problem> {
    let call = Call {
        procedure: name,
        arguments: arguments(&body)?,
        to: text(&headers, "tidewater-to")?
            .unwrap_or_default()
            .to_owned(),
        key: match text(&headers, "idempotency-key")? {
            None => Bytes::new(),
            Some(key) => caller::key(key)?,
        },
        ..Call::default()
    };
    let deadline = text(&headers, "tidewater-timeout")?
        .map(duration)
        .transpose()?;
    if call.procedure.starts_with(BUILT_IN_PREFIX) {
        return answered(built_in::over_http(&call)?);
    }
    let services = web.services.clone();
    let prepared = services.calls.prepare(&who.caller, call, deadline)?;
    let asynchronous = text(&headers, "prefer")?.is_some_and(|it| it == "respond-async");
    if asynchronous {
        let goes_on = services.calls.unawaited.enter(&who.caller.user)?;
        let held = calls::hold(&services.budget, body.len())?;
        tokio::spawn(async move {
            let _alive = (goes_on, held);
            if let Err(error) = prepared.run(&services.calls).await {
                tracing::debug!(%error, "what nobody waits for came to nothing");
            }
        });
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let outcome = prepared.run_streaming(&services.calls).await;
    let failed = outcome.as_ref().err();
    services.metrics.call(failed.map(|it| it.code()));
    match outcome? {
        AnswerStart::Whole(answer) => answered(answer.into()),
        AnswerStart::Rows(stream) => Ok(streamed(*stream)),
    }
}

/// The list of rows, as it is read. If that does not come to its end, nor does the body.
fn streamed(stream: AnswerStream) -> Response {
    let columns = stream.columns.clone();
    let pieces = unfold(Some((stream, true)), move |state| {
        let columns = columns.clone();
        async move {
            let (mut stream, is_first) = state?;
            let piece = match stream.next().await {
                Ok(AnswerPart::Rows(rows)) => listed(columns, rows, is_first, false),
                Ok(AnswerPart::Last(answered)) => {
                    let rows = Answer::from(answered).rows;
                    return Some((listed(columns, rows, is_first, true), None));
                }
                Err(failed) => Err(std::io::Error::other(failed.message)),
            };
            let goes_on = piece.is_ok().then_some((stream, false));
            Some((piece, goes_on))
        }
    });
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, Body::from_stream(pieces)).into_response()
}

/// Rows as a part of a list in JSON.
fn listed(
    columns: Vec<ColumnHeader>,
    rows: Bytes,
    is_first: bool,
    is_last: bool,
) -> std::io::Result<Bytes> {
    let answer = Answer {
        returns: Returns::Rows as i32,
        columns,
        rows,
    };
    let value = json::answer(&answer).map_err(std::io::Error::other)?;
    let list = value.to_string();
    let inner = list
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .unwrap_or_default();
    let comma = if is_first || inner.is_empty() {
        ""
    } else {
        ","
    };
    let (begin, end) = (
        if is_first { "[" } else { "" },
        if is_last { "]" } else { "" },
    );
    Ok(format!("{begin}{comma}{inner}{end}").into())
}

fn answered(answer: Answer) -> Result<Response, Problem> {
    let value = json::answer(&answer).map_err(|error| Problem::internal(&error))?;
    Ok(match value {
        Value::Null if answer.columns.is_empty() => StatusCode::NO_CONTENT.into_response(),
        value => Json(value).into_response(),
    })
}

/// The arguments of a body, which may be empty.
fn arguments(body: &[u8]) -> Result<Vec<Argument>, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Problem::bad(
            format!("the body is no JSON object with arguments: {error}"),
            "write {\"item\": 7}, one name for each argument",
        )
    })?;
    Ok(json::arguments(&object))
}

fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Problem> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    value
        .to_str()
        .map(|it| Some(it.trim()))
        .map_err(|_| Problem::bad(format!("the header {name} is no text"), "write plain ASCII"))
}

/// A time such as `250ms`, `5s`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, Problem> {
    let seconds = || text.parse().ok().map(Duration::from_secs);
    let found = tidewater_server_config::parse_duration(text).or_else(seconds);
    found.filter(|it| !it.is_zero()).ok_or_else(|| {
        Problem::bad(
            format!("{text:?} is no time"),
            "write tidewater-timeout: 250ms, 5s or 1m",
        )
    })
}

/// Whether a body says that it is JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.and_then(|it| it.to_str().ok())
        .is_some_and(|it| it.starts_with("application/json"))
}

/// What a provider sends back: JSON, or plain text where it says so.
fn value(headers: &HeaderMap, body: &[u8]) -> Result<Value, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    match serde_json::from_slice(body) {
        Ok(value) => Ok(value),
        Err(error) if is_json(headers) => Err(Problem::bad(
            format!("the body is no JSON: {error}"),
            "write a value, an object for a row, or a list of objects",
        )),
        // Who answers from a shell writes text.
        Err(_) => match std::str::from_utf8(body) {
            Ok(text) => Ok(Value::from(text.trim_end())),
            Err(_) => Err(Problem::bad("the body is no text", "write JSON")),
        },
    }
}
