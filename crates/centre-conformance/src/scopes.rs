//! Facts about scopes: what a remote may upload, and for how long.

use std::collections::BTreeSet;

use tidewater_centre::{Checkpoint, UploadOutcome};

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, REGIONS, SHOP_DDL, partitioned, shop};

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

const CUSTOMERS: &str = "SELECT customer_id, region, name, email FROM customer ORDER BY 1";

pub async fn rows_outside_of_the_scope_are_neither_touched_nor_shown<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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
    let mut anna = TestRemote::synced(&world, "anna").await;
    let old = anna.checkpoint.clone();
    // Two scopes later it does not count any more (interleaving 20).
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
    let gone = ["customer [1]", "customer [2]", "purchase [10]"];
    assert_eq!(received.removals, gone);
}

/// Moves a user's visits.
async fn visits<F: Fixture>(world: &DeployedCentre<F>, region: &str) {
    let sql = format!("UPDATE visit_plan SET region = '{region}' WHERE login = 'anna'");
    world.execute(&sql).await;
}

pub async fn a_scope_is_spent_when_the_next_one_was_presented<F: Fixture>() {
    let of_the_north = || [update("customer", "2|north|Niels|NULL", "2|north|N|NULL")];
    let world = world::<F>().await;
    for by_upload in [true, false] {
        visits(&world, "north").await;
        let mut anna = TestRemote::synced(&world, "anna").await;
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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

pub async fn regions_come_from_the_query_of_each_moment<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
        SHOP_DDL,
        vec![partitioned("customer", &["region"], REGIONS)],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // Gained between two syncs, not yet downloaded: it may be written to already.
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'east')")
        .await;
    let result = anna
        .upload(&[insert("customer", "80|east|Ella|NULL")])
        .await;
    assert_eq!(result.len(), 1);
}

/// I5 of those who ask for an image before they sync.
pub async fn an_image_is_for_those_who_hold_all_of_its_partitions<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let image = Checkpoint {
        serial: 0,
        ..anna.checkpoint.clone().unwrap()
    };
    let mut berta = TestRemote::synced(&world, "berta").await;
    let mut clara = TestRemote::synced(&world, "clara").await;
    let mut dora = TestRemote::synced(&world, "dora").await;
    assert!(anna.covers_image(&image).await);
    assert!(berta.covers_image(&image).await);
    assert!(!clara.covers_image(&image).await);
    assert!(!dora.covers_image(&image).await);
    // One of what everybody gets is for all.
    let of_nobody = Checkpoint {
        serial: 0,
        ..dora.checkpoint.clone().unwrap()
    };
    assert!(clara.covers_image(&of_nobody).await);
    // As of each moment.
    visits(&world, "east").await;
    world
        .execute("INSERT INTO visit_plan VALUES ('clara', 'north')")
        .await;
    assert!(!anna.covers_image(&image).await);
    assert!(clara.covers_image(&image).await);
    // What is not understood is held by nobody.
    let mut strange = image.clone();
    strange.rules.push(image.rules[0].clone());
    assert!(!clara.covers_image(&strange).await);
    let watermark = Vec::new();
    let strange = Checkpoint { watermark, ..image };
    assert!(!clara.covers_image(&strange).await);
    // Nothing has become of it: who asked is told what is new for him.
    assert!(anna.download().await.scope_changed);
    assert!(clara.download().await.scope_changed);
    assert!(!berta.download().await.scope_changed);
}

/// A worker that has never run the query learns of it when it prepares it.
pub async fn an_upload_whose_query_lost_its_table_is_not_taken<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("DROP TABLE visit_plan").await;
    let upload = anna.next_upload(&[insert("customer", "70|north|New|NULL")]);
    for _ in 0..2 {
        let mut worker = world.worker().await;
        let told = worker.apply(vec![upload.clone()]).await;
        let is_taken = matches!(
            told.as_deref(),
            Ok([UploadOutcome::Applied { .. } | UploadOutcome::AlreadyApplied { .. }])
        );
        assert!(!is_taken, "{told:?}");
    }
    let rows = world.fixture.query(CUSTOMERS).await;
    assert_eq!(rows.len(), 3);
}
