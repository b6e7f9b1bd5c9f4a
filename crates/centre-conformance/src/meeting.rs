//! Inserts of two remotes that meet under one key, where other rows refer to them: what a remote
//! inserted under its own row is never taken for a part of the other's.

use tidewater_centre::{ConflictSpec, OnReject, SettleOutcome, TableSpec, UploadMode};
use tidewater_centre::{Judgement, RefusedChoice, RefusedRowAction};
use tidewater_protocol::Code;
use tidewater_protocol::message::{ForgottenRefusal, GivenUp};

use crate::families::follows;
use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, update};
use crate::world::{DeployedCentre, NOW_MS, everyone};

const DDL: &str = "
    CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, customer TEXT NOT NULL, n INTEGER);
    CREATE TABLE line (order_id INTEGER NOT NULL REFERENCES orders, product TEXT NOT NULL,
        n INTEGER NOT NULL, PRIMARY KEY (order_id, product));
    CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, order_id INTEGER, product TEXT,
        body TEXT, FOREIGN KEY (order_id, product) REFERENCES line)";

fn tables(resolve: &str, is_followed: bool) -> Vec<TableSpec> {
    let conflict = ConflictSpec {
        resolve: vec![resolve.into()],
        ..ConflictSpec::default()
    };
    let orders = TableSpec {
        conflict,
        ..everyone("orders")
    };
    match is_followed {
        true => vec![orders, follows("line", "orders"), follows("note", "line")],
        false => vec![orders, everyone("line"), everyone("note")],
    }
}

const LINES: &str = "SELECT order_id, product, n FROM line ORDER BY 1, 2";

/// Berta's order is there when anna's arrives with lines, and a note to one of them.
async fn meet<F: Fixture>(world: &DeployedCentre<F>) -> (TestRemote, Vec<String>) {
    let mut anna = TestRemote::synced(world, "anna").await;
    let mut berta = TestRemote::synced(world, "berta").await;
    berta
        .upload(&[
            insert("orders", "10|Nora|1"),
            insert("line", "10|apples|1"),
            insert("orders", "11|Nora|1"),
        ])
        .await;
    let told = anna
        .upload(&[
            insert("orders", "10|Sven|1"),
            insert("line", "10|bananas|2"),
            insert("note", "1|10|bananas|ripe"),
            insert("orders", "12|Sven|1"),
        ])
        .await;
    (anna, told)
}

pub async fn what_refers_to_an_insert_that_met_another_is_refused_with_it<F: Fixture>() {
    for is_followed in [true, false] {
        for resolve in [
            "server_wins",
            "park",
            "earlier(n)",
            "client_wins",
            "additive(n)",
        ] {
            let resolve = match resolve {
                "earlier(n)" => "minimum(n)",
                other => other,
            };
            let is_mixed = !is_followed && ["client_wins", "additive(n)"].contains(&resolve);
            if is_mixed {
                // The operator has said that both rows are one.
                continue;
            }
            let world = DeployedCentre::<F>::new(DDL, tables(resolve, is_followed)).await;
            let (_, told) = meet(&world).await;
            assert_eq!(
                told,
                [
                    "1 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused",
                    "refused orders [10] Insert key_in_use: key in use: somebody else has inserted \
                     another row under it; give this one a new key",
                    "refused line [10|bananas] Insert foreign_key: the row that it refers to was \
                     refused: orders [10]",
                    "refused note [1] Insert foreign_key: the row that it refers to was refused: \
                     line [10,\"bananas\"]",
                ],
                "{resolve}"
            );
            assert_eq!(world.fixture.query(LINES).await, ["10|apples|1"]);
            let refused = world.centre.refused().await.unwrap();
            let parents: Vec<_> = refused.iter().map(|it| it.parent.clone()).collect();
            let of = |table: &str, key: &str| Some((table.to_owned(), key.to_owned()));
            let line = of("line", "[10,\"bananas\"]");
            assert_eq!(parents, [None, of("orders", "[10]"), line], "{resolve}");
        }
    }
}

