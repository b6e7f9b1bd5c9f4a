//! The events of a sync at which a script can stand: the one table from which scripts are checked,
//! and from which docs/scripts.md tells what there is.

use tidewater_protocol::ColumnType;

/// The name of the folder of scripts that belong to no table.
pub const CONNECTION: &str = "connection";

/// An event of a sync.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name, which is that of the script's file.
    pub name: &'static str,
    /// Whether it happens for the connection as a whole.
    pub of_connection: bool,
    /// Whether it happens for each table.
    pub of_table: bool,
    /// The transaction in which its script runs.
    pub transaction: Transaction,
    /// What its script is.
    pub form: Form,
    /// The `{s.name}` parameters that it has beside [`COMMON`].
    pub parameters: &'static [&'static str],
    /// Those of them that its script can set, by a row that it yields.
    pub sets: &'static [&'static str],
    /// When it happens, for people.
    pub when: &'static str,
}

/// The transaction in which a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transaction {
    /// One of its own.
    Own,
    /// That of signing in.
    SignIn,
    /// That of the upload: what fails undoes the upload.
    Upload,
    /// One of its own before the download, whose snapshot sees what it did.
    BeforeDownload,
    /// The snapshot of the download, which only reads.
    Download,
    /// One of its own when the sync is over.
    End,
}

/// What a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Statements that are run once.
    Once,
    /// A statement that is run for each row, or once for all of them where it reads `{rows}`.
    Row(Images),
    /// A query that is run for each row and yields the centre's row.
    Fetch,
    /// A query that yields rows of the table.
    Rows,
    /// A query that yields keys of the table.
    Keys,
}

/// The images of a row that a script can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// `{r.column}`: as the remote wants it.
    New,
    /// `{o.column}`: as it was; `{r.column}` is the same.
    Old,
    /// Both.
    Both,
}

/// The `{s.name}` parameters of every event.
pub const COMMON: [&str; 4] = ["username", "remote_id", "script_version", "publication"];

const LAST: [&str; 2] = ["last_download", "last_upload"];
const COUNTS_UP: [&str; 10] = [
    "inserted_rows",
    "updated_rows",
    "deleted_rows",
    "conflicted_inserts",
    "conflicted_updates",
    "conflicted_deletes",
    "ignored_inserts",
    "ignored_updates",
    "ignored_deletes",
    "errors",
];
const COUNTS_DOWN: [&str; 3] = ["fetched_rows", "deleted_rows", "filtered_rows"];

macro_rules! events {
    ($(($name:literal, $of:ident, $transaction:ident, $form:expr, $parameters:expr, $sets:expr, $when:literal)),* $(,)?) => {
        /// Every event, in the order in which they happen.
        pub static EVENTS: &[Event] = &[$(Event {
            name: $name,
            of_connection: matches!(Of::$of, Of::Connection | Of::Both),
            of_table: matches!(Of::$of, Of::Table | Of::Both),
            transaction: Transaction::$transaction,
            form: $form,
            parameters: $parameters,
            sets: $sets,
            when: $when,
        }),*];
    };
}

enum Of {
    Connection,
    Table,
    Both,
}

events! {
    ("begin_connection", Connection, Own, Form::Once, &[], &[], "a connection of the server to the database begins to serve a script version"),
    ("begin_synchronization", Both, Upload, Form::Once, &LAST, &[], "a sync begins"),
    ("begin_publication", Connection, Upload, Form::Once, &LAST, &[], "a publication of the sync begins"),
    ("begin_upload", Both, Upload, Form::Once, &LAST, &[], "before the first row of the upload, or of the table"),
    ("begin_upload_rows", Table, Upload, Form::Once, &LAST, &[], "before the table's inserts and updates"),
    ("upload_insert", Table, Upload, Form::Row(Images::New), &LAST, &[], "for each insert"),
    ("upload_fetch", Table, Upload, Form::Fetch, &LAST, &[], "before each update: yields the centre's row, to be compared whole with the pre-image"),
    ("upload_fetch_column_conflict", Table, Upload, Form::Fetch, &LAST, &[], "the same, compared in the columns that the update changes"),
    ("upload_update", Table, Upload, Form::Row(Images::Both), &LAST, &[], "for each update that is no conflict"),
    ("upload_old_row_insert", Table, Upload, Form::Row(Images::Old), &LAST, &[], "for each update that is a conflict: its pre-image"),
    ("upload_new_row_insert", Table, Upload, Form::Row(Images::Both), &LAST, &[], "for each update that is a conflict: what it wants"),
    ("resolve_conflict", Table, Upload, Form::Row(Images::Both), &LAST, &[], "for each update that is a conflict, after both"),
    ("end_upload_rows", Table, Upload, Form::Once, &LAST, &[], "after the table's inserts and updates"),
    ("begin_upload_deletes", Table, Upload, Form::Once, &LAST, &[], "before the table's deletes"),
    ("upload_delete", Table, Upload, Form::Row(Images::Old), &LAST, &[], "for each delete"),
    ("end_upload_deletes", Table, Upload, Form::Once, &LAST, &[], "after the table's deletes"),
    ("end_upload", Both, Upload, Form::Once, &LAST, &[], "after the last row of the table, or of the upload"),
    ("upload_statistics", Both, Upload, Form::Once, &COUNTS_UP, &[], "after the upload, with its figures"),
    ("download_cursor", Table, Download, Form::Rows, &["last_download", "next_last_download"], &[], "yields the rows that the remote gets"),
    ("download_delete_cursor", Table, Download, Form::Keys, &["last_download", "next_last_download"], &[], "yields the keys of rows that it is to lose"),
    ("download_statistics", Both, End, Form::Once, &COUNTS_DOWN, &[], "after the download, with its figures"),
    ("end_synchronization", Both, End, Form::Once, &LAST, &[], "a sync is over"),
}

/// Every `{s.name}` parameter that some event has.
pub fn parameters() -> impl Iterator<Item = &'static str> {
    let of_events = EVENTS.iter().flat_map(|it| it.parameters.iter().copied());
    COMMON.into_iter().chain(["table"]).chain(of_events)
}

/// The type of a `{s.name}` parameter.
pub(super) fn parameter_type(name: &str) -> ColumnType {
    if ["last_download", "last_upload", "next_last_download"].contains(&name) {
        return ColumnType::TimestampTz;
    }
    match COMMON.contains(&name) || name == "table" {
        true => ColumnType::Text,
        false => ColumnType::Integer,
    }
}

/// An event by its name.
pub fn event(name: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|it| it.name == name)
}
