//! The network between a remote and a server: pieces of bytes that take their time, and
//! what can happen to them.

mod exact;
mod inlet;
mod lane;
mod requests;
mod trace;

use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use tidewater_server::environment::{
    BoxFuture, ByteStream, IncomingStream, ServerNetwork, StreamListener,
};

use crate::chronicle::Chronicle;
use crate::random::SeededRandom;
use crate::server_life::Life;

pub(crate) use inlet::Inlet;
pub(crate) use requests::{Farm, dial as dial_in_requests};
pub(crate) use trace::{Trace, Traces};

/// What the network holds of each direction at either end.
const WIRE_BYTES: usize = 4_096;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// It ends for both sides.
    Cut,
    /// It ends for the remote; what it sent reaches the server so much later.
    Linger { ms: u64 },
    /// Nothing passes any more, and nobody is told.
    Silence,
    /// What comes after waits so long.
    Delay { ms: u64 },
    /// Some bytes do not arrive as they were sent. The network is TLS: whoever receives
    /// that notices it, and hears the end of the connection.
    Damage(Damage),
}

/// How bytes can arrive otherwise than they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    Lost,
    Doubled,
    Swapped,
    Truncated,
    Corrupted,
}

impl Damage {
    const ALL: &[Damage] = &[
        Damage::Lost,
        Damage::Doubled,
        Damage::Swapped,
        Damage::Truncated,
        Damage::Corrupted,
    ];
}

/// A connection whose bytes come one by one.
const TRICKLED: &str = "connection trickled";

/// All that a connection carried to a server arrives there, or elsewhere, once more.
const REPLAYED: &str = "connection replayed as a whole";

/// What was sent on an old connection arrives when the remote has a newer one.
const OVERTAKEN: &str = "old connection's bytes arrived after a newer connection";

/// A server still serves what the remote has left for another one.
const TWO_SERVERS: &str = "two servers served a remote at once";

/// Every kind of fault of the network.
pub(crate) const KINDS: &[&str] = &[
    FaultKind::Cut.name(),
    FaultKind::Linger { ms: 0 }.name(),
    FaultKind::Silence.name(),
    FaultKind::Delay { ms: 0 }.name(),
    FaultKind::Damage(Damage::Lost).name(),
    FaultKind::Damage(Damage::Doubled).name(),
    FaultKind::Damage(Damage::Swapped).name(),
    FaultKind::Damage(Damage::Truncated).name(),
    FaultKind::Damage(Damage::Corrupted).name(),
    TRICKLED,
    REPLAYED,
    OVERTAKEN,
    TWO_SERVERS,
    requests::LOST,
    requests::UNANSWERED,
    requests::REPEATED,
    requests::LATER,
    requests::OVERTAKEN,
    requests::ELSEWHERE,
];

impl FaultKind {
    const fn name(self) -> &'static str {
        match self {
            FaultKind::Cut => "connection cut at a byte",
            FaultKind::Linger { .. } => "connection outlived by its bytes",
            FaultKind::Silence => "connection silenced",
            FaultKind::Delay { .. } => "message delayed",
            FaultKind::Damage(Damage::Lost) => "message lost",
            FaultKind::Damage(Damage::Doubled) => "message duplicated",
            FaultKind::Damage(Damage::Swapped) => "message reordered",
            FaultKind::Damage(Damage::Truncated) => "message truncated",
            FaultKind::Damage(Damage::Corrupted) => "message corrupted",
        }
    }
}

/// What happens, after how many bytes of a direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkFault {
    /// From the remote to the server, or back.
    pub(crate) up: bool,
    pub(crate) after: usize,
    pub(crate) kind: FaultKind,
}

/// The network of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) fault: Option<NetworkFault>,
    /// Each piece takes up to so long.
    pub(crate) latency_ms: u64,
    /// Pieces have up to so many bytes.
    pub(crate) piece: u64,
    /// All of it is sent once more, so long after it ended.
    pub(crate) replay_ms: Option<u64>,
    /// What the remote says last does not leave it.
    pub(crate) last_is_lost: bool,
    /// Where it consists of requests, something happens to a third as many of a hundred.
    pub(crate) rough: u64,
    pub(crate) random: SeededRandom,
}

