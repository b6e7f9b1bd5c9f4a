//! What users do to the synced tables of a remote: what does no harm, and what is explained.

use crate::program::sqlite;
use crate::shop::Shop;

#[test]
fn columns_indexes_triggers_and_views_of_the_users_own_are_no_obstacle() {
    Shop::on_both_centres(|shop| {
        let (nancy, steve) = (shop.remote("nancy"), shop.remote("steve"));
        nancy.execute(
            "ALTER TABLE product ADD COLUMN shelf TEXT;
             ALTER TABLE customer ADD COLUMN met INTEGER NOT NULL DEFAULT 0;
             CREATE INDEX by_name ON product (name);
             CREATE UNIQUE INDEX one_name ON product (name);
             CREATE TABLE changed (product_id INTEGER);
             CREATE TRIGGER watch AFTER INSERT ON product
               BEGIN INSERT INTO changed VALUES (NEW.product_id); END;
             CREATE VIEW named AS SELECT product_id, name, shelf FROM product;
             UPDATE product SET shelf = 'left' WHERE product_id = 1;
             UPDATE customer SET met = 1, note = 'met' WHERE customer_id = 10;",
        );
        // Tracking learns of the unique index.
        shop.sync(&nancy).done();
        // The new one pushes out the old one of that name.
        nancy.execute("INSERT OR REPLACE INTO product (product_id, name) VALUES (3, 'ink')");
        shop.sync(&nancy).done();
        steve.execute("INSERT INTO product VALUES (4, 'glue')");
        shop.sync(&steve).done();
        shop.centre
            .execute("UPDATE product SET name = 'pencil' WHERE product_id = 1");
        shop.sync(&nancy).done();
        let sql = "SELECT product_id, name FROM product ORDER BY 1";
        assert_eq!(nancy.rows(sql), ["1|pencil", "3|ink", "4|glue"]);
        assert_eq!(shop.centre.rows(sql), nancy.rows(sql));
        let sql = "SELECT note FROM customer WHERE customer_id = 10";
        assert_eq!(shop.centre.rows(sql), ["met"]);
        assert_eq!(
            nancy.rows("SELECT name FROM named WHERE shelf = 'left'"),
            ["pencil"]
        );
        assert_eq!(nancy.rows("SELECT max(met) FROM customer"), ["1"]);
        assert_eq!(
            nancy.rows("SELECT product_id FROM changed ORDER BY 1"),
            ["3", "4"]
        );
    });
}

#[test]
fn a_synced_table_that_was_renamed_or_lost_a_column_is_explained_and_can_be_put_right() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute("UPDATE customer SET note = 'pending' WHERE customer_id = 10");
    for (wrong, right, told) in [
        (
            "ALTER TABLE product RENAME TO goods",
            "ALTER TABLE goods RENAME TO product",
            "\"product\" is no longer in the file",
        ),
        (
            "ALTER TABLE product RENAME COLUMN name TO title",
            "ALTER TABLE product RENAME COLUMN title TO name",
            "column \"name\" is gone",
        ),
    ] {
        nancy.execute(wrong);
        shop.place
            .tidewater(&["sync", "nancy.db"])
            .exits(5)
            .tells(&["product", told, "hint: ", "tidewater verify FILE --repair"]);
        let note = "SELECT note FROM customer WHERE customer_id = 10";
        assert_eq!(shop.centre.rows(note), [""]);
        nancy.execute(right);
    }
    shop.sync(&nancy).done();
    let note = "SELECT note FROM customer WHERE customer_id = 10";
    assert_eq!(shop.centre.rows(note), ["pending"]);
}

#[test]
fn a_sync_that_an_application_locks_out_says_what_to_do() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    let application = sqlite(&shop.place.path("nancy.db"));
    application.execute_batch("BEGIN IMMEDIATE").unwrap();
    shop.place
        .tidewater(&["sync", "nancy.db"])
        .exits(2)
        .tells(&[
            "locked by another connection",
            "hint: ",
            "end the transaction",
            "sync again",
        ]);
    // Looking at it goes on.
    shop.place.tidewater(&["status", "nancy.db"]).done();
    application.execute_batch("ROLLBACK").unwrap();
    shop.sync(&nancy).done();
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
}

#[test]
fn a_device_whose_clock_was_wrong_shows_its_state() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    for at in [i64::MIN, -1, 0, i64::MAX] {
        nancy.execute(&format!(
            "UPDATE tidewater_subscription SET last_sync_at = {at}"
        ));
        shop.place.tidewater(&["status", "nancy.db"]).done();
        let status = shop.place.tidewater(&["status", "nancy.db", "--json"]);
        assert!(status.done().json()["subscriptions"].is_array());
        shop.sync(&nancy).done();
    }
}
