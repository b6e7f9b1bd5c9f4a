//! Serving while the database is busy, altered, crashed or not ours.

use futures_util::FutureExt;

use tidewater_centre::records::{HistoryCheck, SubscriptionRequest};
use tidewater_centre::{CentreError, UploadOutcome};
use tidewater_centre_postgres::connect;
use tidewater_testing::Postgres;
use tidewater_testing::postgres::connect as connect_application;

use super::PostgresWorld;
use crate::fixture::PostgresFixture;
use crate::fixture::{ApplicationTransaction, Fixture};
use tidewater_centre_conformance::offline::{hand_out_of, numbered, numbers};
use tidewater_centre_conformance::remote::session_state;
use tidewater_centre_conformance::remote::{TestRemote, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, PUBLICATION, SHOP_DDL, asked, everyone, publication, shop,
};

/// Text that it cannot keep would hold up a device's uploads for good.
#[tokio::test]
async fn a_database_of_another_encoding_is_refused() {
    let fixture = PostgresFixture::new().await;
    let url = fixture.url();
    let (server, name) = url.rsplit_once('/').expect("a database");
    let name = format!("{}_latin", name.split('?').next().expect("a name"));
    let ddl = "ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'";
    fixture
        .execute(&format!("CREATE DATABASE {name} {ddl}"))
        .await;
    let centre = connect(&format!("{server}/{name}")).await.unwrap();
    let error = centre
        .deploy(&[], false, NOW_MS)
        .await
        .expect_err("it is LATIN1");
    assert!(error.to_string().contains("LATIN1"), "{error}");
    assert!(error.hint().contains("UTF8"), "{}", error.hint());
}

#[tokio::test]
async fn a_busy_table_makes_deploying_fail_and_changes_nothing() {
    let fixture = PostgresFixture::new().await;
    fixture.execute(SHOP_DDL).await;
    let mut open = fixture.begin().await;
    open.execute("UPDATE customer SET name = 'Nora 2' WHERE customer_id = 1")
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    let specs = [publication("sales", shop())];
    let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
    assert!(matches!(&error, CentreError::Locked { message } if message.contains("customer")));
    assert_eq!(fixture.traces().await, [] as [&str; 0]);
    open.commit().await;
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
}

/// Interleaving 1: ids of transactions that aborted before a crash are not given out again
/// once a download has seen past them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_skipped_after_a_crash() {
    let mut server = tokio::task::spawn_blocking(|| Postgres::start().unwrap())
        .await
        .unwrap();
    let url = server.fresh_database();
    let application = connect_application(&url).await.unwrap();
    application.batch_execute(SHOP_DDL).await.unwrap();
    let specs = [publication("sales", vec![everyone("product")])];
    let centre = connect(&url).await.unwrap();
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    for _ in 0..3 {
        let aborted = "BEGIN; INSERT INTO product VALUES (9, 'never'); ROLLBACK";
        application.batch_execute(aborted).await.unwrap();
    }
    application
        .batch_execute("INSERT INTO product VALUES (3, 'milk')")
        .await
        .unwrap();
    anna.download().await;
    let server = tokio::task::spawn_blocking(move || {
        server.kill().unwrap();
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let application = connect_application(&url).await.unwrap();
    application
        .batch_execute("INSERT INTO product VALUES (4, 'salt')")
        .await
        .unwrap();
    // The same centre goes on: its connections are made anew.
    anna.worker = centre.worker().await.unwrap();
    assert_eq!(anna.download().await.rows(), ["product: 4|salt"]);
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_not_shown_to_the_remote() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut application = world.fixture.begin().await;
    application
        .execute(
            "SET deadlock_timeout = '1min'; UPDATE product SET name = 'cocoa' WHERE product_id = 2",
        )
        .await;
    let upload = anna.next_upload(&[
        update("product", "1|tea", "1|green tea"),
        update("product", "2|coffee", "2|espresso"),
    ]);
    let applying = tokio::spawn(async move {
        let outcome = anna.apply(upload).await;
        (anna, outcome)
    });
    let waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tidewater' \
                   AND datname = current_database() AND wait_event_type = 'Lock'";
    while world.fixture.query(waiting).await.is_empty() {}
    // Now both wait for each other; ours looks for deadlocks first.
    application
        .execute("UPDATE product SET name = 'black tea' WHERE product_id = 1")
        .await;
    application.commit().await;
    let (mut anna, outcome) = applying.await.unwrap();
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((result.updates, result.conflicts), (0, 2));
    anna.download().await;
    assert_eq!(anna.rows("product"), ["1|black tea", "2|cocoa"]);
}

#[tokio::test]
async fn a_table_altered_while_serving_is_still_read_and_written() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let change = |id: i32| insert("customer", &format!("{id}|north|Name {id}|NULL"));
    anna.upload(&[change(50)]).await;
    world
        .execute(
            "ALTER TABLE customer ADD COLUMN remark text DEFAULT 'none';
             ALTER TABLE customer DROP COLUMN remark;
             ALTER TABLE customer ADD COLUMN since date;
             ALTER TABLE purchase ALTER COLUMN cost TYPE numeric(14,2);
             UPDATE customer SET since = '2026-01-01' WHERE customer_id = 1",
        )
        .await;
    anna.upload(&[
        change(51),
        update("customer", "50|north|Name 50|NULL", "50|north|New|NULL"),
    ])
    .await;
    let many: Vec<_> = (100..300).map(change).collect();
    anna.upload(&many).await;
    world
        .execute("UPDATE purchase SET cost = 3 WHERE purchase_id = 10")
        .await;
    berta.download().await;
    assert_eq!(berta.rows("customer").len(), 2 + 2 + 200);
    assert_eq!(berta.rows("purchase"), ["10|north|1|3.00"]);
}

