//! Refused rows in a full loop: kept with what they were to be, settled by operators and users,
//! told to their remotes; and uploads that go in whole or not at all.

use tidewater_centre::records::{RefusalOutcome, RefusedFilter, RefusedRecord, RetentionTimes};
use tidewater_centre::{
    Judgement, OnReject, RefusedChoice, RefusedRowAction, SettleOutcome, TableSpec, ToldSettled,
    UploadOutcome, WritesSpec,
};
use tidewater_protocol::Code;
use tidewater_protocol::message::GivenUp;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, NOW_MS, everyone};

const DDL: &str = "
    CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        stock INTEGER CHECK (stock >= 0), price NUMERIC(8,2));
    CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
        item INTEGER NOT NULL REFERENCES item);
    CREATE TABLE mark (id INTEGER NOT NULL PRIMARY KEY,
        line INTEGER NOT NULL REFERENCES line);
    INSERT INTO item VALUES (1, 'tea', 10, 1.5), (2, 'milk', 1, 1)";

fn tables() -> Vec<TableSpec> {
    // What remotes may not write an operator may.
    let item = TableSpec {
        writes: WritesSpec {
            read_only: vec!["price".into()],
            ..WritesSpec::default()
        },
        ..everyone("item")
    };
    vec![item, everyone("line"), everyone("mark")]
}

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(DDL, tables()).await
}

fn choice(refused: i64, action: RefusedRowAction) -> RefusedChoice {
    RefusedChoice {
        refused,
        action,
        force: false,
        judgement: Judgement::default(),
        by: "olga".into(),
        now_ms: NOW_MS + 5,
    }
}

async fn settle<F: Fixture>(world: &DeployedCentre<F>, choice: RefusedChoice) -> SettleOutcome {
    let mut worker = world.worker().await;
    worker.settle_refused(choice).await.unwrap()
}

async fn find<F: Fixture>(world: &DeployedCentre<F>, open: bool) -> Vec<RefusedRecord> {
    let filter = RefusedFilter {
        open,
        limit: 100,
        ..RefusedFilter::default()
    };
    world.centre.find_refused(&filter).await.unwrap()
}

/// The open one of this table and key.
async fn open<F: Fixture>(world: &DeployedCentre<F>, table: &str, key: &str) -> RefusedRecord {
    let found = find(world, true).await;
    let mut found = found.into_iter();
    let found = found.find(|it| it.table == table && it.key == key);
    found.unwrap_or_else(|| panic!("{table} {key} is not open"))
}

fn told(settled: &ToldSettled) -> Vec<String> {
    let rows = settled.rows.iter();
    let rows = rows.map(|it| {
        format!(
            "{} {} {} {} {}",
            it.table, it.key, it.sequence, it.outcome, it.by
        )
    });
    rows.collect()
}

fn settled(row: &str) -> SettleOutcome {
    SettleOutcome::settled(Some(row.to_owned()))
}

