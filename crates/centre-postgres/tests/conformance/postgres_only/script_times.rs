//! Downloads by time: of what prepared transactions leave, and where columns have no zone.

use tidewater_centre_conformance::fixture::{ApplicationTransaction, Fixture};
use tidewater_centre_conformance::remote::{TestRemote, insert};
use tidewater_centre_conformance::scripting::{now_ms, script};

use super::{PostgresWorld, table};
use crate::fixture::PostgresFixture;

const CURSOR: &str = "SELECT id, name, last_modified FROM customer
     WHERE last_modified >= {s.last_download}";

/// Customers that a script downloads by their times, which are of this type.
async fn customers(time: &str) -> PostgresWorld {
    let ddl = format!(
        "CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL,
           last_modified {time} NOT NULL DEFAULT now())"
    );
    let mut world = table(&ddl, "customer").await;
    world.specs[0].scripts = vec![script("customer", "download_cursor", CURSOR)];
    world.deploy().await.unwrap();
    world
}

/// Has every session from now on be in a time zone.
async fn set_zone(world: &mut PostgresWorld, zone: &str) {
    world
        .execute(&format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L',
               current_database(), '{zone}'); END $$"
        ))
        .await;
    reconnect(world).await;
}

/// Another server in the place of the one that there was.
async fn reconnect(world: &mut PostgresWorld) {
    let url = world.fixture.url();
    world.centre = PostgresFixture::connect(&url).await.unwrap();
    world.schemas = world.centre.load(&world.specs).await.unwrap();
}

async fn sync(remote: &mut TestRemote) -> Vec<String> {
    remote.now_ms = now_ms();
    remote.download().await.rows()
}

fn names(rows: &[String]) -> Vec<&str> {
    rows.iter()
        .map(|it| it.split('|').nth(1).unwrap_or_default())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_is_downloaded_by_its_time_once_it_is_committed() {
    let mut world = customers("timestamptz").await;
    let mut anna = TestRemote::new(&world, "anna").await;
    sync(&mut anna).await;
    let mut other = world.fixture.begin().await;
    other
        .execute("INSERT INTO customer VALUES (1, 'prepared')")
        .await;
    // Something that is younger, and there at once.
    world
        .execute("INSERT INTO customer VALUES (2, 'other')")
        .await;
    other.execute("PREPARE TRANSACTION 'x'").await;
    for _ in 0..2 {
        assert_eq!(names(&sync(&mut anna).await), ["other"]);
    }
    // A server that has just started, and a remote that has nothing.
    reconnect(&mut world).await;
    anna.worker = world.centre.worker().await.unwrap();
    let mut bela = TestRemote::new(&world, "bela").await;
    for remote in [&mut anna, &mut bela] {
        assert_eq!(names(&sync(remote).await), ["other"]);
    }
    world.execute("COMMIT PREPARED 'x'").await;
    for remote in [&mut anna, &mut bela] {
        assert_eq!(remote_names(remote).await, ["prepared", "other"]);
    }
    // Nothing holds the time any more.
    sync(&mut anna).await;
    assert_eq!(sync(&mut anna).await, [] as [&str; 0]);
}

/// What a remote has after a sync, by its names.
async fn remote_names(remote: &mut TestRemote) -> Vec<String> {
    sync(remote).await;
    let rows = remote.rows("customer");
    names(&rows).into_iter().map(str::to_owned).collect()
}

/// Whatever the zone, what comes is what was written since, by applications and by other remotes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_without_a_zone_are_those_of_the_databases_zone() {
    for zone in ["America/New_York", "Asia/Tokyo"] {
        let mut world = customers("timestamp").await;
        set_zone(&mut world, zone).await;
        let stamp = "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS
              $$ BEGIN NEW.last_modified := now(); RETURN NEW; END $$;
            CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON customer
              FOR EACH ROW EXECUTE FUNCTION stamp()";
        world.execute(stamp).await;
        let report = world.deploy().await.unwrap();
        let told = report.warnings.join("\n");
        for part in [
            "{s.last_download}",
            "(last_modified)",
            zone,
            "download_cursor",
        ] {
            assert!(told.contains(part), "{told}");
        }
        let mut anna = TestRemote::new(&world, "anna").await;
        sync(&mut anna).await;
        world
            .execute("INSERT INTO customer VALUES (1, 'office')")
            .await;
        assert_eq!(names(&sync(&mut anna).await), ["office"], "{zone}");
        let mut bela = TestRemote::new(&world, "bela").await;
        sync(&mut bela).await;
        bela.upload(&[insert("customer", "2|field|2026-01-01T00:00:00")])
            .await;
        assert_eq!(names(&sync(&mut anna).await), ["field"], "{zone}");
        sync(&mut anna).await;
        assert_eq!(sync(&mut anna).await, [] as [&str; 0], "{zone}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_of_times_that_have_a_zone() {
    let mut world = customers("timestamptz").await;
    let report = world.deploy().await.unwrap();
    let told = report.warnings.join("\n");
    assert!(!told.contains("zone"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_sets_a_time_without_a_zone_is_refused() {
    let mut world = customers("timestamptz").await;
    let times = [
        ("now()::timestamp", false),
        ("(now()::timestamp)::timestamptz", true),
    ];
    for (time, is_good) in times {
        let sql = format!("SELECT {time} AS last_download");
        world.specs[0].scripts = vec![
            script("customer", "download_cursor", CURSOR),
            script("connection", "modify_last_download", &sql),
        ];
        match world.deploy().await {
            Ok(_) => assert!(is_good, "{time}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!is_good && error.contains("without a zone"), "{error}");
            }
        }
    }
}
