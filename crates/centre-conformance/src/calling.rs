//! Calls of procedures: what goes in, what comes out, and what happens in between.

use std::sync::{Arc, Mutex};

use tidewater_protocol::{ColumnType, RemoteId, Value};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::procedures::{
    call, failed, integer, procedures, reading, rows, run, run_one, spec, unpacked, words, world,
};
use crate::remote::fresh_id;
use crate::world::{DeployedCentre, NOW_MS, everyone};
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::procedure_spec::{ArgumentSpec, ProcedureSpec};
use tidewater_centre::{
    AnswerColumn, AnswerSink, CallAnswer, CallOutcome, Caller, ProcedureCall, Returns, SinkReply,
};

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
    let small = |it: &Arc<CallableProcedure>| ProcedureCall {
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

/// Keeps what it is given, up to so many pieces.
#[derive(Debug)]
struct KeptPieces {
    pieces: Mutex<Vec<CallAnswer>>,
    most: usize,
}

impl KeptPieces {
    fn of_at_most(most: usize) -> Arc<KeptPieces> {
        let pieces = Mutex::default();
        Arc::new(KeptPieces { pieces, most })
    }

    fn pieces(&self) -> Vec<CallAnswer> {
        self.pieces.lock().unwrap().clone()
    }
}

impl AnswerSink for KeptPieces {
    fn take(&self, columns: &Arc<[AnswerColumn]>, rows: Vec<u8>) -> SinkReply {
        let mut pieces = self.pieces.lock().unwrap();
        if pieces.len() == self.most {
            return SinkReply::TooMuch;
        }
        pieces.push(CallAnswer {
            columns: columns.clone(),
            rows: vec![rows.into()],
            count: 0,
        });
        SinkReply::More
    }

    fn has_begun(&self) -> bool {
        !self.pieces().is_empty()
    }
}

/// A procedure with 30,000 rows, and one that changes them.
async fn long<F: Fixture>() -> (DeployedCentre<F>, [Arc<CallableProcedure>; 3]) {
    let world = world::<F>().await;
    world
        .execute(
            "CREATE TABLE long (id INTEGER NOT NULL PRIMARY KEY, name TEXT);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
             INSERT INTO long SELECT i, 'the name of ' || i FROM n",
        )
        .await;
    let read = procedures(
        &world,
        [
            reading(
                "all",
                "SELECT id, name FROM long ORDER BY id",
                &[],
                Returns::Rows,
            ),
            reading(
                "few",
                "SELECT id, name FROM long WHERE id < 4",
                &[],
                Returns::Rows,
            ),
            spec(
                "touch",
                "UPDATE long SET name = name RETURNING id, name",
                &[],
                Returns::Rows,
            ),
        ],
    );
    let read = read.await;
    (world, read)
}

fn into(sink: &Arc<KeptPieces>, call: ProcedureCall) -> ProcedureCall {
    let sink = sink.clone() as Arc<dyn AnswerSink>;
    ProcedureCall {
        sink: Some(sink),
        // What a sink takes is not in memory.
        max_bytes: 200_000,
        ..call
    }
}

pub async fn a_long_answer_goes_to_its_sink_while_it_is_read<F: Fixture>() {
    let (world, [all, few, touch]) = long::<F>().await;
    let mut worker = world.worker().await;
    let sink = KeptPieces::of_at_most(1_000);
    let calls = vec![into(&sink, call(&all, &[]))];
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    let [CallOutcome::Answer(rest)] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let pieces = sink.pieces();
    assert!(pieces.len() > 5, "{} pieces", pieces.len());
    assert!(pieces.iter().all(|it| it.columns == rest.columns));
    let read: Vec<_> = pieces.iter().chain([rest]).flat_map(unpacked).collect();
    assert_eq!(read.len(), 30_000);
    assert_eq!(rest.count as usize, unpacked(rest).len());
    let expected = (1..=30_000).map(|id| format!("{id}|the name of {id}"));
    assert_eq!(read, expected.collect::<Vec<_>>());
    // Short answers come whole, and what changes something is told when it is done.
    let sink = KeptPieces::of_at_most(1_000);
    let calls = [&few, &touch].map(|it| into(&sink, call(it, &[])));
    let outcomes = worker.call(calls.to_vec(), NOW_MS).await.unwrap();
    let [CallOutcome::Answer(few), CallOutcome::TooLarge] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!((rows(few).len(), sink.pieces().len()), (3, 0));
}

pub async fn a_sink_that_takes_no_more_ends_the_reading<F: Fixture>() {
    let (world, [all, few, _]) = long::<F>().await;
    let mut worker = world.worker().await;
    let sink = KeptPieces::of_at_most(3);
    let calls = vec![into(&sink, call(&all, &[])), call(&few, &[])];
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    assert!(
        matches!(
            outcomes[..],
            [CallOutcome::TooLarge, CallOutcome::Answer(_)]
        ),
        "{outcomes:?}"
    );
    assert_eq!(sink.pieces().len(), 3);
}

pub async fn triggers_of_the_application_know_who_calls<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
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
    let world = DeployedCentre::<F>::new(
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
