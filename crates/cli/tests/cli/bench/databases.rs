//! Whose the database is that a bench is given, and whether it can be had.

use super::{all_is_moved, scenario};
use crate::centre::{Centre, on_both_centres};
use crate::program::{Place, free_url};

#[test]
fn a_database_that_is_not_benchs_own_stays_as_it_is() {
    on_both_centres(|place, centre| {
        centre.execute("CREATE TABLE purchase (x INT)");
        let arguments = [
            "bench",
            "remotes",
            "--json",
            "--consolidated",
            &centre.url(),
        ];
        let run = place.tidewater(&arguments).exits(1);
        let error = run.json();
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains("the table purchase"), "{message}");
        assert_eq!(centre.rows("SELECT count(*) FROM purchase"), ["0"]);
        let marker = match centre {
            Centre::Sqlite(_) => "SELECT name FROM sqlite_schema WHERE name LIKE 'tidewater%'",
            Centre::Postgres(_) => {
                "SELECT relname::text FROM pg_class WHERE relname LIKE 'tidewater%'"
            }
        };
        assert_eq!(centre.rows(marker), Vec::<String>::new());
    });
}

#[test]
fn what_was_kept_is_known_by_its_marker_and_replaced() {
    on_both_centres(|place, centre| {
        let url = centre.url();
        let small = ["--remotes", "2", "--rows", "2", "--consolidated", &url];
        scenario(place, "remotes", &[&["--keep"], &small[..]].concat());
        assert_eq!(centre.rows("SELECT count(*) FROM tidewater_bench"), ["1"]);
        assert_eq!(centre.rows("SELECT count(*) FROM bench_user"), ["2"]);
        all_is_moved(&scenario(place, "remotes", &small));
        let tables = match centre {
            Centre::Sqlite(_) => "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'",
            Centre::Postgres(_) => {
                "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'"
            }
        };
        assert_eq!(centre.rows(tables), Vec::<String>::new());
    });
}

#[test]
fn a_database_that_cannot_be_reached_is_told() {
    let place = Place::new();
    let url = free_url().replace("tcp://", "postgres://nobody@") + "/nothing";
    place
        .tidewater(&["bench", "remotes", "--consolidated", &url])
        .exits(1)
        .tells(&["cannot be reached"]);
    place
        .tidewater(&["bench", "remotes", "--consolidated", "mysql://u:s3cret@h/d"])
        .exits(1)
        .tells(&["mysql"]);
    place
        .tidewater(&["bench", "remotes", "--remotes", "0"])
        .exits(1)
        .tells(&["0 remotes"]);
    place
        .tidewater(&["bench", "remotes", "--files", "/nowhere/at/all"])
        .exits(1)
        .tells(&["/nowhere/at/all", "--files"]);
}
