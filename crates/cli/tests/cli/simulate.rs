//! `tidewater simulate`: the example of docs/simulate.md, run as it stands there, and what a broken
//! script comes to.

use crate::centre::Centre;
use crate::desk::Desk;
use crate::manual::blocks;
use crate::program::{Place, Run};
use crate::shop;

const MANUAL: &str = include_str!("../../../../docs/simulate.md");

fn write_script(place: &Place, of: &str, event: &str, sql: &str) {
    let folder = place.path("scripts/default").join(of);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    std::fs::write(folder.join(event), sql).expect("a script can be written");
}

#[test]
fn what_the_manual_of_the_simulation_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, broken, whole] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    let scripts = blocks(MANUAL, "sql");
    let [forgetful, right] = &scripts[..] else {
        panic!("the manual has other scripts: {scripts:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place.write("tidewater.toml", configuration);
    write_script(&desk.place, "product", "upload_update.sql", forgetful);
    let told = desk.run(&format!("{} || echo exit code $?", broken.trim()));
    assert!(told.contains("broke a promise"), "{told}");
    assert!(told.contains("I1 (nothing is lost"), "{told}");
    assert!(told.contains("in the centre name is"), "{told}");
    assert!(told.ends_with("exit code 5"), "{told}");
    write_script(&desk.place, "product", "upload_update.sql", right);
    let told = desk.run(whole);
    assert!(told.ends_with("every promise was kept"), "{told}");
    assert!(
        told.contains("UNIQUE constraint failed: product.name"),
        "{told}"
    );
}

#[test]
fn a_seed_that_breaks_a_promise_says_the_same_again() {
    let place = Place::new();
    shop::prepared(&place);
    write_script(
        &place,
        "product",
        "upload_insert.sql",
        "SELECT {r.product_id};",
    );
    let run = place.tidewater(&["simulate", "--seeds", "0..30", "--json"]);
    assert_eq!(run.code, 5);
    let found = run.json();
    let failure = &found["failure"];
    assert_eq!(failure["promise"], "I2", "{failure}");
    let what = failure["what"].as_str().expect("it is said");
    assert!(
        what.contains("product") && what.contains("is nowhere"),
        "{what}"
    );
    let seed = failure["seed"].to_string();
    let replay = failure["replay"].as_str().expect("it is said");
    assert!(replay.contains(&format!("--seed {seed} ")), "{replay}");
    let words: Vec<&str> = replay.split(' ').skip(1).collect();
    let again = || place.tidewater(&words);
    let (one, other) = (again(), again());
    assert_eq!(one.code, 5);
    assert_eq!(one.stdout, other.stdout);
    assert!(one.stdout.contains(what), "{}", one.stdout);
    let lines = failure["lines"].as_array().expect("a list");
    for line in lines.iter().filter_map(|it| it.as_str()) {
        assert!(
            one.stdout.contains(line) || line.contains("BROKEN"),
            "{line}"
        );
    }
}

#[test]
fn the_shop_keeps_its_promises_and_is_only_read() {
    let place = Place::new();
    let centre = shop::prepared(&place);
    let everything = "SELECT count(*), sum(length(name)) FROM customer \
                      UNION ALL SELECT count(*), 0 FROM tidewater_centre_remote";
    let before = centre.rows(everything);
    let bytes = std::fs::read(place.path("centre.db")).ok();
    let told = place.tidewater(&["simulate", "--seeds", "0..15", "--json"]);
    assert_eq!(told.code, 0, "{}", told.stdout);
    let told = told.json();
    assert_eq!(told["failure"], serde_json::Value::Null);
    assert_eq!(told["seeds"], 15);
    assert!(told["tally"]["changes_of_remotes"].as_u64() > Some(100));
    assert_eq!(centre.rows(everything), before);
    assert_eq!(std::fs::read(place.path("centre.db")).ok(), bytes);
    let run = place.tidewater(&[
        "simulate", "--seed", "3", "--user", "nancy", "--empty", "--trace",
    ]);
    assert_eq!(run.code, 0, "{}", run.stdout);
    assert!(
        run.stdout.contains("r0: a device of nancy"),
        "{}",
        run.stdout
    );
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(shop::SCHEMA);
    shop::configure(&place, &centre, "", shop::TABLES);
    let fails = |arguments: &[&str], what: &str| {
        let run: Run = place.tidewater(arguments);
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert!(run.stderr.contains(what), "{}", run.stderr);
    };
    fails(
        &["simulate", "--centre-writes", "customer.nme"],
        "there is no published table or column customer.nme",
    );
    fails(&["simulate", "--seeds", "5..5"], "write FROM..TO");
}

/// What PostgreSQL has and SQLite has not is told, and the rest is simulated.
#[test]
fn a_postgresql_database_is_simulated_in_a_translation() {
    let place = Place::new();
    let centre = Centre::postgres();
    centre.execute(
        "CREATE TABLE customer (id serial PRIMARY KEY, name varchar(40) NOT NULL UNIQUE,
             status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
             since timestamptz NOT NULL DEFAULT now(), place point);
         CREATE TABLE visit (id int PRIMARY KEY, note text,
             customer int NOT NULL REFERENCES customer ON DELETE CASCADE);
         CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN NEW.since := now(); RETURN NEW; END';
         CREATE TRIGGER stamps BEFORE UPDATE ON customer FOR EACH ROW EXECUTE FUNCTION stamp();
         INSERT INTO customer (name) VALUES ('Ada'), ('Bob');
         INSERT INTO visit VALUES (1, 'x', 1), (2, NULL, 2)",
    );
    let tables = "[[publication]]\nname = \"main\"\n\
        [[publication.table]]\nname = \"public.customer\"\npartition = \"everyone\"\n\
        columns = [\"id\", \"name\", \"status\"]\n\
        [[publication.table]]\nname = \"visit\"\npartition = \"everyone\"\n";
    shop::configure(&place, &centre, "", tables);
    write_script(
        &place,
        "visit",
        "upload_update.sql",
        "UPDATE public.visit SET note = {r.note}::text, customer = {r.customer} WHERE id = {r.id};",
    );
    write_script(
        &place,
        "connection",
        "end_upload.sql",
        "SELECT set_config('app.done', {s.username}, false);",
    );
    let told = place.tidewater(&["simulate", "--seeds", "0..4", "--json"]);
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    let told = told.json();
    assert!(
        told["tally"]["changes_of_remotes"].as_u64() > Some(20),
        "{told}"
    );
    let remarks = told["remarks"].to_string();
    for what in [
        "the trigger stamps of customer",
        "the type point of customer.place",
        "scripts/default/connection/end_upload.sql",
    ] {
        assert!(remarks.contains(what), "{remarks}");
    }
    assert!(!remarks.contains("upload_update"), "{remarks}");
    assert!(
        !remarks.contains("status"),
        "a check that SQLite has: {remarks}"
    );
    assert_eq!(centre.rows("SELECT count(*) FROM visit"), ["2"]);
}

