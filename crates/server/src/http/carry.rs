//! Connections that come over the web: in a WebSocket, or in numbered requests and their answers.
//!
//! Owns what requests look like in HTTP, and who may begin a connection. What is done with their
//! numbers is [`super::exchange`]'s affair. The specification is docs/protocol.md.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::BytesMut;
use futures_util::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use tidewater_carrier::listen::{ByteStream, PeerCertificates, accept_key, websocket};
use tidewater_carrier::{END, MAX_BODY_BYTES, NUMBER, SESSION};

use super::caller::Peer;
use super::exchange::{ExchangeRefusal, Exchanges, Session};
use super::problem::Problem;
use super::{BODY, Web, WebServices, forwarded, text};
use tidewater_server_identity::sign_in::Origin;
use tidewater_server_jobs::environment::random;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{FREE_BYTES, HeldMemory, MemoryBudget};
use tidewater_server_live::calls;

/// Who connects over the web, and what he needs to.
pub(super) struct CarriedConnections {
    pub(super) exchanges: Exchanges,
    places: Arc<Semaphore>,
    /// Gone when the server shuts down and nothing is under way any more.
    alive: mpsc::WeakSender<()>,
}

/// What a connection holds as long as it lasts.
type Guard = (OwnedSemaphorePermit, mpsc::Sender<()>);

impl CarriedConnections {
    /// `budget`: for what is not asked for yet, and for answers.
    pub(super) fn new(
        places: Arc<Semaphore>,
        alive: mpsc::WeakSender<()>,
        budget: MemoryBudget,
    ) -> CarriedConnections {
        CarriedConnections {
            exchanges: Exchanges::new(budget),
            places,
            alive,
        }
    }

    /// A place for one more connection.
    fn enter(&self, services: &WebServices) -> Result<Guard, Problem> {
        if services.shutdown.is_draining() {
            return Err(Fault::shutting_down().into());
        }
        let alive = self.alive.upgrade().ok_or_else(Fault::shutting_down)?;
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            services.metrics.turned_away();
            services.admission.busy()
        })?;
        Ok((place, alive))
    }
}

impl From<ExchangeRefusal> for Problem {
    fn from(refused: ExchangeRefusal) -> Problem {
        match refused {
            ExchangeRefusal::Unknown => {
                Problem::not_found("this server knows no such connection: begin a new one")
            }
            ExchangeRefusal::Unnamed => Problem::not_found("a connection begins with request 1"),
            ExchangeRefusal::OutOfOrder { number, last } => Problem::conflict(
                format!("request {number} does not follow request {last}"),
                "begin a new connection",
            ),
            ExchangeRefusal::Busy => calls::no_memory().into(),
        }
    }
}

/// A request of a connection, or the first one of a new connection.
pub(super) async fn carry(
    State(web): State<Web>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(shown): Extension<PeerCertificates>,
    headers: HeaderMap,
    request: Request,
) -> axum::response::Result<Response> {
    let number = text(&headers, NUMBER)?.and_then(|it| it.parse::<u64>().ok());
    let number = number.filter(|it| *it > 0).ok_or_else(|| {
        Problem::bad(
            format!("the header {NUMBER} has no number"),
            "this path carries connections of Tidewater's clients; see docs/protocol.md",
        )
    })?;
    let ends = headers.contains_key(END);
    let known = text(&headers, SESSION)?.map(str::to_owned);
    let exchanges = &web.carried.exchanges;
    let found = exchanges.find(known.as_deref(), number, &shown);
    let (name, session, within) = match (known, found.map_err(Problem::from)?) {
        (Some(name), Some(session)) => (name, session, BODY),
        _ => {
            let peer = forwarded::client(&peer, &headers, &web.services.proxies);
            let (name, session) = begin(&web, peer, shown)?;
            (name, session, web.services.limits.handshake)
        }
    };
    let received = timeout(within, receive_held(request, &web.services.budget)).await;
    let (body, held) = received.unwrap_or_else(|_| Err(Problem::late()))?;
    // Whoever asks may go, and ask again: what it has begun is done.
    let asked = tokio::spawn(session.ask(number, body, held, ends)).await;
    let carry = asked.map_err(|error| Problem::internal(&error))?;
    let carry = carry.map_err(Problem::from)?;
    let mut response = Response::builder()
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CACHE_CONTROL, "no-store")
        .header(SESSION, name)
        .header(NUMBER, number);
    if carry.is_last {
        response = response.header(END, "1");
    }
    let response = response.body(carry.bytes.into());
    Ok(response.map_err(|error| Problem::internal(&error))?)
}

