//! `tidewater bench`: every scenario, small, and what can go wrong. Nothing here looks at a clock.

mod live;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::centre::{Centre, on_both_centres};
use crate::program::{Place, Run, free_url, until};
use crate::shop::Shop;

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

/// A page that is well-formed, needs nothing from outside, and tells of the machine.
fn read_page<'a>(page: &'a str, report: &Value) -> roxmltree::Document<'a> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(page, options);
    let document = document.unwrap_or_else(|error| panic!("{error}: {page}"));
    for node in document.descendants() {
        for attribute in node.attributes() {
            let is_outside = ["src", "href"].contains(&attribute.name());
            assert!(!is_outside, "{attribute:?}");
            assert!(!attribute.value().contains("http"), "{attribute:?}");
        }
    }
    for (start, _) in page.match_indices("url(") {
        assert!(page[start..].starts_with("url(#"), "{page}");
    }
    for word in ["<script", "<link", "@import", "http:", "https:"] {
        assert!(!page.contains(word), "{word}: {page}");
    }
    let cells = document.descendants().filter(|it| it.has_tag_name("td"));
    let cells: Vec<&str> = cells.filter_map(|it| it.text()).collect();
    for part in ["processor", "system", "database"] {
        let part = report["machine"][part].as_str().expect("a text");
        assert!(cells.contains(&part), "{part}: {cells:?}");
    }
    document
}

/// The page has every chart with every operation.
fn is_a_page(path: &Path, report: &Value) {
    let page = fs::read_to_string(path).expect("the page");
    let document = read_page(&page, report);
    let charts = document
        .descendants()
        .filter(|it| it.attribute("class") == Some("chart"));
    let charts: Vec<(&str, Vec<&str>)> = charts
        .map(|chart| {
            let texts = chart.descendants().filter(|it| it.has_tag_name("text"));
            let texts = texts.filter_map(|it| it.text()).map(str::trim);
            (
                chart.attribute("aria-label").expect("a name"),
                texts.collect(),
            )
        })
        .collect();
    let runs = report["runs"].as_array().expect("runs");
    for begins in ["Throughput", "Phases", "Processor time"] {
        let ours = charts.iter().filter(|(name, _)| name.starts_with(begins));
        let texts: Vec<&&str> = ours.flat_map(|(_, texts)| texts).collect();
        for run in runs {
            let operation = run["operation"].as_str().expect("a name");
            let is_in_it = operation != "empty" || begins != "Throughput";
            let is_there = texts.iter().any(|it| **it == operation);
            assert_eq!(is_there, is_in_it, "{begins}, {operation}: {texts:?}");
        }
    }
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
fn a_page_that_cannot_be_written_is_told_after_the_table() {
    let place = Place::new();
    let small = ["--remotes", "2", "--rows", "1"];
    for (path, message) in [
        ("nowhere/report.html", "no such file or directory"),
        ("/dev/full", "no space left on device"),
    ] {
        let arguments = [&["bench", "size", "--report", path], &small[..]].concat();
        let run = place.tidewater(&arguments).exits(1);
        assert!(run.stdout.contains("rows a sync  operation"), "{run:?}");
        let error = format!("error: cannot write the report {path}: {message}");
        assert!(run.stderr.contains(&error), "{run:?}");
        // One object, and it is the result.
        let run = place.tidewater(&[&arguments[..], &["--json"]].concat());
        assert_eq!(run.exits(1).json()["scenario"], "size");
    }
    // Bench's own text in it is text.
    let odd = "a<b>&\"c\".html";
    let files = place.path("<i>&");
    fs::create_dir(&files).expect("a folder");
    let files = files.to_str().expect("a path");
    let more = ["--files", files, "--report", odd];
    let report = place
        .tidewater(&[&["bench", "size", "--json"], &small[..], &more].concat())
        .done()
        .json();
    is_a_page(&place.path(odd), &report);
    let page = fs::read_to_string(place.path(odd)).expect("the page");
    assert!(page.contains("&lt;i&gt;&amp;"), "{page}");
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

#[test]
fn too_few_open_files_are_told_with_a_way_out() {
    let place = Place::new();
    let limited = |more: &str| {
        let program = env!("CARGO_BIN_EXE_tidewater");
        let script =
            format!("ulimit -n 150 && exec {program} bench remotes --drivers 1 --rows 1 {more}");
        Run::of(
            Command::new("sh")
                .args(["-c", &script])
                .current_dir(place.path("")),
        )
    };
    let too_few = |more: &str, way_out: &str| {
        let run = limited(more).exits(1);
        for part in ["error: driver 1 failed", "open files", "150", way_out] {
            assert!(run.stderr.contains(part), "{part}: {run:?}");
        }
    };
    too_few("--remotes 40", "--at-once");
    limited("--remotes 40 --at-once 4").done();
    // Files that stay open are as many as there are remotes, however many of them sync at once.
    too_few(
        "--remotes 40 --at-once 4 --keep-open",
        "leave --keep-open out",
    );
    limited("--remotes 12 --keep-open").done();
}

/// A bench that goes on until somebody ends it, with its files in the place.
fn long_bench(place: &Place, centre: &Centre) -> Bench {
    let files = place.path("files");
    fs::create_dir_all(&files).expect("a folder");
    let mut command = place.command(&["bench", "merge", "--seconds", "3000", "--drivers", "2"]);
    let child = command
        .args([
            "--remotes",
            "4",
            "--rows",
            "3",
            "--consolidated",
            &centre.url(),
            "--files",
        ])
        .arg(&files)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Bench {
        child: child.expect("the program starts"),
        files,
    }
}

struct Bench {
    child: Child,
    files: std::path::PathBuf,
}

/// The processes of a process, with their command lines.
fn children(process: u32) -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = numbers.filter(|number| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        after.split_whitespace().nth(1) == Some(&process.to_string())
    });
    ours.map(|number| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        (number, String::from_utf8_lossy(&line).replace('\0', " "))
    })
    .collect()
}

