//! Uploads that are applied while they arrive: the same comes of them as of complete ones,
//! and whatever goes wrong, nothing comes of them at all.

use std::time::Duration;

use tidewater_consolidated::{RowsChunk, SyncUpload, UploadOutcome, UploadTable, arriving};

use crate::fixture::{Fixture, Transaction};
use crate::remote::{Change, Remote, delete, insert, result_text, update, upload_tables};
use crate::world::{SHOP_DDL, World, everyone, shop};

async fn world<F: Fixture>() -> World<F> {
    World::new(SHOP_DDL, shop()).await
}

/// How an upload goes on after its rows.
#[derive(Clone, Copy)]
enum Then {
    Completes,
    IsAbandoned,
    Pauses,
}

/// Has an upload applied while it arrives. None: nothing of it is applied.
async fn arrive<F: Fixture>(
    world: &World<F>,
    remote: &mut Remote,
    upload: &SyncUpload,
    then: Then,
) -> Option<UploadOutcome> {
    if !world.centre.applies_arriving() {
        return None;
    }
    let head = SyncUpload {
        tables: Vec::new(),
        ..upload.clone()
    };
    let (arrival, arriving) = arriving(head);
    let sends = async move {
        for UploadTable { begin, chunks } in upload.tables.clone() {
            arrival.table(begin);
            for chunk in chunks {
                tokio::task::yield_now().await;
                arrival.rows(chunk);
            }
        }
        match then {
            Then::Completes => {
                arrival.complete();
                None
            }
            Then::IsAbandoned => None,
            Then::Pauses => Some(arrival),
        }
    };
    let (outcome, _arrival) = tokio::join!(remote.worker.apply_arriving(arriving), sends);
    outcome.expect("nothing is wrong with the database")
}

/// The changes arrive, nothing comes of that, and the complete upload tells this.
async fn assert_left_to_the_whole<F: Fixture>(
    world: &World<F>,
    remote: &mut Remote,
    changes: &[Change],
    expected: &[&str],
) {
    let upload = remote.next_upload(changes);
    let before = everything(world).await;
    let outcome = arrive(world, remote, &upload, Then::Completes).await;
    assert!(outcome.is_none(), "{outcome:?}");
    assert_eq!(everything(world).await, before);
    let UploadOutcome::Applied { result, .. } = remote.apply(upload).await else {
        panic!("not applied");
    };
    assert_eq!(result_text(&remote.schema, &result), expected);
}

async fn everything<F: Fixture>(world: &World<F>) -> Vec<String> {
    let tables = "SELECT 'c', customer_id, region, name FROM customer UNION ALL \
                  SELECT 'p', purchase_id, region, NULL FROM purchase UNION ALL \
                  SELECT 'r', product_id, name, NULL FROM product ORDER BY 1, 2";
    let mut rows = world.fixture.query(tables).await;
    rows.push(format!("{:?}", world.centre.conflicts().await.unwrap()));
    rows.push(format!("{:?}", world.centre.refused().await.unwrap()));
    rows
}