pub async fn a_refused_row_is_replayed_once_the_centre_takes_it<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let wanted = "3|milk|5|NULL";
    anna.upload(&[
        insert("item", wanted),
        update("item", "1|tea|10|1.50", "1|tea|12|9.50"),
    ])
    .await;
    let kept = open(&world, "item", "[3]").await;
    assert_eq!((kept.attempts, kept.sequence, kept.pre_image), (1, 1, None));
    let update = open(&world, "item", "[1]").await;
    assert_eq!(update.code, Code::RowDownloadOnly.name());
    let was = r#"{"id":1,"name":"tea","stock":10,"price":"1.50"}"#;
    assert_eq!(update.pre_image.as_deref(), Some(was));

    // The name is still somebody else's.
    let outcome = settle(&world, choice(kept.id, RefusedRowAction::Replay)).await;
    assert!(
        matches!(
            &outcome,
            SettleOutcome::Refused {
                code: Code::RowKeyInUse,
                ..
            }
        ),
        "{outcome:?}"
    );
    assert_eq!(open(&world, "item", "[3]").await.id, kept.id);
    world
        .execute("UPDATE item SET name = 'cream' WHERE id = 2")
        .await;
    let outcome = settle(&world, choice(kept.id, RefusedRowAction::Replay)).await;
    assert_eq!(
        outcome,
        settled(r#"{"id":3,"name":"milk","stock":5,"price":null}"#)
    );
    // Only what was changed is written.
    let outcome = settle(&world, choice(update.id, RefusedRowAction::Replay)).await;
    assert_eq!(
        outcome,
        settled(r#"{"id":1,"name":"tea","stock":12,"price":"9.50"}"#)
    );
    // A second operator finds it done.
    let again = settle(&world, choice(update.id, RefusedRowAction::Replay)).await;
    assert_eq!(again, SettleOutcome::Unknown);

    assert_eq!(find(&world, true).await, []);
    let all = find(&world, false).await;
    assert_eq!(all.len(), 2);
    for it in &all {
        let end = it.settled.as_ref().unwrap();
        assert_eq!((&*end.by, end.at_ms), ("olga", NOW_MS + 5));
        assert_eq!(end.outcome, RefusalOutcome::Replayed);
        assert!(end.row.is_some());
        assert_eq!(
            world.centre.refused_row(it.id).await.unwrap().as_ref(),
            Some(it)
        );
    }
    anna.refused_from = 1;
    let received = anna.download().await;
    let mut heard = told(&received.settled);
    heard.sort();
    assert_eq!(
        heard,
        ["item [1] 1 replayed olga", "item [3] 1 replayed olga"]
    );
    assert_eq!(received.settled.after, 0);
    assert_eq!(
        anna.rows("item"),
        ["1|tea|12|9.50", "2|cream|1|1.00", "3|milk|5|NULL"]
    );
    // Who keeps nothing any more, or only what was refused later, is told nothing.
    for from in [0, 2] {
        anna.refused_from = from;
        assert_eq!(anna.download().await.settled, ToldSettled::default());
    }
}

pub async fn a_replay_does_not_write_over_what_others_have_changed<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[
        update("item", "1|tea|10|1.50", "1|tea|-1|1.50"),
        delete("item", "2|milk|1|1.00"),
    ])
    .await;
    let kept = open(&world, "item", "[1]").await;
    world
        .execute("UPDATE item SET price = 3 WHERE id = 1")
        .await;
    let edit = || RefusedRowAction::Edit(r#"{"stock":9}"#.into());
    let outcome = settle(&world, choice(kept.id, edit())).await;
    let row = Some(r#"{"id":1,"name":"tea","stock":10,"price":"3.00"}"#.to_owned());
    assert_eq!(outcome, SettleOutcome::Changed { row });
    let forced = RefusedChoice {
        force: true,
        ..choice(kept.id, edit())
    };
    let outcome = settle(&world, forced).await;
    assert_eq!(
        outcome,
        settled(r#"{"id":1,"name":"tea","stock":9,"price":"3.00"}"#)
    );
}

pub async fn an_edit_that_still_fails_changes_nothing<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("item", "3|cocoa|-5|NULL")]).await;
    let kept = open(&world, "item", "[3]").await;
    let edit = |row: &str| choice(kept.id, RefusedRowAction::Edit(row.into()));
    for (row, code, part) in [
        (r#"{"stock":-6}"#, Code::RowCheck, ""),
        (r#"{"name":null}"#, Code::RowNotNull, ""),
        (
            r#"{"stok":1}"#,
            Code::RowBadValue,
            "no published column \"stok\"",
        ),
        (
            r#"{"price":1.5}"#,
            Code::RowBadValue,
            "write decimals as text",
        ),
        ("[1]", Code::RowBadValue, "no JSON object"),
    ] {
        match settle(&world, edit(row)).await {
            SettleOutcome::Refused {
                code: found,
                reason,
            } => {
                assert_eq!(found, code, "{row}: {reason}");
                assert!(reason.contains(part), "{row}: {reason}");
            }
            other => panic!("{row}: {other:?}"),
        }
        assert_eq!(find(&world, true).await, std::slice::from_ref(&kept));
    }
    let outcome = settle(&world, edit(r#"{"id":4,"stock":6}"#)).await;
    assert_eq!(
        outcome,
        settled(r#"{"id":4,"name":"cocoa","stock":6,"price":null}"#)
    );
    let ended = find(&world, false).await.remove(0);
    assert_eq!(ended.row, kept.row);
    assert_eq!(ended.settled.unwrap().outcome, RefusalOutcome::Edited);
}

pub async fn what_is_given_up_leaves_the_centres_row<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[
        insert("item", "3|cocoa|-5|NULL"),
        insert("item", "4|rum|-5|NULL"),
    ])
    .await;
    let kept = open(&world, "item", "[3]").await;
    let discard = choice(kept.id, RefusedRowAction::Discard("a typo".into()));
    let outcome = settle(&world, discard).await;
    assert_eq!(outcome, SettleOutcome::settled(None));
    let ended = world.centre.refused_row(kept.id).await.unwrap().unwrap();
    let end = ended.settled.unwrap();
    assert_eq!(end.outcome, RefusalOutcome::Discarded);
    assert_eq!((end.reason.as_deref(), end.row), (Some("a typo"), None));
    anna.refused_from = 1;
    let received = anna.download().await;
    assert_eq!(told(&received.settled), ["item [3] 1 discarded olga"]);

    // The user gives up the other one; what was refused later stays.
    anna.upload(&[insert("item", "4|rum|-6|NULL")]).await;
    let give_up = |sequence| GivenUp {
        table: "item".into(),
        key: "[4]".into(),
        sequence,
    };
    for (sequence, left) in [(1, 1), (2, 0)] {
        anna.given_up = vec![give_up(sequence)];
        anna.upload(&[]).await;
        assert_eq!(find(&world, true).await.len(), left);
    }
    assert_eq!(world.centre.status().await.unwrap().refused, 0);
    let ended = find(&world, false).await.remove(0);
    assert_eq!(ended.key, "[4]");
    let end = ended.settled.unwrap();
    assert_eq!((end.outcome, &*end.by), (RefusalOutcome::GivenUp, "anna"));
    // What a user settles its remote knows.
    assert_eq!(
        told(&anna.download().await.settled),
        ["item [3] 1 discarded olga"]
    );
}

pub async fn what_is_sent_again_is_settled_as_what_it_comes_to<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let bad = [
        insert("item", "3|cocoa|-5|NULL"),
        update("item", "1|tea|10|1.50", "1|tea|-1|1.50"),
    ];
    for _ in 0..3 {
        anna.upload(&bad).await;
    }
    for it in find(&world, true).await {
        assert_eq!((it.attempts, it.sequence), (3, 3));
    }
    world
        .execute("UPDATE item SET stock = 8 WHERE id = 1")
        .await;
    anna.upload(&[
        insert("item", "3|cocoa|5|NULL"),
        update("item", "1|tea|10|1.50", "1|tea|1|1.50"),
    ])
    .await;
    assert_eq!(find(&world, true).await, []);
    let mut ended: Vec<String> = find(&world, false)
        .await
        .into_iter()
        .map(|it| {
            let end = it.settled.unwrap();
            format!(
                "{} {} {} {}",
                it.key,
                it.attempts,
                end.outcome.name(),
                end.by
            )
        })
        .collect();
    ended.sort();
    assert_eq!(ended, ["[1] 3 lost anna", "[3] 3 taken anna"]);
    let keep = |conflicts_ms| RetentionTimes {
        log_ms: i64::MAX,
        history_ms: i64::MAX,
        conflicts_ms,
    };
    world
        .centre
        .prune(keep(1_000), NOW_MS + 1_000)
        .await
        .unwrap();
    assert_eq!(find(&world, false).await.len(), 2);
    world
        .centre
        .prune(keep(1_000), NOW_MS + 2_000)
        .await
        .unwrap();
    assert_eq!(find(&world, false).await, []);
}

pub async fn children_are_refused_with_their_parent_and_name_it<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("item", "3|cocoa|-5|NULL"),
            insert("line", "30|3"),
            insert("line", "31|1"),
            insert("mark", "300|30"),
        ])
        .await;
    let reason = "foreign_key: the row that it refers to was refused";
    for line in [
        format!("refused line [30] Insert {reason}: item [3]"),
        format!("refused mark [300] Insert {reason}: line [30]"),
    ] {
        assert!(result.contains(&line), "{line}: {result:?}");
    }
    let line = open(&world, "line", "[30]").await;
    assert_eq!(line.parent, Some(("item".into(), "[3]".into())));
    let mark = open(&world, "mark", "[300]").await;
    assert_eq!(mark.parent, Some(("line".into(), "[30]".into())));
    // Of a parent that was refused before, too.
    anna.upload(&[insert("line", "32|3")]).await;
    let later = open(&world, "line", "[32]").await;
    assert_eq!(later.parent, Some(("item".into(), "[3]".into())));
    assert_eq!(open(&world, "item", "[3]").await.parent, None);
}

