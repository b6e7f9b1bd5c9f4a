//! Whether a remote is equal to the centre: told, and repaired when asked to.

use crate::centre::Centre;
use crate::program::{Place, until};
use crate::shop::{Remote, Shop, TABLES, add_user, configure};

/// Changes rows without any trace: the triggers are the same before and after.
fn behind_the_back(remote: &Remote, table: &str, sql: &str) {
    let of_table = format!("FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'");
    let triggers = remote.rows(&format!("SELECT sql {of_table}"));
    let names = remote.rows(&format!("SELECT name {of_table}"));
    let drops: String = names
        .iter()
        .map(|name| format!("DROP TRIGGER \"{name}\";"))
        .collect();
    let triggers = triggers.join(";");
    remote.execute(&format!("BEGIN; {drops} {sql}; {triggers}; COMMIT"));
}

#[test]
fn what_differs_is_told_by_key_and_exit_code_and_repaired_on_request() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        let verify = |more: &[&str]| {
            let mut arguments = vec!["verify", "nancy.db"];
            arguments.extend(more);
            shop.place.tidewater(&arguments)
        };
        assert!(verify(&[]).done().stdout.contains("equal to the centre"));
        behind_the_back(
            &nancy,
            "customer",
            "UPDATE customer SET name = 'Other' WHERE customer_id = 10",
        );
        nancy.execute("INSERT INTO product VALUES (3, 'paper')");
        let found = verify(&[]).exits(5);
        assert!(
            found.stdout.contains("not equal to the centre"),
            "{found:#?}"
        );
        for part in [
            "customer",
            "[10]",
            "other values",
            "verify nancy.db --repair",
        ] {
            assert!(found.stderr.contains(part), "{part}: {found:#?}");
        }
        // What was pending went up first, and is no difference.
        assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["3"]);
        let object = verify(&["--json"]).exits(5).json();
        assert_eq!(
            (&object["is_equal"], &object["repaired"]),
            (&false.into(), &false.into())
        );
        let customer = &object["tables"][0];
        assert_eq!(customer["table"], "customer");
        assert_eq!(
            (&customer["equal"], &customer["different"]),
            (&1.into(), &1.into())
        );
        assert_eq!(customer["rows"][0]["what"], "different");
        // Keys are JSON, as the sync object has them, which is whole.
        assert_eq!(customer["rows"][0]["key"][0], 10);
        assert_eq!(object["sync"]["refused_before"], 0);
        assert_eq!(
            nancy.rows("SELECT name FROM customer WHERE customer_id = 10"),
            ["Other"]
        );
        let repaired = verify(&["--repair"]).done();
        assert!(repaired.stdout.contains("repaired"), "{repaired:#?}");
        assert_eq!(
            nancy.rows("SELECT name FROM customer WHERE customer_id = 10"),
            ["Ada"]
        );
        assert!(verify(&["--json"]).done().json()["is_equal"] == true);
    });
}

/// Nobody but a script knows which rows of its table a device is to hold.
#[test]
fn a_table_that_scripts_download_is_named_as_not_compared() {
    for is_sqlite in [true, false] {
        let place = Place::new();
        let folder = place.path("scripts/default/product");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let cursor = "SELECT product_id, name FROM product WHERE {s.last_download} < '2000-01-01'";
        std::fs::write(folder.join("download_cursor.sql"), cursor)
            .expect("a script can be written");
        let centre = match is_sqlite {
            true => Centre::sqlite(&place),
            false => Centre::postgres(),
        };
        let shop = Shop::open_in(place, centre);
        let nancy = shop.remote("nancy");
        behind_the_back(&nancy, "product", "UPDATE product SET name = 'Other'");
        for repair in [&[][..], &["--repair"]] {
            let mut arguments = vec!["verify", "nancy.db"];
            arguments.extend(repair);
            let verified = shop.place.tidewater(&arguments).done();
            let told = "equal to the centre, but for what was not compared";
            assert!(verified.stdout.contains(told), "{verified:#?}");
            let told = "product was not compared: scripts tell what is new in it";
            assert!(verified.stderr.contains(told), "{verified:#?}");
        }
        let object = shop.place.tidewater(&["verify", "nancy.db", "--json"]);
        let object = object.done().json();
        let tables = object["tables"].as_array().expect("an array");
        let of = |name: &str| tables.iter().find(|it| it["table"] == name);
        let product = of("product").expect("all tables are told");
        assert_eq!(product["uncompared"], "script");
        assert_eq!(product["equal"], 0);
        let customer = of("customer").expect("all tables are told");
        assert_eq!(customer["uncompared"], serde_json::Value::Null);
        assert_eq!(customer["equal"], 2);
        assert_eq!(nancy.rows("SELECT DISTINCT name FROM product"), ["Other"]);
    }
}

/// SQLite lets the column of a primary key be NULL, if nobody says NOT NULL.
#[test]
fn rows_without_a_key_are_told_by_deploy_status_and_verify() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(
        "CREATE TABLE bin (k TEXT PRIMARY KEY, note TEXT); INSERT INTO bin (note) VALUES ('a')",
    );
    let bin = "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"bin\"\n\
               partition = \"everyone\"\n";
    configure(&place, &centre, "", bin);
    for command in ["check", "deploy"] {
        let refused = place.tidewater(&[command]).exits(1);
        for part in ["bin", "it has a row whose primary key is NULL", "NOT NULL"] {
            assert!(refused.stderr.contains(part), "{command}: {refused:#?}");
        }
    }
    centre.execute("UPDATE bin SET k = 'a'");
    place.tidewater(&["deploy"]).done();
    add_user(&place, "nancy");
    let server = place.serve(&[]);
    place.first_sync("nancy", server.url(), "main", &[]).done();
    // One that comes later.
    centre.execute("INSERT INTO bin (note) VALUES ('b'), ('c')");
    let status = place.tidewater(&["status"]).done();
    let told = "2 rows of bin can be on no device";
    assert!(status.stdout.contains(told), "{status:#?}");
    let status = place.tidewater(&["status", "--json"]).done().json();
    assert_eq!(status["keyless_rows"][0]["rows"], 2);
    let told = "2 rows of bin in the centre can be on no device";
    for arguments in [
        &["verify", "nancy.db"][..],
        &["verify", "nancy.db", "--repair"],
    ] {
        let verified = place.tidewater(arguments).exits(5);
        assert!(verified.stderr.contains(told), "{verified:#?}");
    }
    centre.execute("DELETE FROM bin WHERE k IS NULL");
    place.tidewater(&["verify", "nancy.db"]).done();
}

