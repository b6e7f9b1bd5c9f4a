//! `tidewater user import`: many users from a CSV file, all of them or none.
//!
//! Owns the file's format, its errors by line, and the pool that hashes passwords.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use csv::{ReaderBuilder, StringRecord, Terminator, Trim};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_server::check_password_hash;
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, describe, output};

use super::user_name::wrong_with_name;
use crate::centre::{self, OpenCentre};
use crate::clock;

/// The longest file: far more users than one server has, and no endless line.
const MAX_BYTES: u64 = 256 << 20;
/// The longest password, as everywhere.
const MAX_PASSWORD_BYTES: usize = 1_024;
/// Lines that an error lists.
const TOLD: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The CSV file, or - for standard input
    #[arg(value_name = "USERS.csv")]
    file: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
    /// Give users that are there already the file's password; otherwise they are an error
    #[arg(long)]
    update: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print {"added":n,"updated":n}
    #[arg(long)]
    pub(super) json: bool,
}

/// A line that is right.
#[derive(Debug, PartialEq)]
struct Entry {
    line: u64,
    name: String,
    secret: ImportedSecret,
}

#[derive(Debug, PartialEq)]
enum ImportedSecret {
    Password(String),
    Hash(String),
}

#[derive(Serialize)]
struct UserImportReport {
    added: u64,
    updated: u64,
}

pub(super) fn run(args: &ImportArgs) -> Result<CommandOutcome, Failure> {
    let entries = read(&args.file)?;
    let centre = OpenCentre::open(&args.config)?;
    // Before anybody waits for passwords to be hashed.
    let users = centre.users()?;
    if !args.update {
        refuse_known(&entries, users.iter().map(|user| &*user.name))?;
    }
    let users = hashed(&entries, !args.quiet)?;
    let import = centre.import_users(&users, args.update)?;
    // Somebody else added them while passwords were hashed.
    refuse_known(&entries, import.taken.iter().map(String::as_str))?;
    let (added, updated) = (import.added, import.updated);
    if args.json {
        output::json(&UserImportReport { added, updated })?;
    } else {
        let added = output::counted(added, "user", "users");
        output::note(&format!("{added} added, {updated} updated"));
    }
    Ok(CommandOutcome::Complete)
}

fn read(file: &Path) -> Result<Vec<Entry>, Failure> {
    let unreadable = |error: io::Error| Failure::file("read", file, &error);
    if file == Path::new("-") {
        return parse(io::stdin().lock());
    }
    parse(File::open(file).map_err(unreadable)?)
}

/// The lines of a file, if all of them are right.
fn parse(text: impl Read) -> Result<Vec<Entry>, Failure> {
    let mut reader = ReaderBuilder::new()
        .trim(Trim::Headers)
        .flexible(true)
        // Of a line that ends in CR and LF it would not know the number.
        .terminator(Terminator::Any(b'\n'))
        .from_reader(text.take(MAX_BYTES));
    let unreadable = |error: csv::Error| {
        let message = format!("the list of users cannot be read: {}", csv_message(&error));
        Failure::usage(
            message,
            "write it as CSV in UTF-8, with name,password on its first line",
        )
    };
    let columns = Columns::from_header(reader.headers().map_err(unreadable)?)?;
    let mut lines: HashMap<String, u64> = HashMap::new();
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    let mut record = StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) if error.is_io_error() => return Err(unreadable(error)),
            Err(error) => {
                wrong.push(csv_message(&error));
                continue;
            }
        }
        if record.len() == 1 && record.get(0) == Some("\r") {
            continue;
        }
        let line = record.position().map_or(0, csv::Position::line);
        match columns.entry(&record, line) {
            Err(what) => wrong.push(format!("line {line}: {what}")),
            Ok(entry) => match lines.insert(entry.name.clone(), line) {
                None => entries.push(entry),
                Some(first) => wrong.push(format!(
                    "line {line}: the name {:?} is on line {first} already",
                    entry.name
                )),
            },
        }
    }
    if reader.get_ref().limit() == 0 {
        wrong.push(format!("the file is longer than {MAX_BYTES} bytes"));
    }
    if entries.is_empty() && wrong.is_empty() {
        wrong.push("there is no user in the file".into());
    }
    told(wrong, "put these lines right, then import the file again")?;
    Ok(entries)
}

