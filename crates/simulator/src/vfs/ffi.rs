//! The door to SQLite: the C functions of a virtual file system. All `unsafe` of the
//! simulator is here.
//!
//! The file system is the process's default one, so that the product opens its files as it
//! always does. What concerns no simulated machine goes on to the operating system's.
//!
//! **Invariant:** SQLite calls the methods of a file only between a successful `xOpen` and
//! the return of `xClose`, never two of them at once for the same file, and with pointers
//! that are good for the sizes that it tells (<https://www.sqlite.org/c3ref/io_methods.html>,
//! <https://www.sqlite.org/c3ref/vfs.html>). Panics end here as I/O errors.

#![expect(unsafe_code, reason = "SQLite takes its file system as C functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use super::locks::Level;
use super::open::{self, Code, FileHandle};
use super::registry;

const NAME: &CStr = c"tidewater-simulator";

/// What SQLite assumes of the disks of computers that are not special: a sector of so many
/// bytes may be lost, what lies beside the bytes that are written never.
const SECTOR_SIZE: c_int = 4_096;

/// SQLite counts milliseconds from noon in Greenwich on 24 November 4714 B.C.; until 1970 there are
/// so many.
const JULIAN_MS: i64 = 210_866_760_000_000;

/// An open file as SQLite knows it: its own part first, then ours.
#[repr(C)]
struct Handle {
    base: sqlite3_file,
    opened: *mut FileHandle,
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Makes ours the default file system of this process.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: SQLite initializes itself where it has not yet, and gives a file system
        // that stays registered for as long as the process runs.
        let system = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
        assert!(!system.is_null(), "SQLite has a file system");
        // SAFETY: it is not null, and nobody changes a file system that is registered.
        let mut ours = unsafe { *system };
        ours.szOsFile = ours.szOsFile.max(size_of::<Handle>() as c_int);
        ours.pNext = std::ptr::null_mut();
        ours.zName = NAME.as_ptr();
        ours.pAppData = system.cast();
        ours.xOpen = Some(vfs_open);
        ours.xDelete = Some(vfs_delete);
        ours.xAccess = Some(vfs_access);
        ours.xFullPathname = Some(vfs_full_pathname);
        ours.xDlOpen = Some(vfs_dl_open);
        ours.xDlError = Some(vfs_dl_error);
        ours.xDlSym = Some(vfs_dl_sym);
        ours.xDlClose = Some(vfs_dl_close);
        ours.xRandomness = Some(vfs_randomness);
        ours.xSleep = Some(vfs_sleep);
        ours.xCurrentTime = Some(vfs_current_time);
        ours.xGetLastError = Some(vfs_last_error);
        ours.xCurrentTimeInt64 = Some(vfs_current_time_int64);
        ours.iVersion = ours.iVersion.min(2);
        // SAFETY: the structure is never freed, and its functions keep to their contracts.
        let code = unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(ours)), 1) };
        assert_eq!(code, ffi::SQLITE_OK, "SQLite takes a file system");
    });
}

/// The operating system's file system.
///
/// # Safety
/// `vfs` is ours.
unsafe fn system(vfs: *mut sqlite3_vfs) -> *mut sqlite3_vfs {
    // SAFETY: ours is never freed, and its application data is the one that was found.
    unsafe { (*vfs).pAppData.cast() }
}

/// A path of ours; `None` for names of others, and for nameless temporary files.
///
/// # Safety
/// `name` is null or ends with a zero.
unsafe fn our_path<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: it is not null, and SQLite keeps it until the call returns.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    (registry::is_ours(name) && registry::is_simulated()).then_some(name)
}

/// What a function does; a panic, which SQLite could not bear, is an I/O error.
fn guarded(what: impl FnOnce() -> Code) -> Code {
    catch_unwind(AssertUnwindSafe(what)).unwrap_or(ffi::SQLITE_IOERR)
}

unsafe extern "C" fn vfs_open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a path that ends with a zero, or null.
    let Some(path) = (unsafe { our_path(name) }) else {
        // SAFETY: both file systems are registered; the memory for the file suffices for
        // either of them.
        return unsafe {
            let system = system(vfs);
            (*system).xOpen.map_or(ffi::SQLITE_CANTOPEN, |open| {
                open(system, name, file, flags, out_flags)
            })
        };
    };
    let handle: *mut Handle = file.cast();
    // SAFETY: SQLite has allocated as much as we asked for. Without methods it does not
    // close what could not be opened.
    unsafe { (*handle).base.pMethods = std::ptr::null() };
    guarded(|| {
        let Some(found) = registry::find(path) else {
            return ffi::SQLITE_CANTOPEN;
        };
        match open::open(found, flags & ffi::SQLITE_OPEN_CREATE != 0) {
            Err(code) => code,
            Ok(opened) => {
                // SAFETY: as above; where it goes may be null.
                unsafe {
                    (*handle).opened = Box::into_raw(Box::new(opened));
                    (*handle).base.pMethods = &METHODS;
                    if !out_flags.is_null() {
                        *out_flags = flags;
                    }
                }
                ffi::SQLITE_OK
            }
        }
    })
}

