//! What the README promises: from tables in a database to remotes in two-way sync.

use serde_json::json;

use crate::centre::{Centre, on_both_centres, sqlite_rows};
use crate::program::{Place, sqlite};
use crate::shop::{SCHEMA, TABLES, add_user, configure, password};

#[test]
fn a_parameter_in_quotes_is_refused_before_anything_is_deployed() {
    on_both_centres(|place, centre| {
        centre.execute(SCHEMA);
        configure(
            place,
            centre,
            "",
            &TABLES.replace("{s.username}", "'{s.username}'"),
        );
        for command in [&["deploy"][..], &["deploy", "--dry-run"]] {
            place
                .tidewater(command)
                .exits(1)
                .tells(&["customer", "write {s.username} without quotes"]);
        }
    });
}

#[test]
fn five_minutes_with_an_sqlite_centre() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    five_minutes(&place, &centre);
}

#[test]
fn five_minutes_with_a_postgresql_centre() {
    five_minutes(&Place::new(), &Centre::postgres());
}

fn five_minutes(place: &Place, centre: &Centre) {
    centre.execute(SCHEMA);
    let url = centre.url();
    place.tidewater(&["init", "--consolidated", &url]).done();
    place.tidewater(&["deploy"]).exits(1).tells(&[
        "\"product\"",
        "partition is missing",
        "partition = \"everyone\"",
    ]);
    decide(place);

    let planned = place.tidewater(&["deploy", "--dry-run"]).done().stdout;
    assert!(planned.contains("nothing was changed"), "{planned}");
    let done = place.tidewater(&["deploy"]).done();
    assert!(done.stdout.contains("customer"), "{done:?}");
    assert!(!done.stderr.contains("servers that run"), "{done:?}");
    let again = place.tidewater(&["deploy"]).done().stdout;
    assert!(again.ends_with("nothing to do\n"), "{again}");

    add_user(place, "nancy");
    place
        .tidewater_with_input(
            &["user", "add", "steve", "--password-stdin"],
            &password("steve"),
        )
        .done();
    let server = place.serve(&[]);
    for user in ["nancy", "steve"] {
        let file = format!("{user}.db");
        let first = [
            "sync",
            &file,
            "--server",
            server.url(),
            "--user",
            user,
            "--publication",
            "main",
        ];
        let told = place.tidewater_as(&password(user), &first).done();
        assert!(told.stdout.contains("downloaded"), "{told:#?}");
    }
    same(place, centre);

    let nancy = sqlite(&place.path("nancy.db"));
    nancy
        .execute_batch(
            "INSERT INTO customer VALUES (12, 1, 'O''Neil; DROP TABLE customer; --', NULL);
             UPDATE customer SET note = 'says \"hello\"' WHERE customer_id = 10;
             DELETE FROM customer WHERE customer_id = 11;
             INSERT INTO product VALUES (3, 'paper');",
        )
        .unwrap();
    centre.execute(
        "UPDATE product SET name = 'blue ink' WHERE product_id = 2;
         INSERT INTO customer VALUES (21, 2, 'Dora', NULL);
         UPDATE customer SET rep_id = 1 WHERE customer_id = 20;",
    );
    let report = place
        .tidewater(&["sync", "nancy.db", "--json"])
        .done()
        .json();
    assert_eq!(
        report["uploaded"],
        json!({"inserts": 2, "updates": 1, "deletes": 1})
    );
    place.tidewater(&["sync", "steve.db"]).done();
    same(place, centre);
    let moved = sqlite_rows(&nancy, "SELECT name FROM customer WHERE customer_id = 20");
    assert_eq!(moved, ["Cleo"]);

    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
}

/// Edits the file that `init` wrote, as its comments say: it has found whose customers are, and nothing
/// leads to products.
fn decide(place: &Place) {
    let text = place.read("tidewater.toml");
    assert_eq!(text.matches("# TODO:").count(), 1, "{text}");
    let values = "values = \"SELECT rep_id FROM rep WHERE login = {s.username}\"";
    let of_rep = format!("\npartition = {{ columns = [\"rep_id\"], {values} }}\n");
    assert_eq!(text.matches(&of_rep).count(), 2, "{text}");
    let undecided = "\n# partition = \"everyone\"\n";
    assert_eq!(text.matches(undecided).count(), 1, "{text}");
    let decided = text.replace(undecided, "\npartition = \"everyone\"\n");
    place.write("tidewater.toml", &decided);
}

/// Every remote holds exactly the rows that are its user's.
#[track_caller]
fn same(place: &Place, centre: &Centre) {
    for (user, rep) in [("nancy", 1), ("steve", 2)] {
        let remote = sqlite(&place.path(&format!("{user}.db")));
        for (table, condition) in [
            ("rep", format!("rep_id = {rep}")),
            ("product", "true".to_owned()),
            ("customer", format!("rep_id = {rep}")),
        ] {
            let sql = format!("SELECT * FROM {table} WHERE {condition} ORDER BY 1");
            assert_eq!(
                sqlite_rows(&remote, &sql),
                centre.rows(&sql),
                "{user}: {table}"
            );
            let all = format!("SELECT count(*) FROM {table}");
            let count = centre.rows(&sql).len().to_string();
            assert_eq!(sqlite_rows(&remote, &all), [count], "{user}: {table}");
        }
    }
}
