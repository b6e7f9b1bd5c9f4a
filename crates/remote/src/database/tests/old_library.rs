//! The application's own SQLite may be of 2016: it can read and write a synced file all the same,
//! and what it writes is tracked.

use tidewater_protocol::{ForeignKey, ForeignKeyAction};
use tidewater_testing::old_sqlite;

use super::*;

/// A table for each type of a key, and a family with references of every kind.
fn schema() -> PublicationSchema {
    let types = [
        ColumnType::Integer,
        ColumnType::Boolean,
        ColumnType::Real,
        ColumnType::Text,
        ColumnType::Bytes,
        ColumnType::Uuid,
        ColumnType::Decimal { scale: None },
        ColumnType::Decimal { scale: Some(0) },
        ColumnType::Decimal { scale: Some(2) },
        ColumnType::Date,
        ColumnType::Time,
        ColumnType::Timestamp,
        ColumnType::TimestampTz,
    ];
    let mut tables: Vec<Table> = types
        .iter()
        .enumerate()
        .map(|(number, &column_type)| {
            let columns = vec![
                column("key", column_type, false),
                column("value", column_type, true),
            ];
            table(&format!("of type {number}"), columns, vec![0])
        })
        .collect();
    for (name, acts) in [
        ("cascade", ForeignKeyAction::Cascade),
        ("set null", ForeignKeyAction::SetNull),
    ] {
        let mut child = table(
            name,
            vec![
                column("id", ColumnType::Integer, false),
                column("item", ColumnType::Integer, true),
            ],
            vec![0],
        );
        child.foreign_keys = vec![ForeignKey {
            columns: vec![1],
            parent: "item".into(),
            parent_columns: vec!["id".into()],
            on_delete: acts,
            on_update: ForeignKeyAction::Cascade,
        }];
        child.partition = vec![1];
        tables.push(child);
    }
    let mut read_only = table(
        "read only",
        vec![column("id", ColumnType::Text, false)],
        vec![0],
    );
    read_only.direction = Direction::Download;
    let mut item = items().tables.remove(0);
    item.unique = vec![vec![1, 2]];
    item.columns[2].default = Some("7".into());
    tables.insert(0, item);
    tables.push(read_only);
    publication(tables)
}

const VALUES: [&str; 13] = [
    "1",
    "1",
    "0.5",
    "'a'",
    "x'00'",
    "'0f8fad5b-d9cb-469f-a165-70867728950e'",
    "'1.5'",
    "'12'",
    "'1.50'",
    "'2026-02-28'",
    "'23:59:59.999999'",
    "'1999-12-31T23:59:59.000001'",
    "'0001-01-01T00:00:00.000000Z'",
];

#[test]
fn a_library_of_2016_reads_and_writes_a_synced_file() {
    let mut remote = Remote::new(schema());
    // Rebuilt without our CHECKs, with a rowid, and with unique indexes of the application.
    remote.run(
        "DROP TABLE \"of type 12\"; \
         CREATE TABLE \"of type 12\" (\"key\" TEXT PRIMARY KEY NOT NULL, value TEXT); \
         CREATE UNIQUE INDEX own ON item (amount, name); \
         CREATE UNIQUE INDEX low ON \"cascade\" (lower(item)) WHERE item > 1000",
    );
    remote.begin();
    let old = |sql: &str| old_sqlite(&remote.path(), &format!("PRAGMA foreign_keys = 1; {sql}"));
    assert!(old("SELECT sqlite_version()").unwrap()[0].starts_with("3.13."));
    for (number, value) in VALUES.iter().enumerate() {
        old(&format!(
            "INSERT INTO \"of type {number}\" VALUES ({value}, {value}); \
             UPDATE \"of type {number}\" SET value = NULL; \
             SELECT * FROM \"of type {number}\" WHERE \"key\" = {value}"
        ))
        .unwrap();
    }
    old(
        "INSERT INTO item (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'); \
         INSERT INTO \"cascade\" VALUES (1, 1), (2, 2); INSERT INTO \"set null\" VALUES (1, 1); \
         INSERT OR IGNORE INTO item VALUES (1, 'x', 1); REPLACE INTO item VALUES (5, 'd', 7); \
         UPDATE OR IGNORE item SET id = 1 WHERE id = 2; UPDATE OR REPLACE item SET id = 6 \
         WHERE id = 3",
    )
    .unwrap();
    old("INSERT INTO tidewater_outbox (name, arguments, deadline) \
         VALUES ('p', '{}', '2026-11-26T10:00:00Z'); \
         INSERT INTO tidewater_interest (space, subject) VALUES ('field', '>'); \
         DELETE FROM tidewater_inbox")
    .unwrap();
    let key = old("SELECT length(key) || state FROM tidewater_outbox").unwrap();
    assert_eq!(key, ["16pending"]);
    let error = old("INSERT INTO \"read only\" VALUES ('x')").unwrap_err();
    assert!(error.contains("is download-only"), "{error}");
    assert_eq!(remote.upload().len(), VALUES.len() + 4 + 2 + 1);
    remote.acknowledge(|_| {});

    let old = |sql: &str| old_sqlite(&remote.path(), &format!("PRAGMA foreign_keys = 1; {sql}"));
    old(
        "UPDATE item SET id = 10 WHERE id = 1; DELETE FROM item WHERE id = 2; \
         UPDATE item SET name = 'e' WHERE id = 5; DELETE FROM item WHERE id = 5; \
         INSERT INTO item VALUES (5, 'again', 50)",
    )
    .unwrap();
    let changes = remote.upload();
    let told: Vec<(&str, Op)> = changes
        .iter()
        .map(|change| (change.table.as_str(), change.op))
        .collect();
    let expected = [
        ("item", Op::Update),
        ("item", Op::Delete),
        ("item", Op::Update),
        ("cascade", Op::Update),
        ("cascade", Op::Delete),
        ("set null", Op::Update),
    ];
    assert_eq!(told, expected);
    assert_eq!(changes[0], update(&item(1, "a", 7), &item(10, "a", 7)));
    let rows = old_sqlite(&remote.path(), "SELECT id, name FROM item ORDER BY id").unwrap();
    assert_eq!(rows, ["5|again", "6|c", "10|a"]);
}
