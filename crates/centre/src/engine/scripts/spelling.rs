//! How scripts of other synchronization servers are spelled: the names that these give to events, the
//! order in which question marks stand for parameters, calls in braces, and scripts that are to be
//! ignored.
//!
//! Source: the MobiLink server's documentation of its synchronization events, SQL Anywhere 11 to 17.

use tidewater_protocol::Table;

use super::events::{ScriptEvent, event};
use crate::engine::script::ScriptParameter;

/// What the name of a script's file stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum NamedEvent {
    /// This event.
    Known {
        /// The event.
        event: &'static ScriptEvent,
        /// Its question marks for passwords stand for what these hash to.
        is_hashed: bool,
    },
    /// An event of other servers that this one does not have.
    Absent {
        /// What to write instead.
        instead: &'static str,
    },
    /// Nothing.
    Unknown,
}

/// The names that other servers give to events.
const ALIASES: [(&str, &str); 5] = [
    ("modify_last_download_timestamp", "modify_last_download"),
    (
        "modify_next_last_download_timestamp",
        "modify_next_last_download",
    ),
    ("nonblocking_download_ack", "download_ack"),
    (
        "publication_nonblocking_download_ack",
        "publication_download_ack",
    ),
    (HASHED, "authenticate_user"),
];

const HASHED: &str = "authenticate_user_hashed";

const BEFORE_DOWNLOAD: &str =
    "write begin_download of the table: both cursors are read in one snapshot after it";
const AFTER_DOWNLOAD: &str = "write end_download of the table: it runs when both cursors were read";
const HANDLER: &str =
    "write a handler of the table, a program that is asked over HTTP: docs/handlers.md";
const FILES: &str = "files are not transferred by this server: docs/images.md says how whole \
                     databases get to devices, and docs/calls.md how a device asks for anything else";
const UPLOADED: &str = "write upload_insert, upload_update and upload_delete";
const RESOLVED: &str = "write upload_old_row_insert, upload_new_row_insert and resolve_conflict";
const TIME: &str = "the server takes the time when the oldest transaction began that is open, so that \
                    no row is missed; modify_next_last_download changes it";

/// Events of other servers that this one does not have, and what to write instead.
const ABSENT: [(&str, &str); 16] = [
    (
        "begin_connection_autocommit",
        "write begin_connection: it runs in a transaction of its own",
    ),
    ("begin_download_deletes", BEFORE_DOWNLOAD),
    ("begin_download_rows", BEFORE_DOWNLOAD),
    ("end_download_deletes", AFTER_DOWNLOAD),
    ("end_download_rows", AFTER_DOWNLOAD),
    ("handle_UploadData", HANDLER),
    ("handle_DownloadData", HANDLER),
    (
        "handle_odbc_error",
        "write handle_error: {s.database_code} is the code of the database (the SQLSTATE)",
    ),
    (
        "report_odbc_error",
        "write report_error: {s.database_code} is the code of the database (the SQLSTATE)",
    ),
    (
        "modify_error_message",
        "the texts of this server stand beside codes that an application translates: docs/refused-rows.md; \
         a handler may word a refusal as it likes",
    ),
    ("authenticate_file_transfer", FILES),
    ("authenticate_file_upload", FILES),
    ("generate_next_last_download_timestamp", TIME),
    ("upload_cursor", UPLOADED),
    ("old_row_cursor", RESOLVED),
    ("new_row_cursor", RESOLVED),
];

/// What the name of a script's file stands for.
pub(super) fn named_event(name: &str) -> NamedEvent {
    let absent = ABSENT.iter().find(|it| it.0.eq_ignore_ascii_case(name));
    if let Some((_, instead)) = absent {
        return NamedEvent::Absent { instead };
    }
    let alias = ALIASES.iter().find(|it| it.0 == name);
    match event(alias.map_or(name, |it| it.1)) {
        Some(event) => NamedEvent::Known {
            event,
            is_hashed: name == HASHED,
        },
        None => NamedEvent::Unknown,
    }
}

/// A statement without the braces of a call, `{call check_user(?, ?)}`, which are those of ODBC.
pub(super) fn without_braces(statement: &str) -> &str {
    let inside = statement
        .strip_prefix('{')
        .and_then(|it| it.strip_suffix('}'));
    let inside = inside.map(str::trim);
    let is_call = |it: &&str| {
        let word = it.split_ascii_whitespace().next().unwrap_or_default();
        word.eq_ignore_ascii_case("call")
    };
    inside.filter(is_call).unwrap_or(statement)
}

