//! The judges are judged: each deliberate defect must be seen by one of them.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewater_simulator::{Caught, Defect, hunt};

/// The seeds among which a defect must be seen.
fn seeds(defect: Defect) -> Range<u64> {
    match defect {
        // It is not in those before.
        Defect::CompareNotHeeded => 2_000..4_000,
        _ => 0..2_000,
    }
}

#[test]
fn every_deliberate_defect_is_seen_by_a_judge() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(Defect, Option<Caught>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&defect) = Defect::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = hunt(defect, seeds(defect));
                    let mut results = results.lock().expect("nobody panics while holding it");
                    results.push((defect, caught));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("every thread has ended");
    results.sort_by_key(|(defect, _)| defect.name());
    let mut unseen = Vec::new();
    for (defect, caught) in &results {
        match caught {
            Some(Caught { seed, what }) => {
                let what = what.lines().next().unwrap_or_default();
                println!("{:<30}{seed:>6}  {what}", defect.name());
            }
            None => unseen.push(defect.name()),
        }
    }
    assert_eq!(results.len(), Defect::ALL.len());
    assert!(unseen.is_empty(), "seen by no judge: {unseen:?}");
}
