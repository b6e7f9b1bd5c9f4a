//! What only PostgreSQL has: its types, roles, row tracking, COPY, crashes.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;

use tidewater_consolidated::{CentreError, TableSpec, Tracking, UploadOutcome, connect};
use tidewater_testing::Postgres;
use tidewater_testing::postgres::connect as connect_application;

use crate::fixture::{Fixture, Transaction};
use crate::postgres::PostgresFixture;
use crate::remote::{Remote, delete, insert, update};
use crate::world::{NOW_MS, SHOP_DDL, World, everyone, partitioned, publication, shop};

type PostgresWorld = World<PostgresFixture>;

async fn table(ddl: &str, name: &str) -> PostgresWorld {
    World::new(ddl, vec![everyone(name)]).await
}

#[tokio::test]
async fn every_type_travels_there_and_back() {
    let world = table(
        "CREATE TYPE mood AS ENUM ('sad', 'happy');
         CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0);
         CREATE TABLE v (id bigint PRIMARY KEY, s smallint, b boolean, r real, d double precision,
           n numeric, p price, c char(4), x varchar(5), y bytea, day date, t time, ts timestamp,
           tz timestamptz, u uuid, j json, jb jsonb, m mood, a integer[], i interval);
         INSERT INTO v VALUES (1, -7, true, 0.1, 0.1, 1.50, 2.5, 'ab', 'xyz', '\\x00ff', '2026-02-28',
           '23:59:59.5', '1999-12-31 23:59:59', '2026-01-01 00:00:00+01',
           '0F8FAD5B-D9CB-469F-A165-70867728950E', '{\"a\" : 1}', '{\"b\":2}', 'happy', '{1,2}',
           '1 day')",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    let row = "1|-7|1|0.10000000149011612|0.1|1.50|2.50|ab|xyz|x'00ff'|2026-02-28|23:59:59.500000|\
               1999-12-31T23:59:59.000000|2025-12-31T23:00:00.000000Z|\
               0f8fad5b-d9cb-469f-a165-70867728950e|{\"a\" : 1}|{\"b\": 2}|happy|{1,2}|P1D";
    assert_eq!(anna.rows("v"), [row]);
    // As another new row of the remote's, with bytes as the suite writes them.
    let new = row.replace("1|-7", "2|-8").replace("x'00ff'", "bytes");
    let result = anna.upload(&[insert("v", &new)]).await;
    assert_eq!(result.len(), 1, "{result:?}");
    let changed = new.replace("happy", "sad").replace("P1D", "P2D");
    let result = anna.upload(&[update("v", &new, &changed)]).await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let berta = Remote::synced(&world, "berta").await;
    assert_eq!(
        berta.rows("v"),
        [row.to_owned(), changed.replace("bytes", "x'6279746573'")]
    );
    assert_eq!(
        world
            .fixture
            .query("SELECT s, p, c = 'ab', m, i FROM v WHERE id = 2")
            .await,
        ["-8|2.50|t|sad|2 days"]
    );
    let result = anna.upload(&[delete("v", &changed)]).await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 1 deleted, 0 conflicts, 0 refused"]
    );
}

#[tokio::test]
async fn values_that_postgresql_refuses_are_refused_by_row() {
    let world = table(
        "CREATE TYPE mood AS ENUM ('sad', 'happy');
         CREATE TABLE v (id integer PRIMARY KEY, s smallint, x varchar(3), j json, m mood)",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("v", "1|1|abc|{}|sad"),
            insert("v", "2|40000|abc|{}|sad"),
            insert("v", "3|1|abcd|{}|sad"),
            insert("v", "4|1|abc|{|sad"),
            insert("v", "5|1|abc|{}|angry"),
            insert("v", "6|1|a\0c|{}|sad"),
            insert("v", "70000000000|1|abc|{}|sad"),
            insert("v", "8|x|abc|{}|sad"),
            insert("v", "9|1|xyz|{}|happy"),
        ])
        .await;
    assert_eq!(
        result[0],
        "2 inserted, 0 updated, 0 deleted, 0 conflicts, 7 refused"
    );
    let refused = world.centre.refused().await.unwrap();
    assert_eq!(refused.len(), 7);
    assert!(
        refused.iter().all(|row| row.code == "bad_value"),
        "{refused:?}"
    );
    assert!(refused.iter().any(|row| {
        row.reason
            .contains("\"s\" of type smallint cannot hold \"40000\"")
    }));
    assert_eq!(
        world.fixture.query("SELECT id FROM v ORDER BY 1").await,
        ["1", "9"]
    );
}

