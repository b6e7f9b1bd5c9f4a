//! Seeds in the ordinary tests, and what once went wrong.

use tidewater_simulator::{Plan, assert_holds, run, run_all};

/// How many seeds the ordinary tests take.
const SEEDS: u64 = 1_000;

#[test]
fn the_same_seed_gives_the_same_history_to_the_byte() {
    let crowd = Plan {
        remotes: 40,
        ..Plan::for_seed(253)
    };
    for plan in (0..8).map(Plan::for_seed).chain([crowd]) {
        let (first, second) = (run(plan, true), run(plan, true));
        let differing = first.lines.iter().zip(&second.lines).find(|(a, b)| a != b);
        assert_eq!(differing, None, "{plan:?}");
        assert_eq!(first.hash, second.hash, "{plan:?}");
        assert_eq!(first.sessions, second.sessions);
    }
}

#[test]
fn different_seeds_give_different_histories() {
    assert_ne!(
        run(Plan::for_seed(1), false).hash,
        run(Plan::for_seed(2), false).hash
    );
}

#[test]
fn every_seed_keeps_every_promise_and_together_they_meet_every_fault() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = run_all(0..SEEDS, cores);
    assert!(summary.failures.is_empty(), "{:#?}", summary.failures);
    let missing: Vec<_> = summary
        .faults
        .iter()
        .filter(|(_, count)| **count == 0)
        .collect();
    assert!(
        missing.is_empty(),
        "faults that never came about: {missing:?}"
    );
}

#[test]
fn ten_remotes_of_three_users_keep_every_promise() {
    assert_holds(Plan {
        seed: 3,
        remotes: 10,
        steps: 12,
        centre_steps: 24,
        accidents: 3,
        faults: 50,
    });
}

#[test]
fn a_crowd_of_fifty_remotes_keeps_every_promise() {
    assert_holds(Plan {
        seed: 50,
        remotes: 50,
        steps: 12,
        centre_steps: 24,
        accidents: 3,
        faults: 50,
    });
}
