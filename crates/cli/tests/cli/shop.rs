//! The shop that most tests use: its tables, its configuration, its users.

use std::path::PathBuf;

use crate::centre::{Centre, sqlite_rows};
use crate::program::{Place, Run, Server, sqlite};

pub(crate) const SCHEMA: &str = "
    CREATE TABLE rep (rep_id INTEGER NOT NULL PRIMARY KEY, login TEXT NOT NULL);
    CREATE TABLE customer (
        customer_id INTEGER NOT NULL PRIMARY KEY,
        rep_id INTEGER NOT NULL REFERENCES rep (rep_id),
        name TEXT NOT NULL CHECK (trim(name) <> ''),
        note TEXT);
    CREATE TABLE product (product_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
    INSERT INTO rep VALUES (1, 'nancy'), (2, 'steve');
    INSERT INTO customer VALUES (10, 1, 'Ada', NULL), (11, 1, 'Bob', 'x'), (20, 2, 'Cleo', NULL);
    INSERT INTO product VALUES (1, 'pen'), (2, 'ink');
";

/// Customers belong to the representative who signs in; the rest is everyone's.
pub(crate) const TABLES: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "rep"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "customer"
partition = { columns = ["rep_id"], values = "SELECT rep_id FROM rep WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
"#;

/// A shop that is deployed and served, with the users nancy and steve.
pub(crate) struct Shop {
    // The server goes first: it holds files in the folder open.
    pub(crate) server: Server,
    pub(crate) centre: Centre,
    pub(crate) place: Place,
}

impl Shop {
    /// On the embedded SQLite centre, served at an address that another server can take later.
    pub(crate) fn open_on(url: &str) -> Shop {
        let place = Place::new();
        let centre = prepared(&place);
        Shop {
            server: place.serve_on(url, &[]),
            centre,
            place,
        }
    }

    /// On the embedded SQLite centre.
    pub(crate) fn open() -> Shop {
        let place = Place::new();
        let centre = Centre::sqlite(&place);
        Shop::open_in(place, centre)
    }

    /// On PostgreSQL.
    pub(crate) fn open_on_postgres() -> Shop {
        Shop::open_in(Place::new(), Centre::postgres())
    }

    pub(crate) fn open_in(place: Place, centre: Centre) -> Shop {
        prepare(&place, &centre);
        let server = place.serve(&[]);
        Shop {
            server,
            centre,
            place,
        }
    }

    /// One on each kind of centre, one after the other.
    pub(crate) fn on_both_centres(test: impl Fn(Shop)) {
        test(Shop::open());
        test(Shop::open_on_postgres());
    }

    /// The first sync of a remote that is named after its user.
    pub(crate) fn first_sync(&self, user: &str, more: &[&str]) -> Run {
        self.place.first_sync(user, self.server.url(), "main", more)
    }

    /// A remote that has synced.
    pub(crate) fn remote(&self, user: &str) -> Remote {
        self.remote_of(user, "main")
    }

    /// The same, of another publication.
    pub(crate) fn remote_of(&self, user: &str, publication: &str) -> Remote {
        let url = self.server.url();
        self.place.first_sync(user, url, publication, &[]).done();
        self.remote_in(&format!("{user}.db"))
    }

    /// The remote in a file.
    pub(crate) fn remote_in(&self, name: &str) -> Remote {
        Remote {
            path: self.place.path(name),
            name: name.to_owned(),
        }
    }

    pub(crate) fn sync(&self, remote: &Remote) -> Run {
        self.place.tidewater(&["sync", &remote.name, "--json"])
    }

    pub(crate) fn sync_without_retry(&self, remote: &Remote) -> Run {
        let arguments = ["sync", &remote.name, "--json", "--no-retry"];
        self.place.tidewater(&arguments)
    }
}

/// A remote's file.
pub(crate) struct Remote {
    pub(crate) name: String,
    path: PathBuf,
}

impl Remote {
    /// Runs statements as an application does.
    pub(crate) fn execute(&self, sql: &str) {
        sqlite(&self.path).execute_batch(sql).expect("valid SQL");
    }

    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        sqlite_rows(&sqlite(&self.path), sql)
    }
}

/// An SQLite centre that is deployed, with a configuration and users, but not served.
pub(crate) fn prepared(place: &Place) -> Centre {
    let centre = Centre::sqlite(place);
    prepare(place, &centre);
    centre
}

/// Tables, configuration, deployment, users.
fn prepare(place: &Place, centre: &Centre) {
    centre.execute(SCHEMA);
    configure(place, centre, "", TABLES);
    place.tidewater(&["deploy"]).done();
    for user in ["nancy", "steve"] {
        add_user(place, user);
    }
}

/// Writes the configuration file.
pub(crate) fn configure(place: &Place, centre: &Centre, server: &str, tables: &str) {
    configure_as(place, "tidewater.toml", centre, server, tables);
}

/// The same, under another name.
pub(crate) fn configure_as(place: &Place, name: &str, centre: &Centre, server: &str, tables: &str) {
    let url = toml::Value::String(centre.url());
    place.write(
        name,
        &format!("[server]\nconsolidated = {url}\n{server}\n{tables}"),
    );
}

pub(crate) fn add_user(place: &Place, user: &str) {
    place
        .tidewater_as(&password(user), &["user", "add", user])
        .done();
}

pub(crate) fn password(user: &str) -> String {
    format!("password of {user}")
}
