//! TRUNCATE, prepared transactions and ALTER TABLE in the middle of syncs and of writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewater_centre::{CentreError, UploadOutcome};
use tidewater_centre_postgres::connect;
use tidewater_testing::postgres::connect as connect_application;
use tidewater_testing::{Postgres, PostgresOptions};

use super::PostgresWorld;
use crate::fixture::{ApplicationTransaction, Fixture};
use tidewater_centre_conformance::families::follows;
use tidewater_centre_conformance::remote::{TestRemote, delete, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, SHOP_DDL, everyone, partitioned, publication, shop,
};

/// Whether a connection of ours waits for a lock.
const WAITING: &str = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tidewater' \
                       AND datname = current_database() AND wait_event_type = 'Lock'";

async fn until_somebody_waits(world: &PostgresWorld) {
    while world.fixture.query(WAITING).await.is_empty() {
        tokio::task::yield_now().await;
    }
}

const EVENTS_DDL: &str = "
    CREATE TABLE event (id integer, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE event_old PARTITION OF event FOR VALUES FROM (MINVALUE) TO ('2025-01-01');
    CREATE TABLE event_new PARTITION OF event FOR VALUES FROM ('2025-01-01') TO (MAXVALUE);
    CREATE TABLE witness (id integer PRIMARY KEY, note text);
    INSERT INTO event VALUES (1, '2024-01-01', 'before'), (2, '2025-01-01', 'before');
    INSERT INTO witness VALUES (1, 'before')";

/// A download takes place before a TRUNCATE or after it, never half: also if a leaf is
/// truncated, and its rows are somewhere else in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_has_all_of_a_truncate_or_nothing() {
    for truncate in [
        "TRUNCATE event_old",
        "TRUNCATE event",
        "TRUNCATE witness, event",
    ] {
        let tables = vec![everyone("event"), everyone("witness")];
        let world: PostgresWorld = DeployedCentre::new(EVENTS_DDL, tables).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world
            .execute("UPDATE event SET note = note || '!'; UPDATE witness SET note = 'seen'")
            .await;
        let mut open = world.fixture.begin().await;
        let moved = "INSERT INTO event VALUES (1, '2026-01-01', 'after'); \
                     INSERT INTO witness VALUES (2, 'after')";
        open.execute(&format!("{truncate}; {moved}")).await;
        let downloading = tokio::spawn(async move {
            anna.download().await;
            anna
        });
        until_somebody_waits(&world).await;
        open.commit().await;
        let mut anna = downloading.await.unwrap();
        let all = |rows: &[&str]| rows.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let rows = "SELECT * FROM event t ORDER BY t::text";
        let mut now = world.fixture.query(rows).await;
        now.sort();
        let before = all(&["1|2024-01-01|before!", "2|2025-01-01|before!"]);
        let has = anna.rows("event");
        assert!(has == now || has == before, "{truncate}: {has:?}");
        assert_eq!(has == now, anna.rows("witness").contains(&"2|after".into()));
        anna.download().await;
        assert_eq!(anna.rows("event"), now, "{truncate}");
        assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    }
}

/// Late uploads take turns only when all that they write is written: whoever waits for an
/// application holds up nobody who wants other rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_is_given_back_and_waits_holds_up_nobody() {
    let world: PostgresWorld = DeployedCentre::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let given_back = |remote: &mut TestRemote, change| {
        let mut upload = remote.next_upload(&[change]);
        upload.given_back = true;
        upload
    };
    // Something is remembered.
    let gone = given_back(&mut berta, delete("customer", "40|north|Nina|NULL"));
    berta.apply(gone).await;
    let mut open = world.fixture.begin().await;
    open.execute("UPDATE customer SET name = name WHERE customer_id = 2")
        .await;
    let waits = given_back(
        &mut anna,
        update("customer", "2|north|Niels|NULL", "2|north|Nick|NULL"),
    );
    let waiting = tokio::spawn(async move { anna.apply(waits).await });
    until_somebody_waits(&world).await;
    let other = given_back(&mut berta, insert("customer", "41|north|Nele|NULL"));
    berta.apply(other).await;
    berta
        .upload(&[insert("customer", "42|north|Nora|NULL")])
        .await;
    open.execute("UPDATE customer SET name = name WHERE customer_id IN (41, 42)")
        .await;
    open.commit().await;
    let outcome = waiting.await.unwrap();
    assert!(matches!(outcome, UploadOutcome::Applied { result, .. } if result.updates == 1));
}

