//! Connections in requests of HTTP: the client's own bookkeeping, over a network and a farm that
//! lose requests and answers, bring them twice, late, and to another server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use tidewater_carrier::exchange_client::{ExchangeClient, ExchangeReply, ExchangeRequest};
use tidewater_carrier::{HOLD, LATE, TRIES, pause_after};

use super::exact::{Exact, Spoken};
use super::inlet::{Inlet, InletReply};
use super::{ConnectionRoute, FaultKind, NetworkFault, REPLAYED, WIRE_BYTES, Weather};
use crate::random::SeededRandom;

/// A request does not arrive.
pub(super) const LOST: &str = "request lost";

/// A request is served, and nobody hears the answer.
pub(super) const UNANSWERED: &str = "answer to a request lost";

/// A request arrives twice.
pub(super) const REPEATED: &str = "request arrived twice";

/// And when it does, a newer one has arrived.
pub(super) const LATER: &str = "copy of a request arrived after a newer one";

/// A request arrives after the next one.
pub(super) const OVERTAKEN: &str = "request overtaken by the next one";

/// The balancer has forgotten to which server a connection belongs.
pub(super) const ELSEWHERE: &str = "request brought to another server";

/// As long as a server keeps a connection of which no requests come.
const KEPT: Duration = Duration::from_secs(60);

/// The servers behind a balancer.
#[derive(Clone)]
pub(crate) struct Farm {
    pub(crate) places: usize,
    /// Who takes requests at a place.
    pub(crate) inlet: Rc<dyn Fn(usize) -> Option<Inlet>>,
    /// Whether the centre still knows all that this client was told.
    pub(crate) remembers: Rc<dyn Fn() -> bool>,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Fine,
    Lost {
        /// The client hears nothing at all.
        silent: bool,
    },
    Unanswered {
        silent: bool,
    },
    /// It arrives again so much later.
    Repeated {
        ms: u64,
    },
    Delayed {
        ms: u64,
    },
    Elsewhere,
}

/// What is heard of a request that went once.
enum Heard {
    Said(InletReply),
    Nothing,
}

/// The client of one connection.
struct Client {
    way: ConnectionRoute,
    farm: Farm,
    /// Where the balancer brings its requests.
    place: Cell<usize>,
    /// How many of a hundred requests something happens to.
    rough: u64,
    latency_ms: u64,
    fault: Cell<Option<NetworkFault>>,
    /// Bytes that went up, and down.
    passed: [Cell<usize>; 2],
    /// Nothing passes any more; whether that is told.
    broken: Cell<Option<EndNotice>>,
    /// The largest number that has arrived.
    newest: Cell<u64>,
    random: RefCell<SeededRandom>,
    spoken: Spoken,
    /// All requests, if they are to go once more.
    sent: Option<RefCell<Vec<ExchangeRequest>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndNotice {
    AtOnce,
    Never,
}

/// A connection in requests, the first of which goes to this place.
pub(crate) fn dial(
    place: usize,
    weather: Weather,
    way: ConnectionRoute,
    farm: Farm,
) -> DuplexStream {
    let (near, ours) = tokio::io::duplex(WIRE_BYTES);
    let client = Rc::new(Client {
        way,
        farm,
        place: Cell::new(place),
        rough: weather.rough / 3,
        latency_ms: weather.latency_ms,
        fault: Cell::new(weather.fault),
        passed: <[Cell<usize>; 2]>::default(),
        broken: Cell::default(),
        newest: Cell::default(),
        random: RefCell::new(weather.random),
        spoken: Spoken::default(),
        sent: weather.replay_ms.map(|_| RefCell::default()),
    });
    spawn_local(client.live(near, weather.replay_ms));
    ours
}

impl Client {
    async fn live(self: Rc<Self>, near: DuplexStream, replay_ms: Option<u64>) {
        self.way.server.count_connection(true);
        let is_done = self.carry(near).await;
        self.way.server.count_connection(false);
        if !is_done {
            // The server still waits for requests.
            self.way.trace.outlives();
        }
        if let Some(ms) = replay_ms {
            sleep(Duration::from_millis(ms)).await;
            self.replay().await;
        }
        if !is_done {
            sleep(KEPT).await;
        }
    }

