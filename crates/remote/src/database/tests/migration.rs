//! Facts about schemas that arrive, change and go.

use super::*;
use crate::database::RowSelection;

const ROWS: &str = "SELECT id || ':' || name FROM item ORDER BY id";

fn with_column(name: &str, nullable: bool) -> PublicationSchema {
    let mut schema = items();
    schema.tables[0]
        .columns
        .push(column(name, ColumnType::Integer, nullable));
    schema
}

/// Interleaving 14, the remote's side.
#[test]
fn an_added_column_reaches_pending_rows_and_no_upload_writes_defaults_over_it() {
    for nullable in [true, false] {
        let mut remote = with_items();
        remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
        let row = |id, name, amount, extra| {
            let [id, name, amount] = item(id, name, amount);
            [id, name, amount, Datum::Integer(extra)]
        };
        remote.download_schema(Some(with_column("extra", nullable)), |server| {
            server.replace("item", |rows| {
                rows.row(Op::Upsert, &row(1, "a", 10, 111));
                rows.row(Op::Upsert, &row(2, "b", 20, 222));
            });
        });
        assert_eq!(remote.query(ROWS), ["1:mine", "2:b"]);
        assert_eq!(
            remote.upload(),
            [update(&row(1, "a", 10, 111), &row(1, "mine", 10, 111))]
        );
    }
}

#[test]
fn a_dropped_column_goes_and_pending_changes_stay() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine', amount = 11 WHERE id = 1");
    remote.run("DELETE FROM item WHERE id = 2");
    let mut schema = items();
    schema.tables[0].columns.pop();
    schema.tables[0].partition.clear();
    let row = |id, name| [Datum::Integer(id), Datum::Text(name)];
    remote.download_schema(Some(schema), |server| {
        server.replace("item", |rows| {
            rows.row(Op::Upsert, &row(1, "a"));
            rows.row(Op::Upsert, &row(3, "c"));
        });
    });
    assert_eq!(remote.query(ROWS), ["1:mine", "3:c"]);
    assert_eq!(
        remote.upload(),
        [update(&row(1, "a"), &row(1, "mine")), delete(&row(2, "b"))]
    );
}

#[test]
fn added_and_dropped_tables_come_and_go_and_pending_values_are_kept() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let other = table(
        "other",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    );
    remote.download_schema(Some(publication(vec![other])), |server| {
        server.replace("other", |rows| rows.row(Op::Upsert, &[Datum::Integer(1)]));
    });
    assert_eq!(
        remote.query("SELECT name FROM sqlite_master WHERE name LIKE '%item%'"),
        Vec::<String>::new()
    );
    assert_eq!(remote.query("SELECT id FROM other"), ["1"]);
    let refused = remote.database().refused().unwrap();
    assert_eq!(
        refused[0].values.as_deref(),
        Some(r#"{"amount":10,"id":1,"name":"mine"}"#)
    );
    assert_eq!(refused[0].at_ms, 1_000);
    remote.acknowledge(|_| {});
    remote.run("DELETE FROM other");
    assert_eq!(remote.upload().len(), 1, "the new table is tracked");
}

