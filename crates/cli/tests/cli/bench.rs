//! `tidewater bench`: every scenario, small, and what can go wrong. Nothing here looks at a clock.

mod databases;
mod drivers;
mod ends;
mod live;
mod own;
mod page;
mod scenarios;

use serde_json::Value;

use self::page::is_a_page;
use crate::centre::Centre;
use crate::program::Place;

/// Runs a scenario with few remotes, and gives its JSON. Its page tells the same.
fn scenario(place: &Place, name: &str, arguments: &[&str]) -> Value {
    let mut all = vec!["bench", name, "--json", "--drivers", "2"];
    all.extend(["--report", "report.html"]);
    all.extend(arguments);
    let run = place.tidewater(&all).done();
    let report = run.json();
    assert_eq!(report["scenario"], name, "{report}");
    assert_eq!(report["machine"]["drivers"], 2, "{report}");
    is_a_page(&place.path("report.html"), &report);
    report
}

/// The runs of an operation.
fn runs<'a>(report: &'a Value, operation: &str) -> Vec<&'a Value> {
    let runs = report["runs"].as_array().expect("runs");
    let ours = runs.iter().filter(|run| run["operation"] == operation);
    ours.collect()
}

/// The points of all runs of an operation.
fn labels(report: &Value, operation: &str) -> Vec<String> {
    let labels = runs(report, operation).into_iter().map(|run| {
        let label = run["point"]["label"].as_str();
        label.expect("a label").to_owned()
    });
    labels.collect()
}

/// Every sync of the four operations moved its rows.
fn all_is_moved(report: &Value) {
    for operation in ["download", "update", "delete", "insert"] {
        assert!(!runs(report, operation).is_empty(), "{operation}: {report}");
    }
    for run in report["runs"].as_array().expect("runs") {
        let number = |name: &str| {
            run[name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name}: {run}"))
        };
        assert_eq!(number("syncs"), number("remotes") * number("sets"), "{run}");
        assert_eq!(
            number("rows"),
            number("syncs") * number("rows_per_sync"),
            "{run}"
        );
        assert!(
            run["server_seconds"].as_f64().is_some_and(|it| it > 0.0),
            "{run}"
        );
        assert!(
            number("bytes_sent") > 0 && number("bytes_received") > 0,
            "{run}"
        );
    }
}

/// What bench and the server made is gone.
fn nothing_is_left(centre: &Centre) {
    match centre {
        Centre::Sqlite(path) => assert!(!path.exists(), "{}", path.display()),
        Centre::Postgres(_) => {
            let tables = "SELECT table_schema, table_name FROM information_schema.tables
                          WHERE table_schema NOT IN ('pg_catalog', 'information_schema')";
            assert_eq!(centre.rows(tables), Vec::<String>::new());
        }
    }
}
