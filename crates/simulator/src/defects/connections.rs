//! The connections that the product opens to its files, for what no other seam reaches.
//!
//! **Invariant:** a connection is used only while the `Database` at its path is alive, and it is
//! the last one that was opened there.

#![expect(
    unsafe_code,
    reason = "the product's connections are not the simulator's"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Once;

use rusqlite::ffi;

use super::list::current;

thread_local! {
    static OPEN: RefCell<HashMap<PathBuf, *mut ffi::sqlite3>> = RefCell::default();
}

/// Has all connections noted that are opened from now on under a defect.
pub(super) fn note_all() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as the process, and does what SQLite asks of it.
        unsafe { ffi::sqlite3_auto_extension(Some(opened)) };
    });
}

unsafe extern "C" fn opened(
    connection: *mut ffi::sqlite3,
    _: *mut *mut c_char,
    _: *const ffi::sqlite3_api_routines,
) -> c_int {
    if current().is_some() {
        // SAFETY: SQLite hands out a connection that has just been opened; the name is its own.
        let name = unsafe { ffi::sqlite3_db_filename(connection, c"main".as_ptr()) };
        if !name.is_null() {
            // SAFETY: not NULL, so it is a string.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            OPEN.with_borrow_mut(|open| open.insert(name.into_owned().into(), connection));
        }
    }
    ffi::SQLITE_OK
}

/// Ends the transaction that the product has open at this path, if it has one, and begins another
/// if so wanted.
pub(super) fn commit(path: &Path, begin: bool) {
    let Some(connection) = OPEN.with_borrow(|open| open.get(path).copied()) else {
        return;
    };
    let sql = match begin {
        true => c"COMMIT; BEGIN IMMEDIATE",
        false => c"COMMIT",
    };
    // SAFETY: see the invariant; the pointers for what nobody wants are NULL.
    unsafe {
        if ffi::sqlite3_get_autocommit(connection) == 0 {
            let (none, nobody) = (std::ptr::null_mut(), std::ptr::null_mut());
            ffi::sqlite3_exec(connection, sql.as_ptr(), None, none, nobody);
        }
    }
}
