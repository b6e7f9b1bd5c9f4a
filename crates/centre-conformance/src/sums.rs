//! Sums that several sides change: each change counts once, whether the values of two sides are
//! equal or not.

use tidewater_centre::records::ConflictOutcome;
use tidewater_centre::{
    ConflictDetection, ConflictSpec, Resolution, ScriptSpec, SyncUpload, TableSpec, UploadOutcome,
};
use tidewater_protocol::Value;
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, result_text, update};
use crate::world::{DeployedCentre, everyone};

const DDL: &str = "
    CREATE TABLE product (id INTEGER NOT NULL PRIMARY KEY, name TEXT, shelf TEXT,
        stock INTEGER CHECK (stock >= 0), price NUMERIC(8,2));
    CREATE TABLE journal (line TEXT NOT NULL)";

const TEN: &str = "1|pen|left|10|1.50";

fn product(detect: ConflictDetection, resolve: &[&str]) -> TableSpec {
    TableSpec {
        conflict: ConflictSpec {
            detect,
            resolve: resolve.iter().map(|&it| it.to_owned()).collect(),
            ..ConflictSpec::default()
        },
        ..everyone("product")
    }
}

async fn world<F: Fixture>(detect: ConflictDetection, resolve: &[&str]) -> DeployedCentre<F> {
    let world = DeployedCentre::<F>::new(DDL, vec![product(detect, resolve)]).await;
    world
        .execute("INSERT INTO product VALUES (1, 'pen', 'left', 10, 1.5)")
        .await;
    world
}

/// A script at an event adds the difference.
async fn scripted<F: Fixture>(resolve: &str, event: &str) -> DeployedCentre<F> {
    let mut world = world::<F>(ConflictDetection::Row, &["server_wins"]).await;
    world.specs[0].tables[0] = product(ConflictDetection::Row, &[resolve]);
    world.specs[0].scripts = vec![ScriptSpec::at(
        "scripts",
        ["default", "product", event],
        "UPDATE product SET stock = stock + {r.stock} - {o.stock} WHERE id = {r.id}",
    )];
    world.deploy().await.unwrap();
    world
}

async fn products<F: Fixture>(world: &DeployedCentre<F>) -> Vec<String> {
    let sql = "SELECT id, name, shelf, stock FROM product ORDER BY id";
    world.fixture.query(sql).await
}

pub async fn equal_changes_of_several_remotes_add_up<F: Fixture>() {
    for detect in [ConflictDetection::Row, ConflictDetection::Column] {
        let world = world::<F>(detect, &["additive(stock, price)"]).await;
        let mut remotes = Vec::new();
        for user in ["anna", "berta", "dora"] {
            remotes.push(TestRemote::synced(&world, user).await);
        }
        for remote in &mut remotes {
            let sold = [update("product", TEN, "1|pen|left|7|1.25")];
            remote.write(&sold);
            remote.upload(&sold).await;
            remote.download().await;
        }
        let stock = world.fixture.query("SELECT stock, price FROM product");
        assert_eq!(stock.await, ["1|0.75"], "{detect:?}");
        for remote in &mut remotes {
            remote.download().await;
            assert_eq!(remote.rows("product"), ["1|pen|left|1|0.75"]);
        }
    }
}

pub async fn equal_changes_add_up_beside_edits_of_other_columns<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Column, &["additive(stock)"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    anna.upload(&[update("product", TEN, "1|A|left|7|1.50")])
        .await;
    let told = berta
        .upload(&[update("product", TEN, "1|pen|B|7|1.50")])
        .await;
    assert_eq!(told[1..], ["merged product: 1|A|B|4|1.50"]);
    assert_eq!(products(&world).await, ["1|A|B|4"]);
}

pub async fn equal_inserts_of_several_remotes_add_up<F: Fixture>() {
    for detect in [ConflictDetection::Row, ConflictDetection::Column] {
        let world = world::<F>(detect, &["additive(stock)"]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        anna.upload(&[
            insert("product", "8|ink|left|5|1.00"),
            insert("product", "9|pad|left|5|1.00"),
        ])
        .await;
        berta
            .upload(&[
                insert("product", "8|ink|left|6|1.00"),
                insert("product", "9|pad|left|5|1.00"),
            ])
            .await;
        let rows = ["1|pen|left|10", "8|ink|left|11", "9|pad|left|10"];
        assert_eq!(products(&world).await, rows, "{detect:?}");
    }
}

pub async fn a_sum_that_a_check_forbids_is_refused_though_both_sides_agree<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let sold = [update("product", TEN, "1|pen|left|2|1.50")];
    anna.upload(&sold).await;
    let told = berta.upload(&sold).await;
    assert!(
        told[1].starts_with("refused product [1] Update check"),
        "{told:?}"
    );
    assert_eq!(products(&world).await, ["1|pen|left|2"]);
}

