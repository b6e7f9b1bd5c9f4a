//! Connections in numbered requests and their answers, whoever carries these.
//!
//! Owns the connections, by their names, which nobody guesses, the numbers, and the last two
//! answers of each, which are repeated to whoever has not got them. What they carry is a
//! connection's as any other. Leaves the requests as they look in HTTP to [`super::carry`]; the
//! specification is docs/protocol.md.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split,
};
use tokio::sync::Mutex as Turn;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use tidewater_carrier::listen::PeerCertificates;
use tidewater_carrier::{HOLD, MAX_BODY_BYTES};

use tidewater_server_jobs::memory::{HeldMemory, MemoryBudget};
use tidewater_server_jobs::signal::Signal;

/// How long a connection is kept of which no request comes.
const KEPT: Duration = Duration::from_secs(60);

/// How often it is looked for such.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// What waits between a request and the connection, each way: it is in nobody's budget.
const BUFFER_BYTES: usize = 32 << 10;

/// An answer that has begun is added to as long as more comes within so many turns of the runtime.
const LOOKS: usize = 3;

/// The connections in requests that a server knows.
pub struct Exchanges {
    /// In an order, so that those that are given up together end in the same one each time.
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    budget: MemoryBudget,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeRefusal {
    /// Nobody knows the connection, or not any more.
    Unknown,
    /// It names no connection, and is not the first of one.
    Unnamed,
    /// It does not follow the last one.
    OutOfOrder {
        /// Its number.
        number: u64,
        /// That of the last one.
        last: u64,
    },
    /// There is no memory for what it carries.
    Busy,
}

/// A connection in requests.
pub struct Session {
    exchange: Turn<Exchange>,
    /// The number of the last request that was answered; its answer, and that of the one before:
    /// whoever has two under way may have got neither. Who asks for one again does not wait for the
    /// request that is held: it may be held until what the answer brings is acknowledged.
    answers: Mutex<(u64, [Carry; 2])>,
    /// The largest number that was asked with.
    newest: Signal<u64>,
    /// The largest number that was answered.
    answered: Signal<u64>,
    seen: Mutex<Instant>,
    asking: AtomicU64,
    /// All was said: it is kept only for whoever has not got the last answer.
    has_ended: AtomicBool,
    shown: PeerCertificates,
}

/// What requests take turns with.
struct Exchange {
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
    /// What the connection has not taken yet, and the memory for it.
    unwritten: BytesMut,
    holds: Vec<HeldMemory>,
    ends: bool,
    /// The number of the last request.
    number: u64,
    budget: MemoryBudget,
}

/// What an answer carries.
#[derive(Clone, Debug, Default)]
pub struct Carry {
    /// What the connection says.
    pub bytes: Bytes,
    /// Whether it has said all.
    pub is_last: bool,
    _held: HeldMemory,
}

impl Exchanges {
    pub(crate) fn new(budget: MemoryBudget) -> Exchanges {
        Exchanges {
            sessions: Mutex::default(),
            budget,
        }
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are, with those that have ended and are kept for a while.
    pub(crate) fn count(&self) -> usize {
        self.sessions().len()
    }

    /// The connection to which a request belongs; `None`: it begins one.
    ///
    /// # Errors
    /// There is none, or it is another's.
    pub fn find(
        &self,
        name: Option<&str>,
        number: u64,
        shown: &PeerCertificates,
    ) -> Result<Option<Arc<Session>>, ExchangeRefusal> {
        let Some(name) = name else {
            return match number {
                1 => Ok(None),
                _ => Err(ExchangeRefusal::Unnamed),
            };
        };
        let session = self.sessions().get(name).cloned();
        let session = session.filter(|it| it.shown == *shown);
        session.map(Some).ok_or(ExchangeRefusal::Unknown)
    }

    /// Begins a connection under a name that nobody guesses. The stream is what it carries.
    pub fn begin(&self, name: String, shown: PeerCertificates) -> (Arc<Session>, DuplexStream) {
        let (near, far) = duplex(BUFFER_BYTES);
        let session = Arc::new(Session {
            exchange: Turn::new(Exchange::new(near, self.budget.clone())),
            answers: Mutex::default(),
            newest: Signal::new(0),
            answered: Signal::new(0),
            seen: Mutex::new(Instant::now()),
            asking: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            shown,
        });
        self.sessions().insert(name, session.clone());
        (session, far)
    }

    /// One request with all of its body; it is done also if nobody waits for the answer only where
    /// it runs as a task of its own.
    ///
    /// # Errors
    /// It does not follow the last one, or there is no memory for it.
    pub async fn request(
        &self,
        session: Arc<Session>,
        number: u64,
        body: Bytes,
        ends: bool,
    ) -> Result<Carry, ExchangeRefusal> {
        let held = self.budget.hold(body.len()).ok_or(ExchangeRefusal::Busy)?;
        session.ask(number, body, held, ends).await
    }

    /// Gives up connections of which no more requests come.
    pub async fn sweep(&self) {
        loop {
            sleep(SWEEP_EVERY).await;
            self.sessions().retain(|_, session| {
                let seen = *session.seen();
                session.asking.load(Ordering::Relaxed) > 0 || seen.elapsed() < KEPT
            });
        }
    }

    /// Gives up those that have ended, sooner than their time: others need the places.
    pub(crate) fn forget_ended(&self) {
        let has_ended = |it: &Session| it.has_ended.load(Ordering::Relaxed);
        self.sessions().retain(|_, session| !has_ended(session));
    }

    /// Gives up all of them.
    pub fn clear(&self) {
        self.sessions().clear();
    }
}

impl Session {
    fn seen(&self) -> MutexGuard<'_, Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> MutexGuard<'_, (u64, [Carry; 2])> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request that was answered already, if it is one of the last two.
    fn answer_again(&self, number: u64) -> Option<Carry> {
        let answers = self.answers();
        let (last, [newer, older]) = &*answers;
        match last.checked_sub(number) {
            Some(0) if number > 0 => Some(newer.clone()),
            Some(1) if number > 0 => Some(older.clone()),
            _ => None,
        }
    }

