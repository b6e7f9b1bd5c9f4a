//! `tidewater preview`: what a changed configuration would mean to remotes, before it is deployed.

use std::fmt::Write;

use clap::Args;
use tidewater_centre::preview::{Preview, PreviewRequest, PreviewedTable, SchemaChange};
use tidewater_terminal::output::{self, TextTable, counted, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use super::explain::parameters;
use crate::centre::OpenCentre;
use crate::clock::now_ms;
use crate::devices::find_remote;

/// Tell what a changed configuration would mean to the remotes, before it is deployed
///
/// Compares what each remote holds by what is deployed with what it would hold by the
/// configuration file: how many rows would come and go, table by table, and which tables and
/// columns. Everything is read in one transaction that changes nothing.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater preview                      # a summary, and what changes for each remote
  tidewater preview --rows 5             # with the keys of five rows of each kind
  tidewater preview --remote 0f8fad5b-d9cb-469f-a165-70867728950e
  tidewater preview --json | jq .removed

The object of --json:
  {\"remotes_looked_at\":n,\"added\":n,\"removed\":n,
   \"changes\":[{\"publication\",\"table\",\"column\",\"comes\":bool}],
   \"remotes\":[{\"id\",\"user\",\"tables\":[{\"publication\",\"table\",\"added\":n,\"removed\":n,
              \"added_keys\":[..],\"removed_keys\":[..]}]}],
   \"notes\":[what could not be counted, and why]}
remotes are those for which rows come or go; table and column are null where all of it comes
or goes."))]
pub(crate) struct PreviewArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Of this remote only, as `tidewater remote list` shows it
    #[arg(long, value_name = "ID")]
    remote: Option<String>,
    /// Show the keys of up to so many rows that come, and of as many that go
    #[arg(long, value_name = "N", default_value_t = 0)]
    rows: usize,
    /// What remotes have set, where rules name it: the centre does not keep it
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &PreviewArgs) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    let remote = args.remote.as_deref();
    let asked = PreviewRequest {
        remote_id: remote.map(|it| find_remote(&centre, it)).transpose()?,
        rows: args.rows,
        parameters: parameters(&args.parameters)?,
        now_ms: now_ms(),
    };
    let preview = centre.preview(&asked)?;
    match args.json {
        true => output::json(&preview)?,
        false => output::text(&describe(&preview))?,
    }
    Ok(CommandOutcome::Complete)
}

fn describe(preview: &Preview) -> String {
    let mut text = String::new();
    let looked_at = preview.remotes_looked_at as u64;
    let _ = writeln!(
        text,
        "{} would come and {} would go, on {} of {}",
        counted(preview.added, "row", "rows"),
        counted(preview.removed, "row", "rows"),
        preview.remotes.len(),
        counted(looked_at, "remote", "remotes"),
    );
    for change in &preview.changes {
        let _ = writeln!(text, "{}", printable(&describe_change(change)));
    }
    let mut table = TextTable::new(&["user", "remote", "table", ">comes", ">goes"]);
    for remote in &preview.remotes {
        for of in &remote.tables {
            table.row([
                remote.user.clone(),
                remote.id.clone(),
                of.table.clone(),
                format!("+{}", of.added),
                format!("-{}", of.removed),
            ]);
        }
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(0));
    }
    for remote in &preview.remotes {
        for of in &remote.tables {
            describe_keys(&remote.user, of, &mut text);
        }
    }
    for note in &preview.notes {
        let _ = writeln!(text, "note: {}", printable(note));
    }
    text
}

fn describe_change(change: &SchemaChange) -> String {
    let verb = if change.comes { "comes" } else { "goes" };
    match (&change.table, &change.column) {
        (None, _) => format!("the publication {:?} {verb}", change.publication),
        (Some(table), None) => format!("the table {table} of {:?} {verb}", change.publication),
        (Some(table), Some(column)) => {
            format!(
                "the column {table}.{column} of {:?} {verb}",
                change.publication
            )
        }
    }
}

fn describe_keys(user: &str, table: &PreviewedTable, text: &mut String) {
    for (sign, keys) in [("+", &table.added_keys), ("-", &table.removed_keys)] {
        for key in keys {
            let line = format!("{user}  {sign} {} {key}", table.table);
            let _ = writeln!(text, "{}", printable(&line));
        }
    }
}
