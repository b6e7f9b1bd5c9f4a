//! What SQLite does with an open file: everything that the disk, its locks and its accidents
//! come together for. Results are SQLite's own codes.

use std::sync::Arc;

use rusqlite::ffi;

use super::disk::{DiskOperation, File, Life, MachineDisk, Verdict};
use super::locks::{self, Level, Region};
use super::registry::PathTarget;

/// A result code of SQLite.
pub(super) type Code = std::os::raw::c_int;

/// A file that a connection has open.
pub(super) struct FileHandle {
    machine: Arc<MachineDisk>,
    life: Arc<Life>,
    file: Arc<File>,
    user: u64,
}

/// Opens a file.
pub(super) fn open(found: PathTarget, make: bool) -> Result<FileHandle, Code> {
    if found.life.is_dead() {
        return Err(ffi::SQLITE_CANTOPEN);
    }
    let file = found.machine.open(&found.file, make);
    Ok(FileHandle {
        file: file.ok_or(ffi::SQLITE_CANTOPEN)?,
        user: found.machine.next_user(),
        machine: found.machine,
        life: found.life,
    })
}

/// Deletes a file.
pub(super) fn delete(found: &PathTarget, sync: bool) -> Code {
    if found.life.is_dead() {
        return ffi::SQLITE_IOERR_DELETE;
    }
    match found
        .machine
        .judge(&found.life, DiskOperation::Delete, false)
    {
        Verdict::Done | Verdict::Full => match found.machine.delete(&found.file, sync) {
            true => ffi::SQLITE_OK,
            false => ffi::SQLITE_IOERR_DELETE_NOENT,
        },
        verdict => {
            if verdict == Verdict::PowerLost {
                found.machine.delete(&found.file, false);
            }
            fail(&found.machine, &found.life, verdict);
            ffi::SQLITE_IOERR_DELETE
        }
    }
}

/// Whether there is a file that is not empty: what was made but never written counts for
/// nothing, as in SQLite's own code for Unix.
pub(super) fn exists(found: &PathTarget) -> bool {
    let file = found.machine.find(&found.file);
    file.is_some_and(|file| file.content().len() > 0)
}

/// What an accident does beside the operation that it interrupts.
fn fail(machine: &MachineDisk, life: &Life, verdict: Verdict) {
    match verdict {
        Verdict::Killed => life.die(),
        Verdict::PowerLost => machine.lose_power(),
        Verdict::Done | Verdict::Full | Verdict::Broken => {}
    }
}

impl FileHandle {
    pub(super) fn read(&self, at: usize, buffer: &mut [u8]) -> Code {
        if self.life.is_dead() || self.judge(DiskOperation::Read, false) != Verdict::Done {
            return ffi::SQLITE_IOERR_READ;
        }
        match self.file.content().read(at, buffer) {
            true => ffi::SQLITE_OK,
            false => ffi::SQLITE_IOERR_SHORT_READ,
        }
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> Code {
        if self.life.is_dead() {
            return ffi::SQLITE_IOERR_WRITE;
        }
        let grows = at + bytes.len() > self.file.content().len();
        let verdict = self.judge(DiskOperation::Write, grows);
        let written = match verdict {
            Verdict::Done | Verdict::PowerLost => bytes.len(),
            Verdict::Killed | Verdict::Full => self.machine.part_of(bytes.len()),
            Verdict::Broken => 0,
        };
        if written > 0 {
            self.file.content().write(at, &bytes[..written]);
        }
        fail(&self.machine, &self.life, verdict);
        match verdict {
            Verdict::Done => ffi::SQLITE_OK,
            Verdict::Full => ffi::SQLITE_FULL,
            _ => ffi::SQLITE_IOERR_WRITE,
        }
    }

    pub(super) fn truncate(&self, length: usize) -> Code {
        if self.life.is_dead() {
            return ffi::SQLITE_IOERR_TRUNCATE;
        }
        let verdict = self.judge(DiskOperation::Truncate, false);
        if matches!(verdict, Verdict::Done | Verdict::PowerLost) {
            self.file.content().truncate(length);
        }
        fail(&self.machine, &self.life, verdict);
        match verdict {
            Verdict::Done => ffi::SQLITE_OK,
            _ => ffi::SQLITE_IOERR_TRUNCATE,
        }
    }

    pub(super) fn sync(&self) -> Code {
        if self.life.is_dead() {
            return ffi::SQLITE_IOERR_FSYNC;
        }
        let verdict = self.judge(DiskOperation::Sync, false);
        if verdict == Verdict::Done {
            self.file.content().sync();
            self.machine.sync_name(&self.file);
            return ffi::SQLITE_OK;
        }
        fail(&self.machine, &self.life, verdict);
        ffi::SQLITE_IOERR_FSYNC
    }

    pub(super) fn size(&self) -> Result<usize, Code> {
        match self.life.is_dead() {
            true => Err(ffi::SQLITE_IOERR_FSTAT),
            false => Ok(self.file.content().len()),
        }
    }

    pub(super) fn lock(&self, level: Level) -> Code {
        if self.life.is_dead() {
            return ffi::SQLITE_IOERR_LOCK;
        }
        busy_unless(self.file.locks().raise(self.user, level))
    }

    /// Also the dead let go: the operating system does that for them.
    pub(super) fn unlock(&self, level: Level) {
        self.file.locks().lower(self.user, level);
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.file.locks().is_reserved()
    }

    pub(super) fn lock_memory(&self, locks: u8, exclusive: bool) -> Code {
        if self.life.is_dead() {
            return ffi::SQLITE_IOERR_SHMLOCK;
        }
        let mut all = self.file.locks();
        busy_unless(all.lock_memory(self.user, locks, exclusive))
    }

    pub(super) fn unlock_memory(&self, locks: u8) {
        self.file.locks().unlock_memory(self.user, locks);
    }

    /// Hands out a piece of the shared memory: it stays where it is until the last one who
    /// has it leaves.
    pub(super) fn region<T>(
        &self,
        index: usize,
        bytes: usize,
        make: bool,
        hand_out: impl FnOnce(Option<&Region>) -> T,
    ) -> Result<T, Code> {
        if self.life.is_dead() {
            return Err(ffi::SQLITE_IOERR_SHMMAP);
        }
        let mut locks = self.file.locks();
        Ok(hand_out(locks.region(self.user, index, bytes, make)))
    }

    pub(super) fn unmap(&self) {
        self.file.locks().unmap(self.user);
    }

    pub(super) fn barrier() {
        locks::barrier();
    }

    fn judge(&self, operation: DiskOperation, grows: bool) -> Verdict {
        self.machine.judge(&self.life, operation, grows)
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.file.locks().leave(self.user);
    }
}

fn busy_unless(done: bool) -> Code {
    match done {
        true => ffi::SQLITE_OK,
        false => ffi::SQLITE_BUSY,
    }
}