pub async fn an_upload_that_arrives_comes_to_the_same_as_a_complete_one<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let upload = anna.next_upload(&[
        insert("customer", "40|north|Nina|NULL"),
        update("customer", "2|north|Niels|NULL", "2|north|Nils|n@x"),
        insert("purchase", "20|north|40|9.99"),
        delete("purchase", "10|north|1|1.50"),
        update("product", "1|tea", "1|green tea"),
    ]);
    let early = arrive(&world, &mut anna, &upload, Then::Completes).await;
    assert_eq!(early.is_some(), world.centre.applies_arriving());
    let expected = ["2 inserted, 2 updated, 1 deleted, 0 conflicts, 0 refused"];
    // Whoever uploads it once more, as a whole, is told the same.
    let result = match (early, anna.apply(upload).await) {
        (
            Some(UploadOutcome::Applied { result, own }),
            UploadOutcome::AlreadyApplied { result: again },
        ) => {
            assert_eq!(result, again);
            anna.own = Some(own);
            result
        }
        (None, UploadOutcome::Applied { result, own }) => {
            anna.own = Some(own);
            result
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(result_text(&anna.schema, &result), expected);
    let customers = "SELECT customer_id, region, name, email FROM customer ORDER BY 1";
    assert_eq!(
        world.fixture.query(customers).await,
        [
            "1|north|Nora|nora@x",
            "2|north|Nils|n@x",
            "3|south|Sven|sven@x",
            "40|north|Nina|NULL"
        ]
    );
    let purchases = "SELECT purchase_id, customer_id FROM purchase ORDER BY 1";
    assert_eq!(world.fixture.query(purchases).await, ["11|3", "20|40"]);
    // Its own rows do not come back; everybody else gets them.
    assert_eq!(anna.download().await.rows(), [""; 0]);
    let berta = Remote::synced(&world, "berta").await;
    assert_eq!(berta.rows("purchase"), ["20|north|40|9.99"]);
}

pub async fn thousands_of_rows_are_copied_as_they_arrive<F: Fixture>() {
    let ddl = "CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY, note TEXT NOT NULL);
               CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY,
                   parent INTEGER NOT NULL REFERENCES parent);";
    let tables = vec![everyone("child"), everyone("parent")];
    let world = World::<F>::new(ddl, tables).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let note = "n".repeat(200);
    let parents = (0..10_000).map(|id| insert("parent", &format!("{id}|{note}")));
    let children = (0..5_000).map(|id| insert("child", &format!("{id}|{}", 2 * id)));
    let changes: Vec<Change> = parents.chain(children).collect();
    let mut upload = anna.next_upload(&[]);
    // As a server stores them: in many chunks.
    for piece in changes.chunks(1_000) {
        for table in upload_tables(&anna.schema, piece) {
            match upload.tables.last_mut() {
                Some(last) if last.begin == table.begin => last.chunks.extend(table.chunks),
                _ => upload.tables.push(table),
            }
        }
    }
    assert_eq!(
        (upload.tables.len(), upload.tables[0].chunks.len()),
        (2, 10)
    );
    let early = arrive(&world, &mut anna, &upload, Then::Completes).await;
    assert_eq!(early.is_some(), world.centre.applies_arriving());
    anna.apply(upload).await;
    let count = "SELECT (SELECT count(*) FROM parent), (SELECT sum(parent) FROM child)";
    assert_eq!(world.fixture.query(count).await, ["10000|24995000"]);
}

pub async fn an_update_that_loses_while_its_upload_arrives_is_a_conflict<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute("UPDATE customer SET name = 'Norbert' WHERE customer_id = 2")
        .await;
    let upload = anna.next_upload(&[
        insert("customer", "40|north|Nina|NULL"),
        update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL"),
    ]);
    let outcome = match arrive(&world, &mut anna, &upload, Then::Completes).await {
        Some(outcome) => outcome,
        None => anna.apply(upload).await,
    };
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        result_text(&anna.schema, &result),
        [
            "1 inserted, 0 updated, 0 deleted, 1 conflicts, 0 refused",
            "conflict customer: 2|north|Norbert|NULL"
        ]
    );
    assert_eq!(world.centre.conflicts().await.unwrap().len(), 1);
}

pub async fn a_conflict_in_an_upload_that_arrives_is_left_to_the_whole<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    world
        .execute("INSERT INTO customer VALUES (40, 'north', 'Norbert', NULL)")
        .await;
    assert_left_to_the_whole(
        &world,
        &mut anna,
        &[
            insert("customer", "40|north|Nina|NULL"),
            insert("customer", "41|north|Nele|NULL"),
        ],
        &[
            "1 inserted, 0 updated, 0 deleted, 1 conflicts, 0 refused",
            "conflict customer: 40|north|Norbert|NULL",
        ],
    )
    .await;
}

