//! Every scenario, small.

use serde_json::Value;

use super::{all_is_moved, labels, nothing_is_left, runs, scenario};
use crate::centre::{Centre, on_both_centres};
use crate::program::Place;

#[test]
fn remotes_of_any_number_move_their_rows_and_leave_nothing() {
    on_both_centres(|place, centre| {
        for tracking in ["log", "off"] {
            let report = scenario(
                place,
                "remotes",
                &[
                    "--consolidated",
                    &centre.url(),
                    "--tracking",
                    tracking,
                    "--remotes",
                    "3,5",
                    "--total",
                    "60",
                    "--repeat",
                    "2",
                    "--sets",
                    "2",
                    "--with-limit",
                ],
            );
            all_is_moved(&report);
            // The repeats run the other way round.
            assert_eq!(labels(&report, "update"), ["3", "5", "5", "3"]);
            assert_eq!(runs(&report, "download")[0]["rows_per_sync"], 10);
            assert_eq!(runs(&report, "empty")[0]["rows"], 0);
            assert_eq!(report["medians"].as_array().expect("medians").len(), 10);
            let limits = report["limit"].as_array().expect("limits");
            assert_eq!(limits.len(), 8, "{report}");
            for limit in limits {
                let rate = |name: &str| limit[name].as_f64().expect("a rate");
                let both = rate("rows_per_second");
                assert!(
                    both > 0.0 && both < rate("database_rows_per_second"),
                    "{limit}"
                );
                assert!(both < rate("remote_rows_per_second"), "{limit}");
                assert!(rate("share") > 0.0, "{limit}");
            }
            nothing_is_left(centre);
        }
        let database = match centre {
            Centre::Sqlite(_) => "SQLite",
            Centre::Postgres(_) => "PostgreSQL",
        };
        let arguments = [
            "--consolidated",
            &centre.url(),
            "--remotes",
            "2",
            "--rows",
            "1",
        ];
        let table = place
            .tidewater(&[&["bench", "remotes"], &arguments[..]].concat())
            .done();
        assert!(table.stdout.contains(database), "{table:?}");
        assert!(table.stdout.contains("\nremotes  operation"), "{table:?}");
        nothing_is_left(centre);
    });
}

#[test]
fn sizes_have_the_same_rows_altogether() {
    let place = Place::new();
    let report = scenario(
        &place,
        "size",
        &[
            "--rows",
            "1,5,20",
            "--total",
            "20",
            "--remotes",
            "4",
            "--sets",
            "5",
        ],
    );
    all_is_moved(&report);
    for run in runs(&report, "insert") {
        assert_eq!(run["rows"], 20, "{run}");
    }
    assert_eq!(labels(&report, "insert"), ["1", "5", "20"]);
}

#[test]
fn workers_are_what_they_were_asked_to_be() {
    let place = Place::new();
    let report = scenario(
        &place,
        "workers",
        &["--workers", "1,3,auto", "--remotes", "4", "--rows", "3"],
    );
    all_is_moved(&report);
    let workers: Vec<&Value> = runs(&report, "update")
        .iter()
        .map(|run| &run["workers"])
        .collect();
    assert_eq!(workers, ["1", "3", "auto"]);
}

#[test]
fn the_limit_is_what_databases_do_alone() {
    let place = Place::new();
    let report = scenario(&place, "limit", &["--rows", "7", "--total", "28"]);
    all_is_moved(&report);
    assert_eq!(report["limit"].as_array().expect("limits").len(), 4);
}

#[test]
fn remotes_that_are_sent_away_come_back() {
    let place = Place::new();
    let report = scenario(
        &place,
        "retry",
        &[
            "--connections",
            "2",
            "--retry",
            "0,0.05",
            "--remotes",
            "12",
            "--rows",
            "2",
        ],
    );
    all_is_moved(&report);
    let unlimited = "no limit";
    assert_eq!(
        labels(&report, "update"),
        [unlimited, "limit 2, after 0 s", "limit 2, after 0.05 s"]
    );
    for run in report["runs"].as_array().expect("runs") {
        if run["point"]["label"] == unlimited {
            assert_eq!(run["retries"], 0, "{run}");
            assert_eq!(run["connections"], Value::Null, "{run}");
        } else {
            assert_eq!(run["connections"], 2, "{run}");
        }
    }
}

