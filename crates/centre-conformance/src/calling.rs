//! Calls of procedures.

use std::sync::Arc;
use std::time::Duration;

use tidewater_centre::records::{Claims, Retention};
use tidewater_centre::{
    ArgumentSpec, Begun, CallAnswer, CallOutcome, Caller, Cancel, CentreError, Procedure,
    ProcedureCall, ProcedureSpec, Returns, Worker,
};
use tidewater_protocol::{ColumnType, Op, RemoteId, Row, RowShape, RowsReader, Value};
use tidewater_testing::generate::Dialect;

use crate::fixture::{Fixture, Transaction};
use crate::remote::{fresh_id, text};
use crate::world::{NOW_MS, World, everyone};

const DDL: &str = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT UNIQUE,
        price NUMERIC(12,2), stock INTEGER NOT NULL DEFAULT 0 CHECK (stock >= 0));
    CREATE TABLE clerk (login TEXT NOT NULL PRIMARY KEY);
    CREATE TABLE done (id INTEGER NOT NULL, what TEXT);
    INSERT INTO item VALUES (1, 'tea', 1.50, 10), (2, 'coffee', 2.25, 20), (3, NULL, NULL, 0);
    INSERT INTO clerk VALUES ('anna');";

/// A query that runs for an hour, or for ever.
fn endless(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "SELECT CAST(pg_catalog.pg_sleep(3600) AS text)",
        Dialect::Sqlite => {
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
             SELECT count(*) FROM n"
        }
    }
}

async fn world<F: Fixture>() -> World<F> {
    World::<F>::new(DDL, vec![everyone("item")]).await
}

/// A procedure with arguments that are integers, but for those that begin with `t`.
fn spec(name: &str, sql: &str, arguments: &[&str], returns: Returns) -> ProcedureSpec {
    let arguments = arguments.iter().map(|name| ArgumentSpec {
        name: (*name).into(),
        column_type: match name.starts_with('t') {
            true => ColumnType::Text,
            false => ColumnType::Integer,
        },
        optional: false,
    });
    ProcedureSpec {
        name: name.into(),
        sql: Some(sql.into()),
        arguments: arguments.collect(),
        returns,
        allow: None,
        read_only: false,
    }
}

fn reading(name: &str, sql: &str, arguments: &[&str], returns: Returns) -> ProcedureSpec {
    ProcedureSpec {
        read_only: true,
        ..spec(name, sql, arguments, returns)
    }
}

async fn procedures<F: Fixture, const N: usize>(
    world: &World<F>,
    specs: [ProcedureSpec; N],
) -> [Arc<Procedure>; N] {
    let procedures = world.centre.procedures(&specs).await.unwrap();
    procedures.try_into().unwrap()
}

fn call(procedure: &Arc<Procedure>, arguments: &[Value]) -> ProcedureCall {
    ProcedureCall {
        procedure: procedure.clone(),
        caller: Caller {
            user: "anna".into(),
            remote_id: None,
        },
        claims: Claims::default(),
        arguments: arguments.to_vec(),
        once: None,
        timeout: Duration::from_secs(600),
        max_bytes: 1 << 20,
        cancel: Cancel::default(),
    }
}

fn under(key: [u8; 16], call: ProcedureCall) -> ProcedureCall {
    ProcedureCall {
        once: Some(key),
        ..call
    }
}

fn integer(number: i64) -> Value {
    Value::Integer(number)
}

fn words(text: &str) -> Value {
    Value::Text(text.into())
}

async fn run(worker: &mut dyn Worker, calls: Vec<ProcedureCall>) -> Vec<String> {
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    outcomes.iter().map(told).collect()
}

async fn run_one(worker: &mut dyn Worker, call: ProcedureCall) -> String {
    run(worker, vec![call]).await.remove(0)
}