#[tokio::test]
async fn a_worker_goes_on_after_a_call_was_dropped_in_the_middle() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut application = world.fixture.begin().await;
    application
        .execute("UPDATE product SET name = 'cocoa' WHERE product_id = 2")
        .await;
    let upload = anna.next_upload(&[update("product", "2|coffee", "2|espresso")]);
    {
        let mut applying = anna.worker.apply(vec![upload.clone()]);
        let waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tidewater' \
                       AND datname = current_database() AND wait_event_type = 'Lock'";
        while world.fixture.query(waiting).await.is_empty() {
            assert!((&mut applying).now_or_never().is_none());
        }
    }
    application.commit().await;
    // Nothing of the dropped call is left; the same upload is still new.
    let UploadOutcome::Applied { result, .. } = anna.apply(upload).await else {
        panic!("not applied");
    };
    assert_eq!(result.conflicts, 1);
}

#[tokio::test]
async fn a_database_without_our_schema_is_told_as_such() {
    let fixture = PostgresFixture::new().await;
    let centre = connect(&fixture.url()).await.unwrap();
    let error = centre.users().await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    let mut worker = centre.worker().await.unwrap();
    let error = session_state(&mut worker, "anna", None, &[])
        .await
        .unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
}

#[tokio::test]
async fn a_database_that_came_out_of_a_dump_forgets_what_remotes_have() {
    let mut world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let asked = [SubscriptionRequest {
        watermark: anna.checkpoint.as_ref().map(|it| it.watermark.clone()),
        ..asked(PUBLICATION)
    }];
    let state = session_state(&mut anna.worker, "anna", None, &asked).await;
    assert_eq!(state.unwrap().histories, [Some(HistoryCheck::Known)]);
    // The marks are there, but transaction ids begin anew.
    world
        .execute("UPDATE tidewater.history SET place = 'another cluster'")
        .await;
    let error = world.centre.load(&world.specs).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    let report = world.deploy().await.unwrap();
    assert_eq!(report.steps.len(), 1, "{report:?}");
    let state = session_state(&mut anna.worker, "anna", None, &asked).await;
    assert_eq!(state.unwrap().histories, [Some(HistoryCheck::Unknown)]);
    assert_eq!(
        anna.compare(&["customer", "product", "purchase"], 1)
            .await
            .rows()
            .len(),
        0
    );
    assert!(world.deploy().await.unwrap().steps.is_empty());
}