    /// Carries the bytes of the connection until both sides have said all, or it is lost. Whether
    /// they have.
    async fn carry(self: &Rc<Self>, near: DuplexStream) -> bool {
        let (mut reader, mut writer) = tokio::io::split(near);
        let mut requests = ExchangeClient::default();
        // In the order in which they went.
        let mut flights = FuturesOrdered::new();
        let mut buffer = [0; WIRE_BYTES];
        loop {
            while let Some(request) = requests.next_request() {
                if let Some(sent) = &self.sent {
                    sent.borrow_mut().push(request.clone());
                }
                flights.push_back(self.fly(request));
            }
            if requests.is_done() {
                return true;
            }
            tokio::select! {
                biased;
                flown = flights.next(), if !flights.is_empty() => {
                    let Some(Some((reply, exact))) = flown else {
                        return false;
                    };
                    let body = reply.body.clone();
                    if requests.handle_reply(reply).is_err() {
                        return false;
                    }
                    exact.hears(&body);
                    if let Some(found) = exact.found() {
                        self.way.chronicle.failed(found);
                    }
                }
                read = reader.read(&mut buffer), if requests.takes() => match read {
                    Ok(count @ 1..) => {
                        let mut spoken = self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
                        spoken.extend_from_slice(&buffer[..count]);
                        requests.take(&buffer[..count]);
                    }
                    _ => requests.close(),
                },
                written = writer.write(requests.came()), if !requests.came().is_empty() => {
                    let Ok(count) = written else {
                        return false;
                    };
                    requests.drop_handed_over(count);
                }
                else => return false,
            }
        }
    }

    /// Has a request go until it is answered, as often as clients do.
    async fn fly(self: &Rc<Self>, request: ExchangeRequest) -> Option<(ExchangeReply, Arc<Exact>)> {
        for tries in 1..=TRIES {
            if tries > 1 {
                sleep(pause_after(tries - 1)).await;
            }
            match self.go(&request, tries == 1).await {
                Heard::Said(InletReply::Reply(reply, exact)) => return Some((reply, exact)),
                Heard::Said(InletReply::Refused) => return None,
                Heard::Said(InletReply::Unavailable) | Heard::Nothing => {}
            }
        }
        None
    }

    /// Has a request go once.
    async fn go(self: &Rc<Self>, request: &ExchangeRequest, first: bool) -> Heard {
        self.wait().await;
        let luck = self.luck();
        if !self.passes(true, request).await {
            return Heard::Nothing;
        }
        let place = match luck {
            Luck::Lost { silent } => return self.lose(LOST, silent).await,
            Luck::Repeated { ms } => {
                self.copy(request.clone(), ms);
                self.place.get()
            }
            Luck::Delayed { ms } => {
                sleep(Duration::from_millis(ms)).await;
                self.place.get()
            }
            Luck::Elsewhere if request.session.is_some() && self.farm.places > 1 => {
                self.way.chronicle.fault(ELSEWHERE);
                (self.place.get() + 1) % self.farm.places
            }
            _ => self.place.get(),
        };
        if first && request.number < self.newest.get() {
            self.way.chronicle.fault(OVERTAKEN);
        }
        let said = timeout(HOLD + LATE, self.deliver(request.clone(), place)).await;
        let Ok(Some(said)) = said else {
            return Heard::Nothing;
        };
        self.wait().await;
        if let Luck::Unanswered { silent } = luck {
            return self.lose(UNANSWERED, silent).await;
        }
        if !self.passes(false, request).await {
            return Heard::Nothing;
        }
        if let InletReply::Reply(reply, _) = &said {
            self.passed[1].set(self.passed[1].get() + reply.body.len());
        }
        Heard::Said(said)
    }

    /// Brings a request to a server, or to another one if that is gone.
    async fn deliver(
        self: &Rc<Self>,
        request: ExchangeRequest,
        place: usize,
    ) -> Option<InletReply> {
        let places = (0..self.farm.places).map(|it| (place + it) % self.farm.places);
        let mut open = places.filter_map(|place| {
            let inlet = (self.farm.inlet)(place)?;
            inlet.is_open().then_some((place, inlet))
        });
        let (place, inlet) = open.next()?;
        if request.session.is_none() {
            self.place.set(place);
        }
        self.newest.set(self.newest.get().max(request.number));
        let name: u128 = {
            let mut random = self.random.borrow_mut();
            u128::from(random.next()) << 64 | u128::from(random.next())
        };
        let asked = inlet.ask(
            request,
            format!("{name:032x}"),
            &self.spoken,
            &self.way.chronicle,
        );
        asked.await
    }

