//! What becomes of uploads: exactly once, in scope, conflicts and refused rows.

use std::collections::BTreeSet;

use tidewater_centre::{CentreError, TableSpec, UploadOutcome};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, ColumnType, Direction};

use crate::fixture::Fixture;
use crate::remote::session_state;
use crate::remote::{TestRemote, delete, insert, result_text, update};
use crate::world::{DeployedCentre, SHOP_DDL, asked, everyone, partitioned, shop};

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

const CUSTOMERS: &str = "SELECT customer_id, region, name, email FROM customer ORDER BY 1";

pub async fn inserts_updates_and_deletes_take_effect<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            // Children first: the centre finds the order.
            insert("purchase", "20|north|40|9.99"),
            insert("customer", "40|north|Nina|NULL"),
            update("customer", "2|north|Niels|NULL", "2|north|Nils|n@x"),
            delete("customer", "1|north|Nora|nora@x"),
            delete("purchase", "10|north|1|1.50"),
        ])
        .await;
    assert_eq!(
        result,
        ["2 inserted, 1 updated, 2 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(
        world.fixture.query(CUSTOMERS).await,
        [
            "2|north|Nils|n@x",
            "3|south|Sven|sven@x",
            "40|north|Nina|NULL"
        ]
    );
    let purchases = "SELECT purchase_id, customer_id FROM purchase ORDER BY 1";
    assert_eq!(world.fixture.query(purchases).await, ["11|3", "20|40"]);
    assert!(world.centre.conflicts().await.unwrap().is_empty());
    assert!(world.centre.refused().await.unwrap().is_empty());
}

pub async fn a_repeated_upload_is_applied_once_and_tells_the_same<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE customer SET name = 'Norbert' WHERE customer_id = 2")
        .await;
    let upload = anna.next_upload(&[
        insert("customer", "40|north|Nina|NULL"),
        insert("customer", "41|north|forbidden|NULL"),
        update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL"),
    ]);
    let UploadOutcome::Applied { result, .. } = anna.apply(upload.clone()).await else {
        panic!("not applied");
    };
    assert_eq!(
        (result.inserts, result.conflicts, result.refused),
        (1, 1, 1)
    );
    // The acknowledgement is lost, the world goes on, the remote tries again (interleaving 6).
    world
        .execute("DELETE FROM customer WHERE customer_id = 40")
        .await;
    let mut elsewhere = world.worker().await;
    for _ in 0..2 {
        let outcome = elsewhere
            .apply(vec![upload.clone()])
            .await
            .unwrap()
            .remove(0);
        let UploadOutcome::AlreadyApplied { result: again } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(again, result);
    }
    let stored = elsewhere.stored_result(anna.id, &upload.publication).await;
    assert_eq!(stored.unwrap(), Some(result));
    assert_eq!(world.centre.conflicts().await.unwrap().len(), 1);
    assert_eq!(world.centre.refused().await.unwrap().len(), 1);
    let count = "SELECT count(*) FROM customer WHERE customer_id = 40";
    assert_eq!(world.fixture.query(count).await, ["0"]);
}

pub async fn an_upload_out_of_sequence_is_not_applied<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("customer", "40|north|Nina|NULL")])
        .await;
    let next = anna.next_upload(&[insert("customer", "41|north|Nora|NULL")]);
    for (sequence, same_id) in [(0, false), (1, false), (3, true), (9, false)] {
        let mut wrong = next.clone();
        wrong.sequence = sequence;
        if !same_id {
            wrong.upload_id.0[15] ^= 1;
        }
        assert!(
            matches!(anna.apply(wrong).await, UploadOutcome::OutOfSequence),
            "sequence {sequence}"
        );
    }
    assert!(matches!(
        anna.apply(next).await,
        UploadOutcome::Applied { .. }
    ));
    let state = session_state(
        &mut anna.worker,
        "anna",
        Some(anna.id),
        &[asked("sales"), asked("other")],
    )
    .await
    .unwrap();
    assert_eq!(state.subscriptions[0].as_ref().unwrap().sequence, 2);
    assert_eq!(state.subscriptions[1], None);
}