pub async fn refused_rows_of_an_upload_that_arrives_are_left_to_the_whole<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let expected = "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused";
    for (id, wrong) in [
        (50, insert("customer", "60|north|forbidden|NULL")),
        (51, insert("customer", "61|south|Sonja|NULL")),
        (52, insert("purchase", "62|north|999|1.00")),
    ] {
        let upload = anna.next_upload(&[insert("product", &format!("{id}|cup")), wrong]);
        let before = everything(&world).await;
        let outcome = arrive(&world, &mut anna, &upload, Then::Completes).await;
        assert!(outcome.is_none(), "{outcome:?}");
        assert_eq!(everything(&world).await, before);
        let UploadOutcome::Applied { result, .. } = anna.apply(upload).await else {
            panic!("not applied");
        };
        assert_eq!(result_text(&anna.schema, &result)[0], expected);
    }
    assert_eq!(world.centre.refused().await.unwrap().len(), 3);
}

pub async fn another_order_than_the_centres_is_left_to_the_whole<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    // A child before its parent, and a value that a delete has to free first.
    for changes in [
        [
            insert("purchase", "20|north|40|9.99"),
            insert("customer", "40|north|Nina|NULL"),
        ],
        [
            insert("customer", "41|north|Nele|nele@x"),
            delete("customer", "40|north|Nina|NULL"),
        ],
    ] {
        let [inserts, deletes] = if matches!(changes[1], Change::Delete(..)) {
            anna.upload(&[delete("purchase", "20|north|40|9.99")]).await;
            [1, 1]
        } else {
            [2, 0]
        };
        let expected =
            format!("{inserts} inserted, 0 updated, {deletes} deleted, 0 conflicts, 0 refused");
        assert_left_to_the_whole(&world, &mut anna, &changes, &[&expected]).await;
    }
    // Tables that have nothing to do with each other.
    let mut names = anna.schema.tables.iter().map(|table| table.name.as_str());
    let product_is_last = names.next_back() == Some("product");
    let mut changes = [
        insert("customer", "42|north|Nora|NULL"),
        insert("product", "7|cup"),
    ];
    if product_is_last {
        changes.reverse();
    }
    let expected = "2 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused";
    assert_left_to_the_whole(&world, &mut anna, &changes, &[expected]).await;
}

pub async fn an_upload_that_pauses_or_breaks_off_takes_no_effect<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL"),
        insert("purchase", "20|north|40|9.99"),
    ];
    let upload = anna.next_upload(&changes);
    let before = everything(&world).await;
    for then in [Then::Pauses, Then::IsAbandoned, Then::Pauses] {
        let outcome = arrive(&world, &mut anna, &upload, then).await;
        assert!(outcome.is_none(), "{outcome:?}");
        assert_eq!(everything(&world).await, before);
        // Nothing is held: neither rows nor the subscription.
        let unblocked = "UPDATE customer SET name = name; UPDATE product SET name = name";
        world.execute(unblocked).await;
    }
    // Its number is still free.
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Applied { .. }),
        "{outcome:?}"
    );
}

pub async fn an_upload_that_arrives_out_of_sequence_takes_no_effect<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let first = anna.next_upload(&[insert("product", "7|cup")]);
    anna.apply(first.clone()).await;
    let next = anna.next_upload(&[insert("product", "8|jar")]);
    let late = SyncUpload {
        sequence: 9,
        ..next.clone()
    };
    for wrong in [first, late] {
        let outcome = arrive(&world, &mut anna, &wrong, Then::Completes).await;
        assert!(outcome.is_none(), "{outcome:?}");
    }
    let early = arrive(&world, &mut anna, &next, Then::Completes).await;
    assert_eq!(early.is_some(), world.centre.applies_arriving());
}