pub async fn an_upload_that_goes_in_whole_is_refused_with_an_order_that_met_another<F: Fixture>() {
    for upload in [UploadMode::Transactional, UploadMode::Net] {
        let mut world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
        world.specs[0].upload = upload;
        world.specs[0].on_reject = OnReject::Abort;
        world.deploy().await.unwrap();
        let (_, told) = meet(&world).await;
        assert_eq!(
            told[0],
            "0 inserted, 0 updated, 0 deleted, 0 conflicts, 4 refused"
        );
        assert_eq!(world.fixture.query(LINES).await, ["10|apples|1"]);
    }
}

/// Each row below the order meets a row of the other family, and would lose, be merged or win.
pub async fn lines_that_all_meet_others_are_refused_with_their_order<F: Fixture>() {
    for is_followed in [true, false] {
        for resolve in ["server_wins", "client_wins", "additive(n)", "park"] {
            let mut tables = tables("server_wins", is_followed);
            tables[1].conflict.resolve = vec![resolve.into()];
            let world = DeployedCentre::<F>::new(DDL, tables).await;
            let mut berta = TestRemote::synced(&world, "berta").await;
            let mut anna = TestRemote::synced(&world, "anna").await;
            berta
                .upload(&[
                    insert("orders", "10|Nora|1"),
                    insert("line", "10|apples|1"),
                    insert("line", "10|plums|1"),
                    insert("note", "1|10|apples|green"),
                ])
                .await;
            let told = anna
                .upload(&[
                    insert("orders", "10|Sven|1"),
                    insert("line", "10|apples|2"),
                    insert("line", "10|plums|1"),
                    insert("note", "1|10|apples|red"),
                ])
                .await;
            assert_eq!(
                told[0], "0 inserted, 0 updated, 0 deleted, 0 conflicts, 4 refused",
                "{resolve} {told:?}"
            );
            assert_eq!(
                world.fixture.query(LINES).await,
                ["10|apples|1", "10|plums|1"],
                "{resolve}"
            );
            let notes = world.fixture.query("SELECT body FROM note").await;
            assert_eq!(notes, ["green"], "{resolve}");
            let refused = world.centre.refused().await.unwrap();
            let named = refused.iter().filter(|it| it.parent.is_some()).count();
            assert_eq!(named, 3, "{resolve} {refused:?}");
        }
    }
}

/// The remote may not have heard yet that its order was refused, or its user has gone on with it.
pub async fn what_is_uploaded_later_under_a_refused_insert_is_refused<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let (mut anna, _) = meet(&world).await;
    let told = anna
        .upload(&[
            insert("line", "10|cherries|3"),
            insert("note", "2|10|cherries|red"),
            insert("line", "12|cherries|3"),
        ])
        .await;
    assert_eq!(
        told[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused"
    );
    assert!(told[1].contains("was refused: orders [10]"), "{told:?}");
    assert_eq!(
        world.fixture.query(LINES).await,
        ["10|apples|1", "12|cherries|3"]
    );
    // What is changed to refer to it, too.
    let told = anna
        .upload(&[
            insert("note", "3|12|cherries|sour"),
            insert("line", "11|plums|1"),
        ])
        .await;
    assert!(told[0].starts_with("2 inserted"), "{told:?}");
    let told = anna
        .upload(&[update("note", "3|12|cherries|sour", "3|10|bananas|sour")])
        .await;
    assert_eq!(
        told[0],
        "0 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    // Others are not concerned.
    let mut berta = TestRemote::synced(&world, "berta").await;
    let told = berta.upload(&[insert("line", "10|dates|1")]).await;
    assert!(told[0].starts_with("1 inserted"), "{told:?}");
}

/// Anna's order was refused before the centre was restored. Alone, and in one transaction with others.
pub async fn what_refers_to_a_refused_insert_that_the_centre_forgot_is_refused<F: Fixture>() {
    for is_shared in [false, true] {
        let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        berta.upload(&[insert("orders", "10|Nora|1")]).await;
        let mut upload = anna.next_upload(&[insert("line", "10|bananas|2")]);
        upload.forgotten_refusals = vec![ForgottenRefusal {
            table: "orders".into(),
            key: "[10]".into(),
            values: r#"{"id":10}"#.into(),
        }];
        let mut uploads = vec![upload];
        if is_shared {
            uploads.push(berta.next_upload(&[insert("line", "10|apples|1")]));
        }
        world.worker().await.apply(uploads).await.unwrap();
        let lines: &[&str] = if is_shared { &["10|apples|1"] } else { &[] };
        assert_eq!(world.fixture.query(LINES).await, lines);
        let refused = world.centre.refused().await.unwrap();
        let refused: Vec<_> = refused.iter().map(|it| (&*it.key, &it.parent)).collect();
        let order = Some(("orders".to_owned(), "[10]".to_owned()));
        assert_eq!(refused, [("[10,\"bananas\"]", &order)]);
    }
}

pub async fn an_order_under_a_new_key_takes_its_lines_along<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let (mut anna, _) = meet(&world).await;
    let given_up = |table: &str, key: &str| GivenUp {
        table: table.into(),
        key: key.into(),
        sequence: anna.sequence,
    };
    let told = vec![
        given_up("orders", "[10]"),
        given_up("line", "[10,\"bananas\"]"),
        given_up("note", "[1]"),
    ];
    anna.given_up = told;
    let told = anna
        .upload(&[
            insert("orders", "13|Sven|1"),
            insert("line", "13|bananas|2"),
            insert("note", "1|13|bananas|ripe"),
            // Of the order that was there, which it may see now.
            insert("line", "10|plums|1"),
        ])
        .await;
    assert!(told[0].starts_with("4 inserted"), "{told:?}");
    assert_eq!(world.centre.refused().await.unwrap().len(), 0);
}

