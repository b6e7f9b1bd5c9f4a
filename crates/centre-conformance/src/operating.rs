//! Interleaving 35. What an operator has written again goes the way of an upload: by the same scripts, handlers and
//! resolvers, and what these say counts.

use std::collections::BTreeMap;

use tidewater_centre::records::{ConflictOutcome, RefusedRecord};
use tidewater_centre::{
    AddedSum, ConflictChoice, ConflictDetection, ConflictSpec, ConflictVersion, ContendedOutcome,
    HandledSpec, Judgement, RefusedChoice, RefusedRowAction, Resolution, RowVerdict, ScriptSpec,
    SettleOutcome, TableSpec, UploadOutcome,
};
use tidewater_protocol::{Code, Value};

use crate::families::follows;
use crate::fixture::Fixture;
use crate::remote::{RowChange, TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, NOW_MS, everyone};

const DDL: &str = "
    CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
        stock INTEGER CHECK (stock >= 0));
    CREATE TABLE journal (line TEXT NOT NULL);
    INSERT INTO item VALUES (1, 'tea', 10)";

const ITEMS: &str = "SELECT id, name, stock FROM item ORDER BY id";
const JOURNAL: &str = "SELECT line FROM journal ORDER BY line";

fn item(resolve: &[&str]) -> TableSpec {
    TableSpec {
        conflict: ConflictSpec {
            detect: ConflictDetection::Row,
            resolve: resolve.iter().map(|&it| it.to_owned()).collect(),
            ..ConflictSpec::default()
        },
        ..everyone("item")
    }
}

async fn world<F: Fixture>(item: TableSpec, scripts: &[(&str, &str)]) -> DeployedCentre<F> {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await;
    world.specs[0].tables[0] = item;
    let scripts = scripts.iter();
    let scripts = scripts.map(|(event, sql)| {
        let is_of_connection = ["begin_synchronization", "end_upload"].contains(event);
        let table = match is_of_connection {
            true => "connection",
            false => "item",
        };
        ScriptSpec::at("scripts", ["default", table, event], *sql)
    });
    world.specs[0].scripts = scripts.collect();
    world.deploy().await.unwrap();
    world
}

fn replay(refused: i64, force: bool) -> RefusedChoice {
    RefusedChoice {
        refused,
        action: RefusedRowAction::Replay,
        force,
        judgement: Judgement::default(),
        by: "olga".into(),
        now_ms: NOW_MS + 5,
    }
}