    fn keep_answer(&self, number: u64, answer: &Carry) {
        let mut answers = self.answers();
        if answers.0 < number {
            answers.1.swap(0, 1);
            *answers = (number, [answer.clone(), answers.1[1].clone()]);
        }
    }

    /// One request; nobody's leaving interrupts it. `held`: the memory for its body.
    pub(super) async fn ask(
        self: Arc<Session>,
        number: u64,
        body: Bytes,
        held: HeldMemory,
        ends: bool,
    ) -> Result<Carry, ExchangeRefusal> {
        if let Some(answer) = self.answer_again(number) {
            *self.seen() = Instant::now();
            return Ok(answer);
        }
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
        // It may have been answered meanwhile.
        let answer = match self.answer_again(number) {
            Some(answer) => Ok(answer),
            None => exchange.ask(&self.newest, number, body, held, ends).await,
        };
        if let Ok(answer) = &answer
            && number == exchange.number
        {
            self.keep_answer(number, answer);
        }
        self.answered.set(exchange.number);
        if answer.as_ref().is_ok_and(|it| it.is_last) {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        drop(exchange);
        *self.seen() = Instant::now();
        self.asking.fetch_sub(1, Ordering::Relaxed);
        answer
    }
}

impl Exchange {
    fn new(near: DuplexStream, budget: MemoryBudget) -> Exchange {
        let (from, to) = split(near);
        Exchange {
            from,
            to,
            unwritten: BytesMut::new(),
            holds: Vec::new(),
            ends: false,
            number: 0,
            budget,
        }
    }

    async fn ask(
        &mut self,
        newest: &Signal<u64>,
        number: u64,
        body: Bytes,
        held: HeldMemory,
        ends: bool,
    ) -> Result<Carry, ExchangeRefusal> {
        if number != self.number + 1 || self.unwritten.len() > MAX_BODY_BYTES {
            let last = self.number;
            return Err(ExchangeRefusal::OutOfOrder { number, last });
        }
        self.unwritten.extend_from_slice(&body);
        self.holds.push(held);
        self.ends |= ends;
        let answer = self.carry(newest, number).await;
        if self.unwritten.is_empty() {
            self.holds.clear();
        }
        self.number = number;
        Ok(answer)
    }

