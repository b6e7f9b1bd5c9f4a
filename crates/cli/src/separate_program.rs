//! Commands that are programs of their own, `tidewater bench` and `tidewater simulate`: how they are
//! run.
//!
//! Whoever serves or syncs needs neither, so `tidewater` contains neither, and they are built and
//! installed only where somebody wants them. What they understand is theirs to say: all arguments go
//! to them as they are, and they take this program's place, with its standard streams.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use tidewater_terminal::{CommandOutcome, Failure, find_program, wants_json};

/// What goes to a program of its own.
#[derive(Debug, Args)]
pub(crate) struct PassedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// A program of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeparateProgram {
    /// The command of `tidewater` that runs it.
    command: &'static str,
    /// Its file.
    name: &'static str,
    /// What of cargo's arguments builds it.
    build: &'static str,
}

/// The load generator.
pub(crate) const BENCH: SeparateProgram = SeparateProgram {
    command: "bench",
    name: "tidewater-bench",
    build: "-p tidewater-bench",
};

/// A user's configuration in a simulated world.
pub(crate) const SIMULATE: SeparateProgram = SeparateProgram {
    command: "simulate",
    name: "tidewater-simulate",
    build: "-p tidewater-simulator --bin tidewater-simulate",
};

impl PassedArgs {
    /// Whether they ask for one JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        wants_json(&self.arguments)
    }
}

impl SeparateProgram {
    /// Has it take the place of this program; returns only if it cannot.
    pub(crate) fn run(self, args: &PassedArgs) -> Result<CommandOutcome, Failure> {
        let SeparateProgram {
            command,
            name,
            build,
        } = self;
        let path = find_program(name).ok_or_else(|| {
            Failure::usage(
                format!(
                    "`tidewater {command}` is a program of its own, {name}, which is neither \
                     beside tidewater nor in PATH"
                ),
                format!(
                    "build it from the sources (cargo build --release {build}), or put {name} \
                     beside tidewater"
                ),
            )
        })?;
        let error = Command::new(&path).args(&args.arguments).exec();
        Err(Failure::file("run", &path, &error))
    }
}

/// The command line with `help bench ...` as `bench ... --help`: only the program itself knows its
/// help.
pub(crate) fn pass_help_on(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let commands = [BENCH.command, SIMULATE.command];
    let asks = arguments.get(1).is_some_and(|it| it == "help")
        && arguments
            .get(2)
            .is_some_and(|it| commands.iter().any(|command| it == command));
    if asks {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}