pub async fn one_upload_at_two_workers_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for round in 0..5 {
        let id = 40 + round;
        let upload = anna.next_upload(&[insert("customer", &format!("{id}|north|Nina|NULL"))]);
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (mut worker, upload) = (world.worker().await, upload.clone());
            tasks.push(tokio::spawn(async move {
                worker.apply(vec![upload]).await.unwrap().remove(0)
            }));
        }
        let mut applied = 0;
        for task in tasks {
            match task.await.unwrap() {
                UploadOutcome::Applied { .. } => applied += 1,
                UploadOutcome::AlreadyApplied { result } => assert_eq!(result.inserts, 1),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(applied, 1);
    }
}

pub async fn of_two_updates_in_one_list_the_first_wins<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let old = "2|north|Niels|NULL";
    let uploads = vec![
        anna.next_upload(&[update("customer", old, "2|north|Anna's|NULL")]),
        berta.next_upload(&[update("customer", old, "2|north|Berta's|NULL")]),
    ];
    let outcomes = anna.worker.apply(uploads).await.unwrap();
    let texts: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            UploadOutcome::Applied { result, .. } => result_text(&anna.schema, result),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        texts[0],
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(
        texts[1],
        [
            "0 inserted, 0 updated, 0 deleted, 1 conflicts, 0 refused",
            "conflict customer: 2|north|Anna's|NULL"
        ]
    );
    let conflicts = world.centre.conflicts().await.unwrap();
    assert_eq!(conflicts.len(), 1);
    let conflict = &conflicts[0];
    assert_eq!((conflict.remote_id, &*conflict.user), (berta.id, "berta"));
    assert_eq!((&*conflict.table, &*conflict.key), ("customer", "[2]"));
    assert_eq!(conflict.operation, "update");
    let image = |name| {
        Some(format!(
            r#"{{"customer_id":2,"region":"north","name":"{name}","email":null}}"#
        ))
    };
    assert_eq!(conflict.pre_image, image("Niels"));
    assert_eq!(conflict.uploaded, image("Berta's"));
    assert_eq!(conflict.winner, image("Anna's"));
    // The loser's download has nothing to add, nor has it the loser's change.
    berta.download().await;
    anna.download().await;
    assert_eq!(anna.rows("customer"), berta.rows("customer"));
}

pub async fn every_kind_of_conflict_is_found<F: Fixture>() {
    let world = world::<F>().await;
    world
        .execute(
            "INSERT INTO customer VALUES (60, 'north', 'a', NULL), (61, 'north', 'a', NULL),
                 (62, 'north', 'a', NULL), (63, 'north', 'a', NULL), (64, 'north', 'a', NULL)",
        )
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "UPDATE customer SET name = 'b' WHERE customer_id IN (60, 62, 64);
             DELETE FROM customer WHERE customer_id IN (61, 63);
             INSERT INTO customer VALUES (65, 'north', 'b', NULL), (66, 'north', 'c', NULL);",
        )
        .await;
    let result = anna
        .upload(&[
            update("customer", "60|north|a|NULL", "60|north|c|NULL"),
            update("customer", "61|north|a|NULL", "61|north|c|NULL"),
            delete("customer", "62|north|a|NULL"),
            delete("customer", "63|north|a|NULL"),
            update("customer", "64|north|a|NULL", "64|north|b|NULL"),
            insert("customer", "65|north|c|NULL"),
            insert("customer", "66|north|c|NULL"),
        ])
        .await;
    let lines: BTreeSet<_> = result.iter().map(String::as_str).collect();
    assert_eq!(
        lines,
        BTreeSet::from([
            // 66 was inserted, 64 updated and 63 deleted by both alike.
            "1 inserted, 1 updated, 1 deleted, 3 conflicts, 1 refused",
            "conflict customer: 60|north|b|NULL",
            "conflict customer: 62|north|b|NULL",
            // Others refer to customers: no resolver mixes two of them.
            "refused customer [65] Insert key_in_use: key in use: somebody else has inserted \
             another row under it; give this one a new key",
            "gone customer [61]",
        ])
    );
    assert_eq!(
        world
            .fixture
            .query("SELECT customer_id, name FROM customer WHERE customer_id >= 60 ORDER BY 1")
            .await,
        ["60|b", "62|b", "64|b", "65|b", "66|c"]
    );
}