impl Bench {
    /// Its drivers and its server, once all of them sync.
    fn at_work(&self, centre: &Centre) -> Vec<(u32, String)> {
        let updated = "SELECT count(*) FROM purchase WHERE cost > 123456790";
        until("remotes have updated their rows", || match centre {
            Centre::Sqlite(path) => sqlite_count(path, updated) > 0,
            Centre::Postgres(_) => {
                let made = "SELECT count(to_regclass('purchase'))";
                centre.rows(made) == ["1"] && centre.rows(updated) != ["0"]
            }
        });
        let all = children(self.child.id());
        let all: Vec<_> = all
            .into_iter()
            .filter(|(_, line)| !line.starts_with("sh "))
            .collect();
        assert_eq!(all.len(), 3, "{all:?}");
        all
    }

    fn ends(self) -> (Run, std::path::PathBuf) {
        let output = self.child.wait_with_output().expect("the program ends");
        (output.into(), self.files)
    }
}

/// A number of a file that others write, 0 while there is none.
fn sqlite_count(path: &Path, sql: &str) -> i64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let count = rusqlite::Connection::open_with_flags(path, flags)
        .and_then(|connection| connection.query_row(sql, [], |row| row.get(0)));
    count.unwrap_or(0)
}

fn send(signal: &str, process: u32) {
    let kill = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(
        kill.is_ok_and(|status| status.success()),
        "kill {signal} {process}"
    );
}

fn are_gone(processes: &[(u32, String)]) {
    until("the processes end", || {
        processes.iter().all(|(process, line)| {
            let now = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&now).replace('\0', " ") != *line
        })
    });
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("the folder").next().is_none()
}

#[test]
fn a_driver_that_dies_is_named_and_everything_is_removed() {
    on_both_centres(|place, centre| {
        let bench = long_bench(place, centre);
        let all = bench.at_work(centre);
        if let Centre::Postgres(_) = centre {
            place
                .tidewater(&["bench", "remotes", "--consolidated", &centre.url()])
                .exits(1)
                .tells(&["another bench is at work", "wait until it has ended"]);
        }
        let driver = all.iter().find(|(_, line)| line.contains("driver 2"));
        send("-KILL", driver.expect("a driver").0);
        let (run, files) = bench.ends();
        assert_eq!(run.code, 5, "{run:?}");
        assert!(
            run.stderr.contains("error: driver 2 died: signal: 9"),
            "{run:?}"
        );
        are_gone(&all);
        nothing_is_left(centre);
        assert!(is_empty(&files));
    });
}

