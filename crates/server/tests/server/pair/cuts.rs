//! A sync with something of everything, and a connection that fails after chosen bytes:
//! at every boundary of a message and inside every message, in both directions.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tempfile::TempDir;

use tidewater_connection::device::DeviceError;
use tidewater_remote::{Report, SyncError};

use super::device::{Device, SILENCE_MS, boundaries};
use super::simulation::{Simulation, simulate};
use super::wire::{Direction, Fault, Kind, Passed, Weather};
use crate::centre::{Fate, MemoryCentre, State};

/// Milliseconds after which nobody waits any more, on either side.
const BEYOND_DEADLINES_MS: u64 = 2 * 60 * 60 * 1_000;

/// A remote's file and a centre, to begin from again and again.
struct Template {
    _folder: TempDir,
    path: PathBuf,
    centre: State,
}

impl Template {
    /// A remote that has never synced, and a centre with notes.
    fn blank() -> Template {
        let device = Device::new("ada", 1);
        let centre = MemoryCentre::new();
        for id in 1..=6 {
            centre.write(id, Some(&format!("centre {id}")));
        }
        Template::of(device, &centre)
    }

    /// One that has synced; since then both sides have changed.
    fn changed() -> Template {
        simulate(async {
            let blank = Template::blank();
            let (simulation, mut device) = blank.begin(2).await;
            device.settle(&simulation).await;
            device.write(10, Some("inserted"));
            device.write(1, Some("updated"));
            device.write(2, None);
            device.write(11, Some("refused by the centre"));
            // Each of them loses against the centre.
            device.write(3, Some("loses against an update"));
            device.write(4, None);
            device.write(5, Some("loses against a delete"));
            let centre = &simulation.centre;
            centre.write(3, Some("centre wins"));
            centre.write(4, Some("centre keeps"));
            centre.write(5, None);
            centre.write(6, None);
            centre.write(20, Some("new in the centre"));
            Template::of(device, centre)
        })
    }

    fn of(device: Device, centre: &MemoryCentre) -> Template {
        let (folder, path) = device.close();
        Template {
            _folder: folder,
            path,
            centre: centre.state().clone(),
        }
    }

    async fn begin(&self, seed: u64) -> (Simulation, Device) {
        let centre = MemoryCentre::new();
        *centre.state() = self.centre.clone();
        let simulation = Simulation::start(centre, seed, "").await;
        (simulation, Device::copy_of(&self.path, "ada", seed))
    }

    /// The bytes of an undisturbed sync.
    fn undisturbed(&self) -> Passed {
        simulate(async {
            let (simulation, mut device) = self.begin(3).await;
            device.sync(&simulation, Weather::fine()).await.unwrap();
            device.passed
        })
    }

    /// Every boundary of a message, and the first, the middle and the last byte inside of
    /// every message.
    fn places(&self) -> Vec<(Direction, usize)> {
        let passed = self.undisturbed();
        let up = (Direction::Up, boundaries(&passed.up, true));
        let down = (Direction::Down, boundaries(&passed.down, false));
        let mut places = Vec::new();
        for (direction, boundaries) in [up, down] {
            let mut offsets = BTreeSet::from_iter(boundaries.iter().copied());
            for message in boundaries.windows(2) {
                let (begin, end) = (message[0], message[1]);
                offsets.extend([begin + 1, (begin + end) / 2, end - 1]);
            }
            places.extend(offsets.into_iter().map(|offset| (direction, offset)));
        }
        places
    }
}

/// What is true in the end, whatever happened to the first sync.
fn check_changed(simulation: &Simulation, device: &mut Device, told: &Report) {
    let state = simulation.centre.state();
    let fate = |id: i64, new: Option<&str>| {
        let changes = state.changes.iter();
        let same = changes.filter(|(change, _)| change.id == id && change.new.as_deref() == new);
        let fates: Vec<Fate> = same.map(|(_, fate)| *fate).collect();
        assert_eq!(fates.len(), 1, "{id} {new:?} came {} times", fates.len());
        fates[0]
    };
    assert_eq!(fate(10, Some("inserted")), Fate::Applied);
    assert_eq!(fate(1, Some("updated")), Fate::Applied);
    assert_eq!(fate(2, None), Fate::Applied);
    assert_eq!(fate(11, Some("refused by the centre")), Fate::Refused);
    assert_eq!(fate(3, Some("loses against an update")), Fate::Conflict);
    assert_eq!(fate(4, None), Fate::Conflict);
    assert_eq!(fate(5, Some("loses against a delete")), Fate::Conflict);
    assert_eq!(fate(10, Some("once more")), Fate::Applied);
    assert_eq!(fate(12, Some("meanwhile")), Fate::Applied);
    assert_eq!(state.changes.len(), 9);
    // Told once by a sync that was committed, however often it was said.
    assert_eq!((told.conflicts, told.refused), (3, 1));
    assert_eq!(device.refused(), [11]);
    assert_eq!(device.note(11).as_deref(), Some("refused by the centre"));
    let mut expected = state.notes();
    expected.push((11, "refused by the centre".into()));
    expected.sort();
    assert_eq!(device.notes(), expected);
}