pub async fn what_is_in_effect_already_is_no_conflict<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        insert("purchase", "20|north|40|1.5"),
        update("customer", "1|north|Nora|nora@x", "1|north|Nora B.|nora@x"),
        delete("purchase", "10|north|1|1.50"),
    ];
    let mut berta = TestRemote::synced(&world, "berta").await;
    let everything = "2 inserted, 1 updated, 1 deleted, 0 conflicts, 0 refused";
    assert_eq!(anna.upload(&changes).await, [everything]);
    let rows = || async {
        let customers = "SELECT customer_id, region, name, email FROM customer ORDER BY 1";
        let purchases = "SELECT purchase_id, customer_id FROM purchase ORDER BY 1";
        let mut rows = world.fixture.query(customers).await;
        rows.extend(world.fixture.query(purchases).await);
        rows
    };
    let before = rows().await;
    // The same as another upload, as it is when it is given back; and by another remote,
    // which spells a number differently.
    assert_eq!(anna.upload(&changes).await, [everything]);
    let [one, _, three, four] = changes;
    let spelled = insert("purchase", "20|north|40|1.50");
    let result = berta.upload(&[one, spelled, three, four]).await;
    assert_eq!(result, [everything]);
    assert_eq!(rows().await, before);
    assert_eq!(world.centre.conflicts().await.unwrap(), []);
}

pub async fn what_the_centre_refuses_does_not_block_the_rest<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("customer", "40|north|Nina|NULL"),
            insert("customer", "41|north|NULL|NULL"),
            insert("customer", "42|north|forbidden|NULL"),
            insert("customer", "43|north|Nora 2|nora@x"),
            insert("customer", "forty|north|Bad|NULL"),
            insert("customer", "44|north|Naomi|NULL"),
            update("customer", "2|north|Niels|NULL", "2|north|forbidden|NULL"),
            delete("customer", "1|north|Nora|nora@x"),
            insert("purchase", "20|north|999|1.00"),
            insert("purchase", "21|north|40|1.00"),
            insert("purchase", "22|north|40|a lot"),
        ])
        .await;
    let codes: BTreeSet<_> = result[1..]
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        codes,
        BTreeSet::from([
            "refused customer [1] Delete foreign_key",
            "refused customer [2] Update check",
            "refused customer [41] Insert not_null",
            "refused customer [42] Insert check",
            "refused customer [43] Insert key_in_use",
            "refused customer [forty] Insert bad_value",
            "refused purchase [20] Insert foreign_key",
            "refused purchase [22] Insert bad_value",
        ])
    );
    assert_eq!(
        result[0],
        "3 inserted, 0 updated, 0 deleted, 0 conflicts, 8 refused"
    );
    // Whoever is refused learns which column and what value it was.
    let reason = |key: &str| result.iter().find(|line| line.contains(key)).unwrap();
    assert!(reason("[forty]").contains("customer_id"));
    assert!(reason("[forty]").contains("forty"));
    assert!(reason("purchase [22]").contains("cost"));
    assert!(reason("[41]").contains("name"));
    assert!(reason("[43]").contains("email"));
    assert_eq!(
        world.fixture.query(CUSTOMERS).await,
        [
            "1|north|Nora|nora@x",
            "2|north|Niels|NULL",
            "3|south|Sven|sven@x",
            "40|north|Nina|NULL",
            "44|north|Naomi|NULL",
        ]
    );
    let refused = world.centre.refused().await.unwrap();
    assert_eq!(refused.len(), 8);
    let check = refused
        .iter()
        .find(|refused| refused.key == "[42]")
        .unwrap();
    assert_eq!((&*check.code, &*check.operation), ("check", "insert"));
    assert_eq!(
        check.row,
        r#"{"customer_id":42,"region":"north","name":"forbidden","email":null}"#
    );
    assert_eq!((check.remote_id, &*check.user), (anna.id, "anna"));
}

pub async fn what_triggers_change_beside_an_upload_is_sent<F: Fixture>() {
    let world = world::<F>().await;
    world.execute(&F::stock_trigger()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    // The trigger renames the product 1 and shouts the name of the customer (interleaving 10).
    let result = anna
        .upload(&[insert("customer", "40|north|Nina|NULL")])
        .await;
    assert_eq!(result[1..], ["made customer: 40|north|NINA|NULL"]);
    let expected = ["customer: 40|north|NINA|NULL", "product: 1|tea of Nina"];
    assert_eq!(anna.download().await.rows(), expected[1..]);
    assert_eq!(berta.download().await.rows(), expected);
}

pub async fn a_download_only_table_takes_no_changes<F: Fixture>() {
    let tables = vec![TableSpec {
        direction: Direction::Download,
        ..everyone("product")
    }];
    let world = DeployedCentre::<F>::new(SHOP_DDL, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("product", "3|milk"),
            delete("product", "1|tea"),
            update("product", "2|coffee", "2|mate"),
        ])
        .await;
    assert_eq!(
        result[0],
        "0 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused"
    );
    assert!(
        result[1..]
            .iter()
            .all(|line| line.contains("download_only"))
    );
}

