//! What generated cases have found, each as a test of its own.

use crate::backend::Backend;
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

on_both_adapters!(a_table_called_excluded_takes_updates);

/// The query that reads partitions spelled a date as remotes do: every sync of such a user
/// failed.
#[test]
fn partitions_of_years_before_christ_and_beyond_9999_are_sent() {
    let world = World::<crate::backend::Postgres>::open(Scenario {
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
