//! The events of a sync at which a script can stand: the one table from which scripts are checked,
//! and from which docs/scripts.md tells what there is.

use tidewater_protocol::ColumnType;

/// The name of the folder of scripts that belong to no table.
pub const CONNECTION: &str = "connection";

/// An event of a sync.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptEvent {
    /// Its name, which is that of the script's file.
    pub name: &'static str,
    /// Whether it happens for the connection as a whole.
    pub of_connection: bool,
    /// Whether it happens for each table.
    pub of_table: bool,
    /// The transaction in which its script runs.
    pub transaction: ScriptTransaction,
    /// What its script is.
    pub form: ScriptForm,
    /// The `{s.name}` parameters that it has beside [`COMMON`].
    pub parameters: &'static [&'static str],
    /// Those of them that its script can set.
    pub sets: &'static [&'static str],
    /// When it happens, for people.
    pub when: &'static str,
}

/// The transaction in which a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptTransaction {
    /// One of its own, when a connection of the server first serves the version.
    Connecting,
    /// One of its own, when such a connection is closed in good order.
    Closing,
    /// One of its own, when a password is checked.
    SigningIn,
    /// One for all that happens when a sync begins.
    Begin,
    /// What of the beginning is about the session, once more: the sync goes on on another connection.
    Resume,
    /// That of the upload: what fails undoes the upload.
    Upload,
    /// One for all that happens before the download, on its connection: the snapshot sees it.
    BeforeDownload,
    /// The snapshot of the download, which only reads.
    Download,
    /// One for all that happens after it.
    AfterDownload,
    /// One for all that happens when the remote says that it has the download.
    Acknowledged,
    /// One for all that happens when a sync is over.
    End,
    /// One of its own, after the upload.
    Reporting,
}

impl ScriptTransaction {
    /// What it is, for people.
    pub fn title(self) -> &'static str {
        match self {
            ScriptTransaction::Connecting => {
                "its own, before the connection's first sync of the version"
            }
            ScriptTransaction::Closing => "its own, when the server ends",
            ScriptTransaction::SigningIn => "its own, when a password is checked",
            ScriptTransaction::Begin => "of the beginning, before anything of the sync is done",
            ScriptTransaction::Resume => "of the beginning, on another connection",
            ScriptTransaction::Upload => "of the upload",
            ScriptTransaction::BeforeDownload => "before the download",
            ScriptTransaction::Download => "the snapshot of the download, which only reads",
            ScriptTransaction::AfterDownload => "after the download",
            ScriptTransaction::Acknowledged => "of the acknowledgement",
            ScriptTransaction::End => "of the end, when everything was sent",
            ScriptTransaction::Reporting => "its own, after the upload was committed or undone",
        }
    }
}

/// What a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptForm {
    /// Statements that are run once.
    Once,
    /// Statements that are run for each row, or once for all of them where they read `{rows}`.
    Row(ScriptImages),
    /// A query that is run for each row and yields the centre's row.
    Fetch,
    /// A query that yields rows of the table.
    Rows,
    /// A query that yields keys of the table.
    Keys,
}

/// The images of a row that a script can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptImages {
    /// `{r.column}`: as the remote wants it.
    New,
    /// `{o.column}`: as it was; `{r.column}` is the same.
    Old,
    /// Both.
    Both,
}

/// The `{s.name}` parameters of every event but those of connections.
pub const COMMON: [&str; 5] = [
    "username",
    "remote_id",
    "script_version",
    "publication",
    "subscription_id",
];

