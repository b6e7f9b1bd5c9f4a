//! The test server keeps what it promises: it recovers, and it leaves nothing behind.

#![allow(
    clippy::disallowed_methods,
    reason = "a real process is waited for, with deadlines of real time"
)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidewater_testing::postgres::connect;
use tidewater_testing::{Postgres, PostgresOptions, shared_postgres};

/// Set for the process that `server_ends_when_its_test_is_killed` kills.
const VICTIM: &str = "TIDEWATER_TESTING_VICTIM";

async fn setting(postgres: &Postgres, name: &str) -> String {
    let client = connect(&postgres.url("postgres")).await.unwrap();
    let row = client
        .query_one("SELECT current_setting($1)", &[&name])
        .await
        .unwrap();
    row.get(0)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn fresh_databases_are_separate() {
    let postgres = shared_postgres();
    let (one, other) = (postgres.fresh_database(), postgres.fresh_database());
    assert_ne!(one, other);
    let client = connect(&one).await.unwrap();
    client
        .batch_execute("CREATE TABLE t (id int)")
        .await
        .unwrap();
    let client = connect(&other).await.unwrap();
    let error = client.query("SELECT * FROM t", &[]).await.unwrap_err();
    let undefined_table = tokio_postgres::error::SqlState::UNDEFINED_TABLE;
    assert_eq!(error.code(), Some(&undefined_table));
}

#[tokio::test]
async fn committed_rows_survive_a_kill() {
    let mut postgres = Postgres::start().unwrap();
    let url = postgres.fresh_database();
    let port = postgres.port();
    let client = connect(&url).await.unwrap();
    client
        .batch_execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2)")
        .await
        .unwrap();
    postgres.kill().unwrap();
    assert!(client.query("SELECT 1", &[]).await.is_err());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    postgres.restart().unwrap();
    assert_eq!(postgres.port(), port);
    let client = connect(&url).await.unwrap();
    let count: i64 = client
        .query_one("SELECT count(*) FROM t", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(count, 2);
    assert!(postgres.log().contains("automatic recovery in progress"));
}

#[tokio::test]
async fn stopped_server_restarts_without_recovery() {
    let mut postgres = Postgres::start().unwrap();
    postgres.stop().unwrap();
    postgres.stop().unwrap();
    postgres.restart().unwrap();
    postgres.restart().unwrap();
    assert_eq!(setting(&postgres, "server_encoding").await, "UTF8");
    assert!(!postgres.log().contains("automatic recovery in progress"));
}

#[tokio::test]
async fn options_reach_the_server() {
    let postgres = Postgres::start_with(PostgresOptions {
        durable: true,
        settings: vec![("wal_level".to_owned(), "logical".to_owned())],
    })
    .unwrap();
    assert_eq!(setting(&postgres, "fsync").await, "on");
    assert_eq!(setting(&postgres, "wal_level").await, "logical");
    assert_eq!(setting(&postgres, "max_prepared_transactions").await, "10");
    assert_eq!(setting(shared_postgres(), "fsync").await, "off");
}

#[test]
fn unknown_setting_fails_the_start_and_says_why() {
    let options = PostgresOptions {
        settings: vec![("no_such_setting".to_owned(), "1".to_owned())],
        ..PostgresOptions::default()
    };
    let error = Postgres::start_with(options).unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn dropped_server_leaves_nothing() {
    let postgres = Postgres::start().unwrap();
    let (data, port) = (postgres.data_directory(), postgres.port());
    assert!(data.exists());
    drop(postgres);
    assert!(!data.parent().unwrap().exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn server_ends_when_its_test_is_killed() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines
        .map(Result::unwrap)
        .filter_map(|line| Some(line.split_once("victim: ")?.1.to_owned()))
        .take(2)
        .collect();
    let [folder, port] = &said[..] else {
        panic!("the victim said only {said:?}");
    };
    let port: u16 = port.parse().unwrap();
    assert!(Path::new(folder).exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually("the folder is removed", || !Path::new(folder).exists());
    eventually("the server is gone", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

/// Not a test: the process that is killed, with the shared server, which is never dropped.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let postgres = shared_postgres();
    let data = postgres.data_directory();
    println!("\nvictim: {}", data.parent().unwrap().display());
    println!("victim: {}", postgres.port());
    // Ends when it is killed, or when the other test ends before it could.
    let _ = std::io::stdin().read_line(&mut String::new());
}