pub async fn an_upload_that_is_aborted_takes_no_effect<F: Fixture>() {
    let mut world = world::<F>().await;
    world.specs[0].on_reject = OnReject::Abort;
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let rows = |stock: i64| {
        [
            insert("item", &format!("3|cocoa|{stock}|NULL")),
            insert("line", "30|3"),
            update("item", "1|tea|10|1.50", "1|tea|11|1.50"),
            delete("item", "2|milk|1|1.00"),
        ]
    };
    let upload = anna.next_upload(&rows(-5));
    let outcome = anna.apply(upload.clone()).await;
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let counts = [
        result.inserts,
        result.updates,
        result.deletes,
        result.refused,
    ];
    assert_eq!(counts, [0, 0, 0, 4]);
    let query = "SELECT id, name, stock FROM item ORDER BY 1";
    assert_eq!(world.fixture.query(query).await, ["1|tea|10", "2|milk|1"]);
    let kept = find(&world, true).await;
    assert_eq!(kept.len(), 4);
    for it in &kept {
        match (&*it.table, &*it.key) {
            ("item", "[3]") => assert_eq!(it.code, "check"),
            ("line", "[30]") => assert_eq!(it.code, "foreign_key"),
            _ => {
                assert_eq!(it.code, "aborted");
                let begin = "row [3] of table item was refused: ";
                assert!(it.reason.starts_with(begin), "{}", it.reason);
            }
        }
    }
    // Its answer was lost.
    let again = anna.apply(upload).await;
    assert!(
        matches!(&again, UploadOutcome::AlreadyApplied { result } if result.refused == 4),
        "{again:?}"
    );
    anna.upload(&rows(5)).await;
    assert_eq!(world.fixture.query(query).await, ["1|tea|11", "3|cocoa|5"]);
    assert_eq!(find(&world, true).await, []);
}

