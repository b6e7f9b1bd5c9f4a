//! What becomes of uploads: exactly once, in scope, conflicts and refused rows.

use std::collections::BTreeSet;

use tidewater_consolidated::{CentreError, TableSpec, UploadOutcome};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, ColumnType, Direction};

use crate::fixture::Fixture;
use crate::remote::{Change, Remote, delete, insert, result_text, update};
use crate::world::{REGIONS, SHOP_DDL, World, asked, everyone, partitioned, shop};

async fn world<F: Fixture>() -> World<F> {
    World::new(SHOP_DDL, shop()).await
}

const CUSTOMERS: &str = "SELECT customer_id, region, name, email FROM customer ORDER BY 1";

pub async fn inserts_updates_and_deletes_take_effect<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
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
    // The acknowledgement is lost, the world goes on, the remote tries again (CASES 6).
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
    let mut anna = Remote::synced(&world, "anna").await;
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
    let state = anna
        .worker
        .session_state("anna", Some(anna.id), &[asked("sales"), asked("other")])
        .await
        .unwrap();
    assert_eq!(state.subscriptions[0].as_ref().unwrap().sequence, 2);
    assert_eq!(state.subscriptions[1], None);
}

pub async fn one_upload_at_two_workers_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
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
            "1 inserted, 1 updated, 1 deleted, 4 conflicts, 0 refused",
            "conflict customer: 60|north|b|NULL",
            "conflict customer: 62|north|b|NULL",
            "conflict customer: 65|north|b|NULL",
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
    let mut anna = Remote::synced(&world, "anna").await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        insert("purchase", "20|north|40|1.5"),
        update("customer", "1|north|Nora|nora@x", "1|north|Nora B.|nora@x"),
        delete("purchase", "10|north|1|1.50"),
    ];
    let mut berta = Remote::synced(&world, "berta").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
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

pub async fn rows_outside_of_the_scope_are_neither_touched_nor_shown<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            // Another's row, as insert, update and delete, with a guessed pre-image.
            insert("customer", "3|north|Mine|NULL"),
            update("customer", "3|south|Sven|sven@x", "3|north|Mine|NULL"),
            delete("customer", "3|south|Sven|sven@x"),
            // Own rows that would leave the scope.
            insert("customer", "70|south|Away|NULL"),
            update("customer", "2|north|Niels|NULL", "2|south|Niels|NULL"),
        ])
        .await;
    let lines: BTreeSet<_> = result.iter().map(String::as_str).collect();
    let out = "out_of_scope: this row is not in your partitions";
    assert_eq!(
        lines,
        BTreeSet::from([
            "0 inserted, 0 updated, 0 deleted, 0 conflicts, 5 refused",
            "refused customer [3] Insert key_in_use: key in use",
            &format!("refused customer [3] Update {out}"),
            &format!("refused customer [3] Delete {out}"),
            &format!("refused customer [70] Insert {out}"),
            &format!("refused customer [2] Update {out}"),
        ])
    );
    for refused in world.centre.refused().await.unwrap() {
        assert!(!refused.reason.contains("Sven"), "{}", refused.reason);
    }
    // A unique value that a row out of scope has: only that it is in use.
    let result = anna
        .upload(&[insert("customer", "71|north|Spy|sven@x")])
        .await;
    assert!(result[1].starts_with("refused customer [71] Insert key_in_use"));
    assert!(!result[1].contains("Sven") && !result[1].contains("south"));
    assert_eq!(
        world.fixture.query(CUSTOMERS).await,
        [
            "1|north|Nora|nora@x",
            "2|north|Niels|NULL",
            "3|south|Sven|sven@x"
        ]
    );
}