/// Interleaving 28: somebody adds a child while its parent is deleted by an upload. Whoever is second
/// waits, and the child is never taken along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_comes_while_its_parent_is_deleted_is_not_taken_along() {
    let ddl = "CREATE TABLE doc (id integer PRIMARY KEY, title text);
         CREATE TABLE line (id integer PRIMARY KEY,
           doc integer NOT NULL REFERENCES doc ON DELETE CASCADE);
         INSERT INTO doc VALUES (1, 'one'), (2, 'two'); INSERT INTO line VALUES (1, 1), (2, 2)";
    let tables = ["doc", "line"].map(everyone);
    let world: PostgresWorld = DeployedCentre::new(ddl, tables.to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut open = world.fixture.begin().await;
    open.execute("INSERT INTO line VALUES (9, 1)").await;
    let upload = anna.next_upload(&[
        delete("line", "1|1"),
        delete("line", "2|2"),
        delete("doc", "1|one"),
        delete("doc", "2|two"),
    ]);
    let applying = tokio::spawn(async move { anna.apply(upload).await });
    until_somebody_waits(&world).await;
    open.commit().await;
    let outcome = applying.await.unwrap();
    assert!(
        matches!(&outcome, UploadOutcome::Applied { result, .. }
            if result.deletes == 2 && result.conflicts == 2),
        "{outcome:?}"
    );
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
    assert_eq!(lines, ["1|1", "9|1"]);
    assert_eq!(world.fixture.query("SELECT id FROM doc").await, ["1"]);
}

/// An upload that meets a TRUNCATE waits for it, and then holds against the empty table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_waits_for_a_truncate_and_everybody_ends_equal() {
    let world: PostgresWorld = DeployedCentre::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let mut open = world.fixture.begin().await;
    open.execute(
        "TRUNCATE customer CASCADE; INSERT INTO customer VALUES (1, 'north', 'Neu', NULL)",
    )
    .await;
    let upload = anna.next_upload(&[
        tidewater_centre_conformance::remote::update(
            "customer",
            "2|north|Niels|NULL",
            "2|north|Nils|NULL",
        ),
        tidewater_centre_conformance::remote::update(
            "customer",
            "1|north|Nora|nora@x",
            "1|north|Nora 2|nora@x",
        ),
        insert("customer", "70|north|New|NULL"),
        insert("purchase", "70|north|1|7.00"),
    ]);
    let applying = tokio::spawn(async move {
        let outcome = anna.apply(upload).await;
        (anna, outcome)
    });
    until_somebody_waits(&world).await;
    open.commit().await;
    let (mut anna, outcome) = applying.await.unwrap();
    let UploadOutcome::Applied { result, own } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (result.inserts, result.conflicts, result.refused),
        (2, 2, 0)
    );
    anna.own = Some(own);
    // What it uploaded is in the table that it gets whole.
    for remote in [&mut anna, &mut berta] {
        remote.download().await;
        assert_eq!(
            remote.rows("customer"),
            ["1|north|Neu|NULL", "70|north|New|NULL"]
        );
        assert_eq!(remote.rows("purchase"), ["70|north|1|7.00"]);
    }
}