/// The rows of an answer as text.
fn rows(answer: &CallAnswer) -> Vec<String> {
    let shape = RowShape {
        columns: answer.columns.iter().map(|it| it.column_type).collect(),
        key: Vec::new(),
    };
    let mut all = Vec::new();
    for piece in &answer.rows {
        let mut reader = RowsReader::new(&shape, piece);
        let mut row = Row::default();
        while reader.next(&mut row).unwrap() {
            assert_eq!(row.op, Some(Op::Upsert));
            all.push(text(&row.new));
        }
    }
    assert_eq!(all.len() as u64, answer.count);
    all
}

/// An outcome as text: the rows of an answer, and of a failure the word that tells it.
fn told(outcome: &CallOutcome) -> String {
    match outcome {
        CallOutcome::Answer(answer) => rows(answer).join("; "),
        CallOutcome::NotAllowed => "not allowed".into(),
        CallOutcome::Failed { code, .. } => format!("failed {code}"),
        CallOutcome::TooLarge => "too large".into(),
        CallOutcome::SeveralRows => "several rows".to_owned(),
        CallOutcome::Interrupted => "interrupted".into(),
        CallOutcome::Busy { .. } => "busy".into(),
        CallOutcome::KeyTaken => "key taken".into(),
    }
}

fn failed(unique: bool, dialect: Dialect) -> String {
    let code = match (dialect, unique) {
        (Dialect::Postgres, true) => "23505",
        (Dialect::Postgres, false) => "23514",
        (Dialect::Sqlite, true) => "SQLITE_CONSTRAINT_UNIQUE",
        (Dialect::Sqlite, false) => "SQLITE_CONSTRAINT_CHECK",
    };
    format!("failed {code}")
}