#[test]
fn subscribers_merge_until_the_time_is_over() {
    let place = Place::new();
    let report = scenario(
        &place,
        "merge",
        &["--remotes", "3", "--rows", "4", "--seconds", "0.5"],
    );
    let runs = runs(&report, "update");
    assert_eq!(runs.len(), 1, "{report}");
    let number = |name: &str| runs[0][name].as_u64().expect("a number");
    assert!(number("syncs") >= 3, "{report}");
    assert_eq!(number("rows"), 4 * number("syncs"), "{report}");
    assert!(
        report["notes"].to_string().contains("changed an hour"),
        "{report}"
    );
    place
        .tidewater(&["bench", "merge", "--tracking", "off"])
        .exits(1)
        .tells(&["tracking is off"]);
}

#[test]
fn slow_lines_carry_what_fast_ones_do() {
    let place = Place::new();
    let report = scenario(
        &place,
        "slow",
        &[
            "--fast",
            "2",
            "--remotes",
            "3",
            "--rows",
            "5,2",
            "--line",
            "20000",
        ],
    );
    all_is_moved(&report);
    let series: Vec<_> = runs(&report, "update")
        .iter()
        .map(|run| &run["point"]["series"])
        .collect();
    assert_eq!(series, ["fast", "fast", "slow", "fast", "slow"]);
}

#[test]
fn server_and_database_can_be_confined() {
    let place = Place::new();
    let report = scenario(
        &place,
        "cpus",
        &["--cpus", "1", "--remotes", "2", "--rows", "2"],
    );
    all_is_moved(&report);
    place
        .tidewater(&["bench", "cpus", "--cpus", "100000"])
        .exits(1)
        .tells(&["100000 cores were asked for"]);
}

#[test]
fn every_way_carries_the_same_and_is_compared_with_what_is_below_it() {
    let place = Place::new();
    let small = ["--remotes", "4", "--rows", "3", "--repeat", "2"];
    let report = scenario(&place, "protocols", &small);
    all_is_moved(&report);
    let ways = [
        "tcp off",
        "ws off",
        "http off",
        "tls-ecc off",
        "tls-rsa off",
        "tls-resumed off",
        "wss off",
        "https off",
        "relay off",
        "tcp auto",
        "tcp zstd",
        "tcp deflate",
    ];
    // The repeats run the other way round.
    let there_and_back: Vec<&str> = ways.iter().chain(ways.iter().rev()).copied().collect();
    assert_eq!(labels(&report, "update"), there_and_back);
    let medians = report["medians"].as_array().expect("medians");
    assert_eq!(medians.len(), 5 * ways.len());
    for median in medians {
        let against = &median["against"];
        let expected = match median["point"]["label"].as_str() {
            Some("tcp off") => Value::Null,
            Some("relay off") => "tls-ecc off".into(),
            _ => "tcp off".into(),
        };
        assert_eq!(against["label"], expected, "{median}");
        for what in ["server_seconds", "bytes"] {
            let ratio = against[what]["median"].as_f64();
            assert!(
                expected.is_null() || ratio.is_some_and(|it| it > 0.0),
                "{median}"
            );
        }
    }
    let asked = [
        "--carriers",
        "https,tls-resumed",
        "--compression",
        "zstd",
        "--repeat",
        "1",
    ];
    let report = scenario(&place, "protocols", &[&small[..4], &asked].concat());
    all_is_moved(&report);
    let labels = labels(&report, "insert");
    assert_eq!(labels, ["tcp off", "https zstd", "tls-resumed zstd"]);
    let table = place.tidewater(&[&["bench", "protocols"], &small[..4], &asked].concat());
    assert!(table.done().stdout.contains(" of tcp off"));
    for (asked, error) in [
        ("--carriers", "there is tcp, ws"),
        ("--compression", "there is auto"),
    ] {
        let run = place.tidewater(&["bench", "protocols", asked, "pigeon"]);
        run.exits(1).tells(&[error]);
    }
}

#[test]
fn drivers_are_divided_between_several_servers_of_one_database() {
    on_both_centres(|place, centre| {
        let url = centre.url();
        let small = ["--remotes", "4", "--rows", "2", "--consolidated", &url];
        all_is_moved(&scenario(
            place,
            "remotes",
            &[&["--servers", "2"], &small[..]].concat(),
        ));
        nothing_is_left(centre);
    });
}
