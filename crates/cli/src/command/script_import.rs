//! Taking scripts over that are registered by calls in files of SQL.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidewater_centre::engine::script::Dialect;
use tidewater_centre::engine::scripts::CONNECTION;
use tidewater_protocol::Code;

use crate::Done;
use crate::failure::Failure;
use crate::output::{self, counted, printable};

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Imported {
    /// The files that were written.
    written: Vec<String>,
    /// The columns that tables have in versions.
    columns: Vec<VersionColumns>,
    /// What could not be taken over.
    left: Vec<LeftCall>,
}

/// The columns that a table has on the devices of a version.
#[derive(Debug, Serialize)]
struct VersionColumns {
    version: String,
    table: String,
    columns: Vec<String>,
}

impl Imported {
    /// Notes a column of a version; without one, that nothing is known of its table.
    fn add_column(&mut self, call: Call) -> Result<(), String> {
        let mut arguments = call.arguments?.into_iter();
        let mut next = || arguments.next().flatten();
        let (Some(version), Some(table)) = (next(), next()) else {
            return Err("ml_add_column names no version and table".to_owned());
        };
        let column = next();
        let is_it = |it: &VersionColumns| it.version == version && it.table == table;
        let Some(column) = column else {
            self.columns.retain(|it| !is_it(it));
            return Ok(());
        };
        match self.columns.iter().position(is_it) {
            Some(place) => self.columns[place].columns.push(column),
            None => self.columns.push(VersionColumns {
                version,
                table,
                columns: vec![column],
            }),
        }
        Ok(())
    }
}

/// A call that could not be taken over.
#[derive(Debug, Serialize)]
struct LeftCall {
    file: String,
    line: usize,
    what: String,
}

/// A script that a call registers.
#[derive(Debug, PartialEq, Eq)]
struct RegisteredScript {
    version: String,
    table: String,
    event: String,
    /// None: the call takes the script away.
    sql: Option<String>,
}

/// A call of one of the procedures that register scripts.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    line: usize,
    name: String,
    /// Its arguments: texts, or none where one is NULL. An error where one is neither.
    arguments: Result<Vec<Option<String>>, String>,
}

pub(super) fn run(
    files: &[PathBuf],
    into: &Path,
    force: bool,
    json: bool,
) -> Result<Done, Failure> {
    let mut imported = Imported::default();
    // The last call of a name counts.
    let mut scripts: Vec<RegisteredScript> = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).map_err(|error| {
            let message = format!("{} cannot be read: {error}", file.display());
            Failure::new(Code::Usage, message, "name a file of SQL, in UTF-8")
        })?;
        for call in calls(&text) {
            let line = call.line;
            let registered = match call.name.eq_ignore_ascii_case("ml_add_column") {
                true => imported.add_column(call).map(|()| None),
                false => registered(call),
            };
            match registered {
                Ok(Some(script)) => {
                    scripts.retain(|it| {
                        (&it.version, &it.table, &it.event)
                            != (&script.version, &script.table, &script.event)
                    });
                    scripts.push(script);
                }
                Ok(None) => {}
                Err(what) => imported.left.push(LeftCall {
                    file: file.display().to_string(),
                    line,
                    what,
                }),
            }
        }
    }
    let scripts = scripts.iter().filter_map(|it| Some((it, it.sql.as_ref()?)));
    let mut files = Vec::new();
    for (script, sql) in scripts {
        let names = [&script.version, &script.table, &script.event];
        if let Some(name) = names.iter().find(|it| !is_file_name(it)) {
            let message = format!("{name:?} cannot be the name of a file");
            return Err(Failure::usage(message, "rename it in the call"));
        }
        let folder = into.join(&script.version).join(&script.table);
        let path = folder.join(format!("{}.sql", script.event));
        if path.exists() && !force {
            return Err(Failure::usage(
                format!("{} is there; nothing was written", path.display()),
                "name another folder with --into, or add --force to write over it",
            ));
        }
        files.push((folder, path, sql));
    }
    for (folder, path, sql) in files {
        let written = fs::create_dir_all(&folder).and_then(|()| {
            let ends = if sql.ends_with('\n') { "" } else { "\n" };
            fs::write(&path, format!("{sql}{ends}"))
        });
        written.map_err(|error| {
            let message = format!("{} cannot be written: {error}", path.display());
            Failure::new(
                Code::Internal,
                message,
                "see that the folder can be written to",
            )
        })?;
        imported.written.push(path.display().to_string());
    }
    match json {
        true => output::json(&imported)?,
        false => output::text(&describe(&imported))?,
    }
    Ok(match imported.left.is_empty() {
        true => Done::Fully,
        false => Done::WithRefusedRows,
    })
}

