//! A disk without room, under a file in WAL mode: it is told as what it is. A limit of the process on
//! the size of files stands for it, as a quota does.

use std::process::{Command, Stdio};

use crate::program::{Place, Run};
use crate::shop::Shop;

/// Runs the program where no file grows beyond so many blocks of 512 bytes.
fn limited(place: &Place, blocks: u32, arguments: &[&str]) -> Run {
    // Beyond the limit a write fails, and the signal that would end the process is ignored.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_tidewater")])
        .args(arguments)
        .current_dir(place.path("."))
        .stdin(Stdio::null());
    Run::of(&mut command)
}

#[test]
fn a_full_disk_under_a_write_ahead_log_is_told() {
    let shop = Shop::open();
    let nancy = shop.remote("nancy");
    nancy.rows("PRAGMA journal_mode = WAL");
    // Not even the index of the log can be made.
    let status = limited(&shop.place, 0, &["status", &nancy.name]).exits(5);
    status.tells(&["no room on the disk", "make room on the disk"]);
    shop.centre.execute(
        "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 199)
         INSERT INTO product SELECT i, hex(randomblob(5000)) FROM n",
    );
    nancy.execute("INSERT INTO product VALUES (3, 'paper')");
    let run = limited(&shop.place, 800, &["sync", &nancy.name, "--json"]).exits(5);
    let error = &run.json()["error"];
    assert_eq!(error["code"], "remote_database");
    let hint = error["hint"].as_str().expect("it says what to do");
    assert!(hint.starts_with("make room on the disk"), "{error}");
    assert!(!hint.contains("permission"), "{error}");
    // Nothing is lost.
    shop.sync(&nancy).done();
    assert_eq!(nancy.rows("SELECT count(*) FROM product"), ["103"]);
    assert_eq!(shop.centre.rows("SELECT count(*) FROM product"), ["103"]);
}
