//! Calls that end before they are done: interrupted, out of time, or in somebody's way.

use std::time::Duration;

use tidewater_centre::{OnceKeyState, ProcedureCall, Returns};
use tidewater_testing::generate::Dialect;

use crate::fixture::{ApplicationTransaction, Fixture};
use crate::procedures::{call, integer, procedures, reading, run, run_one, spec, under, world};
use crate::remote::fresh_id;
use crate::world::NOW_MS;

/// A query that runs for an hour, or for ever.
fn endless(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "SELECT CAST(pg_catalog.pg_sleep(3600) AS text)",
        Dialect::Sqlite => {
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
             SELECT count(*) FROM n"
        }
        Dialect::Mysql => "SELECT CAST(sleep(3600) AS CHAR)",
    }
}

/// What has to end, however long it would run by itself.
async fn ended<T>(work: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(Duration::from_secs(60), work).await;
    ended.expect("it ends within a minute")
}

pub async fn an_interrupted_call_ends_and_no_other_does<F: Fixture>() {
    let world = world::<F>().await;
    let sleep = endless(F::DIALECT);
    let [sleep, one, write] = procedures(
        &world,
        [
            reading("sleep", sleep, &[], Returns::Value),
            reading("one", "SELECT {a.n} AS n", &["n"], Returns::Value),
            spec(
                "write",
                "INSERT INTO done VALUES ({a.n}, 'x') RETURNING id",
                &["n"],
                Returns::Value,
            ),
        ],
    )
    .await;
    let (mut worker, mut another) = (world.worker().await, world.worker().await);
    for round in 0..5 {
        let (endless, elsewhere) = (call(&sleep, &[]), call(&sleep, &[]));
        let (cancel, cancel_elsewhere) = (endless.cancel.clone(), elsewhere.cancel.clone());
        let last = call(&sleep, &[]);
        let cancel_last = last.cancel.clone();
        let calls = vec![
            call(&one, &[integer(1)]),
            endless,
            call(&one, &[integer(2)]),
            call(&write, &[integer(round)]),
            last,
            call(&one, &[integer(3)]),
        ];
        let interrupter = worker.interrupter();
        let interrupt_elsewhere = another.interrupter();
        let work = async {
            let told = ended(run(&mut *worker, calls)).await;
            // The other worker still runs what it ran.
            interrupt_elsewhere.interrupt(&cancel_elsewhere);
            told
        };
        let interrupting = async {
            // Nobody knows whether it runs already: either way it ends, and the last one, which is
            // interrupted first, does not begin.
            interrupter.interrupt(&cancel_last);
            tokio::time::sleep(Duration::from_millis(20 * round as u64)).await;
            interrupter.interrupt(&cancel);
        };
        let others = async { ended(run_one(&mut *another, elsewhere)).await };
        let (told, (), elsewhere) = tokio::join!(work, interrupting, others);
        let round = round.to_string();
        let expected = ["1", "interrupted", "2", &round, "interrupted", "3"];
        assert_eq!(told, expected);
        assert_eq!(elsewhere, "interrupted");
        // Nothing of it hits what comes later.
        let calls = (0..20).map(|n| call(&one, &[integer(n)])).collect();
        let expected: Vec<String> = (0..20).map(|n: i32| n.to_string()).collect();
        assert_eq!(run(&mut *worker, calls).await, expected);
    }
}

