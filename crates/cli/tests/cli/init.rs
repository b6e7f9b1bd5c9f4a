//! What `init` writes, and what it refuses to do.

use crate::centre::Centre;
use crate::program::Place;
use crate::shop::SCHEMA;

#[test]
fn the_file_is_not_replaced_unless_forced() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    place.write("tidewater.toml", "precious");
    let url = centre.url();
    place
        .tidewater(&["init", "--consolidated", &url])
        .exits(1)
        .tells(&["tidewater.toml is there already", "--force"]);
    assert_eq!(place.read("tidewater.toml"), "precious");
    place
        .tidewater(&["init", "--consolidated", &url, "--force"])
        .done();
    assert!(place.read("tidewater.toml").contains("TODO"));
}

#[test]
fn tables_that_cannot_be_published_are_comments_with_the_reason() {
    let place = Place::new();
    let centre = Centre::postgres();
    centre.execute("CREATE TABLE note (text text); CREATE TABLE fine (id int PRIMARY KEY);");
    let url = centre.url();
    let run = place
        .tidewater(&["init", "--consolidated", &url, "--output", "here.toml"])
        .done();
    assert!(run.stderr.contains("left out: note"), "{run:#?}");
    let text = place.read("here.toml");
    assert!(text.contains("#   note: "), "{text}");
    assert!(!text.contains("name = \"note\""), "{text}");
}

#[test]
fn names_with_metacharacters_survive_into_a_deployed_configuration() {
    for postgres in [false, true] {
        let place = Place::new();
        let centre = if postgres {
            Centre::postgres()
        } else {
            Centre::sqlite(&place)
        };
        centre.execute(
            r#"CREATE TABLE "o'neil ""x""; DROP TABLE t; --"
               ("select" INTEGER NOT NULL PRIMARY KEY, "größe ${HOME} {s.username}" TEXT);"#,
        );
        let url = centre.url();
        place.tidewater(&["init", "--consolidated", &url]).done();
        let text = place.read("tidewater.toml");
        let decided = text.replace("# partition = \"everyone\"", "partition = \"everyone\"");
        place.write("tidewater.toml", &decided);
        place.tidewater(&["deploy"]).done();
    }
}

#[test]
fn a_table_that_is_not_there_is_answered_with_those_that_are() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    let url = centre.url();
    place
        .tidewater(&["init", "--consolidated", &url, "--table", "custmer"])
        .exits(1)
        .tells(&["no table \"custmer\"", "customer"]);
    place
        .tidewater(&["init", "--consolidated", &url, "--table", "product"])
        .done();
    assert!(!place.read("tidewater.toml").contains("customer"));
}

#[test]
fn an_empty_database_and_an_unknown_url_are_told_apart() {
    let place = Place::new();
    let centre = Centre::postgres();
    place
        .tidewater(&["init", "--consolidated", &centre.url()])
        .exits(1)
        .tells(&["no tables"]);
    place
        .tidewater(&["init", "--consolidated", "mysql://h/d"])
        .exits(1)
        .tells(&["postgres://", "sqlite:"]);
    place
        .tidewater(&["init", "--consolidated", "postgres://127.0.0.1:1/d"])
        .exits(2);
    assert!(!place.path("tidewater.toml").exists());
}

