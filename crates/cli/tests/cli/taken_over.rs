//! Whole script sets of other synchronization servers, from files as their authors have them, on
//! PostgreSQL; and how a script is printed and tried.

use crate::centre::{Centre, sqlite_rows};
use crate::program::{Place, Run, sqlite};
use crate::shop::{Shop, add_user, password};

/// A publication of tables whose scripts say everything.
fn configuration(centre: &Centre, extra: &str, tables: &[(&str, &str)]) -> String {
    let tables = tables.iter().map(|(name, columns)| {
        format!(
            "[[publication.table]]\nname = \"{name}\"\npartition = \"everyone\"\n\
             tracking = \"off\"\ncolumns = [{columns}]\n"
        )
    });
    let tables: Vec<String> = tables.collect();
    format!(
        "[server]\nconsolidated = \"{}\"\n{extra}[[publication]]\nname = \"main\"\n{}",
        centre.url(),
        tables.concat()
    )
}

fn edit(place: &Place, file: &str, sql: &str) {
    let remote = sqlite(&place.path(file));
    remote.execute_batch(sql).expect("it can be edited");
}

fn rows(place: &Place, file: &str, sql: &str) -> Vec<String> {
    sqlite_rows(&sqlite(&place.path(file)), sql)
}

#[test]
fn the_purchase_set_runs_as_it_stands() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(include_str!("taken_over/purchase_schema.sql"));
    place.write("setup.sql", include_str!("taken_over/purchase_scripts.sql"));
    let imported = place.tidewater(&["script", "import", "setup.sql"]).done();
    assert!(
        imported.stdout.contains("19 scripts written"),
        "{imported:#?}"
    );
    let columns = "\"emp_id\", \"purch_id\", \"cust_id\", \"cost\", \"order_date\", \"notes\"";
    place.write(
        "tidewater.toml",
        &configuration(&centre, "", &[("purchase", columns)]),
    );
    let checked = place.tidewater(&["check"]).done();
    assert!(checked.stdout.contains("19 scripts fit"), "{checked:#?}");
    place.tidewater(&["deploy"]).done();
    let server = place.serve(&[]);
    for user in ["anna", "bert"] {
        add_user(&place, user);
        let version = ["--script-version", "purchase"];
        place
            .first_sync(user, server.url(), "main", &version)
            .done();
    }
    let costs = "SELECT purch_id, cost, notes FROM purchase ORDER BY 1";
    assert_eq!(
        rows(&place, "anna.db", costs),
        ["1|100.5|first", "2|200|second", "3|300|third"].map(|it| it
            .replace("100.5", "100.500000")
            .replace("200", "200.000000")
            .replace("300", "300.000000"))
    );
    assert_eq!(
        rows(&place, "bert.db", "SELECT notes FROM purchase"),
        ["of bert"]
    );
    centre.execute("DELETE FROM happened; DELETE FROM sync_figures");
    // A row of each kind, and a conflict that the higher cost wins.
    centre.execute("UPDATE purchase SET cost = 250 WHERE emp_id = 1 AND purch_id = 2");
    edit(
        &place,
        "anna.db",
        "INSERT INTO purchase VALUES (1, 4, 13, '400.000000', '2026-02-01T00:00:00.000000', 'fourth');
         UPDATE purchase SET notes = 'changed' WHERE purch_id = 1;
         UPDATE purchase SET cost = '260.000000' WHERE purch_id = 2;
         DELETE FROM purchase WHERE purch_id = 3",
    );
    place.tidewater(&["sync", "anna.db"]).done();
    assert_eq!(
        centre.rows("SELECT event FROM happened ORDER BY id"),
        [
            "begin_synchronization",
            "begin_upload",
            "begin_upload_rows purchase",
            "upload_old_row_insert 2 200.000000",
            "resolve_conflict anna purchase",
            "end_upload_rows",
            "end_upload_deletes",
            "end_synchronization 1 of 1",
        ]
    );
    assert_eq!(
        centre.rows(
            "SELECT purch_id, cost::integer, notes FROM purchase WHERE emp_id = 1 ORDER BY 1"
        ),
        ["1|101|changed", "2|260|second", "4|400|fourth"]
    );
    assert_eq!(
        rows(
            &place,
            "anna.db",
            "SELECT purch_id, notes FROM purchase ORDER BY 1"
        ),
        ["1|changed", "2|second", "4|fourth"]
    );
    let figures = centre.rows(
        "SELECT user_name, what, first_figure, second_figure FROM sync_figures ORDER BY line_id",
    );
    assert_eq!(figures[0], "anna|upload|1|1");
    assert!(figures[1].starts_with("anna|download|"), "{figures:?}");
    let called = centre.rows("SELECT first_figure FROM sync_figures WHERE what = 'upload_insert'");
    assert_eq!(called, ["1"]);
    // What bert deletes goes from a second device of his by the delete cursor.
    let second = [
        "sync",
        "bert2.db",
        "--server",
        server.url(),
        "--user",
        "bert",
        "--publication",
        "main",
        "--script-version",
        "purchase",
    ];
    place.tidewater_as(&password("bert"), &second).done();
    edit(&place, "bert.db", "DELETE FROM purchase");
    place.tidewater(&["sync", "bert.db"]).done();
    place.tidewater(&["sync", "bert2.db"]).done();
    assert!(rows(&place, "bert2.db", "SELECT purch_id FROM purchase").is_empty());
}

