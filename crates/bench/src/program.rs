//! The programs of a bench: `tidewater`, of which servers and relays are processes, and its own, of
//! which drivers and clients are.

use std::path::PathBuf;
use std::process::Command;

use tidewater_terminal::find_program;

use crate::error::BadInput;

/// Where `tidewater` is.
///
/// # Errors
/// It is not there; a bench finds that out before it touches a database.
pub(crate) fn find_tidewater() -> anyhow::Result<PathBuf> {
    find_program("tidewater").ok_or_else(|| {
        BadInput::error(
            "the program tidewater, of which servers are started, is neither beside this one nor \
             in PATH",
            "put both programs into one folder; from the sources: \
             cargo build --release -p tidewater-cli -p tidewater-bench",
        )
    })
}

/// `tidewater`, ready for arguments.
pub(crate) fn tidewater() -> anyhow::Result<Command> {
    Ok(Command::new(find_tidewater()?))
}

/// This program, ready for arguments.
pub(crate) fn own_program() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}