const NONE: [&str; 0] = [];
const LAST: [&str; 2] = ["last_download", "last_upload"];
const TIMES: [&str; 2] = ["last_download", "next_last_download"];
const PROOF: [&str; 5] = [
    "authentication_status",
    "password",
    "new_password",
    "hashed_password",
    "hashed_new_password",
];
const PUBLISHED: [&str; 3] = ["last_download", "last_upload", "generation_number"];
const SUCCEEDED: [&str; 3] = ["last_download", "last_upload", "synchronization_ok"];
const STATUS: [&str; 1] = ["authentication_status"];
const UPLOADED: [&str; 13] = [
    "inserted_rows",
    "updated_rows",
    "deleted_rows",
    "conflicted_inserts",
    "conflicted_updates",
    "conflicted_deletes",
    "ignored_inserts",
    "ignored_updates",
    "ignored_deletes",
    "warnings",
    "errors",
    "bytes",
    "deadlocks",
];
const DOWNLOADED: [&str; 6] = [
    "fetched_rows",
    "deleted_rows",
    "filtered_rows",
    "warnings",
    "errors",
    "bytes",
];
const SYNCHRONIZED: [&str; 5] = [
    "warnings",
    "errors",
    "deadlocks",
    "synchronized_tables",
    "connection_retries",
];
const TOOK: [&str; 5] = [
    "event_name",
    "number_of_calls",
    "minimum_time",
    "maximum_time",
    "total_time",
];
const ERROR: [&str; 5] = [
    "action_code",
    "error_code",
    "database_code",
    "error_message",
    "table",
];

macro_rules! events {
    ($(($name:literal, $of:ident, $transaction:ident, $form:expr, $parameters:expr, $sets:expr, $when:literal)),* $(,)?) => {
        /// Every event, in the order in which they happen.
        pub static EVENTS: &[ScriptEvent] = &[$(ScriptEvent {
            name: $name,
            of_connection: matches!(EventSubject::$of, EventSubject::Connection | EventSubject::Both),
            of_table: matches!(EventSubject::$of, EventSubject::Table | EventSubject::Both),
            transaction: ScriptTransaction::$transaction,
            form: $form,
            parameters: $parameters,
            sets: $sets,
            when: $when,
        }),*];
    };
}

enum EventSubject {
    Connection,
    Table,
    Both,
}

