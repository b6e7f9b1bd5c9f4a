//! Connections that come over the web: in a WebSocket, or in numbered requests and their answers.
//!
//! Owns the connections in requests: their names, which nobody guesses, the numbers, and the last
//! two answers of each, which are repeated to whoever has not got them. What they carry is a connection's as
//! any other. The specification is docs/protocol.md.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::{Buf, BytesMut};
use hyper_util::rt::TokioIo;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split,
};
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use tidewater_carrier::listen::{Shown, Stream, accept_key, websocket};
use tidewater_carrier::{END, HOLD, MAX_BODY_BYTES, NUMBER, SESSION};

use super::caller::Peer;
use super::problem::Problem;
use super::{BODY, Web, forwarded, receive, text};
use crate::calls;
use crate::connection;
use crate::environment::random;
use crate::fault::Fault;
use crate::memory::{Held, MemoryBudget};
use crate::server::Shared;
use crate::sign_in::Origin;
use crate::signal::Signal;

/// How long a connection is kept of which no request comes.
const KEPT: Duration = Duration::from_secs(60);

/// How often it is looked for such.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// What waits between a request and the connection, each way: it is in nobody's budget.
const BUFFER_BYTES: usize = 32 << 10;

/// An answer that has begun is added to as long as more comes within so many turns of the runtime.
const LOOKS: usize = 3;

/// Who connects over the web, and what he needs to.
pub(super) struct Carried {
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    places: Arc<Semaphore>,
    /// Gone when the server shuts down and nothing is under way any more.
    alive: mpsc::WeakSender<()>,
}

/// What a connection holds as long as it lasts.
type Guard = (OwnedSemaphorePermit, mpsc::Sender<()>);

/// A connection in requests.
struct Session {
    exchange: Turn<Exchange>,
    /// The largest number that was asked with.
    newest: Signal<u64>,
    /// The largest number that was answered.
    answered: Signal<u64>,
    seen: Mutex<Instant>,
    asking: AtomicU64,
    shown: Shown,
}

/// What requests take turns with.
struct Exchange {
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
    /// What the connection has not taken yet, and the memory for it.
    unwritten: BytesMut,
    holds: Vec<Held>,
    ends: bool,
    /// The number of the last request; its answer, and that of the one before: whoever has two under
    /// way may have got neither.
    number: u64,
    answers: [Carry; 2],
    budget: MemoryBudget,
}

/// What an answer carries.
#[derive(Clone, Default)]
struct Carry {
    bytes: Bytes,
    is_last: bool,
    _held: Held,
}

impl Carried {
    pub(super) fn new(places: Arc<Semaphore>, alive: mpsc::WeakSender<()>) -> Carried {
        Carried {
            sessions: Mutex::default(),
            places,
            alive,
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection.
    fn enter(&self, server: &Shared) -> Result<Guard, Problem> {
        if server.is_draining() {
            return Err(Fault::shutting_down().into());
        }
        let alive = self.alive.upgrade().ok_or_else(Fault::shutting_down)?;
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            server.metrics.turned_away();
            server.busy()
        })?;
        Ok((place, alive))
    }

    /// Gives up connections of which no more requests come.
    pub(super) async fn sweep(&self) {
        loop {
            sleep(SWEEP_EVERY).await;
            self.sessions().retain(|_, session| {
                let seen = *session.seen();
                session.asking.load(Ordering::Relaxed) > 0 || seen.elapsed() < KEPT
            });
        }
    }
}

impl Session {
    fn seen(&self) -> MutexGuard<'_, Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request; nobody's leaving interrupts it. `held`: the memory for its body.
    async fn ask(
        self: Arc<Session>,
        number: u64,
        body: Bytes,
        held: Held,
        ends: bool,
    ) -> Result<Carry, Problem> {
        self.asking.fetch_add(1, Ordering::Relaxed);
        if number > self.newest.get() {
            self.newest.set(number);
        }
        // One that has overtaken another waits for it.
        let turn = self.answered.wait_for(|it| it + 1 >= number);
        if number == self.answered.get() + 2 {
            let _ = timeout(HOLD, turn).await;
        }
        let mut exchange = self.exchange.lock().await;
        let answer = exchange.ask(&self.newest, number, body, held, ends).await;
        self.answered.set(exchange.number);
        drop(exchange);
        *self.seen() = Instant::now();
        self.asking.fetch_sub(1, Ordering::Relaxed);
        answer
    }
}