pub async fn changes_of_a_lost_partition_are_taken_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute("UPDATE visit_plan SET region = 'south' WHERE login = 'anna'")
        .await;
    // Made while the partition was held: taken under the last signed scope.
    let result = anna
        .upload(&[update(
            "customer",
            "2|north|Niels|NULL",
            "2|north|Nils|NULL",
        )])
        .await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // Once only, also when the download never happened.
    let result = anna
        .upload(&[update("customer", "2|north|Nils|NULL", "2|north|N|NULL")])
        .await;
    assert!(result[1].contains("out_of_scope"), "{result:?}");
    anna.download().await;
    let result = anna
        .upload(&[update("customer", "2|north|Nils|NULL", "2|north|N|NULL")])
        .await;
    assert!(result[1].contains("out_of_scope"), "{result:?}");
    let result = anna
        .upload(&[update("customer", "3|south|Sven|sven@x", "3|south|S|NULL")])
        .await;
    assert_eq!(result.len(), 1);
}

pub async fn a_replayed_old_scope_is_refused<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let old = anna.checkpoint.clone();
    // Two scopes later it does not count any more (CASES 20).
    for region in ["west", "east"] {
        world
            .execute(&format!(
                "UPDATE visit_plan SET region = '{region}' WHERE login = 'anna'"
            ))
            .await;
        assert!(anna.download().await.scope_changed);
    }
    anna.checkpoint = old;
    let result = anna
        .upload(&[update("customer", "2|north|Niels|NULL", "2|north|N|NULL")])
        .await;
    assert_eq!(
        result[1],
        "refused customer [2] Update out_of_scope: this row is not in your partitions"
    );
    // A download under it is right all the same: what it speaks of is removed.
    let received = anna.download().await;
    assert!(received.removals.contains(&"customer {north}".to_owned()));
}

/// Moves a user's visits.
async fn visits<F: Fixture>(world: &World<F>, region: &str) {
    let sql = format!("UPDATE visit_plan SET region = '{region}' WHERE login = 'anna'");
    world.execute(&sql).await;
}

pub async fn a_scope_is_spent_when_the_next_one_was_presented<F: Fixture>() {
    let of_the_north = || [update("customer", "2|north|Niels|NULL", "2|north|N|NULL")];
    let world = world::<F>().await;
    for by_upload in [true, false] {
        visits(&world, "north").await;
        let mut anna = Remote::synced(&world, "anna").await;
        let old = anna.checkpoint.clone();
        visits(&world, "west").await;
        assert!(anna.download().await.scope_changed);
        if by_upload {
            let change = [insert("customer", "50|west|Willa|NULL")];
            assert_eq!(anna.upload(&change).await.len(), 1);
        } else {
            anna.download().await;
            // It is noted once.
            assert!(anna.download().await.checkpoint().is_none());
        }
        let new = std::mem::replace(&mut anna.checkpoint, old.clone());
        let result = anna.upload(&of_the_north()).await;
        assert!(result[1].contains("out_of_scope"), "{result:?}");
        // The newest is not spent with it.
        anna.checkpoint = new;
        visits(&world, "south").await;
        let change = [insert("customer", "51|west|Wilma|NULL")];
        assert_eq!(anna.upload(&change).await.len(), 1);
        // And where the newest was used, the one before does not count either.
        anna.checkpoint = old;
        let result = anna.upload(&of_the_north()).await;
        assert!(result[1].contains("out_of_scope"), "{result:?}");
        world
            .execute("DELETE FROM customer WHERE region = 'west'")
            .await;
    }
}

pub async fn a_scope_counts_while_the_next_one_was_lost_on_the_way<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let held = anna.checkpoint.clone();
    visits(&world, "west").await;
    assert!(anna.download().await.scope_changed);
    // The answer never arrived: the remote presents what it has.
    anna.checkpoint = held;
    let change = update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL");
    assert_eq!(anna.upload(&[change]).await.len(), 1);
}