pub async fn an_upload_that_arrives_twice_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    if !world.centre.applies_arriving() {
        return;
    }
    let mut anna = Remote::synced(&world, "anna").await;
    let upload = anna.next_upload(&[insert("product", "7|cup")]);
    let head = SyncUpload {
        tables: Vec::new(),
        ..upload.clone()
    };
    let (mut one, mut two) = (world.worker().await, world.worker().await);
    let (first, arriving_first) = arriving(head.clone());
    let (second, arriving_second) = arriving(head);
    let send = |arrival: &tidewater_consolidated::Arrival| {
        for UploadTable { begin, chunks } in upload.tables.clone() {
            arrival.table(begin);
            chunks.into_iter().for_each(|chunk| arrival.rows(chunk));
        }
    };
    send(&first);
    send(&second);
    second.complete();
    let sends = async {
        // Long enough for the second to find the number taken.
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.complete();
    };
    let (one, two, ()) = tokio::join!(
        one.apply_arriving(arriving_first),
        two.apply_arriving(arriving_second),
        sends
    );
    let applied = [&one, &two]
        .into_iter()
        .filter(|it| matches!(it, Ok(Some(UploadOutcome::Applied { .. }))));
    assert_eq!(applied.count(), 1, "{one:?} {two:?}");
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::AlreadyApplied { .. }),
        "{outcome:?}"
    );
}

pub async fn rows_of_an_unpublished_table_are_refused_as_they_arrive<F: Fixture>() {
    let mut world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let upload = anna.next_upload(&[
        insert("customer", "40|north|Nina|NULL"),
        insert("product", "7|cup"),
    ]);
    world.specs[0]
        .tables
        .retain(|table| table.name != "product");
    world.deploy().await.unwrap();
    let outcome = match arrive(&world, &mut anna, &upload, Then::Completes).await {
        Some(outcome) => outcome,
        None => anna.apply(upload).await,
    };
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((result.inserts, result.refused), (1, 1));
    assert_eq!(world.centre.refused().await.unwrap().len(), 1);
}

pub async fn what_somebody_has_locked_is_not_waited_for<F: Fixture>() {
    let world = world::<F>().await;
    if !world.centre.applies_arriving() {
        return;
    }
    let mut anna = Remote::synced(&world, "anna").await;
    let upload = anna.next_upload(&[insert("product", "7|cup")]);
    for lock in [
        "LOCK TABLE product IN ACCESS EXCLUSIVE MODE",
        "INSERT INTO product VALUES (7, 'tin')",
    ] {
        let mut somebody = world.fixture.begin().await;
        somebody.execute(lock).await;
        let head = SyncUpload {
            tables: Vec::new(),
            ..upload.clone()
        };
        let (arrival, arriving) = arriving(head);
        let UploadTable { begin, chunks } = upload.tables[0].clone();
        arrival.table(begin);
        chunks.into_iter().for_each(|chunk| arrival.rows(chunk));
        arrival.complete();
        // Refused by the database, and nothing is applied.
        let early = anna.worker.apply_arriving(arriving);
        let early = tokio::time::timeout(Duration::from_secs(20), early).await;
        let outcome = early.expect("nobody waits for locks");
        assert!(!matches!(outcome, Ok(Some(_))), "{outcome:?}");
        drop(somebody);
    }
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Applied { .. }),
        "{outcome:?}"
    );
}

pub async fn rows_in_a_spool_file_arrive_too<F: Fixture>() {
    use std::io::Write;
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut upload = anna.next_upload(&[insert("product", "7|cup")]);
    let bytes = upload.tables[0].chunks[0].read().unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before").unwrap();
    file.write_all(&bytes).unwrap();
    upload.tables[0].chunks = vec![RowsChunk::File {
        file: file.into(),
        offset: 6,
        length: bytes.len(),
    }];
    let early = arrive(&world, &mut anna, &upload, Then::Completes).await;
    assert_eq!(early.is_some(), world.centre.applies_arriving());
    anna.apply(upload).await;
    let name = "SELECT name FROM product WHERE product_id = 7";
    assert_eq!(world.fixture.query(name).await, ["cup"]);
}
