//! What the triggers see, whoever writes and however.

use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_centre::records::IncidentKind;
use tidewater_centre::{CentreError, TableSpec, TrackingMode};

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, insert};
use tidewater_centre_conformance::world::{DeployedCentre, NOW_MS, SHOP_DDL, everyone, shop};

#[tokio::test]
async fn any_role_can_write_a_tracked_table_whatever_its_search_path() {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
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
        tracking: TrackingMode::Row,
        ..everyone("product")
    }];
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
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
async fn a_removed_trigger_is_missed_and_restored() {
    let mut world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
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

/// What was told of tables whose changes were not tracked, oldest first.
async fn told(world: &DeployedCentre<PostgresFixture>) -> Vec<String> {
    let status = world.centre.status().await.unwrap();
    let told = status.incidents.iter().rev();
    let told = told.inspect(|it| {
        assert_eq!(it.kind, IncidentKind::TrackingLost);
        assert_eq!((it.remote_id, it.user.as_str()), (None, ""));
    });
    told.map(|it| it.detail.clone()).collect()
}

#[tokio::test]
async fn triggers_that_are_switched_off_are_noticed_and_remotes_miss_nothing() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.centre.check_tracking(NOW_MS).await.unwrap();
    assert_eq!(told(&world).await, [""; 0]);
    world
        .execute(
            "ALTER TABLE product DISABLE TRIGGER USER; INSERT INTO product VALUES (70, 'unseen')",
        )
        .await;
    for number in 0..2 {
        world.centre.check_tracking(NOW_MS).await.unwrap();
        let more = format!("INSERT INTO product VALUES ({}, 'unseen')", 80 + number);
        world.execute(&more).await;
        let received = anna.download().await;
        assert_eq!(received.replaced, ["product"]);
        assert_eq!(anna.rows("product").len(), 4 + number);
    }
    let found = told(&world).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("off on product ("), "{found:?}");
    assert!(found[0].contains("tidewater deploy"), "{found:?}");
    // Somebody writes after the last download, and switches them on again.
    world
        .execute(
            "DELETE FROM product WHERE product_id = 70;
             ALTER TABLE product ENABLE TRIGGER USER;
             INSERT INTO product VALUES (71, 'seen')",
        )
        .await;
    world.centre.check_tracking(NOW_MS).await.unwrap();
    assert_eq!(anna.download().await.replaced, ["product"]);
    assert_eq!(
        anna.rows("product"),
        ["1|tea", "2|coffee", "71|seen", "80|unseen", "81|unseen"]
    );
    assert!(told(&world).await[1].contains("on again"));
    world.centre.check_tracking(NOW_MS).await.unwrap();
    let received = anna.download().await;
    assert_eq!((received.replaced.len(), received.rows().len()), (0, 0));
    assert_eq!(told(&world).await.len(), 2);
}

#[tokio::test]
async fn triggers_that_were_off_for_a_moment_are_noticed_afterwards() {
    let moment = "BEGIN; ALTER TABLE product DISABLE TRIGGER USER;
        UPDATE product SET name = 'unseen' WHERE product_id = 1;
        ALTER TABLE product ENABLE TRIGGER USER; COMMIT";
    for deploys in [false, true] {
        let mut world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world.execute(moment).await;
        assert_eq!(anna.download().await.rows(), [""; 0]);
        if deploys {
            let steps = world.deploy().await.unwrap().steps;
            assert_eq!(steps.len(), 1, "{steps:?}");
            assert!(steps[0].description.contains("of product "), "{steps:?}");
            assert_eq!(world.deploy().await.unwrap().steps, []);
        } else {
            world.centre.check_tracking(NOW_MS).await.unwrap();
            assert_eq!(told(&world).await.len(), 1);
        }
        assert_eq!(anna.download().await.replaced, ["product"]);
        assert_eq!(anna.rows("product"), ["1|unseen", "2|coffee"]);
        world.centre.check_tracking(NOW_MS).await.unwrap();
        assert_eq!(anna.download().await.replaced, [""; 0]);
        assert_eq!(told(&world).await.len(), usize::from(!deploys));
    }
}

