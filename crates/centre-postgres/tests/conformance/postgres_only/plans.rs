//! How PostgreSQL finds what a sync asks for, as it explains it itself.

use tidewater_centre::{RuleSpec, TableSpec};
use tidewater_testing::postgres::shared_postgres;

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::Remote;
use tidewater_centre_conformance::world::{World, everyone, partitioned};

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
    let world = World::<PostgresFixture>::new(ddl, tables).await;
    world
        .execute(
            "INSERT INTO doc SELECT n, 'owner ' || n FROM generate_series(1, 5000) s(n);
             INSERT INTO line SELECT n, 1 + n % 5000 FROM generate_series(1, 20000) s(n);
             INSERT INTO part SELECT n, 1 + n % 20000 FROM generate_series(1, 20000) s(n)",
        )
        .await;
    let mut anna = Remote::synced(&world, "user 7").await;
    assert_eq!(anna.rows("part").len(), 40);
    world
        .execute(
            "ANALYZE;
             DO $$ BEGIN EXECUTE format(
               'ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
             EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0',
               current_database()); END $$",
        )
        .await;
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