/// Interleaving 18.
pub async fn a_deferred_constraint_hits_only_its_own_upload<F: Fixture>() {
    let ddl = "
        CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY);
        CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY,
            parent_id INTEGER NOT NULL REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        INSERT INTO parent VALUES (1);";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("parent"), everyone("child")]).await;
    let mut remotes = Vec::new();
    let mut uploads = Vec::new();
    for number in 0..50 {
        let mut remote = TestRemote::synced(&world, "anna").await;
        let parent = if number == 25 { 999 } else { 1 };
        uploads.push(remote.next_upload(&[
            insert("child", &format!("{}|1", 1000 + number)),
            insert("child", &format!("{number}|{parent}")),
            insert("child", &format!("{}|{}", 2000 + number, 3000 + number)),
            insert("parent", &format!("{}", 3000 + number)),
        ]));
        remotes.push(remote);
    }
    let outcomes = world.worker().await.apply(uploads).await.unwrap();
    for (number, outcome) in outcomes.iter().enumerate() {
        let UploadOutcome::Applied { result, .. } = outcome else {
            panic!("{outcome:?}");
        };
        let lines = result_text(&remotes[0].schema, result);
        if number == 25 {
            assert_eq!(
                lines[0],
                "3 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
            );
            assert!(lines[1].starts_with("refused child [25] Insert foreign_key"));
        } else {
            let all = "4 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused";
            assert_eq!(lines, [all]);
        }
    }
    let count = world.fixture.query("SELECT count(*) FROM child").await;
    assert_eq!(count, ["149"]);
}

/// Interleaving 16.
pub async fn unique_values_can_be_freed_and_taken_in_one_upload<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("customer", "40|north|New Nora|nora@x"),
            delete("purchase", "10|north|1|1.50"),
            delete("customer", "1|north|Nora|nora@x"),
        ])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused"]
    );
}

pub async fn values_are_compared_by_their_type<F: Fixture>() {
    let ddl = "CREATE TABLE v (id INTEGER NOT NULL PRIMARY KEY, amount NUMERIC(12,2),
                   ratio DOUBLE PRECISION, flag BOOLEAN, day DATE, at TIMESTAMP, note TEXT);
               INSERT INTO v VALUES (1, 1.5, 0.5, TRUE, '2026-01-02', '2026-01-02 03:04:05', 'a')";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("v")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let row = "1|1.50|0.5|1|2026-01-02|2026-01-02T03:04:05.000000|a";
    assert_eq!(anna.rows("v"), [row]);
    let new = "1|1.75|0.25|0|2026-02-28|1999-12-31T23:59:59.000001|A";
    let result = anna.upload(&[update("v", row, new)]).await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // Text is compared to the byte.
    let result = anna
        .upload(&[update(
            "v",
            &new.replace("|A", "|a"),
            &new.replace("|A", "|b"),
        )])
        .await;
    assert!(result[1].starts_with("conflict v: "), "{result:?}");
    let nulls = "2|NULL|NULL|NULL|NULL|NULL|NULL";
    anna.upload(&[insert("v", nulls)]).await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    assert_eq!(berta.rows("v"), [new, nulls]);
    let result = berta.upload(&[delete("v", new), delete("v", nulls)]).await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused"]
    );
}