pub async fn a_scope_counts_while_the_next_two_were_lost_on_the_way<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let held = anna.checkpoint.clone();
    for region in ["west", "south", "east"] {
        visits(&world, region).await;
        anna.checkpoint = held.clone();
        assert!(anna.download().await.scope_changed);
    }
    let newest = std::mem::replace(&mut anna.checkpoint, held.clone());
    let change = update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL");
    let result = anna.upload(&[change]).await;
    assert_eq!(result.len(), 1, "{result:?}");
    // Once the newest was presented, it does not any more.
    anna.checkpoint = newest;
    anna.download().await;
    anna.checkpoint = held;
    let change = update("customer", "1|north|Nora|nora@x", "1|north|N|nora@x");
    let result = anna.upload(&[change]).await;
    assert!(result[1].contains("out_of_scope"), "{result:?}");
}

/// What was made under it was taken once; when the partition is held again, what is made from
/// then on is taken once more.
pub async fn a_spent_scope_is_issued_anew_when_it_holds_again<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    visits(&world, "west").await;
    let change = update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL");
    assert_eq!(anna.upload(&[change]).await.len(), 1);
    // That the partition was lost she never heard.
    visits(&world, "north").await;
    assert!(!anna.download().await.scope_changed);
    visits(&world, "west").await;
    let change = update("customer", "2|north|Nils|NULL", "2|north|N|NULL");
    let result = anna.upload(&[change]).await;
    assert_eq!(result.len(), 1, "{result:?}");
    let change = update("customer", "2|north|N|NULL", "2|north|Nie|NULL");
    let result = anna.upload(&[change]).await;
    assert!(result[1].contains("out_of_scope"), "{result:?}");
}

pub async fn what_triggers_change_beside_an_upload_is_sent<F: Fixture>() {
    let world = world::<F>().await;
    world.execute(&F::stock_trigger()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
    // The trigger renames the product 1 and shouts the name of the customer (CASES 10).
    anna.upload(&[insert("customer", "40|north|Nina|NULL")])
        .await;
    let expected = ["customer: 40|north|NINA|NULL", "product: 1|tea of Nina"];
    assert_eq!(anna.download().await.rows(), expected);
    assert_eq!(berta.download().await.rows(), expected);
}

pub async fn a_download_only_table_takes_no_changes<F: Fixture>() {
    let tables = vec![TableSpec {
        direction: Direction::Download,
        ..everyone("product")
    }];
    let world = World::<F>::new(SHOP_DDL, tables).await;
    let mut anna = Remote::synced(&world, "anna").await;
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

/// CASES 18.
pub async fn a_deferred_constraint_hits_only_its_own_upload<F: Fixture>() {
    let ddl = "
        CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY);
        CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY,
            parent_id INTEGER NOT NULL REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        INSERT INTO parent VALUES (1);";
    let world = World::<F>::new(ddl, vec![everyone("parent"), everyone("child")]).await;
    let mut remotes = Vec::new();
    let mut uploads = Vec::new();
    for number in 0..50 {
        let mut remote = Remote::synced(&world, "anna").await;
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

/// CASES 16.
pub async fn unique_values_can_be_freed_and_taken_in_one_upload<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
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

/// A parent under another key is a delete, an insert and updates of its children, and its unique
/// value lets none of them go first. What refers to the children was not touched at all.
pub async fn a_parent_under_another_key_keeps_its_children<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY,
               code VARCHAR(9) UNIQUE CHECK (code <> 'bad'),
               boss INTEGER REFERENCES par ON DELETE {action});
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER REFERENCES par ON DELETE {action}, v VARCHAR(9) UNIQUE);
             CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY,
               c INTEGER REFERENCES ch ON DELETE CASCADE);
             INSERT INTO par VALUES (1, 'one', NULL), (2, 'two', NULL), (3, 'three', 1),
               (5, 'five', NULL), (7, 'seven', NULL);
             INSERT INTO ch VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 1, 'c'), (5, 5, 'e'), (7, 7, 'g'),
               (8, 1, 'h'), (9, 7, 'i'), (6, 5, 'j');
             INSERT INTO item VALUES (1, 1), (2, 2), (3, 3), (5, 5), (7, 7), (8, 8)"
        );
        let tables = ["par", "ch", "item"].map(everyone);
        let world = World::<F>::new(&ddl, tables.to_vec()).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut carl = Remote::synced(&world, "carl").await;
        world
            .execute("UPDATE ch SET v = 'changed' WHERE id = 2")
            .await;
        let result = anna
            .upload(&[
                delete("par", "1|one|NULL"),
                insert("par", "4|one|NULL"),
                update("par", "3|three|1", "3|three|4"),
                update("ch", "1|1|a", "1|4|a"),
                // Somebody else has changed it: it loses, and goes with its parent.
                update("ch", "2|1|b", "2|4|b"),
                // Its value is taken: it is refused, and its row goes all the same.
                update("ch", "8|1|h", "8|4|g"),
                // A child under another key, in the same way.
                delete("ch", "3|1|c"),
                insert("ch", "4|4|c"),
                update("item", "3|3", "3|4"),
                // What cannot be: nobody else suffers from it.
                delete("par", "5|five|NULL"),
                insert("par", "6|two|NULL"),
                update("ch", "5|5|e", "5|6|e"),
                delete("par", "7|seven|NULL"),
                insert("par", "8|seven|NULL"),
                update("ch", "7|7|g", "7|8|g"),
                // The parent is there, but its value comes from a child that is deleted.
                delete("ch", "9|7|i"),
                update("ch", "6|5|j", "6|3|i"),
            ])
            .await;
        let counts = "3 inserted, 5 updated, 5 deleted, 1 conflicts, 3 refused";
        assert_eq!(result[0], counts, "{action}: {result:?}");
        let berta = Remote::synced(&world, "berta").await;
        carl.download().await;
        let parents = ["2|two|NULL", "3|three|4", "4|one|NULL", "8|seven|NULL"];
        let (children, items): (&[&str], &[&str]) = match action {
            "CASCADE" => (
                &["1|4|a", "4|4|c", "6|3|i", "7|8|g"],
                &["1|1", "3|4", "7|7"],
            ),
            _ => (
                &[
                    "1|4|a",
                    "2|NULL|changed",
                    "4|4|c",
                    "5|NULL|e",
                    "6|3|i",
                    "7|8|g",
                    "8|NULL|h",
                ],
                &["1|1", "2|2", "3|4", "5|5", "7|7", "8|8"],
            ),
        };
        for remote in [&berta, &carl] {
            assert_eq!(remote.rows("par"), parents, "{action}");
            assert_eq!(remote.rows("ch"), children, "{action}");
            assert_eq!(remote.rows("item"), items, "{action}");
        }
    }
}

