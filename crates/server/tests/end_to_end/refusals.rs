//! Refused rows in a full loop: whoever settles one, both sides end equal, and both say how.

use tidewater_centre::records::{RefusedFilter, RefusedRecord};
use tidewater_centre::{Judgement, RefusedChoice, RefusedRowAction, SettleOutcome};
use tidewater_client::RowSelection;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{Scenario, shop};
use crate::world::World;

const PRODUCTS: &str = "SELECT product_id, name FROM product ORDER BY product_id";

/// The shop, whose publication has this beside its tables.
fn shop_with(keys: &str) -> Scenario {
    let mut scenario = shop();
    scenario.publication = with(scenario.publication, keys);
    scenario
}

fn with(publication: &str, keys: &str) -> &'static str {
    let name = "name = \"main\"\n";
    publication
        .replacen(name, &format!("{name}{keys}\n"), 1)
        .leak()
}

fn kept<B: Backend>(world: &World<B>) -> Vec<RefusedRecord> {
    let filter = RefusedFilter {
        limit: 100,
        ..RefusedFilter::default()
    };
    let found = world
        .server
        .ask(async |centre| centre.find_refused(&filter).await);
    found.expect("they can be read")
}

/// What the centre says of its refused rows, by key.
fn of_centre<B: Backend>(world: &World<B>) -> Vec<String> {
    let kept = kept(world).into_iter();
    let mut told: Vec<String> = kept
        .map(|it| match it.settled {
            None => format!("{} {} open", it.table, it.key),
            Some(end) => format!("{} {} {} {}", it.table, it.key, end.outcome.name(), end.by),
        })
        .collect();
    told.sort();
    told
}

/// What the device says of them.
fn of_device(device: &mut Device) -> Vec<String> {
    let refused = device.refused().into_iter();
    let mut told: Vec<String> = refused
        .map(|it| format!("{} {} open", it.table, it.key))
        .collect();
    let settled = device.remote.settled_refused().expect("they can be read");
    told.extend(settled.into_iter().map(|it| {
        let (table, key) = (it.refused.table, it.refused.key);
        format!("{table} {key} {} {}", it.outcome, it.by)
    }));
    told.sort();
    told
}

fn both_say<B: Backend>(world: &World<B>, device: &mut Device, expected: &[&str]) {
    assert_eq!(of_centre(world), expected, "the centre");
    assert_eq!(of_device(device), expected, "the device");
}

fn settle<B: Backend>(
    world: &World<B>,
    (table, key): (&str, &str),
    action: RefusedRowAction,
) -> SettleOutcome {
    let mut open = kept(world).into_iter();
    let row = open.find(|it| it.table == table && it.key == key && it.settled.is_none());
    let choice = RefusedChoice {
        refused: row.expect("it is open").id,
        action,
        force: false,
        judgement: Judgement::default(),
        by: "olga".into(),
        now_ms: 1,
    };
    let settled = world.server.ask(async |centre| {
        let mut worker = centre.worker().await?;
        worker.settle_refused(choice).await
    });
    settled.expect("it is settled")
}

fn is_settled(outcome: &SettleOutcome) -> bool {
    matches!(outcome, SettleOutcome::Settled { .. })
}

