//! The story of docs/schema-changes.md, as it stands there, with a remote that types meanwhile.

use crate::centre::Centre;
use crate::manual::blocks;
use crate::program::Place;
use crate::shop::{Shop, TABLES, add_user, configure, password};

const MANUAL: &str = include_str!("../../../../docs/schema-changes.md");

fn goes_on_while_tables_change(place: Place, centre: Centre) {
    let (sql, toml) = (blocks(MANUAL, "sql"), blocks(MANUAL, "toml"));
    centre.execute(&sql[0]);
    configure(&place, &centre, "", &toml[0]);
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    let server = place.serve(&[]);
    let shop = Shop {
        server,
        centre,
        place,
    };
    let nancy = shop.remote_of("nancy", "field");
    let Shop { centre, place, .. } = &shop;
    nancy.execute("INSERT INTO job VALUES (3, 'typed before', 'rope')");

    // A column and a table more.
    centre.execute(&sql[1]);
    configure(place, centre, "", &format!("{}\n{}", toml[0], toml[1]));
    place.tidewater(&["deploy", "--dry-run"]).done();
    place.tidewater(&["deploy"]).done();
    let synced = shop.sync(&nancy).done().json();
    assert_eq!(synced["uploaded"]["inserts"], 1);
    let states = "SELECT id || state FROM job ORDER BY id";
    for rows in [nancy.rows(states), centre.rows(states)] {
        assert_eq!(rows, ["1open", "2done", "3open"]);
    }
    assert_eq!(nancy.rows("SELECT place FROM photo"), ["front"]);

    // A column less.
    nancy.execute("UPDATE job SET hint = 'both', title = 'gate' WHERE id = 2");
    configure(place, centre, "", &toml[2]);
    let held_up = place.tidewater(&["deploy"]).exits(1);
    assert!(held_up.stdout.contains("nancy"), "{held_up:#?}");
    held_up.tells(&["--refuse-pending"]);
    place.tidewater(&["deploy", "--refuse-pending"]).done();
    shop.sync(&nancy).exits(6);
    let columns = "SELECT name FROM pragma_table_info('job') ORDER BY cid";
    assert_eq!(nancy.rows(columns), ["id", "title", "state"]);
    let refused = place.tidewater(&["refused", "list", "nancy.db"]).done();
    assert!(refused.stdout.contains("both"), "{refused:#?}");
    centre.execute(&sql[2]);
    place.tidewater(&["deploy"]).done();
    nancy
        .execute("INSERT INTO job VALUES (4, 'wall', 'open'); INSERT INTO photo VALUES (2, 4, '')");
    shop.sync(&nancy).done();
    assert_eq!(centre.rows("SELECT title FROM job WHERE id = 4"), ["wall"]);
    assert_eq!(centre.rows("SELECT job_id FROM photo WHERE id = 2"), ["4"]);

    // A copy for tests is another centre.
    place.tidewater(&["deploy", "--new-centre"]).done();
    let elsewhere = place.serve(&[]);
    let arguments = ["sync", "nancy.db", "--server", elsewhere.url()];
    let refused = place.tidewater_as(&password("nancy"), &arguments);
    refused.exits(4).tells(&["--other-centre"]);
}

#[test]
fn the_story_of_schema_changes_holds_on_postgresql() {
    goes_on_while_tables_change(Place::new(), Centre::postgres());
}

#[test]
fn the_story_of_schema_changes_holds_on_sqlite() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    goes_on_while_tables_change(place, centre);
}

const FIELD: &str = r#"
[[publication]]
name = "field"

[[publication.table]]
name = "note"
partition = "everyone"
"#;

#[test]
fn a_file_goes_on_without_a_publication_that_was_dropped() {
    Shop::on_both_centres(|shop| {
        let Shop { centre, place, .. } = &shop;
        centre.execute("CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT)");
        configure(place, centre, "", &format!("{TABLES}{FIELD}"));
        place.tidewater(&["deploy"]).done();
        let nancy = shop.remote("nancy");
        let field = ["sync", "nancy.db", "--publication", "field"];
        place.tidewater(&field).done();
        nancy.execute("INSERT INTO note VALUES (1, 'typed'); UPDATE product SET name = 'typed'");
        configure(place, centre, "", TABLES);
        let held_up = place.tidewater(&["deploy"]).exits(1);
        held_up.tells(&["--refuse-pending"]);
        place.tidewater(&["deploy", "--refuse-pending"]).done();
        let told = place.tidewater(&["sync", "nancy.db"]).exits(4);
        told.tells(&[
            "the server has no publication \"field\"",
            "tidewater unsubscribe FILE field",
        ]);
        nancy.execute("INSERT INTO note VALUES (2, 'typed later')");
        let told = place.tidewater(&["sync", "nancy.db"]).done();
        assert!(
            told.stderr.contains("tidewater unsubscribe nancy.db field"),
            "{told:#?}"
        );
        let products = "SELECT DISTINCT name FROM product";
        assert_eq!(centre.rows(products), ["typed"]);
        assert_eq!(nancy.rows("SELECT count(*) FROM note"), ["2"]);

        let left = place.tidewater(&["unsubscribe", "nancy.db", "field"]);
        let left = left.done().stdout;
        assert!(
            left.contains("2 pending changes among the refused rows now"),
            "{left}"
        );
        let refused = place.tidewater(&["refused", "list", "nancy.db"]).done();
        for part in ["not_published", "typed later"] {
            assert!(refused.stdout.contains(part), "{refused:#?}");
        }
        nancy.execute("UPDATE product SET name = 'goes on'");
        place.tidewater(&["sync", "nancy.db"]).done();
        assert_eq!(centre.rows(products), ["goes on"]);

        // It comes back.
        configure(place, centre, "", &format!("{TABLES}{FIELD}"));
        place.tidewater(&["deploy"]).done();
        place.tidewater(&field).done();
        nancy.execute("INSERT INTO note VALUES (3, 'again')");
        place.tidewater(&["sync", "nancy.db"]).done();
        assert_eq!(centre.rows("SELECT body FROM note"), ["again"]);
    });
}

#[test]
fn an_operator_is_told_that_a_table_was_altered_since_the_deployment() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO customer VALUES (13, 1, '', 'empty name')");
        shop.sync(&nancy).exits(6);
        let add = "ALTER TABLE customer ADD COLUMN phone TEXT";
        shop.centre.execute(add);
        let edit = ["refused", "edit", "1", "--set", "name=Eve"];
        for command in [&edit[..], &["refused", "replay", "1"]] {
            let told = shop.place.tidewater(command).exits(1);
            told.tells(&["altered since the last deployment", "run: tidewater deploy"]);
        }
        shop.place.tidewater(&["deploy"]).done();
        shop.place.tidewater(&edit).done();
        let name = "SELECT name FROM customer WHERE customer_id = 13";
        assert_eq!(shop.centre.rows(name), ["Eve"]);
    });
}
