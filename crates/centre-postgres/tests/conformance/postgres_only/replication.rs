//! Tables that another PostgreSQL feeds by logical replication.

use tidewater_centre::{TableSpec, TrackingMode};
use tidewater_centre_postgres::connect;
use tidewater_testing::postgres::connect as connect_application;
use tidewater_testing::{Postgres, PostgresOptions};

use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{NOW_MS, everyone, publication};

const DDL: &str = "
    CREATE TABLE t (id integer PRIMARY KEY, x text);
    CREATE TABLE p (id integer PRIMARY KEY, x text) PARTITION BY RANGE (id);
    CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (100)";

/// Its worker fires row triggers only, and those only that fire always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_logical_replication_brings_reaches_remotes_with_row_tracking() {
    let start = || {
        tokio::task::spawn_blocking(|| {
            let options = PostgresOptions {
                settings: vec![("wal_level".into(), "logical".into())],
                ..PostgresOptions::default()
            };
            let server = Postgres::start_with(options).unwrap();
            let url = server.fresh_database();
            (server, url)
        })
    };
    let (source, target) = tokio::join!(start(), start());
    let ((source, source_url), (target, target_url)) = (source.unwrap(), target.unwrap());
    let there = connect_application(&source_url).await.unwrap();
    let here = connect_application(&target_url).await.unwrap();
    for client in [&there, &here] {
        client.batch_execute(DDL).await.unwrap();
    }
    there
        .batch_execute("INSERT INTO t VALUES (1, 'first'), (2, 'first'); CREATE PUBLICATION all_of_it FOR TABLE t, p")
        .await
        .unwrap();
    let row = |name: &str| TableSpec {
        tracking: TrackingMode::Row,
        ..everyone(name)
    };
    let specs = [publication("sales", vec![row("t"), row("p")])];
    let centre = connect(&target_url).await.unwrap();
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    let subscribe =
        format!("CREATE SUBSCRIPTION s CONNECTION '{source_url}' PUBLICATION all_of_it");
    here.batch_execute(&subscribe).await.unwrap();
    // The copy at the beginning, changes of every kind, leaves, and one attached later.
    for (sql, table, rows) in [
        ("SELECT", "t", "1|first,2|first"),
        (
            "INSERT INTO t VALUES (3, 'new')",
            "t",
            "1|first,2|first,3|new",
        ),
        (
            "UPDATE t SET x = 'other' WHERE id = 1",
            "t",
            "1|other,2|first,3|new",
        ),
        (
            "UPDATE t SET id = 4 WHERE id = 2",
            "t",
            "1|other,3|new,4|first",
        ),
        ("DELETE FROM t WHERE id = 1", "t", "3|new,4|first"),
        (
            "INSERT INTO p VALUES (1, 'low'), (2, 'low')",
            "p",
            "1|low,2|low",
        ),
        ("DELETE FROM p_low WHERE id = 1", "p", "2|low"),
        (
            "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (100) TO (200)",
            "p",
            "2|low",
        ),
        ("INSERT INTO p VALUES (101, 'high')", "p", "101|high,2|low"),
        (
            "UPDATE p SET id = 102 WHERE id = 2",
            "p",
            "101|high,102|low",
        ),
        ("TRUNCATE t", "t", ""),
    ] {
        if sql.starts_with("CREATE") {
            here.batch_execute(sql).await.unwrap();
        }
        there.batch_execute(sql).await.unwrap();
        if sql.starts_with("CREATE") {
            here.batch_execute("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
                .await
                .unwrap();
        }
        let arrived = format!(
            "SELECT coalesce(string_agg(id || '|' || x, ',' ORDER BY id::text), '') = '{rows}' FROM {table}"
        );
        while !here
            .query_one(&arrived, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
        {
            tokio::task::yield_now().await;
        }
        anna.download().await;
        assert_eq!(anna.rows(table).join(","), rows, "{sql}");
    }
    drop((source, target));
}