#[tokio::test]
async fn a_table_that_is_dropped_and_made_again_while_it_is_served_is_sent_whole() {
    let mut world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "DROP TABLE product;
             CREATE TABLE product (product_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
             INSERT INTO product VALUES (2, 'coffee'), (3, 'milk')",
        )
        .await;
    world.centre.check_tracking(NOW_MS).await.unwrap();
    for id in [4, 5] {
        let more = format!("INSERT INTO product VALUES ({id}, 'more')");
        world.execute(&more).await;
        assert_eq!(anna.download().await.replaced, ["product"]);
    }
    let expected = ["2|coffee", "3|milk", "4|more", "5|more"];
    assert_eq!(anna.rows("product"), expected);
    let found = told(&world).await;
    assert!(found[0].contains("made again"), "{found:?}");
    // Deployed, it is tracked again.
    assert!(!world.deploy().await.unwrap().steps.is_empty());
    world.centre.load(&world.specs).await.unwrap();
    anna.download().await;
    world
        .execute("UPDATE product SET name = 'seen' WHERE product_id = 3")
        .await;
    assert_eq!(anna.download().await.rows(), ["product: 3|seen"]);
    world.centre.check_tracking(NOW_MS).await.unwrap();
    assert_eq!(told(&world).await.len(), 1);
}

/// As tools migrate without a lock: a copy takes the table's name, and the triggers stay with the
/// old one.
#[tokio::test]
async fn a_table_that_is_exchanged_for_another_while_it_is_served_is_sent_whole() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    world
        .execute(
            "CREATE TABLE copy (LIKE product INCLUDING ALL);
             INSERT INTO copy SELECT product_id, name || '!' FROM product;
             ALTER TABLE product RENAME TO old; ALTER TABLE copy RENAME TO product",
        )
        .await;
    world.centre.check_tracking(NOW_MS).await.unwrap();
    let all = "SELECT product_id || '|' || name FROM product ORDER BY 1";
    anna.upload(&[insert("product", "7|mine")]).await;
    for remote in [&mut anna, &mut berta] {
        assert_eq!(remote.download().await.replaced, ["product"]);
        assert_eq!(remote.rows("product"), world.fixture.query(all).await);
    }
    world
        .execute("DELETE FROM product WHERE product_id = 7")
        .await;
    berta.download().await;
    assert_eq!(berta.rows("product"), world.fixture.query(all).await);
    let found = told(&world).await;
    assert!(found[0].contains("exchanged"), "{found:?}");
    // Exchanged back, all fires again.
    world
        .execute("ALTER TABLE product RENAME TO copy; ALTER TABLE old RENAME TO product")
        .await;
    world.centre.check_tracking(NOW_MS).await.unwrap();
    berta.download().await;
    assert_eq!(berta.rows("product"), world.fixture.query(all).await);
    assert_eq!(told(&world).await.len(), 2);
    world.centre.check_tracking(NOW_MS).await.unwrap();
    assert_eq!(told(&world).await.len(), 2);
}