/// Whether a statement calls a function for its value, as ODBC writes that: `{? = call f(?)}`.
pub(super) fn is_function_call(statement: &str) -> bool {
    let inside = statement.strip_prefix('{').map(str::trim_start);
    let mark = inside.and_then(|it| it.strip_prefix('?'));
    mark.is_some_and(|it| it.trim_start().starts_with('='))
}

/// Whether a script says that nothing is to be done, and that this is meant.
pub(super) fn is_ignored(script: &str) -> bool {
    let script = script.trim().trim_end_matches(';').trim_end();
    script.eq_ignore_ascii_case("{ml_ignore}")
}

/// The order of an event's parameters that are no columns. Scripts of the connection have the same but
/// for the table. Where the list ends with `a`, numbered parameters of the remote follow.
fn order(event: &ScriptEvent, is_hashed: bool, is_of_table: bool) -> Vec<&'static str> {
    let all: &[&str] = match event.name {
        "authenticate_parameters" => &["authentication_status", "username", "a"],
        "authenticate_user" if is_hashed => &[
            "authentication_status",
            "username",
            "hashed_password",
            "hashed_new_password",
        ],
        "authenticate_user" => &[
            "authentication_status",
            "username",
            "password",
            "new_password",
        ],
        "begin_publication" | "end_publication" => &[
            "generation_number",
            "username",
            "publication",
            "last_upload",
            "last_download",
            "subscription_id",
        ],
        "end_synchronization" => &["username", "table", "synchronization_ok"],
        "handle_error" | "report_error" => &[
            "action_code",
            "error_code",
            "error_message",
            "username",
            "table",
        ],
        "modify_last_download" | "prepare_for_download" => &["last_download", "username"],
        "modify_next_last_download" => &["next_last_download", "last_download", "username"],
        "begin_download" | "end_download" => &["last_download", "username", "table"],
        "download_cursor" | "download_delete_cursor" => &["last_download", "username"],
        "upload_statistics" => &[
            "username",
            "table",
            "warnings",
            "errors",
            "inserted_rows",
            "deleted_rows",
            "updated_rows",
            "conflicted_inserts",
            "conflicted_deletes",
            "conflicted_updates",
            "ignored_inserts",
            "ignored_deletes",
            "ignored_updates",
            "bytes",
            "deadlocks",
        ],
        "download_statistics" => &[
            "username",
            "table",
            "warnings",
            "errors",
            "fetched_rows",
            "deleted_rows",
            "filtered_rows",
            "bytes",
        ],
        "synchronization_statistics" if is_of_table => &["username", "table", "warnings", "errors"],
        "synchronization_statistics" => &[
            "username",
            "warnings",
            "errors",
            "deadlocks",
            "synchronized_tables",
            "connection_retries",
        ],
        "time_statistics" => &[
            "username",
            "table",
            "event_name",
            "number_of_calls",
            "minimum_time",
            "maximum_time",
            "total_time",
        ],
        "download_ack" => &["username", "last_download"],
        "publication_download_ack" => &["username", "last_download", "publication"],
        "begin_connection" | "end_connection" => &[],
        _ => &["username", "table"],
    };
    // An error of no table has an empty one.
    let has_table = is_of_table || ["handle_error", "report_error"].contains(&event.name);
    let has = |it: &&&str| has_table || **it != "table";
    all.iter().filter(has).copied().collect()
}

/// What the question marks of a script stand for, in their order.
///
/// # Errors
/// There are not so many; what there are.
pub(super) fn marked(
    event: &ScriptEvent,
    is_hashed: bool,
    table: Option<&Table>,
    count: usize,
) -> Result<Vec<ScriptParameter>, String> {
    let wanted = match table.filter(|_| event.form.has_rows()) {
        Some(table) => columns(event.name, table, count),
        None => {
            let mut named = order(event, is_hashed, table.is_some());
            let has_arguments = named.last() == Some(&"a");
            if has_arguments {
                named.pop();
            }
            let arguments = count.saturating_sub(named.len()) * usize::from(has_arguments);
            let named = named.into_iter().map(ScriptParameter::System);
            let arguments = (1..=arguments).map(|it| ScriptParameter::Argument(it.to_string()));
            named.chain(arguments).collect()
        }
    };
    if count <= wanted.len() {
        return Ok(wanted.into_iter().take(count).collect());
    }
    let names: Vec<String> = wanted.iter().map(|it| format!("{{{it}}}")).collect();
    Err(match names.is_empty() {
        true => "it has none".to_owned(),
        false => format!("in their order they are {}", names.join(", ")),
    })
}

