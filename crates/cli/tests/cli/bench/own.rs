//! `tidewater bench own`: somebody's own file and database.

use super::{runs, scenario};
use crate::program::Place;
use crate::shop::Shop;

#[test]
fn what_a_file_has_pending_goes_up_from_many_remotes() {
    Shop::on_both_centres(|shop| {
        let nancy = shop.remote("nancy");
        nancy.execute(
            "INSERT INTO customer VALUES (12, 1, 'Dora', NULL), (13, 1, 'Emil', 'y');
             UPDATE customer SET note = 'changed' WHERE customer_id = 10;
             DELETE FROM customer WHERE customer_id = 11;
             INSERT INTO product VALUES (3, 'ruler')",
        );
        let Shop {
            server,
            centre,
            place,
        } = shop;
        server.terminate();
        let url = centre.url();
        let own = [
            "-c",
            "tidewater.toml",
            "--remote",
            "nancy.db",
            "--remotes",
            "3",
            "--consolidated",
            &url,
        ];
        // Nobody has said that this database may be changed.
        place
            .tidewater(&[&["bench", "own"], &own[..]].concat())
            .exits(1)
            .tells(&[
                "tidewater_bench_copy",
                "take a copy",
                "CREATE TABLE tidewater_bench_copy",
            ]);
        centre.execute("CREATE TABLE tidewater_bench_copy (version INT)");
        // Nancy's file cannot know which keys the customers of others have.
        centre.execute("UPDATE customer SET customer_id = 2000 WHERE customer_id = 20");

        let report = scenario(&place, "own", &own);
        let download = runs(&report, "download")[0];
        // Two representatives, two customers, two products.
        assert_eq!(download["rows"], 3 * 6, "{report}");
        let upload = runs(&report, "upload")[0];
        assert_eq!(upload["syncs"], 3, "{report}");
        let number = |name: &str| upload[name].as_u64().expect("a number");
        assert_eq!(number("refused"), 0, "{report}");
        // What others had changed meanwhile came down with it, and does not count.
        assert_eq!(number("rows"), 3 * 5, "{report}");
        // Three inserts each, and what is the same everywhere once.
        let names = "SELECT name FROM customer WHERE rep_id = 1 ORDER BY name";
        let dora_and_emil = ["Dora", "Dora", "Dora", "Emil", "Emil", "Emil"];
        assert_eq!(centre.rows(names)[1..], dora_and_emil);
        assert_eq!(
            centre.rows("SELECT count(*) FROM product WHERE name = 'ruler'"),
            ["3"]
        );
        let note = "SELECT note FROM customer WHERE customer_id = 10";
        assert_eq!(centre.rows(note), ["changed"]);
        // Once more, with keys that nobody has; and the text tells of conflicts, too.
        let again = place
            .tidewater(&[&["bench", "own", "--drivers", "2"], &own[..]].concat())
            .done();
        let lines: Vec<Vec<&str>> = again
            .stdout
            .lines()
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|it| !it.is_empty())
                    .collect()
            })
            .collect();
        let titles = lines.iter().find(|it| it.contains(&"operation")).unwrap();
        let upload = lines.iter().find(|it| it.contains(&"upload")).unwrap();
        assert!(titles.ends_with(&["conflicts", "refused"]), "{again:#?}");
        assert_eq!(upload.last(), Some(&"0"), "{again:#?}");
        assert_eq!(
            centre.rows("SELECT count(*) FROM product WHERE name = 'ruler'"),
            ["6"]
        );
        // The user's tables stay, and the file is as it was.
        assert_eq!(
            centre.rows("SELECT count(*) FROM tidewater_bench_copy"),
            ["0"]
        );
        assert_eq!(nancy.rows("SELECT count(*) FROM customer"), ["3"]);
    });
}

#[test]
fn what_own_needs_is_asked_for() {
    let place = Place::new();
    for (arguments, part) in [
        (&["bench", "own"][..], "-c FILE"),
        (&["bench", "own", "-c", "x.toml"], "--remote FILE"),
        (
            &["bench", "own", "-c", "x.toml", "--remote", "x.db"],
            "--consolidated",
        ),
        (
            &[
                "bench",
                "own",
                "-c",
                "x.toml",
                "--remote",
                "x.db",
                "--consolidated",
                "sqlite:c.db",
            ],
            "cannot read x.toml",
        ),
    ] {
        place.tidewater(arguments).exits(1).tells(&[part]);
    }
}