/// No trigger sees what an ALTER does to every row.
#[tokio::test]
async fn rows_whose_columns_get_another_type_are_sent_once_more() {
    let ddl = "CREATE TYPE mood AS ENUM ('sad', 'ok');
         CREATE TYPE size AS ENUM ('s', 'm');
         CREATE DOMAIN fit AS size;
         CREATE TYPE piece AS (n integer, fits fit[]);
         CREATE TABLE t (id integer PRIMARY KEY, note varchar(20), mood mood, piece piece,
           hidden varchar(20));
         INSERT INTO t VALUES (1, 'a note', 'sad', '(1,{s})', 'x'),
           (2, 'another note', 'ok', '(2,{m})', 'y')";
    let tables = vec![TableSpec {
        columns: Some(["id", "note", "mood", "piece"].map(String::from).to_vec()),
        ..everyone("t")
    }];
    let mut world = DeployedCentre::<PostgresFixture>::new(ddl, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let all = "SELECT concat_ws('|', id, note, mood, piece) FROM t ORDER BY id";
    let mut count = 0;
    for (change, altered) in [
        (
            "ALTER TABLE t ALTER note TYPE varchar(6) USING left(note, 6)",
            Some("note"),
        ),
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", Some("mood")),
        ("ALTER TYPE mood ADD VALUE 'fine'", None),
        ("ALTER TYPE size RENAME VALUE 's' TO 'small'", Some("piece")),
        ("ALTER TABLE t ALTER hidden TYPE text", None),
        ("ALTER TABLE t ALTER note SET NOT NULL", None),
        (
            "ALTER TABLE t ALTER note TYPE text USING upper(note)",
            Some("note"),
        ),
    ] {
        world.execute(change).await;
        for _ in 0..2 {
            world.centre.check_tracking(NOW_MS).await.unwrap();
        }
        let received = anna.download().await;
        assert_eq!(
            received.replaced.len(),
            usize::from(altered.is_some()),
            "{change}"
        );
        assert_eq!(anna.rows("t"), world.fixture.query(all).await, "{change}");
        count += usize::from(altered.is_some());
        let found = told(&world).await;
        assert_eq!(found.len(), count, "{change}: {found:?}");
        if let Some(altered) = altered {
            let altered = format!("altered or made again ({altered})");
            assert!(found.iter().any(|it| it.contains(&altered)), "{found:?}");
        }
    }
    // Where nobody serves, deploying sees it.
    world
        .execute("ALTER TABLE t ALTER note TYPE varchar(3) USING left(note, 3)")
        .await;
    let report = world.deploy().await.unwrap();
    let steps: Vec<_> = report.steps.iter().map(|it| &it.description).collect();
    assert!(
        steps.iter().any(|it| it.contains("made again (note)")),
        "{steps:?}"
    );
    anna.schema = world.schema();
    assert_eq!(anna.download().await.replaced, ["t"]);
    assert_eq!(anna.rows("t"), world.fixture.query(all).await);
    assert_eq!(world.deploy().await.unwrap().steps, []);
}

#[tokio::test]
async fn rows_whose_columns_are_dropped_and_added_again_are_sent_once_more() {
    let ddl = "CREATE TABLE t (id integer PRIMARY KEY, other text, note text);
         INSERT INTO t VALUES (1, 'x', 'old'), (2, 'y', 'old')";
    let again = "ALTER TABLE t DROP note; ALTER TABLE t ADD note text DEFAULT 'new'";
    let mut world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("t")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let all = "SELECT concat_ws('|', id, other, note) FROM t ORDER BY id";
    // A server that looks between the two, or only after them.
    for change in [
        "ALTER TABLE t DROP note",
        "ALTER TABLE t ADD note text DEFAULT 'newer'",
        again,
    ] {
        world.execute(change).await;
        for _ in 0..2 {
            world.centre.check_tracking(NOW_MS).await.unwrap();
        }
    }
    let found = told(&world).await;
    assert_eq!(found.len(), 2, "{found:?}");
    for found in found {
        assert!(found.contains("made again (note)"), "{found}");
    }
    assert_eq!(anna.download().await.replaced, ["t"]);
    assert_eq!(anna.rows("t"), world.fixture.query(all).await);
    assert_eq!(anna.download().await.replaced, [""; 0]);
    // Where nobody serves, deploying sees it, once.
    world.execute(&again.replace("'new'", "'newest'")).await;
    let report = world.deploy().await.unwrap();
    let steps: Vec<_> = report.steps.iter().map(|it| &it.description).collect();
    assert!(
        steps.iter().any(|it| it.contains("made again (note)")),
        "{steps:?}"
    );
    assert_eq!(world.deploy().await.unwrap().steps, []);
    anna.schema = world.schema();
    assert_eq!(anna.download().await.replaced, ["t"]);
    assert_eq!(anna.rows("t"), world.fixture.query(all).await);
}

#[tokio::test]
async fn partitions_that_come_and_go_are_no_triggers_that_are_missing() {
    let ddl = "CREATE TABLE p (id integer PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
        INSERT INTO p VALUES (1, 'a'), (11, 'b')";
    for tracking in [TrackingMode::Log, TrackingMode::Row] {
        let tables = vec![TableSpec {
            tracking,
            ..everyone("p")
        }];
        let world = DeployedCentre::<PostgresFixture>::new(ddl, tables).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        for change in [
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE p DETACH PARTITION p2",
            "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
            "DROP TABLE p1",
        ] {
            world.execute(change).await;
            anna.download().await;
            world.centre.check_tracking(NOW_MS).await.unwrap();
            assert_eq!(told(&world).await, [""; 0], "{tracking:?} {change}");
        }
        assert_eq!(anna.rows("p"), ["11|b"]);
        // On a partition they are missed as well.
        world
            .execute("ALTER TABLE p2 DISABLE TRIGGER ALL; INSERT INTO p2 VALUES (12, 'unseen')")
            .await;
        world.centre.check_tracking(NOW_MS).await.unwrap();
        let found = told(&world).await;
        assert!(found[0].contains("p2 ("), "{found:?}");
        anna.download().await;
        assert_eq!(anna.rows("p"), ["11|b", "12|unseen"]);
    }
}

/// What is written through the other table, or instead of what was said, no trigger sees.
#[tokio::test]
async fn a_table_that_gets_an_ancestor_an_heir_or_a_rule_is_sent_whole_until_it_has_none() {
    let ddl = "CREATE TABLE t (id integer PRIMARY KEY, note text);
         CREATE TABLE above (id integer NOT NULL, note text);
         INSERT INTO t VALUES (1, 'a')";
    let world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("t")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let all = "SELECT concat_ws('|', id, note) FROM t ORDER BY id";
    for (number, (begin, word, write, end)) in [
        (
            "ALTER TABLE t INHERIT above",
            "it inherits from above",
            "UPDATE above SET note = 'through the ancestor'",
            "ALTER TABLE t NO INHERIT above",
        ),
        (
            "CREATE TABLE below () INHERITS (t)",
            "below inherits from it",
            "INSERT INTO below VALUES (2, 'of an heir')",
            "DROP TABLE below",
        ),
        (
            "CREATE RULE other AS ON UPDATE TO t DO ALSO SELECT 1",
            "it has rewrite rules",
            "UPDATE t SET note = 'beside a rule'",
            "DROP RULE other ON t",
        ),
        (
            "ALTER TABLE t SET UNLOGGED",
            "it is unlogged",
            "UPDATE t SET note = 'unlogged'",
            "ALTER TABLE t SET LOGGED",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        world.execute(begin).await;
        world.execute(write).await;
        for _ in 0..2 {
            world.centre.check_tracking(NOW_MS).await.unwrap();
            assert_eq!(anna.download().await.replaced, ["t"], "{begin}");
            assert_eq!(anna.rows("t"), world.fixture.query(all).await);
        }
        // Servers that start now serve it, and say what there is to say.
        let again = world.centre.deploy(&world.specs, false, NOW_MS).await;
        let report = again.unwrap();
        let warnings = report.warnings.join("\n");
        assert_eq!(
            (report.steps, warnings.contains("sends the whole table")),
            (vec![], true)
        );
        let started = PostgresFixture::connect(&world.fixture.url())
            .await
            .unwrap();
        started.load(&world.specs).await.unwrap();
        anna.worker = started.worker().await.unwrap();
        assert_eq!(anna.download().await.replaced, ["t"], "{begin}");
        world.execute(end).await;
        for _ in 0..2 {
            world.centre.check_tracking(NOW_MS).await.unwrap();
        }
        let told = told(&world).await;
        assert_eq!(told.len(), 2 * (number + 1), "{told:?}");
        assert!(told[2 * number].contains(word), "{told:?}");
        assert_eq!(anna.download().await.replaced, ["t"]);
        assert_eq!(anna.rows("t"), world.fixture.query(all).await);
        assert_eq!(anna.download().await.replaced, [""; 0]);
        let planned = world.centre.deploy(&world.specs, true, NOW_MS).await;
        assert_eq!(planned.unwrap().steps, []);
    }
}
