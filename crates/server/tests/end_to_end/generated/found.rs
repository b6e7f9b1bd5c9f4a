//! What generated cases have found, each as a test of its own.

use crate::backend::{Backend, Postgres};
use crate::compare::assert_converged;
use crate::scenario::{Column, Scenario, Table};
use crate::world::World;

/// A world of one table of everyone's with these columns.
fn world<B: Backend>(schema: &str, name: &'static str, table: &'static [Table]) -> World<B> {
    let publication = format!(
        "[[publication]]\nname = \"main\"\n\n[[publication.table]]\nname = {name:?}\npartition = \"everyone\"\n"
    );
    World::open(Scenario {
        schema: schema.into(),
        // The few worlds of a test run may live as long as it.
        publication: publication.leak(),
        tables: table,
        users: &["ada", "bob"],
        limits: "",
    })
}

/// `excluded` in `ON CONFLICT DO UPDATE` was the table itself: no update ever arrived.
fn a_table_called_excluded_takes_updates<B: Backend>() {
    const EXCLUDED: &[Table] = &[Table {
        name: "excluded",
        columns: &[Column::Plain("id"), Column::Plain("note")],
        scope: "1 = 1",
        parents: &[],
    }];
    let schema = "CREATE TABLE excluded (id INTEGER NOT NULL PRIMARY KEY, note TEXT);
                  INSERT INTO excluded VALUES (1, 'old')";
    let world = world::<B>(schema, "excluded", EXCLUDED);
    let mut ada = world.synced("ada");
    world.execute("UPDATE excluded SET note = 'new'");
    ada.sync();
    assert_eq!(ada.rows("SELECT note FROM excluded"), ["new"]);
    ada.edit("UPDATE excluded SET note = 'mine'");
    ada.sync();
    assert_converged(&world, &[&ada]);
}

/// The result told the row that won, and the download left out that the same upload's cascade
/// had then deleted it: the remote had been told a delete, too.
fn a_conflicting_row_that_the_same_upload_cascades_away_goes<B: Backend>() {
    const TABLES: &[Table] = &[
        Table {
            name: "parent",
            columns: &[Column::Plain("id")],
            scope: "1 = 1",
            parents: &[],
        },
        Table {
            name: "child",
            columns: &[Column::Plain("id"), Column::Plain("note")],
            scope: "1 = 1",
            parents: &[],
        },
    ];
    let world = World::<B>::open(Scenario {
        schema: "CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY);
                 CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY, note TEXT,
                     parent_id INTEGER NOT NULL REFERENCES parent (id) ON DELETE CASCADE);
                 INSERT INTO parent VALUES (1); INSERT INTO child VALUES (7, 'old', 1)"
            .into(),
        publication: r#"
            [[publication]]
            name = "main"
            [[publication.table]]
            name = "parent"
            partition = "everyone"
            on_unseen_children = "cascade"
            [[publication.table]]
            name = "child"
            partition = "everyone"
        "#,
        tables: TABLES,
        users: &["ada"],
        limits: "",
    });
    let mut ada = world.synced("ada");
    ada.edit("DELETE FROM parent");
    world.execute("UPDATE child SET note = 'new'");
    let report = ada.sync();
    assert_eq!(report.conflicts, 1);
    ada.sync();
    assert_eq!(world.rows("SELECT id FROM child"), [""; 0]);
    assert_converged(&world, &[&ada]);
}

on_both_adapters!(
    a_table_called_excluded_takes_updates,
    a_conflicting_row_that_the_same_upload_cascades_away_goes,
);

/// One row under two keys on the remote: `::1` there is `::1/128` here.
#[test]
fn keys_that_can_be_spelled_in_several_ways_are_refused_at_deploy() {
    let world = world::<Postgres>(
        "CREATE TYPE mood AS ENUM ('sad', 'ok');
         CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE good (a mood PRIMARY KEY);
         CREATE TABLE address (a inet PRIMARY KEY);
         CREATE TABLE numbers (a integer[] PRIMARY KEY);
         CREATE TABLE span (a interval PRIMARY KEY);
         CREATE TABLE word (a text COLLATE loose PRIMARY KEY);
         CREATE TABLE weight (a double precision PRIMARY KEY);
         CREATE TABLE document (a jsonb PRIMARY KEY)",
        "good",
        &[],
    );
    let tables = world.server.ask(async |centre| centre.tables().await);
    for table in tables.expect("tables can be listed") {
        let why = table.obstacle.unwrap_or_default();
        let is_refused = why.contains("key column \"a\" can be equal");
        assert_eq!(is_refused, table.name != "good", "{}: {why}", table.name);
    }
}

/// The centre would round the key, and the remote would have the row twice.
#[test]
fn a_key_of_more_digits_of_a_second_than_the_column_keeps_is_refused() {
    let world = world::<Postgres>(
        "CREATE TABLE tick (at timestamp(3) PRIMARY KEY, note text)",
        "tick",
        &[],
    );
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO tick VALUES ('2026-01-01T00:00:00.123456', 'fine'),
                                 ('2026-01-01T00:00:00.123000', 'coarse')",
    );
    assert_eq!(ada.sync().refused, 1);
    assert_eq!(world.rows("SELECT note FROM tick"), ["coarse"]);
    assert_eq!(ada.discard_refused(), 1);
    ada.sync();
    assert_eq!(ada.rows("SELECT note FROM tick"), ["coarse"]);
}

/// The query that reads partitions spelled a date as remotes do: every sync of such a user
/// failed.
#[test]
fn partitions_of_years_before_christ_and_beyond_9999_are_sent() {
    let world = World::<Postgres>::open(Scenario {
        schema:
            "CREATE TABLE era (id INTEGER NOT NULL PRIMARY KEY, day DATE NOT NULL);
                 INSERT INTO era VALUES (1, '0044-03-15 BC'), (2, '12026-01-01'), (3, '2026-01-01')"
                .into(),
        publication: r#"
            [[publication]]
            name = "main"
            [[publication.table]]
            name = "era"
            partition = { columns = ["day"], values = "SELECT day FROM era WHERE {s.username} = 'ada'" }
        "#,
        tables: &[],
        users: &["ada"],
        limits: "",
    });
    let mut ada = world.synced("ada");
    let days = ["1|-000043-03-15", "2|+012026-01-01", "3|2026-01-01"];
    assert_eq!(ada.rows("SELECT * FROM era ORDER BY id"), days);
    world.execute("UPDATE era SET id = id + 10");
    ada.sync();
    let days = ["11|-000043-03-15", "12|+012026-01-01", "13|2026-01-01"];
    assert_eq!(ada.rows("SELECT * FROM era ORDER BY id"), days);
}
