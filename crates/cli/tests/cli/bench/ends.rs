//! How a bench ends whose parts are killed or interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{all_is_moved, nothing_is_left, scenario};
use crate::centre::{Centre, on_both_centres};
use crate::program::{Place, Run, until};

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
    files: PathBuf,
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

    fn ends(self) -> (Run, PathBuf) {
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