#[test]
fn the_customer_orders_set_runs_as_it_stands() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(include_str!("taken_over/orders_schema.sql"));
    place.write("setup.sql", include_str!("taken_over/orders_scripts.sql"));
    let imported = place.tidewater(&["script", "import", "setup.sql"]).exits(6);
    for part in ["ml_add_java_connection_script", "docs/handlers.md"] {
        assert!(imported.stdout.contains(part), "{imported:#?}");
    }
    place.write(
        "tidewater.toml",
        &configuration(
            &centre,
            "[sign_in]\npasswords = \"script\"\ncreate_users = true\n",
            &[
                ("customer", "\"cust_id\", \"name\", \"emp_id\""),
                (
                    "orders",
                    "\"order_id\", \"cust_id\", \"quantity\", \"status\"",
                ),
                ("customer_pool", "\"emp_id\", \"cust_id\""),
                ("stock_taking", "\"item\", \"counted\""),
            ],
        ),
    );
    let checked = place.tidewater(&["check"]).done();
    assert!(
        checked
            .stderr
            .contains("handle_error.sql names {s.error_code}"),
        "{checked:#?}"
    );
    place.tidewater(&["deploy"]).done();
    let server = place.serve(&[]);
    let first = |user: &str, password: &str| {
        place.first_sync_as((user, password), server.url(), "main", &[])
    };
    first("anna", "wrong").exits(3);
    let passwords = "SELECT login, password FROM employee ORDER BY 1";
    place
        .change_password(("anna", "wrong"), server.url(), "hers")
        .exits(3);
    assert_eq!(centre.rows(passwords), ["anna|annas", "bert|berts"]);
    place
        .change_password(("anna", "annas"), server.url(), "hers")
        .done();
    assert_eq!(centre.rows(passwords), ["anna|hers", "bert|berts"]);
    first("anna", "annas").exits(3);
    first("anna", "hers").done();
    first("bert", "berts").done();
    let customers = "SELECT cust_id, name FROM customer ORDER BY 1";
    assert_eq!(rows(&place, "anna.db", customers), ["10|Ada", "11|Bob"]);
    assert_eq!(rows(&place, "bert.db", customers), ["20|Cleo"]);
    let pool = "SELECT cust_id FROM customer_pool ORDER BY 1";
    let keys = rows(&place, "anna.db", pool);
    assert_eq!(keys.len(), 5, "{keys:?}");
    // A customer under a key of the pool, with an order; an order that two sides change; one that is
    // refused; a customer that is deleted softly; and a stock that is counted.
    centre.execute("UPDATE orders SET quantity = 6 WHERE order_id = 1");
    let key = &keys[0];
    edit(
        &place,
        "anna.db",
        &format!(
            "INSERT INTO customer VALUES ({key}, 'Dora', 1);
             DELETE FROM customer_pool WHERE cust_id = {key};
             INSERT INTO orders VALUES (4, {key}, 2, 'new');
             UPDATE orders SET quantity = 8 WHERE order_id = 1;
             DELETE FROM orders WHERE order_id = 2;
             DELETE FROM customer WHERE cust_id = 11;
             INSERT INTO stock_taking VALUES (77, 12)"
        ),
    );
    place.tidewater(&["sync", "anna.db"]).done();
    assert_eq!(
        centre.rows("SELECT order_id, quantity FROM orders ORDER BY 1"),
        ["1|9", "3|9", "4|2"]
    );
    assert_eq!(
        centre.rows("SELECT name, active FROM customer WHERE emp_id = 1 ORDER BY 1"),
        ["Ada|1", "Bob|0", "Dora|1"]
    );
    assert_eq!(
        centre.rows("SELECT item, counted FROM stock_taken"),
        ["77|12"]
    );
    assert!(centre.rows("SELECT item FROM stock_taking").is_empty());
    assert_eq!(
        centre.rows("SELECT event FROM happened ORDER BY id"),
        ["resolve_conflict"]
    );
    assert_eq!(rows(&place, "anna.db", customers).len(), 2);
    assert_eq!(rows(&place, "anna.db", pool).len(), 5);
    // What the database refuses is handled, and reported with both codes.
    edit(
        &place,
        "bert.db",
        "PRAGMA foreign_keys = OFF;
         INSERT INTO orders VALUES (5, 999, 1, 'lost');
         UPDATE orders SET status = 'sent' WHERE order_id = 3",
    );
    let refused = place.tidewater(&["sync", "bert.db"]).exits(6);
    assert!(refused.stdout.contains("refused     1 row"), "{refused:#?}");
    assert_eq!(
        centre.rows("SELECT of_table, code, state FROM sync_error"),
        ["orders|foreign_key|23503"]
    );
    assert_eq!(
        centre.rows("SELECT event FROM happened WHERE event LIKE 'handle%'"),
        ["handle_error foreign_key"]
    );
    assert_eq!(
        centre.rows("SELECT status FROM orders WHERE order_id = 3"),
        ["sent"]
    );
    // A customer goes to bert: he leaves anna, and comes to bert with his orders.
    centre.execute("UPDATE customer SET emp_id = 2 WHERE cust_id = 10");
    place.tidewater(&["sync", "anna.db"]).done();
    place.tidewater(&["sync", "bert.db"]);
    assert_eq!(
        rows(&place, "anna.db", "SELECT name FROM customer"),
        ["Dora"]
    );
    assert_eq!(rows(&place, "bert.db", customers), ["10|Ada", "20|Cleo"]);
    let orders = "SELECT order_id FROM orders WHERE cust_id = 10";
    assert_eq!(rows(&place, "bert.db", orders), ["1"]);
}