pub async fn lines_are_taken_when_the_order_is_replayed<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let (mut anna, _) = meet(&world).await;
    world.execute("DELETE FROM line").await;
    world.execute("DELETE FROM orders WHERE id = 10").await;
    for refused in world.centre.refused().await.unwrap() {
        let choice = RefusedChoice {
            refused: refused.id,
            action: RefusedRowAction::Replay,
            force: false,
            judgement: Judgement::default(),
            by: "olga".into(),
            now_ms: NOW_MS,
        };
        let settled = world.worker().await.settle_refused(choice).await.unwrap();
        assert!(
            matches!(settled, SettleOutcome::Settled { .. }),
            "{settled:?}"
        );
    }
    assert_eq!(world.fixture.query(LINES).await, ["10|bananas|2"]);
    let told = anna.upload(&[insert("line", "10|plums|1")]).await;
    assert!(told[0].starts_with("1 inserted"), "{told:?}");
}

/// Two equal orders are one, and so what refers to either.
pub async fn equal_inserts_with_children_are_one<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    for (remote, product) in [(&mut anna, "apples"), (&mut berta, "bananas")] {
        let line = format!("10|{product}|1");
        let told = remote
            .upload(&[insert("orders", "10|Nora|1"), insert("line", &line)])
            .await;
        assert!(told[0].starts_with("2 inserted"), "{told:?}");
    }
}

/// An operator's replay of what is refused, row by row and oldest first: what is settled.
async fn replay_all<F: Fixture>(world: &DeployedCentre<F>) -> Vec<String> {
    let mut settled = Vec::new();
    for refused in world.centre.refused().await.unwrap() {
        let choice = RefusedChoice {
            refused: refused.id,
            action: RefusedRowAction::Replay,
            force: true,
            judgement: Judgement::default(),
            by: "olga".into(),
            now_ms: NOW_MS,
        };
        let outcome = world.worker().await.settle_refused(choice).await.unwrap();
        if matches!(outcome, SettleOutcome::Settled { .. }) {
            settled.push(format!("{} {}", refused.table, refused.key));
        }
    }
    settled
}

/// The rows of two families with equal lines: anna's are refused.
async fn meet_with_equal_lines<F: Fixture>(world: &DeployedCentre<F>) -> TestRemote {
    let mut anna = TestRemote::synced(world, "anna").await;
    let mut berta = TestRemote::synced(world, "berta").await;
    let family = |customer: &str, note: i64| {
        [
            insert("orders", &format!("10|{customer}|1")),
            insert("line", "10|apples|1"),
            insert("line", "10|plums|2"),
            insert("note", &format!("{note}|10|apples|{customer}")),
        ]
    };
    berta.upload(&family("Nora", 1)).await;
    let told = anna.upload(&family("Sven", 2)).await;
    assert!(told[0].ends_with("4 refused"), "{told:?}");
    anna
}