fn choose(conflict: i64, version: ConflictVersion) -> ConflictChoice {
    ConflictChoice {
        conflict,
        version,
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

async fn resolve<F: Fixture>(world: &DeployedCentre<F>, choice: ConflictChoice) -> SettleOutcome {
    let mut worker = world.worker().await;
    worker.settle_conflict(choice).await.unwrap()
}

async fn only_refused<F: Fixture>(world: &DeployedCentre<F>) -> RefusedRecord {
    let mut refused = world.centre.refused().await.unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    refused.remove(0)
}

/// The same, where others have changed the stock, too: what was added to it.
fn sum(id: i64, name: &str, stock: i64, difference: &str) -> SettleOutcome {
    let SettleOutcome::Settled { row, .. } = row(id, name, stock) else {
        unreachable!("it is settled");
    };
    let added = vec![AddedSum {
        column: "stock".into(),
        difference: difference.into(),
    }];
    SettleOutcome::Settled { row, added }
}

fn row(id: i64, name: &str, stock: i64) -> SettleOutcome {
    let row = Some(format!(r#"{{"id":{id},"name":"{name}","stock":{stock}}}"#));
    SettleOutcome::settled(row)
}

pub async fn a_replayed_row_is_written_by_its_scripts<F: Fixture>() {
    let world = world::<F>(
        everyone("item"),
        &[
            (
                "upload_insert",
                "INSERT INTO item (id, name, stock)
                     VALUES ({r.id}, {r.name} || ' of ' || {s.username} || {u.shop}, {r.stock});
                 INSERT INTO journal (line) VALUES ('insert')",
            ),
            (
                "upload_update",
                "UPDATE item SET name = {r.name}, stock = {r.stock} WHERE id = {r.id};
                 INSERT INTO journal (line) VALUES ('update')",
            ),
            (
                "begin_synchronization",
                "INSERT INTO journal (line) VALUES ('begin')",
            ),
            ("end_upload", "INSERT INTO journal (line) VALUES ('end')"),
        ],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.parameters.insert("shop".into(), " in Bonn".into());
    anna.upload(&[insert("item", "3|milk|-5")]).await;
    world.execute("DELETE FROM journal").await;
    let refused = only_refused(&world).await;
    let outcome = settle(&world, replay(refused.id, false)).await;
    assert!(
        matches!(&outcome, SettleOutcome::Refused { code, .. } if *code == Code::RowCheck),
        "{outcome:?}"
    );
    assert_eq!(world.fixture.query(JOURNAL).await, [""; 0]);
    let edit = RefusedChoice {
        action: RefusedRowAction::Edit(r#"{"stock":5}"#.into()),
        ..replay(refused.id, false)
    };
    let outcome = settle(&world, edit).await;
    assert_eq!(outcome, row(3, "milk of anna in Bonn", 5));
    assert_eq!(
        world.fixture.query(JOURNAL).await,
        ["begin", "end", "insert"]
    );
    assert!(world.centre.refused().await.unwrap().is_empty());
}

pub async fn a_conflict_is_resolved_by_the_scripts_of_its_table<F: Fixture>() {
    let world = world::<F>(
        everyone("item"),
        &[
            (
                "upload_fetch",
                "SELECT id, name, stock FROM item WHERE id = {r.id}",
            ),
            (
                "upload_update",
                "UPDATE item SET name = {r.name}, stock = {r.stock} WHERE id = {r.id};
                 INSERT INTO journal (line) VALUES ({s.username})",
            ),
        ],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("UPDATE item SET name = 'Tee'").await;
    let told = anna.upload(&[update("item", "1|tea|10", "1|TEA|9")]).await;
    assert_eq!(told[1], "conflict item: 1|Tee|10");
    assert_eq!(world.fixture.query(JOURNAL).await, [""; 0]);
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    let outcome = resolve(&world, choose(conflict.id, ConflictVersion::Uploaded)).await;
    assert_eq!(outcome, row(1, "TEA", 9));
    assert_eq!(world.fixture.query(JOURNAL).await, ["anna"]);
}

/// Has a handler say something of the one row that an operator has sent.
fn say(verdict: Option<RowVerdict>) -> Judgement {
    let of_table: BTreeMap<u64, RowVerdict> = verdict.map(|it| (0, it)).into_iter().collect();
    Judgement {
        verdicts: BTreeMap::from([(0, of_table)]),
        ..Judgement::default()
    }
}

/// Uploads a row that its handler refuses.
async fn refused_by_handler<F: Fixture>(
    world: &DeployedCentre<F>,
    change: RowChange,
) -> RefusedRecord {
    let mut anna = TestRemote::new(world, "anna").await;
    let mut upload = anna.next_upload(&[change]);
    upload.verdicts = say(Some(RowVerdict::Refuse("we know it".into()))).verdicts;
    let outcome = anna.apply(upload).await;
    assert!(matches!(outcome, UploadOutcome::Applied { .. }));
    only_refused(world).await
}

pub async fn a_replayed_row_is_judged_by_its_handler<F: Fixture>() {
    for keeps_uploads in [false, true] {
        let table = TableSpec {
            handled: HandledSpec {
                upload: true,
                keeps_uploads,
                download: keeps_uploads,
            },
            ..everyone("item")
        };
        let world = world::<F>(table, &[]).await;
        world.execute("DELETE FROM item").await;
        let kept = refused_by_handler(&world, insert("item", "3|milk|5")).await;
        let outcome = settle(&world, replay(kept.id, true)).await;
        let SettleOutcome::Unjudged { upload } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(upload.0.context.user, "anna");
        assert_eq!(upload.0.tables[0].begin.table, "item");
        let judged = |verdict| RefusedChoice {
            judgement: say(verdict),
            ..replay(kept.id, true)
        };
        let refuse = RowVerdict::Refuse("we still know it".into());
        let outcome = settle(&world, judged(Some(refuse))).await;
        assert_eq!(
            outcome,
            SettleOutcome::Refused {
                code: Code::RowHandler,
                reason: "we still know it".into()
            }
        );
        assert_eq!(only_refused(&world).await.id, kept.id);
        assert_eq!(world.fixture.query(ITEMS).await, [""; 0]);
        let outcome = match keeps_uploads {
            true => settle(&world, judged(Some(RowVerdict::Handled))).await,
            false => {
                let change = vec![("stock".to_owned(), Value::Integer(4))];
                settle(&world, judged(Some(RowVerdict::Change(change)))).await
            }
        };
        let (expected, rows) = match keeps_uploads {
            true => (SettleOutcome::settled(None), vec![]),
            false => (row(3, "milk", 4), vec!["3|milk|4"]),
        };
        assert_eq!(outcome, expected);
        assert_eq!(world.fixture.query(ITEMS).await, rows);
        assert!(world.centre.refused().await.unwrap().is_empty());
    }
}

pub async fn a_replayed_row_meets_the_resolver_of_its_table<F: Fixture>() {
    let change = || update("item", "1|tea|10", "1|TEA|-1");
    let edit = |id: i64| RefusedChoice {
        action: RefusedRowAction::Edit(r#"{"stock":9}"#.into()),
        ..replay(id, false)
    };
    for (resolver, expected) in [
        ("server_wins", None),
        ("client_wins", Some(row(1, "TEA", 9))),
        ("additive(stock)", Some(sum(1, "Tee", 7, "-1"))),
    ] {
        let world = world::<F>(item(&[resolver]), &[]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        anna.upload(&[change()]).await;
        world
            .execute("UPDATE item SET name = 'Tee', stock = 8")
            .await;
        let kept = only_refused(&world).await;
        let outcome = settle(&world, edit(kept.id)).await;
        let theirs = r#"{"id":1,"name":"Tee","stock":8}"#.to_owned();
        let lost = SettleOutcome::Changed { row: Some(theirs) };
        assert_eq!(outcome, expected.unwrap_or(lost), "{resolver}");
    }
    let world = world::<F>(item(&["handler"]), &[]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[change()]).await;
    world.execute("UPDATE item SET stock = 8").await;
    let kept = only_refused(&world).await;
    let mut choice = edit(kept.id);
    let outcome = settle(&world, choice.clone()).await;
    let SettleOutcome::Contended { rows, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let resolution = Resolution {
        theirs: rows[0].theirs.clone(),
        becomes: ContendedOutcome::Remote,
    };
    let resolutions = &mut choice.judgement.resolutions;
    resolutions.insert(rows[0].row.clone(), resolution);
    assert_eq!(settle(&world, choice).await, row(1, "TEA", 9));
}

/// Of a sum the difference is written, with force and without.
pub async fn a_replayed_sum_is_a_difference<F: Fixture>() {
    for force in [false, true] {
        let world = world::<F>(item(&["additive(stock)"]), &[]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        berta.upload(&[update("item", "1|tea|10", "1|tea|6")]).await;
        let told = anna.upload(&[update("item", "1|tea|10", "1|tea|2")]).await;
        assert!(told[1].starts_with("refused item [1]"), "{told:?}");
        let kept = only_refused(&world).await;
        let outcome = settle(&world, replay(kept.id, force)).await;
        let SettleOutcome::Refused { code, reason } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(code, Code::RowCheck);
        let tried = "; stock is a sum: -8 was added to 6";
        assert!(reason.ends_with(tried), "{reason}");
        world.execute("UPDATE item SET stock = 9").await;
        assert_eq!(
            settle(&world, replay(kept.id, force)).await,
            sum(1, "tea", 1, "-8")
        );
        assert_eq!(world.fixture.query(ITEMS).await, ["1|tea|1"]);
    }
}

/// A remote that sends once more what an operator has replayed may send the difference twice. What it
/// does after it has heard of the replay adds up, whatever else it sends again with it.
pub async fn a_sum_that_its_remote_sends_after_the_replay_waits_for_the_operator<F: Fixture>() {
    for retried in [vec![1], vec![0]] {
        let world = world::<F>(item(&["additive(stock)"]), &[]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world.execute("UPDATE item SET stock = 1").await;
        anna.upload(&[update("item", "1|tea|10", "1|tea|2")]).await;
        world.execute("UPDATE item SET stock = 9").await;
        let kept = only_refused(&world).await;
        assert_eq!(kept.sequence, 1);
        assert_eq!(
            settle(&world, replay(kept.id, false)).await,
            sum(1, "tea", 1, "-8")
        );
        let mut upload = anna.next_upload(&[update("item", "1|tea|10", "1|tea|1")]);
        upload.retried = retried;
        let UploadOutcome::Applied { result, .. } = anna.apply(upload).await else {
            panic!("it is applied");
        };
        assert_eq!(result.conflicts, 1);
        let conflict = world.centre.conflicts().await.unwrap().pop().unwrap();
        assert!(conflict.is_open());
        assert_eq!(world.fixture.query(ITEMS).await, ["1|tea|1"]);
        anna.download().await;
        for (retried, stock) in [(vec![], 8), (vec![2], 7), (vec![], 6)] {
            let sold = format!("UPDATE item SET stock = {stock}");
            world.execute(&sold).await;
            let mut upload = anna.next_upload(&[update("item", "1|tea|1", "1|tea|0")]);
            upload.retried = retried;
            anna.apply(upload).await;
            let left = format!("1|tea|{}", stock - 1);
            assert_eq!(world.fixture.query(ITEMS).await, [left]);
        }
    }
}

/// A sum that waits for the operator is added when he chooses it, and one that is in is not added
/// once more.
pub async fn a_chosen_sum_counts_once<F: Fixture>() {
    let world = world::<F>(item(&["additive(stock)"]), &[]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut copy = TestRemote::synced(&world, "anna").await;
    anna.upload(&[update("item", "1|tea|10", "1|tea|7")]).await;
    let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|tea|6")]);
    upload.copied = true;
    copy.apply(upload).await;
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    assert_eq!(conflict.outcome, ConflictOutcome::Parked);
    let outcome = resolve(&world, choose(conflict.id, ConflictVersion::Uploaded)).await;
    assert_eq!(outcome, row(1, "tea", 3));

    let mut berta = TestRemote::synced(&world, "berta").await;
    world.execute("UPDATE item SET stock = 2").await;
    berta.upload(&[update("item", "1|tea|3", "1|TEA|2")]).await;
    let conflict = world.centre.conflicts().await.unwrap().remove(1);
    assert_eq!(conflict.outcome, ConflictOutcome::Merged);
    let outcome = resolve(&world, choose(conflict.id, ConflictVersion::Uploaded)).await;
    assert_eq!(outcome, row(1, "TEA", 1));
}

/// What others have added since is nothing that an operator has to insist on: it stays.
pub async fn a_chosen_sum_leaves_what_others_have_added_since<F: Fixture>() {
    for (version, stock) in [(ConflictVersion::Uploaded, 1), (ConflictVersion::Centre, 5)] {
        let world = world::<F>(item(&["additive(stock)"]), &[]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut copy = TestRemote::synced(&world, "anna").await;
        anna.upload(&[update("item", "1|tea|10", "1|tea|7")]).await;
        let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|tea|6")]);
        upload.copied = true;
        copy.apply(upload).await;
        anna.upload(&[update("item", "1|tea|7", "1|tea|5")]).await;
        let conflict = world.centre.conflicts().await.unwrap().remove(0);
        let outcome = resolve(&world, choose(conflict.id, version.clone())).await;
        assert_eq!(outcome, row(1, "tea", stock), "{version:?}");
        // What is not a sum is somebody else's by now.
        let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|TEA|9")]);
        upload.copied = true;
        copy.apply(upload).await;
        world.execute("UPDATE item SET name = 'Tee'").await;
        let conflict = world.centre.conflicts().await.unwrap().remove(1);
        let outcome = resolve(&world, choose(conflict.id, version.clone())).await;
        assert!(
            matches!(outcome, SettleOutcome::Changed { .. }),
            "{version:?}"
        );
    }
}

/// A copy has sold one that its original may have sold, too, and others have sold two.
async fn park_a_difference<F: Fixture>(world: &DeployedCentre<F>) -> i64 {
    let mut copy = TestRemote::synced(world, "anna").await;
    world.execute("UPDATE item SET stock = 7").await;
    let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|tea|9")]);
    upload.copied = true;
    copy.apply(upload).await;
    let conflict = world.centre.conflicts().await.unwrap().pop().unwrap();
    assert_eq!(conflict.outcome, ConflictOutcome::Parked);
    assert_eq!(world.fixture.query(ITEMS).await, ["1|tea|7"]);
    conflict.id
}

pub async fn a_chosen_difference_is_added_by_its_script<F: Fixture>() {
    const OF_ROWS: &str = "UPDATE item SET stock = stock + {r.stock} - {o.stock} WHERE id = {r.id}";
    const OF_SETS: &str = "UPDATE item SET stock = item.stock + r.stock - r.old_stock
         FROM {rows} AS r WHERE item.id = r.id";
    for (winner, event, sql) in [
        ("server_wins", "upload_update", OF_ROWS),
        ("server_wins", "upload_update", OF_SETS),
        ("script", "upload_new_row_insert", OF_ROWS),
    ] {
        for force in [false, true] {
            let world = world::<F>(item(&[winner]), &[(event, sql)]).await;
            let id = park_a_difference(&world).await;
            let wanted = ConflictChoice {
                force,
                ..choose(id, ConflictVersion::Uploaded)
            };
            assert_eq!(resolve(&world, wanted).await, row(1, "tea", 6), "{sql}");
            assert_eq!(world.fixture.query(ITEMS).await, ["1|tea|6"], "{sql}");
        }
        // It counts, too, where the row is what the copy wanted.
        let world = world::<F>(item(&[winner]), &[(event, sql)]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut copy = TestRemote::synced(&world, "anna").await;
        anna.upload(&[update("item", "1|tea|10", "1|tea|9")]).await;
        let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|tea|9")]);
        upload.copied = true;
        copy.apply(upload).await;
        let conflict = world.centre.conflicts().await.unwrap().pop().unwrap();
        let outcome = resolve(&world, choose(conflict.id, ConflictVersion::Uploaded)).await;
        assert_eq!(outcome, row(1, "tea", 8), "{sql}");
    }
    // A script that writes what it is given, if nobody has changed the row, leaves that alone.
    let exact = "UPDATE item SET stock = {r.stock} WHERE id = {r.id} AND stock = {o.stock}";
    let world = world::<F>(everyone("item"), &[("upload_update", exact)]).await;
    let id = park_a_difference(&world).await;
    let outcome = resolve(&world, choose(id, ConflictVersion::Uploaded)).await;
    assert!(
        matches!(&outcome, SettleOutcome::Refused { reason, .. } if reason.contains("scripts")),
        "{outcome:?}"
    );
    let given = ConflictVersion::Given(Some(r#"{"stock":5}"#.into()));
    let outcome = resolve(&world, choose(id, given)).await;
    assert_eq!(outcome, row(1, "tea", 5));
}

pub async fn a_handler_is_asked_of_a_chosen_difference<F: Fixture>() {
    let merged = || ContendedOutcome::Merged(vec![("stock".into(), Value::Integer(6))]);
    for (becomes, force, stock) in [
        (merged(), false, Some(6)),
        (merged(), true, Some(6)),
        (ContendedOutcome::Remote, false, Some(9)),
        (ContendedOutcome::Parked, false, Some(9)),
        (ContendedOutcome::Centre, false, None),
        (ContendedOutcome::Centre, true, Some(9)),
    ] {
        let world = world::<F>(item(&["handler"]), &[]).await;
        let id = park_a_difference(&world).await;
        let mut wanted = ConflictChoice {
            force,
            ..choose(id, ConflictVersion::Uploaded)
        };
        let SettleOutcome::Contended { rows, .. } = resolve(&world, wanted.clone()).await else {
            panic!("the handler is not asked");
        };
        let theirs = rows[0].theirs.clone();
        let resolution = Resolution {
            theirs,
            becomes: becomes.clone(),
        };
        let resolutions = &mut wanted.judgement.resolutions;
        resolutions.insert(rows[0].row.clone(), resolution);
        let outcome = resolve(&world, wanted).await;
        let told = format!("{becomes:?} {force}");
        match stock {
            Some(stock) => assert_eq!(outcome, row(1, "tea", stock), "{told}"),
            None => assert!(
                matches!(outcome, SettleOutcome::Changed { .. }),
                "{told} {outcome:?}"
            ),
        }
        let left = format!("1|tea|{}", stock.unwrap_or(7));
        assert_eq!(world.fixture.query(ITEMS).await, [left], "{told}");
    }
}

/// The centre's version of a sum that waits leaves the remote's difference out, and nobody else's.
pub async fn a_sum_that_is_left_out_takes_nothing_from_others<F: Fixture>() {
    let world = world::<F>(item(&["additive(stock)"]), &[]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut copy = TestRemote::synced(&world, "anna").await;
    anna.upload(&[update("item", "1|tea|10", "1|tea|7")]).await;
    let mut upload = copy.next_upload(&[update("item", "1|tea|10", "1|tea|6")]);
    upload.copied = true;
    copy.apply(upload).await;
    anna.upload(&[update("item", "1|tea|7", "1|tea|5")]).await;
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    let insisting = ConflictChoice {
        force: true,
        ..choose(conflict.id, ConflictVersion::Centre)
    };
    assert_eq!(resolve(&world, insisting).await, row(1, "tea", 5));
    assert_eq!(world.fixture.query(ITEMS).await, ["1|tea|5"]);
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    assert!(!conflict.is_open());
}

/// Two rows under one key with rows below them stay two, whoever insists.
pub async fn a_replay_by_force_does_not_mix_two_families<F: Fixture>() {
    const ORDERS: &str = "
        CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, customer TEXT NOT NULL);
        CREATE TABLE line (order_id INTEGER NOT NULL REFERENCES orders, product TEXT NOT NULL,
            PRIMARY KEY (order_id, product))";
    let tables = vec![everyone("orders"), follows("line", "orders")];
    let world = DeployedCentre::<F>::new(ORDERS, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let order = [insert("orders", "7|Nora"), insert("line", "7|apples")];
    berta.upload(&order).await;
    anna.upload(&[insert("orders", "7|Sven")]).await;
    let kept = only_refused(&world).await;
    for force in [false, true] {
        let outcome = settle(&world, replay(kept.id, force)).await;
        assert!(
            matches!(&outcome, SettleOutcome::Refused { code, .. } if *code == Code::RowKeyInUse),
            "{outcome:?}"
        );
        let orders = world.fixture.query("SELECT id, customer FROM orders").await;
        assert_eq!(orders, ["7|Nora"]);
        assert_eq!(only_refused(&world).await.id, kept.id);
    }
}

/// An operator who insists writes over what others have made of a row, and nothing but what the
/// remote had changed.
pub async fn a_forced_replay_writes_what_the_remote_had_changed<F: Fixture>() {
    let world = world::<F>(everyone("item"), &[]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[update("item", "1|tea|10", "1|tea|-1")]).await;
    world
        .execute("UPDATE item SET name = 'Tee', stock = 8")
        .await;
    let kept = only_refused(&world).await;
    let edit = RefusedChoice {
        action: RefusedRowAction::Edit(r#"{"stock":9}"#.into()),
        ..replay(kept.id, true)
    };
    assert_eq!(settle(&world, edit).await, row(1, "Tee", 9));
    // A row that is gone comes back as it was sent.
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[update("item", "1|Tee|9", "1|Tee|-1")]).await;
    world.execute("DELETE FROM item").await;
    let kept = only_refused(&world).await;
    let edit = |force| RefusedChoice {
        action: RefusedRowAction::Edit(r#"{"stock":3}"#.into()),
        ..replay(kept.id, force)
    };
    let outcome = settle(&world, edit(false)).await;
    assert_eq!(outcome, SettleOutcome::Changed { row: None });
    assert_eq!(settle(&world, edit(true)).await, row(1, "Tee", 3));
    // A delete takes the row away, whatever it is by now.
    world
        .execute("CREATE TABLE part (item INTEGER REFERENCES item); INSERT INTO part VALUES (1)")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let told = anna.upload(&[delete("item", "1|Tee|3")]).await;
    assert!(told[1].starts_with("refused item [1] Delete"), "{told:?}");
    world
        .execute("DROP TABLE part; UPDATE item SET stock = 4")
        .await;
    let kept = only_refused(&world).await;
    let outcome = settle(&world, replay(kept.id, true)).await;
    assert_eq!(outcome, SettleOutcome::settled(None));
    assert_eq!(world.fixture.query(ITEMS).await, [""; 0]);
}
