//! A branch between devices and headquarters: what `docs/hierarchy.md` shows, with real processes.

use crate::centre::{Centre, on_both_centres, sqlite_rows};
use crate::manual::blocks;
use crate::program::{Place, Server, free_url, sqlite, until};
use crate::shop::password;

const MANUAL: &str = include_str!("../../../../docs/hierarchy.md");

const VISITS: &str = "SELECT visit_id, region, seller, note FROM visit ORDER BY visit_id";

/// Headquarters and a branch, as the manual sets them up.
struct Hierarchy<'p> {
    place: &'p Place,
    /// Where headquarters is.
    url: String,
    headquarters: Option<Server>,
    branch: Option<Server>,
}

impl<'p> Hierarchy<'p> {
    fn open(place: &'p Place, centre: &Centre) -> Hierarchy<'p> {
        centre.execute(&blocks(MANUAL, "sql")[0]);
        let [headquarters, branch] = &blocks(MANUAL, "toml")[..] else {
            panic!("two configurations");
        };
        let url = free_url();
        let given = "\"sqlite:headquarters.db\"";
        assert!(headquarters.contains(given));
        let headquarters = headquarters.replace(given, &format!("{:?}", centre.url()));
        place.write("headquarters.toml", &headquarters);
        assert!(branch.contains("tcp://127.0.0.1:7439"));
        let branch = branch.replace("tcp://127.0.0.1:7439", &url).replace(
            "[upstream]",
            "admin = \"http://127.0.0.1:7450\"\n\n[upstream]",
        );
        let admin = free_url().replace("tcp://", "http://");
        place.write(
            "north.toml",
            &branch.replace("http://127.0.0.1:7450", &admin),
        );
        place.write("north.password", &password("north"));
        place
            .tidewater(&["deploy", "-c", "headquarters.toml"])
            .done();
        add_user(place, "north", "headquarters.toml");
        Hierarchy {
            place,
            url,
            headquarters: None,
            branch: None,
        }
    }

    fn serve_headquarters(&mut self) {
        let server = self.place.serve_on(&self.url, &["-c", "headquarters.toml"]);
        self.headquarters = Some(server);
    }

    fn serve_branch(&mut self) {
        self.branch = Some(self.place.serve(&["-c", "north.toml"]));
    }

    fn branch(&self) -> &Server {
        self.branch.as_ref().expect("it runs")
    }

    fn first_sync(&self, user: &str) {
        let url = self.branch().url();
        self.place.first_sync(user, url, "seller", &[]).done();
    }

    fn sync(&self, file: &str) {
        self.place
            .tidewater(&["sync", file, "--server", self.branch().url()])
            .done();
    }

    fn rows(&self, file: &str, sql: &str) -> Vec<String> {
        sqlite_rows(&sqlite(&self.place.path(file)), sql)
    }

    fn edit(&self, file: &str, sql: &str) {
        let connection = sqlite(&self.place.path(file));
        connection.execute_batch(sql).expect("valid SQL");
    }
}

fn add_user(place: &Place, user: &str, config: &str) {
    let add = ["user", "add", user, "-c", config];
    place.tidewater_as(&password(user), &add).done();
}

#[test]
fn the_manual_holds_and_the_line_may_be_away() {
    on_both_centres(|place, centre| {
        let mut all = Hierarchy::open(place, centre);
        place
            .tidewater(&["deploy", "-c", "north.toml"])
            .exits(1)
            .tells(&["fetched nothing", "tidewater serve"]);
        all.serve_headquarters();
        all.serve_branch();
        for user in ["ann", "ben"] {
            add_user(place, user, "north.toml");
            all.first_sync(user);
        }
        assert_eq!(all.rows("ann.db", VISITS), ["v1|1|ann|new"]);

        // Up, and down.
        all.edit("ann.db", "UPDATE visit SET note = 'seen'");
        all.edit(
            "ann.db",
            "INSERT INTO visit VALUES ('v4', 1, 'ann', 'mine')",
        );
        all.sync("ann.db");
        until("it is at headquarters", || {
            centre.rows(VISITS)[0] == "v1|1|ann|seen" && centre.rows(VISITS).len() == 4
        });
        centre.execute("UPDATE visit SET seller = 'ben' WHERE visit_id = 'v1'");
        until("it is at the branch", || {
            all.rows("north.db", VISITS)[0] == "v1|1|ben|seen"
        });
        all.sync("ben.db");
        all.sync("ann.db");
        assert_eq!(
            all.rows("ben.db", VISITS),
            ["v1|1|ben|seen", "v2|1|ben|new"]
        );
        assert_eq!(all.rows("ann.db", VISITS), ["v4|1|ann|mine"]);

        // Without headquarters, also when the branch is started anew.
        drop(all.headquarters.take());
        all.branch().logs("headquarters cannot be reached");
        all.edit("ann.db", "UPDATE visit SET note = 'offline'");
        all.sync("ann.db");
        let (code, log) = all.branch.take().expect("it runs").terminate();
        assert_eq!(code, 0, "{log}");
        assert_eq!(
            log.matches("headquarters cannot be reached").count(),
            1,
            "{log}"
        );
        all.serve_branch();
        all.sync("ben.db");
        until("the server has counted", || {
            let status = place
                .tidewater(&["status", "-c", "north.toml", "--json"])
                .done()
                .json();
            assert_eq!(status["upstream"]["pending"], 1, "{status}");
            let figures = status["server"]["figures"].to_string();
            figures.contains("tidewater_upstream_failing")
        });
        let told = place.tidewater(&["status", "-c", "north.toml"]).done();
        assert!(told.stdout.contains("headquarters"), "{told:#?}");
        all.serve_headquarters();
        until("it is at headquarters", || {
            centre.rows(VISITS)[3] == "v4|1|ann|offline"
        });
        all.branch().logs("in step with headquarters again");
    });
}

#[test]
fn what_headquarters_refuses_is_told_at_the_branch_and_goes_to_the_devices_when_it_is_settled() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let mut all = Hierarchy::open(&place, &centre);
    centre.execute(
        "CREATE TRIGGER strict BEFORE UPDATE ON visit WHEN NEW.note = 'rude'
         BEGIN SELECT RAISE(ABORT, 'not so'); END",
    );
    all.serve_headquarters();
    all.serve_branch();
    add_user(&place, "ann", "north.toml");
    all.first_sync("ann");
    all.edit("ann.db", "UPDATE visit SET note = 'rude'");
    all.sync("ann.db");
    all.branch().logs("headquarters has refused rows");
    let refused = place.tidewater(&["refused", "list", "north.db"]).done();
    assert!(refused.stdout.contains("not so"), "{refused:#?}");
    assert_eq!(centre.rows(VISITS)[0], "v1|1|ann|new");
    place
        .tidewater(&["refused", "discard", "north.db", "--all"])
        .done();
    until("it is as headquarters has it", || {
        all.sync("ann.db");
        all.rows("ann.db", VISITS) == ["v1|1|ann|new"]
    });
}