/// What is there of nothing, or of what is no number, cannot be added up.
pub async fn equal_values_that_are_no_numbers_stay<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)", "park"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let emptied = [update("product", TEN, "1|pen|left|NULL|1.50")];
    anna.upload(&emptied).await;
    let told = berta.upload(&emptied).await;
    assert_eq!(
        told,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert!(world.centre.conflicts().await.unwrap().is_empty());
}

/// Of what is no sum, two sides that have made the same of a row agree.
pub async fn equal_changes_stay_equal_without_a_sum<F: Fixture>() {
    for resolve in [
        "server_wins",
        "client_wins",
        "later(changed)",
        "average(stock)",
        "merge_text(name)",
        "park",
    ] {
        let ddl = "CREATE TABLE product (id INTEGER NOT NULL PRIMARY KEY, name TEXT,
            stock INTEGER, changed TIMESTAMP)";
        let world =
            DeployedCentre::<F>::new(ddl, vec![product(ConflictDetection::Row, &[resolve])]).await;
        world
            .execute("INSERT INTO product VALUES (1, 'pen', 10, '2026-01-01 10:00:00')")
            .await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        let old = anna.rows("product").remove(0);
        let sold = [update("product", &old, &old.replace("|10|", "|7|"))];
        anna.upload(&sold).await;
        let told = berta.upload(&sold).await;
        assert_eq!(
            told,
            ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"],
            "{resolve}"
        );
        let stock = world.fixture.query("SELECT stock FROM product").await;
        assert_eq!(stock, ["7"], "{resolve}");
    }
}

pub async fn a_handler_is_asked_of_equal_changes<F: Fixture>() {
    for detect in [ConflictDetection::Row, ConflictDetection::Column] {
        let world = world::<F>(detect, &["handler"]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        let sold = [update("product", TEN, "1|pen|left|7|1.50")];
        anna.upload(&sold).await;
        let mut upload = berta.next_upload(&sold);
        let UploadOutcome::Contended { rows } = berta.apply(upload.clone()).await else {
            panic!("the handler is not asked");
        };
        let asked = &rows[0];
        let stock = |it: &Option<Vec<(String, Value)>>| {
            let columns = it.iter().flatten();
            let mut stock = columns.filter(|it| it.0 == "stock");
            stock.next().map(|it| it.1.clone())
        };
        let [old, new, theirs] = [&asked.old, &asked.new, &asked.theirs].map(stock);
        assert_eq!((old, new.clone()), (Some(Value::Integer(10)), theirs));
        assert_eq!(new, Some(Value::Integer(7)));
        let merged = Resolution {
            theirs: asked.theirs.clone(),
            becomes: tidewater_centre::ContendedOutcome::Merged(vec![(
                "stock".to_owned(),
                Value::Integer(4),
            )]),
        };
        upload.resolutions.insert(asked.row.clone(), merged);
        let outcome = berta.apply(upload).await;
        assert!(matches!(outcome, UploadOutcome::Applied { .. }));
        assert_eq!(products(&world).await, ["1|pen|left|4"], "{detect:?}");
    }
}

pub async fn conflict_scripts_are_run_for_equal_changes<F: Fixture>() {
    let world = scripted::<F>("script", "upload_new_row_insert").await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let sold = [update("product", TEN, "1|pen|left|7|1.50")];
    anna.upload(&sold).await;
    let told = berta.upload(&sold).await;
    assert_eq!(told[1..], ["merged product: 1|pen|left|4|1.50"]);
    assert_eq!(products(&world).await, ["1|pen|left|4"]);
}

/// A repeated upload is one change by its number, whatever the values are.
pub async fn a_repeated_upload_of_a_sum_counts_once<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let sold = [update("product", TEN, "1|pen|left|7|1.50")];
    berta.upload(&sold).await;
    let upload = anna.next_upload(&sold);
    assert!(matches!(
        anna.apply(upload.clone()).await,
        UploadOutcome::Applied { .. }
    ));
    assert!(matches!(
        anna.apply(upload).await,
        UploadOutcome::AlreadyApplied { .. }
    ));
    assert_eq!(products(&world).await, ["1|pen|left|4"]);
}

