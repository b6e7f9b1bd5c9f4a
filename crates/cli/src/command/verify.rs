//! `tidewater verify`: whether a remote's file is equal to the centre.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tidewater_client::{Remote, TableDifferences, Verification};
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, Failure, Interrupt, ProgressLine, with_exit_codes};

use super::network::NetworkArgs;
use super::sync;
use crate::kept::{JsonText, embedded};
use crate::proof::ProofArgs;
use crate::remote_file;
use crate::sync_object::SyncObject;

/// Compare a remote's file with the centre, and repair it if asked to
///
/// Syncs first, then compares every synced table with what the centre would send, by
/// checksums: equal tables cost a few kilobytes, however large they are. Rows with changes
/// that are pending or refused are left out: they differ because you say so. So are tables of
/// which scripts tell what is new (`download_cursor`): nobody but these knows all their rows.
/// Each such table is named as not compared.
///
/// With --repair the centre's rows take the place of what differs, and synced tables and
/// columns that were dropped are made again and filled. Nothing else is lost: a table that
/// cannot be completed is set aside as TABLE_unsynced_1, and what was pending in it is listed
/// by `tidewater refused list`. A file that began from an image which the server refuses goes by
/// the compare instead, and what was written into it goes up.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater verify nancy.db
  tidewater verify nancy.db --repair
  tidewater verify nancy.db --json | jq .is_equal

Here, 5 also means: something differs, and was not repaired.

The object of --json:
  {\"is_equal\":bool,\"repaired\":bool,\"rebuilt\":[tables that were made again],
   \"tables\":[{\"table\",\"keyless\":n,\"equal\":n,\"missing\":n,\"extra\":n,\"different\":n,
             \"uncompared\":null|\"script\"|\"handler\"|\"unknown\",
             \"rows\":[{\"key\",\"what\":\"missing\"|\"extra\"|\"different\"}, the first 100]}],
   \"kept\":[{\"table\",\"key\",\"reason\"}, of the rows that differ still],
   \"sync\":{see tidewater sync --help}}
`tables` tells what was found before the repair; `is_equal` how it ended. `uncompared` says why
a table was not compared: scripts tell what is new in it, or its handler has not told everything.
All its figures are 0 then, and `is_equal` says nothing of it."))]
pub(crate) struct VerifyArgs {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: PathBuf,
    /// Take the centre's rows where something differs
    #[arg(long)]
    repair: bool,
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

pub(crate) fn run(args: &VerifyArgs) -> Result<CommandOutcome, Failure> {
    remote_file::require(&args.remote)?;
    let given = args.proof.given()?;
    let mut remote = Remote::open(&args.remote)?;
    remote.set_insecure(args.network.insecure);
    remote.set_proxy(args.network.proxy.clone());
    remote.set_client(concat!("tidewater/", env!("CARGO_PKG_VERSION")));
    let interrupt = Interrupt::listen()?;
    let verification = sync::signed_in(&mut remote, &args.proof, given, |remote| {
        let line = ProgressLine::new(!args.quiet);
        remote.verify(args.repair, &mut |progress| {
            line.show(progress);
            match interrupt.is_raised() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    })?;
    let refused_before = sync::refused_before(&mut remote, &verification.sync)?;
    if args.json {
        output::json(&VerifyObject::new(&verification, refused_before))?;
    } else {
        output::text(&describe(&verification))?;
    }
    tell_rows(&verification);
    let refused = refused_before + verification.sync.refused;
    if refused > 0 {
        output::note(&format!(
            "{} refused, and compared without what was refused; see: tidewater refused list {}",
            output::counted(refused, "row", "rows"),
            args.remote.display()
        ));
    }
    if verification.is_equal {
        return Ok(CommandOutcome::Complete);
    }
    output::note(&advice(args.repair, &verification, &args.remote));
    Ok(CommandOutcome::WithDifferences)
}

/// The object of `--json`.
#[derive(Serialize)]
struct VerifyObject<'a> {
    is_equal: bool,
    repaired: bool,
    rebuilt: &'a [String],
    tables: Vec<TableObject<'a>>,
    kept: Vec<KeptObject<'a>>,
    sync: SyncObject<'a>,
}

#[derive(Serialize)]
struct KeptObject<'a> {
    table: &'a str,
    key: JsonText,
    reason: &'a str,
}

#[derive(Serialize)]
struct TableObject<'a> {
    table: &'a str,
    keyless: u64,
    equal: u64,
    missing: u64,
    extra: u64,
    different: u64,
    uncompared: Option<&'static str>,
    rows: Vec<RowObject>,
}

#[derive(Serialize)]
struct RowObject {
    key: JsonText,
    what: &'static str,
}

impl VerifyObject<'_> {
    fn new(verification: &Verification, refused_before: u64) -> VerifyObject<'_> {
        let tables = verification.tables.iter().map(|table| TableObject {
            table: &table.table,
            keyless: table.keyless,
            equal: table.equal,
            missing: table.missing,
            extra: table.extra,
            different: table.different,
            uncompared: table.uncompared,
            rows: table
                .rows
                .iter()
                .map(|row| RowObject {
                    key: embedded(&row.key),
                    what: row.what,
                })
                .collect(),
        });
        let kept = verification.kept.iter().map(|row| KeptObject {
            table: &row.table,
            key: embedded(&row.key),
            reason: &row.reason,
        });
        VerifyObject {
            is_equal: verification.is_equal,
            repaired: verification.repaired,
            rebuilt: &verification.rebuilt,
            tables: tables.collect(),
            kept: kept.collect(),
            sync: SyncObject::new(&verification.sync, refused_before),
        }
    }
}

