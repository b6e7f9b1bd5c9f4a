//! `tidewater init`: a first configuration, made from the tables that are there.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use tidewater_centre::ListedTable;
use tidewater_server::Config;
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

use crate::centre::OpenCentre;
use crate::init_document::{self, Draft};
use crate::init_people::People;
use crate::init_statements::{self, Proposal, sql_comment};

/// Write a commented tidewater.toml from the tables of a database
///
/// Looks for the table of those who sign in (employee, staff, rep and the like), and proposes which
/// rows a user holds: those that name him, what refers to them, and all of the tables that lead to
/// nobody. A table of which nothing can be told is marked TODO. Proposes numbers for keys, and what
/// the centre has to fill.
///
/// Only reads from the database, unless you say --map-users. Statements that the database needs are
/// printed on standard output, and stand in the file as comments.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater init --consolidated postgres://me@127.0.0.1:5432/shop
  tidewater init --consolidated sqlite:shop.db --publication sales --table customer --table invoice
  tidewater init --consolidated 'postgres://me:${DB_PASSWORD}@db.example.com/shop'
                 # the password stays out of the file
  tidewater init --consolidated sqlite:shop.db --map-users > more.sql
                 # makes the table of sign-in names; the other statements are in more.sql"))]
pub(crate) struct InitArgs {
    /// The database: postgres://user:password@host:port/database or sqlite:path
    ///
    /// ${NAME} stands for an environment variable and is written to the file as it is.
    /// In user and password, characters that a URL needs for itself are written as %XX: @
    /// is %40, / is %2F. PGPASSWORD and .pgpass are not read.
    #[arg(long, value_name = "URL")]
    consolidated: String,
    /// The name of the publication, which remotes subscribe to
    #[arg(long, value_name = "NAME", default_value = "main")]
    publication: String,
    /// Only this table; repeatable [default: all tables]
    #[arg(long = "table", value_name = "TABLE")]
    tables: Vec<String>,
    /// The table of those who sign in [default: the one that is called like people]
    #[arg(long, value_name = "TABLE")]
    people: Option<String>,
    /// If no column has the sign-in names of people, make a table in the database that has, and fill
    /// it: a name for each person, made of the person's own
    #[arg(long)]
    map_users: bool,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "tidewater.toml")]
    output: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &InitArgs) -> Result<CommandOutcome, Failure> {
    if args.publication.is_empty() || args.publication.contains(',') {
        return Err(Failure::usage(
            format!("{:?} cannot be a publication's name", args.publication),
            "a name is not empty and has no comma",
        ));
    }
    if !args.force && args.output.exists() {
        return Err(in_the_way(&args.output));
    }
    let centre = OpenCentre::connect(&expanded(&args.consolidated)?)?;
    let live = centre.tables()?;
    let people = people(&live, args)?;
    let tables = chosen(&live, &args.tables)?;
    let consolidated = as_the_file_says(&args.consolidated, &args.output)?;
    let drafted = init_document::write(&Draft {
        consolidated: &consolidated,
        publication: &args.publication,
        tables: &tables,
        people: people.as_ref(),
    });
    if drafted.published == 0 {
        return Err(nothing_to_publish(&drafted.left_out));
    }
    let missing = people.as_ref().and_then(init_statements::sign_in_names);
    if let (true, Some(names)) = (args.map_users, &missing) {
        centre.run_statements(&names.sql)?;
    }
    write(&args.output, &drafted.text, args.force)?;
    let path = args.output.display();
    output::note(&format!(
        "{path}: {}, {} to decide on{}",
        output::counted(drafted.published as u64, "table", "tables"),
        drafted.undecided,
        match drafted.undecided {
            0 => "",
            _ => "; look for TODO",
        }
    ));
    for (name, reason) in &drafted.left_out {
        let line = format!("left out: {name}: {reason}");
        output::note(&output::printable(&line));
    }
    for warning in &drafted.warnings {
        let line = format!("warning: {warning}");
        output::note(&output::printable(&line));
    }
    let is_made = args.map_users.then_some(missing.as_ref()).flatten();
    let to_run = drafted.proposals.iter().filter(|it| Some(*it) != is_made);
    let to_run: Vec<&Proposal> = to_run.collect();
    output::text(&script(&to_run, is_made, people.as_ref()))?;
    if is_made.is_some_and(|it| it.why.contains(init_statements::NAMELESS)) {
        output::note(init_statements::NAMELESS);
    }
    if missing.is_some() && is_made.is_none() {
        output::note(
            "nobody has a sign-in name yet: the first statement makes a table of them, as init \
             does by itself with --map-users",
        );
    }
    if !to_run.is_empty() {
        output::note("run the statements in the database; they stand in the file as well");
    }
    output::note(&format!(
        "next: read {path}, and edit it if need be; then tidewater deploy -c {path}"
    ));
    Ok(CommandOutcome::Complete)
}

