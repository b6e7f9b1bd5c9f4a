//! The disk of a machine: its files, which of their names are synced, who lives that uses them, and
//! the accident that strikes next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_server::Signal;

use super::file::{Content, Fate};
use super::locks::Locks;
use crate::random::SeededRandom;

/// What a process does with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOperation {
    Read,
    Write,
    Sync,
    Truncate,
    Delete,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskAccident {
    /// The process of this number is killed: the operating system still has what it wrote.
    Killed(u64),
    /// The machine is without power: what was not synced arrived, or did not, or in part.
    PowerLost,
    /// No file grows until there is room again.
    Full,
    /// The disk fails, once or until it is healed.
    Broken {
        operation: DiskOperation,
        lasting: bool,
    },
}

/// How an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    /// The process is killed in the middle of it.
    Killed,
    /// The power goes in the middle of it.
    PowerLost,
    Full,
    Broken,
}

/// What the machine and everything that is open on it share.
#[derive(Debug)]
pub(super) struct MachineDisk {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: SeededRandom,
    names: BTreeMap<String, Arc<File>>,
    /// Changes of the names that the disk does not surely have, oldest first.
    unsynced: Vec<NameChange>,
    processes: BTreeMap<u64, Arc<Life>>,
    /// The last number given to a file, a process or a user of a file.
    last_number: u64,
    armed: Option<ArmedAccident>,
    full: bool,
    broken: Option<DiskOperation>,
    struck: Vec<DiskAccident>,
}

#[derive(Debug)]
enum NameChange {
    Created(String),
    Deleted(String, Arc<File>),
}

#[derive(Clone, Copy, Debug)]
struct ArmedAccident {
    accident: DiskAccident,
    /// Operations until then.
    after: u64,
}

/// A file, under whatever name.
#[derive(Debug)]
pub(super) struct File {
    /// Of this file alone, like an inode's number.
    pub(super) number: u64,
    pub(super) content: Mutex<Content>,
    pub(super) locks: Mutex<Locks>,
}

impl File {
    fn new(number: u64, content: Content) -> Arc<File> {
        Arc::new(File {
            number,
            content: Mutex::new(content),
            locks: Mutex::default(),
        })
    }

    pub(super) fn content(&self) -> MutexGuard<'_, Content> {
        lock(&self.content)
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, Locks> {
        lock(&self.locks)
    }
}

/// Whether a process lives.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) number: u64,
    /// Nothing happens to it but power loss: it only looks.
    spared: bool,
    dead: Signal<bool>,
}

impl Life {
    pub(super) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    pub(super) fn die(&self) {
        self.dead.set(true);
    }

    /// Returns when it is dead.
    pub(super) async fn ended(&self) {
        self.dead.wait_for(|dead| dead).await;
    }
}

