//! The small world in which a kind of table is tried: its centre, its server, its devices, and its
//! handler.

use std::process::{Child, Command, Stdio};

use super::kinds::Kind;
use crate::centre::{Centre, sqlite_rows};
use crate::program::{Place, Run, Server, free_url, sqlite, until};
use crate::shop::{add_user, password};

const HANDLER: &str = include_str!("handler.py");

/// All notes, as they are where they live.
pub(super) const NOTES: &str = "SELECT id, topic, body, via FROM note ORDER BY id";

/// What became of a feature with a kind of table.
#[derive(Debug)]
pub(super) enum Cell {
    Works,
    /// What was said.
    Refused(String),
}

pub(super) struct World {
    // The server goes first: it holds files in the folder open.
    server: Option<Server>,
    handler: Option<Child>,
    /// Where the handler listens.
    handler_url: String,
    pub(super) kind: Kind,
    pub(super) centre: Centre,
    /// The database in which the notes are: the centre, or that of the handler.
    pub(super) notes: Centre,
    url: String,
    /// What servers that have ended logged as errors.
    pub(super) faults: Vec<String>,
    pub(super) place: Place,
}

/// The file of a device of the user nancy.
pub(super) struct Device<'w> {
    world: &'w World,
    pub(super) file: String,
}

impl World {
    /// A world whose centre is deployed and served, with lines of the publication.
    pub(super) fn open(kind: Kind, is_postgres: bool) -> World {
        let mut world = World::prepare(kind, is_postgres);
        world.configure("tidewater.toml", &world.publication("\"everyone\"", "", ""));
        world.place.tidewater(&["deploy"]).done();
        add_user(&world.place, "nancy");
        world.serve();
        world
    }

    /// The same, before its configuration is written.
    pub(super) fn prepare(kind: Kind, is_postgres: bool) -> World {
        let place = Place::new();
        let centre = match is_postgres {
            true => Centre::postgres(),
            false => Centre::sqlite(&place),
        };
        let notes = kind.prepare(&place, &centre);
        let handler_url = free_url().replace("tcp://", "http://");
        let handler = kind
            .has_handler()
            .then(|| start_handler(kind, &place, &handler_url));
        World {
            server: None,
            handler,
            handler_url: format!("{handler_url}/"),
            kind,
            centre,
            notes,
            url: free_url(),
            faults: Vec::new(),
            place,
        }
    }

    /// The publication, with a partition of its table and further lines of both.
    pub(super) fn publication(&self, partition: &str, of_table: &str, own: &str) -> String {
        let table = self.kind.table(&self.handler_url, partition, of_table);
        format!("[[publication]]\nname = \"main\"\n{own}\n{table}")
    }

    pub(super) fn configure(&self, name: &str, publication: &str) {
        let server = format!("[server]\nconsolidated = {:?}\n", self.centre.url());
        self.place.write(name, &format!("{server}{publication}"));
    }