fn describe(imported: &Imported) -> String {
    let mut text = String::new();
    for path in &imported.written {
        text.push_str(&printable(path));
        text.push('\n');
    }
    for left in &imported.left {
        let what = printable(&left.what);
        text.push_str(&format!(
            "not taken over: {}, line {}: {what}\n",
            left.file, left.line
        ));
    }
    for it in &imported.columns {
        text.push_str(&format!(
            "version {} has of {} the columns {}: where the published ones are others, write \
             columns = {:?} at the table, in a publication with script_versions = [{:?}]\n",
            printable(&it.version),
            printable(&it.table),
            printable(&it.columns.join(", ")),
            it.columns,
            it.version,
        ));
    }
    let count = imported.written.len() as u64;
    text.push_str(&format!(
        "{} written; now: tidewater check\n",
        counted(count, "script", "scripts")
    ));
    text
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// The script that a call registers, if it is one that does.
fn registered(call: Call) -> Result<Option<RegisteredScript>, String> {
    let name = call.name.to_ascii_lowercase();
    let (of_table, language) = match &*name {
        "ml_add_table_script" => (true, false),
        "ml_add_connection_script" => (false, false),
        "ml_add_lang_table_script" => (true, true),
        "ml_add_lang_connection_script" => (false, true),
        name => {
            let hint = "write it in SQL, or as a handler (docs/handlers.md)";
            return Err(format!("{name} registers what is no script in SQL: {hint}"));
        }
    };
    let arguments = call.arguments?;
    let wanted = 3 + usize::from(of_table) + usize::from(language);
    if arguments.len() != wanted {
        let found = arguments.len();
        return Err(format!(
            "{name} has {wanted} arguments, and there are {found}"
        ));
    }
    let mut arguments = arguments.into_iter();
    let mut text = |what: &str| {
        let given = arguments.next().flatten();
        given.ok_or_else(|| format!("the {what} is NULL"))
    };
    let version = text("version")?;
    let table = if of_table {
        text("table")?
    } else {
        CONNECTION.to_owned()
    };
    let event = text("event")?;
    if language {
        let language = text("language")?;
        if !language.eq_ignore_ascii_case("sql") {
            return Err(format!(
                "the script at {event} is in {language}: write it in SQL, or as a handler \
                 (docs/handlers.md)"
            ));
        }
    }
    let sql = arguments.next().flatten();
    // Its owner is not of its name.
    let table = table.rsplit('.').next().unwrap_or_default().to_owned();
    Ok(Some(RegisteredScript {
        version,
        table,
        event,
        sql,
    }))
}

/// The calls of a file, each of a procedure whose name begins with `ml_add_`, wherever they stand
/// outside of comments and quotes.
fn calls(text: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut at = 0;
    let mut is_in_name = false;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        if let Some(length) = opaque(rest) {
            at += length;
            is_in_name = false;
            continue;
        }
        let name = name_at(rest).filter(|_| !is_in_name);
        if let Some((name, arguments)) = name {
            let line = text[..at].matches('\n').count() + 1;
            let begin = at + arguments;
            let (arguments, length) = read_arguments(&text[begin..]);
            calls.push(Call {
                line,
                name: name.to_owned(),
                arguments,
            });
            at = begin + length;
            is_in_name = false;
            continue;
        }
        is_in_name = next.is_alphanumeric() || next == '_';
        at += next.len_utf8();
    }
    calls
}

/// The length of a comment or quoted text.
fn opaque(rest: &str) -> Option<usize> {
    let begins = ["--", "/*", "'", "\""]
        .iter()
        .any(|it| rest.starts_with(it));
    begins.then(|| Dialect::Sqlite.length_of_opaque(rest).unwrap_or(rest.len()))
}

/// The name of a procedure at the beginning of a text, and where its arguments begin.
fn name_at(rest: &str) -> Option<(&str, usize)> {
    let is_it = rest.get(..7)?.eq_ignore_ascii_case("ml_add_");
    let end = rest.find(|it: char| !(it.is_alphanumeric() || it == '_'))?;
    let behind = rest[end..].trim_start();
    let is_script = rest[..end].to_ascii_lowercase();
    let is_known = is_script.ends_with("_script") || is_script == "ml_add_column";
    // In some databases a procedure is called without parentheses.
    let opens = behind.starts_with('(') || behind.starts_with('\'');
    let skipped = rest.len() - behind.len() + usize::from(behind.starts_with('('));
    (is_it && is_known && opens).then(|| (&rest[..end], skipped))
}

