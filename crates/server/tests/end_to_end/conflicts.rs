//! Rows that two devices have changed: what each outcome is on both, what the one is told that
//! lost, and how anybody chooses otherwise afterwards.

use tidewater_centre::records::ConflictOutcome;
use tidewater_centre::{ConflictChoice, ConflictVersion, Judgement, SettleOutcome};
use tidewater_client::{ConflictedChange, RowSelection};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{Scenario, shop};
use crate::world::World;

const PRODUCTS: &str = "SELECT product_id, name, stock FROM product ORDER BY product_id";

/// The shop, whose products are resolved in this way.
fn resolving(resolve: &str) -> Scenario {
    let mut scenario = shop();
    let publication = scenario.publication.trim_end();
    let publication = format!("{publication}\nconflict = {{ resolve = {resolve} }}\n");
    scenario.publication = publication.leak();
    scenario
}

/// Bob is faster than ada, and everybody has synced.
fn fight<B: Backend>(world: &World<B>, theirs: &str, mine: &str) -> (Device, Device) {
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit(theirs);
    ada.edit(mine);
    bob.sync();
    ada.sync();
    bob.sync();
    assert_converged(world, &[&ada, &bob]);
    (ada, bob)
}

fn listed(device: &mut Device) -> Vec<ConflictedChange> {
    device.remote.conflicts().expect("conflicts can be read")
}

fn settle<B: Backend>(world: &World<B>, conflict: i64, version: ConflictVersion) -> SettleOutcome {
    let choice = ConflictChoice {
        conflict,
        version,
        force: false,
        judgement: Judgement::default(),
        by: "olga".into(),
        now_ms: 1,
    };
    let settled = world.server.ask(async |centre| {
        let mut worker = centre.worker().await?;
        worker.settle_conflict(choice).await
    });
    settled.expect("it is settled")
}

/// A resolver, what the devices tell and what there is in the end, and how the conflicts ended.
type End<'e> = (&'e str, &'e [&'e str], &'e [&'e str], &'e [ConflictOutcome]);

/// What ada does is later in every sense; of two products both update the first, and the other one
/// is deleted by one of them.
fn each_outcome_is_the_same_everywhere_and_told_to_who_lost<B: Backend>() {
    let theirs = "UPDATE product SET name = 'bobs', stock = 8 WHERE product_id = 1;
                  DELETE FROM product WHERE product_id = 2";
    let mine = "UPDATE product SET name = 'adas', stock = 11 WHERE product_id = 1;
                UPDATE product SET stock = 21 WHERE product_id = 2";
    let ends: [End; 6] = [
        (
            "\"server_wins\"",
            &["1|bobs|8"],
            &["lost update [1]", "lost update [2]"],
            &[ConflictOutcome::Centre, ConflictOutcome::Centre],
        ),
        (
            "\"client_wins\"",
            &["1|adas|11", "2|ink|21"],
            &[],
            &[ConflictOutcome::Remote, ConflictOutcome::Remote],
        ),
        (
            "\"maximum(stock)\"",
            &["1|adas|11", "2|ink|21"],
            &[],
            &[ConflictOutcome::Remote, ConflictOutcome::Remote],
        ),
        (
            "\"minimum(stock)\"",
            &["1|bobs|8", "2|ink|21"],
            &["lost update [1]"],
            &[ConflictOutcome::Centre, ConflictOutcome::Remote],
        ),
        (
            "\"additive(stock)\"",
            &["1|bobs|9"],
            &["lost update [2]", "merged update [1]"],
            &[ConflictOutcome::Centre, ConflictOutcome::Merged],
        ),
        (
            "\"park\"",
            &["1|bobs|8"],
            &["lost update [1]", "lost update [2]"],
            &[ConflictOutcome::Parked, ConflictOutcome::Parked],
        ),
    ];
    for (resolve, rows, told, outcomes) in ends {
        let world = World::<B>::open(resolving(resolve));
        let (mut ada, mut bob) = fight(&world, theirs, mine);
        let rows = [rows, &["3|cap|30"]].concat();
        assert_eq!(world.rows(PRODUCTS), rows, "{resolve}");
        let listed_at_adas = listed(&mut ada);
        let mut found: Vec<String> = listed_at_adas
            .iter()
            .map(|it| format!("{} {} {}", it.outcome, it.operation, it.key))
            .collect();
        found.sort();
        assert_eq!(found, told, "{resolve}");
        for conflict in &listed_at_adas {
            let has = |image: &Option<String>, text: &str| {
                image.as_ref().is_some_and(|it| it.contains(text))
            };
            let is_first = conflict.key == "[1]";
            assert!(has(
                &conflict.pre_image,
                if is_first { "pen" } else { "ink" }
            ));
            assert!(has(&conflict.mine, if is_first { "adas" } else { "21" }));
            assert_eq!(has(&conflict.theirs, "bobs"), is_first, "{resolve}");
        }
        assert_eq!(listed(&mut bob), [], "{resolve}");
        let mut kept: Vec<ConflictOutcome> = world
            .server
            .conflicts()
            .iter()
            .map(|it| it.outcome)
            .collect();
        kept.sort_by_key(|it| it.name());
        assert_eq!(kept, outcomes, "{resolve}");
    }
}

