//! `tidewater script`: printing a script to begin from, trying one, and taking scripts over.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};

use tidewater_protocol::RemoteId;
use tidewater_terminal::output::{self, counted, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use super::explain::parameters;
use super::script_import;
use crate::centre::OpenCentre;
use crate::clock::now_ms;
use crate::devices::find_remote;
use tidewater_centre::context::{DEFAULT, VERSION};
use tidewater_centre::engine::scripts::{CONNECTION, EVENTS, ScriptEvent, event, print_script};
use tidewater_centre::records::UserClaims;
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::trying::{ScriptTrial, ScriptsToTry, TriedScript};
use tidewater_centre::{Parameters, PublicationSpec, ScriptSpec, SyncContext, nearest};

/// Print, try or take over scripts
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater script print customer upload_update
  tidewater script try customer upload_insert --row '{\"id\": 7, \"name\": \"Ida\"}'
  tidewater script import sync_setup.sql"))]
pub(crate) struct ScriptArgs {
    #[command(subcommand)]
    command: ScriptCommand,
}

#[derive(Debug, Subcommand)]
enum ScriptCommand {
    Print(PrintArgs),
    Try(Box<TryArgs>),
    Import(ImportArgs),
}

/// Print the statement that is generated at an event, to begin a script from
///
/// The statement does what is done where there is no script. Save it as
/// scripts/VERSION/TABLE/EVENT.sql, and change what is to be different.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater script print customer upload_update
  mkdir -p scripts/default/customer
  tidewater script print customer upload_update > scripts/default/customer/upload_update.sql
  tidewater script print connection begin_upload    # nothing is generated there: what it may name"))]
struct PrintArgs {
    /// The table, or `connection`
    table: String,
    /// The event, as docs/scripts.md lists them
    event: String,
    #[command(flatten)]
    config: ConfigArgs,
    /// The publication, if several have the table
    #[arg(long, value_name = "NAME")]
    publication: Option<String>,
}

/// Try a script with a row, in a transaction that is undone
///
/// Runs the script as it is in the scripts folder, deployed or not, after what stands before it in
/// a sync (begin_connection, begin_synchronization, begin_upload and so on), and tells what each
/// statement did, which tables were changed, and the row before and after. Nothing of it stays.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater script try customer upload_insert --row '{\"id\": 7, \"name\": \"Ida\"}'
  tidewater script try customer upload_update --user anna \\
      --old '{\"id\": 7, \"name\": \"Ida\"}' --row '{\"id\": 7, \"name\": \"Ida B.\"}'
  tidewater script try customer download_cursor --user anna
  tidewater script try connection begin_synchronization --user anna --json

The object of --json:
  {\"before\":[scripts that ran before it],
   \"statements\":[{\"sql\",\"rows\":n|null,\"first\":row|null,\"set\":[[name,value]]}],
   \"refused\":reason|null,\"changed\":[{\"table\",\"inserted\",\"updated\",\"deleted\"}],
   \"row_before\":row|null,\"row_after\":row|null}
rows of a query are those that it yields. With a refusal the exit code is 6."))]
struct TryArgs {
    /// The table, or `connection`
    table: String,
    /// The event, as docs/scripts.md lists them
    event: String,
    /// The row as a device wants it, a JSON object
    #[arg(long, value_name = "JSON")]
    row: Option<String>,
    /// The row as it was, a JSON object; columns that --row does not have are as they were
    #[arg(long, value_name = "JSON")]
    old: Option<String>,
    /// For this user
    #[arg(long, value_name = "NAME", default_value = "nobody")]
    user: String,
    /// For this remote: its id, or the name of its device, as `tidewater remote list` shows them
    #[arg(long, value_name = "REMOTE")]
    remote: Option<String>,
    /// What the remote has set
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// The script version
    #[arg(long = "script-version", value_name = "NAME", default_value = DEFAULT)]
    script_version: String,
    #[command(flatten)]
    config: ConfigArgs,
    /// The publication, if several have the table
    #[arg(long, value_name = "NAME")]
    publication: Option<String>,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

/// Take scripts over that were written for another synchronization server
///
/// Reads files of SQL in which ml_add_table_script and ml_add_connection_script register scripts,
/// and writes each script to VERSION/TABLE/EVENT.sql. Every other statement of the files is left
/// to you. `tidewater check` tells then what means something else here.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater script import sync_setup.sql
  tidewater script import sync_setup.sql --into scripts --force
  tidewater check"))]
struct ImportArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The folder of scripts
    #[arg(long, value_name = "FOLDER", default_value = "scripts")]
    into: PathBuf,
    /// Write over scripts that are there
    #[arg(long)]
    force: bool,
    /// Print one JSON object: {"written":[paths],"columns":[{"version","table","columns"}],
    /// "left":[{"file","line","what"}]}
    #[arg(long)]
    json: bool,
}

impl ScriptArgs {
    /// Whether the result is to be one JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.command {
            ScriptCommand::Print(_) => false,
            ScriptCommand::Try(args) => args.json,
            ScriptCommand::Import(args) => args.json,
        }
    }
}