events! {
    ("begin_connection", Connection, Connecting, ScriptForm::Once, &NONE, &NONE, "a connection of the server begins to serve the version"),
    ("authenticate_user", Connection, SigningIn, ScriptForm::Once, &PROOF, &STATUS, "a password is checked, with `passwords = \"script\"` under `[sign_in]`; only of the version `default`"),
    ("authenticate_parameters", Connection, Begin, ScriptForm::Once, &STATUS, &STATUS, "a sync begins; `{a.N}` is what the remote has set as parameter N"),
    ("modify_user", Connection, Begin, ScriptForm::Once, &NONE, &["username"], "then; what it sets is `{s.username}` for the other scripts of the sync"),
    ("begin_synchronization", Both, Begin, ScriptForm::Once, &LAST, &NONE, "then"),
    ("begin_publication", Connection, Begin, ScriptForm::Once, &PUBLISHED, &["generation_number"], "then"),
    ("begin_upload", Both, Upload, ScriptForm::Once, &LAST, &NONE, "before the first row of the upload; then for each table of which it has rows"),
    ("begin_upload_rows", Table, Upload, ScriptForm::Once, &LAST, &NONE, "before the table's inserts and updates"),
    ("upload_insert", Table, Upload, ScriptForm::Row(ScriptImages::New), &LAST, &NONE, "for each insert"),
    ("upload_fetch", Table, Upload, ScriptForm::Fetch, &LAST, &NONE, "before each update: yields the centre's row, to be compared whole with the pre-image"),
    ("upload_fetch_column_conflict", Table, Upload, ScriptForm::Fetch, &LAST, &NONE, "the same, compared in the columns that the update changes"),
    ("upload_update", Table, Upload, ScriptForm::Row(ScriptImages::Both), &LAST, &NONE, "for each update that is no conflict"),
    ("upload_old_row_insert", Table, Upload, ScriptForm::Row(ScriptImages::Both), &LAST, &NONE, "for each conflict: its pre-image"),
    ("upload_new_row_insert", Table, Upload, ScriptForm::Row(ScriptImages::Both), &LAST, &NONE, "for each conflict: what it wants"),
    ("resolve_conflict", Table, Upload, ScriptForm::Row(ScriptImages::Both), &LAST, &NONE, "for each conflict, after both"),
    ("end_upload_rows", Table, Upload, ScriptForm::Once, &LAST, &NONE, "after the table's inserts and updates"),
    ("begin_upload_deletes", Table, Upload, ScriptForm::Once, &LAST, &NONE, "before the table's deletes, which follow the rows of all tables: of the last table first, unless `upload_order = \"deletes_first\"`"),
    ("upload_delete", Table, Upload, ScriptForm::Row(ScriptImages::Old), &LAST, &NONE, "for each delete; one that takes rows of other tables along by a foreign key is run last"),
    ("end_upload_deletes", Table, Upload, ScriptForm::Once, &LAST, &NONE, "after the table's deletes"),
    ("end_upload", Both, Upload, ScriptForm::Once, &LAST, &NONE, "after the last row of the upload: for each table of which it has rows, then for the upload"),
    ("upload_statistics", Both, Upload, ScriptForm::Once, &UPLOADED, &NONE, "after that, with the figures of the table, or of the upload"),
    ("handle_error", Both, Upload, ScriptForm::Once, &ERROR, &["action_code"], "for each row that the database refuses: 1000 has it refused, which is so without the script, and 3000 ends the sync, with nothing applied; and for each script of the upload that fails: 1000 goes on without it, and 3000, which is so without the script, ends the sync"),
    ("report_error", Both, Reporting, ScriptForm::Once, &ERROR, &NONE, "for each of these, and for whatever else ended the sync in the database"),
    ("modify_last_download", Connection, BeforeDownload, ScriptForm::Once, &TIMES, &["last_download"], "before the download"),
    ("prepare_for_download", Connection, BeforeDownload, ScriptForm::Once, &TIMES, &NONE, "then"),
    ("modify_next_last_download", Connection, BeforeDownload, ScriptForm::Once, &TIMES, &["next_last_download"], "then; a time that would leave out rows of others has no effect"),
    ("begin_download", Both, BeforeDownload, ScriptForm::Once, &TIMES, &NONE, "then"),
    ("download_delete_cursor", Table, Download, ScriptForm::Keys, &TIMES, &NONE, "yields the keys of rows that the remote is to lose"),
    ("download_cursor", Table, Download, ScriptForm::Rows, &TIMES, &NONE, "yields the rows that it gets"),
    ("end_download", Both, AfterDownload, ScriptForm::Once, &TIMES, &NONE, "the rows were read"),
    ("download_statistics", Both, AfterDownload, ScriptForm::Once, &DOWNLOADED, &NONE, "then, with the figures of the table, or of the download"),
    ("end_publication", Connection, End, ScriptForm::Once, &PUBLISHED, &NONE, "everything was sent"),
    ("end_synchronization", Both, End, ScriptForm::Once, &SUCCEEDED, &NONE, "then"),
    ("synchronization_statistics", Both, End, ScriptForm::Once, &SYNCHRONIZED, &NONE, "then, with the figures of the sync"),
    ("time_statistics", Both, End, ScriptForm::Once, &TOOK, &NONE, "then, once for each event whose scripts have run (for the table; or for all together, and then for `begin`, `upload` and `download` of the sync, too): how often, and how many milliseconds that took"),
    ("download_ack", Both, Acknowledged, ScriptForm::Once, &LAST, &NONE, "the remote has the rows; this may come after the end, and never if the connection breaks"),
    ("publication_download_ack", Connection, Acknowledged, ScriptForm::Once, &LAST, &NONE, "then"),
    ("end_connection", Connection, Closing, ScriptForm::Once, &NONE, &NONE, "a connection that served the version is closed"),
}

impl ScriptForm {
    /// Whether it is run for rows that a remote has sent.
    pub(super) fn has_rows(self) -> bool {
        matches!(self, ScriptForm::Row(_) | ScriptForm::Fetch)
    }
}

impl ScriptEvent {
    /// Whether it happens in a transaction. One that resumes a sync has those events of the beginning
    /// that are about the session, and not about whether the remote may go on and as whom.
    pub(super) fn is_in(&self, transaction: ScriptTransaction) -> bool {
        match transaction {
            ScriptTransaction::Resume => {
                let decides = matches!(self.name, "authenticate_parameters" | "modify_user");
                self.transaction == ScriptTransaction::Begin && !decides
            }
            transaction => self.transaction == transaction,
        }
    }