/// Fails with what is wrong, if anything is.
fn told(mut wrong: Vec<String>, hint: &str) -> Result<(), Failure> {
    let count = wrong.len();
    if count == 0 {
        return Ok(());
    }
    wrong.truncate(TOLD);
    if count > TOLD {
        wrong.push(format!("and {} more", count - TOLD));
    }
    Err(Failure::usage(
        format!("nothing was imported\n{}", wrong.join("\n")),
        hint,
    ))
}

fn csv_message(error: &csv::Error) -> String {
    match (error.kind(), error.position()) {
        (csv::ErrorKind::Utf8 { .. }, Some(position)) => {
            format!("line {}: not UTF-8", position.line())
        }
        (csv::ErrorKind::Io(error), _) => describe(error),
        _ => error.to_string(),
    }
}

/// Where the columns are.
#[derive(Debug, PartialEq)]
struct Columns {
    count: usize,
    name: usize,
    password: Option<usize>,
    hash: Option<usize>,
}

impl Columns {
    fn from_header(header: &StringRecord) -> Result<Columns, Failure> {
        let wrong = |what: String| {
            Err(Failure::usage(
                format!("line 1: {what}"),
                "the first line names the columns: name,password or name,password_hash",
            ))
        };
        let (mut name, mut password, mut hash) = (None, None, None);
        for (index, column) in header.iter().enumerate() {
            // Spreadsheets put a byte order mark before the first name.
            let place = match column.trim_start_matches('\u{feff}') {
                "name" => &mut name,
                "password" => &mut password,
                "password_hash" => &mut hash,
                other => return wrong(format!("unknown column {other:?}")),
            };
            if place.replace(index).is_some() {
                return wrong(format!("the column {column:?} is named twice"));
            }
        }
        match (name, password.or(hash)) {
            (Some(name), Some(_)) => Ok(Columns {
                count: header.len(),
                name,
                password,
                hash,
            }),
            (None, _) => wrong("the column \"name\" is missing".into()),
            _ => wrong("the column \"password\" (or \"password_hash\") is missing".into()),
        }
    }

    fn entry(&self, record: &StringRecord, line: u64) -> Result<Entry, String> {
        if record.len() != self.count {
            return Err(format!(
                "{}, not {}",
                output::counted(record.len() as u64, "value", "values"),
                self.count
            ));
        }
        let text = |column: usize| {
            let text = record.get(column).unwrap_or_default();
            match text.strip_suffix('\r') {
                Some(text) if column + 1 == self.count => text,
                _ => text,
            }
        };
        let value = |column: Option<usize>| column.map(text).filter(|value| !value.is_empty());
        let name = text(self.name);
        if let Some(wrong) = wrong_with_name(name) {
            return Err(format!("the name {name:?} {wrong}"));
        }
        let secret = match (value(self.password), value(self.hash)) {
            (Some(password), None) if password.len() > MAX_PASSWORD_BYTES => {
                return Err(format!(
                    "the password is longer than {MAX_PASSWORD_BYTES} bytes"
                ));
            }
            (Some(password), None) => ImportedSecret::Password(password.to_owned()),
            (None, Some(hash)) => {
                check_password_hash(hash).map_err(|error| error.to_string())?;
                ImportedSecret::Hash(hash.to_owned())
            }
            (Some(_), Some(_)) => return Err("both a password and a hash".into()),
            (None, None) => return Err("the password is empty".into()),
        };
        Ok(Entry {
            line,
            name: name.to_owned(),
            secret,
        })
    }
}

fn refuse_known<'a>(
    entries: &[Entry],
    known: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    let known: HashSet<&str> = known.collect();
    let taken = entries.iter().filter(|entry| known.contains(&*entry.name));
    let wrong = taken.map(|it| format!("line {}: there is a user {:?} already", it.line, it.name));
    told(
        wrong.collect(),
        "remove these lines, or give the users the passwords of the file with --update",
    )
}