#[test]
fn a_script_is_printed_and_tried_before_it_is_deployed() {
    Shop::on_both_centres(|shop| {
        let place = &shop.place;
        let print = |table: &str, event: &str| -> Run {
            place.tidewater(&["script", "print", table, event])
        };
        let printed = print("customer", "upload_update").done();
        assert!(printed.stdout.contains("{r.name}"), "{printed:#?}");
        let folder = place.path("scripts/default/customer");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        // What is printed does what is done without it.
        for event in [
            "upload_insert",
            "upload_update",
            "upload_delete",
            "upload_fetch",
        ] {
            let printed = print("customer", event).done();
            std::fs::write(folder.join(format!("{event}.sql")), printed.stdout)
                .expect("a script can be written");
        }
        place.tidewater(&["check"]).done();
        let insert = [
            "script",
            "try",
            "customer",
            "upload_insert",
            "--json",
            "--row",
        ];
        let row = "{\"customer_id\": 77, \"rep_id\": 1, \"name\": \"Dora\", \"note\": null}";
        let tried = place
            .tidewater(&[&insert[..], &[row]].concat())
            .done()
            .json();
        assert_eq!(tried["changed"][0]["inserted"], 1, "{tried}");
        assert_eq!(tried["row_before"], serde_json::Value::Null);
        let after = tried["row_after"].as_str().expect("a row");
        assert!(after.contains("Dora"), "{after}");
        let count = "SELECT count(*) FROM customer";
        assert_eq!(shop.centre.rows(count), ["3"]);
        let refused = row.replace("Dora", " ");
        let told = place
            .tidewater(&[&insert[..], &[&refused]].concat())
            .exits(6);
        assert!(
            told.json()["refused"]
                .as_str()
                .expect("a reason")
                .to_lowercase()
                .contains("check")
        );
        let update = [
            "script",
            "try",
            "customer",
            "upload_update",
            "--old",
            "{\"customer_id\": 10, \"rep_id\": 1, \"name\": \"Ada\", \"note\": null}",
            "--row",
            "{\"name\": \"Ada B.\"}",
        ];
        let told = place.tidewater(&update).done();
        for part in [
            "1 row",
            "0 inserted, 1 updated, 0 deleted",
            "Ada B.",
            "nothing of it stays",
        ] {
            assert!(told.stdout.contains(part), "{part}: {told:#?}");
        }
        assert_eq!(
            shop.centre
                .rows("SELECT name FROM customer WHERE customer_id = 10"),
            ["Ada"]
        );
        place
            .tidewater(&["script", "try", "customer", "upload_insrt", "--row", row])
            .exits(1)
            .tells(&["did you mean upload_insert?"]);
        place
            .tidewater(&["script", "try", "customer", "upload_insert"])
            .exits(1)
            .tells(&["--row"]);
        let told = print("connection", "begin_upload").done();
        assert!(told.stdout.contains("{s.username}"), "{told:#?}");
    });
}