fn what_an_operator_settles_the_device_hears_with_its_next_download<B: Backend>() {
    let world = World::<B>::open(shop());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit(
        "INSERT INTO product VALUES (100, '', 5), (101, '', 6);
         UPDATE product SET name = '', stock = 11 WHERE product_id = 1;
         DELETE FROM product WHERE product_id = 3;
         INSERT INTO customer VALUES (60, 1, 'same', 'one@x', '0.00');",
    );
    assert_eq!(ada.sync().refused, 4);
    let edit = |values: &str| RefusedRowAction::Edit(values.to_owned());
    let still_bad = settle(&world, ("product", "[100]"), edit(r#"{"name":" "}"#));
    assert!(
        matches!(still_bad, SettleOutcome::Refused { .. }),
        "{still_bad:?}"
    );
    let open = [
        "customer [60] open",
        "product [100] open",
        "product [101] open",
        "product [1] open",
    ];
    both_say(&world, &mut ada, &open);

    let edited = settle(&world, ("product", "[100]"), edit(r#"{"name":"paper"}"#));
    assert!(is_settled(&edited), "{edited:?}");
    let discard = || RefusedRowAction::Discard("no name".into());
    assert!(is_settled(&settle(&world, ("product", "[101]"), discard())));
    assert!(is_settled(&settle(&world, ("product", "[1]"), discard())));
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    let replayed = settle(&world, ("customer", "[60]"), RefusedRowAction::Replay);
    assert!(is_settled(&replayed), "{replayed:?}");

    // The first answer is lost.
    let download = |control: &Control| matches!(control, Control::DownloadBegin(_));
    let place = Place::message(Way::Down, download);
    ada.network.plan(place, Accident::CutInside);
    ada.try_sync().unwrap_err();
    ada.sync();
    let settled = [
        "customer [60] replayed olga",
        "product [100] edited olga",
        "product [101] discarded olga",
        "product [1] discarded olga",
    ];
    both_say(&world, &mut ada, &settled);
    bob.sync();
    assert_converged(&world, &[&ada, &bob]);
    assert_eq!(ada.rows(PRODUCTS), ["1|pen", "2|ink", "100|paper"]);
    assert_eq!(ada.pending(), 0);
    ada.sync();
    both_say(&world, &mut ada, &settled);
    assert_converged(&world, &[&ada]);
}

fn what_a_user_settles_the_centre_hears<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO product VALUES (100, '', 5), (101, '', 6);
         UPDATE product SET name = '' WHERE product_id IN (1, 2, 3);
         INSERT INTO customer VALUES (60, 1, 'same', 'one@x', '0.00');",
    );
    assert_eq!(ada.sync().refused, 6);
    let given_up: Vec<i64> = ada
        .refused()
        .into_iter()
        .filter(|it| ["[101]", "[2]"].contains(&&*it.key))
        .map(|it| it.id)
        .collect();
    let discarded = ada.remote.discard_refused(RowSelection::Ids(&given_up));
    assert_eq!(discarded.expect("they are there"), 2);
    // One is corrected as an application does, one is undone, and one is corrected by its number.
    ada.edit(
        "UPDATE product SET name = 'paper' WHERE product_id = 100;
         UPDATE product SET name = 'cap' WHERE product_id = 3",
    );
    let one = ada.refused().into_iter().find(|it| it.key == "[1]");
    let one = one.expect("it is refused").id;
    let error = ada.remote.edit_refused(one, r#"{"nam":"x"}"#).unwrap_err();
    assert!(
        error.to_string().contains("no synced column \"nam\""),
        "{error}"
    );
    ada.remote
        .edit_refused(one, r#"{"name":"pencil"}"#)
        .expect("it can be so");
    // Others were faster with a row, and gave way with another.
    world.execute("UPDATE product SET stock = 77 WHERE product_id = 1");
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    ada.remote
        .retry_refused(RowSelection::All)
        .expect("they are there");
    // The first upload reaches the centre, and its answer is lost.
    let result = |control: &Control| matches!(control, Control::ResultBegin(_));
    let place = Place::message(Way::Down, result);
    ada.network.plan(place, Accident::CutInside);
    ada.try_sync().unwrap_err();
    ada.sync();
    let settled = [
        "customer [60] taken ada",
        "product [100] taken ada",
        "product [101] given_up ada",
        "product [1] lost ada",
        "product [2] given_up ada",
        "product [3] given_up ada",
    ];
    both_say(&world, &mut ada, &settled);
    assert_converged(&world, &[&ada]);
    assert_eq!(ada.rows(PRODUCTS), ["1|pen", "2|ink", "3|cap", "100|paper"]);
    ada.sync();
    both_say(&world, &mut ada, &settled);
    assert_converged(&world, &[&ada]);
}

fn what_was_changed_again_meanwhile_is_an_ordinary_change<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    ada.edit("UPDATE product SET name = '' WHERE product_id IN (1, 2)");
    assert_eq!(ada.sync().refused, 2);
    let discard = || RefusedRowAction::Discard("no name".into());
    for key in ["[1]", "[2]"] {
        assert!(is_settled(&settle(&world, ("product", key), discard())));
    }
    ada.edit("UPDATE product SET name = 'pencil' WHERE product_id = 1");
    // Refused anew with the very sync that tells how the first attempt was settled.
    ada.edit("UPDATE product SET name = ' ' WHERE product_id = 2");
    assert_eq!(ada.sync().refused, 1);
    assert_eq!(
        of_device(&mut ada),
        ["product [1] taken ada", "product [2] open"]
    );
    let told = of_centre(&world);
    assert!(told.contains(&"product [2] open".to_owned()), "{told:?}");
    assert_eq!(world.rows(PRODUCTS), ["1|pencil", "2|ink", "3|cap"]);
    assert!(is_settled(&settle(&world, ("product", "[2]"), discard())));
    ada.sync();
    assert_eq!(
        of_device(&mut ada),
        ["product [1] taken ada", "product [2] discarded olga"]
    );
    assert_converged(&world, &[&ada]);
}

fn children_go_with_their_parent<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let family = |first: i64| {
        format!(
            "INSERT INTO customer VALUES ({first}, 1, 'same', 'one@x', '0.00');
             INSERT INTO invoice VALUES ({first}, 1, {first}, 'for it');"
        )
    };
    ada.edit(&family(60));
    ada.edit(&family(70));
    assert_eq!(ada.sync().refused, 4);
    let reasons = ada.refused().into_iter();
    let reasons = reasons
        .filter(|it| it.table == "invoice")
        .map(|it| it.reason);
    assert_eq!(
        reasons.collect::<Vec<String>>(),
        [60, 70].map(|it| format!("the row that it refers to was refused: customer [{it}]"))
    );
    // One is corrected, of the other one the reason goes.
    ada.edit("UPDATE customer SET email = 'same@x' WHERE customer_id = 60");
    assert_eq!(ada.sync().refused, 0);
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    let parent = ada.refused().into_iter().find(|it| it.table == "customer");
    let ids = [parent.expect("it is refused").id];
    let retried = ada.remote.retry_refused(RowSelection::Ids(&ids));
    assert_eq!(retried.expect("they are there"), 2);
    assert_eq!(ada.sync().refused, 0);
    let settled = [
        "customer [60] taken ada",
        "customer [70] taken ada",
        "invoice [60] taken ada",
        "invoice [70] taken ada",
    ];
    both_say(&world, &mut ada, &settled);
    assert_converged(&world, &[&ada]);
}

fn an_upload_goes_in_whole_or_not_at_all<B: Backend>() {
    let world = World::<B>::open(shop_with("on_reject = \"abort\""));
    let mut ada = world.synced("ada");
    ada.edit(
        "INSERT INTO product VALUES (100, '', 5), (101, 'fine', 6);
         UPDATE customer SET name = 'One' WHERE customer_id = 1;",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.uploaded.inserts), (3, 0));
    assert_eq!(world.rows(PRODUCTS), ["1|pen", "2|ink", "3|cap"]);
    let why = ada.refused().into_iter().find(|it| it.key == "[101]");
    let why = why.expect("it is refused with the other");
    assert_eq!(why.code, "aborted");
    assert!(
        why.reason
            .starts_with("row [100] of table product was refused: "),
        "{}",
        why.reason
    );
    // Something else goes alone.
    ada.edit("UPDATE product SET stock = 21 WHERE product_id = 2");
    assert_eq!(ada.sync().uploaded.updates, 1);
    assert_eq!(ada.refused().len(), 3);
    // What is corrected takes along what waits for it.
    ada.edit("UPDATE product SET name = 'paper' WHERE product_id = 100");
    let report = ada.sync();
    assert_eq!((report.refused, report.uploaded.inserts), (0, 2));
    let settled = [
        "customer [1] taken ada",
        "product [100] taken ada",
        "product [101] taken ada",
    ];
    both_say(&world, &mut ada, &settled);
    assert_converged(&world, &[&ada]);
}

/// A customer of a region that bob does not hold yet, and one whose e-mail is in use; then the
/// reasons go, and something else is deployed.
fn replayed<B: Backend>(keys: &str) -> (World<B>, Device) {
    let mut world = World::<B>::open(shop_with(keys));
    let mut bob = world.synced("bob");
    bob.edit("INSERT INTO customer VALUES (60, 2, 'same', 'one@x', '0.00')");
    assert_eq!(bob.sync().refused, 1);
    world.execute("UPDATE customer SET email = NULL WHERE customer_id = 1");
    for _ in 0..2 {
        assert_eq!(bob.sync().refused, 0);
        assert_eq!(bob.refused().len(), 1);
    }
    let publication = with(world.scenario.publication, "on_reject = \"abort\"");
    world.republish(publication);
    bob.network.redirect(world.server.address);
    for _ in 0..2 {
        bob.sync();
    }
    let refused = bob.refused().len();
    bob.edit("INSERT INTO customer VALUES (61, 1, 'of one', NULL, '0.00')");
    assert_eq!(bob.sync().refused, 1);
    assert_eq!(bob.refused().len(), refused + 1);
    world.execute("INSERT INTO assignment VALUES ('bob', 1)");
    for _ in 0..2 {
        bob.sync();
    }
    (world, bob)
}

fn what_was_refused_is_tried_again_after_a_deployment_and_with_a_new_partition<B: Backend>() {
    let (world, mut bob) = replayed::<B>("");
    let settled = ["customer [60] taken bob", "customer [61] taken bob"];
    both_say(&world, &mut bob, &settled);
    assert_converged(&world, &[&bob]);
}

fn nothing_is_tried_again_by_itself_where_the_publication_says_no<B: Backend>() {
    let (world, mut bob) = replayed::<B>("replay = \"manual\"");
    both_say(
        &world,
        &mut bob,
        &["customer [60] open", "customer [61] open"],
    );
    bob.remote
        .retry_refused(RowSelection::All)
        .expect("they are there");
    bob.sync();
    let settled = ["customer [60] taken bob", "customer [61] taken bob"];
    both_say(&world, &mut bob, &settled);
    assert_converged(&world, &[&bob]);
}

on_both_adapters!(
    what_an_operator_settles_the_device_hears_with_its_next_download,
    what_a_user_settles_the_centre_hears,
    what_was_changed_again_meanwhile_is_an_ordinary_change,
    children_go_with_their_parent,
    an_upload_goes_in_whole_or_not_at_all,
    what_was_refused_is_tried_again_after_a_deployment_and_with_a_new_partition,
    nothing_is_tried_again_by_itself_where_the_publication_says_no,
);
