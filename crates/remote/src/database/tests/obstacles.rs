//! What stands in the way of a new schema on the remote itself: the disk, and what the
//! application has made beside and on top of the synced tables. A migration that fails leaves
//! everything as it was, and what it breaks of the application is told.

use super::*;

fn with_note() -> PublicationSchema {
    let mut schema = items();
    let note = column("note", ColumnType::Text, true);
    schema.tables[0].columns.push(note);
    let label = vec![column("id", ColumnType::Integer, false)];
    schema.tables.push(table("label", label, vec![0]));
    schema
}

fn without_amount() -> PublicationSchema {
    let mut schema = items();
    schema.tables[0].columns.pop();
    schema.tables[0].partition.clear();
    schema
}

/// Tries to put a schema in place; an error leaves the remote as it was.
fn try_migrate(
    remote: &mut Remote,
    schema: &PublicationSchema,
) -> Result<ApplySummary, RemoteError> {
    let state = remote.begin();
    let mut applier = remote.applier_of(&state, Some(schema.clone()));
    let result = applier
        .download_begin(0, false)
        .and_then(|()| applier.download_end(b""));
    if let Err(error) = result {
        remote.database = Some(applier.abort());
        return Err(error);
    }
    let (database, result) = applier.commit(1_000);
    remote.database = Some(database);
    result
}

/// A remote with a pending change and things of the application everywhere.
fn busy() -> Remote {
    let remote = with_items();
    remote.run(
        "CREATE TABLE own (id INTEGER PRIMARY KEY, item_id INTEGER REFERENCES item (id)); \
         CREATE VIEW priced AS SELECT id, amount FROM item; \
         CREATE UNIQUE INDEX one_name ON item (name); \
         CREATE TRIGGER watch AFTER UPDATE ON item BEGIN INSERT INTO own (item_id) VALUES (NEW.id); END; \
         CREATE TRIGGER bill AFTER INSERT ON own WHEN NEW.id < 0 \
           BEGIN UPDATE item SET amount = 0 WHERE id = NEW.item_id; END; \
         UPDATE item SET name = 'mine' WHERE id = 1;",
    );
    remote
}

const EVERYTHING: &str = "SELECT type || ' ' || name || ' ' || coalesce(sql, '') \
     FROM sqlite_master WHERE name NOT LIKE 'tidewater%' ORDER BY name";

#[test]
fn a_migration_that_fails_at_any_point_leaves_a_working_remote() {
    let mut remote = busy();
    let state = remote.begin();
    let pending = remote.changes(&state);
    let everything = remote.query(EVERYTHING);
    let rows = remote.query("SELECT * FROM item");
    let (mut steps, mut failures) = (1u64, 0);
    loop {
        let mut left = steps;
        remote.database().connection.progress_handler(
            1,
            Some(move || {
                // Once: what is undone afterwards is not interrupted.
                let before = left;
                left = left.saturating_sub(1);
                before == 1
            }),
        );
        let state = state.clone();
        let database = remote.database.take().unwrap();
        let begun = database.begin_apply(std::slice::from_ref(&state), &[Some(with_note())]);
        let done = match begun {
            Err(refused) => {
                remote.database = Some(refused.database);
                false
            }
            Ok(mut applier) => {
                let applied = applier
                    .download_begin(0, false)
                    .and_then(|()| applier.download_end(b""));
                match applied {
                    Err(_) => {
                        remote.database = Some(applier.abort());
                        false
                    }
                    Ok(()) => {
                        let (database, result) = applier.commit(1_000);
                        remote.database = Some(database);
                        result.is_ok()
                    }
                }
            }
        };
        remote
            .database()
            .connection
            .progress_handler(0, None::<fn() -> bool>);
        if done {
            break;
        }
        failures += 1;
        assert_eq!(remote.query(EVERYTHING), everything);
        assert_eq!(remote.query("SELECT * FROM item"), rows);
        assert_eq!(remote.changes(&state), pending);
        steps += 1 + steps / 12;
    }
    assert!(failures > 40, "only {failures}");
    // What is changed afterwards is tracked under the new schema, by the application's own
    // means as before.
    remote.run("UPDATE item SET note = 'new', name = 'yours' WHERE id = 2");
    assert_eq!(
        remote.query("SELECT item_id FROM own ORDER BY id"),
        ["1", "2"]
    );
    assert_eq!(remote.query("SELECT count(*) FROM label"), ["0"]);
    remote.acknowledge(|_| {});
    let next = remote.upload();
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].new[3], Value::Text("new".into()));
}