pub(crate) fn run(args: &ScriptArgs) -> Result<CommandOutcome, Failure> {
    match &args.command {
        ScriptCommand::Print(args) => print(args),
        ScriptCommand::Try(args) => try_script(args),
        ScriptCommand::Import(args) => {
            script_import::run(&args.files, &args.into, args.force, args.json)
        }
    }
}

/// The event of that name, at which there can be a script of the table or of the connection.
fn find_event(name: &str, table: &str) -> Result<&'static ScriptEvent, Failure> {
    let Some(event) = event(name) else {
        let near = nearest(name, EVENTS.iter().map(|it| it.name));
        let hint = match near {
            Some(near) => format!("did you mean {near}?"),
            None => "docs/scripts.md lists the events".to_owned(),
        };
        return Err(Failure::usage(format!("there is no event {name:?}"), hint));
    };
    match (table == CONNECTION, event.of_connection, event.of_table) {
        (true, false, _) => Err(Failure::usage(
            format!("{name} is an event of tables"),
            "name the table in place of connection",
        )),
        (false, _, false) => Err(Failure::usage(
            format!("{name} is an event of the connection"),
            format!("write: connection {name}"),
        )),
        _ => Ok(event),
    }
}

/// The publication that has a table.
fn find_publication<'p>(
    publications: &'p [PublicationSpec],
    named: Option<&str>,
    table: &str,
) -> Result<&'p PublicationSpec, Failure> {
    // Remotes have tables without their schema.
    let has = |it: &&PublicationSpec| {
        let mut tables = it.tables.iter();
        table == CONNECTION || tables.any(|it| it.name.rsplit('.').next() == Some(table))
    };
    if let Some(named) = named {
        let found = publications.iter().find(|it| it.name == named);
        return found.ok_or_else(|| {
            let names: Vec<&str> = publications.iter().map(|it| &*it.name).collect();
            let hint = format!("there are: {}", names.join(", "));
            Failure::usage(format!("there is no publication {named:?}"), hint)
        });
    }
    publications.iter().find(has).ok_or_else(|| {
        let tables = publications.iter().flat_map(|it| &it.tables);
        let names: Vec<&str> = tables.map(|it| &*it.name).collect();
        Failure::usage(
            format!("no publication has a table {table:?}"),
            format!("published are: {}", names.join(", ")),
        )
    })
}

fn place(to_try: &ScriptsToTry, table: &str) -> Result<Option<usize>, Failure> {
    if table == CONNECTION {
        return Ok(None);
    }
    let place = to_try.tables.iter().position(|it| it.name == table);
    place.map(Some).ok_or_else(|| {
        let message = format!(
            "the publication {:?} has no table {table:?}",
            to_try.publication
        );
        Failure::usage(message, "name another with --publication")
    })
}

fn print(args: &PrintArgs) -> Result<CommandOutcome, Failure> {
    let event = find_event(&args.event, &args.table)?;
    let centre = OpenCentre::open(&args.config)?;
    let publications = centre.publications();
    let spec = find_publication(publications, args.publication.as_deref(), &args.table)?;
    // Scripts that are not right yet do not keep anybody from beginning one, nor do the parameters
    // that only they name.
    let spec = PublicationSpec {
        scripts: Vec::new(),
        parameters: Vec::new(),
        ..spec.clone()
    };
    let to_try = centre.scripts_to_try(&spec, DEFAULT)?;
    let statement = match place(&to_try, &args.table)? {
        None => String::new(),
        Some(place) => print_script(
            &to_try.tables[place],
            &to_try.sql_names[place],
            event.form,
            event.name,
        ),
    };
    if statement.is_empty() {
        let known: Vec<String> = event
            .named()
            .iter()
            .map(|it| format!("{{s.{it}}}"))
            .collect();
        output::text(&format!(
            "-- Nothing is generated at {}, which is run {}.\n-- It can name {}.\n",
            event.name,
            event.when,
            known.join(", ")
        ))?;
    } else {
        output::text(&statement)?;
    }
    Ok(CommandOutcome::Complete)
}