/// Reads arguments up to the parenthesis that ends them, or the end of the statement; with how long
/// that is.
fn read_arguments(text: &str) -> (Result<Vec<Option<String>>, String>, usize) {
    let mut arguments = Vec::new();
    let mut current: Option<String> = None;
    let mut fault = None;
    let (mut at, mut is_null) = (0, false);
    let mut end = |current: &mut Option<String>, is_null: &mut bool| {
        let is_given = current.is_some() || *is_null;
        if is_given {
            arguments.push(current.take());
        }
        *is_null = false;
    };
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        match next {
            '\'' => {
                let length = opaque(rest).unwrap_or(1);
                let inside = rest.get(1..length.saturating_sub(1)).unwrap_or_default();
                let inside = inside.replace("''", "'");
                current = Some(current.unwrap_or_default() + &inside);
                at += length;
                continue;
            }
            ',' => end(&mut current, &mut is_null),
            ')' | ';' => {
                at += 1;
                break;
            }
            // Texts are put together.
            '|' | '+' => {}
            _ if opaque(rest).is_some() => {
                at += opaque(rest).unwrap_or(1);
                continue;
            }
            _ if next.is_whitespace() => {
                // In some tools a line of its own ends a statement.
                let is_end = rest.trim_start().lines().next().map(str::trim);
                if next == '\n' && is_end.is_some_and(|it| it.eq_ignore_ascii_case("go")) {
                    break;
                }
            }
            _ => {
                let word: String = rest
                    .chars()
                    .take_while(|it| it.is_alphanumeric() || *it == '_')
                    .collect();
                match word.eq_ignore_ascii_case("null") {
                    true => is_null = true,
                    false => {
                        let what = if word.is_empty() {
                            next.to_string()
                        } else {
                            word.clone()
                        };
                        fault.get_or_insert(format!(
                            "an argument is no text but {what:?}: write the script there"
                        ));
                    }
                }
                at += word.len().max(next.len_utf8());
                continue;
            }
        }
        at += next.len_utf8();
    }
    end(&mut current, &mut is_null);
    match fault {
        Some(fault) => (Err(fault), at),
        None => (Ok(arguments), at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripts(text: &str) -> Vec<Result<Option<RegisteredScript>, String>> {
        calls(text).into_iter().map(registered).collect()
    }

    #[test]
    fn calls_are_found_as_every_tool_writes_them() {
        let text = "-- call ml_add_table_script('no','no','no','no')
            CREATE TABLE cust (name text DEFAULT 'ml_add_table_script(1)');
            call ml_add_table_script( 'v1', 'cust', 'upload_insert',
                'INSERT INTO cust VALUES ( ?, ''x'' )' )
            go
            exec ml_add_connection_script 'v1', 'begin_connection', 'SET x = 1'
            go
            {call ml_add_table_script('v1', 'dba.cust', 'download_cursor', 'SELECT * ' || 'FROM cust')};
            CALL ml_add_connection_script('v1', 'handle_error', NULL);
            ";
        let found: Vec<RegisteredScript> = scripts(text)
            .into_iter()
            .filter_map(|it| it.ok().flatten())
            .collect();
        let script = |table: &str, event: &str, sql: Option<&str>| RegisteredScript {
            version: "v1".into(),
            table: table.into(),
            event: event.into(),
            sql: sql.map(str::to_owned),
        };
        assert_eq!(
            found,
            [
                script(
                    "cust",
                    "upload_insert",
                    Some("INSERT INTO cust VALUES ( ?, 'x' )")
                ),
                script("connection", "begin_connection", Some("SET x = 1")),
                script("cust", "download_cursor", Some("SELECT * FROM cust")),
                script("connection", "handle_error", None),
            ]
        );
    }

    #[test]
    fn columns_of_versions_are_told() {
        let mut imported = Imported::default();
        let text = "call ml_add_column('v1', 'cust', 'id', null);
            call ml_add_column('v1', 'cust', 'name', null);
            call ml_add_column('v2', 'cust', 'id', null); call ml_add_column('v2', 'cust', null, null)";
        for call in calls(text) {
            imported.add_column(call).unwrap();
        }
        let told = describe(&imported);
        assert!(
            told.contains("version v1 has of cust the columns id, name"),
            "{told}"
        );
        assert!(!told.contains("v2"), "{told}");
    }

    #[test]
    fn what_is_no_script_in_sql_is_told() {
        for (text, what) in [
            (
                "call ml_add_java_table_script('v', 't', 'upload_insert', 'a.b')",
                "ml_add_java_table_script registers what is no script in SQL",
            ),
            (
                "call ml_add_lang_connection_script('v', 'begin_upload', 'dnet', 'A.B')",
                "is in dnet",
            ),
            (
                "call ml_add_table_script('v', 't', 'upload_insert', script_text)",
                "no text but \"script_text\"",
            ),
            (
                "call ml_add_table_script('v', 't')",
                "has 4 arguments, and there are 2",
            ),
        ] {
            let found = scripts(text);
            let told = found[0].as_ref().unwrap_err();
            assert!(told.contains(what), "{told}");
        }
    }
}