#[tokio::test]
async fn many_rows_of_which_some_are_refused_lose_only_those() {
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let row = |id: i32| match id {
        250 => format!("{id}|north|forbidden|NULL"),
        251 => format!("{id}|south|Out of scope|NULL"),
        252 => format!("{id}|north|Taken|nora@x"),
        _ => format!("{id}|north|Name {id}|NULL"),
    };
    let changes: Vec<_> = (100..700).map(|id| insert("customer", &row(id))).collect();
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "597 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused"
    );
    let codes: Vec<_> = world.centre.refused().await.unwrap();
    let mut codes: Vec<_> = codes
        .iter()
        .map(|row| format!("{} {}", row.key, row.code))
        .collect();
    codes.sort();
    assert_eq!(
        codes,
        ["[250] check", "[251] out_of_scope", "[252] key_in_use"]
    );
    let received = anna.download().await;
    assert_eq!(received.rows(), [] as [&str; 0]);
}

#[tokio::test]
async fn many_rows_go_by_copy_and_are_not_sent_back() {
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
    let changes = (100..5_000).map(|id| insert("customer", &format!("{id}|north|Name {id}|NULL")));
    let upload = anna.next_upload(&changes.collect::<Vec<_>>());
    let UploadOutcome::Applied { result, own } = anna.apply(upload).await else {
        panic!("not applied");
    };
    assert_eq!(result.inserts, 4_900);
    assert!(own.skip_version && own.rows.is_empty());
    anna.own = Some(own);
    let received = anna.download().await;
    assert_eq!(received.rows(), [] as [&str; 0]);
    assert!(
        received.checkpoint().is_some(),
        "the watermark moves past them"
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    assert_eq!(berta.download().await.upserts.len(), 4_900);
}

/// Values that the centre gives back in another form reach their uploader in it.
#[tokio::test]
async fn converted_values_are_sent_to_whoever_uploaded_them() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, r real, j jsonb)",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    anna.upload(&[insert("v", "1|0.5|{}"), insert("v", "2|0.1|{\"a\":1}")])
        .await;
    assert_eq!(
        anna.download().await.rows(),
        ["v: 2|0.10000000149011612|{\"a\": 1}"]
    );
}

/// A trigger that is made after loading is noticed.
#[tokio::test]
async fn a_trigger_that_appears_while_serving_is_noticed() {
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute(
            "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN NEW.name := upper(NEW.name); RETURN NEW; END $$;
             CREATE TRIGGER shout BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION shout()",
        )
        .await;
    anna.upload(&[insert("customer", "50|north|Nadja|NULL")])
        .await;
    assert_eq!(
        anna.download().await.rows(),
        ["customer: 50|north|NADJA|NULL"]
    );
}