unsafe extern "C" fn vfs_delete(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    // SAFETY: SQLite gives a path that ends with a zero.
    match unsafe { our_path(name) } {
        Some(path) => guarded(|| match registry::find(path) {
            Some(found) => open::delete(&found, sync_folder != 0),
            None => ffi::SQLITE_IOERR_DELETE,
        }),
        // SAFETY: both file systems are registered.
        None => unsafe {
            let system = system(vfs);
            let delete = (*system).xDelete;
            delete.map_or(ffi::SQLITE_IOERR_DELETE, |it| it(system, name, sync_folder))
        },
    }
}

unsafe extern "C" fn vfs_access(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a path that ends with a zero.
    match unsafe { our_path(name) } {
        Some(path) => guarded(|| {
            let exists = registry::find(path).is_some_and(|found| open::exists(&found));
            // SAFETY: SQLite gives a place for the result.
            unsafe { *result = c_int::from(exists) };
            ffi::SQLITE_OK
        }),
        // SAFETY: both file systems are registered.
        None => unsafe {
            let system = system(vfs);
            let access = (*system).xAccess;
            access.map_or(ffi::SQLITE_IOERR_ACCESS, |it| {
                it(system, name, flags, result)
            })
        },
    }
}

unsafe extern "C" fn vfs_full_pathname(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite gives a path that ends with a zero.
    match unsafe { our_path(name) } {
        Some(path) => {
            let Ok(room) = usize::try_from(room) else {
                return ffi::SQLITE_CANTOPEN;
            };
            if path.len() >= room {
                return ffi::SQLITE_CANTOPEN;
            }
            // SAFETY: there is room for the path and its zero, and the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(name, out, path.len() + 1) };
            ffi::SQLITE_OK
        }
        // SAFETY: both file systems are registered.
        None => unsafe {
            let system = system(vfs);
            let full = (*system).xFullPathname;
            full.map_or(ffi::SQLITE_CANTOPEN, |it| it(system, name, room, out))
        },
    }
}

/// What SQLite waits for another connection: in a simulation nothing happens meanwhile.
unsafe extern "C" fn vfs_sleep(vfs: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    if registry::is_simulated() {
        return microseconds;
    }
    // SAFETY: both file systems are registered.
    unsafe {
        let system = system(vfs);
        (*system)
            .xSleep
            .map_or(0, |sleep| sleep(system, microseconds))
    }
}

/// Functions of the operating system's file system, which are called with itself.
macro_rules! forward {
    ($($name:ident = $field:ident ($($argument:ident: $type:ty),*) -> $result:ty, or $missing:expr;)*) => {
        $(unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs $(, $argument: $type)*) -> $result {
            // SAFETY: both file systems are registered, and the arguments are SQLite's own.
            unsafe {
                let system = system(vfs);
                match (*system).$field {
                    Some(function) => function(system $(, $argument)*),
                    None => $missing,
                }
            }
        })*
    };
}

type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

forward! {
    vfs_dl_open = xDlOpen(name: *const c_char) -> *mut c_void, or std::ptr::null_mut();
    vfs_dl_error = xDlError(room: c_int, out: *mut c_char) -> (), or ();
    vfs_dl_sym = xDlSym(library: *mut c_void, name: *const c_char) -> Symbol, or None;
    vfs_dl_close = xDlClose(library: *mut c_void) -> (), or ();
    vfs_randomness = xRandomness(room: c_int, out: *mut c_char) -> c_int, or 0;
    vfs_current_time = xCurrentTime(out: *mut f64) -> c_int, or ffi::SQLITE_ERROR;
    vfs_last_error = xGetLastError(room: c_int, out: *mut c_char) -> c_int, or 0;
    system_time = xCurrentTimeInt64(out: *mut sqlite3_int64) -> c_int, or ffi::SQLITE_ERROR;
}

unsafe extern "C" fn vfs_current_time_int64(
    vfs: *mut sqlite3_vfs,
    out: *mut sqlite3_int64,
) -> c_int {
    // SAFETY: the arguments are SQLite's own.
    unsafe {
        match registry::now_ms() {
            Some(now_ms) => *out = now_ms + JULIAN_MS,
            None => return system_time(vfs, out),
        }
    }
    ffi::SQLITE_OK
}

