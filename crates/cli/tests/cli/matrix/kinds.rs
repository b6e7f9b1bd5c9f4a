//! The kinds of tables of the matrix: what stands in the configuration, in scripts and in the
//! database for each.

use crate::centre::Centre;
use crate::program::Place;

/// How the rows of the table go up and come down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Generated,
    RowScripts,
    SetScripts,
    TimestampDownload,
    UploadHandler,
    DownloadHandler,
}

pub(super) const KINDS: [Kind; 6] = [
    Kind::Generated,
    Kind::RowScripts,
    Kind::SetScripts,
    Kind::TimestampDownload,
    Kind::UploadHandler,
    Kind::DownloadHandler,
];

/// What the table of the centre is for all kinds: a note has a topic that has to be open.
const SCHEMA: &str = "
    CREATE TABLE topic (id INTEGER NOT NULL PRIMARY KEY);
    CREATE TABLE note (
        id INTEGER NOT NULL PRIMARY KEY,
        topic INTEGER NOT NULL REFERENCES topic (id),
        body TEXT NOT NULL,
        via TEXT,
        changed_at <time> NOT NULL DEFAULT CURRENT_TIMESTAMP);
    INSERT INTO topic VALUES (1), (2);
";

const NOTES: &str = "
    INSERT INTO note (id, topic, body) VALUES
        (1, 1, 'one'), (2, 1, 'two'), (3, 1, 'three'), (4, 1, 'four'), (5, 1, 'five'),
        (6, 2, 'six'), (7, 2, 'seven'), (8, 2, 'eight');
";

/// The times by which notes are downloaded, and the keys that are gone.
const SQLITE_TIMES: &str = "
    CREATE TABLE gone (id INTEGER NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
    CREATE TRIGGER stamp AFTER UPDATE OF topic, body, via ON note
        BEGIN UPDATE note SET changed_at = CURRENT_TIMESTAMP WHERE id = NEW.id; END;
    CREATE TRIGGER stamp_new AFTER INSERT ON note
        BEGIN UPDATE note SET changed_at = CURRENT_TIMESTAMP WHERE id = NEW.id; END;
    CREATE TRIGGER bury AFTER DELETE ON note
        BEGIN INSERT INTO gone (id) VALUES (OLD.id); END;
";

const POSTGRES_TIMES: &str = "
    CREATE TABLE gone (id INTEGER NOT NULL, at timestamptz NOT NULL DEFAULT now());
    CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.changed_at := now(); RETURN NEW; END';
    CREATE FUNCTION bury() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO gone (id) VALUES (OLD.id); RETURN NULL; END';
    CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON note FOR EACH ROW EXECUTE FUNCTION stamp();
    CREATE TRIGGER bury AFTER DELETE ON note FOR EACH ROW EXECUTE FUNCTION bury();
";

/// What a handler remembers; notes stand there if the table lives with it.
const HANDLER_SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE topic (id INTEGER NOT NULL PRIMARY KEY);
    CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, topic INTEGER NOT NULL,
        body TEXT NOT NULL, via TEXT);
    CREATE TABLE answered (key TEXT NOT NULL PRIMARY KEY, verdict TEXT NOT NULL);
    CREATE TABLE log (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL);
    CREATE TRIGGER inserted AFTER INSERT ON note BEGIN INSERT INTO log (id) VALUES (NEW.id); END;
    CREATE TRIGGER updated AFTER UPDATE ON note BEGIN INSERT INTO log (id) VALUES (NEW.id); END;
    CREATE TRIGGER deleted AFTER DELETE ON note BEGIN INSERT INTO log (id) VALUES (OLD.id); END;
    INSERT INTO topic VALUES (1), (2);
";

const FETCH: (&str, &str) = (
    "upload_fetch",
    "SELECT id, topic, body, via FROM note WHERE id = {r.id};",
);

const ROW_SCRIPTS: [(&str, &str); 4] = [
    (
        "upload_insert",
        "INSERT INTO note (id, topic, body, via)
         VALUES ({r.id}, {r.topic}, {r.body}, 'row script');",
    ),
    (
        "upload_update",
        "UPDATE note SET topic = {r.topic}, body = {r.body}, via = 'row script'
         WHERE id = {r.id};",
    ),
    ("upload_delete", "DELETE FROM note WHERE id = {r.id};"),
    FETCH,
];

