//! The driver of a connection: pumps bytes between it and a network that can be cut,
//! held up or silenced after any byte of either direction.

use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use tidewater_remote::RemoteConnection;

use super::simulation::{Random, Simulation};

/// How long a connection whose sync is over listens for the end of the connection.
const FAREWELL: Duration = Duration::from_secs(10);

/// Longer than every deadline of either side.
const FOREVER: Duration = Duration::from_secs(3 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It ends, for both sides.
    Cut,
    /// It ends for the remote; what it sent, and would have sent, reaches the server so
    /// much later.
    Linger { ms: u64 },
    /// Nothing passes any more, and nobody is told.
    Silence,
    /// The bytes of the direction that come after wait so long.
    Delay { ms: u64 },
}

/// What happens, and after how many bytes of a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) direction: Direction,
    pub(super) after: usize,
    pub(super) kind: Kind,
}

/// The network of one connection.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    pub(super) fault: Option<Fault>,
    /// Each piece takes up to so long.
    pub(super) latency_ms: u64,
    pub(super) random: Random,
}

impl Weather {
    pub(super) fn fine() -> Weather {
        Weather {
            fault: None,
            latency_ms: 0,
            random: Random::new(0),
        }
    }

    pub(super) fn with(fault: Fault) -> Weather {
        Weather {
            fault: Some(fault),
            ..Weather::fine()
        }
    }
}

/// The bytes that passed a connection.
#[derive(Debug, Default)]
pub(super) struct Passed {
    pub(super) up: Vec<u8>,
    pub(super) down: Vec<u8>,
    /// Whether the fault came about.
    pub(super) faulted: bool,
}

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fine,
    Silent,
    Held(Direction, Instant),
}

struct Wire<'a> {
    simulation: &'a Simulation,
    weather: Weather,
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    state: State,
    /// On their way to the server.
    output: Bytes,
    passed: Passed,
}

/// Pumps until the sync is over.
pub(super) async fn pump(
    simulation: &Simulation,
    connection: &mut RemoteConnection,
    stream: DuplexStream,
    weather: Weather,
) -> Passed {
    let (reader, writer) = tokio::io::split(stream);
    let mut wire = Wire {
        simulation,
        weather,
        reader,
        writer,
        state: State::Fine,
        output: Bytes::new(),
        passed: Passed::default(),
    };
    loop {
        match wire.due_fault() {
            Some(Kind::Cut) => {
                wire.end(connection);
                return wire.passed;
            }
            Some(Kind::Linger { ms }) => {
                let rest = wire.rest(connection);
                wire.end(connection);
                return wire.linger(rest, Duration::from_millis(ms));
            }
            Some(Kind::Silence) => wire.state = State::Silent,
            Some(Kind::Delay { ms }) => {
                let until = Instant::now() + Duration::from_millis(ms);
                let fault = wire.weather.fault.take();
                wire.state = State::Held(fault.unwrap().direction, until);
            }
            None => {}
        }
        connection.work(simulation.now());
        wire.refill(connection);
        if !connection.is_syncing() {
            return wire.farewell(connection).await;
        }
        wire.step(connection).await;
    }
}

