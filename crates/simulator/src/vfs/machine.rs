//! A simulated machine: a disk with files, processes that use them, and accidents.
//!
//! An accident is armed and strikes a little later, in the middle of what some process does
//! with the disk. What happens to the process in the world beside the disk (its connections,
//! its memory) is left to who simulates that: it hears of it by [`Process::ended`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{DiskAccident, Life, MachineDisk};
use super::ffi;
use super::registry;
use crate::random::SeededRandom;

/// A machine. Its files are there as long as this is, on the thread that made it.
#[derive(Debug)]
pub(crate) struct SimulatedMachine(Arc<MachineDisk>);

/// A process of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    machine: Arc<MachineDisk>,
    life: Arc<Life>,
}

impl Process {
    fn start(machine: &Arc<MachineDisk>, spared: bool) -> Process {
        Process {
            machine: machine.clone(),
            life: machine.start_process(spared),
        }
    }

    /// Where this process finds a file of the machine. Every process has paths of its own,
    /// so that the disk knows who calls.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        registry::path(self.machine.name(), self.life.number, file)
    }

    /// By which an accident names it.
    pub(crate) fn number(&self) -> u64 {
        self.life.number
    }

    /// Whether it was killed, or lost power. Whoever plays it drops what it had open.
    pub(crate) fn is_dead(&self) -> bool {
        self.life.is_dead()
    }

    /// Returns when it is dead.
    pub(crate) async fn ended(&self) {
        self.life.ended().await;
    }

    /// Kills it between two operations.
    #[cfg(test)]
    pub(crate) fn kill(&self) {
        self.life.die();
    }
}

impl SimulatedMachine {
    /// A machine with an empty disk. Another one of this name on this thread is forgotten.
    pub(crate) fn new(name: &str, random: SeededRandom) -> SimulatedMachine {
        let shared = MachineDisk::new(name, random);
        ffi::register();
        registry::add(&shared);
        SimulatedMachine(shared)
    }

    /// Starts a process.
    pub(crate) fn start(&self) -> Process {
        Process::start(&self.0, false)
    }

    /// A process that nothing happens to as long as there is power: it only looks.
    pub(crate) fn observer(&self) -> Process {
        Process::start(&self.0, true)
    }

    /// Lets an accident strike after so many operations that it can strike at.
    pub(crate) fn arm(&self, accident: DiskAccident, after: u64) {
        self.0.arm(accident, after);
    }

    /// Mends the disk, makes room, and takes back an accident that has not struck.
    pub(crate) fn heal(&self) {
        self.0.heal();
    }

    /// The accidents that have struck since this was last asked.
    pub(crate) fn struck(&self) -> Vec<DiskAccident> {
        self.0.take_struck()
    }

    /// A file becomes a copy of another one, if there is that: on the disk at once, and
    /// without the log of what was there before.
    pub(crate) fn copy(&self, from: &str, to: &str) {
        self.0.copy(from, to);
    }

    /// A file that is on the disk.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        self.0.put(name, bytes);
    }

    /// What a file holds; nothing if there is none.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let file = self.0.find(name);
        file.map(|file| file.content().bytes().to_vec())
            .unwrap_or_default()
    }

    /// Removes a file, if there is one.
    pub(crate) fn remove(&self, name: &str) {
        self.0.delete(name, true);
    }

    /// The power goes now.
    pub(crate) fn lose_power(&self) {
        self.0.lose_power();
    }

    /// How long a file is, if there is one.
    #[cfg(test)]
    pub(crate) fn length_of(&self, name: &str) -> Option<usize> {
        let file = self.0.find(name)?;
        let length = file.content().len();
        Some(length)
    }
}

impl Drop for SimulatedMachine {
    fn drop(&mut self) {
        registry::remove(&self.0);
    }
}

/// Which file a path names: of this machine and no other. For paths of the simulation.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = registry::find(path.to_str()?)?;
    let file = found.machine.find(&found.file)?;
    Some((0, file.number))
}

/// The process whose path this is.
pub(crate) fn process_at(path: &Path) -> Option<Process> {
    let found = registry::find(path.to_str()?)?;
    Some(Process {
        machine: found.machine,
        life: found.life,
    })
}

/// Starts another process on the machine that a path names, and where that one finds the
/// same file.
pub(crate) fn start_beside(path: &Path) -> Option<(Process, PathBuf)> {
    let found = registry::find(path.to_str()?)?;
    let process = Process::start(&found.machine, false);
    let path = process.path(&found.file);
    Some((process, path))
}