/// The table of those who sign in, if there is one.
fn people<'a>(live: &'a [ListedTable], args: &InitArgs) -> Result<Option<People<'a>>, Failure> {
    let named = match &args.people {
        None => None,
        Some(name) => Some(name_of(live, name)?),
    };
    let people = People::find(live, named.as_deref());
    match (&people, &args.people) {
        (None, Some(name)) => Err(Failure::usage(
            format!("{name:?} cannot be the table of those who sign in: its key is not one column"),
            "name a table whose primary key is one column",
        )),
        (None, None) if args.map_users => Err(Failure::usage(
            "no table seems to be one of people who sign in",
            "name it with --people TABLE",
        )),
        _ => Ok(people),
    }
}

/// What the database needs, as a script.
fn script(to_run: &[&Proposal], made: Option<&Proposal>, people: Option<&People<'_>>) -> String {
    let mut text = String::new();
    if let Some(Proposal { sql, .. }) = made {
        text.push_str("-- done:\n");
        text.push_str(&sql_comment(sql));
    }
    for Proposal { why, sql } in to_run {
        text.push_str(&sql_comment(why));
        text.push_str(sql);
        text.push('\n');
    }
    if let Some(people) = people {
        text.push_str("-- the sign-in names, for tidewater user add NAME:\n");
        text.push_str(&init_statements::names_query(people));
        text.push('\n');
    }
    text
}

/// The URL as the server will read it from the file.
fn expanded(url: &str) -> Result<String, Failure> {
    let server = toml::Table::from_iter([("consolidated".to_owned(), url.into())]);
    let document = toml::Table::from_iter([("server".to_owned(), toml::Value::Table(server))]);
    Ok(Config::parse(&document.to_string())?.server.consolidated)
}

/// The URL for the file. There a relative path starts at the file's folder, on the command
/// line where the program runs.
fn as_the_file_says(url: &str, file: &Path) -> Result<String, Failure> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let Some(path) = url.strip_prefix("sqlite:") else {
        return Ok(url.to_owned());
    };
    let text = path.strip_prefix("//").unwrap_or(path);
    let path = Path::new(text);
    let is_here = folder.as_os_str().is_empty() || folder == Path::new(".");
    // A variable may well hold an absolute path.
    if is_here || path.is_absolute() || text.starts_with("${") {
        return Ok(url.to_owned());
    }
    let absolute =
        std::path::absolute(path).map_err(|error| Failure::file("find", path, &error))?;
    let absolute = absolute.to_str().ok_or_else(|| {
        Failure::usage(
            format!("the path {} is not UTF-8", absolute.display()),
            "write the file into the database's folder",
        )
    })?;
    Ok(format!("sqlite:{absolute}"))
}

/// The tables that were named, or all. Both the name that goes into the configuration
/// and the bare one will do.
fn chosen(live: &[ListedTable], names: &[String]) -> Result<Vec<ListedTable>, Failure> {
    if names.is_empty() {
        return Ok(live.to_vec());
    }
    let wanted = names.iter().map(|name| name_of(live, name));
    let wanted: HashSet<String> = wanted.collect::<Result<_, _>>()?;
    let tables = live.iter().filter(|table| wanted.contains(&table.name));
    Ok(tables.cloned().collect())
}