/// A sync that fails in this way, edits, and syncs until nothing is left to do. Returns
/// how often a result was told again.
async fn disturbed(template: &Template, fault: Fault) -> usize {
    let (simulation, mut device) = template.begin(3).await;
    let before_ms = simulation.now().ticks_ms;
    let remote_id = device.account().remote_id;
    let first = device.sync(&simulation, Weather::with(fault)).await;
    assert!(device.passed.faulted, "nothing happened");
    if fault.kind == Kind::Silence && first.is_err() {
        assert!(
            matches!(
                first,
                Err(SyncError::Connection(DeviceError::Timeout { .. }))
            ),
            "{first:?}"
        );
        // What was sent is given up sooner than silence, but not at once.
        let patience = simulation.now().ticks_ms - before_ms;
        assert!(
            (10_000..=SILENCE_MS + 10_000).contains(&patience),
            "{patience}"
        );
    }
    device.write(10, Some("once more"));
    device.write(12, Some("meanwhile"));
    let mut told = device.settle(&simulation).await;
    if let Ok(report) = first {
        told.conflicts += report.conflicts;
        told.refused += report.refused;
    }
    // What was late has come by then, and whoever waited has given up.
    tokio::time::sleep(std::time::Duration::from_millis(3 * BEYOND_DEADLINES_MS)).await;
    let late = device.settle(&simulation).await;
    assert_eq!((late.conflicts, late.refused), (0, 0));
    check_changed(&simulation, &mut device, &told);
    // An old Hello that comes late looks like a copy's; the remote itself is none.
    assert_eq!(device.account().remote_id, remote_id);
    device.retold
}

fn disturb_everywhere(kind: Kind) {
    let template = Template::changed();
    let mut retold = 0;
    for (direction, after) in template.places() {
        let fault = Fault {
            direction,
            after,
            kind,
        };
        let _place = Place(fault);
        retold += simulate(disturbed(&template, fault));
    }
    if !matches!(kind, Kind::Delay { ms } if ms < SILENCE_MS) {
        assert!(retold > 0, "no result was told again");
    }
}

/// Says where a test panicked.
struct Place(Fault);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("while this happened: {:?}", self.0);
        }
    }
}

#[test]
fn a_sync_that_is_cut_anywhere_takes_effect_once() {
    disturb_everywhere(Kind::Cut);
}

#[test]
fn a_sync_that_falls_silent_anywhere_times_out_and_takes_effect_once() {
    disturb_everywhere(Kind::Silence);
}

#[test]
fn bytes_that_come_after_every_deadline_change_nothing() {
    disturb_everywhere(Kind::Delay {
        ms: BEYOND_DEADLINES_MS,
    });
}

#[test]
fn bytes_that_come_late_but_in_time_are_in_time() {
    disturb_everywhere(Kind::Delay {
        ms: SILENCE_MS - 1_000,
    });
}

#[test]
fn an_old_connection_that_goes_on_before_the_remotes_next_one_is_no_second_upload() {
    disturb_everywhere(Kind::Linger { ms: 0 });
}

#[test]
fn an_old_connection_that_goes_on_after_the_remotes_next_one_is_no_second_upload() {
    disturb_everywhere(Kind::Linger { ms: 7_000 });
}

#[test]
fn a_first_sync_that_is_cut_anywhere_is_made_up_for_by_the_next() {
    let template = Template::blank();
    for kind in [Kind::Cut, Kind::Silence, Kind::Linger { ms: 5 }] {
        for (direction, after) in template.places() {
            let fault = Fault {
                direction,
                after,
                kind,
            };
            let _place = Place(fault);
            simulate(async {
                let (simulation, mut device) = template.begin(3).await;
                let _ = device.sync(&simulation, Weather::with(fault)).await;
                assert!(device.passed.faulted, "nothing happened");
                device.settle(&simulation).await;
                device.write(10, Some("inserted"));
                device.settle(&simulation).await;
                let state = simulation.centre.state();
                assert_eq!(state.changes.len(), 1);
                assert_eq!(device.notes(), state.notes());
            });
        }
    }
}