impl Wire<'_> {
    fn refill(&mut self, connection: &mut RemoteConnection) {
        if self.output.is_empty()
            && let Some(bytes) = connection.poll_transmit()
        {
            self.output = bytes;
        }
    }

    /// The connection is gone for the connection. What it still says finds nobody.
    fn end(&self, connection: &mut RemoteConnection) {
        connection.handle_end(None);
        connection.work(self.simulation.now());
    }

    /// What happens now, if it has not happened yet.
    fn due_fault(&mut self) -> Option<Kind> {
        let fault = self.weather.fault.filter(|_| self.state == State::Fine)?;
        let passed = match fault.direction {
            Direction::Up => self.passed.up.len(),
            Direction::Down => self.passed.down.len(),
        };
        let due = passed == fault.after;
        self.passed.faulted |= due;
        due.then_some(fault.kind)
    }

    /// How many bytes may pass before something happens.
    fn room(&self, direction: Direction, passed: usize) -> usize {
        match self.weather.fault {
            Some(fault) if fault.direction == direction => fault.after - passed,
            _ => usize::MAX,
        }
    }

    /// Passes something on, or waits until something happens.
    async fn step(&mut self, connection: &mut RemoteConnection) {
        let latency_ms = match self.weather.latency_ms {
            0 => 0,
            limit => self.weather.random.below(limit),
        };
        if latency_ms > 0 {
            sleep(Duration::from_millis(latency_ms)).await;
        }
        let flows = |direction| match self.state {
            State::Fine => true,
            State::Silent => false,
            State::Held(held, _) => held != direction,
        };
        let (up, down) = (flows(Direction::Up), flows(Direction::Down));
        let held_until = match self.state {
            State::Held(_, until) => Some(until),
            State::Fine | State::Silent => None,
        };
        let deadline = connection.poll_timeout().unwrap();
        let deadline = self.simulation.instant(deadline);
        let mut buffer = [0; 512];
        let limit = self.room(Direction::Down, self.passed.down.len());
        let limit = limit.min(buffer.len());
        let room = self.room(Direction::Up, self.passed.up.len());
        let room = room.min(self.output.len());
        tokio::select! {
            biased;
            read = self.reader.read(&mut buffer[..limit]), if down => match read {
                Ok(count) if count > 0 => {
                    self.passed.down.extend_from_slice(&buffer[..count]);
                    connection.handle_bytes(&buffer[..count], self.simulation.now());
                }
                Ok(_) => connection.handle_end(None),
                Err(error) => connection.handle_end(Some(error)),
            },
            written = self.writer.write(&self.output[..room]), if up && room > 0 => match written {
                Ok(count) => {
                    self.passed.up.extend_from_slice(&self.output[..count]);
                    self.output.advance(count);
                    connection.handle_sent(self.simulation.now());
                }
                Err(error) => connection.handle_end(Some(error)),
            },
            () = sleep_until(held_until.unwrap_or(deadline)), if held_until.is_some() => {
                self.state = State::Fine;
            }
            () = sleep_until(deadline) => connection.handle_timeout(self.simulation.now()),
        }
    }

    /// Everything that the remote still has to say.
    fn rest(&mut self, connection: &mut RemoteConnection) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.output).to_vec();
        while let Some(bytes) = connection.poll_transmit() {
            rest.extend_from_slice(&bytes);
        }
        rest
    }

    /// Says what is left, and waits for the server to close, as far as the network lets it.
    async fn farewell(mut self, connection: &mut RemoteConnection) -> Passed {
        let mut rest = self.rest(connection);
        match self.state {
            State::Silent => return self.linger(Vec::new(), FOREVER),
            State::Held(_, until) => {
                let left = until.saturating_duration_since(Instant::now());
                return self.linger(rest, left);
            }
            State::Fine => {}
        }
        let room = self.room(Direction::Up, self.passed.up.len());
        let lost = (room <= rest.len()).then(|| rest.split_off(room));
        // The server may have closed first: then there is nobody to say it to.
        let _ = self.writer.write_all(&rest).await;
        self.passed.up.extend_from_slice(&rest);
        if let Some(lost) = lost {
            let kind = self.due_fault();
            return match kind {
                Some(Kind::Linger { ms } | Kind::Delay { ms }) => {
                    self.linger(lost, Duration::from_millis(ms))
                }
                Some(Kind::Silence) => self.linger(Vec::new(), FOREVER),
                Some(Kind::Cut) | None => self.passed,
            };
        }
        let _ = self.writer.shutdown().await;
        let mut ignored = Vec::new();
        let _ = timeout(FAREWELL, self.reader.read_to_end(&mut ignored)).await;
        self.passed
    }

    /// The connection outlives the remote's interest in it: the rest arrives later.
    fn linger(self, rest: Vec<u8>, after: Duration) -> Passed {
        let Wire {
            mut reader,
            mut writer,
            passed,
            ..
        } = self;
        tokio::spawn(async move {
            sleep(after).await;
            let mut ignored = Vec::new();
            let sending = async {
                let _ = writer.write_all(&rest).await;
                let _ = writer.shutdown().await;
            };
            let listening = timeout(FOREVER, reader.read_to_end(&mut ignored));
            let _ = tokio::join!(sending, listening);
        });
        passed
    }
}