/// Runs a method of an open file.
///
/// # Safety
/// `file` was opened by us and is not closed.
unsafe fn with(file: *mut sqlite3_file, what: impl FnOnce(&FileHandle) -> Code) -> c_int {
    // SAFETY: what we opened is ours, and lives until it is closed.
    let opened = unsafe { &*(*file.cast::<Handle>()).opened };
    guarded(|| what(opened))
}

/// A size or place that is not negative.
fn offset(at: sqlite3_int64) -> Option<usize> {
    usize::try_from(at).ok()
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let handle: *mut Handle = file.cast();
    guarded(|| {
        // SAFETY: it was made by `vfs_open`, and SQLite closes a file once.
        unsafe {
            (*handle).base.pMethods = std::ptr::null();
            drop(Box::from_raw((*handle).opened));
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    buffer: *mut c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    let (Ok(count), Some(at)) = (usize::try_from(count), offset(at)) else {
        return ffi::SQLITE_IOERR_READ;
    };
    // SAFETY: the file is open; the buffer is SQLite's, for so many bytes, and initialized
    // before anything reads it.
    unsafe {
        with(file, |opened| {
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, count);
            opened.read(at, std::slice::from_raw_parts_mut(buffer.cast(), count))
        })
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    let (Ok(count), Some(at)) = (usize::try_from(count), offset(at)) else {
        return ffi::SQLITE_IOERR_WRITE;
    };
    // SAFETY: the file is open, and SQLite gives so many bytes.
    unsafe {
        with(file, |opened| {
            opened.write(at, std::slice::from_raw_parts(bytes.cast(), count))
        })
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    let Some(size) = offset(size) else {
        return ffi::SQLITE_IOERR_TRUNCATE;
    };
    // SAFETY: the file is open.
    unsafe { with(file, |opened| opened.truncate(size)) }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, FileHandle::sync) }
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    // SAFETY: the file is open, and SQLite gives a place for the result.
    unsafe {
        with(file, |opened| match opened.size() {
            Ok(length) => {
                *size = length as sqlite3_int64;
                ffi::SQLITE_OK
            }
            Err(code) => code,
        })
    }
}

fn level(lock: c_int) -> Level {
    match lock {
        ffi::SQLITE_LOCK_NONE => Level::None,
        ffi::SQLITE_LOCK_SHARED => Level::Shared,
        ffi::SQLITE_LOCK_RESERVED => Level::Reserved,
        ffi::SQLITE_LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, lock: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |opened| opened.lock(level(lock))) }
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, lock: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        with(file, |opened| {
            opened.unlock(level(lock));
            ffi::SQLITE_OK
        })
    }
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, result: *mut c_int) -> c_int {
    // SAFETY: the file is open, and SQLite gives a place for the result.
    unsafe {
        with(file, |opened| {
            *result = c_int::from(opened.is_reserved());
            ffi::SQLITE_OK
        })
    }
}

unsafe extern "C" fn file_control(_: *mut sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut sqlite3_file) -> c_int {
    SECTOR_SIZE
}

unsafe extern "C" fn device_characteristics(_: *mut sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    index: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let (Ok(index), Ok(bytes)) = (usize::try_from(index), usize::try_from(bytes)) else {
        return ffi::SQLITE_IOERR_SHMMAP;
    };
    // SAFETY: the file is open, and SQLite gives a place for the result. What it gets stays
    // where it is as long as this connection maps it; the cells may be changed through a
    // pointer that several connections have, by SQLite's own protocol.
    unsafe {
        with(file, |opened| {
            let mapped = opened.region(index, bytes, extend != 0, |region| {
                region.map_or(std::ptr::null_mut(), |cells| {
                    cells.as_ptr().cast_mut().cast::<c_void>()
                })
            });
            match mapped {
                Ok(pointer) => {
                    *out = pointer;
                    ffi::SQLITE_OK
                }
                Err(code) => code,
            }
        })
    }
}

unsafe extern "C" fn shm_lock(
    file: *mut sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // Eight locks: the mask of any of them has room.
    let mask = ((1_u16 << count.clamp(0, 8)) - 1) << first.clamp(0, 7);
    let locks = (mask & 0xff) as u8;
    // SAFETY: the file is open.
    unsafe {
        with(file, |opened| {
            if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
                opened.unlock_memory(locks);
                return ffi::SQLITE_OK;
            }
            opened.lock_memory(locks, flags & ffi::SQLITE_SHM_EXCLUSIVE != 0)
        })
    }
}

unsafe extern "C" fn shm_barrier(_: *mut sqlite3_file) {
    FileHandle::barrier();
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, _delete: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        with(file, |opened| {
            opened.unmap();
            ffi::SQLITE_OK
        })
    }
}
