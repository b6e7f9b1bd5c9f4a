//! The disks of the world: one for each remote's device, one for the centre, and what
//! happens to them.
//!
//! Accidents strike those who sync and serve, at a write in the middle of what they do.
//! Applications and judges are spared, but for lost power, which takes every process of a
//! machine: they commit so that this takes nothing back.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use crate::chronicle::Chronicle;
use crate::random::SeededRandom;
use crate::vfs::{self, DiskAccident, DiskOperation, Process, SimulatedMachine};

/// What is counted: on a remote, and on the centre.
const KILLED: [&str; 2] = ["remote killed at a write", "server killed at a write"];
const POWER_LOST: [&str; 2] = ["power lost on a remote", "power lost on the centre"];
const FULL: [&str; 2] = ["disk of a remote full", "disk of the centre full"];
const BROKEN: [&str; 2] = ["I/O error on a remote", "I/O error on the centre"];

/// Every kind of accident of a disk.
pub(crate) const KINDS: &[&str] = &[
    KILLED[0],
    KILLED[1],
    POWER_LOST[0],
    POWER_LOST[1],
    FULL[0],
    FULL[1],
    BROKEN[0],
    BROKEN[1],
];

/// After these, what the centre is asked for may come to nothing.
pub(crate) const FAILING_CENTRE: [&str; 2] = [FULL[1], BROKEN[1]];

/// The file of a remote on its device.
const FILE: &str = "remote.db";

/// A copy of it that somebody keeps.
const COPY: &str = "copy.db";

/// A device with a remote on it.
pub(crate) struct Device {
    machine: SimulatedMachine,
    application: RefCell<Process>,
    syncing: RefCell<Process>,
}

impl Device {
    pub(crate) fn new(name: &str, random: SeededRandom) -> Device {
        let machine = SimulatedMachine::new(name, random);
        Device {
            application: RefCell::new(machine.observer()),
            syncing: RefCell::new(machine.start()),
            machine,
        }
    }

    /// Where the application finds the file.
    pub(crate) fn application_path(&self) -> PathBuf {
        self.application.borrow().path(FILE)
    }

    /// Where the process that syncs finds the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.syncing.borrow().path(FILE)
    }

    /// Where another process that syncs finds the file.
    pub(crate) fn path_of_another(&self) -> PathBuf {
        self.machine.start().path(FILE)
    }

    /// Where the application puts a copy of the file; that of before is gone.
    pub(crate) fn path_of_copy(&self) -> PathBuf {
        self.machine.remove(COPY);
        self.application.borrow().path(COPY)
    }

    /// The copy takes the file's place, which nobody has open.
    pub(crate) fn restore_copy(&self) {
        self.machine.copy(COPY, FILE);
    }

    /// The bytes of the copy.
    pub(crate) fn bytes_of_copy(&self) -> Vec<u8> {
        self.machine.bytes(COPY)
    }

    /// Where nobody has had a file yet, it is a copy of another device's.
    pub(crate) fn put(&self, bytes: &[u8]) {
        self.machine.put(FILE, bytes);
    }

    /// Nobody has the file open, and it is gone, with the copy.
    pub(crate) fn wipe(&self) {
        for name in [FILE, COPY] {
            self.machine.remove(name);
            self.machine.remove(&format!("{name}-wal"));
            self.machine.remove(&format!("{name}-journal"));
        }
    }

    /// Something happens at one of the next writes.
    pub(crate) fn threaten(&self, random: &mut SeededRandom) {
        let process = self.syncing.borrow().number();
        let accident = any(process, random);
        self.machine.arm(accident, random.below(60));
    }

    /// The disk is mended, and what did not happen will not.
    pub(crate) fn calm(&self, chronicle: &Chronicle) {
        calm(&self.machine, 0, chronicle);
    }

    /// Whoever is dead is started again.
    pub(crate) fn restart(&self) {
        if self.application.borrow().is_dead() {
            self.application.replace(self.machine.observer());
        }
        if self.syncing.borrow().is_dead() {
            self.syncing.replace(self.machine.start());
        }
    }
}

/// The disk of the centre.
pub(crate) struct CentreDisk {
    machine: SimulatedMachine,
    /// The file's name: another one after each time that it was restored.
    file: RefCell<String>,
    observer: RefCell<Process>,
}

impl CentreDisk {
    pub(crate) fn new(random: SeededRandom) -> CentreDisk {
        CentreDisk::named("centre", random)
    }

    /// That of the machine of this name.
    pub(crate) fn named(name: &str, random: SeededRandom) -> CentreDisk {
        let machine = SimulatedMachine::new(name, random);
        CentreDisk {
            file: RefCell::new("centre.db".into()),
            observer: RefCell::new(machine.observer()),
            machine,
        }
    }

    /// What is on the disk at the beginning.
    pub(crate) fn put(&self, bytes: &[u8]) {
        self.machine.put(&self.file.borrow(), bytes);
    }

    /// What is on the disk, when nobody has the file open.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.machine.bytes(&self.file.borrow())
    }

    /// Where applications of the centre find its file. After lost power that is elsewhere.
    pub(crate) fn path(&self) -> PathBuf {
        if self.observer.borrow().is_dead() {
            self.observer.replace(self.machine.observer());
        }
        self.observer.borrow().path(&self.file.borrow())
    }

    /// Where a backup goes.
    pub(crate) fn backup(&self, number: u64) -> PathBuf {
        self.observer.borrow().path(&backup(number))
    }

    /// A copy of a backup is the centre from now on.
    pub(crate) fn restore(&self, number: u64, restoration: u64) {
        let file = format!("centre-{restoration}.db");
        self.machine.copy(&backup(number), &file);
        self.file.replace(file);
    }

    /// Something happens at one of the next writes, of the given process or of any.
    pub(crate) fn threaten(&self, process: u64, random: &mut SeededRandom) {
        let accident = any(process, random);
        self.machine.arm(accident, random.below(100));
    }

    /// A process is killed so many writes from now.
    pub(crate) fn kill(&self, process: u64, after: u64) {
        self.machine.arm(DiskAccident::Killed(process), after);
    }

    /// All processes of the machine die at once.
    pub(crate) fn lose_power(&self) {
        self.machine.lose_power();
    }

    /// The disk is mended, and what did not happen will not.
    pub(crate) fn calm(&self, chronicle: &Chronicle) {
        calm(&self.machine, 1, chronicle);
    }
}

/// The process that finds something at this path.
pub(crate) fn process_at(path: &Path) -> Option<Process> {
    vfs::process_at(path)
}

fn backup(number: u64) -> String {
    format!("backup-{number}.db")
}

fn any(process: u64, random: &mut SeededRandom) -> DiskAccident {
    use DiskOperation::{Delete, Read, Sync, Truncate, Write};
    let operations = [Read, Write, Sync, Truncate, Delete];
    match random.below(6) {
        0 | 1 => DiskAccident::Killed(process),
        2 | 3 => DiskAccident::PowerLost,
        4 => DiskAccident::Full,
        _ => DiskAccident::Broken {
            operation: random.pick(&operations).unwrap_or(Write),
            lasting: random.percent(50),
        },
    }
}

fn calm(machine: &SimulatedMachine, place: usize, chronicle: &Chronicle) {
    machine.heal();
    for accident in machine.struck() {
        chronicle.fault(match accident {
            DiskAccident::Killed(_) => KILLED[place],
            DiskAccident::PowerLost => POWER_LOST[place],
            DiskAccident::Full => FULL[place],
            DiskAccident::Broken { .. } => BROKEN[place],
        });
    }
}