/// A restored centre gets the differences back, each once, whatever else has come back before.
pub async fn sums_that_are_given_back_count_once_each<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)", "client_wins"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let mut copy = TestRemote::synced(&world, "berta").await;
    // Berta sold two when anna's three were known; it comes back first.
    for (remote, old, new) in [
        (&mut berta, "1|pen|left|7|1.50", "1|pen|left|5|1.50"),
        (&mut anna, TEN, "1|blue pen|left|7|1.50"),
    ] {
        let mut upload = remote.next_upload(&[update("product", old, new)]);
        upload.given_back = true;
        assert!(matches!(
            remote.apply(upload.clone()).await,
            UploadOutcome::Applied { .. }
        ));
        upload.context.remote_id = copy.id;
        upload.sequence = copy.sequence + 1;
        copy.sequence += 1;
        assert!(matches!(
            copy.apply(upload).await,
            UploadOutcome::Applied { .. }
        ));
    }
    // Of all else that was given back, the centre's row stands.
    assert_eq!(products(&world).await, ["1|pen|left|5"]);
}

async fn apply_copied(remote: &mut TestRemote, mut upload: SyncUpload) -> Vec<String> {
    upload.copied = true;
    match remote.apply(upload).await {
        UploadOutcome::Applied { result, .. } => result_text(&remote.schema, &result),
        other => panic!("{other:?}"),
    }
}

/// The original may have sent what its copy has pending, as part of another upload.
pub async fn a_sum_that_a_copy_may_send_twice_waits_for_the_operator<F: Fixture>() {
    for resolve in [&["additive(stock)", "client_wins"][..], &["handler"]] {
        for detect in [ConflictDetection::Row, ConflictDetection::Column] {
            let world = world::<F>(detect, resolve).await;
            let mut anna = TestRemote::synced(&world, "anna").await;
            let mut copy = TestRemote::synced(&world, "anna").await;
            anna.upload(&[update("product", TEN, "1|pen|left|7|1.50")])
                .await;
            for sold in ["1|pen|left|3|1.50", "1|pen|left|7|1.50"] {
                let upload = copy.next_upload(&[update("product", TEN, sold)]);
                let told = apply_copied(&mut copy, upload).await;
                assert_eq!(told[1..], ["conflict product: 1|pen|left|7|1.50"]);
                let kept = world.centre.conflicts().await.unwrap().pop().unwrap();
                assert_eq!(kept.outcome, ConflictOutcome::Parked);
                assert!(kept.is_open(), "{resolve:?}");
            }
            assert_eq!(products(&world).await, ["1|pen|left|7"]);
            // What nobody else has changed is no conflict.
            let upload =
                copy.next_upload(&[update("product", "1|pen|left|7|1.50", "1|pen|left|6|1.50")]);
            apply_copied(&mut copy, upload).await;
            assert_eq!(products(&world).await, ["1|pen|left|6"]);
        }
    }
}

pub async fn what_a_script_would_write_twice_of_a_copy_waits_for_the_operator<F: Fixture>() {
    for (resolve, event) in [
        ("script", "upload_new_row_insert"),
        ("server_wins", "upload_update"),
    ] {
        let world = scripted::<F>(resolve, event).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut copy = TestRemote::synced(&world, "anna").await;
        anna.upload(&[update("product", TEN, "1|pen|left|7|1.50")])
            .await;
        let upload = copy.next_upload(&[update("product", TEN, "1|pen|left|3|1.50")]);
        let told = apply_copied(&mut copy, upload).await;
        assert_eq!(
            told[1..],
            ["conflict product: 1|pen|left|7|1.50"],
            "{event}"
        );
        assert_eq!(products(&world).await, ["1|pen|left|7"], "{event}");
        let kept = world.centre.conflicts().await.unwrap().pop().unwrap();
        assert!(kept.is_open(), "{event}");
    }
}

/// Told with the result, what others have sold would count as what the remote's next change was made
/// from, where its answer was lost: then the script would add it back.
pub async fn what_a_script_has_added_to_others_changes_comes_with_a_download<F: Fixture>() {
    const OF_SETS: &str = "UPDATE product SET stock = product.stock + r.stock - r.old_stock
         FROM {rows} AS r WHERE product.id = r.id";
    for is_of_sets in [false, true] {
        let mut world = scripted::<F>("server_wins", "upload_update").await;
        if is_of_sets {
            let event = ["default", "product", "upload_update"];
            world.specs[0].scripts = vec![ScriptSpec::at("scripts", event, OF_SETS)];
            world.deploy().await.unwrap();
        }
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        berta
            .upload(&[update("product", TEN, "1|pen|left|8|1.50")])
            .await;
        for [old, new] in [["10", "9"], ["9", "8"]] {
            let of = |stock: &str| format!("1|pen|left|{stock}|1.50");
            let sold = [update("product", &of(old), &of(new))];
            anna.write(&sold);
            let told = anna.upload(&sold).await;
            assert_eq!(
                told,
                ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
            );
        }
        assert_eq!(products(&world).await, ["1|pen|left|6"], "{is_of_sets}");
        anna.download().await;
        assert_eq!(anna.rows("product"), ["1|pen|left|6|1.50"], "{is_of_sets}");
    }
}

