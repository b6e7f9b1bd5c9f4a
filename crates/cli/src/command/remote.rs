//! `tidewater remote`: the remote databases that have signed in.

use clap::{Args, Subcommand};
use serde::Serialize;
use tidewater_protocol::RemoteId;
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use crate::centre::OpenCentre;
use crate::devices::find_remote;

const HELP: &str = with_exit_codes!(
    "\
Examples:
  tidewater remote list
  tidewater remote revoke 0f8fad5b-d9cb-469f-a165-70867728950e   # the laptop was stolen
  tidewater remote restore 0f8fad5b-d9cb-469f-a165-70867728950e  # it was only mislaid"
);

/// List the remotes that have signed in, keep one out, or let it in again
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RemoteArgs {
    #[command(subcommand)]
    action: RemoteAction,
}

#[derive(Debug, Subcommand)]
enum RemoteAction {
    /// List the remotes
    ///
    /// A remote is listed once it has signed in; one that has not completed a sync since
    /// is marked as never synced.
    #[command(after_help = HELP)]
    List(RemoteListArgs),
    /// Keep a remote out, whoever uses it
    ///
    /// It is not let in from now on, with whatever it presents. Rows that it holds stay on
    /// it, also those that it has not uploaded: see `restore`.
    #[command(after_help = HELP)]
    Revoke(RemoteNameArgs),
    /// Let a revoked remote in again
    ///
    /// It goes on as if nothing had been: what waits in its file is uploaded at its next
    /// sync.
    #[command(after_help = HELP)]
    Restore(RemoteNameArgs),
}

#[derive(Debug, Args)]
struct RemoteListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print {"remotes":[{"id","device_name","user","revoked","created_ms","last_sync_ms"}]}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RemoteNameArgs {
    /// The remote's id, or the name of its device, as `tidewater remote list` shows them
    id: String,
    #[command(flatten)]
    config: ConfigArgs,
}

impl RemoteArgs {
    pub(crate) fn wants_json(&self) -> bool {
        matches!(&self.action, RemoteAction::List(args) if args.json)
    }
}

pub(crate) fn run(args: &RemoteArgs) -> Result<CommandOutcome, Failure> {
    match &args.action {
        RemoteAction::List(args) => list(args),
        RemoteAction::Revoke(args) => change(args, OpenCentre::revoke_remote, "revoked"),
        RemoteAction::Restore(args) => change(args, OpenCentre::restore_remote, "let in again"),
    }
}

fn list(args: &RemoteListArgs) -> Result<CommandOutcome, Failure> {
    let remotes = OpenCentre::open(&args.config)?.remotes()?;
    if args.json {
        let remotes = remotes.iter().map(|remote| ListedRemote {
            id: remote.id.to_string(),
            device_name: &remote.device_name,
            user: &remote.user,
            revoked: remote.revoked,
            created_ms: remote.created_ms,
            last_sync_ms: (remote.last_sync_ms != 0).then_some(remote.last_sync_ms),
        });
        output::json(&ListedRemotes {
            remotes: remotes.collect(),
        })?;
    } else if remotes.is_empty() {
        output::note("no remote has signed in yet");
    } else {
        let mut table = TextTable::new(&[
            "remote",
            "device",
            "user",
            "first seen",
            "last sync",
            "state",
        ]);
        for remote in remotes {
            let state = match (remote.revoked, remote.last_sync_ms) {
                (true, _) => "revoked",
                (false, 0) => "never synced",
                (false, _) => "",
            };
            table.row([
                remote.id.to_string(),
                remote.device_name,
                remote.user,
                output::moment(remote.created_ms),
                output::moment(remote.last_sync_ms),
                state.into(),
            ]);
        }
        output::text(&table.render(0))?;
    }
    Ok(CommandOutcome::Complete)
}

/// Changes what becomes of a remote; `done` says it.
fn change(
    args: &RemoteNameArgs,
    change: impl Fn(&OpenCentre, RemoteId) -> Result<bool, Failure>,
    done: &str,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    let id = find_remote(&centre, &args.id)?;
    if !change(&centre, id)? {
        return Err(Failure::usage(
            format!("there is no remote {id}"),
            "see: tidewater remote list",
        ));
    }
    output::note(&format!("{id} {done}"));
    Ok(CommandOutcome::Complete)
}

#[derive(Serialize)]
struct ListedRemotes<'a> {
    remotes: Vec<ListedRemote<'a>>,
}

#[derive(Serialize)]
struct ListedRemote<'a> {
    id: String,
    device_name: &'a str,
    user: &'a str,
    revoked: bool,
    created_ms: i64,
    last_sync_ms: Option<i64>,
}
