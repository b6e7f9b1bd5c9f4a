//! `tidewater completions`: a script that completes the command line in a shell.

use clap::Args;
use clap_complete::Shell;
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

use crate::args::clap_command;

/// Print a script that completes tidewater's command line in a shell
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  source <(tidewater completions bash)
  tidewater completions fish > ~/.config/fish/completions/tidewater.fish"))]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<CommandOutcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut clap_command(), "tidewater", &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(CommandOutcome::Complete)
}