/// Told with the result, what a trigger has made of a sum would count as what the remote's next change
/// was made from, which was made from what it uploaded.
pub async fn what_a_trigger_makes_of_a_sum_comes_with_a_download<F: Fixture>() {
    let trigger = match F::DIALECT {
        Dialect::Postgres => {
            "CREATE FUNCTION halve() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN NEW.stock := NEW.stock - 2; RETURN NEW; END';
             CREATE TRIGGER halve BEFORE UPDATE ON product FOR EACH ROW
                 WHEN (NEW.stock = 9) EXECUTE FUNCTION halve()"
        }
        Dialect::Sqlite => {
            "CREATE TRIGGER halve AFTER UPDATE ON product WHEN NEW.stock = 9 BEGIN
                 UPDATE product SET stock = NEW.stock - 2 WHERE id = NEW.id; END"
        }
        Dialect::Mysql => {
            "CREATE TRIGGER halve BEFORE UPDATE ON product FOR EACH ROW
                 SET NEW.stock = IF(NEW.stock = 9, NEW.stock - 2, NEW.stock)"
        }
    };
    for are_together in [false, true] {
        let world = world::<F>(ConflictDetection::Row, &["additive(stock)"]).await;
        world.execute(trigger).await;
        world
            .execute("INSERT INTO product VALUES (2, 'ink', 'left', 10, 1.5)")
            .await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        let sold = [update("product", TEN, "1|pen|left|9|1.50")];
        anna.write(&sold);
        let told = match are_together {
            false => anna.upload(&sold).await,
            true => {
                let upload = anna.next_upload(&sold);
                let others = berta.next_upload(&[update(
                    "product",
                    "2|ink|left|10|1.50",
                    "2|ink|left|6|1.50",
                )]);
                let outcomes = anna.worker.apply(vec![upload, others]).await.unwrap();
                let Some(UploadOutcome::Applied { result, own }) = outcomes.into_iter().next()
                else {
                    panic!("it is applied");
                };
                anna.own = Some(own);
                result_text(&world.schema(), &result)
            }
        };
        assert_eq!(told.len(), 1, "{told:?}");
        let again = [update("product", "1|pen|left|9|1.50", "1|pen|left|5|1.50")];
        anna.write(&again);
        anna.upload(&again).await;
        let stock = world
            .fixture
            .query("SELECT stock FROM product WHERE id = 1");
        assert_eq!(stock.await, ["3"], "{are_together}");
        anna.download().await;
        assert_eq!(anna.rows("product")[0], "1|pen|left|3|1.50");
    }
}

pub async fn equal_inserts_of_a_file_and_its_copy_are_one<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)"]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut copy = TestRemote::synced(&world, "anna").await;
    let new = [insert("product", "9|pad|left|5|1.00")];
    anna.upload(&new).await;
    let upload = copy.next_upload(&new);
    let told = apply_copied(&mut copy, upload).await;
    assert_eq!(
        told,
        ["1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(products(&world).await, ["1|pen|left|10", "9|pad|left|5"]);
}

/// Others change the row between the look at it and the write, again and again.
pub async fn sums_that_many_change_at_once_are_exact<F: Fixture>() {
    let world = world::<F>(ConflictDetection::Row, &["additive(stock)"]).await;
    let mut tasks = Vec::new();
    for number in 0..4 {
        let mut remote = TestRemote::synced(&world, &format!("user{number}")).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let old = remote.rows("product").remove(0);
                let mut values: Vec<String> = old.split('|').map(str::to_owned).collect();
                values[3] = (values[3].parse::<i64>().unwrap() + 1).to_string();
                let change = [update("product", &old, &values.join("|"))];
                let told = remote.upload(&change).await;
                assert!(told[0].contains("1 updated"), "{told:?}");
                remote.write(&change);
                remote.download().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(products(&world).await, ["1|pen|left|90"]);
}
