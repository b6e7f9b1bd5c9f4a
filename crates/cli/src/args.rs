//! The command line as a whole. The commands, each with its own arguments, are [`crate::command`]'s.

use clap::{CommandFactory, Parser};
use tidewater_terminal::with_exit_codes;

use crate::command::Command;

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
