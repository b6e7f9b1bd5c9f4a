//! `tidewater unsubscribe`: a remote lets go of a publication.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tidewater_client::{LeftTable, Remote};
use tidewater_terminal::{
    CommandOutcome, Failure, Interrupt, ProgressLine, output, with_exit_codes,
};

use super::network::NetworkArgs;
use super::sync;
use crate::proof::ProofArgs;
use crate::remote_file;

/// End a subscription: the publication's tables leave the remote's file
///
/// If anything of it is pending, a sync takes that up first; without the server nothing is
/// changed then, unless --discard-pending gives it up. With the tables go the indexes and
/// triggers that you made on them. What was refused stays listed by `tidewater refused list`,
/// with its values. The centre keeps its rows; subscribing again is a first download.
/// Where a sync has found that the server has no such publication any more, what is pending is
/// listed as refused, too.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater unsubscribe nancy.db project7
  tidewater unsubscribe nancy.db project7 --discard-pending

The object of --json:
  {\"publication\",\"tables\":[{\"table\",\"rows\":n,\"discarded\":n,\"refused\":n}]}"))]
pub(crate) struct UnsubscribeArgs {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// The publication
    #[arg(value_name = "PUBLICATION")]
    publication: String,
    /// Give up what is pending, and do without the server
    #[arg(long)]
    discard_pending: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    proof: ProofArgs,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &UnsubscribeArgs) -> Result<CommandOutcome, Failure> {
    remote_file::require(&args.remote)?;
    let given = args.proof.given()?;
    let mut remote = Remote::open(&args.remote)?;
    remote.set_insecure(args.network.insecure);
    remote.set_proxy(args.network.proxy.clone());
    remote.set_client(concat!("tidewater/", env!("CARGO_PKG_VERSION")));
    let interrupt = Interrupt::listen()?;
    let left = sync::signed_in(&mut remote, &args.proof, given, |remote| {
        let line = ProgressLine::new(!args.quiet);
        remote.unsubscribe(&args.publication, args.discard_pending, &mut |progress| {
            line.show(progress);
            match interrupt.is_raised() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    })?;
    if args.json {
        output::json(&UnsubscribeObject::of(&args.publication, &left))?;
    } else {
        output::text(&describe(&args.publication, &left))?;
    }
    Ok(CommandOutcome::Complete)
}

/// The object of `--json`.
#[derive(Serialize)]
struct UnsubscribeObject<'a> {
    publication: &'a str,
    tables: Vec<TableObject<'a>>,
}

#[derive(Serialize)]
struct TableObject<'a> {
    table: &'a str,
    rows: u64,
    discarded: u64,
    refused: u64,
}

impl UnsubscribeObject<'_> {
    fn of<'a>(publication: &'a str, left: &'a [LeftTable]) -> UnsubscribeObject<'a> {
        let tables = left.iter().map(|it| TableObject {
            table: &it.table,
            rows: it.rows,
            discarded: it.discarded,
            refused: it.refused,
        });
        UnsubscribeObject {
            publication,
            tables: tables.collect(),
        }
    }
}

/// What left, for people.
fn describe(publication: &str, left: &[LeftTable]) -> String {
    let mut text = format!("unsubscribed from {}\n", output::printable(publication));
    for table in left {
        let rows = output::counted(table.rows, "row", "rows");
        let _ = write!(text, "  {}  {rows}", output::printable(&table.table));
        if table.discarded > 0 {
            let changes = output::counted(table.discarded, "pending change", "pending changes");
            let _ = write!(text, ", {changes} discarded");
        }
        if table.refused > 0 {
            let changes = output::counted(table.refused, "pending change", "pending changes");
            let _ = write!(text, ", {changes} among the refused rows now");
        }
        text.push('\n');
    }
    text
}
