//! The command line: what commands there are.
//!
//! Each command's own arguments stand in its file under `command/`.

use clap::{CommandFactory, Parser, Subcommand};
use tidewater_terminal::with_exit_codes;

use crate::command;
use crate::separate_program::PassedArgs;

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
    /// Run your configuration in a simulated world, and see whether it keeps its promises (a program
    /// of its own, tidewater-simulate)
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Simulate(PassedArgs),
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
    /// Measure a deployment under load: thousands of real remotes, kept in step (a program of its
    /// own, tidewater-bench)
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(PassedArgs),
    Demo(crate::demo::DemoArgs),
    Completions(command::completions::CompletionsArgs),
}

impl Command {
    /// Whether the result is to be one JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Preview(args) => args.json,
            Command::Simulate(args) | Command::Bench(args) => args.wants_json(),
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
            _ => false,
        }
    }
}

/// The whole command line as clap knows it, for completions.
pub(crate) fn clap_command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_shows_examples_and_exit_codes() {
        tidewater_terminal::check_help(clap_command());
    }
}
