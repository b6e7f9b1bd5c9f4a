//! The command line: what commands there are, and how a wrong one is answered.
//!
//! Each command's own arguments stand in its file under `command/`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::command;
use crate::failure::Failure;
use crate::output;

/// Ends every command's help; a macro, because `concat!` takes literals only.
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
pub(crate) use with_exit_codes;

/// Two-way sync between many SQLite files and one SQL database
///
/// People work on SQLite files of their own, offline if need be. When a file can reach
/// the server, one short sync uploads its changes into the central database
/// (PostgreSQL or SQLite) and downloads everybody else's that concern it.
#[derive(Debug, Parser)]
#[command(
    name = "tidewater",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = with_exit_codes!("\
From nothing to a synced file:
  tidewater init --consolidated postgres://me@127.0.0.1/shop   # writes tidewater.toml
  $EDITOR tidewater.toml                                       # say who gets which rows
  tidewater deploy                                             # prepares the database
  tidewater user add nancy
  tidewater serve &
  tidewater sync nancy.db --server tcp://127.0.0.1:7439 --user nancy --publication main
  tidewater sync nancy.db                                      # every time after that

`tidewater demo` shows all of it with nothing prepared. `tidewater COMMAND --help` tells more."))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order in which a new user meets them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(command::init::InitArgs),
    Check(command::check::CheckArgs),
    Preview(command::preview::PreviewArgs),
    Simulate(Box<command::simulate::SimulateArgs>),
    Deploy(command::deploy::DeployArgs),
    Undeploy(command::undeploy::UndeployArgs),
    User(command::user::UserArgs),
    Key(command::key::KeyArgs),
    Remote(command::remote::RemoteArgs),
    Script(command::script::ScriptArgs),
    Serve(command::serve::ServeArgs),
    Image(command::image::ImageArgs),
    Relay(command::relay::RelayArgs),
    Sync(Box<command::sync::SyncCommand>),
    Live(Box<command::live::LiveArgs>),
    Call(command::call::CallArgs),
    Provide(command::provide::ProvideArgs),
    Publish(command::publish::PublishArgs),
    Listen(command::listen::ListenArgs),
    ChangePassword(command::change_password::ChangePasswordArgs),
    Unsubscribe(command::unsubscribe::UnsubscribeArgs),
    Status(command::status::StatusArgs),
    Verify(command::verify::VerifyArgs),
    #[command(visible_alias = "rejected")]
    Refused(Box<command::refused::RefusedArgs>),
    Conflicts(command::conflicts::ConflictsArgs),
    Explain(command::explain::ExplainArgs),
    Ping(command::ping::PingArgs),
    Cert(command::cert::CertArgs),
    Bench(Box<command::bench::BenchArgs>),
    Demo(crate::demo::DemoArgs),
    Completions(command::completions::CompletionsArgs),
}

impl Command {
    /// Whether the result is to be one JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Preview(args) => args.json,
            Command::Simulate(args) => args.json,
            Command::Deploy(args) => args.json,
            Command::Undeploy(args) => args.json,
            Command::User(args) => args.wants_json(),
            Command::Key(args) => args.wants_json(),
            Command::Remote(args) => args.wants_json(),
            Command::Script(args) => args.wants_json(),
            Command::Image(args) => args.wants_json(),
            Command::Sync(args) => args.sync.json,
            Command::Live(args) => args.sync.json,
            Command::Call(args) => args.json,
            Command::Publish(args) => args.json,
            Command::Listen(args) => args.json,
            Command::Unsubscribe(args) => args.json,
            Command::Status(args) => args.json,
            Command::Check(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Refused(args) => args.wants_json(),
            Command::Conflicts(args) => args.wants_json(),
            Command::Explain(args) => args.json,
            Command::Ping(args) => args.json,
            Command::Bench(args) => args.wants_json(),
            _ => false,
        }
    }
}

/// The configuration file that a command works with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "tidewater.toml"
    )]
    pub(crate) path: PathBuf,
}

/// Reads the command line. The error is the exit code: everything has been printed.
pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Cli, u8> {
    let arguments: Vec<OsString> = arguments.collect();
    Cli::try_parse_from(&arguments).map_err(|error| {
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
        let wants_json = arguments
            .iter()
            .take_while(|it| *it != "--")
            .any(|it| it == "--json");
        if wants_json {
            // The paragraph before clap's hints, on one line.
            let text = error.render().to_string();
            let lines = text.lines().take_while(|line| !line.is_empty());
            let message = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            let failure = Failure::usage(message, "see: tidewater --help");
            output::failure(&failure, true);
            failure.exit_code()
        } else {
            // Clap's own text is longer and coloured; nobody to tell if it cannot be printed.
            let _ = error.print();
            Failure::usage("", "").exit_code()
        }
    })
}

/// The whole command line as clap knows it, for completions.
pub(crate) fn clap_command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_agree_with_each_other() {
        clap_command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples_and_exit_codes() {
        fn check(command: &clap::Command) {
            for sub in command
                .get_subcommands()
                .filter(|it| it.get_name() != "help")
            {
                if sub.has_subcommands() {
                    check(sub);
                }
                let name = sub.get_name();
                let help = sub
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(help.contains("Exit codes:"), "{name}");
                assert!(help.contains("tidewater "), "{name}");
                assert!(sub.get_about().is_some(), "{name}");
            }
        }
        check(&clap_command());
    }
}
