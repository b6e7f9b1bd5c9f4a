//! One direction of a connection: what becomes of its bytes.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};

use tidewater_server::Signal;

use super::{ConnectionRoute, FaultKind, NetworkFault, OVERTAKEN, REPLAYED, WIRE_BYTES, Weather};
use crate::random::SeededRandom;

/// Longer than every deadline of either side.
const FOREVER: Duration = Duration::from_secs(3 * 60 * 60);

/// Longer than a server waits for somebody who neither says nor takes anything.
const GIVEN_UP: Duration = Duration::from_secs(2 * 60);

/// How long somebody listens to what a server answers to a replay.
const PATIENCE: Duration = Duration::from_secs(60);

/// Carries bytes both ways until both ends are done or something happens.
pub(super) fn carry(
    near: DuplexStream,
    far: DuplexStream,
    mut weather: Weather,
    way: &ConnectionRoute,
) {
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    let cut = Rc::new(Signal::new(EarlyEnd::None));
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
            sent: weather.replay_ms.filter(|_| up).map(|_| Vec::new()),
            way: way.clone(),
        };
        tokio::task::spawn_local(lane.travel(weather.replay_ms));
    }
}

/// How a connection ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyEnd {
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
    fault: Option<NetworkFault>,
    /// What had arrived when the connection ended for the remote alone.
    held: Option<Vec<u8>>,
    latency_ms: u64,
    piece: u64,
    random: SeededRandom,
    cut: Rc<Signal<EarlyEnd>>,
    /// All that was sent, if it is to be sent once more.
    sent: Option<Vec<u8>>,
    way: ConnectionRoute,
}

impl Lane {
    async fn travel(mut self, replay_ms: Option<u64>) {
        if self.up {
            self.way.server.count_connection(true);
        }
        self.run().await;
        if self.up {
            self.way.server.count_connection(false);
        }
        let sent = self.sent.take();
        let (again, chronicle) = (self.way.again.clone(), self.way.chronicle.clone());
        drop(self);
        if let (Some(sent), Some(after_ms)) = (sent, replay_ms) {
            sleep(Duration::from_millis(after_ms)).await;
            if let Some(stream) = again() {
                chronicle.fault(REPLAYED);
                // Whatever the server makes of it.
                let _ = timeout(PATIENCE, replay(stream, &sent)).await;
            }
        }
    }

    async fn run(&mut self) {
        let cut = self.cut.clone();
        let server = self.way.server.clone();
        let ending = tokio::select! {
            biased;
            // The end of a process is the end of its connections.
            () = server.ended() => return,
            ending = cut.wait_for(|ending| ending != EarlyEnd::None) => ending,
            () = self.pass() => return,
        };
        if let (EarlyEnd::Linger(ms), true) = (ending, self.up) {
            tokio::select! {
                biased;
                () = server.ended() => {}
                () = self.linger(Duration::from_millis(ms)) => {}
            }
        }
    }

    /// What the remote has sent arrives late; the remote itself hears the end at once.
    async fn linger(&mut self, after: Duration) {
        let mut rest = Vec::new();
        let mut buffer = [0; WIRE_BYTES];
        // As much as has left the remote already.
        while let Ok(Ok(count @ 1..)) =
            tokio::time::timeout(Duration::ZERO, self.reader.read(&mut buffer)).await
        {
            rest.extend_from_slice(&buffer[..count]);
        }
        if let Some(sent) = &mut self.sent {
            sent.extend_from_slice(&rest);
        }
        if let Some(held) = self.held.take() {
            rest.splice(0..0, held);
        }
        sleep(after).await;
        if self.way.trace.is_overtaken() {
            self.way.chronicle.fault(OVERTAKEN);
        }
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
                if !self.up {
                    self.way.trace.ended();
                }
                break;
            };
            let latency_ms = self.random.below(self.latency_ms + 1);
            if latency_ms > 0 {
                sleep(Duration::from_millis(latency_ms)).await;
            }
            let due = self.fault.filter(|fault| fault.after <= self.passed);
            self.passed += count;
            let piece = buffer[..count].to_vec();
            if let Some(sent) = &mut self.sent {
                sent.extend_from_slice(&piece);
            }
            let done = match due {
                None => self.send(piece).await,
                Some(fault) => {
                    self.fault = None;
                    self.way.chronicle.fault(fault.kind.name());
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

    async fn strike(&mut self, kind: FaultKind, piece: Vec<u8>) -> io::Result<()> {
        match kind {
            FaultKind::Cut => self.end(EarlyEnd::Cut).await,
            FaultKind::Linger { ms } => {
                self.held = self.up.then_some(piece);
                self.way.trace.outlives();
                self.end(EarlyEnd::Linger(ms)).await
            }
            FaultKind::Silence => {
                self.way.trace.outlives();
                if !self.up {
                    // Until the server has given up.
                    sleep(GIVEN_UP).await;
                    let _ = tokio::io::copy(&mut self.reader, &mut tokio::io::sink()).await;
                    self.way.trace.ended();
                }
                sleep(FOREVER).await;
                Err(io::ErrorKind::TimedOut.into())
            }
            FaultKind::Delay { ms } => {
                sleep(Duration::from_millis(ms)).await;
                self.send(piece).await
            }
            FaultKind::Damage(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Ends both directions; this future is dropped at its next wait.
    async fn end(&self, ending: EarlyEnd) -> io::Result<()> {
        self.cut.set(ending);
        std::future::pending().await
    }

    async fn send(&mut self, piece: Vec<u8>) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        writer.write_all(&piece).await
    }
}

/// Sends all at once, and takes no notice of the answer.
async fn replay(stream: DuplexStream, sent: &[u8]) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut sink = tokio::io::sink();
    let send = async {
        writer.write_all(sent).await?;
        writer.shutdown().await
    };
    let (sent, heard) = tokio::join!(send, tokio::io::copy(&mut reader, &mut sink));
    heard?;
    sent
}