/// The users with their passwords hashed, on as many threads as there are cores.
fn hashed(entries: &[Entry], shows_progress: bool) -> Result<Vec<UserRecord>, Failure> {
    let bar = progress(entries.len(), shows_progress);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, now_ms) = (AtomicUsize::new(0), clock::now_ms());
    let work = || {
        let mut done = Vec::new();
        while let Some((index, entry)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            entries.get(index).map(|entry| (index, entry))
        } {
            let password_hash = match &entry.secret {
                ImportedSecret::Hash(hash) => hash.clone(),
                ImportedSecret::Password(password) => centre::hash(password)?,
            };
            let user = UserRecord {
                name: entry.name.clone(),
                password_hash,
                disabled: false,
                created_ms: now_ms,
                proven: ProvenIdentity::default(),
            };
            done.push((index, user));
            bar.inc(1);
        }
        Ok::<_, Failure>(done)
    };
    let mut users = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut users = Vec::with_capacity(entries.len());
        for thread in threads {
            let done = thread.join().map_err(|_| {
                Failure::new(
                    tidewater_protocol::Code::Internal,
                    "a thread that hashes passwords failed",
                    "nothing was imported; please report this",
                )
            })?;
            users.extend(done?);
        }
        Ok::<_, Failure>(users)
    })?;
    bar.finish_and_clear();
    users.sort_by_key(|(index, _)| *index);
    Ok(users.into_iter().map(|(_, user)| user).collect())
}

fn progress(users: usize, wanted: bool) -> ProgressBar {
    let target = if wanted {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(users as u64), target);
    let template = "hashing passwords: {pos} of {len} users {wide_bar} {eta} left";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &[u8]) -> String {
        parse(text).unwrap_err().message
    }

    #[test]
    fn names_and_passwords_are_taken_to_the_letter() {
        let text =
            "\u{feff}name, password\r\n\"o'brien, \"\"jr\"\"\", two words \r\n名前,\"a\nb\"\n";
        let entries = parse(text.as_bytes()).unwrap();
        let entry = |line, name: &str, password: &str| Entry {
            line,
            name: name.into(),
            secret: ImportedSecret::Password(password.into()),
        };
        assert_eq!(entries[0], entry(2, "o'brien, \"jr\"", " two words "));
        assert_eq!(entries[1], entry(3, "名前", "a\nb"));
    }

    #[test]
    fn everything_that_is_wrong_is_told_by_its_line() {
        let hash = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U";
        let text = format!(
            "name,password,password_hash\n\
             a,x,\n\
             b,,\"{hash}\"\n\
             a,y,\n\
             ,x,\n\
             c,,\n\
             d,x,\"{hash}\"\n\
             e,x\n\
             f,,$2b$10$x\n\
             g,{},\n",
            "x".repeat(1_025)
        );
        let message = wrong(text.as_bytes());
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines.len(), 8, "{message}");
        for (line, part) in [
            (1, "line 4: the name \"a\" is on line 2 already"),
            (2, "line 5: the name \"\" is empty"),
            (3, "line 6: the password is empty"),
            (4, "line 7: both a password and a hash"),
            (5, "line 8: 2 values, not 3"),
            (6, "line 9: the password hash cannot be read"),
            (7, "line 10: the password is longer than 1024 bytes"),
        ] {
            assert!(lines[line].starts_with(part), "{message}");
        }
        assert!(wrong(b"name,password\n\xff,x\n").contains("line 2: not UTF-8"));
    }

    #[test]
    fn a_header_that_does_not_fit_is_told() {
        for (text, part) in [
            ("", "\"name\" is missing"),
            ("name\na\n", "\"password\""),
            ("nancy,secret\n", "unknown column \"nancy\""),
            ("name,name,password\n", "named twice"),
            ("name,password\n", "no user in the file"),
        ] {
            let message = wrong(text.as_bytes());
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_long_list_of_errors_is_cut() {
        let text = format!("name,password\n{}", "a,\n".repeat(250));
        let message = wrong(text.as_bytes());
        assert_eq!(message.lines().count(), 102);
        assert!(message.ends_with("and 150 more"));
    }
}
