//! The program `tidewater-bench` where `tidewater` is missing, of which it starts servers.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A copy of the program in a folder of its own, and what a run of it leaves, with nothing in PATH.
fn run_alone(folder: &Path, arguments: &[&str]) -> Output {
    let program = folder.join("tidewater-bench");
    if !program.exists() {
        // Not this process copies it: what a thread has open for writing, no other can run.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_tidewater-bench"))
            .arg(&program)
            .status();
        assert!(copied.is_ok_and(|it| it.success()));
    }
    let mut command = Command::new(program);
    let command = command.args(arguments).current_dir(folder).env("PATH", "");
    command.output().expect("the program runs")
}

#[test]
fn a_bench_without_tidewater_says_so_before_it_touches_the_database() {
    let folder = tempfile::tempdir().expect("a folder");
    for scenario in ["remotes", "calls"] {
        let arguments = [scenario, "--json", "--consolidated", "sqlite:centre.db"];
        let output = run_alone(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let told: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!(told["error"]["code"], "usage", "{told}");
        for (field, part) in [
            ("message", "the program tidewater"),
            (
                "hint",
                "cargo build --release -p tidewater-cli -p tidewater-bench",
            ),
        ] {
            let text = told["error"][field].as_str().expect("a text");
            assert!(text.contains(part), "{text}");
        }
        assert!(!folder.path().join("centre.db").exists());
    }
}
