//! The network between a remote and a server: pieces of bytes that take their time, and
//! what can happen to them.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::sleep;

use tidewater_server::environment::{BoxFuture, Incoming, Listener, Network};

use crate::chronicle::Chronicle;
use crate::random::Random;

/// What the network holds of each direction at either end.
const WIRE_BYTES: usize = 4_096;

/// Longer than every deadline of either side.
const FOREVER: Duration = Duration::from_secs(3 * 60 * 60);

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It ends for both sides.
    Cut,
    /// It ends for the remote; what it sent reaches the server so much later.
    Linger { ms: u64 },
    /// Nothing passes any more, and nobody is told.
    Silence,
    /// What comes after waits so long.
    Delay { ms: u64 },
    /// Bytes are lost, turned, doubled or swapped. The network is TLS: whoever receives
    /// that notices it, and hears the end of the connection.
    Damage,
}

/// A connection whose bytes come one by one.
const TRICKLED: &str = "connection trickled";

/// Every kind of fault of the network.
pub(crate) const KINDS: &[&str] = &[
    Kind::Cut.name(),
    Kind::Linger { ms: 0 }.name(),
    Kind::Silence.name(),
    Kind::Delay { ms: 0 }.name(),
    Kind::Damage.name(),
    TRICKLED,
];

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Cut => "connection cut",
            Kind::Linger { .. } => "connection outlived by its bytes",
            Kind::Silence => "connection silenced",
            Kind::Delay { .. } => "bytes delayed",
            Kind::Damage => "bytes damaged",
        }
    }
}

/// What happens, after how many bytes of a direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// From the remote to the server, or back.
    pub(crate) up: bool,
    pub(crate) after: usize,
    pub(crate) kind: Kind,
}

/// The network of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) fault: Option<Fault>,
    /// Each piece takes up to so long.
    pub(crate) latency_ms: u64,
    /// Pieces have up to so many bytes.
    pub(crate) piece: u64,
    pub(crate) random: Random,
}

impl Weather {
    pub(crate) fn fine(random: Random) -> Weather {
        Weather {
            fault: None,
            latency_ms: 4,
            piece: 4_096,
            random,
        }
    }

    /// Bad with this many chances in a hundred.
    pub(crate) fn any(random: &mut Random, percent: u64) -> Weather {
        let kind = match random.below(10) {
            0..=2 => Kind::Linger {
                ms: random.below(40_000),
            },
            3 => Kind::Silence,
            4 => Kind::Delay {
                ms: random.below(60_000),
            },
            5 | 6 => Kind::Damage,
            _ => Kind::Cut,
        };
        let most = [64, 1_200, 6_000][usize::try_from(random.below(3)).unwrap_or(0)];
        let fault = Fault {
            up: random.percent(50),
            after: usize::try_from(random.below(most)).unwrap_or(0),
            kind,
        };
        Weather {
            fault: random.percent(percent).then_some(fault),
            latency_ms: random.pick(&[1, 10, 60]).unwrap_or(1),
            // One that trickles, now and then.
            piece: random.pick(&[7, 300, 4_096, 4_096]).unwrap_or(300),
            random: random.fork(),
        }
    }
}

/// Where connections to a server go. Nobody may listen.
#[derive(Clone, Default)]
pub(crate) struct Address(Arc<Mutex<Option<UnboundedSender<DuplexStream>>>>);

impl Address {
    /// A connection in this weather; `None` if nobody listens.
    pub(crate) fn dial(&self, weather: Weather, chronicle: &Rc<Chronicle>) -> Option<DuplexStream> {
        let (theirs, far) = tokio::io::duplex(WIRE_BYTES);
        let (near, ours) = tokio::io::duplex(WIRE_BYTES);
        let waiting = self.0.lock().ok()?.clone()?;
        waiting.send(theirs).ok()?;
        if weather.piece < 16 {
            chronicle.fault(TRICKLED);
        }
        carry(near, far, weather, chronicle);
        Some(ours)
    }

    /// Nobody listens any more.
    pub(crate) fn close(&self) {
        if let Ok(mut waiting) = self.0.lock() {
            *waiting = None;
        }
    }
}

/// Carries bytes both ways until both ends are done or something happens.
fn carry(near: DuplexStream, far: DuplexStream, mut weather: Weather, chronicle: &Rc<Chronicle>) {
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    let (cut, _) = watch::channel(Ending::None);
    let cut = Rc::new(cut);
    for (up, reader, writer) in [(true, near_read, far_write), (false, far_read, near_write)] {
        let lane = Lane {
            up,
            reader,
            writer: Some(writer),
            passed: 0,
            fault: weather.fault.filter(|fault| fault.up == up),
            held: None,
            latency_ms: weather.latency_ms,
            piece: weather.piece,
            random: weather.random.fork(),
            cut: cut.clone(),
            chronicle: chronicle.clone(),
        };
        tokio::task::spawn_local(lane.run());
    }
}

