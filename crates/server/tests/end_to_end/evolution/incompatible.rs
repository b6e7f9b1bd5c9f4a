//! Changes that hold up what remotes have pending.

use super::fleet::{BEFORE, Fate, Fleet, ITEM, KEY, rebuilt};
use crate::backend::{Backend, Sqlite};

const KIND: (&str, &str) = ("kind", "kind_id, name, colour");

fn goes_ahead<B: Backend>(change: &str, publication: &str, tables: &[(&str, &str)]) -> Fleet<B> {
    let item = match change.contains("article") {
        true => "article",
        false => "item",
    };
    let mut fleet = Fleet::<B>::open();
    fleet.world.execute(change);
    // Deploying is refused at first, with the list of all remotes.
    let report = fleet.world.deploy_carefully(publication);
    assert_eq!(report.held_up.len(), fleet.devices().count(), "{report:?}");
    fleet.deploy(publication);
    fleet.item = item;
    fleet.assert_arrives(Fate::RefusedOrKept, tables);
    fleet
}

fn either<B: Backend>(sqlite: String, postgres: &str) -> String {
    match B::NAME {
        Sqlite::NAME => sqlite,
        _ => postgres.to_owned(),
    }
}

/// What was changed in the column stays with the remote, with its values.
fn a_column_that_is_dropped_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "ALTER TABLE item DROP COLUMN amount",
        BEFORE,
        &[KIND, ("item", "item_id, region, area, note")],
    );
}

fn a_column_that_leaves_the_publication_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "SELECT 1",
        &format!("{BEFORE}columns = [\"item_id\", \"region\", \"area\", \"note\", \"price\"]\n"),
        &[KIND, ("item", "item_id, region, area, note")],
    );
}

/// The remotes hear of it only when their changes have been acknowledged.
fn a_column_that_leaves_before_an_upload_alone_loses_no_change<B: Backend>() {
    let columns = "columns = [\"item_id\", \"region\", \"area\", \"note\", \"price\"]";
    let mut fleet = Fleet::<B>::open();
    fleet.deploy(&format!("{BEFORE}{columns}\n"));
    fleet.upload_alone();
    let tables = [KIND, ("item", "item_id, region, area, note")];
    fleet.assert_arrives(Fate::RefusedOrKept, &tables);
}

fn a_column_that_is_renamed_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "ALTER TABLE item RENAME COLUMN note TO remark",
        BEFORE,
        &[KIND, ("item", "item_id, region, area, remark, amount")],
    );
}

fn a_column_of_a_narrower_type_loses_no_change<B: Backend>() {
    let columns: Vec<_> = ITEM
        .iter()
        .map(|&(name, old)| match name {
            "note" => (name, "INTEGER"),
            _ => (name, old),
        })
        .collect();
    goes_ahead::<B>(
        &either::<B>(
            rebuilt(
                &columns,
                KEY,
                "item_id, region, area, length(note), amount, price",
            ),
            "ALTER TABLE item ALTER note TYPE integer USING length(note)",
        ),
        BEFORE,
        &[KIND, ("item", "item_id, region, area, note, amount")],
    );
}

fn a_decimal_that_gets_fewer_places_loses_no_change<B: Backend>() {
    let columns: Vec<_> = ITEM
        .iter()
        .map(|&(name, old)| match name {
            "price" => (name, "NUMERIC(10,1)"),
            _ => (name, old),
        })
        .collect();
    goes_ahead::<B>(
        &either::<B>(
            rebuilt(
                &columns,
                KEY,
                "item_id, region, area, note, amount, round(price, 1)",
            ),
            "ALTER TABLE item ALTER price TYPE numeric(10,1)",
        ),
        BEFORE,
        &[KIND, ("item", "item_id, region, area, note, amount")],
    );
}

const ONLY_KIND: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "kind"
partition = "everyone"
"#;

fn a_table_that_leaves_loses_no_change<B: Backend>() {
    let mut fleet = goes_ahead::<B>("SELECT 1", ONLY_KIND, &[KIND]);
    for device in fleet.devices() {
        let tables = "SELECT count(*) FROM sqlite_master WHERE name LIKE '%item%'";
        assert_eq!(device.value(tables), "0");
    }
}

/// What was refused because its table left is in the way of nothing when it comes back.
fn a_table_that_comes_back_after_it_left_is_filled_again<B: Backend>() {
    let mut fleet = goes_ahead::<B>("SELECT 1", ONLY_KIND, &[KIND]);
    assert_eq!(fleet.world.deploy_carefully(BEFORE).held_up, []);
    fleet.deploy(BEFORE);
    let tables = [KIND, ("item", "item_id, region, area, note, amount")];
    fleet.assert_arrives(Fate::RefusedOrKept, &tables);
}

fn a_table_that_is_renamed_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "ALTER TABLE item RENAME TO article",
        &BEFORE.replace("\"item\"", "\"article\""),
        &[KIND, ("article", "item_id, region, area, note, amount")],
    );
}

fn another_key_loses_no_change<B: Backend>() {
    const OTHER: &str = "PRIMARY KEY (item_id, region)";
    let all = "item_id, region, area, note, amount, price";
    goes_ahead::<B>(
        &either::<B>(
            rebuilt(ITEM, OTHER, all),
            "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (item_id, region)",
        ),
        BEFORE,
        &[KIND, ("item", "item_id, region, area, note, amount")],
    );
}

/// The partition column was not published before: what was recorded does not tell who holds it.
fn a_partition_column_that_remotes_never_sent_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "ALTER TABLE item ADD COLUMN zone INTEGER NOT NULL DEFAULT 1",
        &BEFORE.replace("columns = [\"region\"]", "columns = [\"zone\"]"),
        &[KIND, ("item", "item_id, region, area, note, amount, zone")],
    );
}

fn a_table_that_is_only_downloaded_now_loses_no_change<B: Backend>() {
    goes_ahead::<B>(
        "SELECT 1",
        &format!("{BEFORE}direction = \"download\"\n"),
        &[KIND, ("item", "item_id, region, area, note, amount")],
    );
}

on_both_adapters!(
    a_column_that_is_dropped_loses_no_change,
    a_column_that_leaves_the_publication_loses_no_change,
    a_column_that_leaves_before_an_upload_alone_loses_no_change,
    a_column_that_is_renamed_loses_no_change,
    a_column_of_a_narrower_type_loses_no_change,
    a_decimal_that_gets_fewer_places_loses_no_change,
    a_table_that_leaves_loses_no_change,
    a_table_that_comes_back_after_it_left_is_filled_again,
    a_table_that_is_renamed_loses_no_change,
    another_key_loses_no_change,
    a_partition_column_that_remotes_never_sent_loses_no_change,
    a_table_that_is_only_downloaded_now_loses_no_change,
);
