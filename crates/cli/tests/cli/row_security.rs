//! Roles and row security of PostgreSQL, with the example of docs/row-security.md as it stands there.

use crate::centre::Centre;
use crate::manual::blocks;
use crate::program::{Place, sqlite};

const MANUAL: &str = include_str!("../../../../docs/row-security.md");

/// The first block of a language.
fn block(language: &str) -> String {
    blocks(MANUAL, language).swap_remove(0)
}

/// A role of a test's own, for the database is not the only one of its server.
fn role(centre: &Centre, name: &str) -> String {
    let url = centre.url();
    format!("{name}_{}", url.rsplit('_').next().unwrap())
}

fn users(place: &Place, names: &[&str]) {
    for name in names {
        let added = place.tidewater_as("secret", &["user", "add", name]);
        added.done();
    }
}

#[test]
fn devices_act_under_the_roles_of_their_users() {
    let (place, centre) = (Place::new(), Centre::postgres());
    let clerk = role(&centre, "clerk");
    centre.execute(&block("sql").replace("clerk", &clerk));
    centre.execute(&format!(
        "INSERT INTO staff VALUES ('ada', '{clerk}'), ('bob', '{clerk}'), ('eve', 'postgres');
         INSERT INTO doc VALUES (1, 'ada', 'hers'), (2, 'bob', 'his');
         INSERT INTO line VALUES (10, 1, 'hers'), (20, 2, 'his'); TRUNCATE audit"
    ));
    let server = format!("[server]\nconsolidated = \"{}\"\n", centre.url());
    place.write("tidewater.toml", &format!("{server}{}", block("toml")));
    // Nothing is logged of a line when its document is handed over.
    for command in ["deploy", "check"] {
        let told = place.tidewater(&[command]).done();
        let told = format!("{}{}", told.stdout, told.stderr);
        assert!(
            told.contains("line: its policy \"own\" reads doc"),
            "{told}"
        );
        assert!(!told.contains("doc: its policy"), "{told}");
    }
    users(&place, &["ada", "bob", "eve"]);
    let running = place.serve(&[]);
    let sync = |user: &str| {
        let file = format!("{user}.db");
        let mut arguments = vec!["sync", &file];
        if !place.path(&file).exists() {
            let first = ["--server", running.url(), "--user", user];
            arguments.extend(first);
            arguments.extend(["--publication", "office"]);
        }
        place.tidewater_as("secret", &arguments)
    };
    sync("ada").done();
    sync("bob").done();
    sync("eve").exits(3).tells(&["no role", "operator"]);
    running.logs("is a superuser, or may do what the server's own role may");
    let rows = |user: &str, sql: &str| {
        crate::centre::sqlite_rows(&sqlite(&place.path(&format!("{user}.db"))), sql)
    };
    assert_eq!(rows("ada", "SELECT id, body FROM doc"), ["1|hers"]);
    assert_eq!(rows("ada", "SELECT id, body FROM line"), ["10|hers"]);
    let ada = sqlite(&place.path("ada.db"));
    ada.execute_batch(
        "UPDATE doc SET body = 'new' WHERE id = 1; INSERT INTO doc VALUES (3, 'ada', 'third');
         INSERT INTO line VALUES (30, 3, 'below'); INSERT INTO doc VALUES (2, 'ada', 'taken'),
           (4, 'bob', 'for bob')",
    )
    .unwrap();
    drop(ada);
    let refused = sync("ada").exits(6);
    assert!(
        refused.stdout.contains("refused     2 rows"),
        "{refused:#?}"
    );
    let written = "SELECT role, login, what FROM audit ORDER BY what";
    let by_ada = |what: &str| format!("{clerk}|ada|{what}");
    let expected = ["INSERT doc", "INSERT line", "UPDATE doc"].map(by_ada);
    assert_eq!(centre.rows(written), expected);
    // The centre gives a document to somebody else: its lines go along.
    centre.execute(
        "UPDATE doc SET owner = 'bob' WHERE id = 3; UPDATE line SET body = 'moved' WHERE id = 30",
    );
    sync("bob").done();
    assert_eq!(rows("bob", "SELECT id FROM doc ORDER BY 1"), ["2", "3"]);
    assert_eq!(
        rows("bob", "SELECT id, body FROM line ORDER BY 1"),
        ["20|his", "30|moved"]
    );
    place.tidewater(&["refused", "discard", "ada.db", "--all"]);
    sync("ada");
    assert_eq!(rows("ada", "SELECT id FROM line ORDER BY 1"), ["10"]);
    drop(running);
    centre.execute(&format!("DROP OWNED BY {clerk}; DROP ROLE {clerk}"));
}