/// Interleaving 3 of the kind that outlives its session: prepared, open across downloads and a
/// crash, then committed by somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_is_brought_once_it_is_committed() {
    let options = PostgresOptions {
        settings: vec![("max_prepared_transactions".into(), "4".into())],
        ..PostgresOptions::default()
    };
    let server = tokio::task::spawn_blocking(move || Postgres::start_with(options).unwrap());
    let server = server.await.unwrap();
    let url = server.fresh_database();
    let application = connect_application(&url).await.unwrap();
    application.batch_execute(SHOP_DDL).await.unwrap();
    let specs = [publication("sales", shop())];
    let centre = connect(&url).await.unwrap();
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    let run = async |sql: &str| application.batch_execute(sql).await.unwrap();
    run(
        "BEGIN; UPDATE customer SET name = 'Nora 2' WHERE customer_id = 1;
         SAVEPOINT a; DELETE FROM purchase WHERE purchase_id = 10;
         INSERT INTO customer VALUES (7, 'north', 'Prepared', NULL); PREPARE TRANSACTION 'kept'",
    )
    .await;
    run("BEGIN; UPDATE customer SET region = 'north' WHERE customer_id = 3; PREPARE TRANSACTION 'dropped'")
        .await;
    for number in 0..3 {
        run(&format!(
            "INSERT INTO customer VALUES ({}, 'north', 'Other', NULL)",
            20 + number
        ))
        .await;
        assert_eq!(anna.download().await.rows().len(), 1);
    }
    // An upload beside it, and the end of everything but the disk.
    anna.upload(&[insert("customer", "50|north|Mine|NULL")])
        .await;
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    let server = tokio::task::spawn_blocking(move || {
        let mut server = server;
        server.kill().unwrap();
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let application = connect_application(&url).await.unwrap();
    anna.worker = centre.worker().await.unwrap();
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    for sql in ["ROLLBACK PREPARED 'dropped'", "COMMIT PREPARED 'kept'"] {
        application.batch_execute(sql).await.unwrap();
    }
    assert_eq!(
        anna.download().await.rows(),
        [
            "-purchase [10]",
            "customer: 1|north|Nora 2|nora@x",
            "customer: 7|north|Prepared|NULL"
        ]
    );
    drop(server);
}

/// A role that may write the tables and nothing else, in several sessions, through functions
/// of another owner too, while remotes download.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_without_rights_write_under_load_and_nothing_is_missed() {
    let world: Arc<PostgresWorld> = Arc::new(DeployedCentre::new(SHOP_DDL, shop()).await);
    let name = world.fixture.url().rsplit('_').next().unwrap().to_owned();
    let (clerk, owner) = (format!("clerk_{name}"), format!("owner_{name}"));
    world
        .execute(&format!(
            "CREATE ROLE {clerk} LOGIN; CREATE ROLE {owner} NOLOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON customer, product TO {clerk}, {owner};
             GRANT CREATE ON SCHEMA public TO {owner};
             SET ROLE {owner};
             CREATE FUNCTION rename(id integer) RETURNS void LANGUAGE sql SECURITY DEFINER
               AS 'UPDATE product SET name = name || ''!'' WHERE product_id = id';
             RESET ROLE;"
        ))
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let url = world
        .fixture
        .url()
        .replace("postgres@", &format!("{clerk}@"));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let url = url.clone();
            tokio::spawn(async move {
                let client = connect_application(&url).await.unwrap();
                for number in 0..25 {
                    let id = 1000 + 100 * writer + number;
                    let sql = format!(
                        "INSERT INTO customer VALUES ({id}, 'north', 'x', NULL);
                         BEGIN; UPDATE customer SET name = 'y' WHERE customer_id = {id};
                         SAVEPOINT s; INSERT INTO product VALUES ({id}, 'no'); ROLLBACK TO s; COMMIT;
                         SELECT rename(1 + {id} % 2);
                         DELETE FROM customer WHERE customer_id = {id} AND {id} % 3 = 0"
                    );
                    client.batch_execute(&sql).await.unwrap();
                }
                let refused = client.batch_execute("SELECT * FROM tidewater.change_log");
                assert!(refused.await.is_err());
            })
        })
        .collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        anna.download().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    anna.download().await;
    for (table, condition) in [("customer", "region = 'north'"), ("product", "true")] {
        let sql = format!("SELECT * FROM {table} WHERE {condition}");
        let mut rows = world.fixture.query(&sql).await;
        rows.sort();
        assert_eq!(anna.rows(table), rows);
    }
    world
        .execute(&format!(
            "DROP OWNED BY {owner}, {clerk}; DROP ROLE {owner}; DROP ROLE {clerk}"
        ))
        .await;
}

