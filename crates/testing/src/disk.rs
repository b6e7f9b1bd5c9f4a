//! A disk that fails: it kills the process at one of SQLite's writes, or is full from one on.
//!
//! A VFS of SQLite that does what the usual one does and counts. It is the whole process's, so
//! a test that needs it runs it in a process of its own (see [`Disk::install`]).
#![expect(unsafe_code, reason = "a VFS of SQLite is a table of C functions")]

use std::os::raw::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};

use rusqlite::ffi::{
    SQLITE_FULL, SQLITE_OK, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
    sqlite3_vfs_find, sqlite3_vfs_register,
};

/// The exit code of a process that the disk has killed.
pub const KILLED: i32 = 77;

/// The write that is the last one, counted from 1; 0: none is.
static LAST: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicU64 = AtomicU64::new(0);
static KILLS: AtomicBool = AtomicBool::new(false);
static BASE: OnceLock<Base> = OnceLock::new();

/// What happens at the write that is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Half of it is written, and the process ends at once with [`KILLED`].
    Kill,
    /// Files do not grow any more: `SQLITE_FULL`.
    Full,
}

/// The disk of this process.
#[derive(Clone, Copy, Debug)]
pub struct Disk(());

impl Disk {
    /// Puts the disk under every SQLite file that the process opens from now on.
    ///
    /// # Panics
    /// SQLite has no VFS.
    pub fn install() -> Disk {
        static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        BASE.get_or_init(|| {
            // SAFETY: SQLite gives the registered VFS, which lives as long as the process.
            let base = unsafe { sqlite3_vfs_find(std::ptr::null()) };
            assert!(!base.is_null(), "SQLite has a VFS");
            // SAFETY: it is a valid table; the copy is leaked and so lives as long as SQLite
            // knows it.
            let own = Box::leak(Box::new(unsafe { *base }));
            own.zName = c"failing".as_ptr();
            own.pNext = std::ptr::null_mut();
            own.xOpen = Some(open);
            own.xDelete = Some(delete);
            // SAFETY: the table is complete.
            let registered = unsafe { sqlite3_vfs_register(own, 1) };
            assert_eq!(registered, SQLITE_OK, "SQLite takes the VFS");
            Base(base)
        });
        Disk(())
    }

    /// The `write`th write from now on is the last one.
    pub fn fail_at(self, write: u64, fault: DiskFault) {
        KILLS.store(fault == DiskFault::Kill, Ordering::SeqCst);
        WRITES.store(0, Ordering::SeqCst);
        LAST.store(write, Ordering::SeqCst);
    }

    /// Makes the disk whole; tells whether it has failed.
    pub fn heal(self) -> bool {
        let last = LAST.swap(0, Ordering::SeqCst);
        last > 0 && WRITES.load(Ordering::SeqCst) >= last
    }
}

struct Base(*mut sqlite3_vfs);

// SAFETY: a VFS may be used by all threads; SQLite does so itself.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// The methods of an open file, and those that it had.
#[repr(C)]
struct Methods {
    own: sqlite3_io_methods,
    base: *const sqlite3_io_methods,
}

/// Counts something that changes a file; whether it is the last, or comes after it.
fn is_over() -> bool {
    let write = WRITES.fetch_add(1, Ordering::SeqCst) + 1;
    let last = LAST.load(Ordering::SeqCst);
    last > 0 && write >= last
}

fn kill() -> ! {
    // No destructor runs: SQLite closes nothing.
    std::process::exit(KILLED)
}

fn base() -> *mut sqlite3_vfs {
    BASE.get().map_or(std::ptr::null_mut(), |base| base.0)
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's own arguments go to the VFS that they are meant for.
    unsafe {
        let Some(open) = (*base()).xOpen else {
            return SQLITE_FULL;
        };
        let result = open(base(), name, file, flags, out_flags);
        let methods = (*file).pMethods;
        if result == SQLITE_OK && !methods.is_null() {
            let mut own = *methods;
            own.xWrite = Some(write);
            own.xTruncate = Some(truncate);
            let methods = Box::leak(Box::new(Methods { own, base: methods }));
            (*file).pMethods = std::ptr::from_ref(methods).cast();
        }
        result
    }
}

/// # Safety
/// The file was opened by [`open`].
unsafe fn base_of<'a>(file: *mut sqlite3_file) -> &'a sqlite3_io_methods {
    // SAFETY: `open` has put a `Methods` there, which is never freed, and its first field is
    // what SQLite sees.
    unsafe { &*(*(*file).pMethods.cast::<Methods>()).base }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: as in `open`.
    unsafe {
        let base = base_of(file);
        let (Some(write), Some(size_of)) = (base.xWrite, base.xFileSize) else {
            return SQLITE_FULL;
        };
        if !is_over() {
            return write(file, data, amount, offset);
        }
        if KILLS.load(Ordering::SeqCst) {
            write(file, data, amount / 2, offset);
            kill();
        }
        let mut size = 0;
        size_of(file, &mut size);
        match offset + i64::from(amount) > size {
            true => SQLITE_FULL,
            false => write(file, data, amount, offset),
        }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: as in `open`.
    unsafe {
        if is_over() && KILLS.load(Ordering::SeqCst) {
            kill();
        }
        match base_of(file).xTruncate {
            Some(truncate) => truncate(file, size),
            None => SQLITE_FULL,
        }
    }
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    if is_over() && KILLS.load(Ordering::SeqCst) {
        kill();
    }
    // SAFETY: as in `open`.
    unsafe {
        match (*base()).xDelete {
            Some(delete) => delete(base(), name, sync),
            None => SQLITE_FULL,
        }
    }
}