/// A server reads it as the narrow one that it was, and notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_is_widened_under_a_server_is_served_on() {
    let ddl = "CREATE TABLE t (id integer PRIMARY KEY, n integer, small smallint, f real);
               INSERT INTO t VALUES (1, 1, 1, 1)";
    let world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("t")]).await;
    let before = world.centre.refresh().await.unwrap().unwrap();
    let mut remote = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "ALTER TABLE t ALTER n TYPE bigint, ALTER small TYPE integer, \
             ALTER f TYPE double precision",
        )
        .await;
    world
        .execute("UPDATE t SET n = 3000000000, small = 70000, f = 0.1::float8")
        .await;
    let failed = remote.try_download(&[]).await;
    assert!(failed.is_err(), "it is read as the integer that it was");
    let now = world.centre.refresh().await.unwrap().unwrap();
    assert_ne!(now, before);
    assert_eq!(now.schemas, before.schemas);
    remote.download().await;
    assert_eq!(remote.rows("t"), ["1|3000000000|70000|0.1"]);
    let up = update("t", "1|3000000000|70000|0.1", "1|4000000000|80000|0.2");
    let result = remote.upload(&[up]).await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
}

/// Also after it has been sent away, as long as the transaction is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_names_who_keeps_syncs_waiting() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let before = NOW_MS / 1_000;
    let mut application = world.fixture.begin().await;
    let statement = "UPDATE product SET name = 'cocoa' WHERE product_id = 2";
    application
        .execute("SET application_name = 'the till'")
        .await;
    application.execute(statement).await;
    assert_eq!(world.centre.status().await.unwrap().blockers, []);
    let change = update("product", "2|coffee", "2|espresso");
    let upload = anna.next_upload(&[change]);
    let outcome = anna.apply(upload.clone()).await;
    assert!(matches!(
        outcome,
        UploadOutcome::Failed {
            error: CentreError::Locked { .. }
        }
    ));
    let found = world.centre.status().await.unwrap().blockers;
    let [blocker] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(blocker.application, "the till");
    assert_eq!(blocker.statement, statement);
    assert!(blocker.process > 0 && blocker.since_ms / 1_000 > before);
    application.commit().await;
    assert_eq!(world.centre.status().await.unwrap().blockers, []);
    let outcome = anna.apply(upload).await;
    assert!(matches!(outcome, UploadOutcome::Applied { .. }));
}

/// A prepared transaction has no session that could be named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_names_the_prepared_transaction_that_keeps_syncs_waiting() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut application = world.fixture.begin().await;
    application
        .execute("UPDATE product SET name = 'cocoa' WHERE product_id = 2")
        .await;
    application
        .execute("PREPARE TRANSACTION 'the transfer'")
        .await;
    let upload = anna.next_upload(&[update("product", "2|coffee", "2|espresso")]);
    let outcome = anna.apply(upload.clone()).await;
    assert!(matches!(
        outcome,
        UploadOutcome::Failed {
            error: CentreError::Locked { .. }
        }
    ));
    let found = world.centre.status().await.unwrap().blockers;
    let [blocker] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(blocker.prepared, "the transfer");
    assert!(blocker.process == 0 && blocker.since_ms > 0 && !blocker.user.is_empty());
    world.execute("ROLLBACK PREPARED 'the transfer'").await;
    assert_eq!(world.centre.status().await.unwrap().blockers, []);
    let outcome = anna.apply(upload).await;
    assert!(matches!(outcome, UploadOutcome::Applied { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_does_not_wait_for_ever_for_a_table_that_is_locked() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut application = world.fixture.begin().await;
    application
        .execute("LOCK TABLE product IN ACCESS EXCLUSIVE MODE")
        .await;
    for _ in 0..2 {
        let error = anna.try_download(&[]).await.unwrap_err();
        assert!(matches!(error, CentreError::Locked { .. }), "{error}");
    }
    application.commit().await;
    anna.download().await;
}

/// Neither a number that somebody mistyped nor a table at its end keeps others from numbers.
#[tokio::test]
async fn a_mistyped_number_and_a_table_at_its_end_leave_others_their_numbers() {
    let ddl = "CREATE TABLE small (id smallint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY);
               CREATE TABLE invoice (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY);
               SELECT setval('small_id_seq', 32767);
               INSERT INTO invoice VALUES (40), (2147483647);";
    let tables = vec![numbered("small", "id"), numbered("invoice", "id")];
    let world: PostgresWorld = DeployedCentre::new(ddl, tables).await;
    for (remote, first) in [(1, 41), (2, 141)] {
        let blocks = hand_out_of(&world, remote, &["small", "invoice"]).await;
        assert_eq!(numbers(&blocks), Vec::from_iter(first..first + 100));
    }
}