/// The rows of the table that goes are refused in the sync in which it goes.
#[test]
fn changes_refused_because_their_table_goes_keep_their_values_and_are_counted_once() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         INSERT INTO item VALUES (9, 'new', 90);",
    );
    let state = remote.begin();
    remote.run("INSERT INTO item VALUES (10, 'later', 90), (11, 'gone', 1)");
    remote.run("DELETE FROM item WHERE id = 11");
    let other = table(
        "other",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    );
    let mut applier = remote.applier_of(&state, Some(publication(vec![other])));
    applier.result_begin(0).unwrap();
    let schema = remote.schema.clone();
    let mut server = Sender {
        applier: &mut applier,
        schema: &schema,
    };
    server.table("item", |rows| {
        for (id, op) in [(1, Op::Update), (2, Op::Delete), (9, Op::Insert)] {
            rows.refused(&[Datum::Integer(id)], op, 708, "gone");
        }
    });
    applier.result_end().unwrap();
    applier.download_begin(0, false).unwrap();
    applier.download_end(b"").unwrap();
    let summary = remote.commit(applier);
    assert_eq!((summary.refused, summary.refused_rows.len()), (4, 4));
    let refused = remote.database().refused().unwrap();
    let kept: Vec<(&str, &str, Option<&str>)> = refused
        .iter()
        .map(|it| (&*it.operation, &*it.code, it.values.as_deref()))
        .collect();
    let code = "not_published";
    assert_eq!(
        kept,
        [
            (
                "update",
                code,
                Some(r#"{"amount":10,"id":1,"name":"mine"}"#)
            ),
            ("delete", code, Some(r#"{"id":2}"#)),
            ("insert", code, Some(r#"{"amount":90,"id":9,"name":"new"}"#)),
            (
                "insert",
                code,
                Some(r#"{"amount":90,"id":10,"name":"later"}"#)
            ),
        ]
    );
    assert!(refused.iter().all(|it| it.sequence == 1), "{refused:?}");
    // The table has no line in the state any more, its refused changes still count.
    assert_eq!(remote.database().status().unwrap().refused, 4);
    assert_eq!(remote.upload(), []);
}

/// The centre keeps what an upload says of a column that has left, under the upload's number.
#[test]
fn the_value_of_a_dropped_column_is_given_up_under_the_number_of_its_upload() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 11 WHERE id = 1");
    let state = remote.begin();
    let mut without = items();
    without.tables[0].columns.pop();
    without.tables[0].partition.clear();
    let mut applier = remote.applier_of(&state, Some(publication(without.tables)));
    applier.result_begin(0).unwrap();
    applier.result_end().unwrap();
    applier.download_begin(0, false).unwrap();
    applier.download_end(b"").unwrap();
    remote.commit(applier);
    let kept = remote.database().refused().unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let all = RowSelection::All;
    assert_eq!(remote.database_mut().discard_refused(all).unwrap(), 1);
    let state = remote.begin();
    let told = remote.database().given_up(&state).unwrap();
    let told: Vec<_> = told.iter().map(|it| (&*it.key, it.sequence)).collect();
    assert_eq!(told, [("[1]", 1)]);
}

#[test]
fn another_key_makes_another_table() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let mut schema = items();
    schema.tables[0].key = vec![0, 2];
    remote.download_schema(Some(schema), |server| {
        server.replace("item", |rows| rows.row(Op::Upsert, &item(1, "a", 10)));
    });
    assert_eq!(remote.query(ROWS), ["1:a"]);
    assert_eq!(remote.database().refused().unwrap().len(), 1);
    assert_eq!(remote.upload(), []);
}

#[test]
fn indexes_and_triggers_of_the_application_survive_where_they_can() {
    let mut remote = with_items();
    remote.run(
        "CREATE TABLE log (id); CREATE INDEX own ON item (name, amount); \
         CREATE INDEX doomed ON item (lower(amount)); \
         CREATE VIEW names AS SELECT name FROM item; \
         CREATE TRIGGER audit AFTER INSERT ON item BEGIN INSERT INTO log VALUES (NEW.id); END;",
    );
    let row = |id, name, amount| {
        let [id, name, amount] = item(id, name, amount);
        [id, name, amount, Datum::Null]
    };
    let summary = remote.download_schema(Some(with_column("extra", true)), |server| {
        server.replace("item", |rows| rows.row(Op::Upsert, &row(4, "d", 4)));
    });
    assert_eq!(summary.not_restored, Vec::<String>::new());
    let mut without = items();
    without.tables[0].columns.pop();
    without.tables[0].partition.clear();
    let summary = remote.download_schema(Some(without), |server| {
        server.replace("item", |rows| {
            rows.row(Op::Upsert, &[Datum::Integer(5), Datum::Text("e")]);
        });
    });
    assert_eq!(
        summary.not_restored.len(),
        2,
        "both indexes need the dropped column"
    );
    assert_eq!(remote.query("SELECT name FROM names"), ["e"]);
    remote.run("INSERT INTO item VALUES (6, 'f')");
    assert!(remote.query("SELECT id FROM log").contains(&"6".to_owned()));
}

#[test]
fn a_table_in_the_way_is_named_and_nothing_is_changed() {
    let mut remote = with_items();
    remote.run("CREATE TABLE Other (mine); INSERT INTO Other VALUES ('precious')");
    let mut schema = items();
    schema.tables.push(table(
        "other",
        vec![column("id", ColumnType::Integer, false)],
        vec![0],
    ));
    let mut applier = remote.applier(Some(schema));
    let error = applier.download_begin(0, false).unwrap_err();
    assert!(error.to_string().contains("\"other\""), "{error}");
    assert_eq!(error.code(), tidewater_protocol::Code::TableInTheWay);
    remote.database = Some(applier.abort());
    assert_eq!(remote.query("SELECT mine FROM Other"), ["precious"]);
    assert_eq!(remote.query(ROWS).len(), 3);
}

#[test]
fn a_table_in_two_publications_is_an_error_that_names_both() {
    let mut remote = with_items();
    let database = remote.database_mut();
    database
        .subscribe("tcp://127.0.0.1", "ann", &["stock"])
        .unwrap();
    let states = database
        .begin_sync(SyncDirection::Both, false, &mut || UploadId([1; 16]))
        .unwrap();
    let second = PublicationSchema {
        name: "stock".into(),
        ..items()
    };
    let database = remote.database.take().unwrap();
    let mut applier = database
        .begin_apply(&states, &[None, Some(second)])
        .unwrap();
    let error = applier.download_begin(1, false).unwrap_err().to_string();
    assert!(
        error.contains("\"sales\"") && error.contains("\"stock\""),
        "{error}"
    );
}

#[test]
fn a_schema_that_sqlite_cannot_hold_is_refused() {
    let mut twice = items();
    twice.tables[0]
        .columns
        .push(column("NAME", ColumnType::Text, true));
    let mut reserved = items();
    reserved.tables[0].name = "tidewater_state".into();
    let mut injected = items();
    injected.tables[0].columns[1].default = Some("0); DROP TABLE item; --".into());
    for schema in [twice, reserved, injected] {
        let mut remote = with_items();
        let mut applier = remote.applier(Some(schema));
        let error = applier.download_begin(0, false).unwrap_err();
        assert!(
            matches!(error, RemoteError::SchemaUnusable { .. }),
            "{error}"
        );
    }
}

#[test]
fn unique_constraints_and_references_become_plain_indexes() {
    let mut schema = items();
    schema.tables[0].unique = vec![vec![1], vec![0]];
    let mut remote = Remote::new(schema);
    assert_eq!(
        remote.query(
            "SELECT sql FROM sqlite_master WHERE tbl_name = 'item' AND type = 'index' AND sql IS NOT NULL ORDER BY name"
        ),
        [
            "CREATE INDEX \"tidewater_index_1_item\" ON \"item\" (\"name\")",
        ]
    );
    remote.run("INSERT INTO item VALUES (1, 'same', 1), (2, 'same', 2)");
    assert_eq!(remote.upload().len(), 2);
}