pub async fn each_call_of_a_list_is_a_transaction_of_its_own<F: Fixture>() {
    let world = world::<F>().await;
    let [price, rename, list] = procedures(
        &world,
        [
            reading(
                "price",
                "SELECT price FROM item WHERE id = {a.item}",
                &["item"],
                Returns::Value,
            ),
            spec(
                "rename",
                "UPDATE item SET name = {a.to} WHERE id = {a.item} RETURNING id, name",
                &["item", "to"],
                Returns::Row,
            ),
            reading(
                "list",
                "SELECT id, name FROM item ORDER BY id",
                &[],
                Returns::Rows,
            ),
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let told = run(
        &mut *worker,
        vec![
            call(&price, &[integer(1)]),
            call(&price, &[integer(3)]),
            call(&price, &[integer(4)]),
            call(&rename, &[integer(1), words("green tea")]),
            call(&rename, &[integer(2), words("green tea")]),
            call(&rename, &[integer(9), words("x")]),
            call(&list, &[]),
            call(&price, &[integer(2)]),
        ],
    )
    .await;
    let unique = failed(true, F::DIALECT);
    assert_eq!(
        told,
        [
            "1.50",
            "NULL",
            "",
            "1|green tea",
            &unique,
            "",
            "1|green tea; 2|coffee; 3|NULL",
            "2.25",
        ]
    );
    let outcomes = worker.call(vec![call(&price, &[integer(1)])], NOW_MS).await;
    let outcomes = outcomes.unwrap();
    let CallOutcome::Answer(answer) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(answer.columns[0].name, "price");
    let scale = Some(2);
    assert_eq!(answer.columns[0].column_type, ColumnType::Decimal { scale });
}

pub async fn a_call_with_another_answer_than_it_returns_is_undone<F: Fixture>() {
    let world = world::<F>().await;
    let [raise, value, nothing] = procedures(
        &world,
        [
            spec(
                "raise",
                "UPDATE item SET stock = stock + 1 WHERE id < {a.below} RETURNING id, stock",
                &["below"],
                Returns::Row,
            ),
            spec(
                "value",
                "UPDATE item SET stock = stock + 1 RETURNING stock",
                &[],
                Returns::Value,
            ),
            spec(
                "nothing",
                "UPDATE item SET stock = stock + 100 WHERE id = 1 RETURNING stock",
                &[],
                Returns::Nothing,
            ),
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let calls = vec![
        call(&raise, &[integer(3)]),
        call(&raise, &[integer(2)]),
        call(&value, &[]),
        call(&nothing, &[]),
    ];
    let told = run(&mut *worker, calls).await;
    assert_eq!(told, ["several rows", "1|11", "several rows", ""]);
    let stock = world.fixture.query("SELECT stock FROM item ORDER BY id");
    assert_eq!(stock.await, ["111", "20", "0"]);
}

pub async fn a_call_that_is_too_large_is_undone_and_others_go_on<F: Fixture>() {
    let world = world::<F>().await;
    world
        .execute(
            "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
             INSERT INTO item (id, name, stock) SELECT i, 'item number ' || i, 0 FROM n",
        )
        .await;
    let all = "SELECT id, name FROM item ORDER BY id";
    let raise = "UPDATE item SET stock = 1 RETURNING id, name";
    let [all, raise, one] = procedures(
        &world,
        [
            reading("all", all, &[], Returns::Rows),
            spec("raise", raise, &[], Returns::Rows),
            reading(
                "one",
                "SELECT name FROM item WHERE id = 1",
                &[],
                Returns::Value,
            ),
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let small = |it: &Arc<Procedure>| ProcedureCall {
        max_bytes: 5_000,
        ..call(it, &[])
    };
    let calls = vec![
        small(&one),
        small(&all),
        small(&one),
        small(&raise),
        small(&one),
    ];
    let told = run(&mut *worker, calls).await;
    assert_eq!(told, ["tea", "too large", "tea", "too large", "tea"]);
    let raised = world
        .fixture
        .query("SELECT count(*) FROM item WHERE stock = 1");
    assert_eq!(raised.await, ["0"]);
    let outcomes = worker.call(vec![call(&all, &[])], NOW_MS).await.unwrap();
    let CallOutcome::Answer(answer) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(rows(answer).len(), 29_994);
    assert!(answer.rows.len() > 5, "{} pieces", answer.rows.len());
    assert!(answer.rows.iter().all(|it| it.len() < 70_000));
}

pub async fn what_may_only_read_cannot_write<F: Fixture>() {
    let world = world::<F>().await;
    let sql = "INSERT INTO done VALUES (1, 'x')";
    let refused = world
        .centre
        .procedures(&[reading("sly", sql, &[], Returns::Nothing)])
        .await;
    let mut worker = world.worker().await;
    match F::DIALECT {
        Dialect::Sqlite => {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("declared to be read_only"), "{error}");
        }
        Dialect::Postgres => {
            world
                .execute(
                    "CREATE FUNCTION sly() RETURNS int LANGUAGE plpgsql AS
                       $$ BEGIN INSERT INTO done VALUES (1, 'x'); RETURN 1; END $$;
                     CREATE FUNCTION slyer() RETURNS int LANGUAGE plpgsql AS
                       $$ BEGIN SET transaction_read_only = off;
                       INSERT INTO done VALUES (1, 'x'); RETURN 1; END $$",
                )
                .await;
            let allowed = ProcedureSpec {
                allow: Some("SELECT 1".into()),
                ..reading("allowed", "SELECT sly()", &[], Returns::Value)
            };
            let [sly, slyer, allowed, write] = procedures(
                &world,
                [
                    reading("sly", "SELECT sly()", &[], Returns::Value),
                    reading("slyer", "SELECT slyer()", &[], Returns::Value),
                    allowed,
                    spec("write", "SELECT sly()", &[], Returns::Value),
                ],
            )
            .await;
            let calls = vec![call(&sly, &[]), call(&slyer, &[]), call(&allowed, &[])];
            let told = run(&mut *worker, calls).await;
            assert_eq!(told, ["failed 25006", "failed 25001", "failed 25006"]);
            // What is called after them on the same connection may.
            assert_eq!(run_one(&mut *worker, call(&write, &[])).await, "1");
            world.execute("DELETE FROM done").await;
        }
    }
    // What a call has set does not hold for anything else on the connection.
    let [one] = procedures(
        &world,
        [reading("one", "SELECT 1 AS one", &[], Returns::Value)],
    )
    .await;
    assert_eq!(run_one(&mut *worker, call(&one, &[])).await, "1");
    let key = fresh_id();
    assert_eq!(
        worker.begin_once("anna", key, NOW_MS).await.unwrap(),
        Begun::New
    );
    let done = world.fixture.query("SELECT count(*) FROM done");
    assert_eq!(done.await, ["0"]);
}

pub async fn only_who_is_allowed_calls<F: Fixture>() {
    let world = world::<F>().await;
    let allow = Some("SELECT 1 FROM clerk WHERE login = {s.username}".to_owned());
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = {a.item} RETURNING stock";
    let [sell, look, provided, own] = procedures(
        &world,
        [
            ProcedureSpec {
                allow: allow.clone(),
                ..spec("sell", sell, &["item"], Returns::Value)
            },
            ProcedureSpec {
                allow: allow.clone(),
                ..reading("look", "SELECT {s.username} AS who", &[], Returns::Value)
            },
            ProcedureSpec {
                sql: None,
                allow,
                ..spec("provided", "", &["item"], Returns::Value)
            },
            ProcedureSpec {
                allow: Some("SELECT 1 WHERE {a.item} > 1".to_owned()),
                ..reading(
                    "own",
                    "SELECT stock FROM item WHERE id = {a.item}",
                    &["item"],
                    Returns::Value,
                )
            },
        ],
    )
    .await;
    let mut worker = world.worker().await;
    let of = |user: &str, call: ProcedureCall| ProcedureCall {
        caller: Caller {
            user: user.into(),
            remote_id: None,
        },
        ..call
    };
    let calls = ["anna", "berta"].map(|user| {
        [
            of(user, call(&sell, &[integer(1)])),
            of(user, call(&look, &[])),
            of(user, call(&provided, &[integer(1)])),
            of(user, call(&own, &[integer(1)])),
            of(user, call(&own, &[integer(2)])),
        ]
    });
    let told = run(&mut *worker, calls.concat()).await;
    let no = "not allowed";
    assert_eq!(told, ["9", "anna", "", no, "20", no, no, no, no, "20"]);
    let stock = world.fixture.query("SELECT stock FROM item WHERE id = 1");
    assert_eq!(stock.await, ["9"]);
}

pub async fn triggers_of_the_application_know_who_calls<F: Fixture>() {
    let world = World::<F>::new(
        "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT);
         CREATE TABLE seen (id INTEGER, username TEXT, remote_id TEXT);",
        vec![everyone("note")],
    )
    .await;
    world.execute(&F::who_trigger()).await;
    let [note] = procedures(
        &world,
        [spec(
            "note",
            "INSERT INTO note VALUES ({a.id}, {s.remote_id})",
            &["id"],
            Returns::Nothing,
        )],
    )
    .await;
    let mut worker = world.worker().await;
    let remote_id = RemoteId::from_random(fresh_id());
    let from_remote = ProcedureCall {
        caller: Caller {
            user: "berta".into(),
            remote_id: Some(remote_id),
        },
        ..call(&note, &[integer(2)])
    };
    run(&mut *worker, vec![call(&note, &[integer(1)]), from_remote]).await;
    world.execute("INSERT INTO note VALUES (3, 'x')").await;
    let seen = "SELECT id, username, coalesce(remote_id, '') FROM seen ORDER BY id";
    let berta = format!("2|berta|{remote_id}");
    let seen = world.fixture.query(seen).await;
    assert_eq!(seen, ["1|anna|", &*berta, "3|NULL|"]);
    let bodies = world
        .fixture
        .query("SELECT body FROM note ORDER BY id")
        .await;
    assert_eq!(
        bodies,
        ["NULL".to_owned(), remote_id.to_string(), "x".into()]
    );
}

pub async fn every_type_goes_in_and_comes_out<F: Fixture>() {
    let world = World::<F>::new(
        "CREATE TABLE thing (id INTEGER NOT NULL PRIMARY KEY, amount NUMERIC(30,6), size DOUBLE PRECISION,
           good BOOLEAN, body VARCHAR(20), day DATE, hour TIME, moment TIMESTAMP);",
        vec![everyone("thing")],
    )
    .await;
    let types = [
        ("id", ColumnType::Integer, integer(1 << 40)),
        (
            "amount",
            ColumnType::Decimal { scale: None },
            words("12.500000"),
        ),
        ("size", ColumnType::Real, Value::Real(2.5)),
        ("good", ColumnType::Boolean, integer(1)),
        ("body", ColumnType::Text, words("a'b\"{c}")),
        ("day", ColumnType::Date, words("2024-02-29")),
        ("hour", ColumnType::Time, words("12:30:00.000001")),
        (
            "moment",
            ColumnType::Timestamp,
            words("2024-02-29T12:30:00.250000"),
        ),
    ];
    let arguments = types.iter().map(|(name, column_type, _)| ArgumentSpec {
        name: (*name).into(),
        column_type: *column_type,
        optional: *name != "id",
    });
    let names = types
        .iter()
        .map(|(name, ..)| *name)
        .collect::<Vec<_>>()
        .join(", ");
    let values = types.iter().map(|(name, ..)| format!("{{a.{name}}}"));
    let values = values.collect::<Vec<_>>().join(", ");
    let sql = format!("INSERT INTO thing ({names}) VALUES ({values}) RETURNING {names}");
    let [echo] = procedures(
        &world,
        [ProcedureSpec {
            arguments: arguments.collect(),
            ..spec("echo", &sql, &[], Returns::Row)
        }],
    )
    .await;
    let mut worker = world.worker().await;
    // The key's column is too small for this one in PostgreSQL.
    let given: Vec<Value> = types.iter().map(|(.., value)| value.clone()).collect();
    if F::DIALECT == Dialect::Postgres {
        assert_eq!(
            run_one(&mut *worker, call(&echo, &given)).await,
            "failed 22003"
        );
    }
    let mut given = given;
    given[0] = integer(1);
    let told = run_one(&mut *worker, call(&echo, &given)).await;
    let expected =
        "1|12.500000|2.5|1|a'b\"{c}|2024-02-29|12:30:00.000001|2024-02-29T12:30:00.250000";
    assert_eq!(told, expected);
    let mut nothing = vec![Value::Null; given.len()];
    nothing[0] = integer(2);
    let told = run_one(&mut *worker, call(&echo, &nothing)).await;
    assert_eq!(told, "2|NULL|NULL|NULL|NULL|NULL|NULL|NULL");
}

pub async fn what_cannot_be_a_procedure_is_named<F: Fixture>() {
    let world = world::<F>().await;
    let is_postgres = F::DIALECT == Dialect::Postgres;
    let twice = "UPDATE item SET stock = 0; SELECT 1 AS one";
    let mut wrong = vec![
        (
            spec("p", "SELECT {a.itm} AS x", &["item"], Returns::Value),
            "did you mean {a.item}?",
        ),
        (
            spec("p", "SELECT 1 AS x", &["item"], Returns::Value),
            "does not use its argument \"item\"",
        ),
        (
            spec("p", "SELECT {u.month} AS x", &[], Returns::Value),
            "{u.month}",
        ),
        (
            spec("p", "SELECT '{a.item}' AS x", &["item"], Returns::Value),
            "without quotes",
        ),
        (
            spec("p", "SELEC 1", &[], Returns::Value),
            "begins with \"SELEC\"",
        ),
        (
            spec("p", "COMMIT", &[], Returns::Nothing),
            "begins with \"COMMIT\"",
        ),
        (
            spec("p", "SELECT nothing FROM nowhere", &[], Returns::Value),
            "nowhere",
        ),
        (
            spec("p", "UPDATE item SET stock = 0", &[], Returns::Rows),
            "does not yield",
        ),
        (
            spec("p", "SELECT id, name FROM item", &[], Returns::Value),
            "returns = \"row\"",
        ),
        (
            spec("p", "SELECT id, id FROM item", &[], Returns::Rows),
            "two columns",
        ),
        (spec("p", " -- nothing", &[], Returns::Nothing), "empty"),
        (
            spec("p", "SELECT {a.i t} AS x", &["i t"], Returns::Value),
            "impossible name",
        ),
        (
            ProcedureSpec {
                allow: Some("DELETE FROM item".into()),
                ..spec("p", "SELECT 1 AS x", &[], Returns::Value)
            },
            "the allow query",
        ),
    ];
    if is_postgres {
        wrong.push((spec("p", twice, &[], Returns::Value), "several statements"));
    }
    for (spec, tells) in wrong {
        let error = world.centre.procedures(std::slice::from_ref(&spec)).await;
        let error = error.err().unwrap_or_else(|| panic!("{spec:?}"));
        assert!(
            matches!(error, CentreError::Configuration { .. }),
            "{error:?}"
        );
        let all = format!("{error}; {}", error.hint());
        assert!(all.contains("procedure \"p\""), "{all}");
        assert!(all.contains(tells), "{all}, and not {tells}");
    }
    let same = [
        spec("p", "SELECT 1 AS x", &[], Returns::Value),
        spec("p", "SELECT 1 AS x", &[], Returns::Value),
    ];
    let error = world.centre.procedures(&same).await.unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    if !is_postgres {
        let [both] = procedures(&world, [spec("both", twice, &[], Returns::Value)]).await;
        let mut worker = world.worker().await;
        assert_eq!(run_one(&mut *worker, call(&both, &[])).await, "1");
        let stock = world.fixture.query("SELECT sum(stock) FROM item");
        assert_eq!(stock.await, ["0"]);
    }
}

pub async fn a_call_under_a_key_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let sell = "UPDATE item SET stock = stock - {a.count} WHERE id = {a.item} RETURNING stock";
    let [sell] = procedures(
        &world,
        [spec("sell", sell, &["item", "count"], Returns::Value)],
    )
    .await;
    let mut worker = world.worker().await;
    let (first, other) = (fresh_id(), fresh_id());
    let of_item = |item, count| call(&sell, &[integer(item), integer(count)]);
    // The answer of the first one is lost on the way.
    worker
        .call(vec![under(first, of_item(1, 3))], NOW_MS)
        .await
        .unwrap();
    let mut another = world.worker().await;
    let calls = vec![
        under(first, of_item(1, 3)),
        under(other, of_item(1, 3)),
        under(first, of_item(1, 3)),
    ];
    assert_eq!(run(&mut *another, calls).await, ["7", "4", "7"]);
    // A failure is an outcome like others, also when the same would succeed by now.
    let (failing, shapeless) = (fresh_id(), fresh_id());
    let check = failed(false, F::DIALECT);
    let calls = || {
        vec![
            under(failing, of_item(1, 5)),
            under(shapeless, of_item(7, 1)),
        ]
    };
    let told = [&*check, ""];
    assert_eq!(run(&mut *another, calls()).await, told);
    world
        .execute("UPDATE item SET stock = 50 WHERE id = 1")
        .await;
    world
        .execute("INSERT INTO item VALUES (7, 'milk', 1, 9)")
        .await;
    assert_eq!(run(&mut *worker, calls()).await, told);
    // Another user has keys of her own.
    let of_berta = ProcedureCall {
        caller: Caller {
            user: "berta".into(),
            remote_id: None,
        },
        ..under(first, of_item(1, 1))
    };
    assert_eq!(run_one(&mut *worker, of_berta).await, "49");
}

pub async fn of_one_call_at_two_connections_one_takes_effect<F: Fixture>() {
    let world = world::<F>().await;
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = 1 RETURNING stock";
    let [sell] = procedures(&world, [spec("sell", sell, &[], Returns::Value)]).await;
    let (mut one, mut other) = (world.worker().await, world.worker().await);
    for round in 0..10 {
        let key = fresh_id();
        let calls = || vec![under(key, call(&sell, &[]))];
        let told = tokio::join!(run(&mut *one, calls()), run(&mut *other, calls()));
        let expected = vec![(9 - round).to_string()];
        assert_eq!(told, (expected.clone(), expected));
    }
}

pub async fn what_programs_do_once_is_begun_and_finished_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let key = fresh_id();
    let begun = worker.begin_once("anna", key, NOW_MS).await;
    assert_eq!(begun.unwrap(), Begun::New);
    let begun = worker.begin_once("anna", key, NOW_MS + 1).await;
    assert_eq!(begun.unwrap(), Begun::Unfinished { begun_ms: NOW_MS });
    worker.forget_once("anna", key).await.unwrap();
    let begun = worker.begin_once("anna", key, NOW_MS).await;
    assert_eq!(begun.unwrap(), Begun::New);
    worker
        .finish_once("anna", key, b"done".to_vec())
        .await
        .unwrap();
    worker
        .finish_once("anna", key, b"again".to_vec())
        .await
        .unwrap();
    let mut another = world.worker().await;
    another.forget_once("anna", key).await.unwrap();
    let begun = another.begin_once("anna", key, NOW_MS).await;
    assert_eq!(begun.unwrap(), Begun::Done(b"done".to_vec()));
    let berta = another.begin_once("berta", key, NOW_MS).await;
    assert_eq!(berta.unwrap(), Begun::New);
    // A key stands for one thing only.
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = 1 RETURNING stock";
    let [sell] = procedures(&world, [spec("sell", sell, &[], Returns::Value)]).await;
    let told = run_one(&mut *worker, under(key, call(&sell, &[]))).await;
    assert_eq!(told, "key taken");
    let key = fresh_id();
    let told = run_one(&mut *worker, under(key, call(&sell, &[]))).await;
    assert_eq!(told, "9");
    let begun = worker.begin_once("anna", key, NOW_MS).await;
    assert_eq!(begun.unwrap(), Begun::KeyTaken);
}

pub async fn keys_are_forgotten_in_time<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let (old, new) = (fresh_id(), fresh_id());
    let day_ms = 24 * 60 * 60 * 1000;
    worker
        .begin_once("anna", old, NOW_MS - 2 * day_ms)
        .await
        .unwrap();
    worker.begin_once("anna", new, NOW_MS).await.unwrap();
    let retention = Retention {
        log_ms: day_ms,
        history_ms: day_ms,
        conflicts_ms: day_ms,
    };
    world.centre.prune(retention, NOW_MS).await.unwrap();
    let begun = worker.begin_once("anna", new, NOW_MS).await.unwrap();
    assert_eq!(begun, Begun::Unfinished { begun_ms: NOW_MS });
    let begun = worker.begin_once("anna", old, NOW_MS).await.unwrap();
    assert_eq!(begun, Begun::New);
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
    let begun = worker.begin_once("anna", key, NOW_MS).await;
    assert_eq!(begun.unwrap(), Begun::New);
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

pub async fn a_table_that_is_altered_is_no_obstacle_to_calls<F: Fixture>() {
    let world = world::<F>().await;
    let [list] = procedures(
        &world,
        [reading("list", "SELECT * FROM clerk", &[], Returns::Rows)],
    )
    .await;
    let mut worker = world.worker().await;
    assert_eq!(run_one(&mut *worker, call(&list, &[])).await, "anna");
    world
        .execute("ALTER TABLE clerk ADD COLUMN desk INTEGER")
        .await;
    let told = run(&mut *worker, vec![call(&list, &[]), call(&list, &[])]).await;
    assert_eq!(told, ["anna|NULL", "anna|NULL"]);
    world.execute("DROP TABLE clerk").await;
    let told = run_one(&mut *worker, call(&list, &[])).await;
    assert!(told.starts_with("failed"), "{told}");
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