    /// Writes what has come, and reads what there is to say: until there is something, another
    /// request waits, or it has been held for long enough.
    async fn carry(&mut self, newest: &Signal<u64>, number: u64) -> Carry {
        let until = Instant::now() + HOLD;
        let mut held = HeldMemory::default();
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
                        Poll::Ready(ExchangeStep::Came)
                    }
                    Poll::Ready(_) => Poll::Ready(ExchangeStep::End),
                    // What had come while more was to be written waits for nothing now.
                    Poll::Pending if self.unwritten.is_empty() && !bytes.is_empty() => {
                        Poll::Ready(ExchangeStep::Came)
                    }
                    Poll::Pending if self.unwritten.is_empty() => {
                        match another.as_mut().poll(context) {
                            Poll::Ready(_) => Poll::Ready(ExchangeStep::Asked),
                            Poll::Pending => Poll::Pending,
                        }
                    }
                    Poll::Pending => Poll::Pending,
                }
            });
            let step = timeout_at(until, step).await;
            if !matches!(step, Ok(ExchangeStep::Came)) {
                return Carry {
                    bytes: bytes.freeze(),
                    is_last: matches!(step, Ok(ExchangeStep::End)),
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

enum ExchangeStep {
    Came,
    /// Another request waits.
    Asked,
    /// The connection has said all.
    End,
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_came_while_a_body_was_taken_is_not_held_with_the_request() {
        let (near, mut far) = duplex(BUFFER_BYTES);
        far.write_all(b"go on").await.unwrap();
        let begun = Instant::now();
        let body = vec![7; 3 * BUFFER_BYTES];
        let asked = tokio::spawn(async move {
            let newest = Signal::new(1);
            let body = Bytes::from(body);
            let mut exchange = Exchange::new(near, MemoryBudget::new(1 << 30));
            let carry = exchange.ask(&newest, 1, body, HeldMemory::default(), false);
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

    #[tokio::test(start_paused = true)]
    async fn connections_that_have_ended_give_way_and_no_others() {
        let exchanges = Exchanges::new(MemoryBudget::new(1 << 20));
        let (ended, mut far) = exchanges.begin("ended".into(), PeerCertificates::new());
        let (_goes_on, _other) = exchanges.begin("goes on".into(), PeerCertificates::new());
        exchanges.forget_ended();
        assert_eq!(exchanges.count(), 2);
        far.shutdown().await.unwrap();
        let last = exchanges.request(ended, 1, Bytes::new(), true).await;
        assert!(last.unwrap().is_last);
        exchanges.forget_ended();
        let find = |name| exchanges.find(Some(name), 2, &PeerCertificates::new());
        assert_eq!(find("ended").err(), Some(ExchangeRefusal::Unknown));
        assert!(find("goes on").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_repeated_while_the_next_request_is_held() {
        let exchanges = Exchanges::new(MemoryBudget::new(1 << 20));
        let (session, mut far) = exchanges.begin("name".into(), PeerCertificates::new());
        far.write_all(b"rows").await.unwrap();
        let begun = Instant::now();
        let ask = |number| exchanges.request(session.clone(), number, Bytes::new(), false);
        let first = ask(1).await.unwrap();
        let mut held = std::pin::pin!(ask(2));
        // The server has nothing more to say until these rows are acknowledged.
        assert!(timeout(Duration::from_millis(1), &mut held).await.is_err());
        let again = ask(1).await.unwrap();
        assert_eq!(
            (&again.bytes, &again.bytes[..]),
            (&first.bytes, &b"rows"[..])
        );
        assert_eq!(begun.elapsed(), Duration::from_millis(1));
        far.write_all(b"more").await.unwrap();
        assert_eq!(held.await.unwrap().bytes, b"more"[..]);
    }
}