fn what_a_device_applies_again_reaches_everybody<B: Backend>() {
    let world = World::<B>::open(shop());
    let theirs = "UPDATE product SET name = 'bobs' WHERE product_id < 3;
                  DELETE FROM product WHERE product_id = 3";
    let mine = "UPDATE product SET name = 'adas' WHERE product_id IN (1, 3);
                DELETE FROM product WHERE product_id = 2";
    let (mut ada, mut bob) = fight(&world, theirs, mine);
    assert_eq!(world.rows(PRODUCTS), ["1|bobs|10", "2|bobs|20"]);
    assert_eq!(listed(&mut ada).len(), 3);
    assert_eq!(ada.remote.apply_conflicts(RowSelection::All).unwrap(), 3);
    assert_eq!(listed(&mut ada), []);
    assert_eq!(ada.pending(), 3);
    let report = ada.sync();
    assert_eq!((report.conflicts, report.refused), (0, 0));
    bob.sync();
    assert_eq!(world.rows(PRODUCTS), ["1|adas|10", "3|adas|30"]);
    assert_converged(&world, &[&ada, &bob]);
}

fn what_the_operator_chooses_reaches_everybody<B: Backend>() {
    let world = World::<B>::open(resolving("\"park\""));
    let (mut ada, mut bob) = fight(
        &world,
        "UPDATE product SET name = 'bobs'; DELETE FROM product WHERE product_id = 3",
        "UPDATE product SET name = 'adas'",
    );
    let kept = world.server.conflicts();
    assert_eq!(kept.len(), 3);
    let id = |key: &str| kept.iter().find(|it| it.key == key).unwrap().id;
    for (key, version) in [
        ("[1]", ConflictVersion::Uploaded),
        ("[2]", ConflictVersion::Given(None)),
        ("[3]", ConflictVersion::Uploaded),
    ] {
        let settled = settle(&world, id(key), version);
        assert!(
            matches!(settled, SettleOutcome::Settled { .. }),
            "{key}: {settled:?}"
        );
    }
    for device in [&mut ada, &mut bob] {
        assert_eq!(device.sync().conflicts, 0);
    }
    assert_eq!(world.rows(PRODUCTS), ["1|adas|10", "3|adas|30"]);
    assert_converged(&world, &[&ada, &bob]);
    assert!(world.server.conflicts().iter().all(|it| !it.is_open()));
    // A device that has changed the row since meets what the operator has written.
    bob.edit("UPDATE product SET stock = 1 WHERE product_id = 1");
    let settled = settle(
        &world,
        id("[1]"),
        ConflictVersion::Given(Some(r#"{"stock":2}"#.into())),
    );
    assert!(
        matches!(settled, SettleOutcome::Changed { .. }),
        "{settled:?}"
    );
    world.execute("UPDATE product SET name = 'bobs' WHERE product_id = 1");
    let settled = settle(
        &world,
        id("[1]"),
        ConflictVersion::Given(Some(r#"{"stock":2}"#.into())),
    );
    assert!(
        matches!(settled, SettleOutcome::Settled { .. }),
        "{settled:?}"
    );
    assert_eq!(bob.sync().conflicts, 1);
    assert_eq!(
        listed(&mut bob)[0].theirs.as_deref(),
        Some(r#"{"product_id":1,"name":"bobs","stock":2}"#)
    );
}

on_both_adapters!(
    each_outcome_is_the_same_everywhere_and_told_to_who_lost,
    what_a_device_applies_again_reaches_everybody,
    what_the_operator_chooses_reaches_everybody,
);
