//! Which tables partition queries read, and that nobody who writes them is kept from it.

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::world::{DeployedCentre, partitioned};

const DDL: &str = "
    CREATE TABLE spot (id int PRIMARY KEY, place int NOT NULL);
    CREATE TABLE plan (login text NOT NULL, place int NOT NULL, PRIMARY KEY (login, place))
        PARTITION BY LIST (place);
    CREATE TABLE plan_1 PARTITION OF plan FOR VALUES IN (1);
    CREATE TABLE plan_more PARTITION OF plan DEFAULT;
    CREATE TABLE absence (login text PRIMARY KEY);
    CREATE VIEW present AS SELECT * FROM plan p
        WHERE NOT EXISTS (SELECT FROM absence a WHERE a.login = p.login);
    CREATE MATERIALIZED VIEW guest AS SELECT 'guest' AS login, 1 AS place;
    CREATE FUNCTION places(who text) RETURNS SETOF int LANGUAGE sql STABLE AS
        $$ SELECT place FROM present WHERE login = who UNION SELECT place FROM guest WHERE login = who $$;";

#[tokio::test]
async fn writes_to_partitions_and_behind_views_and_functions_are_noted_for_any_role() {
    let query = "SELECT place FROM places({s.username}) AS p (place)";
    let world =
        DeployedCentre::<PostgresFixture>::new(DDL, vec![partitioned("spot", &["place"], query)]);
    let mut world = world.await;
    let mut position = world.centre.follow(None).await.unwrap().position;
    world
        .execute(
            "CREATE ROLE planner; GRANT ALL ON plan, plan_1, plan_more, absence, spot TO planner",
        )
        .await;
    for (sql, is_noted) in [
        ("INSERT INTO plan VALUES ('anna', 1)", true),
        ("INSERT INTO plan_1 VALUES ('berta', 1)", true),
        ("DELETE FROM plan_more", true),
        ("INSERT INTO absence VALUES ('anna')", true),
        ("TRUNCATE absence", true),
        ("INSERT INTO spot VALUES (1, 1)", false),
    ] {
        world
            .execute(&format!(
                "SET ROLE planner; SET search_path = ''; {}",
                qualified(sql)
            ))
            .await;
        let followed = world.centre.follow(Some(position)).await.unwrap();
        assert_eq!(followed.scopes, is_noted, "{sql}");
        position = followed.position;
    }
    world
        .execute("DROP OWNED BY planner; DROP ROLE planner")
        .await;
    // A trigger that cannot fire is found by the next deployment.
    world
        .execute("ALTER TABLE absence DISABLE TRIGGER tidewater_scope")
        .await;
    let report = world.deploy().await.unwrap();
    assert_eq!(report.steps.len(), 1, "{report:?}");
    assert!(report.steps[0].description.contains("absence"));
    let warnings = report.warnings.join("\n");
    assert!(
        warnings.contains("guest: a partition query reads it"),
        "{warnings}"
    );
    let report = world.centre.deploy(&world.specs, true, 0).await.unwrap();
    assert_eq!(report.steps, []);
}

/// With the schema named, for a session without a search path.
fn qualified(sql: &str) -> String {
    ["plan_more", "plan_1", "absence", "spot"].iter().fold(
        sql.replace("plan VALUES", "public.plan VALUES"),
        |sql, table| sql.replace(table, &format!("public.{table}")),
    )
}