/// A delete whose foreign keys act comes when what has to leave before has left, whatever that was
/// waiting for; and what cannot leave is refused, for nobody else has won.
pub async fn what_leaves_a_deleted_row_goes_before_it<F: Fixture>() {
    struct Case {
        ddl: &'static str,
        tables: &'static [&'static str],
        centre: &'static str,
        changes: Vec<Change>,
        counts: &'static str,
        left: &'static [&'static str],
    }
    let cases = [
        // A place in the new list has to become free first.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE, pos INTEGER NOT NULL,
                  UNIQUE (p, pos));
                INSERT INTO par VALUES (1), (2); INSERT INTO ch VALUES (1, 1, 1), (2, 2, 1)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                update("ch", "1|1|1", "1|2|1"),
                update("ch", "2|2|1", "2|2|2"),
                delete("par", "1"),
            ],
            counts: "0 inserted, 2 updated, 1 deleted, 0 conflicts, 0 refused",
            left: &["1|2|1", "2|2|2"],
        },
        // The unique value is one level higher.
        Case {
            ddl: "CREATE TABLE g (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, g INTEGER REFERENCES g);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO g VALUES (1, 'x'); INSERT INTO par VALUES (1, 1);
                INSERT INTO ch VALUES (1, 1)",
            tables: &["g", "par", "ch"],
            centre: "",
            changes: vec![
                delete("g", "1|x"),
                insert("g", "2|x"),
                insert("par", "2|2"),
                delete("par", "1|1"),
                update("ch", "1|1", "1|2"),
            ],
            counts: "2 inserted, 1 updated, 2 deleted, 0 conflicts, 0 refused",
            left: &["1|2"],
        },
        // One bad row among those that are inserted.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, up INTEGER REFERENCES par,
                  v INTEGER CHECK (v < 100));
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (10, NULL, 0); INSERT INTO ch VALUES (1, 10)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                insert("par", "1|2|0"),
                insert("par", "2|NULL|0"),
                insert("par", "3|NULL|1000"),
                delete("par", "10|NULL|0"),
                update("ch", "1|10", "1|1"),
            ],
            counts: "2 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused",
            left: &["1|1"],
        },
        // What cannot be stored is refused, though its row goes with the parent.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE, v INTEGER CHECK (v < 100));
                INSERT INTO par VALUES (1), (2); INSERT INTO ch VALUES (1, 1, 0), (2, 1, 0)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1"),
                update("ch", "1|1|0", "1|2|1000"),
                update("ch", "2|1|0", "2|2|1"),
            ],
            counts: "0 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused",
            left: &["2|2|1"],
        },
        // Two parents get other keys. One of them was changed by somebody else: the other does not
        // suffer from it, though a child moves from one to the other.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE,
                  v INTEGER);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'x', 0), (2, 'y', 0);
                INSERT INTO ch VALUES (1, 1), (2, 1), (3, 2)",
            tables: &["par", "ch"],
            centre: "UPDATE par SET v = 77 WHERE id = 1",
            changes: vec![
                delete("par", "1|x|0"),
                insert("par", "11|x|0"),
                delete("par", "2|y|0"),
                insert("par", "12|y|0"),
                update("ch", "1|1", "1|11"),
                update("ch", "2|1", "2|12"),
                update("ch", "3|2", "3|12"),
            ],
            counts: "1 inserted, 2 updated, 1 deleted, 1 conflicts, 2 refused",
            left: &["1|1", "2|12", "3|12"],
        },
        // A chain: the update needs what the delete frees, and the insert what the update frees.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a'), (2, 'b');
                INSERT INTO ch VALUES (1, 1), (2, 2), (3, 1)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|a"),
                update("par", "2|b", "2|a"),
                insert("par", "3|b"),
                update("ch", "1|1", "1|2"),
                update("ch", "2|2", "2|3"),
                update("ch", "3|1", "3|3"),
            ],
            counts: "1 inserted, 4 updated, 1 deleted, 0 conflicts, 0 refused",
            left: &["1|2", "2|3", "3|3"],
        },
        // A row that only refers to what is updated is to blame for itself.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER NOT NULL,
                  UNIQUE (ten, id));
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER, p INTEGER,
                  FOREIGN KEY (ten, p) REFERENCES par (ten, id));
                CREATE TABLE d (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER, p INTEGER,
                  v INTEGER CHECK (v < 100), FOREIGN KEY (ten, p) REFERENCES par (ten, id));
                INSERT INTO par VALUES (1, 1); INSERT INTO ch VALUES (1, 1, 1), (2, 1, 1)",
            tables: &["par", "ch", "d"],
            centre: "",
            changes: vec![
                update("par", "1|1", "1|2"),
                update("ch", "1|1|1", "1|2|1"),
                update("ch", "2|1|1", "2|2|1"),
                insert("d", "1|2|1|1000"),
            ],
            counts: "0 inserted, 3 updated, 0 deleted, 0 conflicts, 1 refused",
            left: &["1|2|1", "2|2|1"],
        },
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let tables = case.tables.iter().map(|name| everyone(name)).collect();
        let world = World::<F>::new(case.ddl, tables).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut berta = Remote::synced(&world, "berta").await;
        if !case.centre.is_empty() {
            world.execute(case.centre).await;
        }
        let result = anna.upload(&case.changes).await;
        assert_eq!(result[0], case.counts, "case {number}: {result:?}");
        berta.download().await;
        assert_eq!(berta.rows("ch"), case.left, "case {number}");
        let rows = world.fixture.query("SELECT * FROM ch ORDER BY id").await;
        assert_eq!(rows, case.left, "case {number}");
    }
}

