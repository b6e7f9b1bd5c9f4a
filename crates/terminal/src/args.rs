//! What command lines have in common: the exit codes in their help, the configuration file, and how
//! a wrong one is answered.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind;
use tidewater_server::Config;

use crate::failure::Failure;
use crate::output;

/// Ends every command's help; a macro, because `concat!` takes literals only.
#[macro_export]
macro_rules! with_exit_codes {
    ($examples:literal) => {
        concat!(
            $examples,
            "

Exit codes:
  0  done
  1  wrong usage or configuration
  2  server (or database) unreachable or busy: try again later
  3  not allowed in: password, certificate, disabled user, revoked remote
  4  the server and this remote cannot work together: protocol, schema
  5  anything else
  6  done, with refused rows"
        )
    };
}

/// The configuration file that a command works with.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArgs {
    /// The configuration file
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "tidewater.toml"
    )]
    pub path: PathBuf,
}

impl ConfigArgs {
    /// Reads the configuration file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong.
    pub fn load(&self) -> Result<Config, Failure> {
        Config::load(&self.path).map_err(|error| {
            let mut failure = Failure::from(error);
            if !self.path.exists() {
                failure.hint = "name the configuration file with -c FILE, or write one with \
                                tidewater init"
                    .into();
            }
            failure
        })
    }
}

/// Whether a command line asks for one JSON object, if nothing else is known of it.
pub fn wants_json(arguments: &[OsString]) -> bool {
    let mut options = arguments.iter().take_while(|it| *it != "--");
    options.any(|it| it == "--json")
}

/// Reads the command line. The error is the exit code: everything has been printed.
pub(crate) fn parse<C: Parser>(arguments: &[OsString]) -> Result<C, u8> {
    C::try_parse_from(arguments).map_err(|error| {
        // Asked for with --help or --version: a result like any other.
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        ) {
            return match error.print() {
                Ok(()) => 0,
                Err(_) => Failure::usage("", "").exit_code(),
            };
        }
        if wants_json(arguments) {
            // The paragraph before clap's hints, on one line.
            let text = error.render().to_string();
            let lines = text.lines().take_while(|line| !line.is_empty());
            let message = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            let failure = Failure::usage(message, format!("see: {} --help", typed_name::<C>()));
            output::failure(&failure, true);
            failure.exit_code()
        } else {
            // Clap's own text is longer and coloured; nobody to tell if it cannot be printed.
            let _ = error.print();
            Failure::usage("", "").exit_code()
        }
    })
}

/// What a user types to run a program.
fn typed_name<C: Parser>() -> String {
    let command = C::command();
    let name = command.get_bin_name().unwrap_or(command.get_name());
    name.to_owned()
}

/// For a program's own tests: each of its commands says what it is, and shows examples and exit
/// codes.
///
/// # Panics
/// The help of a command lacks one of these, or the definitions of the command line contradict each
/// other.
pub fn check_help(command: clap::Command) {
    fn check(command: &clap::Command) {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name}");
        // The rest is for the other program to say.
        if command.is_disable_help_flag_set() {
            return;
        }
        let after = command.get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        assert!(after.contains("Exit codes:"), "{name}");
        assert!(after.contains("tidewater "), "{name}");
        let commands = command.get_subcommands();
        commands
            .filter(|it| it.get_name() != "help")
            .for_each(check);
    }
    check(&command);
    command.debug_assert();
}