/// The full name of the table that is meant.
fn name_of(live: &[ListedTable], name: &str) -> Result<String, Failure> {
    if live.iter().any(|table| table.name == name) {
        return Ok(name.to_owned());
    }
    let is_meant = |table: &&ListedTable| {
        let is_bare = table.name.rsplit('.').next() == Some(name);
        let is_qualified = name.rsplit('.').next() == Some(&table.name);
        is_bare || is_qualified
    };
    let meant: Vec<&str> = live
        .iter()
        .filter(is_meant)
        .map(|it| it.name.as_str())
        .collect();
    match meant[..] {
        [table] => Ok(table.to_owned()),
        [] => {
            let all: Vec<&str> = live.iter().map(|it| it.name.as_str()).collect();
            Err(Failure::usage(
                format!("the database has no table {name:?}"),
                format!("it has: {} (a view is no table)", all.join(", ")),
            ))
        }
        _ => Err(Failure::usage(
            format!("several tables could be meant by {name:?}"),
            format!("write one of: {}", meant.join(", ")),
        )),
    }
}

fn nothing_to_publish(left_out: &[(String, String)]) -> Failure {
    let reasons: Vec<String> = left_out
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    if reasons.is_empty() {
        Failure::usage(
            "the database has no tables",
            "create your tables first, or check --consolidated",
        )
    } else {
        Failure::usage("no table can be published", reasons.join("\n"))
    }
}

fn in_the_way(path: &Path) -> Failure {
    Failure::usage(
        format!("{} is there already", path.display()),
        "write to another file with --output FILE, or replace it with --force",
    )
}

/// Writes the file. It may hold the database's password: only its owner may read it.
fn write(path: &Path, text: &str, replace: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if replace {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => in_the_way(path),
            _ => Failure::file("write", path, &error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(names: &[&str]) -> Vec<ListedTable> {
        let table = |name: &&str| ListedTable {
            name: (*name).to_owned(),
            ..ListedTable::default()
        };
        names.iter().map(table).collect()
    }

    fn choose(live_names: &[&str], name: &str) -> Result<Vec<String>, Failure> {
        let tables = chosen(&live(live_names), &[name.to_owned()])?;
        Ok(tables.into_iter().map(|it| it.name).collect())
    }

    #[test]
    fn a_table_may_be_named_with_or_without_its_schema() {
        assert_eq!(choose(&["a", "s.b"], "b").unwrap(), ["s.b"]);
        assert_eq!(choose(&["a", "s.b"], "public.a").unwrap(), ["a"]);
        assert_eq!(choose(&["b", "s.b"], "b").unwrap(), ["b"]);
        let several = choose(&["r.b", "s.b"], "b").unwrap_err();
        assert_eq!(several.hint, "write one of: r.b, s.b");
        let unknown = choose(&["a", "s.b"], "c").unwrap_err();
        assert_eq!(unknown.hint, "it has: a, s.b (a view is no table)");
    }

    #[test]
    fn the_url_of_the_file_is_the_url_that_is_connected_to() {
        let url = "postgres://u:a\"b\\c@h/d";
        assert_eq!(expanded(url).unwrap(), url);
        assert!(expanded("postgres://${TIDEWATER_TEST_UNSET}@h/d").is_err());
    }

    #[test]
    fn a_relative_path_in_a_file_elsewhere_becomes_absolute() {
        let written = |url: &str, file: &str| as_the_file_says(url, Path::new(file)).unwrap();
        for file in ["t.toml", "./t.toml"] {
            assert_eq!(written("sqlite:shop.db", file), "sqlite:shop.db");
        }
        let absolute = written("sqlite:shop.db", "conf/t.toml");
        let path = Path::new(absolute.strip_prefix("sqlite:").unwrap());
        assert!(path.is_absolute() && path.ends_with("shop.db"), "{path:?}");
        for url in ["sqlite:/srv/shop.db", "sqlite:${SHOP}", "postgres://h/d"] {
            assert_eq!(written(url, "conf/t.toml"), url);
        }
    }
}