/// Merging duplicates: the children are moved, then their parent is deleted, whose foreign keys
/// would take them along. Its unique value is taken again, too.
pub async fn a_delete_takes_along_nothing_that_the_same_upload_moves<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE,
               boss INTEGER REFERENCES par ON DELETE {action});
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER REFERENCES par ON DELETE {action}, v VARCHAR(9));
             INSERT INTO par VALUES (1, 'one', NULL), (2, 'two', NULL), (3, 'three', 1);
             INSERT INTO ch VALUES (1, 1, 'child'), (2, 1, 'gone')"
        );
        let world = World::<F>::new(&ddl, vec![everyone("par"), everyone("ch")]).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let result = anna
            .upload(&[
                insert("par", "4|one|NULL"),
                update("par", "3|three|1", "3|three|2"),
                delete("par", "1|one|NULL"),
                insert("ch", "3|4|new"),
                update("ch", "1|1|child", "1|2|moved"),
                delete("ch", "2|1|gone"),
            ])
            .await;
        let all = "2 inserted, 2 updated, 2 deleted, 0 conflicts, 0 refused";
        assert_eq!(result, [all], "{action}");
        let berta = Remote::synced(&world, "berta").await;
        assert_eq!(berta.rows("ch"), ["1|2|moved", "3|4|new"], "{action}");
        let parents = ["2|two|NULL", "3|three|2", "4|one|NULL"];
        assert_eq!(berta.rows("par"), parents, "{action}");
    }
}