/// The user goes on while a sync waits behind somebody else's change of the same row.
#[test]
fn a_script_adds_each_difference_once_while_others_change_the_row() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(
        "CREATE TABLE stock (id integer PRIMARY KEY, v integer NOT NULL);
         INSERT INTO stock VALUES (1, 12)",
    );
    std::fs::create_dir_all(place.path("scripts/default/stock")).expect("a folder");
    place.write(
        "scripts/default/stock/upload_update.sql",
        "UPDATE stock SET v = v + {r.v} - {o.v} WHERE id = {r.id}",
    );
    let publication = "[[publication]]\nname = \"main\"\n[[publication.table]]\n\
                       name = \"stock\"\npartition = \"everyone\"\n";
    let text = format!(
        "[server]\nconsolidated = \"{}\"\n{publication}",
        centre.url()
    );
    place.write("tidewater.toml", &text);
    place.tidewater(&["deploy"]).done();
    let server = place.serve(&[]);
    add_user(&place, "anna");
    place.first_sync("anna", server.url(), "main", &[]).done();
    edit(&place, "anna.db", "UPDATE stock SET v = v + 1");
    let office = centre.session().expect("PostgreSQL");
    office.execute("BEGIN; UPDATE stock SET v = v - 1");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| place.tidewater(&["sync", "anna.db"]).done());
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while centre.rows(waiting) == ["0"] {
            assert!(!sync.is_finished(), "the sync waits");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        edit(&place, "anna.db", "UPDATE stock SET v = v - 3");
        office.execute("COMMIT");
        sync.join().expect("the sync ends");
    });
    place.tidewater(&["sync", "anna.db"]).done();
    assert_eq!(centre.rows("SELECT v FROM stock"), ["9"]);
    assert_eq!(rows(&place, "anna.db", "SELECT v FROM stock"), ["9"]);
}

