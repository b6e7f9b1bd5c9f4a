//! Times as drivers write them, and singles, on their way through the centre and back.

use crate::centre::{Centre, on_both_centres, sqlite_rows};
use crate::program::sqlite;
use crate::shop::{add_user, configure, password};

const PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "moment"
partition = "everyone"
"#;

const WRITTEN: &str = "
    INSERT INTO moment VALUES
      (1, '2024-05-01 00:00:00', '10:00', '2024-05-01T10:00:00.000Z', '2024-05-01 10:00:00', 21.35),
      (2, '2024-05-01T00:00:00.000Z', '10:00:00.1234567', '2024-05-01 10:00:00.1234567',
       '2024-05-01T10:00:00.1234567Z', 0.1),
      (3, '2024-05-01', '10:00:00.123456789Z', '2024-05-01T10:00:00.123456789',
       '2024-05-01 10:00:00.123456789-07:00', 1.1),
      (4, '0001-01-01', '23:59:59.9999999', '2024-05-01T23:59:59.9999999',
       '2024-05-01 10:00:00 +0200', 1e30)";

const EXPECTED: [&str; 4] = [
    "1|2024-05-01|10:00:00.000000|2024-05-01T10:00:00.000000|2024-05-01T10:00:00.000000Z|21.35",
    "2|2024-05-01|10:00:00.123457|2024-05-01T10:00:00.123457|2024-05-01T10:00:00.123457Z|0.1",
    "3|2024-05-01|10:00:00.123457|2024-05-01T10:00:00.123457|2024-05-01T17:00:00.123457Z|1.1",
    "4|0001-01-01|24:00:00.000000|2024-05-02T00:00:00.000000|2024-05-01T08:00:00.000000Z|1.0e+30",
];

#[test]
fn times_as_drivers_write_them_are_taken_and_come_back_in_the_centres_spelling() {
    on_both_centres(|place, centre| {
        centre.execute(
            "CREATE TABLE moment (id INTEGER NOT NULL PRIMARY KEY, day DATE, clock TIME,
             at TIMESTAMP, instant TIMESTAMPTZ, weight REAL)",
        );
        configure(place, centre, "", PUBLICATION);
        place.tidewater(&["deploy"]).done();
        add_user(place, "nancy");
        let server = place.serve(&[]);
        let first = |file: &str| {
            let account = ["--user", "nancy", "--publication", "main"];
            let sync = [&["sync", file, "--server", server.url()][..], &account].concat();
            place.tidewater_as(&password("nancy"), &sync).done();
        };
        first("nancy.db");
        let remote = sqlite(&place.path("nancy.db"));
        remote.execute_batch(WRITTEN).unwrap();
        place.tidewater(&["sync", "nancy.db"]).done();
        first("second.db");
        let all = "SELECT id, day, clock, at, instant, printf('%!.7g', weight) FROM moment";
        for file in ["nancy.db", "second.db"] {
            let rows = sqlite_rows(&sqlite(&place.path(file)), all);
            assert_eq!(rows, EXPECTED, "{file}");
        }
        // Exactly the double that was typed, though the centre may keep a single.
        let weight = "SELECT count(*) FROM moment WHERE weight IN (21.35, 0.1, 1.1, 1e30)";
        let second = sqlite(&place.path("second.db"));
        assert_eq!(sqlite_rows(&second, weight), ["4"]);
        // What comes back is no change.
        let again = place
            .tidewater(&["sync", "nancy.db", "--json"])
            .done()
            .json();
        assert_eq!(again["uploaded"]["updates"], 0);
        assert_eq!(again["downloaded"]["upserts"], 0);
        if let Centre::Postgres(_) = centre {
            assert_eq!(
                centre.rows("SELECT weight FROM moment WHERE id = 1"),
                ["21.35"]
            );
        }
    });
}

#[test]
fn a_key_that_is_not_canonical_is_told_the_canonical_form() {
    on_both_centres(|place, centre| {
        centre.execute("CREATE TABLE moment (at TIMESTAMPTZ NOT NULL PRIMARY KEY, note TEXT)");
        configure(place, centre, "", PUBLICATION);
        place.tidewater(&["deploy"]).done();
        add_user(place, "nancy");
        let server = place.serve(&[]);
        let account = ["--user", "nancy", "--publication", "main"];
        let sync = [
            &["sync", "nancy.db", "--server", server.url()][..],
            &account,
        ]
        .concat();
        place.tidewater_as(&password("nancy"), &sync).done();
        let remote = sqlite(&place.path("nancy.db"));
        let told = remote
            .execute_batch("INSERT INTO moment VALUES ('2024-05-01 10:00:00', '')")
            .unwrap_err()
            .to_string();
        assert!(
            told.contains("at in canonical form: YYYY-MM-DDTHH:MM:SS.ffffffZ"),
            "{told}"
        );
    });
}
