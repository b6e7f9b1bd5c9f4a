//! Documents and their lines, which know only their document.

use tidewater_client::SyncDirection;

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::scenario::{Column, Scenario, Table};
use crate::world::World;

const TABLES: &[Table] = &[
    Table {
        name: "doc",
        columns: &[
            Column::Plain("id"),
            Column::Plain("owner"),
            Column::Plain("title"),
        ],
        scope: "owner = '{user}'",
        parents: &[],
    },
    Table {
        name: "line",
        columns: &[
            Column::Plain("id"),
            Column::Plain("doc_id"),
            Column::Plain("body"),
        ],
        scope: "doc_id IN (SELECT id FROM doc WHERE owner = '{user}')",
        parents: &[],
    },
];

fn docs() -> Scenario {
    let schema = "
        CREATE TABLE doc (id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, title TEXT);
        CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
            doc_id TEXT NOT NULL REFERENCES doc (id) ON UPDATE CASCADE ON DELETE CASCADE,
            body TEXT);
        CREATE INDEX line_doc ON line (doc_id);
        INSERT INTO doc VALUES ('d1', 'ada', 'one'), ('d2', 'ada', 'two'), ('b1', 'bob', 'x');
        INSERT INTO line VALUES (1, 'd1', 'a'), (2, 'd1', 'b'), (3, 'd2', 'c'), (9, 'b1', 'y');";
    Scenario {
        schema: schema.to_owned(),
        publication: r#"
[[publication]]
name = "main"

[[publication.table]]
name = "doc"
partition = { columns = ["owner"], values = "SELECT {s.username}" }

[[publication.table]]
name = "line"
partition = { columns = ["doc_id"], values = "SELECT id FROM doc WHERE owner = {s.username}" }
"#,
        tables: TABLES,
        users: &["ada", "bob"],
        limits: "",
    }
}

/// Interleaving 26.
fn a_new_parent_and_its_new_children_arrive_in_one_sync<B: Backend>() {
    let world = World::<B>::open(docs());
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO doc VALUES ('d3', 'ada', 'new');
         INSERT INTO line VALUES (10, 'd3', 'x'), (11, 'd3', 'y');
         UPDATE line SET doc_id = 'd3' WHERE id = 3;",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (0, 0));
    let lines = "SELECT id FROM line WHERE doc_id = 'd3' ORDER BY id";
    assert_eq!(ada.rows(lines), ["3", "10", "11"]);
    assert_eq!(world.rows(lines), ["3", "10", "11"]);
    assert_converged(&world, &[&ada]);
    // The same without a download.
    ada.edit("INSERT INTO doc VALUES ('d4', 'ada', 'n'); INSERT INTO line VALUES (12, 'd4', 'z');");
    let report = ada.sync_only(SyncDirection::UploadOnly);
    assert_eq!(report.refused, 0);
    ada.edit("UPDATE line SET body = 'Z' WHERE id = 12");
    assert_eq!(ada.sync().conflicts, 0);
    assert_converged(&world, &[&ada]);
    // Nothing of it stays when it leaves.
    world.execute("UPDATE doc SET owner = 'bob' WHERE id IN ('d3', 'd4')");
    ada.sync();
    assert_eq!(ada.rows("SELECT id FROM line ORDER BY id"), ["1", "2"]);
}

/// Interleaving 27.
fn a_parent_under_another_key_takes_unseen_children_along<B: Backend>() {
    let world = World::<B>::open(docs());
    let (mut ada, mut other) = (world.synced("ada"), world.synced("ada"));
    world.execute("INSERT INTO line VALUES (20, 'd1', 'unseen')");
    ada.edit(
        "UPDATE doc SET id = 'd1x' WHERE id = 'd1'; UPDATE line SET body = 'A' WHERE id = 1;
         DELETE FROM line WHERE id = 2; INSERT INTO line VALUES (21, 'd1x', 'new');",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (0, 0));
    other.sync();
    let lines = "SELECT id || doc_id || body FROM line WHERE doc_id <> 'b1' ORDER BY id";
    let all = ["1d1xA", "3d2c", "20d1xunseen", "21d1xnew"];
    assert_eq!(world.rows(lines), all);
    assert_converged(&world, &[&ada, &other]);
}

/// Interleaving 28.
fn a_parent_that_others_added_a_child_to_comes_back_with_its_children<B: Backend>() {
    let world = World::<B>::open(docs());
    let (mut ada, mut other) = (world.synced("ada"), world.synced("ada"));
    world.execute("INSERT INTO line VALUES (20, 'd1', 'unseen')");
    ada.edit("DELETE FROM doc WHERE id IN ('d1', 'd2')");
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (0, 3));
    let lines = "SELECT id FROM line WHERE doc_id <> 'b1' ORDER BY id";
    assert_eq!(world.rows(lines), ["1", "2", "20"]);
    assert_eq!(ada.rows(lines), ["1", "2", "20"]);
    other.sync();
    assert_converged(&world, &[&ada, &other]);
}

on_both_adapters!(
    a_new_parent_and_its_new_children_arrive_in_one_sync,
    a_parent_under_another_key_takes_unseen_children_along,
    a_parent_that_others_added_a_child_to_comes_back_with_its_children,
);