    /// Whether it happens in a sync, up to its end.
    pub(super) fn is_of_a_sync(&self) -> bool {
        !matches!(
            self.transaction,
            ScriptTransaction::Connecting
                | ScriptTransaction::Closing
                | ScriptTransaction::SigningIn
                | ScriptTransaction::Acknowledged
                | ScriptTransaction::Reporting
        )
    }

    /// Whether tables come before the connection, in the reverse order.
    pub(super) fn is_ending(&self) -> bool {
        self.name.starts_with("end_")
    }

    /// The `{s.name}` parameters that it has.
    pub fn named(&self) -> Vec<&'static str> {
        let is_of_a_sync = !matches!(
            self.transaction,
            ScriptTransaction::Connecting
                | ScriptTransaction::Closing
                | ScriptTransaction::SigningIn
        );
        let mut named = match (is_of_a_sync, self.transaction) {
            (true, _) => COMMON.to_vec(),
            (false, ScriptTransaction::SigningIn) => vec!["username", "script_version"],
            (false, _) => vec!["script_version"],
        };
        named.extend_from_slice(self.parameters);
        if self.of_table && !named.contains(&"table") {
            named.push("table");
        }
        named
    }
}

/// Every `{s.name}` parameter that some event has.
pub fn parameters() -> impl Iterator<Item = &'static str> {
    let of_events = EVENTS.iter().flat_map(|it| it.parameters.iter().copied());
    COMMON.into_iter().chain(["table"]).chain(of_events)
}

/// The type of a `{s.name}` parameter.
pub fn parameter_type(name: &str) -> ColumnType {
    const TEXTS: [&str; 7] = [
        "table",
        "password",
        "new_password",
        "database_code",
        "event_name",
        "error_message",
        "error_code",
    ];
    if ["last_download", "last_upload", "next_last_download"].contains(&name) {
        return ColumnType::TimestampTz;
    }
    if ["hashed_password", "hashed_new_password"].contains(&name) {
        return ColumnType::Bytes;
    }
    match COMMON.contains(&name) || TEXTS.contains(&name) {
        true => ColumnType::Text,
        false => ColumnType::Integer,
    }
}

/// An event by its name.
pub fn event(name: &str) -> Option<&'static ScriptEvent> {
    EVENTS.iter().find(|it| it.name == name)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    const BEGIN: &str = "<!-- events: begin -->\n";
    const END: &str = "<!-- events: end -->";

    fn table() -> String {
        let mut text = String::from(
            "| event | in | transaction | when | parameters |\n|---|---|---|---|---|\n",
        );
        for event in EVENTS {
            let of = match (event.of_connection, event.of_table) {
                (true, true) => "both",
                (true, false) => "connection",
                _ => "table",
            };
            let parameters = event
                .parameters
                .iter()
                .filter(|it| **it != "table")
                .map(|name| {
                    let sets = if event.sets.contains(name) { "*" } else { "" };
                    format!("`{name}`{sets}")
                });
            let mut parameters: Vec<String> = parameters.collect();
            let sets = event.sets.iter();
            let sets = sets.filter(|it| !event.parameters.contains(it));
            parameters.extend(sets.map(|name| format!("`{name}`*")));
            let _ = writeln!(
                text,
                "| `{}` | {of} | {} | {} | {} |",
                event.name,
                event.transaction.title(),
                event.when,
                parameters.join(", "),
            );
        }
        text
    }

    /// With `TIDEWATER_WRITE_EVENTS` in the environment the page is written.
    #[test]
    fn the_page_lists_every_event_as_it_is() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scripts.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (listed, behind) = rest.split_once(END).unwrap();
        if std::env::var_os("TIDEWATER_WRITE_EVENTS").is_some() {
            std::fs::write(&path, [before, BEGIN, &table(), END, behind].concat()).unwrap();
            return;
        }
        assert_eq!(listed, table());
    }
}
