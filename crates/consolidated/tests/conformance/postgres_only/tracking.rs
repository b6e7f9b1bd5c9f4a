//! What the triggers see, whoever writes and however.

use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_consolidated::{CentreError, TableSpec, Tracking};

use crate::fixture::Fixture;
use crate::postgres::PostgresFixture;
use crate::remote::Remote;
use crate::world::{SHOP_DDL, World, everyone, shop};

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