/// What was found, for people.
fn describe(verification: &Verification) -> String {
    let mut text = String::new();
    for table in &verification.rebuilt {
        text.push_str(&format!("made again: {}\n", output::printable(table)));
    }
    let mut found = TextTable::new(&["table", ">equal", ">missing", ">extra", ">different"]);
    for table in &verification.tables {
        let figures = [table.equal, table.missing, table.extra, table.different];
        let figures = figures.map(|it| match table.uncompared {
            Some(_) => "-".to_owned(),
            None => it.to_string(),
        });
        found.row(std::iter::once(table.table.clone()).chain(figures));
    }
    text.push_str(&found.render(0));
    let is_partial = verification.tables.iter().any(|it| it.uncompared.is_some());
    text.push_str(match (verification.is_equal, verification.repaired) {
        (true, false) if is_partial => "equal to the centre, but for what was not compared\n",
        (true, true) if is_partial => {
            "repaired: equal to the centre now, but for what was not compared\n"
        }
        (true, false) => "equal to the centre\n",
        (true, true) => "repaired: equal to the centre now\n",
        (false, _) => "not equal to the centre\n",
    });
    text
}

/// Lists the rows that differ, on standard error like what a sync has to warn of.
fn tell_rows(verification: &Verification) {
    let mut rows = TextTable::new(&["differs in", "key", "how"]);
    for table in &verification.tables {
        for row in &table.rows {
            let how = match row.what {
                "missing" => "missing here",
                "extra" => "only here",
                _ => "other values",
            };
            rows.row([table.table.clone(), row.key.clone(), how.to_owned()]);
        }
        let all = table.missing + table.extra + table.different;
        let more = all.saturating_sub(table.rows.len() as u64);
        if more > 0 {
            rows.row([
                table.table.clone(),
                format!("and {more} more"),
                String::new(),
            ]);
        }
    }
    if !rows.is_empty() {
        output::note(rows.render(0).trim_end());
    }
    for table in &verification.tables {
        let because = match table.uncompared {
            None => continue,
            Some("script") => "scripts tell what is new in it, and only they know all its rows",
            Some("handler") => "its handler has not told all its rows",
            Some(_) => "the server does not compare it",
        };
        output::note(&format!(
            "{} was not compared: {because}",
            output::printable(&table.table)
        ));
    }
    for table in verification.tables.iter().filter(|it| it.keyless > 0) {
        output::note(&format!(
            "{} of {} in the centre can be on no device: a column of the primary key is NULL",
            output::counted(table.keyless, "row", "rows"),
            output::printable(&table.table)
        ));
    }
    let mut kept = TextTable::new(&["stays in", "key", "because"]);
    for row in &verification.kept {
        kept.row([row.table.clone(), row.key.clone(), row.reason.clone()]);
    }
    if !kept.is_empty() {
        output::note(kept.render(0).trim_end());
    }
}

fn advice(repair: bool, verification: &Verification, remote: &Path) -> String {
    let path = remote.display();
    let mut tables = verification.tables.iter();
    let has_keyless = tables.clone().any(|it| it.keyless > 0);
    let is_repaired = verification.repaired && verification.kept.is_empty();
    if has_keyless && (is_repaired || tables.all(TableDifferences::is_equal)) {
        return "the centre's operator can give these rows keys: tidewater status names their tables"
            .to_owned();
    }
    match repair {
        true if !verification.kept.is_empty() => format!(
            "what keeps rows as they are is told above: a change that has not gone up goes with a \
             sync, one that is refused waits for you (tidewater refused list {path}), and a rule of \
             the file's own is yours to change; then repair again"
        ),
        false => format!("to take the centre's rows: tidewater verify {path} --repair"),
        true => "something of the file's own (a unique index, a trigger) keeps rows from being \
                 written; see what it forbids, then repair again"
            .to_owned(),
    }
}