impl Weather {
    pub(crate) fn fine(random: SeededRandom) -> Weather {
        Weather {
            fault: None,
            latency_ms: 4,
            piece: 4_096,
            replay_ms: None,
            last_is_lost: false,
            rough: 0,
            random,
        }
    }

    /// Bad with this many chances in a hundred.
    pub(crate) fn any(random: &mut SeededRandom, percent: u64) -> Weather {
        let kind = match random.below(10) {
            0..=2 => FaultKind::Linger {
                ms: random.below(40_000),
            },
            3 => FaultKind::Silence,
            4 => FaultKind::Delay {
                ms: random.below(60_000),
            },
            5 | 6 => FaultKind::Damage(random.pick(Damage::ALL).unwrap_or(Damage::Corrupted)),
            _ => FaultKind::Cut,
        };
        let most = [64, 1_200, 6_000][usize::try_from(random.below(3)).unwrap_or(0)];
        let fault = NetworkFault {
            up: random.percent(50),
            after: usize::try_from(random.below(most)).unwrap_or(0),
            kind,
        };
        Weather {
            fault: random.percent(percent).then_some(fault),
            latency_ms: random.pick(&[1, 10, 60]).unwrap_or(1),
            // One that trickles, now and then.
            piece: random.pick(&[7, 300, 4_096, 4_096]).unwrap_or(300),
            replay_ms: random.percent(percent / 10).then(|| random.below(40_000)),
            last_is_lost: random.percent(percent / 10),
            rough: percent,
            random: random.fork(),
        }
    }
}

/// From whom to whom a connection goes.
#[derive(Clone)]
pub(crate) struct ConnectionRoute {
    pub(crate) server: Arc<Life>,
    pub(crate) trace: Rc<Trace>,
    /// Connects to any server.
    pub(crate) again: Rc<dyn Fn() -> Option<DuplexStream>>,
    pub(crate) chronicle: Rc<Chronicle>,
}

/// Connections that arrive.
type Arrivals = UnboundedSender<Box<dyn ByteStream>>;

/// Where connections to a server go. Nobody may listen.
#[derive(Clone, Default)]
pub(crate) struct Address(Arc<Mutex<Option<Arrivals>>>);

impl Address {
    /// A connection in this weather; `None` if nobody listens.
    pub(crate) fn dial(&self, weather: Weather, way: ConnectionRoute) -> Option<DuplexStream> {
        let (theirs, far) = tokio::io::duplex(WIRE_BYTES);
        let (near, ours) = tokio::io::duplex(WIRE_BYTES);
        let waiting = self.0.lock().ok()?.clone()?;
        waiting.send(Box::new(theirs)).ok()?;
        if weather.piece < 16 {
            way.chronicle.fault(TRICKLED);
        }
        lane::carry(near, far, weather, &way);
        Some(ours)
    }

    /// Whether somebody listens.
    fn is_open(&self) -> bool {
        self.0.lock().is_ok_and(|it| it.is_some())
    }

    /// A connection arrives, if somebody listens.
    fn enter(&self, stream: impl ByteStream + 'static) {
        if let Ok(Some(waiting)) = self.0.lock().as_deref() {
            // Whoever listens may have gone just now.
            let _ = waiting.send(Box::new(stream));
        }
    }

    /// Nobody listens any more.
    pub(crate) fn close(&self) {
        if let Ok(mut waiting) = self.0.lock() {
            *waiting = None;
        }
    }
}

impl ServerNetwork for Address {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>> {
        let (sender, connections) = unbounded_channel();
        if let Ok(mut waiting) = self.0.lock() {
            *waiting = Some(sender);
        }
        Box::pin(async move { Ok(Box::new(Door(connections)) as Box<dyn StreamListener>) })
    }
}

struct Door(UnboundedReceiver<Box<dyn ByteStream>>);

impl StreamListener for Door {
    fn address(&self) -> String {
        "127.0.0.1:7439".into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(stream) => Ok(IncomingStream {
                    stream,
                    peer: "device".into(),
                }),
                None => std::future::pending().await,
            }
        })
    }
}
