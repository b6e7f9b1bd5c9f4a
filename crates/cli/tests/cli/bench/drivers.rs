//! Drivers: at the gate of a supervisor elsewhere, and short of open files.

use std::process::{Command, Stdio};

use super::all_is_moved;
use super::page::is_a_page;
use crate::program::{Place, Run, free_url, until};

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
