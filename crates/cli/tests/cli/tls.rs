//! Encrypted connections, and plain ones where they are not wanted.

use crate::program::Place;
use crate::shop::{password, prepared};

#[test]
fn a_remote_trusts_the_development_certificate_only_when_told_to() {
    let place = Place::new();
    let centre = prepared(&place);
    let lines = place
        .tidewater(&[
            "cert",
            "--out",
            "tls",
            "--host",
            "127.0.0.1",
            "--host",
            "localhost",
        ])
        .done()
        .stdout;
    place
        .tidewater(&["cert", "--out", "tls", "--host", "localhost"])
        .exits(1)
        .tells(&["already", "--force"]);
    crate::shop::configure(&place, &centre, &lines, crate::shop::TABLES);
    let server = place.serve(&["--listen", "tls://127.0.0.1:0"]);
    let url = server.urls[1].as_str();
    assert!(url.starts_with("tls://127.0.0.1:"), "{url}");

    let ca = place.path("tls/tidewater-dev.pem");
    let ca = ca.to_str().unwrap();
    let untrusting = [
        "sync",
        "nancy.db",
        "--server",
        url,
        "--user",
        "nancy",
        "--publication",
        "main",
    ];
    let run = place.tidewater_as(&password("nancy"), &untrusting).exits(3);
    assert!(run.stderr.contains("--ca"), "{run:#?}");
    let trusting: Vec<&str> = untrusting.into_iter().chain(["--ca", ca]).collect();
    place.tidewater_as(&password("nancy"), &trusting).done();
    // The file of trusted certificates is remembered.
    place.tidewater(&["sync", "nancy.db"]).done();
    place.tidewater(&["ping", url]).exits(3);
    place.tidewater(&["ping", url, "--ca", ca]).done();
}

#[test]
fn a_certificate_that_is_replaced_is_served_without_a_word() {
    let place = Place::new();
    let centre = prepared(&place);
    let cert = ["cert", "--out", "tls", "--host", "127.0.0.1"];
    let lines = place.tidewater(&cert).done().stdout;
    crate::shop::configure(&place, &centre, &lines, crate::shop::TABLES);
    let server = place.serve(&["--listen", "tls://127.0.0.1:0"]);
    let url = server.urls[1].as_str();
    let ping = |ca: &str| place.tidewater(&["ping", url, "--ca", ca]);
    std::fs::copy(place.path("tls/tidewater-dev.pem"), place.path("old.pem")).unwrap();
    ping("old.pem").done();
    // A key that is another certificate's changes nothing.
    let other = ["cert", "--out", "other", "--host", "127.0.0.1"];
    place.tidewater(&other).done();
    let replace = |file: &str| {
        let (from, to) = (format!("other/{file}"), format!("tls/{file}"));
        std::fs::rename(place.path(&from), place.path(&to)).unwrap();
    };
    replace("tidewater-dev.key");
    server.logs("the certificate that was written is not used");
    ping("old.pem").done();
    replace("tidewater-dev.pem");
    server.logs("new connections get the certificate");
    ping("tls/tidewater-dev.pem").done();
    ping("old.pem").exits(3);
}

#[test]
fn a_check_reads_the_files_without_which_no_server_starts() {
    let place = Place::new();
    let centre = prepared(&place);
    let cert = ["cert", "--out", "tls", "--host", "localhost"];
    let tls = place.tidewater(&cert).done().stdout;
    let relay = "[relay]\nconnect = [\"tls://127.0.0.1:1\"]\nname = \"localhost\"\n\
                 token_file = \"token\"\n";
    crate::shop::configure(
        &place,
        &centre,
        &format!("{tls}{relay}"),
        crate::shop::TABLES,
    );
    let check = || place.tidewater(&["check"]);
    check().exits(1).tells(&["relay.token_file", "token"]);
    place
        .tidewater(&["relay", "token", "--out", "token"])
        .done();
    check().done();
    place.write("tls/tidewater-dev.key", "no key");
    check()
        .exits(1)
        .tells(&["tidewater-dev.key", "[server.tls]"]);
}

#[test]
fn plain_connections_off_loopback_are_refused_at_both_ends() {
    let place = Place::new();
    let centre = prepared(&place);
    place
        .tidewater(&["serve", "--listen", "tcp://0.0.0.0:0"])
        .exits(1)
        .tells(&["tls://", "insecure = true"]);
    for command in [
        &[
            "sync",
            "nancy.db",
            "--server",
            "tcp://192.0.2.1",
            "--user",
            "nancy",
            "--publication",
            "main",
        ][..],
        &["ping", "tcp://192.0.2.1"],
    ] {
        place
            .tidewater_as("x", command)
            .exits(1)
            .tells(&["tls://", "--insecure"]);
    }
    // A refused address is not remembered.
    assert!(!place.path("nancy.db").exists());
    place
        .tidewater(&["serve", "--listen", "tls://127.0.0.1:0"])
        .exits(1)
        .tells(&["certificate"]);
    crate::shop::configure(&place, &centre, "insecure = true", crate::shop::TABLES);
    let server = place.serve(&["--listen", "tcp://0.0.0.0:0"]);
    assert_eq!(server.urls.len(), 2);
}

#[test]
fn the_wrong_scheme_is_told_with_the_right_one() {
    let place = Place::new();
    let centre = prepared(&place);
    let certificate = ["cert", "--out", ".", "--host", "127.0.0.1"];
    let lines = place.tidewater(&certificate).done().stdout;
    crate::shop::configure(&place, &centre, &lines, crate::shop::TABLES);
    let server = place.serve(&["--listen", "tls://127.0.0.1:0"]);
    let to_tls = server.urls[1].replacen("tls://", "tcp://", 1);
    let to_plain = server.urls[0].replacen("tcp://", "tls://", 1);
    let sync = |url: &str| {
        let account = ["--user", "nancy", "--publication", "main"];
        let arguments = ["sync", "nancy.db", "--server", url];
        place.tidewater_as(&password("nancy"), &[&arguments[..], &account].concat())
    };
    for run in [place.tidewater(&["ping", &to_tls]), sync(&to_tls)] {
        run.exits(1)
            .tells(&["listens on tls://", "tls:// in front instead of tcp://"]);
    }
    for run in [place.tidewater(&["ping", &to_plain]), sync(&to_plain)] {
        run.exits(2)
            .tells(&["no encrypted connection", "listens for this scheme"]);
    }
}