/// The body of a request. Memory is held for what has come, and for nothing that is only announced:
/// nobody knows yet who sends it.
async fn receive_held(
    request: Request,
    budget: &MemoryBudget,
) -> Result<(Bytes, HeldMemory), Problem> {
    let mut pieces = request.into_body().into_data_stream();
    let mut body = BytesMut::new();
    let mut reservation = budget.empty();
    let mut reserved = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Problem::bad("the body has broken off", "send it again"))?;
        body.extend_from_slice(&piece);
        if body.len() > MAX_BODY_BYTES {
            return Err(Problem::too_long(MAX_BODY_BYTES));
        }
        if body.len() > FREE_BYTES {
            let more = (body.len() - reserved) as u64;
            if !reservation.grow(more) {
                return Err(calls::no_memory().into());
            }
            reserved = body.len();
        }
    }
    Ok((body.freeze(), reservation.into()))
}

/// Begins a connection.
fn begin(
    web: &Web,
    peer: String,
    shown: PeerCertificates,
) -> Result<(String, Arc<Session>), Problem> {
    let guard = web.carried.enter(&web.services)?;
    // Those that have ended are kept for a while.
    let most = web.services.limits.connections.saturating_mul(2);
    if web.carried.exchanges.count() >= most {
        // Whoever begins many and ends them keeps nobody else away.
        web.carried.exchanges.forget_ended();
    }
    if web.carried.exchanges.count() >= most {
        return Err(web.services.admission.busy().into());
    }
    let name: [u8; 16] =
        random(&*web.services.environment.randomness).map_err(|error| Problem::internal(&error))?;
    let name: String = name.iter().map(|it| format!("{it:02x}")).collect();
    let (session, far) = web.carried.exchanges.begin(name.clone(), shown.clone());
    tokio::spawn(serve(web.services.clone(), far, peer, shown, guard));
    Ok((name, session))
}

async fn serve(
    services: Arc<WebServices>,
    stream: impl ByteStream,
    peer: String,
    shown: PeerCertificates,
    _guard: Guard,
) {
    let _counted = services.metrics.connected();
    let origin = Origin {
        peer: &peer,
        shown: &shown,
    };
    services.connections.serve(stream, origin).await;
}

/// A connection in a WebSocket.
pub(super) async fn upgrade(
    State(web): State<Web>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(shown): Extension<PeerCertificates>,
    mut request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers();
    let says = |name, value: &str| {
        let mut all = headers
            .get_all(name)
            .iter()
            .filter_map(|it| it.to_str().ok());
        all.any(|it| {
            it.split(',')
                .any(|it| it.trim().eq_ignore_ascii_case(value))
        })
    };
    let is_asked = says(header::CONNECTION, "upgrade") && says(header::UPGRADE, "websocket");
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .map(|it| accept_key(it.as_bytes()));
    let (Some(key), true) = (key, is_asked && says(header::SEC_WEBSOCKET_VERSION, "13")) else {
        return Err(Problem::bad(
            "this is no request for a WebSocket of version 13",
            "this path carries connections of Tidewater's clients; a proxy before the server has \
             to pass Upgrade and Connection on",
        ));
    };
    let guard = web.carried.enter(&web.services)?;
    let peer = forwarded::client(&peer, request.headers(), &web.services.proxies);
    let upgrade = hyper::upgrade::on(&mut request);
    let services = web.services.clone();
    tokio::spawn(async move {
        match timeout(BODY, upgrade).await {
            Ok(Ok(upgraded)) => {
                let stream = websocket(TokioIo::new(upgraded)).await;
                serve(services, stream, peer, shown, guard).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "no WebSocket after all"),
            Err(_) => tracing::debug!("no WebSocket after all: it took too long"),
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, key)
        .body(axum::body::Body::empty());
    response.map_err(|error| Problem::internal(&error))
}
