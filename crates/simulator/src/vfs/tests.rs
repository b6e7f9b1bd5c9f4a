//! SQLite itself judges the disks: whatever dies at whatever point, its file stays whole and
//! keeps what was committed durably.

use rusqlite::{Connection, params};

use tidewater_protocol::RemoteId;
use tidewater_remote::database::RemoteDatabase;

use super::{DiskAccident, DiskOperation, Process, SimulatedMachine};
use crate::random::SeededRandom;

/// An application that writes down in its own memory what it has committed.
struct Ledger {
    /// The number of the last transaction that SQLite has confirmed, and of the last that
    /// was begun.
    confirmed: i64,
    begun: i64,
}

fn connect(process: &Process, journal: &str, synchronous: &str) -> rusqlite::Result<Connection> {
    let connection = Connection::open(process.path("test.db"))?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Small, so that transactions spill to the file before they are committed.
    connection.pragma_update(None, "cache_size", 10)?;
    connection.pragma_update(None, "wal_autocheckpoint", 20)?;
    connection.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |_| Ok(()))?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, batch INTEGER, text TEXT);
         CREATE INDEX IF NOT EXISTS entry_batch ON entry (batch)",
    )?;
    Ok(connection)
}

/// One transaction: every row of it, or none, is there afterwards.
fn transaction(
    connection: &mut Connection,
    batch: i64,
    random: &mut SeededRandom,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let rows = random.between(1, 20);
    for _ in 0..rows {
        let id = random.below(200) as i64;
        let text = "x".repeat(random.between(1, 1_500) as usize);
        transaction
            .prepare_cached("INSERT OR REPLACE INTO entry VALUES (?1, ?2, ?3)")?
            .execute(params![id, batch, text])?;
    }
    let sql = "INSERT OR REPLACE INTO entry VALUES (?1, ?2, 'last')";
    transaction.execute(sql, params![1_000, batch])?;
    transaction.execute(sql, params![1_001, batch])?;
    transaction.commit()
}

/// Works until something fails or enough is done.
fn work(process: &Process, journal: &str, ledger: &mut Ledger, random: &mut SeededRandom) {
    let Ok(mut connection) = connect(process, journal, "EXTRA") else {
        return;
    };
    for _ in 0..random.between(1, 12) {
        ledger.begun += 1;
        match transaction(&mut connection, ledger.begun, random) {
            Ok(()) => ledger.confirmed = ledger.begun,
            Err(_) => return,
        }
    }
}

/// What a new process finds.
fn check(machine: &SimulatedMachine, ledger: &mut Ledger, context: &str) {
    let process = machine.observer();
    let connection = Connection::open(process.path("test.db")).unwrap();
    let intact: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(intact, "ok", "{context}");
    let tables: i64 = connection
        .query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'entry'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let found = if tables == 0 {
        0
    } else {
        let sql =
            "SELECT coalesce(max(batch), 0), coalesce(min(batch), 0) FROM entry WHERE id >= 1000";
        let (last, first): (i64, i64) = connection
            .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(last, first, "a transaction in part: {context}");
        last
    };
    assert!(
        (ledger.confirmed..=ledger.begun).contains(&found),
        "confirmed {}, begun {}, found {found}: {context}",
        ledger.confirmed,
        ledger.begun
    );
    (ledger.confirmed, ledger.begun) = (found, found);
}

fn accidents(
    journal: &str,
    seeds: std::ops::Range<u64>,
    choose: fn(&Process, &mut SeededRandom) -> DiskAccident,
) {
    let mut struck = 0;
    for seed in seeds {
        let mut random = SeededRandom::new(seed);
        let machine = SimulatedMachine::new("device", random.fork());
        let mut ledger = Ledger {
            confirmed: 0,
            begun: 0,
        };
        for round in 0..12 {
            let process = machine.start();
            machine.arm(choose(&process, &mut random), random.below(120));
            work(&process, journal, &mut ledger, &mut random);
            machine.heal();
            struck += machine.struck().len();
            check(
                &machine,
                &mut ledger,
                &format!("{journal}, seed {seed}, round {round}"),
            );
        }
    }
    assert!(struck > 300, "only {struck} accidents");
}

#[test]
fn a_killed_process_leaves_a_whole_file_with_all_that_it_committed_in_wal_mode() {
    accidents("WAL", 0..120, |process, _| {
        DiskAccident::Killed(process.number())
    });
}

#[test]
fn a_killed_process_leaves_a_whole_file_with_all_that_it_committed_with_a_rollback_journal() {
    accidents("DELETE", 0..120, |process, _| {
        DiskAccident::Killed(process.number())
    });
}

#[test]
fn lost_power_leaves_a_whole_file_with_all_that_was_committed_in_wal_mode() {
    accidents("WAL", 0..120, |_, _| DiskAccident::PowerLost);
}

#[test]
fn lost_power_leaves_a_whole_file_with_all_that_was_committed_with_a_rollback_journal() {
    for journal in ["DELETE", "TRUNCATE", "PERSIST"] {
        accidents(journal, 0..60, |_, _| DiskAccident::PowerLost);
    }
}

