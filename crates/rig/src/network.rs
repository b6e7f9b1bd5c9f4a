//! The network: a proxy in front of whoever listens, which cuts, stalls, trickles and damages.
//!
//! Bytes are only damaged where TLS carries them: plain TCP promises nothing about them, and
//! neither does Tidewater.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;

use crate::chance::Chance;
use crate::stage::{Stage, lock};

/// Sockets are read in pieces of this size.
const PIECE: usize = 16 * 1024;
/// Trickling ends after so many bytes: it is to last for seconds, not for hours.
const TRICKLED: usize = 2 * 1024;

/// What may happen on the connections of a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) name: &'static str,
    /// How many connections of a hundred have an accident.
    pub(crate) accidents: u64,
    pub(crate) damages: bool,
}

/// An address that never changes, in front of those that do.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) port: u16,
    shared: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    stage: Arc<Stage>,
    weather: Weather,
    targets: Mutex<Vec<u16>>,
    chance: Mutex<Chance>,
    /// Nobody gets through.
    is_down: AtomicBool,
    number: AtomicU64,
    live: Mutex<HashMap<u64, [TcpStream; 2]>>,
}

/// What happens to one connection, after so many bytes in one direction.
#[derive(Debug, Clone, Copy)]
struct ConnectionAccident {
    what: What,
    up: bool,
    after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Cut,
    /// Nothing passes for this long.
    Stall(Duration),
    /// The same, and then it is cut.
    SilentCut(Duration),
    Trickle,
    Damage,
}

impl Network {
    pub(crate) fn start(
        stage: &Arc<Stage>,
        weather: Weather,
        targets: &[u16],
        chance: Chance,
    ) -> anyhow::Result<Network> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a loopback port")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(ProxyState {
            stage: stage.clone(),
            weather,
            targets: Mutex::new(targets.to_vec()),
            chance: Mutex::new(chance),
            is_down: AtomicBool::new(false),
            number: AtomicU64::new(0),
            live: Mutex::default(),
        });
        let accepting = shared.clone();
        // It ends with the process.
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = accepting.clone();
                std::thread::spawn(move || shared.serve(connection));
            }
        });
        Ok(Network { port, shared })
    }

    /// From now on connections lead there.
    pub(crate) fn redirect(&self, target: u16) {
        *lock(&self.shared.targets) = vec![target];
    }

    /// Ends every connection.
    pub(crate) fn cut_all(&self) {
        for (_, streams) in lock(&self.shared.live).drain() {
            shut(&streams);
        }
    }

    /// Whether nobody gets through any more; who is through stays.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }
}

impl ProxyState {
    fn serve(self: Arc<Self>, client: TcpStream) {
        if self.is_down.load(Ordering::SeqCst) {
            return;
        }
        let Some(server) = self.connect() else {
            return;
        };
        let number = self.number.fetch_add(1, Ordering::SeqCst);
        let accident = self.draw();
        let ways = [(&client, &server, true), (&server, &client, false)];
        let threads = ways.map(|(from, to, up)| {
            let (from, to) = (from.try_clone().ok()?, to.try_clone().ok()?);
            let shared = self.clone();
            let accident = accident.filter(|it| it.up == up);
            Some(std::thread::spawn(move || shared.carry(from, to, accident)))
        });
        lock(&self.live).insert(number, [client, server]);
        for thread in threads.into_iter().flatten() {
            // A thread that panicked has carried as far as it could.
            let _ = thread.join();
        }
        lock(&self.live).remove(&number);
    }

    /// Connects to one of those behind, as a load balancer does: who does not listen is passed
    /// over.
    fn connect(&self) -> Option<TcpStream> {
        let mut targets = lock(&self.targets).clone();
        lock(&self.chance).shuffle(&mut targets);
        let stream = targets
            .iter()
            .find_map(|&port| TcpStream::connect(("127.0.0.1", port)).ok())?;
        let _ = stream.set_nodelay(true);
        Some(stream)
    }

