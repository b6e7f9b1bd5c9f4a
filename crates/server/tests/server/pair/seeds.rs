//! Two remotes and applications of the centre that edit at random, over connections that
//! fail at random. Every seed is a history of its own, and always the same one.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tidewater_protocol::RemoteId;

use super::device::{Device, SILENCE_MS};
use super::simulation::{Random, Simulation, simulate};
use super::wire::{Direction, Fault, Kind, Weather};
use crate::centre::{Change, Fate, MemoryCentre};

const STEPS: usize = 8;

/// Few, so that edits meet.
const IDS: u64 = 8;

/// What a random history came to.
struct Ended {
    history: Vec<String>,
    faults: usize,
    conflicts: usize,
    refused: usize,
    retold: usize,
}

impl Ended {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.history.hash(&mut hasher);
        hasher.finish()
    }
}

/// A remote and what its application wrote.
struct Player {
    device: Device,
    name: &'static str,
    remote_id: Option<RemoteId>,
    edits: u64,
    /// By id: every note that was written, in order, and whether it was removed last.
    written: HashMap<i64, (Vec<String>, bool)>,
    faults: usize,
}

impl Player {
    async fn new(simulation: &Simulation, name: &'static str, random: &mut Random) -> Player {
        let mut device = Device::new(name, random.next());
        device.settle(simulation).await;
        Player {
            remote_id: device.account().remote_id,
            device,
            name,
            edits: 0,
            written: HashMap::new(),
            faults: 0,
        }
    }

    fn edit(&mut self, random: &mut Random) {
        for _ in 0..random.below(4) {
            let id = 1 + random.below(IDS) as i64;
            self.edits += 1;
            let (notes, removed) = self.written.entry(id).or_default();
            *removed = random.once_in(4);
            if *removed {
                self.device.write(id, None);
                continue;
            }
            let kind = if random.once_in(6) { "refused" } else { "note" };
            let note = format!("{kind} {} of {}", self.edits, self.name);
            self.device.write(id, Some(&note));
            notes.push(note);
        }
    }

    async fn sync(&mut self, simulation: &Simulation, mut random: Random) {
        let kind = match random.below(5) {
            0 => Kind::Cut,
            1 => Kind::Linger {
                ms: random.below(2_000),
            },
            2 => Kind::Silence,
            3 => Kind::Delay {
                ms: random.below(2 * SILENCE_MS),
            },
            _ => Kind::Linger { ms: 100_000 },
        };
        let direction = if random.once_in(2) {
            Direction::Up
        } else {
            Direction::Down
        };
        let fault = Fault {
            direction,
            after: random.below(900) as usize,
            kind,
        };
        let weather = Weather {
            fault: (!random.once_in(3)).then_some(fault),
            latency_ms: random.below(40),
            random,
        };
        // What it came to is in the history; whether it was right, shows in the end.
        let _ = self.device.sync(simulation, weather).await;
        self.faults += usize::from(self.device.passed.faulted);
    }

    /// Every change took effect once, lost once, or was refused once; or another of the
    /// same application took its place before it was uploaded.
    fn check(&self, changes: &[(Change, Fate)]) {
        for (id, (notes, removed)) in &self.written {
            for (index, note) in notes.iter().enumerate() {
                let uploads = changes.iter();
                let uploads =
                    uploads.filter(|(change, _)| change.new.as_deref() == Some(note.as_str()));
                let count = uploads.count();
                let replaced = index + 1 < notes.len() || *removed;
                assert!(
                    count == 1 || (count == 0 && replaced),
                    "{note:?} of {id} came {count} times"
                );
            }
        }
    }
}

async fn play(seed: u64) -> Ended {
    let mut random = Random::new(seed);
    let centre = MemoryCentre::new();
    for id in 1..=IDS as i64 / 2 {
        centre.write(id, Some(&format!("centre {id}")));
    }
    let simulation = Simulation::start(centre, random.next(), "").await;
    let mut ada = Player::new(&simulation, "ada", &mut random).await;
    let mut bob = Player::new(&simulation, "bob", &mut random).await;
    for step in 0..STEPS {
        ada.edit(&mut random);
        bob.edit(&mut random);
        if random.once_in(2) {
            let id = 1 + random.below(IDS) as i64;
            let note = format!("centre, step {step}");
            let note = (!random.once_in(4)).then_some(note.as_str());
            simulation.centre.write(id, note);
        }
        let (first, second) = (Random::new(random.next()), Random::new(random.next()));
        if random.once_in(2) {
            tokio::join!(ada.sync(&simulation, first), bob.sync(&simulation, second));
        } else {
            ada.sync(&simulation, first).await;
        }
    }
    // What is late comes, and who waits gives up.
    tokio::time::sleep(std::time::Duration::from_secs(12 * 60 * 60)).await;
    for _ in 0..2 {
        ada.device.settle(&simulation).await;
        bob.device.settle(&simulation).await;
    }
    conclude(&simulation, ada, bob)
}

fn conclude(simulation: &Simulation, mut ada: Player, mut bob: Player) -> Ended {
    let state = simulation.centre.state();
    let mut seen = HashSet::new();
    for (change, fate) in &state.changes {
        assert!(seen.insert(change), "applied twice: {change:?}, {fate:?}");
    }
    for player in [&mut ada, &mut bob] {
        player.check(&state.changes);
        let remote_id = player.device.account().remote_id;
        assert_eq!(remote_id, player.remote_id, "taken for another remote");
        let refused = player.device.refused();
        let but_refused = |notes: Vec<(i64, String)>| -> Vec<(i64, String)> {
            let notes = notes.into_iter();
            notes.filter(|(id, _)| !refused.contains(id)).collect()
        };
        let here = but_refused(player.device.notes());
        assert_eq!(here, but_refused(state.notes()), "{} differs", player.name);
        simulation.note(format!("{} has {here:?}, refused {refused:?}", player.name));
    }
    for change in &state.changes {
        simulation.note(format!("{change:?}"));
    }
    let count = |fate: Fate| state.changes.iter().filter(|(_, it)| *it == fate).count();
    Ended {
        history: simulation.history(),
        faults: ada.faults + bob.faults,
        conflicts: count(Fate::Conflict),
        refused: count(Fate::Refused),
        retold: ada.device.retold + bob.device.retold,
    }
}

/// Says which seed a test panicked with.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed is {}", self.0);
        }
    }
}

#[test]
fn a_hundred_random_histories_end_in_agreement_with_every_change_applied_once() {
    let (mut faults, mut conflicts, mut refused, mut retold) = (0, 0, 0, 0);
    for seed in 0..100 {
        let _seed = Seed(seed);
        let ended = simulate(play(seed));
        faults += ended.faults;
        conflicts += ended.conflicts;
        refused += ended.refused;
        retold += ended.retold;
    }
    // Otherwise they would prove little.
    assert!(faults > 200, "{faults} faults");
    assert!(conflicts > 50, "{conflicts} conflicts");
    assert!(refused > 50, "{refused} refused");
    assert!(retold > 10, "{retold} results told again");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let mut hashes = HashSet::new();
    for seed in 0..10 {
        let _seed = Seed(seed);
        let (first, second) = (simulate(play(seed)), simulate(play(seed)));
        assert_eq!(first.history, second.history);
        assert_eq!(first.hash(), second.hash());
        hashes.insert(first.hash());
    }
    assert_eq!(hashes.len(), 10, "different seeds give different histories");
}