pub async fn values_are_compared_by_their_type<F: Fixture>() {
    let ddl = "CREATE TABLE v (id INTEGER NOT NULL PRIMARY KEY, amount NUMERIC(12,2),
                   ratio DOUBLE PRECISION, flag BOOLEAN, day DATE, at TIMESTAMP, note TEXT);
               INSERT INTO v VALUES (1, 1.5, 0.5, TRUE, '2026-01-02', '2026-01-02 03:04:05', 'a')";
    let world = World::<F>::new(ddl, vec![everyone("v")]).await;
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut berta = Remote::synced(&world, "berta").await;
    assert_eq!(berta.rows("v"), [new, nulls]);
    let result = berta.upload(&[delete("v", new), delete("v", nulls)]).await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused"]
    );
}

pub async fn an_upload_with_a_column_twice_fails_alone<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
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
    let mut world = World::<F>::new(
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT)",
        vec![everyone("item")],
    )
    .await;
    world.execute("INSERT INTO item VALUES (1, 'a')").await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute("ALTER TABLE item ADD COLUMN price INTEGER DEFAULT 7")
        .await;
    world.deploy().await.unwrap();
    let old_schema = anna.schema.clone();
    assert_eq!(TableBegin::of(&old_schema.tables[0]).columns.len(), 2);
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
    // With the new schema, the table comes whole, the new column with it.
    anna.schema = world.schema();
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
    let world = World::<F>::new(&ddl, vec![partitioned(table, &["select"], values)]).await;
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
    let mut remote = Remote::synced(&world, user).await;
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
    let mut other = Remote::synced(&world, user).await;
    assert_eq!(
        other.rows(table),
        [format!("'|{odd}|\""), format!("{odd}|{odd}|');--")]
    );
    let result = other.upload(&[delete(table, &format!("'|{odd}|\""))]).await;
    assert_eq!(result.len(), 1);
    let received = remote.download().await;
    assert!(received.removals.contains(&format!("{table} [']")));
}

pub async fn regions_come_from_the_query_of_each_moment<F: Fixture>() {
    let world = World::<F>::new(
        SHOP_DDL,
        vec![partitioned("customer", &["region"], REGIONS)],
    )
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    // Gained between two syncs, not yet downloaded: it may be written to already.
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'east')")
        .await;
    let result = anna
        .upload(&[insert("customer", "80|east|Ella|NULL")])
        .await;
    assert_eq!(result.len(), 1);
}