    fn draw(&self) -> Option<ConnectionAccident> {
        let mut chance = lock(&self.chance);
        if !self.stage.breaks() || !chance.percent(self.weather.accidents) {
            return None;
        }
        let time = Duration::from_millis(chance.of_any_size(13));
        let kinds = if self.weather.damages { 5 } else { 4 };
        let what = match chance.below(kinds) {
            0 => What::Cut,
            1 => What::Stall(time),
            2 => What::SilentCut(time),
            3 => What::Trickle,
            _ => What::Damage,
        };
        Some(ConnectionAccident {
            what,
            up: chance.percent(50),
            after: chance.of_any_size(19),
        })
    }

    /// Carries bytes one way until either end is through.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, accident: Option<ConnectionAccident>) {
        let carried = self.carry_all(&mut from, &mut to, accident);
        let ended = match carried {
            Ok(()) => to.shutdown(Shutdown::Write),
            Err(_) => from
                .shutdown(Shutdown::Both)
                .and(to.shutdown(Shutdown::Both)),
        };
        // It may be gone already.
        drop(ended);
    }

    fn carry_all(
        &self,
        from: &mut TcpStream,
        to: &mut TcpStream,
        mut accident: Option<ConnectionAccident>,
    ) -> io::Result<()> {
        let mut piece = [0; PIECE];
        let mut passed = 0;
        loop {
            let length = from.read(&mut piece)?;
            if length == 0 {
                return Ok(());
            }
            let bytes = &mut piece[..length];
            if let Some(due) = accident.filter(|it| it.after < passed + length as u64) {
                accident = None;
                let before = due.after.saturating_sub(passed) as usize;
                to.write_all(&bytes[..before])?;
                let mut rest = &mut bytes[before..];
                if self.stage.breaks() {
                    rest = self.happen(due.what, rest, to)?;
                }
                to.write_all(rest)?;
            } else {
                to.write_all(bytes)?;
            }
            passed += length as u64;
        }
    }

    /// Lets it happen at the first of these bytes; gives those that are still to be sent.
    fn happen<'a>(
        &self,
        what: What,
        bytes: &'a mut [u8],
        to: &mut TcpStream,
    ) -> io::Result<&'a mut [u8]> {
        let name = self.weather.name;
        let cut = || Err(io::ErrorKind::ConnectionAborted.into());
        match what {
            What::Cut => {
                self.stage.fault(&format!("{name} cut"));
                cut()
            }
            What::Stall(time) => {
                self.stage.fault(&format!("{name} stalled"));
                std::thread::sleep(time);
                Ok(bytes)
            }
            What::SilentCut(time) => {
                self.stage.fault(&format!("{name} silent, then cut"));
                std::thread::sleep(time);
                cut()
            }
            What::Trickle => {
                self.stage.fault(&format!("{name} trickles"));
                let (slow, rest) = bytes.split_at_mut(bytes.len().min(TRICKLED));
                for byte in slow.chunks(1) {
                    to.write_all(byte)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(rest)
            }
            What::Damage => {
                self.stage.fault(&format!("{name} damaged"));
                bytes[0] ^= 1 << lock(&self.chance).below(8);
                Ok(bytes)
            }
        }
    }
}

fn shut(streams: &[TcpStream; 2]) {
    for stream in streams {
        // It may be gone already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programs that prepare a run go through the network, too, and are to succeed.
    #[test]
    fn no_connection_has_an_accident_before_all_is_prepared() {
        let folder = tempfile::tempdir().unwrap();
        let stage = Arc::new(Stage::new(folder.path()).unwrap());
        let weather = Weather {
            name: "a connection",
            accidents: 50,
            damages: true,
        };
        let network = Network::start(&stage, weather, &[], Chance::new(1)).unwrap();
        let accidents = || (0..1_000).filter_map(|_| network.shared.draw()).count();
        assert_eq!(accidents(), 0);
        stage.breaks.store(true, Ordering::SeqCst);
        assert_ne!(accidents(), 0);
    }
}
