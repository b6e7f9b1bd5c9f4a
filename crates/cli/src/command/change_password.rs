//! `tidewater change-password`: a user gives himself another password.

use clap::Args;
use tidewater_client::LinkProof;
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

use super::program::ProgramArgs;
use crate::password::PasswordArgs;

/// Change the password that you sign in with
///
/// Asks for the password so far and, twice, for the new one. The environment variables
/// TIDEWATER_PASSWORD and TIDEWATER_NEW_PASSWORD may hold them instead. Files that have signed in
/// go on syncing: each has a credential of its own. An operator sets a password that was
/// forgotten: tidewater user set-password.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater change-password --server tls://sync.example.com --user nancy"))]
pub(crate) struct ChangePasswordArgs {
    #[command(flatten)]
    program: ProgramArgs,
}

pub(crate) fn run(args: &ChangePasswordArgs) -> Result<CommandOutcome, Failure> {
    let mut options = args.program.options()?;
    let LinkProof::Password(password) = options.proof else {
        return Err(Failure::usage(
            "only somebody who signs in with a password has one to change",
            "leave out --token-file, --certificate and TIDEWATER_TOKEN",
        ));
    };
    let prompt = format!("New password of {}: ", output::printable(&options.user));
    options.proof = LinkProof::PasswordChange {
        password,
        new_password: PasswordArgs::obtain_next(&prompt)?,
    };
    drop(args.program.connect(&options)?);
    output::text(&format!(
        "password of {} changed\n",
        output::printable(&options.user)
    ))?;
    Ok(CommandOutcome::Complete)
}