pub async fn an_interrupted_call_is_undone<F: Fixture>() {
    let world = world::<F>().await;
    let insert = match F::DIALECT {
        Dialect::Postgres => {
            "WITH a AS (INSERT INTO done VALUES (1, 'x') RETURNING id)
             SELECT a.id FROM a, pg_catalog.pg_sleep(3600)"
        }
        Dialect::Sqlite => {
            "INSERT INTO done VALUES (1, 'x');
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        }
        Dialect::Mysql => "INSERT INTO done VALUES (1, 'x') RETURNING sleep(3600)",
    };
    let [insert] = procedures(&world, [spec("insert", insert, &[], Returns::Value)]).await;
    let mut worker = world.worker().await;
    let key = fresh_id();
    let calling = under(key, call(&insert, &[]));
    let (cancel, interrupter) = (calling.cancel.clone(), worker.interrupter());
    let interrupting = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        interrupter.interrupt(&cancel);
    };
    let (told, ()) = tokio::join!(ended(run_one(&mut *worker, calling)), interrupting);
    assert_eq!(told, "interrupted");
    let done = world.fixture.query("SELECT count(*) FROM done");
    assert_eq!(done.await, ["0"]);
    // It has not happened, so the key is free.
    let begun = worker.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::New);
}

pub async fn interrupts_at_any_moment_hit_only_what_they_mean<F: Fixture>() {
    let world = world::<F>().await;
    let insert = "INSERT INTO done VALUES ({a.n}, 'x') RETURNING id";
    let [one, write] = procedures(
        &world,
        [
            reading("one", "SELECT {a.n} AS n", &["n"], Returns::Value),
            spec("write", insert, &["n"], Returns::Value),
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let interrupter = worker.interrupter();
    let mut done = Vec::new();
    for round in 0..60 {
        let of = |place| round * 10 + place;
        let calls = vec![
            call(&one, &[integer(of(0))]),
            call(&write, &[integer(of(1))]),
            under(fresh_id(), call(&write, &[integer(of(2))])),
            call(&one, &[integer(of(3))]),
            ProcedureCall {
                timeout: Duration::from_secs(30),
                ..call(&one, &[integer(of(4))])
            },
            call(&write, &[integer(of(5))]),
        ];
        let meant = (round % 6) as usize;
        let cancel = calls[meant].cancel.clone();
        let interrupting = async {
            tokio::time::sleep(Duration::from_micros(40 * round as u64)).await;
            interrupter.interrupt(&cancel);
        };
        let (told, ()) = tokio::join!(ended(run(&mut *worker, calls)), interrupting);
        for (place, told) in told.iter().enumerate() {
            let number = of(place as i64).to_string();
            match told == "interrupted" && place == meant {
                true => {}
                false => assert_eq!(*told, number, "round {round}, {place}"),
            }
            if matches!(place, 1 | 2 | 5) && told != "interrupted" {
                done.push(number);
            }
        }
    }
    let found = world.fixture.query("SELECT id FROM done ORDER BY id").await;
    assert_eq!(found, done);
}

pub async fn a_call_that_takes_too_long_is_interrupted<F: Fixture>() {
    let world = world::<F>().await;
    let [sleep, one] = procedures(
        &world,
        [
            reading("sleep", endless(F::DIALECT), &[], Returns::Value),
            reading("one", "SELECT 1 AS one", &[], Returns::Value),
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let short = ProcedureCall {
        timeout: Duration::from_millis(50),
        ..call(&sleep, &[])
    };
    let calls = vec![call(&one, &[]), short, call(&one, &[])];
    let told = ended(run(&mut *worker, calls)).await;
    assert_eq!(told, ["1", "interrupted", "1"]);
}

pub async fn who_waits_for_somebody_elses_lock_is_told_that_it_is_busy<F: Fixture>() {
    let world = world::<F>().await;
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = 1 RETURNING stock";
    let [sell] = procedures(&world, [spec("sell", sell, &[], Returns::Value)]).await;
    let mut worker = world.worker().await;
    let mut application = world.fixture.begin().await;
    application
        .execute("UPDATE item SET stock = 5 WHERE id = 1")
        .await;
    let key = fresh_id();
    let told = ended(run_one(&mut *worker, under(key, call(&sell, &[])))).await;
    assert_eq!(told, "busy");
    application.commit().await;
    let told = run_one(&mut *worker, under(key, call(&sell, &[]))).await;
    assert_eq!(told, "4");
}