#[test]
fn a_file_says_what_handlers_answer() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(
        "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, note TEXT);
         INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')",
    );
    let tables = "[[publication]]\nname = \"main\"\n\
        [[publication.table]]\nname = \"orders\"\npartition = \"everyone\"\n\
        handler = \"http://127.0.0.1:9/\"\n";
    shop::configure(&place, &centre, "", tables);
    let simulate = |lines: &str| {
        place.write("answers.jsonl", lines);
        let simulate = ["simulate", "--seeds", "0..6", "--json"];
        place.tidewater(&[&simulate[..], &["--handler-answers", "answers.jsonl"]].concat())
    };
    let refuse =
        r#"{"table":"orders","operation":"delete","verdict":"refuse","reason":"it is kept"}"#;
    let told = simulate(refuse);
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    assert!(told.stdout.contains("it is kept"), "{}", told.stdout);
    let change = r#"{"table":"orders","verdict":"change","new":{"note":"eased"}}"#;
    let told = simulate(change);
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    for (lines, what) in [
        ("{\"table\":\"orders\"}", "line 1"),
        (
            r#"{"table":"other","verdict":"apply"}"#,
            "no handler is asked about",
        ),
    ] {
        let told = simulate(lines);
        assert_eq!(told.code, 1, "{}", told.stderr);
        assert!(
            told.stderr.contains(what) || told.stdout.contains(what),
            "{}",
            told.stderr
        );
    }
}
