//! Bytes that no remote would send, while remotes sync.

#![allow(
    clippy::disallowed_methods,
    reason = "real sockets are waited for, with deadlines of real time"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::random::Random;
use crate::scenario::shop;
use crate::world::World;

const SEED: u64 = 20_260_801;
const STRANGERS: u64 = 4;
const ATTEMPTS_EACH: u64 = 60;

/// A server that waits for nobody long.
pub(crate) const LIMITS: &str =
    "handshake_timeout = \"2s\"\nidle_timeout = \"2s\"\nsync_timeout = \"30s\"";

/// How long the server may take to be rid of a stranger.
const PATIENCE: Duration = Duration::from_secs(20);

fn i8_random_truncated_and_oversized_frames_harm_nobody<B: Backend>() {
    let mut scenario = shop();
    scenario.limits = LIMITS;
    let world = World::<B>::open(scenario);
    let mut ada = world.device("ada");
    ada.network.record();
    ada.sync();
    ada.edit("INSERT INTO product VALUES (100, 'new', 0)");
    ada.sync();
    // What a real remote says: sign-in by password, and a sync with an upload.
    let journeys = ada.network.journeys();
    let conversations: Vec<Vec<u8>> = journeys.iter().map(|it| it.up.concat()).collect();
    let mut bob = world.synced("bob");
    let address = world.server.address;
    std::thread::scope(|scope| {
        let strangers = (0..STRANGERS).map(|number| {
            let conversations = &conversations;
            scope.spawn(move || {
                let mut random = Random::seeded(SEED + number);
                for attempt in 0..ATTEMPTS_EACH {
                    let bytes = nonsense(&mut random, conversations);
                    let half_closes = random.once_in(2);
                    assert!(
                        is_rid_of(address, &bytes, half_closes),
                        "stranger {number}, attempt {attempt} is still there"
                    );
                }
            })
        });
        let strangers: Vec<_> = strangers.collect();
        let mut round = 0;
        while round < 5 || strangers.iter().any(|it| !it.is_finished()) {
            bob.edit(&format!("UPDATE customer SET balance = '{round}.00'"));
            bob.sync();
            round += 1;
        }
        for stranger in strangers {
            stranger.join().expect("the stranger is sent away");
        }
    });
    ada.sync();
    assert_converged(&world, &[&ada, &bob]);
}

/// A conversation with mistakes in it.
fn nonsense(random: &mut Random, conversations: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.one_of(conversations).clone();
    let place = random.below(bytes.len() as u64) as usize;
    match random.below(6) {
        // It ends in the middle.
        0 => bytes.truncate(place),
        // Bits are wrong.
        1 => {
            for _ in 0..=random.below(4) {
                let place = random.below(bytes.len() as u64) as usize;
                bytes[place] ^= 1 << random.below(8);
            }
        }
        // A frame that says it is larger than any.
        2 => {
            bytes.truncate(8);
            bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0x7f, 1, 1]);
        }
        // Noise after the preface.
        3 => {
            bytes.truncate(8);
            bytes.extend((0..random.below(5_000)).map(|_| random.next() as u8));
        }
        // Noise at once.
        4 => {
            bytes = (0..random.below(5_000))
                .map(|_| random.next() as u8)
                .collect()
        }
        // The end comes first.
        _ => {
            let end = bytes.split_off(place.max(8));
            bytes.truncate(8);
            bytes.extend_from_slice(&end);
        }
    }
    bytes
}

/// Whether the server ends the connection in time, whatever it answers before.
pub(crate) fn is_rid_of(address: SocketAddr, bytes: &[u8], half_closes: bool) -> bool {
    let end = Instant::now() + PATIENCE;
    let mut socket = TcpStream::connect(address).expect("the server listens");
    socket
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| socket.set_write_timeout(Some(PATIENCE)))
        .expect("timeouts can be set");
    // It may hang up before everything is said.
    if socket.write_all(bytes).is_ok() && half_closes {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut answer = [0; 4_096];
    loop {
        match socket.read(&mut answer) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < end => {}
            Ok(_) => return false,
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

on_both_adapters!(i8_random_truncated_and_oversized_frames_harm_nobody);