#[test]
fn headquarters_schema_reaches_the_devices_and_a_live_line_brings_changes_at_once() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let mut all = Hierarchy::open(&place, &centre);
    let branch = place.read("north.toml");
    place.write("north.toml", &branch.replace("\"1s\"", "\"live\""));
    all.serve_headquarters();
    all.serve_branch();
    add_user(&place, "ann", "north.toml");
    all.first_sync("ann");
    centre.execute("ALTER TABLE visit ADD COLUMN stars INTEGER");
    place
        .tidewater(&["deploy", "-c", "headquarters.toml"])
        .done();
    // A live line hears of rows: of another schema with them.
    let headquarters = all.headquarters.as_ref().expect("it runs");
    headquarters.logs("serving what is deployed now");
    centre.execute("UPDATE visit SET stars = 5");
    all.branch().logs("deployed again");
    until("the column is there", || {
        all.sync("ann.db");
        let columns = "SELECT count(*) FROM pragma_table_info('visit') WHERE name = 'stars'";
        all.rows("ann.db", columns) == ["1"]
    });
    until("its values are there", || {
        all.sync("ann.db");
        all.rows("ann.db", "SELECT stars FROM visit") == ["5"]
    });
    all.edit("ann.db", "UPDATE visit SET stars = 4");
    all.sync("ann.db");
    until("it is at headquarters", || {
        centre.rows("SELECT stars FROM visit WHERE visit_id = 'v1'") == ["4"]
    });
    // The triggers that tell devices are still there.
    centre.execute("UPDATE visit SET stars = 3");
    until("it is at the device", || {
        all.sync("ann.db");
        all.rows("ann.db", "SELECT stars FROM visit") == ["3"]
    });
}

#[test]
fn a_branch_waits_for_its_first_download_and_wrong_configurations_are_told() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let mut all = Hierarchy::open(&place, &centre);
    // Nobody answers yet: it waits, and ends when it is told to.
    let config = place.read("north.toml");
    let mut waiting = place.command(&["serve", "-c", "north.toml"]);
    let mut waiting = waiting.spawn().expect("the program starts");
    until("it has made the file", || place.path("north.db").exists());
    let pid = waiting.id().to_string();
    let kill = std::process::Command::new("kill").arg(&pid).status();
    assert!(kill.is_ok_and(|it| it.success()));
    assert!(waiting.wait().expect("it ends").success());

    all.serve_headquarters();
    let wrong = |from: &str, to: &str, parts: &[&str]| {
        assert!(config.contains(from), "{from}");
        place.write("wrong.toml", &config.replace(from, to));
        let run = place.tidewater(&["serve", "-c", "wrong.toml", "--listen", "tcp://127.0.0.1:0"]);
        assert_ne!(run.code, 0);
        let told = format!("{}{}", run.stdout, run.stderr);
        for part in parts {
            assert!(told.contains(part), "{part:?} is not in {told}");
        }
    };
    place.write("wrong.password", "wrong");
    wrong(
        "north.password",
        "wrong.password",
        &["error: headquarters tcp://", "user and password do not fit"],
    );
    wrong("\"branch\"", "\"brunch\"", &["brunch"]);
    wrong(
        "\"sqlite:north.db\"",
        "\"postgres://u@127.0.0.1/db\"",
        &["[upstream] needs an SQLite file", "sqlite:branch.db"],
    );
    wrong(
        &all.url,
        "tcp://127.0.0.1:7449",
        &["is this server itself", "above it"],
    );
    wrong(
        "user = \"north\"",
        "password = \"x\"",
        &["more than one way"],
    );
    wrong("\"1s\"", "\"often\"", &["upstream.every", "\"live\""]);
    wrong(
        "sqlite:north.db",
        "sqlite:centre.db",
        &["consolidated database", "file that is not there yet"],
    );
    all.serve_branch();
    add_user(&place, "ann", "north.toml");
    all.first_sync("ann");
    assert_eq!(all.rows("ann.db", VISITS), ["v1|1|ann|new"]);
}