/// The items are published without their stock from now on; remotes do not know that yet.
async fn drop_stock<F: Fixture>(world: &mut DeployedCentre<F>) {
    let columns = ["id", "name", "price"].map(str::to_owned);
    world.specs[0].tables[0].columns = Some(columns.to_vec());
    world.deploy().await.unwrap();
}

pub async fn a_dropped_column_is_not_the_cause_for_which_an_upload_is_aborted<F: Fixture>() {
    let mut world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.specs[0].on_reject = OnReject::Abort;
    drop_stock(&mut world).await;
    let taken = update("item", "1|tea|10|1.50", "1|chai|12|1.50");
    let upload = anna.next_upload(&[taken.clone(), insert("item", "3|milk|5|NULL")]);
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(&outcome, UploadOutcome::Applied { result, .. } if result.refused == 2),
        "{outcome:?}"
    );
    let cause = open(&world, "item", "[3]").await;
    assert_eq!(cause.code, "key_in_use");
    let innocent = open(&world, "item", "[1]").await;
    assert_eq!(innocent.code, "aborted");
    let begin = "row [3] of table item was refused: ";
    assert!(innocent.reason.starts_with(begin), "{}", innocent.reason);

    // Alone, the column aborts nothing: its row is taken, and the value is kept for people.
    let upload = anna.next_upload(&[taken]);
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(&outcome, UploadOutcome::Applied { result, .. } if result.updates == 1),
        "{outcome:?}"
    );
    let query = "SELECT name, stock FROM item WHERE id = 1";
    assert_eq!(world.fixture.query(query).await, ["chai|10"]);
    let dropped = open(&world, "item", "[1]").await;
    assert_eq!((&*dropped.code, dropped.attempts), ("not_published", 1));
    assert_eq!(dropped.row, r#"{"id":1,"stock":12}"#);
}

pub async fn a_row_that_is_taken_without_a_dropped_column_closes_its_refusal<F: Fixture>() {
    let mut world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("item", "3|cocoa|-5|NULL")]).await;
    assert_eq!(open(&world, "item", "[3]").await.code, "check");
    drop_stock(&mut world).await;
    let upload = anna.next_upload(&[insert("item", "3|cocoa|5|NULL")]);
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(&outcome, UploadOutcome::Applied { result, .. } if result.inserts == 1),
        "{outcome:?}"
    );
    let kept = open(&world, "item", "[3]").await;
    assert_eq!((&*kept.code, kept.attempts), ("not_published", 1));
    let all = find(&world, false).await;
    let ended = all.into_iter().filter_map(|it| Some((it.key, it.settled?)));
    let ended: Vec<_> = ended.map(|(key, end)| (key, end.outcome)).collect();
    assert_eq!(ended, [("[3]".to_owned(), RefusalOutcome::Taken)]);
}