fn try_script(args: &TryArgs) -> Result<CommandOutcome, Failure> {
    let event = find_event(&args.event, &args.table)?;
    let centre = OpenCentre::open(&args.config)?;
    let publications = centre.publications();
    let spec = find_publication(publications, args.publication.as_deref(), &args.table)?;
    let to_try = centre.scripts_to_try(spec, &args.script_version)?;
    has_script(spec, event.name, args)?;
    let mut set = parameters(&args.parameters)?;
    if args.script_version != DEFAULT {
        set.insert(VERSION.to_owned(), args.script_version.clone());
    }
    let trial = ScriptTrial {
        table: place(&to_try, &args.table)?,
        event: event.name,
        context: SyncContext {
            user: args.user.clone(),
            remote_id: match &args.remote {
                None => RemoteId([0; 16]),
                Some(remote) => find_remote(&centre, remote)?,
            },
            now_ms: now_ms(),
            parameters: Arc::new(Parameters::from([(spec.name.clone(), set)])),
            claims: UserClaims::default(),
            scripts: ScriptNotes::default(),
            given: None,
        },
        row: args.row.clone(),
        old: args.old.clone(),
        scripts: to_try,
    };
    let tried = centre.try_script(trial)?;
    match args.json {
        true => output::json(&tried)?,
        false => output::text(&describe(&tried))?,
    }
    Ok(match tried.refused {
        None => CommandOutcome::Complete,
        Some(_) => CommandOutcome::WithRefusedRows,
    })
}

/// Refuses to try a script that only other versions have.
fn has_script(spec: &PublicationSpec, event: &str, args: &TryArgs) -> Result<(), Failure> {
    let of_table = |it: &&ScriptSpec| it.table.as_deref().unwrap_or(CONNECTION) == args.table;
    let scripts = spec.scripts.iter().filter(of_table);
    // Other servers have longer names for some events.
    let mut own = scripts
        .clone()
        .filter(|it| it.version == args.script_version);
    if own.any(|it| it.event.contains(event)) {
        return Ok(());
    }
    let others = scripts.filter(|it| it.event == event);
    let mut versions: Vec<&str> = others.map(|it| &*it.version).collect();
    versions.sort_unstable();
    match versions.first() {
        None => Ok(()),
        Some(first) => Err(Failure::usage(
            format!(
                "the script version {:?} has no script of {} at {event}",
                args.script_version, args.table
            ),
            format!(
                "there is one in: {}; add --script-version {first}",
                versions.join(", ")
            ),
        )),
    }
}

fn describe(tried: &TriedScript) -> String {
    let mut text = String::new();
    if !tried.before.is_empty() {
        let _ = writeln!(text, "before it: {}", printable(&tried.before.join(", ")));
    }
    for (number, statement) in tried.statements.iter().enumerate() {
        let sql: Vec<&str> = statement.sql.split_whitespace().collect();
        let _ = writeln!(
            text,
            "statement {}: {}",
            number + 1,
            printable(&sql.join(" "))
        );
        if let Some(rows) = statement.rows {
            let _ = writeln!(text, "  {}", counted(rows, "row", "rows"));
        }
        if let Some(first) = &statement.first {
            let _ = writeln!(text, "  the first: {}", printable(first));
        }
        for (name, value) in &statement.set {
            let _ = writeln!(text, "  sets {{{name}}} to {}", printable(value));
        }
    }
    if let Some(reason) = &tried.refused {
        let _ = writeln!(text, "refused: {}", printable(reason));
    }
    for table in &tried.changed {
        let _ = writeln!(
            text,
            "{}: {} inserted, {} updated, {} deleted",
            printable(&table.table),
            table.inserted,
            table.updated,
            table.deleted
        );
    }
    for (when, row) in [("before", &tried.row_before), ("after", &tried.row_after)] {
        if tried.row_before.is_some() || tried.row_after.is_some() {
            let row = row.as_deref().unwrap_or("none");
            let _ = writeln!(text, "the row {when}: {}", printable(row));
        }
    }
    let _ = writeln!(text, "nothing of it stays: the transaction was undone");
    text
}
