//! Changes that every remote follows at its next sync, whatever it has pending.

use super::fleet::{BEFORE, Fate, Fleet, ITEM, KEY, rebuilt};
use crate::backend::{Backend, Sqlite};

const KIND: (&str, &str) = ("kind", "kind_id, name, colour");
const ITEM_COLUMNS: &str = "item_id, region, area, note, amount";

/// All of `item` as it was, and more.
fn with(columns: &str) -> [(&'static str, String); 2] {
    let columns = match columns {
        "" => ITEM_COLUMNS.to_owned(),
        more => format!("{ITEM_COLUMNS}, {more}"),
    };
    [(KIND.0, KIND.1.to_owned()), ("item", columns)]
}

/// The change happens in the centre, the publication is deployed again, and nothing is lost.
fn follows<B: Backend>(change: &str, publication: &str, more_columns: &str) -> Fleet<B> {
    let mut fleet = Fleet::<B>::open();
    fleet.world.execute(change);
    let report = fleet.world.deploy_carefully(publication);
    assert_eq!(report.held_up, [], "{report:?}");
    fleet.deploy(publication);
    let tables = with(more_columns);
    let tables = tables
        .each_ref()
        .map(|(table, columns)| (*table, columns.as_str()));
    fleet.assert_arrives(Fate::Kept, &tables);
    fleet
}

/// What one adapter says in this way, and the other in that.
fn either<B: Backend>(sqlite: String, postgres: &str) -> String {
    match B::NAME {
        Sqlite::NAME => sqlite,
        _ => postgres.to_owned(),
    }
}

/// Interleaving 14: a column is added, and no upload writes defaults over what the centre has in it.
fn a_column_that_is_added_reaches_every_remote<B: Backend>() {
    follows::<B>(
        "ALTER TABLE item ADD COLUMN extra TEXT; UPDATE item SET extra = 'of ' || item_id",
        BEFORE,
        "extra",
    );
}

/// Interleaving 14, with a default.
fn a_column_that_is_added_with_a_default_reaches_every_remote<B: Backend>() {
    follows::<B>(
        "ALTER TABLE item ADD COLUMN extra TEXT NOT NULL DEFAULT 'plain';
         UPDATE item SET extra = 'of ' || item_id",
        BEFORE,
        "extra",
    );
}

/// Interleaving 14: without a default the inserts of old remotes are refused at first, and go up
/// with a zero of the type once the remote knows the column.
fn a_column_that_is_added_as_not_null_reaches_every_remote<B: Backend>() {
    let columns = [ITEM, &[("extra", "TEXT NOT NULL")]].concat();
    follows::<B>(
        &either::<B>(
            rebuilt(
                &columns,
                KEY,
                "item_id, region, area, note, amount, price, 'of ' || item_id",
            ),
            "ALTER TABLE item ADD COLUMN extra TEXT; UPDATE item SET extra = 'of ' || item_id;
             ALTER TABLE item ALTER extra SET NOT NULL",
        ),
        BEFORE,
        "extra",
    );
}

/// The columns of `item`, one of them with another type.
fn retyped(column: &str, definition: &'static str) -> Vec<(&'static str, &'static str)> {
    let columns = ITEM.iter().map(|&(name, old)| match name == column {
        true => (name, definition),
        false => (name, old),
    });
    columns.collect()
}

const ALL: &str = "item_id, region, area, note, amount, price";

/// Interleaving 14: a type is altered in the centre.
fn an_integer_that_becomes_wider_reaches_every_remote<B: Backend>() {
    let fleet = follows::<B>(
        &either::<B>(
            rebuilt(&retyped("amount", "BIGINT"), KEY, ALL),
            "ALTER TABLE item ALTER amount TYPE bigint",
        ),
        BEFORE,
        "",
    );
    drop(fleet);
}

fn a_varchar_that_becomes_text_reaches_every_remote<B: Backend>() {
    follows::<B>(
        &either::<B>(
            rebuilt(&retyped("note", "TEXT"), KEY, ALL),
            "ALTER TABLE item ALTER note TYPE text",
        ),
        BEFORE,
        "",
    );
}

/// Interleaving 14: values reach remotes under the new type, and pending ones the centre.
fn an_integer_that_becomes_text_reaches_every_remote<B: Backend>() {
    follows::<B>(
        &either::<B>(
            rebuilt(&retyped("amount", "TEXT"), KEY, ALL),
            "ALTER TABLE item ALTER amount TYPE text",
        ),
        BEFORE,
        "",
    );
}

fn a_decimal_that_gets_more_places_reaches_every_remote<B: Backend>() {
    let mut fleet = follows::<B>(
        &either::<B>(
            rebuilt(&retyped("price", "NUMERIC(12,4)"), KEY, ALL),
            "ALTER TABLE item ALTER price TYPE numeric(12,4)",
        ),
        BEFORE,
        "",
    );
    // A refused row is as the user wrote it.
    let prices = "SELECT DISTINCT price FROM item WHERE region <> 7 ORDER BY 1";
    for device in fleet.devices() {
        assert_eq!(device.rows(prices), ["1.2500", "9.2500"]);
    }
}

const WITH_SHELF: &str = r#"
[[publication.table]]
name = "shelf"
partition = "everyone"
"#;

fn a_table_that_is_added_reaches_every_remote<B: Backend>() {
    let mut fleet = follows::<B>(
        "CREATE TABLE shelf (shelf_id INTEGER NOT NULL PRIMARY KEY, label TEXT);
         INSERT INTO shelf VALUES (1, 'first')",
        &format!("{BEFORE}{WITH_SHELF}"),
        "",
    );
    for device in fleet.devices() {
        assert_eq!(device.rows("SELECT label FROM shelf"), ["first"]);
        device.edit("UPDATE shelf SET label = label || '!'");
        device.sync();
    }
    let label = &fleet.world.rows("SELECT label FROM shelf")[0];
    assert!(label.starts_with("first!"), "{label}");
}

/// The rows are told apart by another column, which remotes have always sent.
fn other_partition_columns_reach_every_remote<B: Backend>() {
    let mut fleet = follows::<B>(
        "INSERT INTO assignment VALUES ('ada', 3), ('ada', 4), ('ada', 5), ('ada', 6), ('ada', 9)",
        &BEFORE.replace("columns = [\"region\"]", "columns = [\"area\"]"),
        "",
    );
    // A remote that loses an area loses its rows.
    fleet
        .world
        .execute("DELETE FROM assignment WHERE region = 3");
    for device in fleet.devices() {
        device.sync();
        assert_eq!(
            device.rows("SELECT count(*) FROM item WHERE area = 3"),
            ["0"]
        );
    }
}

/// What is pending in partitions that the new query does not give is taken once more, also of a
/// remote whose scope was written under an older schema.
fn another_partition_query_reaches_every_remote<B: Backend>() {
    let mut fleet = Fleet::<B>::open();
    let publication = BEFORE.replace(
        "WHERE login = {s.username}",
        "WHERE login = {s.username} AND region = 1",
    );
    fleet.deploy(&publication);
    fleet.assert_arrives(Fate::RefusedOrKept, &[KIND]);
    for device in fleet.devices() {
        let kept = device.refused().len();
        // What was refused before, of a region that nobody has, stays as well.
        let others = "SELECT count(*) FROM item WHERE region NOT IN (1, 7)";
        assert!(kept == 2 || device.value(others) == "0");
    }
    let moved = "SELECT count(*) FROM item WHERE region = 2";
    let moved = fleet.world.rows(moved);
    assert_eq!(moved, ["14"], "an insert and a move of each of the seven");
}

fn tracking_that_is_switched_off_changes_nothing_for_remotes<B: Backend>() {
    let publication = format!("{BEFORE}tracking = \"off\"\n");
    follows::<B>("SELECT 1", &publication, "");
}

fn tracking_by_row_changes_nothing_for_remotes<B: Backend>() {
    let publication = format!("{BEFORE}tracking = \"row\"\n");
    follows::<B>("SELECT 1", &publication, "");
}

/// A constraint that all rows satisfy.
fn constraints_of_the_centre_reach_every_remote<B: Backend>() {
    let columns = [
        retyped("note", "VARCHAR(40) CHECK (trim(note) <> 'bad')"),
        vec![("kind_id", "INTEGER REFERENCES kind (kind_id)")],
    ]
    .concat();
    let tail = format!("{KEY}, UNIQUE (region, item_id, area)");
    let mut fleet = follows::<B>(
        &either::<B>(
            rebuilt(&columns, &tail, &format!("{ALL}, NULL")),
            "ALTER TABLE item ADD CHECK (trim(note) <> 'bad'), ADD UNIQUE (region, item_id, area),
                 ADD COLUMN kind_id INTEGER REFERENCES kind (kind_id)",
        ),
        BEFORE,
        "kind_id",
    );
    let device = fleet.devices().next().expect("there are some");
    assert!(
        device
            .remote_refuses("UPDATE item SET kind_id = 12345 WHERE item_id = 101")
            .contains("FOREIGN KEY")
    );
    device.edit("UPDATE item SET note = 'bad' WHERE item_id = 101");
    assert_eq!(device.sync().refused, 1);
}

/// A column that becomes NOT NULL where all rows have a value.
fn a_column_that_becomes_not_null_reaches_every_remote<B: Backend>() {
    follows::<B>(
        &either::<B>(
            rebuilt(&retyped("amount", "INTEGER NOT NULL"), KEY, ALL),
            "ALTER TABLE item ALTER amount SET NOT NULL",
        ),
        BEFORE,
        "",
    );
}

/// A column that may be NULL from now on, and gets a default.
fn a_column_that_becomes_nullable_with_a_default_reaches_every_remote<B: Backend>() {
    let mut fleet = follows::<B>(
        &either::<B>(
            rebuilt(&retyped("area", "INTEGER DEFAULT 77"), KEY, ALL),
            "ALTER TABLE item ALTER area DROP NOT NULL, ALTER area SET DEFAULT 77",
        ),
        BEFORE,
        "",
    );
    let device = fleet.devices().next().expect("there are some");
    device.edit("INSERT INTO item (item_id, region) VALUES (9000, 1)");
    device.edit("INSERT INTO item (item_id, region, area) VALUES (9001, 1, NULL)");
    device.sync();
    let there = "SELECT area FROM item WHERE item_id IN (9000, 9001) ORDER BY item_id";
    assert_eq!(fleet.world.rows(there), ["77", "NULL"]);
}

/// What remotes have stays with them, and what they write reaches the centre.
fn a_table_that_is_only_uploaded_now_takes_every_change<B: Backend>() {
    let mut fleet = Fleet::<B>::open();
    let publication = format!("{BEFORE}direction = \"upload\"\n");
    assert_eq!(fleet.world.deploy_carefully(&publication).held_up, []);
    fleet.deploy(&publication);
    fleet.assert_arrives(Fate::Kept, &[KIND]);
    let device = fleet.devices().next().expect("there are some");
    device.edit("INSERT INTO item VALUES (9000, 1, 1, 'up', 1, '1.00')");
    device.sync();
    let there = "SELECT note FROM item WHERE item_id = 9000";
    assert_eq!(fleet.world.rows(there), ["up"]);
}

on_both_adapters!(
    a_column_that_is_added_reaches_every_remote,
    a_column_that_is_added_with_a_default_reaches_every_remote,
    a_column_that_is_added_as_not_null_reaches_every_remote,
    an_integer_that_becomes_wider_reaches_every_remote,
    a_varchar_that_becomes_text_reaches_every_remote,
    an_integer_that_becomes_text_reaches_every_remote,
    a_decimal_that_gets_more_places_reaches_every_remote,
    a_table_that_is_added_reaches_every_remote,
    other_partition_columns_reach_every_remote,
    another_partition_query_reaches_every_remote,
    a_table_that_is_only_uploaded_now_takes_every_change,
    tracking_that_is_switched_off_changes_nothing_for_remotes,
    tracking_by_row_changes_nothing_for_remotes,
    constraints_of_the_centre_reach_every_remote,
    a_column_that_becomes_not_null_reaches_every_remote,
    a_column_that_becomes_nullable_with_a_default_reaches_every_remote,
);