const SET_SCRIPTS: [(&str, &str); 4] = [
    (
        "upload_insert",
        "INSERT INTO note (id, topic, body, via)
         SELECT id, topic, body, 'set script' FROM {rows} AS r;",
    ),
    (
        "upload_update",
        "UPDATE note SET topic = r.topic, body = r.body, via = 'set script'
         FROM {rows} AS r WHERE note.id = r.id;",
    ),
    (
        "upload_delete",
        "DELETE FROM note WHERE id IN (SELECT id FROM {rows} AS r);",
    ),
    FETCH,
];

const TIME_SCRIPTS: [(&str, &str); 2] = [
    (
        "download_cursor",
        "SELECT id, topic, body, via FROM note WHERE changed_at >= {s.last_download};",
    ),
    (
        "download_delete_cursor",
        "SELECT id FROM gone WHERE at >= {s.last_download};",
    ),
];

impl Kind {
    /// The column of the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Generated => "generated",
            Kind::RowScripts => "row scripts",
            Kind::SetScripts => "set scripts",
            Kind::TimestampDownload => "timestamp download",
            Kind::UploadHandler => "upload handler",
            Kind::DownloadHandler => "download handler",
        }
    }

    /// What the column `via` of a note says that a device has written.
    pub(super) fn via(self) -> &'static str {
        match self {
            Kind::Generated | Kind::TimestampDownload => "",
            Kind::RowScripts => "row script",
            Kind::SetScripts => "set script",
            Kind::UploadHandler | Kind::DownloadHandler => "handler",
        }
    }

    pub(super) fn has_handler(self) -> bool {
        matches!(self, Kind::UploadHandler | Kind::DownloadHandler)
    }

    /// Whether a script writes updates of devices.
    pub(super) fn scripts_updates(self) -> bool {
        matches!(self, Kind::RowScripts | Kind::SetScripts)
    }

    /// Whether a script or a handler says which rows come down.
    pub(super) fn has_own_download(self) -> bool {
        matches!(self, Kind::TimestampDownload | Kind::DownloadHandler)
    }

    fn scripts(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::RowScripts => &ROW_SCRIPTS,
            Kind::SetScripts => &SET_SCRIPTS,
            Kind::TimestampDownload => &TIME_SCRIPTS,
            Kind::Generated | Kind::UploadHandler | Kind::DownloadHandler => &[],
        }
    }

    /// The table in the configuration, with a partition and further lines.
    pub(super) fn table(self, handler: &str, partition: &str, more: &str) -> String {
        let own = match self {
            Kind::Generated | Kind::RowScripts | Kind::SetScripts => String::new(),
            Kind::TimestampDownload => "tracking = \"off\"\n".to_owned(),
            Kind::UploadHandler => format!("handler = \"{handler}\"\n"),
            Kind::DownloadHandler => {
                format!("handler = \"{handler}\"\nupload = \"handler\"\ndownload = \"handler\"\n")
            }
        };
        format!(
            "[[publication.table]]\nname = \"note\"\ncolumns = [\"id\", \"topic\", \"body\", \"via\"]\n\
             partition = {partition}\n{own}{more}\n"
        )
    }

    /// Makes the tables, with a few notes where they live; gives the database of the notes.
    pub(super) fn prepare(self, place: &Place, centre: &Centre) -> Centre {
        let (time, times) = match centre {
            Centre::Sqlite(_) => ("TEXT", SQLITE_TIMES),
            Centre::Postgres(_) => ("timestamptz", POSTGRES_TIMES),
        };
        centre.execute(&SCHEMA.replace("<time>", time));
        if self == Kind::TimestampDownload {
            centre.execute(times);
        }
        let folder = place.path("scripts/default/note");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        for (event, sql) in self.scripts() {
            place.write(&format!("scripts/default/note/{event}.sql"), sql);
        }
        if self.has_handler() {
            Centre::Sqlite(place.path("notes.db")).execute(HANDLER_SCHEMA);
        }
        let notes = match self {
            Kind::DownloadHandler => Centre::Sqlite(place.path("notes.db")),
            _ => centre.clone(),
        };
        notes.execute(NOTES);
        notes
    }
}