/// The centre does not have the parent any more, and the child is refused: who keeps whom is told.
#[test]
fn the_row_that_keeps_its_parent_is_named() {
    Shop::on_both_centres(|shop| {
        shop.centre.execute("INSERT INTO rep VALUES (3, 'other')");
        let nancy = shop.remote("nancy");
        nancy.execute("INSERT INTO customer VALUES (30, 3, 'Not hers', NULL)");
        shop.sync(&nancy).exits(6);
        shop.centre.execute("DELETE FROM rep WHERE rep_id = 3");
        shop.sync(&nancy);
        let keeps =
            "the row [30] of customer refers to it, and what was changed of that here is refused";
        for arguments in [
            &["verify", "nancy.db"][..],
            &["verify", "nancy.db", "--repair"],
        ] {
            let found = shop.place.tidewater(arguments).exits(5);
            for part in ["rep", "[3]", "only here", keeps] {
                assert!(found.stderr.contains(part), "{part}: {found:#?}");
            }
        }
        let repaired = shop.place.tidewater(&["verify", "nancy.db", "--repair"]);
        let repaired = repaired.exits(5);
        assert!(
            repaired.stderr.contains("tidewater refused list nancy.db"),
            "{repaired:#?}"
        );
        let object = shop.place.tidewater(&["verify", "nancy.db", "--json"]);
        let object = object.exits(5).json();
        assert_eq!(object["kept"][0]["table"], "rep");
        assert_eq!(object["kept"][0]["key"][0], 3);
        let explained = shop.place.tidewater(&["explain", "nancy.db", "rep", "3"]);
        assert!(explained.done().stdout.contains(keeps));
        let discard = ["refused", "discard", "nancy.db", "--all"];
        shop.place.tidewater(&discard).done();
        let repaired = shop.place.tidewater(&["verify", "nancy.db", "--repair"]);
        repaired.done();
    });
}

#[test]
fn a_remote_verifies_by_itself_and_the_operator_hears_of_what_differed() {
    for centre in [Centre::sqlite, |_: &Place| Centre::postgres()] {
        let place = Place::new();
        let centre = centre(&place);
        let mut shop = Shop::open_in(place, centre);
        configure(&shop.place, &shop.centre, "verify_every = 3", TABLES);
        shop.server = shop.place.serve(&[]);
        let nancy = shop.remote("nancy");
        behind_the_back(
            &nancy,
            "customer",
            "UPDATE customer SET name = 'Other' WHERE customer_id = 10;
             DELETE FROM customer WHERE customer_id = 11",
        );
        nancy.execute("UPDATE product SET name = 'quill' WHERE product_id = 1");
        let name = "SELECT name FROM customer WHERE customer_id IN (10, 11) ORDER BY 1";
        // That a remote has synced is noted a moment later.
        until("a sync compares and repairs", || {
            shop.sync(&nancy).done();
            nancy.rows(name) == ["Ada", "Bob"]
        });
        // What was pending went up, and is no difference.
        let product = "SELECT name FROM product WHERE product_id = 1";
        assert_eq!(shop.centre.rows(product), ["quill"]);
        assert_eq!(nancy.rows(product), ["quill"]);
        let command = ["status", "-c", "tidewater.toml", "--json"];
        let mut status = shop.place.tidewater(&command).done().json();
        until("the operator hears of it", || {
            status = shop.place.tidewater(&command).done().json();
            status["incident_counts"]["differed"] == 1
        });
        let detail = status["incidents"][0]["detail"].as_str().expect("a text");
        assert_eq!(
            detail,
            "customer: 1 missing, 0 extra, 1 different: [10] [11]"
        );
    }
}

#[test]
fn a_table_that_was_dropped_is_named_and_made_again() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute("DROP TABLE product");
        let verify = ["verify", "nancy.db"];
        let failed = shop.place.tidewater(&verify).exits(5);
        failed.tells(&["\"product\"", "--repair"]);
        let repaired = shop
            .place
            .tidewater(&["verify", "nancy.db", "--repair", "--json"]);
        let object = repaired.done().json();
        assert_eq!(object["rebuilt"][0], "product");
        assert_eq!(object["is_equal"], true);
        let products = "SELECT name FROM product ORDER BY product_id";
        assert_eq!(nancy.rows(products), ["pen", "ink"]);
        assert_eq!(shop.centre.rows(products), ["pen", "ink"]);
        let status = shop
            .place
            .tidewater(&["status", "nancy.db", "--json"])
            .json();
        assert_eq!(status["subscriptions"][0]["compare_due"], false);
    });
}

#[test]
fn a_file_that_never_synced_is_not_made_into_a_remote() {
    let place = crate::program::Place::new();
    place
        .tidewater(&["verify", "none.db"])
        .exits(1)
        .tells(&["none.db"]);
    assert!(!place.path("none.db").exists());
}
