//! Taking scripts over that are registered by calls in files of SQL.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidewater_centre::engine::scripts::CONNECTION;
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_protocol::Code;
use tidewater_terminal::output::{self, counted, printable};
use tidewater_terminal::{CommandOutcome, Failure};

/// What was done.
#[derive(Debug, Default, Serialize)]
struct ImportedScripts {
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

impl ImportedScripts {
    /// Notes a column of a version; without one, that nothing is known of its table.
    fn add_column(&mut self, call: RegistrationCall) -> Result<(), String> {
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
struct RegistrationCall {
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
) -> Result<CommandOutcome, Failure> {
    let mut imported = ImportedScripts::default();
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
        true => CommandOutcome::Complete,
        false => CommandOutcome::WithRefusedRows,
    })
}

fn describe(imported: &ImportedScripts) -> String {
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

/// The parameters of a procedure, in their order, if its calls can be taken over.
fn parameters(procedure: &str) -> Option<&'static [&'static str]> {
    Some(match procedure {
        "ml_add_table_script" => &["version", "table", "event", "script"],
        "ml_add_connection_script" => &["version", "event", "script"],
        "ml_add_lang_table_script" => &["version", "table", "event", "script_language", "script"],
        "ml_add_lang_connection_script" => &["version", "event", "script_language", "script"],
        "ml_add_lang_table_script_chk" => &[
            "version",
            "table",
            "event",
            "script_language",
            "script",
            "checksum",
        ],
        "ml_add_lang_connection_script_chk" => {
            &["version", "event", "script_language", "script", "checksum"]
        }
        "ml_add_column" => &["version", "table", "column", "type"],
        _ => return None,
    })
}

/// The values of arguments in the order of the procedure's parameters.
fn in_order(procedure: &str, given: Vec<CallArgument>) -> Result<Vec<Option<String>>, String> {
    if given.iter().all(|it| it.name.is_none()) {
        return Ok(given.into_iter().map(|it| it.value).collect());
    }
    let procedure = procedure.to_ascii_lowercase();
    let parameters = parameters(&procedure).unwrap_or_default();
    let mut values = vec![None; parameters.len()];
    for (place, argument) in given.into_iter().enumerate() {
        let place = match argument.name {
            None => Some(place),
            Some(name) => {
                let name = name.to_ascii_lowercase();
                let name = name.strip_prefix("p_").unwrap_or(&name);
                let is_it = |it: &&str| *it == name || *it == format!("script_{name}");
                let place = parameters.iter().position(is_it);
                let known = parameters.join(", ");
                Some(place.ok_or_else(|| {
                    format!("{procedure} has no argument {name:?}; it has {known}")
                })?)
            }
        };
        if let Some(value) = place.and_then(|it| values.get_mut(it)) {
            *value = argument.value;
        }
    }
    Ok(values)
}

/// The script that a call registers, if it is one that does.
fn registered(call: RegistrationCall) -> Result<Option<RegisteredScript>, String> {
    let name = call.name.to_ascii_lowercase();
    let Some(wanted) = parameters(&name).filter(|it| it.contains(&"event")) else {
        let hint = "write it in SQL, or as a handler (docs/handlers.md)";
        return Err(match &*name {
            "ml_add_user" => "ml_add_user adds a user: run tidewater user add".to_owned(),
            _ if is_of_scripts(&name) => {
                format!("{name} registers what is no script in SQL: {hint}")
            }
            _ => format!("{name} registers no script, and there is no such procedure here"),
        });
    };
    let of_table = wanted.contains(&"table");
    let language = wanted.contains(&"script_language");
    let arguments = call.arguments?;
    let wanted = wanted.len();
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

/// An argument of a call.
#[derive(Debug)]
struct CallArgument {
    /// Its parameter, where the call names it.
    name: Option<String>,
    /// Its text, or none for NULL.
    value: Option<String>,
}

/// The calls of a file, wherever they stand outside of comments and quotes: of the procedures that
/// register scripts, and of any other whose name begins with `ml_` and stands where only a
/// procedure can stand.
fn calls(text: &str) -> Vec<RegistrationCall> {
    let mut calls = Vec::new();
    let mut at = 0;
    let (mut is_in_name, mut is_begin) = (false, true);
    let mut before = "";
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let named = name_at(rest).filter(|_| !is_in_name);
        let found = named.and_then(|(name, length)| {
            let is_definition = ["PROCEDURE", "PROC", "FUNCTION"]
                .iter()
                .any(|it| before.eq_ignore_ascii_case(it));
            let behind = &rest[length..];
            let opening = opens_arguments(behind);
            let is_called = is_begin && opening.is_some();
            let is_it = has_prefix(name) && !is_definition;
            let is_script = is_of_scripts(&name.to_ascii_lowercase()) && opening.is_some();
            (is_it && (is_script || is_called || is_keyword_of_calls(before)))
                .then(|| (name, length + opening.unwrap_or_default()))
        });
        if let Some((name, begin)) = found {
            let line = text[..at].matches('\n').count() + 1;
            let is_enclosed = rest[..begin].ends_with('(');
            let (arguments, length) = match parameters(&name.to_ascii_lowercase()) {
                Some(_) => read_arguments(&rest[begin..], is_enclosed),
                None => (Ok(Vec::new()), 0),
            };
            calls.push(RegistrationCall {
                line,
                name: name.to_owned(),
                arguments: arguments.and_then(|it| in_order(name, it)),
            });
            at += begin + length;
            (is_in_name, is_begin, before) = (false, length > 0, "");
            continue;
        }
        if let Some(length) = opaque(rest) {
            at += length;
            is_in_name = false;
            continue;
        }
        if let Some((word, length)) = named {
            // What stands before the name of an owner counts for the name behind it, too.
            let is_owner = rest[length..].trim_start().starts_with('.');
            if !is_owner {
                let begins = ["begin", "go", "then", "else"];
                is_begin = begins.iter().any(|it| word.eq_ignore_ascii_case(it));
                before = word;
            }
            at += length;
            continue;
        }
        is_in_name = next.is_alphanumeric() || matches!(next, '_' | '@' | '$' | '#');
        match next {
            ';' | '/' => (is_begin, before) = (true, ""),
            // `EXEC @result = ml_procedure`: the procedure comes.
            '@' | '=' | '?' if is_keyword_of_calls(before) => {}
            '.' | '{' => {}
            _ if next.is_whitespace() || is_in_name => {}
            _ => (is_begin, before) = (false, ""),
        }
        at += next.len_utf8();
    }
    calls
}

/// Whether the name of a procedure follows a word.
fn is_keyword_of_calls(word: &str) -> bool {
    let keywords = ["call", "exec", "execute"];
    keywords.iter().any(|it| word.eq_ignore_ascii_case(it))
}

fn has_prefix(name: &str) -> bool {
    let begin = name.get(..3);
    begin.is_some_and(|it| it.eq_ignore_ascii_case("ml_"))
}

/// Whether a procedure registers scripts, or the columns of a version.
fn is_of_scripts(name: &str) -> bool {
    let is_script = name.ends_with("_script") || name.ends_with("_script_chk");
    name.starts_with("ml_add_") && is_script || name == "ml_add_column"
}

/// The length of a comment or quoted text.
fn opaque(rest: &str) -> Option<usize> {
    let begins = ["--", "/*", "'", "\""]
        .iter()
        .any(|it| rest.starts_with(it));
    begins.then(|| {
        SqlLexing::STANDARD
            .length_of_opaque(rest)
            .unwrap_or(rest.len())
    })
}

/// The name at the beginning of a text, in quotes or brackets or without, and how long it is there.
fn name_at(rest: &str) -> Option<(&str, usize)> {
    let closing = match rest.chars().next()? {
        '"' => '"',
        '[' => ']',
        first if first.is_alphabetic() || first == '_' => {
            let is_end = |it: char| !(it.is_alphanumeric() || it == '_');
            let end = rest.find(is_end).unwrap_or(rest.len());
            return Some((&rest[..end], end));
        }
        _ => return None,
    };
    let name = rest[1..].split(closing).next()?;
    let is_name = rest[1 + name.len()..].starts_with(closing);
    is_name.then(|| (name, name.len() + 2))
}

/// Where the first argument begins behind the name of a procedure, if one does. In some databases a
/// procedure is called without parentheses.
fn opens_arguments(behind: &str) -> Option<usize> {
    let arguments = behind.trim_start();
    let skipped = behind.len() - arguments.len();
    let text = arguments.strip_prefix(['N', 'n']).unwrap_or(arguments);
    match arguments.starts_with('(') {
        true => Some(skipped + 1),
        false => (text.starts_with('\'') || arguments.starts_with('@')).then_some(skipped),
    }
}

/// The name of a parameter that a call gives a value, and how long it is with the sign behind it.
fn parameter_at(rest: &str) -> Option<(&str, usize)> {
    let (name, length) = name_at(rest.strip_prefix('@').unwrap_or(rest))?;
    let length = length + usize::from(rest.starts_with('@'));
    let behind = rest[length..].trim_start();
    let signs = ["=>", ":=", "="];
    let sign = signs.iter().find(|it| behind.starts_with(**it))?;
    Some((name, rest.len() - behind.len() + sign.len()))
}

/// Reads arguments up to the parenthesis that ends them, or the end of the statement; with how long
/// that is.
fn read_arguments(text: &str, is_enclosed: bool) -> (Result<Vec<CallArgument>, String>, usize) {
    let mut arguments = Vec::new();
    let mut current: Option<String> = None;
    let mut name: Option<String> = None;
    let mut fault = None;
    let (mut at, mut is_null, mut is_joined) = (0, false, false);
    let mut end = |name: &mut Option<String>, current: &mut Option<String>, is_null: &mut bool| {
        let is_given = current.is_some() || *is_null;
        let name = name.take();
        if is_given {
            let value = current.take();
            arguments.push(CallArgument { name, value });
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
                is_joined = false;
                at += length;
                continue;
            }
            'N' | 'n' if rest[1..].starts_with('\'') => {}
            ',' => {
                end(&mut name, &mut current, &mut is_null);
                is_joined = false;
            }
            ')' | ';' => {
                at += 1;
                break;
            }
            // Texts are put together.
            '|' | '+' => is_joined = true,
            _ if current.is_none() && parameter_at(rest).is_some() => {
                let (parameter, length) = parameter_at(rest).unwrap_or_default();
                name = Some(parameter.to_owned());
                at += length;
                continue;
            }
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
            // The next statement begins.
            _ if !is_enclosed && !is_joined && (current.is_some() || is_null) => break,
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
    end(&mut name, &mut current, &mut is_null);
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
    fn calls_with_named_arguments_quoted_names_and_checksums_are_taken_over() {
        let text = r#"EXEC ml_add_table_script @version='v1', @table='job', @event='upload_update', @script='1'
            EXECUTE @done = dbo.ml_add_table_script @script = N'2', @event = 'upload_insert',
                @table = 'job', @version = 'v1'
            call "DBA"."ml_add_table_script"('v1', 'job', 'upload_delete', '3');
            call "ml_add_table_script"('v1', 'job', 'upload_fetch', '4');
            call [dbo].[ml_add_table_script]('v1', 'job', 'download_cursor', '5');
            call ml_add_lang_connection_script_chk('v1','end_upload','sql','6','0');
            call ml_add_lang_table_script_chk('v1','job','end_upload','sql','7','0');
            begin ml_add_table_script(p_version => 'v1', p_table => 'job', p_event => 'begin_upload',
                p_script => '8'); end;"#;
        let found: Vec<String> = scripts(text)
            .into_iter()
            .map(|it| it.unwrap().unwrap())
            .map(|it| {
                format!(
                    "{}/{}/{} {:?}",
                    it.version,
                    it.table,
                    it.event,
                    it.sql.unwrap()
                )
            })
            .collect();
        let expected = [
            r#"v1/job/upload_update "1""#,
            r#"v1/job/upload_insert "2""#,
            r#"v1/job/upload_delete "3""#,
            r#"v1/job/upload_fetch "4""#,
            r#"v1/job/download_cursor "5""#,
            r#"v1/connection/end_upload "6""#,
            r#"v1/job/end_upload "7""#,
            r#"v1/job/begin_upload "8""#,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn every_other_procedure_is_told_with_its_line() {
        let text = "SELECT ml_user_id FROM ml_user WHERE ml_lower(name) = 'ml_call';
            CREATE PROCEDURE ml_add_table_script(IN version text) BEGIN END;
            GRANT EXECUTE ON ml_add_table_script TO me;
            call ml_add_user('anna', 'x');
            EXEC ml_share_scripts
            ;
            ml_set_property('a', 'b');
            execute @x = \"DBA\".[ml_other] 1
            exec ml_add_table_script 'v1', 'job', 'upload_update', 'x'";
        let found = calls(text);
        let lines: Vec<(usize, &str)> = found.iter().map(|it| (it.line, &*it.name)).collect();
        let expected = [
            (4, "ml_add_user"),
            (5, "ml_share_scripts"),
            (7, "ml_set_property"),
            (8, "ml_other"),
            (9, "ml_add_table_script"),
        ];
        assert_eq!(lines, expected);
        let told: Vec<Result<_, String>> = scripts(text);
        assert!(told[0].as_ref().unwrap_err().contains("tidewater user add"));
        assert!(
            told[1]
                .as_ref()
                .unwrap_err()
                .contains("registers no script")
        );
        assert!(told[4].is_ok());
    }

    #[test]
    fn columns_of_versions_are_told() {
        let mut imported = ImportedScripts::default();
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
