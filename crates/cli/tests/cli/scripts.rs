//! The examples of docs/scripts.md, run as they stand there; and what `tidewater check` names.

use crate::desk::Desk;
use crate::manual::blocks;
use crate::shop::Shop;

const MANUAL: &str = include_str!("../../../../docs/scripts.md");

#[test]
fn what_the_manual_of_scripts_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, first] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    let scripts = blocks(MANUAL, "sql");
    let [update, end, set, cursor] = &scripts[..] else {
        panic!("the manual has other scripts: {scripts:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    let place = |table: &str, event: &str, sql: &str| {
        let folder = desk.place.path("scripts/default").join(table);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        std::fs::write(folder.join(event), sql).expect("a script can be written");
    };
    place("customer", "upload_update.sql", update);
    place("connection", "end_upload.sql", end);
    // The server is the test's own, which ends it.
    let (before, after) = first.split_once("tidewater serve &\nsleep 1\n").unwrap();
    let checked = desk.run(before);
    assert!(
        checked.contains("1 publication and 2 scripts fit the database"),
        "{checked}"
    );
    let server = desk.place.serve_as_configured();
    let output = desk.run(after);
    assert!(output.ends_with("Nora B.|nancy"), "{output}");
    let logged = desk.run("sqlite3 shop.db 'SELECT line FROM visit_log'");
    assert_eq!(logged, "nancy has uploaded");
    drop(server);
    // The others fit, too.
    place("customer", "upload_insert.sql", set);
    desk.run("sqlite3 shop.db 'ALTER TABLE customer ADD last_modified TEXT; ALTER TABLE customer ADD rep TEXT'");
    let three = configuration.replace(
        "name = \"customer\"",
        "name = \"customer\"\ncolumns = [\"id\", \"name\", \"changed_by\"]",
    );
    desk.place.write("tidewater.toml", &desk.text(&three));
    place("customer", "download_cursor.sql", cursor);
    let checked = desk.run("tidewater check");
    assert!(checked.contains("4 scripts fit"), "{checked}");
}

#[test]
fn every_script_that_is_wrong_is_named_with_its_line() {
    Shop::on_both_centres(|shop| {
        let write = |table: &str, event: &str, sql: &str| {
            let folder = shop.place.path("scripts/v2").join(table);
            std::fs::create_dir_all(&folder).expect("a folder can be made");
            std::fs::write(folder.join(event), sql).expect("a script can be written");
        };
        write(
            "product",
            "upload_insert.sql",
            "-- two\nDELETE FROM product;\n\nINSERT INTO prodct VALUES (1);",
        );
        write(
            "product",
            "upload_update.sql",
            "UPDATE product SET name = {r.nam}",
        );
        write("connection", "begin_upload.sql", "COMMIT");
        let run = shop.place.tidewater(&["check", "--json"]);
        assert_eq!(run.code, 5);
        let faults = run.json()["faults"].as_array().expect("an array").clone();
        let messages: Vec<&str> = faults
            .iter()
            .filter_map(|it| it["message"].as_str())
            .collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        let named = |text: &str, line: &str| {
            messages
                .iter()
                .any(|it| it.contains(text) && it.contains(line))
        };
        assert!(named("product/upload_insert.sql", "line 4"), "{messages:?}");
        assert!(named("product/upload_update.sql", "r.nam"), "{messages:?}");
        assert!(
            named("connection/begin_upload.sql", "COMMIT"),
            "{messages:?}"
        );
        let hints = faults.iter().filter_map(|it| it["hint"].as_str());
        assert!(hints.clone().any(|it| it.contains("name")), "{faults:?}");
    });
}

#[test]
fn right_scripts_beside_a_wrong_one_are_not_accused() {
    Shop::on_both_centres(|shop| {
        let write = |event: &str, sql: &str| {
            let folder = shop.place.path("scripts/default/product");
            std::fs::create_dir_all(&folder).expect("a folder can be made");
            std::fs::write(folder.join(event), sql).expect("a script can be written");
        };
        write("begin_upload.sql", "INSERT INTO nosuch VALUES (1)");
        write("end_upload.sql", "DELETE FROM product WHERE 1 = 0");
        write("upload_delete.sql", "DELETE FROM product WHERE 1 = 0");
        for (command, code) in [("check", 5), ("deploy", 1)] {
            let run = shop.place.tidewater(&[command, "--json"]).exits(code);
            let told = run.stdout + &run.stderr;
            assert!(told.contains("product/begin_upload.sql"), "{told}");
            assert!(!told.contains("upload_delete.sql"), "{told}");
            assert!(!told.contains("aborted"), "{told}");
        }
    });
}