/// Where an equal row is under somebody else's parent, it is not the refused one.
pub async fn what_is_below_a_refused_row_is_not_replayed_into_another_family<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let mut anna = meet_with_equal_lines(&world).await;
    assert_eq!(replay_all(&world).await, [""; 0]);
    assert_eq!(world.centre.refused().await.unwrap().len(), 4);
    let notes = "SELECT id, body FROM note";
    assert_eq!(world.fixture.query(notes).await, ["1|Nora"]);
    // All of it is there when the device sends it under a key of its own.
    let sequence = anna.sequence;
    let given_up = |table: &str, key: &str| GivenUp {
        table: table.into(),
        key: key.into(),
        sequence,
    };
    anna.given_up = vec![
        given_up("orders", "[10]"),
        given_up("line", "[10,\"apples\"]"),
        given_up("line", "[10,\"plums\"]"),
        given_up("note", "[2]"),
    ];
    anna.upload(&[
        insert("orders", "13|Sven|1"),
        insert("line", "13|apples|1"),
        insert("line", "13|plums|2"),
        insert("note", "2|13|apples|Sven"),
    ])
    .await;
    let lines = ["10|apples|1", "10|plums|2", "13|apples|1", "13|plums|2"];
    assert_eq!(world.fixture.query(LINES).await, lines);
    assert_eq!(world.centre.refused().await.unwrap().len(), 0);
}

/// When the key is free, the family comes, row by row.
pub async fn a_family_is_replayed_when_its_parent_is_in<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    meet_with_equal_lines(&world).await;
    let emptied = "DELETE FROM note; DELETE FROM line; DELETE FROM orders";
    world.execute(emptied).await;
    assert_eq!(replay_all(&world).await.len(), 4);
    let notes = "SELECT id, order_id, body FROM note";
    assert_eq!(world.fixture.query(notes).await, ["2|10|Sven"]);
    let orders = world.fixture.query("SELECT id, customer FROM orders").await;
    assert_eq!(orders, ["10|Sven"]);
}

/// The rows below it would stay behind: the device gives it another key, and takes them along.
pub async fn an_operator_gives_no_refused_row_another_key_that_others_refer_to<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, tables("server_wins", true)).await;
    let (mut anna, _) = meet(&world).await;
    anna.upload(&[insert("orders", "11|Sven|1")]).await;
    let edit = async |table: &str, key: &str, values: &str| {
        let refused = world.centre.refused().await.unwrap();
        let mut refused = refused.iter().filter(|it| it.table == table);
        let choice = RefusedChoice {
            refused: refused.find(|it| it.key == key).unwrap().id,
            action: RefusedRowAction::Edit(values.into()),
            force: true,
            judgement: Judgement::default(),
            by: "olga".into(),
            now_ms: NOW_MS,
        };
        world.worker().await.settle_refused(choice).await.unwrap()
    };
    let is_refused = |outcome: &SettleOutcome, with: &str| {
        matches!(outcome,
        SettleOutcome::Refused { code: Code::RowKeyInUse, reason } if reason.contains(with))
    };
    let outcome = edit("orders", "[10]", r#"{"id":77}"#).await;
    assert!(is_refused(&outcome, "line [10,\"bananas\"]"), "{outcome:?}");
    let outcome = edit("line", r#"[10,"bananas"]"#, r#"{"product":"figs"}"#).await;
    assert!(is_refused(&outcome, "note [1]"), "{outcome:?}");
    // It may have rows below it that are not sent yet.
    let outcome = edit("orders", "[11]", r#"{"id":78}"#).await;
    assert!(is_refused(&outcome, "others of the device"), "{outcome:?}");
    assert_eq!(world.centre.refused().await.unwrap().len(), 4);
    let orders = world.fixture.query("SELECT id FROM orders ORDER BY id");
    assert_eq!(orders.await, ["10", "11", "12"]);
    // Nobody refers to a note.
    world
        .execute("INSERT INTO line VALUES (12, 'figs', 1)")
        .await;
    let outcome = edit("note", "[1]", r#"{"id":5,"order_id":12,"product":"figs"}"#).await;
    assert!(
        matches!(outcome, SettleOutcome::Settled { .. }),
        "{outcome:?}"
    );
}