/// Those of an event of uploaded rows.
fn columns(event: &str, table: &Table, count: usize) -> Vec<ScriptParameter> {
    let name = |column: usize| table.columns[column].name.clone();
    let all = || 0..table.columns.len();
    let user = || ScriptParameter::System("username");
    let keys = table.key.len();
    match event {
        "upload_delete" => table
            .key
            .iter()
            .map(|&it| ScriptParameter::New(name(it)))
            .collect(),
        "upload_fetch" | "upload_fetch_column_conflict" => {
            let named = (count > keys).then(user);
            let of_key = table.key.iter().map(|&it| ScriptParameter::New(name(it)));
            named.into_iter().chain(of_key).collect()
        }
        "upload_update" => {
            let of_key = |column: &usize| table.key.contains(column);
            let others: Vec<usize> = all().filter(|it| !of_key(it)).collect();
            let set = others.iter().map(|&it| ScriptParameter::New(name(it)));
            let is_at = table.key.iter().map(|&it| ScriptParameter::Old(name(it)));
            match count {
                it if it == 2 * table.columns.len() => {
                    let new_key = table.key.iter().map(|&it| ScriptParameter::New(name(it)));
                    let before = all().map(|it| ScriptParameter::Old(name(it)));
                    set.chain(new_key).chain(before).collect()
                }
                it if it > table.columns.len() => {
                    let before = all().map(|it| ScriptParameter::Old(name(it)));
                    set.chain(before).collect()
                }
                _ => set.chain(is_at).collect(),
            }
        }
        "upload_old_row_insert" => {
            let named = (count > table.columns.len()).then(user);
            let before = all().map(|it| ScriptParameter::Old(name(it)));
            named.into_iter().chain(before).collect()
        }
        "upload_new_row_insert" => {
            let named = (count > table.columns.len()).then(user);
            let wanted = all().map(|it| ScriptParameter::New(name(it)));
            named.into_iter().chain(wanted).collect()
        }
        "resolve_conflict" => vec![user(), ScriptParameter::System("table")],
        _ => all().map(|it| ScriptParameter::New(name(it))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::EVENTS;
    use super::*;

    #[test]
    fn every_parameter_that_a_question_mark_stands_for_is_one_of_its_event() {
        for event in EVENTS {
            for is_of_table in [false, true] {
                let has = if is_of_table {
                    event.of_table
                } else {
                    event.of_connection
                };
                if !has || event.form.has_rows() {
                    continue;
                }
                for name in order(event, false, is_of_table) {
                    let known = event.named().contains(&name) || name == "a";
                    assert!(known, "{}: {name}", event.name);
                }
            }
        }
        for name in order(event("authenticate_user").unwrap(), true, false) {
            assert!(
                event("authenticate_user").unwrap().named().contains(&name),
                "{name}"
            );
        }
    }

    #[test]
    fn names_of_other_servers_stand_for_events_or_say_what_to_write_instead() {
        for (alias, name) in ALIASES {
            let NamedEvent::Known { event, is_hashed } = named_event(alias) else {
                panic!("{alias} is no event");
            };
            assert_eq!((event.name, is_hashed), (name, alias == HASHED));
        }
        for (name, _) in ABSENT {
            assert!(matches!(named_event(name), NamedEvent::Absent { .. }));
            assert!(event(name).is_none(), "{name}");
        }
        assert!(matches!(
            named_event("upload_everything"),
            NamedEvent::Unknown
        ));
    }

    #[test]
    fn calls_lose_their_braces_and_nothing_else_does() {
        assert_eq!(
            without_braces("{ call p(?, {ml s.table}) }"),
            "call p(?, {ml s.table})"
        );
        assert!(is_function_call("{ ? = call f(?) }") && is_function_call("{?=call f()}"));
        assert!(!is_function_call("{call f(?)}"));
        assert_eq!(without_braces("{CALL p}"), "CALL p");
        assert_eq!(without_braces("{s.username}"), "{s.username}");
        assert!(is_ignored(" {ml_ignore};\n"));
        assert!(!is_ignored("SELECT 1"));
    }
}