#[test]
fn relative_paths_in_a_configuration_start_at_its_folder() {
    let place = Place::new();
    for folder in ["conf", "data"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let shop = rusqlite::Connection::open(place.path("data/shop.db")).unwrap();
    shop.execute_batch(SCHEMA).unwrap();
    // On the command line they start where the program runs.
    let output = "conf/tidewater.toml";
    let url = "sqlite:data/shop.db";
    place
        .tidewater(&["init", "--consolidated", url, "--output", output])
        .done();
    let written = place.read(output);
    let absolute = format!("sqlite:{}", place.path("data/shop.db").display());
    assert!(written.contains(&absolute), "{written}");

    let certificate = ["cert", "--out", "conf", "--host", "127.0.0.1"];
    place.tidewater(&certificate).done();
    let relative = written
        .replace(&absolute, "sqlite:../data/shop.db")
        .replace("# partition = \"everyone\"", "partition = \"everyone\"")
        .replace("# [server.tls]", "[server.tls]")
        .replace("# certificate = ", "certificate = ")
        .replace("# key = ", "key = ");
    place.write(output, &relative);
    place.tidewater(&["deploy", "-c", output]).done();
    let more = ["-c", output, "--listen", "tls://127.0.0.1:0"];
    let server = place.serve(&more);
    assert!(server.urls[1].starts_with("tls://"));
}

#[test]
fn a_password_that_needs_escapes_in_a_url_is_told_how_and_not_repeated() {
    let place = Place::new();
    let url = "postgres://me:s3cret@word@127.0.0.1/shop";
    let run = place
        .tidewater(&["init", "--consolidated", url])
        .exits(1)
        .tells(&["the password holds '@', which is written %40"]);
    assert!(!run.stderr.contains("s3cret"), "{run:#?}");
}

#[test]
fn what_init_writes_can_be_deployed_whatever_the_tables_are_called() {
    let place = Place::new();
    let centre = Centre::postgres();
    centre.execute(
        "CREATE SCHEMA archive; CREATE TABLE note (id integer PRIMARY KEY);
         CREATE TABLE archive.note (id integer PRIMARY KEY);
         CREATE TABLE tidewater_evil (id integer PRIMARY KEY);
         CREATE DOMAIN posint AS integer CHECK (VALUE > 0);
         CREATE TABLE \"Odd name\" (id posint PRIMARY KEY, name text);
         INSERT INTO \"Odd name\" VALUES (7, 'seven');
         CREATE TABLE \"esc\u{1b}[31m\" (id integer PRIMARY KEY)",
    );
    let run = place
        .tidewater(&["init", "--consolidated", &centre.url()])
        .done();
    for told in ["left out: archive.note: ", "left out: tidewater_evil: "] {
        assert!(run.stderr.contains(told), "{told}: {run:#?}");
    }
    assert!(!run.stdout.contains('\u{1b}'), "{run:#?}");
    centre.execute(&run.stdout);
    centre.execute("INSERT INTO \"Odd name\" (name) VALUES ('eight')");
    assert_eq!(centre.rows("SELECT max(id) FROM \"Odd name\""), ["8"]);
    let text = place.read("tidewater.toml");
    let decided = text.replace("# partition = \"everyone\"", "partition = \"everyone\"");
    place.write("tidewater.toml", &decided);
    place.tidewater(&["deploy"]).done();
}

#[test]
fn people_without_a_name_get_no_sign_in_name() {
    let place = Place::new();
    let centre = Centre::postgres();
    centre.execute(
        "CREATE TABLE employee (id serial PRIMARY KEY, name text NOT NULL);
         CREATE TABLE job (id serial PRIMARY KEY, employee_id integer NOT NULL REFERENCES employee);
         CREATE TABLE job_note (id serial PRIMARY KEY, job_id integer NOT NULL REFERENCES job,
             employee_id integer NOT NULL REFERENCES employee);
         CREATE TABLE remark (id serial PRIMARY KEY, job_id integer NOT NULL REFERENCES job,
             employee_id integer NOT NULL REFERENCES employee);
         INSERT INTO employee (name) VALUES ('Ada'), (''), (' ')",
    );
    let run = place
        .tidewater(&["init", "--consolidated", &centre.url(), "--map-users"])
        .done();
    assert!(run.stderr.contains("empty name is left out"), "{run:#?}");
    let logins = "SELECT login FROM employee_login";
    assert_eq!(centre.rows(logins), ["ada"]);
    // Whom a row names may not hold the job that it needs.
    assert!(run.stderr.contains("warning: remark: "), "{run:#?}");
    let text = place.read("tidewater.toml");
    let note = text.split("name = \"job_note\"").nth(1).expect("the table");
    assert!(
        note.starts_with("\npartition = { follows = \"job\" }"),
        "{note}"
    );
}
