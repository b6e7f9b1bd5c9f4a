//! The commands of docs/operations.md, run as they stand there.

use std::process::Command;
use std::time::Duration;

use tidewater_testing::postgres::Postgres;

use crate::centre::{Centre, sqlite_rows};
use crate::program::{Place, free_url, sqlite};
use crate::shop::{SCHEMA, TABLES, add_user, configure, password};

const MANUAL: &str = include_str!("../../../../docs/operations.md");

/// The blocks of commands that are marked for a test, in order.
fn blocks(mark: &str) -> Vec<&'static str> {
    let begin = format!("<!-- run: {mark} -->\n```sh\n");
    let parts = MANUAL.split(&begin).skip(1);
    parts.filter_map(|part| part.split("```").next()).collect()
}

/// A folder in which the commands of the manual work.
struct Desk {
    place: Place,
    variables: Vec<(&'static str, String)>,
}

impl Desk {
    fn run(&self, mark: &str) {
        let blocks = blocks(mark);
        assert!(!blocks.is_empty(), "nothing is marked {mark:?}");
        for block in blocks {
            let run = Command::new("sh")
                .args(["-e", "-c", block])
                .current_dir(self.place.path(""))
                .envs(self.variables.iter().map(|(name, value)| (name, value)))
                .output()
                .expect("sh runs");
            let errors = String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success(), "{block}\n{errors}");
        }
    }
}

/// The folder of the program under test, and other folders, before what PATH says.
pub(crate) fn path(others: &[std::path::PathBuf]) -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tidewater"));
    let folder = program.parent().expect("a folder").to_owned();
    let known = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(others.iter().cloned());
    let all = std::env::join_paths(folders.chain(std::env::split_paths(&known)));
    all.expect("folders without colons")
        .into_string()
        .expect("UTF-8")
}

/// Backup, more work, the accident, restore; then everybody goes on and ends equal.
fn restored(desk: &Desk, centre: &Centre, backend: &str) {
    let place = &desk.place;
    centre.execute(SCHEMA);
    configure(place, centre, "", TABLES);
    place.tidewater(&["deploy"]).done();
    for user in ["nancy", "steve"] {
        add_user(place, user);
    }
    let url = free_url();
    let server = place.serve_on(&url, &[]);
    for user in ["nancy", "steve"] {
        let file = format!("{user}.db");
        let account = ["--user", user, "--publication", "main"];
        let first = [&["sync", &file, "--server", &url][..], &account].concat();
        place.tidewater_as(&password(user), &first).done();
    }
    desk.run(&format!("{backend} backup"));

    let change = |user: &str, sql: &str| {
        sqlite(&place.path(&format!("{user}.db")))
            .execute_batch(sql)
            .unwrap();
    };
    let sync = |user: &str| {
        let file = format!("{user}.db");
        place.tidewater_as(&password(user), &["sync", &file]).done();
    };
    change("nancy", "UPDATE customer SET note = 'after the backup'");
    sync("nancy");
    server.terminate();
    // Somebody's session is still open: the restore must neither fail nor go on half done.
    let session = centre.session();
    if let Some(session) = &session {
        session.execute("SELECT 1");
    }
    desk.run(&format!("{backend} restore"));
    drop(session);
    assert_eq!(centre.rows("SELECT count(*) FROM product"), ["2"]);

    let server = place.serve_on(&url, &[]);
    change("steve", "INSERT INTO product VALUES (7, 'pin')");
    for _ in 0..2 {
        sync("steve");
        sync("nancy");
    }
    for (user, rep) in [("nancy", 1), ("steve", 2)] {
        let remote = sqlite(&place.path(&format!("{user}.db")));
        for (mine, all) in [
            ("SELECT * FROM product ORDER BY 1".to_owned(), None),
            (
                "SELECT * FROM customer ORDER BY 1".to_owned(),
                Some(format!(
                    "SELECT * FROM customer WHERE rep_id = {rep} ORDER BY 1"
                )),
            ),
        ] {
            let expected = centre.rows(all.as_ref().unwrap_or(&mine));
            assert_eq!(sqlite_rows(&remote, &mine), expected, "{user}");
        }
    }
    let status = ["status", "-c", "tidewater.toml"];
    // Servers note what they find in the background.
    let found = (0..200)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            place.tidewater(&[&status[..], &["--json"]].concat()).json()
        })
        .find(|found| found["incident_counts"]["uploads_missing"] == 1)
        .expect("the server notes that uploads are missing");
    let incidents = found["incidents"].as_array().unwrap();
    let mut incidents = incidents.iter();
    let missing = incidents
        .find(|it| it["kind"] == "uploads_missing")
        .unwrap();
    assert_eq!(missing["user"], "nancy");
    let text = place.tidewater(&status).done().stdout;
    assert!(text.contains("failed over with loss"), "{text}");
    desk.run("both");
    let users = place.tidewater(&["user", "list"]).done().stdout;
    assert!(
        users.contains("margaret") && users.contains("disabled"),
        "{users}"
    );
    drop(server);
}

#[test]
fn the_operators_commands_for_postgresql_do_what_the_manual_says() {
    let postgres = Postgres::start().expect("PostgreSQL starts");
    postgres.create_database("shop").unwrap();
    let url = postgres.url("shop");
    let desk = Desk {
        place: Place::new(),
        variables: vec![
            ("PATH", path(&[postgres.programs()])),
            ("DATABASE_URL", url.clone()),
            ("MAINTENANCE_URL", postgres.url("postgres")),
        ],
    };
    restored(&desk, &Centre::Postgres(url), "postgres");
}

#[test]
fn the_operators_commands_for_sqlite_do_what_the_manual_says() {
    let place = Place::new();
    let centre = Centre::Sqlite(place.path("shop.db"));
    let desk = Desk {
        place,
        variables: vec![("PATH", path(&[]))],
    };
    restored(&desk, &centre, "sqlite");
}