    pub(super) fn serve(&mut self) {
        self.server = Some(self.place.serve_on(&self.url, &[]));
    }

    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().expect("it is served")
    }

    pub(super) fn stop(&mut self) {
        let server = self.server.take().expect("it is served");
        let (code, log) = server.terminate();
        assert_eq!(code, 0, "{log}");
        let faults = log.lines().filter(|it| it.contains("ERROR"));
        self.faults.extend(faults.map(str::to_owned));
    }

    /// A device that has synced.
    pub(super) fn device(&self, name: &str) -> Device<'_> {
        let device = self.new_device(name);
        device.begin(self.server().url(), &[]).done();
        device
    }

    pub(super) fn new_device(&self, name: &str) -> Device<'_> {
        Device {
            world: self,
            file: format!("{name}.db"),
        }
    }

    /// Has a backup take the centre's place.
    pub(super) fn restore(&mut self, backup: Centre) {
        if self.kind != Kind::DownloadHandler {
            self.notes = backup.clone();
        }
        self.centre = backup;
        self.configure("tidewater.toml", &self.publication("\"everyone\"", "", ""));
    }

    /// From now on notes of this topic are taken.
    pub(super) fn open_topic(&self, topic: i64) {
        let sql = format!("INSERT INTO topic VALUES ({topic})");
        self.centre.execute(&sql);
        if self.kind.has_handler() {
            Centre::Sqlite(self.place.path("notes.db")).execute(&sql);
        }
    }

    /// The body of a note, and who has written it, where the notes are.
    pub(super) fn note(&self, id: i64) -> Vec<String> {
        let sql = format!("SELECT topic, body, via FROM note WHERE id = {id}");
        self.notes.rows(&sql)
    }

    /// What a note of a device looks like where the notes are.
    pub(super) fn written(&self, topic: i64, body: &str) -> Vec<String> {
        vec![format!("{topic}|{body}|{}", self.kind.via())]
    }

    /// The number of the one refused row of this key that waits.
    pub(super) fn refused(&self, key: i64) -> String {
        let listed = self
            .place
            .tidewater(&["refused", "list", "--open", "--json"]);
        number_of(&listed.done(), "refused", key)
    }

    /// The number of the one conflict of this key.
    pub(super) fn conflict(&self, key: i64) -> String {
        let listed = self
            .place
            .tidewater(&["conflicts", "list", "--json"])
            .done();
        number_of(&listed, "conflicts", key)
    }

    /// The id of a device's remote.
    pub(super) fn remote_id(&self, device: &Device) -> String {
        let status = self.place.tidewater(&["status", &device.file, "--json"]);
        let status = status.done().json();
        status["remote_id"].as_str().expect("it has one").to_owned()
    }
}

/// The number of the one object of an array whose key is this one.
fn number_of(listed: &Run, array: &str, key: i64) -> String {
    let object = listed.json();
    let all = object[array].as_array().expect("an array").iter();
    let found: Vec<_> = all
        .filter(|it| it["key"] == serde_json::json!([key]))
        .collect();
    let [one] = &found[..] else {
        panic!("{} of note {key}: {object:#}", found.len());
    };
    one["id"].to_string()
}

fn start_handler(kind: Kind, place: &Place, url: &str) -> Child {
    place.write("handler.py", HANDLER);
    let port = url.rsplit(':').next().expect("it has a port");
    let keeps = match kind {
        Kind::DownloadHandler => "yes",
        _ => "no",
    };
    let output = std::fs::File::create(place.path("handler.log")).expect("the folder is ours");
    let child = Command::new("python3")
        .arg("handler.py")
        .env("PORT", port)
        .env("KEEPS", keeps)
        .current_dir(place.path(""))
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a file has more than one handle"))
        .stderr(output)
        .spawn()
        .expect("python3 runs");
    until("the handler listens", || {
        place.read("handler.log").contains("listening on")
    });
    child
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(handler) = &mut self.handler {
            // One that has ended already needs nothing.
            let _ = handler.kill();
            let _ = handler.wait();
            if std::thread::panicking() {
                eprintln!("--- the handler's log\n{}", self.place.read("handler.log"));
            }
        }
    }
}

impl Device<'_> {
    /// The first sync of the file.
    pub(super) fn begin(&self, url: &str, more: &[&str]) -> Run {
        let first = ["sync", &self.file, "--server", url, "--user", "nancy"];
        let arguments = [&first[..], &["--publication", "main"], more].concat();
        self.world
            .place
            .tidewater_as(&password("nancy"), &arguments)
    }

    /// A sync with another address, which the file remembers.
    pub(super) fn sync_with(&self, url: &str) -> Run {
        self.world
            .place
            .tidewater(&["sync", &self.file, "--server", url])
    }

    pub(super) fn sync(&self) -> Run {
        self.world.place.tidewater(&["sync", &self.file])
    }

    pub(super) fn execute(&self, sql: &str) {
        let file = sqlite(&self.world.place.path(&self.file));
        file.execute_batch(sql).expect("valid SQL");
    }

    pub(super) fn rows(&self, sql: &str) -> Vec<String> {
        sqlite_rows(&sqlite(&self.world.place.path(&self.file)), sql)
    }

    /// Syncs, and has then what the others have.
    #[track_caller]
    pub(super) fn comes_to_equal(&self) {
        // What a handler has seen to comes with the sync after it.
        self.sync().done();
        self.sync().done();
        assert_eq!(
            self.rows(NOTES),
            self.world.notes.rows(NOTES),
            "{}",
            self.file
        );
    }
}