#[test]
fn a_script_of_a_version_is_tried_as_in_a_sync() {
    Shop::on_both_centres(|shop| {
        let place = &shop.place;
        shop.centre.execute("CREATE TABLE tried (what TEXT)");
        let write = |event: &str, sql: &str| {
            let folder = place.path("scripts/v2/customer");
            std::fs::create_dir_all(&folder).expect("a folder can be made");
            std::fs::write(folder.join(event), sql).expect("a script can be written");
        };
        write(
            "upload_old_row_insert.sql",
            "INSERT INTO tried VALUES ('old')",
        );
        write(
            "upload_new_row_insert.sql",
            "INSERT INTO tried VALUES ('new')",
        );
        write(
            "resolve_conflict.sql",
            "INSERT INTO tried SELECT what || {ML s.script_version} FROM tried;
             UPDATE customer SET name = (SELECT max(what) FROM tried) WHERE customer_id = {r.customer_id}",
        );
        let row = "{\"customer_id\": 10, \"rep_id\": 1, \"name\": \"Ada\", \"note\": null}";
        let mut command = vec![
            "script",
            "try",
            "customer",
            "resolve_conflict",
            "--row",
            row,
        ];
        place
            .tidewater(&command)
            .exits(1)
            .tells(&["\"default\" has no script", "there is one in: v2"]);
        command.extend(["--script-version", "v2", "--json"]);
        let tried = place.tidewater(&command).done().json();
        let before = tried["before"].to_string();
        for event in ["upload_old_row_insert", "upload_new_row_insert"] {
            assert!(before.contains(event), "{tried}");
        }
        let after = tried["row_after"].as_str().expect("a row");
        assert!(after.contains("oldv2"), "{tried}");
        // Nobody but scripts names the parameter.
        let text = place.read("tidewater.toml");
        place.write(
            "tidewater.toml",
            &format!(
                "{text}\n[[publication.parameter]]\nname = \"script_version\"\nallowed = \"SELECT 'v2'\"\n"
            ),
        );
        place.tidewater(&["check"]).done();
        place
            .tidewater(&["script", "print", "customer", "upload_update"])
            .done();
        write("end_upload.sql", "{? = call check_it({s.username})}");
        let wrong = place.tidewater(&["check"]).exits(5);
        assert!(wrong.stdout.contains("SELECT f(...)"), "{wrong:#?}");
        if shop.centre.url().starts_with("postgres") {
            write("end_upload.sql", "COPY tried FROM STDIN");
            let wrong = place.tidewater(&["check"]).exits(5);
            assert!(wrong.stdout.contains("only a client can run"), "{wrong:#?}");
        }
    });
}

#[test]
fn each_version_has_its_own_columns() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(
        "CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL, phone text);
         INSERT INTO customer VALUES (1, 'Ada', '17')",
    );
    place.write(
        "setup.sql",
        "call ml_add_column('v1', 'customer', 'id', null);
         call ml_add_column('v1', 'customer', 'name', null);
         call ml_add_table_script('v1', 'customer', 'download_cursor', 'SELECT id, name FROM customer');
         call ml_add_table_script('v1', 'customer', 'upload_update', 'UPDATE customer SET name = ? WHERE id = ?');
         call ml_add_table_script('v2', 'customer', 'download_cursor', 'SELECT id, name, phone FROM customer');
         call ml_add_table_script('v2', 'customer', 'upload_update',
             'UPDATE customer SET name = ?, phone = ? WHERE id = ?');",
    );
    let imported = place.tidewater(&["script", "import", "setup.sql"]).done();
    assert!(
        imported.stdout.contains("script_versions = [\"v1\"]"),
        "{imported:#?}"
    );
    let publication = |name: &str, version: &str, columns: &str| {
        format!(
            "[[publication]]\nname = \"{name}\"\nscript_versions = [\"{version}\"]\n\
             [[publication.table]]\nname = \"customer\"\npartition = \"everyone\"\n\
             tracking = \"off\"\ncolumns = [{columns}]\n"
        )
    };
    let write = |first: &str| {
        let text = format!(
            "[server]\nconsolidated = \"{}\"\n{}{}",
            centre.url(),
            publication("old", first, "\"id\", \"name\""),
            publication("new", "v2", "\"id\", \"name\", \"phone\"")
        );
        place.write("tidewater.toml", &text);
    };
    write("v0");
    let wrong = place.tidewater(&["check"]);
    assert!(wrong.stderr.contains("has no such folder"), "{wrong:#?}");
    write("v1");
    place.tidewater(&["deploy"]).done();
    place
        .tidewater_as("secret", &["user", "add", "anna"])
        .done();
    let server = place.serve(&[]);
    let sync = |file: &str, publication: &str, version: &str| {
        let arguments = [
            "sync",
            file,
            "--server",
            server.url(),
            "--user",
            "anna",
            "--publication",
            publication,
            "--script-version",
            version,
        ];
        place.tidewater_as("secret", &arguments)
    };
    sync("old.db", "old", "v1").done();
    sync("new.db", "new", "v2").done();
    assert_eq!(rows(&place, "old.db", "SELECT * FROM customer"), ["1|Ada"]);
    assert_eq!(
        rows(&place, "new.db", "SELECT * FROM customer"),
        ["1|Ada|17"]
    );
    edit(&place, "old.db", "UPDATE customer SET name = 'Ada B.'");
    edit(&place, "new.db", "UPDATE customer SET phone = '18'");
    place.tidewater(&["sync", "old.db"]).done();
    place.tidewater(&["sync", "new.db"]).done();
    assert_eq!(centre.rows("SELECT name, phone FROM customer"), ["Ada|18"]);
    sync("other.db", "old", "v2").exits(3).tells(&[
        "error: there is no script version",
        "there are: v1",
        "--script-version NAME",
    ]);
}

