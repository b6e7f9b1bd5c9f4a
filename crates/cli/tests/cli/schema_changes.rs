//! The story of docs/schema-changes.md, as it stands there, with a remote that types meanwhile.

use crate::centre::Centre;
use crate::manual::blocks;
use crate::program::Place;
use crate::shop::{Shop, add_user, configure, password};

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