#[test]
fn a_full_disk_leaves_a_working_remote() {
    let mut remote = busy();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
         INSERT INTO item SELECT i, 'name ' || i, i FROM n",
    );
    let state = remote.begin();
    let pending = remote.changes(&state);
    assert_eq!(pending.len(), 2992);
    let pages = |remote: &Remote, pragma: &str| -> i64 {
        let connection = &remote.database().connection;
        connection.query_row(pragma, [], |row| row.get(0)).unwrap()
    };
    let count = pages(&remote, "PRAGMA page_count");
    pages(&remote, &format!("PRAGMA max_page_count = {}", count + 3));
    let error = try_migrate(&mut remote, &with_note()).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    assert!(error.hint().contains("disk"), "{}", error.hint());
    assert_eq!(remote.changes(&state), pending);
    assert_eq!(remote.query("SELECT count(*) FROM item"), ["2994"]);
    // Room is made, and the next sync goes through.
    pages(&remote, "PRAGMA max_page_count = 1000000");
    try_migrate(&mut remote, &with_note()).unwrap();
    assert_eq!(
        remote
            .changes(&remote.database().subscriptions().unwrap()[0])
            .len(),
        2992
    );
}

#[test]
fn a_view_or_a_table_of_the_application_in_the_way_is_named_and_everything_works_on() {
    for obstacle in [
        "CREATE TABLE Label (x)",
        "CREATE VIEW label AS SELECT id FROM item",
        "CREATE INDEX label ON own (item_id)",
    ] {
        let mut remote = busy();
        remote.run(obstacle);
        let error = try_migrate(&mut remote, &with_note()).unwrap_err();
        assert!(
            matches!(error, RemoteError::TableInTheWay { .. }),
            "{error}"
        );
        remote.run("UPDATE item SET amount = 11 WHERE id = 1");
        assert_eq!(remote.query("SELECT count(*) FROM own"), ["2"]);
        let sql = match obstacle.split(' ').nth(1) {
            Some("TABLE") => "DROP TABLE label",
            Some("VIEW") => "DROP VIEW label",
            _ => "DROP INDEX label",
        };
        remote.run(sql);
        try_migrate(&mut remote, &with_note()).unwrap();
        assert_eq!(
            remote.query("SELECT name, amount FROM item WHERE id = 1"),
            ["mine"]
        );
    }
}

#[test]
fn what_a_new_schema_breaks_of_the_application_is_told_and_the_rest_stays() {
    let mut remote = busy();
    remote.run(
        "CREATE VIEW named AS SELECT name FROM item; \
         CREATE UNIQUE INDEX one_amount ON item (amount); \
         CREATE TRIGGER guard AFTER UPDATE ON item \
           BEGIN INSERT INTO own (item_id) SELECT NEW.id WHERE NEW.amount < 0; END; \
         CREATE VIEW broken_before AS SELECT absent FROM item;",
    );
    let summary = try_migrate(&mut remote, &without_amount()).unwrap();
    let names = ["one_amount", "guard", "priced", "bill"];
    let told = summary.not_restored;
    assert_eq!(told.len(), names.len(), "{told:#?}");
    for name in names {
        assert!(
            told.iter().any(|sql| sql.contains(name)),
            "{name}: {told:#?}"
        );
    }
    assert_eq!(
        remote.query("SELECT name FROM named ORDER BY name"),
        ["b", "c", "mine"]
    );
    // References of the application's own tables still mean the table.
    remote.run("INSERT INTO own VALUES (77, 3)");
    assert!(
        remote
            .fails("INSERT INTO own VALUES (78, 999)")
            .contains("FOREIGN KEY")
    );
    assert!(
        remote
            .fails("UPDATE item SET name = 'b' WHERE id = 3")
            .contains("UNIQUE")
    );
    assert_eq!(remote.upload().len(), 1);
}