#[tokio::test]
async fn identity_and_generated_columns_are_respected() {
    let world = table(
        "CREATE TABLE v (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a integer,
           n integer GENERATED ALWAYS AS IDENTITY, doubled integer GENERATED ALWAYS AS (a * 2) STORED)",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    anna.upload(&[insert("v", "1000|4|1|NULL")]).await;
    assert_eq!(anna.download().await.rows(), ["v: 1000|4|1|8"]);
    let result = anna
        .upload(&[update("v", "1000|4|1|8", "1000|5|1|8")])
        .await;
    assert_eq!(result.len(), 1, "{result:?}");
    assert_eq!(anna.download().await.rows(), ["v: 1000|5|1|10"]);
    let changes = (0..200).map(|id| insert("v", &format!("{id}|{id}|{id}|NULL")));
    let result = anna.upload(&changes.collect::<Vec<_>>()).await;
    assert_eq!(
        result,
        ["200 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
}

#[tokio::test]
async fn any_role_can_write_a_tracked_table_whatever_its_search_path() {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let role = format!("clerk_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    world
        .execute(&format!(
            "CREATE ROLE {role}; GRANT ALL ON customer TO {role};
             CREATE SCHEMA trap AUTHORIZATION {role};
             SET ROLE {role};
             CREATE FUNCTION trap.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '1'::xid8 $$;
             SET search_path = trap, pg_catalog;
             INSERT INTO public.customer VALUES (60, 'north', 'Nele', NULL);
             UPDATE public.customer SET name = 'Nora 2' WHERE customer_id = 1"
        ))
        .await;
    assert_eq!(
        anna.download().await.rows(),
        [
            "customer: 1|north|Nora 2|nora@x",
            "customer: 60|north|Nele|NULL"
        ]
    );
    let read = format!("SET ROLE {role}; SELECT * FROM tidewater.user_account");
    assert!(world.fixture.try_execute(&read).await.is_err());
    world
        .execute(&format!(
            "DROP SCHEMA trap CASCADE; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .await;
}

#[tokio::test]
async fn row_tracking_sees_what_a_replication_worker_writes() {
    let tables = vec![TableSpec {
        tracking: Tracking::Row,
        ..everyone("product")
    }];
    let world = World::<PostgresFixture>::new(SHOP_DDL, tables).await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute(
            "SET session_replication_role = replica;
             INSERT INTO product VALUES (3, 'milk'); DELETE FROM product WHERE product_id = 1;
             UPDATE product SET product_id = 4 WHERE product_id = 2",
        )
        .await;
    anna.download().await;
    assert_eq!(anna.rows("product"), ["3|milk", "4|coffee"]);
}

#[tokio::test]
async fn tables_of_other_schemas_with_awkward_names_are_served() {
    let name = "Pur\"chase; --$tidewater$";
    let quoted = "\"Side\".\"Pur\"\"chase; --$tidewater$\"";
    let world = World::<PostgresFixture>::new(
        &format!(
            "CREATE SCHEMA \"Side\"; CREATE TABLE {quoted} (\"k$tidewater$'\" integer PRIMARY KEY,
               \"select\" text COLLATE \"C\"); INSERT INTO {quoted} VALUES (1, 'it''s \\')"
        ),
        vec![partitioned(
            &format!("Side.{name}"),
            &["select"],
            "SELECT E'it''s \\\\' -- the only one",
        )],
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    assert_eq!(anna.rows(name), ["1|it's \\"]);
    world
        .execute(&format!("UPDATE {quoted} SET \"k$tidewater$'\" = 2"))
        .await;
    anna.download().await;
    assert_eq!(anna.rows(name), ["2|it's \\"]);
    let changes = [
        update(name, "2|it's \\", "2|gone"),
        insert(name, "3|it's \\"),
    ];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
}

#[tokio::test]
async fn other_spellings_under_a_collation_are_conflicts() {
    let world = table(
        "CREATE COLLATION careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE v (id integer PRIMARY KEY, name text COLLATE careless);
         INSERT INTO v VALUES (1, 'ABC')",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    let result = anna.upload(&[update("v", "1|abc", "1|new")]).await;
    assert_eq!(result[1..], ["conflict v: 1|ABC"]);
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
    assert!(
        matches!(&error, CentreError::Configuration { message, .. } if message.contains("customer"))
    );
    assert_eq!(fixture.traces().await, [] as [&str; 0]);
    open.commit().await;
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
}

#[tokio::test]
async fn a_removed_trigger_is_missed_and_restored() {
    let mut world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let triggers = world
        .fixture
        .query("SELECT tgname FROM pg_trigger WHERE tgname ~ '^tidewater.*delete$' AND tgrelid = 'product'::regclass")
        .await;
    world
        .execute(&format!(
            "DROP TRIGGER {} ON product; DELETE FROM product WHERE product_id = 1",
            triggers[0]
        ))
        .await;
    let error = world.centre.load(&world.specs).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    assert_eq!(world.deploy().await.unwrap().steps.len(), 1);
    let received = anna.download().await;
    assert_eq!(received.replaced, ["product"]);
    assert_eq!(anna.rows("product"), ["2|coffee"]);
}

/// CASES 1: ids of transactions that aborted before a crash are not given out again
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
    let mut anna = Remote::of(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
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
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
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
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
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
    let world = World::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = Remote::synced(&world, "anna").await;
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
    let error = worker.session_state("anna", None, &[]).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
}

#[tokio::test]
async fn updates_of_ever_other_columns_are_all_applied() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, a integer, b integer, c integer, d integer, e integer);
         INSERT INTO v SELECT i, 0, 0, 0, 0, 0 FROM generate_series(1, 31) i;
         CREATE TABLE seen (id integer);
         CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END $$;
         CREATE TRIGGER seen AFTER UPDATE OF e ON v FOR EACH ROW EXECUTE FUNCTION seen()",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    let row = |id: i32, set: i32| {
        let bits: Vec<_> = (0..5).map(|bit| (set >> bit & 1).to_string()).collect();
        format!("{id}|{}", bits.join("|"))
    };
    // One row for each set of changed columns; few sets with the last one.
    let changes: Vec<_> = (1..32)
        .map(|id| update("v", &row(id, 0), &row(id, id)))
        .collect();
    let result = anna.upload(&changes[..15]).await;
    assert_eq!(
        result,
        ["0 inserted, 15 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // Triggers of a column fire for those only that change it.
    assert_eq!(
        world.fixture.query("SELECT count(*) FROM seen").await,
        ["0"]
    );
    world
        .execute("UPDATE v SET a = 0, b = 0, c = 0, d = 0")
        .await;
    let result = anna.upload(&changes).await;
    assert_eq!(
        result,
        ["0 inserted, 31 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let expected: Vec<_> = (1..32).map(|id| row(id, id)).collect();
    assert_eq!(
        world.fixture.query("SELECT * FROM v ORDER BY id").await,
        expected
    );
}

/// A batch must not go in twice because a trigger gave its rows other keys.
#[tokio::test]
async fn rows_that_a_trigger_gives_keys_of_its_own_are_there_once() {
    for count in [5, 300] {
        let world = table(
            "CREATE SEQUENCE number START 1000;
             CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN NEW.id := nextval('number'); RETURN NEW; END $$;
             CREATE TABLE v (id integer PRIMARY KEY, x text);
             INSERT INTO v VALUES (9, 'theirs');
             CREATE TRIGGER number BEFORE INSERT ON v FOR EACH ROW
               WHEN (NEW.id > 9) EXECUTE FUNCTION number()",
            "v",
        )
        .await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut changes = vec![insert("v", "9|mine"), insert("v", "8|kept")];
        changes.extend((10..10 + count).map(|id| insert("v", &format!("{id}|new"))));
        let result = anna.upload(&changes).await;
        let conflicts = count + 1;
        assert_eq!(
            result[0],
            format!("1 inserted, 0 updated, 0 deleted, {conflicts} conflicts, 0 refused")
        );
        anna.download().await;
        let new = "SELECT count(*), count(DISTINCT id), min(id) >= 1000 FROM v WHERE x = 'new'";
        assert_eq!(
            world.fixture.query(new).await,
            [format!("{count}|{count}|t")]
        );
        // The row kept as it was is not sent back.
        assert_eq!(anna.rows("v").len() as i32, count + 1);
    }
}

#[tokio::test]
async fn a_row_that_a_trigger_keeps_out_is_refused() {
    let world = table(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TABLE v (id integer PRIMARY KEY, x text)",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    // It comes while the publication is served.
    world
        .fixture
        .execute(
            "CREATE TRIGGER no BEFORE INSERT ON v FOR EACH ROW
             WHEN (NEW.x = 'no') EXECUTE FUNCTION no()",
        )
        .await;
    let changes = [insert("v", "1|yes"), insert("v", "2|no")];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    let refused = world.centre.refused().await.unwrap();
    assert_eq!(refused[0].code, "constraint");
}

#[tokio::test]
async fn deferrable_unique_constraints_take_uploads() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED,
           x text UNIQUE DEFERRABLE);
         INSERT INTO v VALUES (1, 'a'), (2, 'b')",
        "v",
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    let changes = [
        insert("v", "1|mine"),
        insert("v", "2|b"),
        insert("v", "3|a"),
        insert("v", "4|d"),
    ];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "2 inserted, 0 updated, 0 deleted, 1 conflicts, 1 refused"
    );
    assert_eq!(
        world.fixture.query("SELECT id, x FROM v ORDER BY 1").await,
        ["1|a", "2|b", "4|d"]
    );
}
