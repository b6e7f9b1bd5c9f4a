//! What a procedure may be, what it may do, and who may call it.

use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::procedures::{call, integer, procedures, reading, run, run_one, spec, world};
use crate::remote::fresh_id;
use crate::world::NOW_MS;
use tidewater_centre::procedure_spec::ProcedureSpec;
use tidewater_centre::{Caller, CentreError, OnceKeyState, ProcedureCall, Returns};

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

pub async fn what_may_only_read_cannot_write<F: Fixture>() {
    let world = world::<F>().await;
    let sql = "INSERT INTO done VALUES (1, 'x')";
    let refused = world
        .centre
        .procedures(&[reading("sly", sql, &[], Returns::Nothing)])
        .await;
    let mut worker = world.worker().await;
    match F::DIALECT {
        Dialect::Sqlite | Dialect::Mysql => {
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
        worker
            .begin_once("anna", key, "price", NOW_MS)
            .await
            .unwrap(),
        OnceKeyState::New
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