#[test]
fn a_bench_that_is_interrupted_removes_everything() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let bench = long_bench(&place, &centre);
    let all = bench.at_work(&centre);
    send("-TERM", bench.child.id());
    let (run, files) = bench.ends();
    assert_eq!(run.code, 5, "{run:?}");
    assert!(run.stderr.contains("error: interrupted"), "{run:?}");
    are_gone(&all);
    nothing_is_left(&centre);
    assert!(is_empty(&files));
}

#[test]
fn a_server_that_dies_is_told_with_its_last_words() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let bench = long_bench(&place, &centre);
    let all = bench.at_work(&centre);
    let server = all.iter().find(|(_, line)| line.contains(" serve "));
    send("-KILL", server.expect("a server").0);
    let (run, _) = bench.ends();
    assert_eq!(run.code, 5, "{run:?}");
    assert!(run.stderr.contains("error: "), "{run:?}");
    are_gone(&all);
    nothing_is_left(&centre);
}

#[test]
fn when_the_supervisor_is_gone_server_and_drivers_end_and_their_files_go() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    let mut bench = long_bench(&place, &centre);
    let all = bench.at_work(&centre);
    send("-KILL", bench.child.id());
    bench.child.wait().expect("it was killed");
    are_gone(&all);
    until("the files are removed", || is_empty(&bench.files));
    // Its tables are known by their marker.
    let url = centre.url();
    let small = ["--remotes", "2", "--rows", "2", "--consolidated", &url];
    all_is_moved(&scenario(&place, "remotes", &small));
}

#[test]
fn drivers_of_other_machines_come_to_the_supervisors_gate() {
    let place = Place::new();
    let address = free_url().replace("tcp://", "");
    let mut supervise = place.command(&["bench", "supervise", "remotes", "--listen", &address]);
    let supervisor = supervise
        .args(["--wait-for", "2", "--remotes", "4", "--rows", "3", "--json"])
        .args(["--report", "report.html"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    until("the supervisor listens", || {
        // A stranger who comes to the gate and says nothing that a driver would say.
        std::net::TcpStream::connect(&address)
            .and_then(|mut stream| std::io::Write::write_all(&mut stream, b"{}\n"))
            .is_ok()
    });
    let drive = |name: &str| {
        let arguments = ["bench", "drive", "--supervisor", &address, "--name", name];
        let child = place.command(&arguments).stderr(Stdio::piped()).spawn();
        child.expect("the program starts")
    };
    let drivers = [drive("anna"), drive("bert")];
    let run: Run = supervisor.wait_with_output().expect("it ends").into();
    let report = run.done().json();
    all_is_moved(&report);
    is_a_page(&place.path("report.html"), &report);
    assert_eq!(report["machine"]["drivers_are_elsewhere"], true);
    for driver in drivers {
        let run: Run = driver.wait_with_output().expect("it ends").into();
        run.done();
    }
}

#[test]
fn a_driver_without_a_supervisor_says_so() {
    let place = Place::new();
    let address = free_url().replace("tcp://", "");
    place
        .tidewater(&["bench", "drive", "--supervisor", &address])
        .exits(1)
        .tells(&["there is no supervisor at", "tidewater bench supervise"]);

    // One that goes away in the middle.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let arguments = ["bench", "drive", "--supervisor", &address];
    let driver = place.command(&arguments).stderr(Stdio::piped()).spawn();
    drop(listener.accept().expect("the driver comes"));
    let run: Run = driver
        .expect("the program starts")
        .wait_with_output()
        .expect("it ends")
        .into();
    run.exits(5).tells(&["the supervisor has gone away"]);
}

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

        let report = scenario(&place, "own", &own);
        let download = runs(&report, "download")[0];
        // Two representatives, two customers, two products.
        assert_eq!(download["rows"], 3 * 6, "{report}");
        let upload = runs(&report, "upload")[0];
        assert_eq!(upload["syncs"], 3, "{report}");
        let number = |name: &str| upload[name].as_u64().expect("a number");
        assert_eq!(number("refused"), 0, "{report}");
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