pub async fn an_upload_with_a_column_twice_fails_alone<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let mut wrong = anna.next_upload(&[insert("customer", "40|north|Nina|NULL")]);
    let columns = &mut wrong.tables[0].begin.columns;
    columns[3].name = columns[2].name.clone();
    let right = berta.next_upload(&[insert("customer", "41|north|Nora 2|NULL")]);
    let outcomes = anna.worker.apply(vec![wrong, right]).await.unwrap();
    let [
        UploadOutcome::Failed {
            error: error @ CentreError::Peer { .. },
        },
        UploadOutcome::Applied { .. },
    ] = outcomes.as_slice()
    else {
        panic!("{outcomes:?}");
    };
    assert_eq!(error.code(), Code::SchemaMismatch);
    // Its number is still free.
    anna.sequence -= 1;
    let result = anna
        .upload(&[insert("customer", "42|north|Nina|NULL")])
        .await;
    assert_eq!(result.len(), 1);
}

pub async fn columns_that_a_remote_does_not_know_are_left_alone<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT)",
        vec![everyone("item")],
    )
    .await;
    world.execute("INSERT INTO item VALUES (1, 'a')").await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("ALTER TABLE item ADD COLUMN price INTEGER DEFAULT 7")
        .await;
    world.deploy().await.unwrap();
    let old_schema = anna.schema.clone();
    assert_eq!(
        TableBegin::for_table(&old_schema.tables[0]).columns.len(),
        2
    );
    assert_eq!(world.schema().tables[0].columns.len(), 3);
    let result = anna
        .upload(&[update("item", "1|a", "1|b"), insert("item", "2|c")])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let items = world
        .fixture
        .query("SELECT id, name, price FROM item ORDER BY 1")
        .await;
    assert_eq!(items, ["1|b|7", "2|c|7"]);
    // With the new schema, the table comes whole to whom nobody knows.
    (anna.schema, anna.before) = (world.schema(), Some(vec![7; 32]));
    let received = anna.download().await;
    assert_eq!(received.replaced, ["item"]);
    assert_eq!(anna.rows("item"), ["1|b|7", "2|c|7"]);
}

pub async fn sql_metacharacters_are_only_characters<F: Fixture>() {
    let odd = r#"we"ird'; DROP TABLE x; -- {s.username} $1 ?1 %s \"#;
    let table = r#"ta"ble '; --"#;
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let ddl = format!(
        "CREATE TABLE {} ({} TEXT NOT NULL PRIMARY KEY, {} TEXT NOT NULL, {} TEXT);
         CREATE TABLE held (login TEXT, part TEXT)",
        quoted(table),
        quoted(odd),
        quoted("select"),
        quoted("na me")
    );
    let values = "SELECT part FROM held WHERE login = {s.username}";
    let world = DeployedCentre::<F>::new(&ddl, vec![partitioned(table, &["select"], values)]).await;
    let text = |value: &str| format!("'{}'", value.replace('\'', "''"));
    let user = r#"o'brien"; --"#;
    world
        .execute(&format!(
            "INSERT INTO held VALUES ({}, {}); INSERT INTO {} VALUES ({}, {}, {})",
            text(user),
            text(odd),
            quoted(table),
            text(odd),
            text(odd),
            text("\u{1f600}'\n")
        ))
        .await;
    let mut remote = TestRemote::synced(&world, user).await;
    assert_eq!(remote.rows(table), [format!("{odd}|{odd}|\u{1f600}'\n")]);
    assert_eq!(
        remote.schema.tables[0].columns[0].column_type,
        ColumnType::Text
    );
    let result = remote
        .upload(&[
            update(
                table,
                &format!("{odd}|{odd}|\u{1f600}'\n"),
                &format!("{odd}|{odd}|');--"),
            ),
            insert(table, &format!("'|{odd}|\"")),
        ])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let mut other = TestRemote::synced(&world, user).await;
    assert_eq!(
        other.rows(table),
        [format!("'|{odd}|\""), format!("{odd}|{odd}|');--")]
    );
    let result = other.upload(&[delete(table, &format!("'|{odd}|\""))]).await;
    assert_eq!(result.len(), 1);
    let received = remote.download().await;
    assert!(received.removals.contains(&format!("{table} [']")));
}

/// The centre's row has the values that the moved one would have, and has never been sent.
pub async fn what_is_under_the_key_that_a_refused_move_wanted_arrives<F: Fixture>() {
    let ddl = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT);
               INSERT INTO item VALUES (3, 'same');";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("item")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("INSERT INTO item VALUES (1, 'same')").await;
    let changes = [
        update("item", "3|same", "1|same"),
        insert("item", "50|other"),
    ];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    let received = anna.download().await;
    assert_eq!(received.upserts, ["item: 1|same"]);
}
