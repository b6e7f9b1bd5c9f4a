//! Generated schemas with generated histories and accidents, on every adapter, that end
//! equal: everybody has what the centre has, and every local change is accounted for.
//!
//! `TIDEWATER_CASES=1000` runs so many of them, `TIDEWATER_THREADS=4` so many at once on each
//! adapter, `TIDEWATER_SEED=7` begins with that one: a
//! failing case prints its number, and `TIDEWATER_SEED=N TIDEWATER_CASES=1` repeats it.
//! `TIDEWATER_SHRINK=0` leaves failing cases as large as they are, which takes less time, and
//! `TIDEWATER_FAILURES=100` goes on until so many have failed.

mod author;
mod field;
mod found;
mod ledger;
mod rows;
mod session;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use proptest::test_runner::{Config, TestRunner};
use tidewater_testing::generate::{Case, CaseTree, name};

use crate::backend::{Postgres, Sqlite};
use field::Field;
use rows::{Snapshot, same_row};
use session::Centre;

/// How many cases run where nobody says.
const CASES: u64 = 40;

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable);
    value.map_or(default, |text| text.parse().expect("a number"))
}

/// Of so many writes at least half do something.
const MANY: u64 = 200;

/// So many failing cases are enough for one run where nobody says.
const ENOUGH: u64 = 4;

/// How often a failing case is tried again with less in it where nobody says.
const TRIES: u64 = 400;

/// What the cases of a run have come to.
#[derive(Default)]
struct Tally {
    failures: Mutex<Vec<String>>,
    /// Writes that were tried, and those that were committed.
    writes: [AtomicU64; 2],
}

impl Tally {
    /// Runs one case; a failing one is made smaller and shown.
    fn run<C: Centre>(&self, seed: u64) {
        let tree = CaseTree::new(Case::of(seed));
        let config = Config {
            max_shrink_iters: number("TIDEWATER_SHRINK", TRIES) as u32,
            failure_persistence: None,
            ..Config::default()
        };
        let outcome = TestRunner::new(config).run_one(tree, |case| {
            for (sum, more) in self.writes.iter().zip(run::<C>(&case)) {
                sum.fetch_add(more, Ordering::Relaxed);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            let failure = format!("seed {seed} fails on {:?}: {error}", C::DIALECT);
            // The run may take hours still.
            eprintln!("{failure}");
            self.failures().push(failure);
        }
    }

    fn failures(&self) -> MutexGuard<'_, Vec<String>> {
        self.failures.lock().expect("nobody panics with it")
    }
}

/// Runs cases, one for each thread at a time.
fn run_cases<C: Centre>(first: u64) {
    let first = number("TIDEWATER_SEED", first);
    let count = number("TIDEWATER_CASES", CASES);
    let threads = number("TIDEWATER_THREADS", 1);
    let enough = number("TIDEWATER_FAILURES", ENOUGH) as usize;
    let next = AtomicU64::new(first);
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || tally.failures().len() >= enough {
                        break;
                    }
                    tally.run::<C>(seed);
                }
            });
        }
    });
    let failures = tally.failures();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let [tried, committed] = [0, 1].map(|it| tally.writes[it].load(Ordering::Relaxed));
    assert!(
        tried < MANY || committed * 2 > tried,
        "of {tried} writes only {committed} did anything"
    );
}

/// Runs a case to its end. How many writes were tried, and how many of them were committed.
fn run<C: Centre>(case: &Case) -> [u64; 2] {
    let mut field = Field::<C>::open(case);
    for step in &case.steps {
        field.step(step);
    }
    field.commit();
    field.admit_all();
    field.sync_until_quiet();
    for number in 0..field.players.len() {
        compare_but_refused(&mut field, number);
    }
    for number in 0..field.players.len() {
        field.discard(number);
    }
    field.sync_until_quiet();
    for number in 0..field.players.len() {
        let (centre, remote) = both(&mut field, number);
        assert_equal(&field, number, &centre, &remote, &HashSet::new());
    }
    ledger::assert_nothing_came_twice(&field);
    field.assert_shadows();
    field.writes
}

fn both<C: Centre>(field: &mut Field<C>, number: usize) -> (Snapshot, Snapshot) {
    let user = field.players[number].device.user.clone();
    (field.share(&user), field.remote(number))
}

/// Refused rows aside, and the parents that they need here.
fn compare_but_refused<C: Centre>(field: &mut Field<C>, number: usize) {
    let mut aside = HashSet::new();
    let (centre, remote) = both(field, number);
    let device = &mut field.players[number].device;
    let (user, refused) = (device.user.clone(), device.refused());
    for (name, key) in ledger::refused_rows(field, &user, &refused) {
        let mut tables = field.schema.tables.iter();
        if let Some(table) = tables.find(|it| it.name == name) {
            aside.insert((table.id, key));
        }
    }
    loop {
        let known = aside.len();
        for table in &field.schema.tables {
            for reference in &table.references {
                let Some(parent) = field.schema.table(reference.parent) else {
                    continue;
                };
                for (key, row) in remote.table(table.id) {
                    if !aside.contains(&(table.id, key.clone())) {
                        continue;
                    }
                    let parents = remote.table(parent.id).iter().filter(|(_, other)| {
                        let pairs = reference.columns.iter().zip(&reference.parent_columns);
                        pairs
                            .into_iter()
                            .all(|(&column, &to)| row[column] == other[to])
                    });
                    let keys = parents.map(|(key, _)| (parent.id, key.clone()));
                    aside.extend(keys);
                }
                // What belongs to a row of the centre waits where the remote has another one, which
                // was refused, under its key; and so does what belongs to that.
                for (key, row) in centre.table(table.id) {
                    let others = remote.table(parent.id).iter();
                    let mut parents = others.chain(centre.table(parent.id).iter());
                    let waits = parents.any(|(of, other)| {
                        let mut pairs = reference.columns.iter().zip(&reference.parent_columns);
                        aside.contains(&(parent.id, of.clone()))
                            && pairs.all(|(&column, &to)| row[column] == other[to])
                    });
                    if waits {
                        aside.insert((table.id, key.clone()));
                    }
                }
            }
        }
        if aside.len() == known {
            break;
        }
    }
    assert_equal(field, number, &centre, &remote, &aside);
}

fn assert_equal<C: Centre>(
    field: &Field<C>,
    number: usize,
    centre: &Snapshot,
    remote: &Snapshot,
    aside: &HashSet<(usize, String)>,
) {
    for table in &field.schema.tables {
        let (there, here) = (centre.table(table.id), remote.table(table.id));
        let mut keys: Vec<&String> = there.keys().chain(here.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let equal = match (there.get(key), here.get(key)) {
                (Some(there), Some(here)) => {
                    same_row(table, there, here)
                        && there
                            .iter()
                            .zip(here)
                            .all(|(one, other)| rows::same(one, other))
                }
                _ => false,
            };
            assert!(
                equal || aside.contains(&(table.id, key.clone())),
                "{} {key} of remote {number} ({}) differs\nin the centre {:?}\non the remote {:?}",
                name(&table.name),
                field.players[number].device.user,
                there.get(key),
                here.get(key)
            );
        }
    }
}

#[test]
fn generated_schemas_end_equal_on_sqlite() {
    run_cases::<Sqlite>(0);
}

#[test]
fn generated_schemas_end_equal_on_postgres() {
    run_cases::<Postgres>(0);
}