/// The owner changes the table while applications write: no write fails for our triggers,
/// and when the operator has deployed what there is now, everybody ends equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_on_while_the_owner_alters_the_table() {
    let mut world: PostgresWorld = DeployedCentre::new(
        "CREATE TABLE t (id integer PRIMARY KEY, a text, n integer); INSERT INTO t VALUES (0, 'a', 0)",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let stop = Arc::new(AtomicBool::new(false));
    let client = connect_application(&world.fixture.url()).await.unwrap();
    let writer = tokio::spawn({
        let stop = stop.clone();
        async move {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                // By position, because names come and go.
                let sql = format!(
                    "INSERT INTO t SELECT {} WHERE true; UPDATE t SET n = n + 1; \
                     DELETE FROM t WHERE n > 40",
                    written + 1
                );
                client.batch_execute(&sql).await.unwrap();
                written += 1;
            }
            written
        }
    });
    for sql in [
        "ALTER TABLE t ADD COLUMN b integer DEFAULT 7",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t RENAME COLUMN id TO number",
        "ALTER TABLE t ADD COLUMN a text, ALTER COLUMN b TYPE text",
        "ALTER TABLE t RENAME COLUMN number TO id",
        "ALTER TABLE t RENAME CONSTRAINT t_pkey TO t_key",
        "ALTER TABLE t ALTER COLUMN n TYPE bigint",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE INDEX ON t (n)",
        "ALTER TABLE t ALTER COLUMN n SET DEFAULT 0, ALTER COLUMN n SET STATISTICS 10",
    ] {
        world.execute(sql).await;
        // The remote may be told that deploying is needed, or to come again because a plan
        // was for the table as it was, but never something else.
        let mut downloaded = anna.try_download(&[]).await;
        if downloaded.as_ref().is_err_and(CentreError::is_retryable) {
            downloaded = anna.try_download(&[]).await;
        }
        match downloaded {
            Ok(_) | Err(CentreError::NotDeployed { .. }) => {}
            Err(other) => panic!("{sql}: {other}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 0);
    world.deploy().await.unwrap();
    let mut fresh = TestRemote::new(&world, "anna").await;
    fresh.checkpoint = anna.checkpoint.take();
    fresh.download().await;
    let mut rows = world.fixture.query("SELECT * FROM t").await;
    rows.sort();
    assert_eq!(fresh.rows("t"), rows);
}

/// PostgreSQL does not change the type of a key under a trigger that compares keys. Without
/// the trigger it does: applications go on, and deploying makes the rest.
#[tokio::test]
async fn a_key_gets_another_type_once_its_trigger_is_dropped() {
    let mut world: PostgresWorld = DeployedCentre::new(
        "CREATE TABLE t (id integer PRIMARY KEY, x text); INSERT INTO t VALUES (1, 'a')",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let alter = "ALTER TABLE t ALTER COLUMN id TYPE text USING 'k' || id";
    let refusal = world.fixture.try_execute(alter).await.unwrap_err();
    assert!(refusal.contains("trigger definition"), "{refusal}");
    let triggers =
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgname LIKE '%moved'";
    let moved = world.fixture.query(triggers).await.remove(0);
    world
        .execute(&format!(
            "BEGIN; DROP TRIGGER {moved} ON t; {alter}; COMMIT;
             INSERT INTO t VALUES ('z', 'b'); UPDATE t SET id = 'y' WHERE id = 'z'"
        ))
        .await;
    let downloaded = anna.try_download(&[]).await;
    assert!(downloaded.is_err(), "{downloaded:?}");
    let loaded = world.centre.load(&world.specs).await.unwrap_err();
    assert!(
        matches!(loaded, CentreError::NotDeployed { .. }),
        "{loaded}"
    );
    world.deploy().await.unwrap();
    let mut fresh = TestRemote::synced(&world, "anna").await;
    assert_eq!(fresh.rows("t"), ["k1|a", "y|b"]);
    world.execute("UPDATE t SET id = 'x' WHERE id = 'y'").await;
    fresh.download().await;
    assert_eq!(fresh.rows("t"), ["k1|a", "x|b"]);
}

/// Until somebody deploys, a column that got another type is sent as what it was: a number
/// is never taken for another one because as many bytes make it up.
#[tokio::test]
async fn a_column_of_another_type_is_sent_as_what_it_was_until_it_is_deployed() {
    let mut world: PostgresWorld = DeployedCentre::new(
        "CREATE TABLE t (id integer PRIMARY KEY, n integer); INSERT INTO t VALUES (1, 5)",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("ALTER TABLE t ALTER COLUMN n TYPE real; INSERT INTO t VALUES (2, 7)")
        .await;
    // The first to come has a plan for the table as it was.
    if anna.try_download(&[]).await.is_err() {
        anna.download().await;
    }
    assert_eq!(anna.rows("t"), ["1|5", "2|7"]);
    world.deploy().await.unwrap();
    let fresh = TestRemote::synced(&world, "anna").await;
    assert_eq!(fresh.rows("t"), ["1|5", "2|7"]);
}

/// What sees one snapshot all along would log a row for who had it before.
#[tokio::test]
async fn a_transaction_of_one_snapshot_ends_where_what_is_above_its_rows_has_moved() {
    let ddl = "CREATE TABLE doc (id integer PRIMARY KEY, owner text NOT NULL);
               CREATE TABLE line (id integer PRIMARY KEY, doc_id integer REFERENCES doc, body text);
               CREATE INDEX ON line (doc_id);
               INSERT INTO doc VALUES (1, 'anna'); INSERT INTO line VALUES (10, 1, 'before');";
    let tables = vec![
        partitioned("doc", &["owner"], "SELECT {s.username}"),
        follows("line", "doc"),
    ];
    let world: PostgresWorld = DeployedCentre::new(ddl, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let writer = connect_application(&world.fixture.url()).await.unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM doc";
    let write = "UPDATE line SET body = 'after'";
    writer.batch_execute(begin).await.unwrap();
    writer.batch_execute(write).await.unwrap();
    writer.batch_execute("COMMIT").await.unwrap();
    anna.download().await;
    assert_eq!(anna.rows("line"), ["10|1|after"]);
    writer.batch_execute(begin).await.unwrap();
    world.execute("UPDATE doc SET owner = 'berta'").await;
    let failed = writer.batch_execute(write).await.unwrap_err();
    assert_eq!(
        failed.code().map(|it| it.code()),
        Some("40001"),
        "{failed:?}"
    );
}