/// How a connection ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    None,
    Cut,
    /// The way up goes on after so long.
    Linger(u64),
}

/// One direction of a connection.
struct Lane {
    up: bool,
    reader: ReadHalf<DuplexStream>,
    writer: Option<WriteHalf<DuplexStream>>,
    passed: usize,
    fault: Option<Fault>,
    /// What had arrived when the connection ended for the remote alone.
    held: Option<Vec<u8>>,
    latency_ms: u64,
    piece: u64,
    random: Random,
    cut: Rc<watch::Sender<Ending>>,
    chronicle: Rc<Chronicle>,
}

impl Lane {
    async fn run(mut self) {
        let mut cut = self.cut.subscribe();
        let ending = tokio::select! {
            biased;
            ending = cut.wait_for(|ending| *ending != Ending::None) => {
                ending.map_or(Ending::Cut, |ending| *ending)
            }
            () = self.pass() => return,
        };
        if let (Ending::Linger(ms), true) = (ending, self.up) {
            self.linger(Duration::from_millis(ms)).await;
        }
    }

    /// What the remote has sent arrives late; the remote itself hears the end at once.
    async fn linger(&mut self, after: Duration) {
        let mut rest = self.held.take().unwrap_or_default();
        let mut buffer = [0; WIRE_BYTES];
        // As much as has left the remote already.
        while let Ok(Ok(count @ 1..)) =
            tokio::time::timeout(Duration::ZERO, self.reader.read(&mut buffer)).await
        {
            rest.extend_from_slice(&buffer[..count]);
        }
        sleep(after).await;
        if let Some(writer) = &mut self.writer {
            // The server may have given up.
            let _ = writer.write_all(&rest).await;
            let _ = writer.shutdown().await;
        }
    }

    async fn pass(&mut self) {
        let mut buffer = [0; WIRE_BYTES];
        loop {
            let limit = self.random.between(1, self.piece);
            let limit = usize::try_from(limit).unwrap_or(WIRE_BYTES).min(WIRE_BYTES);
            let limit = match self.fault {
                Some(fault) if fault.after > self.passed => limit.min(fault.after - self.passed),
                _ => limit,
            };
            let Ok(count @ 1..) = self.reader.read(&mut buffer[..limit]).await else {
                break;
            };
            let latency_ms = self.random.below(self.latency_ms + 1);
            if latency_ms > 0 {
                sleep(Duration::from_millis(latency_ms)).await;
            }
            let due = self.fault.filter(|fault| fault.after <= self.passed);
            self.passed += count;
            let piece = buffer[..count].to_vec();
            let done = match due {
                None => self.send(piece).await,
                Some(fault) => {
                    self.fault = None;
                    self.chronicle.fault(fault.kind.name());
                    self.strike(fault.kind, piece).await
                }
            };
            if done.is_err() {
                break;
            }
        }
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.shutdown().await;
        }
    }

    async fn strike(&mut self, kind: Kind, piece: Vec<u8>) -> io::Result<()> {
        match kind {
            Kind::Cut => self.end(Ending::Cut).await,
            Kind::Linger { ms } => {
                self.held = self.up.then_some(piece);
                self.end(Ending::Linger(ms)).await
            }
            Kind::Silence => {
                sleep(FOREVER).await;
                Err(io::ErrorKind::TimedOut.into())
            }
            Kind::Delay { ms } => {
                sleep(Duration::from_millis(ms)).await;
                self.send(piece).await
            }
            Kind::Damage => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Ends both directions; this future is dropped at its next wait.
    async fn end(&self, ending: Ending) -> io::Result<()> {
        self.cut.send_replace(ending);
        std::future::pending().await
    }

    async fn send(&mut self, piece: Vec<u8>) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        writer.write_all(&piece).await
    }
}

impl Network for Address {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        let (sender, connections) = unbounded_channel();
        if let Ok(mut waiting) = self.0.lock() {
            *waiting = Some(sender);
        }
        Box::pin(async move { Ok(Box::new(Door(connections)) as Box<dyn Listener>) })
    }
}

struct Door(UnboundedReceiver<DuplexStream>);

impl Listener for Door {
    fn address(&self) -> String {
        "127.0.0.1:7439".into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(stream) => Ok(Incoming {
                    stream: Box::new(stream),
                    peer: "device".into(),
                }),
                None => std::future::pending().await,
            }
        })
    }
}
