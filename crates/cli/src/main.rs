//! The `tidewater` program: reads the command line, runs one command, tells its fate by
//! exit code.

mod args;
mod centre;
mod command;
mod demo;
mod devices;
mod failure;
mod images;
mod init_document;
mod init_people;
mod init_statements;
mod interrupt;
mod kept;
mod open_files;
mod output;
mod password;
mod progress;
mod proof;
mod remote_file;
mod running;
mod service;
mod serving_lock;
mod sync_object;
mod upstream;

use std::process::ExitCode;

/// Memory of everything, also of SQLite: musl's own allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a command that did its work has to tell by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Everything was done.
    Fully,
    /// A sync was done, but the centre did not take every row.
    WithRefusedRows,
    /// A remote was compared and is not equal to the centre.
    WithDifferences,
    /// The result is printed, but something else that was asked for failed: it has been told, and
    /// this is its exit code.
    WithFailure(u8),
}

fn main() -> ExitCode {
    let cli = match args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let as_json = cli.command.wants_json();
    match command::run(cli.command) {
        Ok(Done::Fully) => ExitCode::SUCCESS,
        Ok(Done::WithRefusedRows) => ExitCode::from(6),
        Ok(Done::WithDifferences) => ExitCode::from(5),
        Ok(Done::WithFailure(code)) => ExitCode::from(code),
        Err(failure) => {
            output::failure(&failure, as_json);
            ExitCode::from(failure.exit_code())
        }
    }
}