    /// The request arrives again, and nobody hears what is said to it.
    fn copy(self: &Rc<Self>, request: ExchangeRequest, ms: u64) {
        let client = self.clone();
        let place = self.place.get();
        spawn_local(async move {
            sleep(Duration::from_millis(ms)).await;
            // Like an old recording, see `World::dial`.
            if request.session.is_none() && !(client.farm.remembers)() {
                return;
            }
            client
                .way
                .chronicle
                .fault(match request.number < client.newest.get() {
                    true => LATER,
                    false => REPEATED,
                });
            let _ = client.deliver_copy(request, place).await;
        });
    }

    /// As [`Client::deliver`], but that no balancer learns from it.
    async fn deliver_copy(
        self: &Rc<Self>,
        request: ExchangeRequest,
        place: usize,
    ) -> Option<InletReply> {
        let kept = self.place.get();
        let said = self.deliver(request, place).await;
        self.place.set(kept);
        said
    }

    /// All requests go once more.
    async fn replay(self: &Rc<Self>) {
        let Some(sent) = &self.sent else {
            return;
        };
        if !(self.farm.remembers)() {
            return;
        }
        self.way.chronicle.fault(REPLAYED);
        let place = self.place.get();
        for request in sent.take() {
            let _ = self.deliver(request, place).await;
        }
    }

    async fn lose(&self, kind: &'static str, silent: bool) -> Heard {
        self.way.chronicle.fault(kind);
        if silent {
            sleep(HOLD + LATE).await;
        }
        Heard::Nothing
    }

    async fn wait(&self) {
        let latency_ms = self.random.borrow_mut().below(self.latency_ms + 1);
        if latency_ms > 0 {
            sleep(Duration::from_millis(latency_ms)).await;
        }
    }

    fn luck(&self) -> Luck {
        let mut random = self.random.borrow_mut();
        if !random.percent(self.rough) {
            return Luck::Fine;
        }
        let silent = random.percent(20);
        match random.below(10) {
            0 | 1 => Luck::Lost { silent },
            2 | 3 => Luck::Unanswered { silent },
            4 | 5 => Luck::Repeated {
                ms: random.below(500),
            },
            6 => Luck::Repeated {
                ms: random.below(40_000),
            },
            7 | 8 => Luck::Delayed {
                ms: random.below(3_000),
            },
            _ => Luck::Elsewhere,
        }
    }

    /// What happens to the connection as a whole. Whether the request, or its answer, passes.
    async fn passes(self: &Rc<Self>, up: bool, request: &ExchangeRequest) -> bool {
        if let Some(told) = self.broken.get() {
            if told == EndNotice::Never {
                sleep(HOLD + LATE).await;
            }
            return false;
        }
        let passed = &self.passed[usize::from(!up)];
        if up {
            passed.set(passed.get() + request.body.len());
        }
        let due = |it: &NetworkFault| it.up == up && it.after <= passed.get();
        let Some(fault) = self.fault.get().filter(due) else {
            return true;
        };
        self.fault.set(None);
        self.way.chronicle.fault(fault.kind.name());
        match fault.kind {
            FaultKind::Cut => self.broken.set(Some(EndNotice::AtOnce)),
            FaultKind::Linger { ms } => {
                self.broken.set(Some(EndNotice::AtOnce));
                self.way.trace.outlives();
                if up {
                    self.copy(request.clone(), ms);
                }
            }
            FaultKind::Silence => {
                self.broken.set(Some(EndNotice::Never));
                self.way.trace.outlives();
                sleep(HOLD + LATE).await;
            }
            FaultKind::Delay { ms } => {
                sleep(Duration::from_millis(ms)).await;
                return true;
            }
            // Whoever receives it notices, and the request goes again.
            FaultKind::Damage(_) => {}
        }
        false
    }
}