#[test]
fn a_device_without_a_version_is_refused_where_only_versions_have_scripts() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(
        "CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL, rep text NOT NULL);
         INSERT INTO customer VALUES (1, 'Ada', 'anna'), (2, 'Bob', 'bela')",
    );
    place.write(
        "setup.sql",
        "call ml_add_table_script('fs1', 'customer', 'download_cursor',
             'SELECT id, name, rep FROM customer WHERE rep = {ml s.username}');
         call ml_add_connection_script('fs1', 'authenticate_user',
             'SELECT 1000 AS authentication_status');",
    );
    place.tidewater(&["script", "import", "setup.sql"]).done();
    let write = |versions: &str| {
        let text = format!(
            "[server]\nconsolidated = \"{}\"\n[sign_in]\npasswords = \"script\"\n\
             create_users = true\n[[publication]]\nname = \"main\"\n{versions}\n\
             [[publication.table]]\nname = \"customer\"\npartition = \"everyone\"\n",
            centre.url(),
        );
        place.write("tidewater.toml", &text);
    };
    write("");
    place.tidewater(&["check"]).exits(1).tells(&[
        "there is one in version \"fs1\"",
        "move scripts/fs1/connection/authenticate_user.sql to",
    ]);
    let folder = place.path("scripts/default/connection");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let name = "authenticate_user.sql";
    let old = place.path("scripts/fs1/connection").join(name);
    std::fs::rename(old, folder.join(name)).expect("a script can be moved");
    let checked = place.tidewater(&["check"]).done();
    let told = format!("{}{}", checked.stdout, checked.stderr);
    let unserved = "script version \"default\" is not served";
    assert!(told.contains(unserved), "{told}");
    // Passwords are checked by it, whatever versions are served.
    write("script_versions = [\"fs1\"]");
    let checked = place.tidewater(&["check"]).done();
    let told = format!("{}{}", checked.stdout, checked.stderr);
    assert!(!told.contains(unserved), "{told}");
    place.tidewater(&["deploy"]).done();
    let server = place.serve(&[]);
    let sync = |file: &str, more: &[&str]| {
        let arguments = [
            "sync",
            file,
            "--server",
            server.url(),
            "--user",
            "anna",
            "--publication",
            "main",
        ];
        place.tidewater_as("secret", &[&arguments, more].concat())
    };
    sync("none.db", &[])
        .exits(3)
        .tells(&["no script version", "fs1 (--script-version NAME)"]);
    sync("one.db", &["--script-version", "fs1"]).done();
    let had = rows(&place, "one.db", "SELECT name FROM customer");
    assert_eq!(had, ["Ada"]);
}
