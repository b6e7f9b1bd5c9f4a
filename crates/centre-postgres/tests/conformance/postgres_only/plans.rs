//! How PostgreSQL finds what a sync asks for, as it explains it itself.

use tidewater_centre::{RuleSpec, TableSpec};
use tidewater_testing::postgres::shared_postgres;

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{DeployedCentre, everyone, partitioned};

/// A log that has just begun has no statistics, and plans are made when it is empty.
#[tokio::test]
async fn a_log_is_read_by_its_index_however_fast_it_grows() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner INTEGER NOT NULL)
        WITH (autovacuum_enabled = off)";
    let tables = vec![partitioned("doc", &["owner"], "SELECT 1")];
    let world = DeployedCentre::<PostgresFixture>::new(ddl, tables).await;
    explain_all(&world).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let logged = shared_postgres().log().len();
    world.execute("INSERT INTO doc VALUES (1, 1)").await;
    assert_eq!(anna.download().await.rows(), ["doc: 1|1"]);
    world
        .execute("INSERT INTO doc SELECT n, 2 FROM generate_series(2, 20000) s(n)")
        .await;
    for _ in 0..3 {
        assert!(anna.download().await.rows().is_empty());
    }
    world.execute("UPDATE doc SET owner = 1 WHERE id = 2").await;
    assert_eq!(anna.download().await.rows(), ["doc: 2|1"]);
    let log = shared_postgres().log();
    let plans = &log[logged..];
    // Whether there is anything new, five times, and what it is; the last plan may still be on its way
    // to the server's log.
    assert!(plans.matches("log_1_index").count() >= 6, "{plans}");
    for table in ["doc", "log_"] {
        let scans = plans.matches(&format!("Seq Scan on {table}")).count();
        assert_eq!(scans, 0, "{table}\n{plans}");
    }
}

/// Has connections that are opened from now on explain what they do.
async fn explain_all(world: &DeployedCentre<PostgresFixture>) {
    world
        .execute(
            "DO $$ BEGIN EXECUTE format(
               'ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
             EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0',
               current_database()); END $$",
        )
        .await;
}

#[tokio::test]
async fn an_idle_sync_is_index_lookups_only() {
    let ddl = "
        CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT NOT NULL);
        CREATE INDEX doc_owner ON doc (owner);
        CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc_id INTEGER REFERENCES doc);
        CREATE INDEX line_doc ON line (doc_id);
        CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY, line_id INTEGER REFERENCES line);
        CREATE INDEX part_line ON part (line_id);
        CREATE TABLE held (login TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (login, owner));
        INSERT INTO held SELECT 'user ' || n % 500, 'owner ' || n FROM generate_series(1, 5000) s(n);";
    let owned = "SELECT owner FROM held WHERE login = {s.username}";
    let follows = |table, parent| TableSpec {
        partition: vec![RuleSpec::follows(parent)],
        ..everyone(table)
    };
    let tables = vec![
        partitioned("doc", &["owner"], owned),
        follows("line", "doc"),
        follows("part", "line"),
    ];
    let world = DeployedCentre::<PostgresFixture>::new(ddl, tables).await;
    world
        .execute(
            "INSERT INTO doc SELECT n, 'owner ' || n FROM generate_series(1, 5000) s(n);
             INSERT INTO line SELECT n, 1 + n % 5000 FROM generate_series(1, 20000) s(n);
             INSERT INTO part SELECT n, 1 + n % 20000 FROM generate_series(1, 20000) s(n)",
        )
        .await;
    let mut anna = TestRemote::synced(&world, "user 7").await;
    assert_eq!(anna.rows("part").len(), 40);
    world.execute("ANALYZE").await;
    explain_all(&world).await;
    // Connections that explain what they do.
    let centre = PostgresFixture::connect(&world.fixture.url())
        .await
        .unwrap();
    centre.load(&world.specs).await.unwrap();
    anna.worker = centre.worker().await.unwrap();
    let logged = shared_postgres().log().len();
    for _ in 0..3 {
        assert!(anna.download().await.rows().is_empty());
    }
    let log = shared_postgres().log();
    let plans = &log[logged..];
    // Of the tables with many rows: those of the application, and the logs.
    for table in ["doc", "line", "part", "held", "log_"] {
        let scans = plans.matches(&format!("Seq Scan on {table}")).count();
        assert_eq!(scans, 0, "{table}\n{plans}");
    }
    assert!(plans.matches("using log_").count() >= 3, "{plans}");
    assert!(plans.contains("held_pkey"), "{plans}");
}
