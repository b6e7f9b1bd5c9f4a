//! `tidewater bench` and `tidewater simulate` are programs of their own: what goes to them, what comes
//! back, and what is said where they are missing.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{Place, Run};

/// A command, its program, and how the hint builds it.
const PROGRAMS: [(&str, &str, &str); 2] = [
    (
        "bench",
        "tidewater-bench",
        "cargo build --release -p tidewater-bench",
    ),
    (
        "simulate",
        "tidewater-simulate",
        "cargo build --release -p tidewater-simulator --bin tidewater-simulate",
    ),
];

/// Runs a shell here. Not this process writes programs: one that another thread starts meanwhile
/// would hold the file open, and what is open for writing cannot be run.
fn shell(place: &Place, script: &str, arguments: &[&str]) {
    let status = Command::new("sh")
        .args(["-e", "-c", script, "sh"])
        .args(arguments)
        .current_dir(place.path(""))
        .status();
    assert!(status.is_ok_and(|it| it.success()), "{script}");
}

/// Copies `tidewater` alone into a folder of the place.
fn copy_alone(place: &Place) {
    let program = env!("CARGO_BIN_EXE_tidewater");
    shell(place, "mkdir alone && cp \"$1\" alone/", &[program]);
}

/// Makes a program that says which it is and what it is given, and ends with exit code 42.
fn write_program(place: &Place, folder: &str, name: &str) {
    let script = format!(
        "#!/bin/sh\nread -r input\necho \"{folder}: $input\"\nprintf '<%s>' \"$@\"\necho e >&2\n\
         exit 42\n"
    );
    let write = "mkdir -p \"$1\" && printf '%s' \"$3\" >\"$1/$2\" && chmod +x \"$1/$2\"";
    shell(place, write, &[folder, name, &script]);
}

/// The copied program, with these folders as PATH.
fn alone(place: &Place, path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(place.path("alone/tidewater"));
    command
        .args(arguments)
        .current_dir(place.path(""))
        .env("PATH", path)
        .stdin(Stdio::null());
    command
}

#[test]
fn a_missing_program_is_told_with_how_to_get_it() {
    let place = Place::new();
    copy_alone(&place);
    let nowhere = Path::new("");
    for (command, name, build) in PROGRAMS {
        // What lies in the current folder is no installation, whatever an empty PATH means to a shell.
        write_program(&place, ".", name);
        for arguments in [
            &[command][..],
            &[command, "--help"],
            &["help", command],
            &[command, "remotes", "--", "--json"],
        ] {
            let run = Run::of(&mut alone(&place, nowhere, arguments)).exits(1);
            assert_eq!(run.stdout, "", "{arguments:?}");
            run.tells(&[name, "a program of its own", "beside tidewater", build]);
        }
        let arguments = [command, "remotes", "--json"];
        let run = Run::of(&mut alone(&place, nowhere, &arguments)).exits(1);
        let error = run.json()["error"].clone();
        assert_eq!(error["code"], "usage");
        let hint = error["hint"].as_str().expect("a text");
        assert!(hint.contains(build), "{hint}");
    }
}

#[test]
fn arguments_streams_and_exit_code_pass_through_whole() {
    let place = Place::new();
    copy_alone(&place);
    let run = |arguments: &[&str]| {
        let mut command = alone(&place, &place.path("other"), arguments);
        shell(&place, "echo given >input", &[]);
        command.stdin(std::fs::File::open(place.path("input")).expect("it was written"));
        let run = Run::of(&mut command).exits(42);
        assert_eq!(run.stderr, "e\n");
        run.stdout
    };
    for (command, name, _) in PROGRAMS {
        write_program(&place, "other", name);
        let odd = ["-x", "--json", "a b", "", "--", "-h", "--version"];
        let passed = "<-x><--json><a b><><--><-h><--version>";
        let arguments = [&[command][..], &odd].concat();
        assert_eq!(run(&arguments), format!("other: given\n{passed}"));
        assert_eq!(
            run(&["help", command, "more"]),
            "other: given\n<more><--help>"
        );
        // The one beside was installed together with it.
        write_program(&place, "alone", name);
        assert_eq!(run(&[command, "--help"]), "alone: given\n<--help>");
    }
}

#[test]
fn each_has_its_own_help_under_the_name_of_the_command() {
    let place = Place::new();
    for arguments in [
        &["bench", "--help"][..],
        &["bench", "-h"],
        &["help", "bench"],
        &["bench", "remotes", "--help"],
        &["help", "bench", "remotes"],
        &["simulate", "--help"],
        &["help", "simulate"],
    ] {
        let run = place.tidewater(arguments).done();
        assert_eq!(run.stderr, "", "{arguments:?}");
        let command = if arguments.contains(&"bench") {
            "bench"
        } else {
            "simulate"
        };
        let usage = format!("Usage: tidewater {command}");
        assert!(run.stdout.contains(&usage), "{run:?}");
        assert!(run.stdout.contains("Exit codes:"), "{run:?}");
    }
    let help = place.tidewater(&["--help"]).done().stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, name, _) in PROGRAMS {
        assert!(
            help.contains(&format!("(a program of its own, {name})")),
            "{help}"
        );
    }
}

#[test]
fn their_errors_and_exit_codes_are_those_of_tidewater() {
    let place = Place::new();
    for command in ["bench", "simulate"] {
        let run = place
            .tidewater(&[command, "--no-such-option", "--json"])
            .exits(1);
        let error = run.json()["error"].clone();
        assert_eq!(error["code"], "usage");
        assert_eq!(error["hint"], format!("see: tidewater {command} --help"));
    }
    place
        .tidewater(&["simulate"])
        .exits(1)
        .tells(&["tidewater.toml", "hint: name the configuration file"]);
}
