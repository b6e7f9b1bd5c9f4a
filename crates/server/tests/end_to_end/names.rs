//! Names that an application may give its tables, and what is called after them.

use crate::backend::Backend;
use crate::scenario::Scenario;
use crate::world::World;

/// What stands before a table's name in the names of a remote's triggers, tables and indexes, or did.
const KINDS: [&str; 20] = [
    "displaces",
    "displacing_insert",
    "displacing",
    "over",
    "rekeyed",
    "from",
    "insert",
    "update",
    "delete",
    "forget",
    "identity",
    "spelling",
    "change",
    "former_key",
    "key",
    "index",
    "1",
    "index_1",
    "_",
    "",
];

/// Names that differ in the last of as many bytes as PostgreSQL keeps.
const LONG: usize = 63;

fn tables() -> Vec<String> {
    let long = |last: char| format!("{}{last}", "l".repeat(LONG - 1));
    let of_kinds = KINDS.iter().map(|kind| match *kind {
        "" => "bin".to_owned(),
        kind => format!("{kind}_bin"),
    });
    of_kinds.chain(['x', 'y'].map(long)).collect()
}

fn scenario() -> Scenario {
    let (mut schema, mut publication) = (
        String::new(),
        "[[publication]]\nname = \"main\"\n".to_owned(),
    );
    for table in tables() {
        schema.push_str(&format!(
            "CREATE TABLE \"{table}\" (id TEXT NOT NULL PRIMARY KEY, code INTEGER NOT NULL UNIQUE);\n"
        ));
        publication.push_str(&format!(
            "[[publication.table]]\nname = \"{table}\"\npartition = \"everyone\"\n"
        ));
    }
    Scenario {
        schema,
        publication: publication.leak(),
        tables: &[],
        users: &["ada", "bob"],
        limits: "",
    }
}

fn the_changes_of_each_table_go_up_whatever_the_others_are_called<B: Backend>() {
    let world = World::<B>::open(scenario());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    for (number, table) in tables().iter().enumerate() {
        // Through an index of the application's own, REPLACE displaces rows.
        ada.edit(&format!(
            "CREATE UNIQUE INDEX own_{number} ON \"{table}\" (code);
             INSERT INTO \"{table}\" VALUES ('a', 1), ('b', 2), ('c', 3);"
        ));
    }
    assert_eq!(ada.sync().refused, 0);
    for table in tables() {
        let change = format!(
            "REPLACE INTO \"{table}\" VALUES ('d', 1);
             UPDATE \"{table}\" SET id = 'e' WHERE id = 'b';
             DELETE FROM \"{table}\" WHERE id = 'c'"
        );
        ada.edit(&change);
    }
    assert_eq!(ada.sync().refused, 0);
    bob.sync();
    for table in tables() {
        let rows = format!("SELECT id, code FROM \"{table}\" ORDER BY id");
        let expected = ["d|1", "e|2"];
        assert_eq!(world.rows(&rows), expected, "{table}");
        assert_eq!(bob.rows(&rows), expected, "{table}");
    }
}

on_both_adapters!(the_changes_of_each_table_go_up_whatever_the_others_are_called);
