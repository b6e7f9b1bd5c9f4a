//! Runs SQL with the SQLite of 2016: `tidewater-old-sqlite FILE < STATEMENTS`. Prints each row,
//! its columns between `|`, and ends with code 1 and SQLite's own message at the first error.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Read;
use std::process::ExitCode;
use std::ptr::null_mut;

use libsqlite3_sys as ffi;

fn main() -> ExitCode {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("which file?");
        return ExitCode::from(2);
    };
    let mut statements = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut statements) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    match run(&file, &statements) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(file: &str, statements: &str) -> Result<(), String> {
    let zero = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (file, statements) = (zero(file)?, zero(statements)?);
    let mut connection: *mut ffi::sqlite3 = null_mut();
    // SAFETY: the texts end with a zero and outlive the calls; the connection is only used while
    // it is open, by this thread alone, and `row` keeps nothing that it is given.
    unsafe {
        let mut code = ffi::sqlite3_open(file.as_ptr(), &mut connection);
        if code == ffi::SQLITE_OK {
            ffi::sqlite3_busy_timeout(connection, 5000);
            code = ffi::sqlite3_exec(
                connection,
                statements.as_ptr(),
                Some(row),
                null_mut(),
                null_mut(),
            );
        }
        let result = match code {
            ffi::SQLITE_OK => Ok(()),
            _ => Err(text(ffi::sqlite3_errmsg(connection))),
        };
        ffi::sqlite3_close(connection);
        result
    }
}

/// Prints a row.
unsafe extern "C" fn row(
    _: *mut c_void,
    columns: c_int,
    values: *mut *mut c_char,
    _: *mut *mut c_char,
) -> c_int {
    let columns = usize::try_from(columns).unwrap_or(0);
    // SAFETY: SQLite gives so many values, each NULL or a text that ends with a zero.
    let values = (0..columns).map(|index| unsafe { text(*values.add(index)) });
    println!("{}", values.collect::<Vec<_>>().join("|"));
    0
}

/// # Safety
/// It is NULL, or ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "NULL".into();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