#[test]
fn a_disk_that_is_full_or_fails_leaves_a_whole_file() {
    fn any(_: &Process, random: &mut SeededRandom) -> DiskAccident {
        use DiskOperation::{Delete, Read, Sync, Truncate, Write};
        match random.pick(&[
            None,
            Some(Read),
            Some(Write),
            Some(Sync),
            Some(Truncate),
            Some(Delete),
        ]) {
            Some(Some(operation)) => DiskAccident::Broken {
                operation,
                lasting: random.percent(50),
            },
            _ => DiskAccident::Full,
        }
    }
    for journal in ["WAL", "DELETE"] {
        accidents(journal, 0..120, any);
    }
}

/// How many of the seeds lose a confirmed transaction or damage the file.
fn damages(journal: &str, synchronous: &str) -> usize {
    let damaged = (0..100).filter(|seed| {
        let mut random = SeededRandom::new(*seed);
        let machine = SimulatedMachine::new("device", random.fork());
        let process = machine.start();
        let mut connection = connect(&process, journal, synchronous).unwrap();
        // A checkpoint would sync the log.
        connection
            .pragma_update(None, "wal_autocheckpoint", 0)
            .unwrap();
        for batch in 1..=10 {
            transaction(&mut connection, batch, &mut random).unwrap();
        }
        machine.lose_power();
        drop(connection);
        let connection = Connection::open(machine.observer().path("test.db")).unwrap();
        let intact =
            connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
        let sql = "SELECT max(batch) FROM entry";
        let last = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        !(intact.is_ok_and(|text| text == "ok") && last.is_ok_and(|last| last == 10))
    });
    damaged.count()
}

#[test]
fn without_syncs_lost_power_loses_what_was_committed_or_damages_the_file() {
    assert!(damages("DELETE", "OFF") > 30);
    assert!(damages("WAL", "OFF") > 30);
}

/// That the journal is gone is only sure with `EXTRA`, and the end of the write-ahead log
/// only with `FULL`.
#[test]
fn what_a_weaker_setting_does_not_promise_is_lost_with_power() {
    assert!(damages("WAL", "NORMAL") > 30);
    assert_eq!(damages("WAL", "FULL"), 0);
    assert!(damages("DELETE", "FULL") > 10);
    assert_eq!(damages("DELETE", "EXTRA"), 0);
}

#[test]
fn connections_of_several_processes_exclude_each_other_and_see_each_other() {
    let machine = SimulatedMachine::new("device", SeededRandom::new(1));
    let (one, other) = (machine.start(), machine.start());
    let mut first = connect(&one, "WAL", "FULL").unwrap();
    let second = connect(&other, "WAL", "FULL").unwrap();
    let open = first.transaction().unwrap();
    open.execute("INSERT INTO entry VALUES (1, 1, 'a')", [])
        .unwrap();
    let count = |connection: &Connection| -> i64 {
        let sql = "SELECT count(*) FROM entry";
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count(&second), 0, "it is not committed");
    let busy = second.execute("INSERT INTO entry VALUES (2, 1, 'b')", []);
    let code = busy.unwrap_err().sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::DatabaseBusy));
    open.commit().unwrap();
    assert_eq!(count(&second), 1);
    // A killed process goes, the other goes on.
    one.kill();
    assert!(
        first
            .execute("INSERT INTO entry VALUES (3, 1, 'c')", [])
            .is_err()
    );
    drop(first);
    second
        .execute("INSERT INTO entry VALUES (4, 1, 'd')", [])
        .unwrap();
    assert_eq!(count(&second), 2);
    assert!(
        machine
            .length_of("test.db-wal")
            .is_some_and(|length| length > 0)
    );
}

#[test]
fn files_of_no_machine_are_the_operating_system_s() {
    let machine = SimulatedMachine::new("device", SeededRandom::new(1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real.db");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        .unwrap();
    drop(connection);
    assert!(std::fs::metadata(&path).unwrap().len() > 0);
    let process = machine.start();
    assert_eq!(super::identity(&process.path("test.db")), None);
    drop(connect(&process, "WAL", "FULL").unwrap());
    assert!(super::identity(&process.path("test.db")).is_some());
    let path = process.path("test.db");
    drop(machine);
    assert!(Connection::open(path).is_err(), "the machine is gone");
}

/// A remote keeps a rollback journal until its first download: what it stores before that,
/// above all who it is, must not be forgotten either.
#[test]
fn who_a_remote_is_outlives_lost_power_before_its_first_download() {
    for seed in 0..60 {
        let machine = SimulatedMachine::new("device", SeededRandom::new(seed));
        let id = RemoteId([7; 16]);
        let mut remote = RemoteDatabase::open(&machine.start().path("remote.db")).unwrap();
        remote
            .subscribe("tcp://127.0.0.1:7439", "ada", &["main"])
            .unwrap();
        remote
            .store_sign_in(None, id, None, Some(b"credential"), "")
            .unwrap();
        machine.lose_power();
        drop(remote);
        let remote = RemoteDatabase::open(&machine.start().path("remote.db")).unwrap();
        let account = remote.account().unwrap();
        assert_eq!(account.remote_id, Some(id), "seed {seed}");
    }
}