impl Exchange {
    async fn ask(
        &mut self,
        newest: &Signal<u64>,
        number: u64,
        body: Bytes,
        held: Held,
        ends: bool,
    ) -> Result<Carry, Problem> {
        if number <= self.number && number + 1 >= self.number {
            return Ok(self.answers[usize::from(number < self.number)].clone());
        }
        if number != self.number + 1 || self.unwritten.len() > MAX_BODY_BYTES {
            let last = self.number;
            return Err(Problem::conflict(
                format!("request {number} does not follow request {last}"),
                "begin a new connection",
            ));
        }
        self.unwritten.extend_from_slice(&body);
        self.holds.push(held);
        self.ends |= ends;
        let answer = self.carry(newest, number).await;
        if self.unwritten.is_empty() {
            self.holds.clear();
        }
        self.answers.swap(0, 1);
        self.answers[0] = answer.clone();
        self.number = number;
        Ok(answer)
    }

    /// Writes what has come, and reads what there is to say: until there is something, another
    /// request waits, or it has been held for long enough.
    async fn carry(&mut self, newest: &Signal<u64>, number: u64) -> Carry {
        let until = Instant::now() + HOLD;
        let mut held = Held::default();
        let mut bytes = BytesMut::new();
        let another = async { newest.wait_for(|it| it > number).await };
        let mut another = std::pin::pin!(another);
        loop {
            let step = poll_fn(|context| {
                while !self.unwritten.is_empty() {
                    let to = Pin::new(&mut self.to);
                    match AsyncWrite::poll_write(to, context, &self.unwritten) {
                        Poll::Ready(Ok(count)) => self.unwritten.advance(count),
                        // Reading tells why.
                        Poll::Ready(Err(_)) => self.unwritten.clear(),
                        Poll::Pending => break,
                    }
                }
                if self.ends && self.unwritten.is_empty() {
                    // It ends all the same.
                    let _ = AsyncWrite::poll_shutdown(Pin::new(&mut self.to), context);
                }
                let mut piece = [std::mem::MaybeUninit::uninit(); 16 << 10];
                let mut piece = ReadBuf::uninit(&mut piece);
                match Pin::new(&mut self.from).poll_read(context, &mut piece) {
                    Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                        bytes.extend_from_slice(piece.filled());
                        Poll::Ready(Step::Came)
                    }
                    Poll::Ready(_) => Poll::Ready(Step::End),
                    // What had come while more was to be written waits for nothing now.
                    Poll::Pending if self.unwritten.is_empty() && !bytes.is_empty() => {
                        Poll::Ready(Step::Came)
                    }
                    Poll::Pending if self.unwritten.is_empty() => {
                        match another.as_mut().poll(context) {
                            Poll::Ready(_) => Poll::Ready(Step::Asked),
                            Poll::Pending => Poll::Pending,
                        }
                    }
                    Poll::Pending => Poll::Pending,
                }
            });
            let step = timeout_at(until, step).await;
            if !matches!(step, Ok(Step::Came)) {
                return Carry {
                    bytes: bytes.freeze(),
                    is_last: matches!(step, Ok(Step::End)),
                    _held: held,
                };
            }
            // A long answer takes memory until its receiver asks again.
            let room = match self.budget.hold(MAX_BODY_BYTES) {
                Some(all) if bytes.len() < MAX_BODY_BYTES => {
                    held = all;
                    MAX_BODY_BYTES
                }
                _ => bytes.len(),
            };
            self.read_on(&mut bytes, room).await;
            if self.unwritten.is_empty() || bytes.len() >= room {
                return Carry {
                    bytes: bytes.freeze(),
                    is_last: false,
                    _held: held,
                };
            }
        }
    }

    /// Reads what comes right behind, as far as there is room for it.
    async fn read_on(&mut self, bytes: &mut BytesMut, room: usize) {
        let mut looks = 0;
        while looks < LOOKS && bytes.len() < room {
            let before = bytes.len();
            let room = room - before;
            let mut from = (&mut self.from).take(room as u64);
            let read = timeout(Duration::ZERO, from.read_buf(bytes)).await;
            looks = if bytes.len() > before { 0 } else { looks + 1 };
            if matches!(read, Ok(Ok(0) | Err(_))) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

enum Step {
    Came,
    /// Another request waits.
    Asked,
    /// The connection has said all.
    End,
}

/// A request of a connection, or the first one of a new connection.
pub(super) async fn carry(
    State(web): State<Web>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(shown): Extension<Shown>,
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
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|it| it.to_str().ok()?.parse().ok());
    let held = calls::hold(&web.server.budget, length.unwrap_or(MAX_BODY_BYTES));
    let held = held.map_err(Problem::from)?;
    let (name, session) = match known {
        Some(name) => {
            let session = web.carried.sessions().get(&name).cloned();
            let session = session.filter(|it| it.shown == shown).ok_or_else(|| {
                Problem::not_found("this server knows no such connection: begin a new one")
            })?;
            (name, session)
        }
        None if number == 1 => {
            let peer = forwarded::client(&peer, &headers, &web.server.proxies);
            begin(&web, peer, shown)?
        }
        None => return Err(Problem::not_found("a connection begins with request 1").into()),
    };
    let body = receive(request, &web, BODY).await?;
    // Whoever asks may go, and ask again: what it has begun is done.
    let asked = tokio::spawn(session.ask(number, body, held, ends)).await;
    let carry = asked.map_err(|error| Problem::internal(&error))??;
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

/// Begins a connection.
fn begin(web: &Web, peer: String, shown: Shown) -> Result<(String, Arc<Session>), Problem> {
    let guard = web.carried.enter(&web.server)?;
    // Those that have ended are kept for a while.
    let most = web.server.limits.connections.saturating_mul(2);
    if web.carried.sessions().len() >= most {
        return Err(web.server.busy().into());
    }
    let name: [u8; 16] =
        random(&*web.server.environment.randomness).map_err(|error| Problem::internal(&error))?;
    let name: String = name.iter().map(|it| format!("{it:02x}")).collect();
    let (near, far) = duplex(BUFFER_BYTES);
    let (from, to) = split(near);
    let session = Arc::new(Session {
        exchange: Turn::new(Exchange {
            from,
            to,
            unwritten: BytesMut::new(),
            holds: Vec::new(),
            ends: false,
            number: 0,
            answers: <[Carry; 2]>::default(),
            budget: web.server.budget.clone(),
        }),
        newest: Signal::new(0),
        answered: Signal::new(0),
        seen: Mutex::new(Instant::now()),
        asking: AtomicU64::new(0),
        shown: shown.clone(),
    });
    web.carried.sessions().insert(name.clone(), session.clone());
    tokio::spawn(serve(web.server.clone(), far, peer, shown, guard));
    Ok((name, session))
}

async fn serve(
    server: Arc<Shared>,
    stream: impl Stream,
    peer: String,
    shown: Shown,
    _guard: Guard,
) {
    let _counted = server.metrics.connected();
    let origin = Origin {
        peer: &peer,
        shown: &shown,
    };
    connection::serve(&server, stream, origin).await;
}

/// A connection in a WebSocket.
pub(super) async fn upgrade(
    State(web): State<Web>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(shown): Extension<Shown>,
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
    let guard = web.carried.enter(&web.server)?;
    let peer = forwarded::client(&peer, request.headers(), &web.server.proxies);
    let upgrade = hyper::upgrade::on(&mut request);
    let server = web.server.clone();
    tokio::spawn(async move {
        match timeout(BODY, upgrade).await {
            Ok(Ok(upgraded)) => {
                let stream = websocket(TokioIo::new(upgraded)).await;
                serve(server, stream, peer, shown, guard).await;
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn exchange(near: DuplexStream) -> Exchange {
        let (from, to) = split(near);
        Exchange {
            from,
            to,
            unwritten: BytesMut::new(),
            holds: Vec::new(),
            ends: false,
            number: 0,
            answers: <[Carry; 2]>::default(),
            budget: MemoryBudget::new(1 << 30),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_a_body_was_taken_is_not_held_with_the_request() {
        let (near, mut far) = duplex(BUFFER_BYTES);
        far.write_all(b"go on").await.unwrap();
        let begun = Instant::now();
        let body = vec![7; 3 * BUFFER_BYTES];
        let asked = tokio::spawn(async move {
            let newest = Signal::new(1);
            let body = Bytes::from(body);
            let mut exchange = exchange(near);
            let carry = exchange.ask(&newest, 1, body, Held::default(), false);
            carry.await.ok().map(|it| it.bytes)
        });
        let mut taken = vec![0; 3 * BUFFER_BYTES];
        // The answer is looked for before there is room for the rest of the body.
        tokio::task::yield_now().await;
        far.read_exact(&mut taken).await.unwrap();
        assert_eq!(asked.await.unwrap().as_deref(), Some(&b"go on"[..]));
        // The clock stands still as long as there is something to do.
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
