//! A program from its command line to its exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::args::parse;
use crate::failure::Failure;
use crate::output;

/// What a command that did its work has to tell by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Everything was done.
    Complete,
    /// A sync was done, but the centre did not take every row.
    WithRefusedRows,
    /// A remote was compared and is not equal to the centre, or a promise was broken.
    WithDifferences,
    /// The result is printed, but something else that was asked for failed: it has been told, and
    /// this is its exit code.
    WithFailure(u8),
}

/// Reads the command line, which begins with the program's name, runs the command, and tells its
/// fate by exit code. `wants_json` says whether the result of the command is to be one JSON object: then an error is one, too.
pub fn run_program<C: Parser>(
    arguments: Vec<OsString>,
    wants_json: impl FnOnce(&C) -> bool,
    run: impl FnOnce(C) -> Result<CommandOutcome, Failure>,
) -> ExitCode {
    let command: C = match parse(&arguments) {
        Ok(command) => command,
        Err(code) => return ExitCode::from(code),
    };
    let as_json = wants_json(&command);
    match run(command) {
        Ok(CommandOutcome::Complete) => ExitCode::SUCCESS,
        Ok(CommandOutcome::WithRefusedRows) => ExitCode::from(6),
        Ok(CommandOutcome::WithDifferences) => ExitCode::from(5),
        Ok(CommandOutcome::WithFailure(code)) => ExitCode::from(code),
        Err(failure) => {
            output::failure(&failure, as_json);
            ExitCode::from(failure.exit_code())
        }
    }
}