#[test]
fn act_as_without_roles_is_told_with_its_line() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute("CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY)");
    place.write(
        "tidewater.toml",
        &format!(
            "[server]\nconsolidated = \"{}\"\n[[publication]]\nname = \"office\"\n\
             act_as = \"clerk\"\n[[publication.table]]\nname = \"doc\"\npartition = \"everyone\"\n",
            centre.url()
        ),
    );
    let told = place.tidewater(&["deploy"]).exits(1);
    told.tells(&[
        "line 4: publication \"office\", act_as: needs a consolidated database that has roles",
        "SQLite has no roles",
    ]);
}

#[test]
fn a_server_that_lacks_a_right_says_which_when_it_starts() {
    let (place, centre) = (Place::new(), Centre::postgres());
    let (keeper, clerk) = (role(&centre, "keeper"), role(&centre, "poor"));
    centre.execute(
        "CREATE TABLE note (id serial PRIMARY KEY); CREATE TABLE price (id integer PRIMARY KEY)",
    );
    let config = |url: &str, act_as: &str| {
        format!(
            "[server]\nconsolidated = \"{url}\"\n[[publication]]\nname = \"main\"\n{act_as}\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n\
             identity = {{ column = \"id\" }}\n\
             [[publication.table]]\nname = \"price\"\npartition = \"everyone\"\n\
             direction = \"download\"\n"
        )
    };
    place.write("tidewater.toml", &config(&centre.url(), ""));
    place.tidewater(&["deploy"]).done();
    centre.execute(&format!("CREATE ROLE {keeper} LOGIN; CREATE ROLE {clerk}"));
    let url = centre.url().replace("postgres@", &format!("{keeper}@"));
    place.write("tidewater.toml", &config(&url, ""));
    let told = place.tidewater(&["serve"]).exits(1);
    told.tells(&[
        "GRANT USAGE ON SCHEMA tidewater",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA tidewater",
        "operations.md",
    ]);
    centre.execute(&format!(
        "GRANT USAGE ON SCHEMA tidewater TO {keeper};
         GRANT ALL ON ALL TABLES IN SCHEMA tidewater TO {keeper};
         GRANT ALL ON ALL SEQUENCES IN SCHEMA tidewater TO {keeper};
         GRANT SELECT ON note TO {keeper}; GRANT SELECT ON price TO {keeper};
         REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    ));
    let (_, log) = place.serve(&[]).terminate();
    let grant = format!("GRANT INSERT, UPDATE, DELETE ON note TO \"{keeper}\"");
    assert!(log.contains(&grant), "{log}");
    assert!(!log.contains("ON price"), "{log}");
    let numbers = format!("GRANT USAGE, UPDATE ON SEQUENCE note_id_seq TO \"{keeper}\"");
    assert!(log.contains(&numbers), "{log}");
    assert!(!log.contains("REVOKE"), "{log}");
    centre.execute(&format!(
        "{numbers}; GRANT CREATE ON SCHEMA public TO PUBLIC"
    ));
    let (_, log) = place.serve(&[]).terminate();
    let open = "REVOKE CREATE ON SCHEMA \"public\" FROM PUBLIC";
    assert!(log.contains(open), "{log}");
    centre.execute(&grant);
    let (_, log) = place.serve(&[]).terminate();
    assert!(!log.contains("GRANT"), "{log}");
    // The same of the role under which remotes act.
    let act_as = format!("act_as = \"{clerk}\"");
    place.write("tidewater.toml", &config(&centre.url(), &act_as));
    place.tidewater(&["deploy"]).done();
    let (_, log) = place.serve(&[]).terminate();
    for grant in [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON note",
        "GRANT SELECT ON price",
    ] {
        assert!(log.contains(&format!("{grant} TO \"{clerk}\"")), "{log}");
    }
    centre.execute(&format!(
        "DROP OWNED BY {keeper}, {clerk}; DROP ROLE {keeper}, {clerk}"
    ));
}