impl MachineDisk {
    pub(super) fn new(name: &str, random: SeededRandom) -> Arc<MachineDisk> {
        Arc::new(MachineDisk {
            name: name.into(),
            state: Mutex::new(State {
                random,
                names: BTreeMap::new(),
                unsynced: Vec::new(),
                processes: BTreeMap::new(),
                last_number: 0,
                armed: None,
                full: false,
                broken: None,
                struck: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Another process, to which nothing but power loss happens if it is spared.
    pub(super) fn start_process(&self, spared: bool) -> Arc<Life> {
        let mut state = self.state();
        let life = Arc::new(Life {
            number: state.next_number(),
            spared,
            dead: Signal::new(false),
        });
        state.processes.insert(life.number, life.clone());
        life
    }

    /// Lets an accident strike after so many operations that it can strike at.
    pub(super) fn arm(&self, accident: DiskAccident, after: u64) {
        self.state().armed = Some(ArmedAccident { accident, after });
    }

    /// Mends the disk, makes room, and takes back an accident that has not struck.
    pub(super) fn heal(&self) {
        let mut state = self.state();
        (state.armed, state.full, state.broken) = (None, false, None);
    }

    /// Takes the accidents that have struck.
    pub(super) fn take_struck(&self) -> Vec<DiskAccident> {
        std::mem::take(&mut self.state().struck)
    }

    /// A file becomes a copy of another one, if there is that: on the disk at once, and
    /// without the log of what was there before.
    pub(super) fn copy(&self, from: &str, to: &str) {
        let mut state = self.state();
        let Some(source) = state.names.get(from).cloned() else {
            return;
        };
        let copy = Content::from_bytes(source.content().bytes().to_vec());
        let number = state.next_number();
        state.names.remove(&format!("{to}-wal"));
        state.names.remove(&format!("{to}-journal"));
        state.names.insert(to.into(), File::new(number, copy));
        state.unsynced.clear();
    }

    /// A file that is on the disk.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let number = state.next_number();
        let file = File::new(number, Content::from_bytes(bytes.to_vec()));
        state.names.insert(name.into(), file);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn life(&self, process: u64) -> Option<Arc<Life>> {
        self.state().processes.get(&process).cloned()
    }

    pub(super) fn next_user(&self) -> u64 {
        self.state().next_number()
    }

    /// The file of this name; made if there is none and it is to be made.
    pub(super) fn open(&self, name: &str, make: bool) -> Option<Arc<File>> {
        let mut state = self.state();
        if let Some(file) = state.names.get(name) {
            return Some(file.clone());
        }
        if !make {
            return None;
        }
        let file = File::new(state.next_number(), Content::default());
        state.names.insert(name.into(), file.clone());
        state.unsynced.push(NameChange::Created(name.into()));
        Some(file)
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<File>> {
        self.state().names.get(name).cloned()
    }

    /// Deletes a file; whether there was one.
    pub(super) fn delete(&self, name: &str, sync: bool) -> bool {
        let mut state = self.state();
        let Some(file) = state.names.remove(name) else {
            return false;
        };
        state.unsynced.push(NameChange::Deleted(name.into(), file));
        if sync {
            state.unsynced.clear();
        }
        true
    }

    /// The disk has the name of a file that was synced, and so every change of names
    /// before: file systems keep a journal of those.
    pub(super) fn sync_name(&self, file: &Arc<File>) {
        let mut state = self.state();
        let unsynced = state.unsynced.iter().any(|change| match change {
            NameChange::Created(name) => state
                .names
                .get(name)
                .is_some_and(|created| Arc::ptr_eq(created, file)),
            NameChange::Deleted(..) => false,
        });
        if unsynced {
            state.unsynced.clear();
        }
    }

    /// How an operation goes. Of killing and lost power the caller does its part first.
    pub(super) fn judge(&self, life: &Life, operation: DiskOperation, grows: bool) -> Verdict {
        let mut state = self.state();
        if life.spared {
            return Verdict::Done;
        }
        if let Some(accident) = state.due(life, operation, grows) {
            state.struck.push(accident);
            match accident {
                DiskAccident::Killed(_) => return Verdict::Killed,
                DiskAccident::PowerLost => return Verdict::PowerLost,
                DiskAccident::Full => state.full = true,
                DiskAccident::Broken { operation, lasting } => {
                    state.broken = lasting.then_some(operation);
                    return Verdict::Broken;
                }
            }
        }
        if state.full && grows {
            Verdict::Full
        } else if state.broken == Some(operation) {
            Verdict::Broken
        } else {
            Verdict::Done
        }
    }

    /// So many of a number of bytes are written when a process dies.
    pub(super) fn part_of(&self, length: usize) -> usize {
        let mut state = self.state();
        match state.random.below(4) {
            0 => 0,
            1 => length,
            _ => usize::try_from(state.random.below(length as u64 + 1)).unwrap_or(length),
        }
    }

    /// Every process is dead, and every file is what the disk has of it.
    pub(super) fn lose_power(&self) {
        let mut state = self.state();
        for life in state.processes.values() {
            life.die();
        }
        let fate = match state.random.below(4) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            _ => Fate::Mixed,
        };
        state.lose_names(fate);
        let mut random = state.random.fork();
        for file in state.names.values_mut() {
            // What is open still points to the file as it was, and finds nothing there.
            let content = std::mem::take(&mut *file.content());
            *file = File::new(file.number, content.after_power_loss(fate, &mut random));
        }
        (state.armed, state.full, state.broken) = (None, false, None);
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The accident that strikes at this operation.
    fn due(&mut self, life: &Life, operation: DiskOperation, grows: bool) -> Option<DiskAccident> {
        let armed = self.armed.as_mut()?;
        let concerned = match armed.accident {
            DiskAccident::Killed(process) => {
                process == life.number && operation != DiskOperation::Read
            }
            DiskAccident::PowerLost => operation != DiskOperation::Read,
            DiskAccident::Full => grows,
            DiskAccident::Broken { operation: one, .. } => one == operation,
        };
        if !concerned {
            return None;
        }
        if armed.after > 0 {
            armed.after -= 1;
            return None;
        }
        self.armed.take().map(|armed| armed.accident)
    }

    /// The disk has the first of the changes of names, in the order in which they came.
    fn lose_names(&mut self, fate: Fate) {
        let changes = std::mem::take(&mut self.unsynced);
        let count = changes.len() as u64;
        let had = match fate {
            Fate::Kept => count,
            Fate::Lost => 0,
            Fate::Mixed => self.random.between(0, count),
        };
        let lost = changes.into_iter().skip(had as usize).rev();
        for change in lost.collect::<Vec<_>>() {
            match change {
                NameChange::Created(name) => drop(self.names.remove(&name)),
                NameChange::Deleted(name, file) => drop(self.names.insert(name, file)),
            }
        }
    }
}

/// Nobody panics while holding a lock; and if, the simulation has failed anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
