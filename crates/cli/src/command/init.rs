//! `tidewater init`: a first configuration, made from the tables that are there.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use tidewater_centre::ListedTable;
use tidewater_server::Config;

use crate::Done;
use crate::args::with_exit_codes;
use crate::centre::OpenCentre;
use crate::failure::Failure;
use crate::init_document::{self, Draft};
use crate::output;

/// Write a commented tidewater.toml from the tables of a database
///
/// Only reads from the database. In the file each table waits for one decision of yours:
/// which of its rows a remote holds.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater init --consolidated postgres://me@127.0.0.1:5432/shop
  tidewater init --consolidated sqlite:shop.db --publication sales --table customer --table invoice
  tidewater init --consolidated 'postgres://me:${DB_PASSWORD}@db.example.com/shop'
                 # the password stays out of the file"))]
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
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "tidewater.toml")]
    output: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &InitArgs) -> Result<Done, Failure> {
    if args.publication.is_empty() || args.publication.contains(',') {
        return Err(Failure::usage(
            format!("{:?} cannot be a publication's name", args.publication),
            "a name is not empty and has no comma",
        ));
    }
    if !args.force && args.output.exists() {
        return Err(in_the_way(&args.output));
    }
    let live = OpenCentre::connect(&expanded(&args.consolidated)?)?.tables()?;
    let tables = chosen(live, &args.tables)?;
    let consolidated = as_the_file_says(&args.consolidated, &args.output)?;
    let drafted = init_document::write(&Draft {
        consolidated: &consolidated,
        publication: &args.publication,
        tables: &tables,
    });
    if drafted.published == 0 {
        return Err(nothing_to_publish(&drafted.left_out));
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
    output::note(&format!(
        "next: edit {path}, then tidewater deploy -c {path}"
    ));
    Ok(Done::Fully)
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
fn chosen(live: Vec<ListedTable>, names: &[String]) -> Result<Vec<ListedTable>, Failure> {
    if names.is_empty() {
        return Ok(live);
    }
    let mut wanted = HashSet::new();
    for name in names {
        let matches = |table: &&ListedTable| table.name == *name;
        let bare = |table: &&ListedTable| table.name.rsplit('.').next() == Some(name);
        let qualified = |table: &&ListedTable| name.rsplit('.').next() == Some(&table.name);
        let mut found = live.iter().filter(matches).peekable();
        if let Some(table) = found.peek() {
            wanted.insert(table.name.clone());
            continue;
        }
        let near: Vec<&ListedTable> = live.iter().filter(|it| bare(it) || qualified(it)).collect();
        match near[..] {
            [table] => {
                wanted.insert(table.name.clone());
            }
            [] => {
                let all: Vec<&str> = live.iter().map(|it| it.name.as_str()).collect();
                return Err(Failure::usage(
                    format!("the database has no table {name:?}"),
                    format!("it has: {} (a view is no table)", all.join(", ")),
                ));
            }
            _ => {
                let all: Vec<&str> = near.iter().map(|it| it.name.as_str()).collect();
                return Err(Failure::usage(
                    format!("several tables could be meant by {name:?}"),
                    format!("write one of: {}", all.join(", ")),
                ));
            }
        }
    }
    Ok(live
        .into_iter()
        .filter(|table| wanted.contains(&table.name))
        .collect())
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
            columns: Vec::new(),
            primary_key: Vec::new(),
            references: Vec::new(),
            obstacle: None,
        };
        names.iter().map(table).collect()
    }

    fn choose(live_names: &[&str], name: &str) -> Result<Vec<String>, Failure> {
        let tables = chosen(live(live_names), &[name.to_owned()])?;
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
