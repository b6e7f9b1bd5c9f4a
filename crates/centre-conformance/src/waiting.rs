//! Locks that an application holds for longer than a sync waits.

use tidewater_centre::{CentreError, UploadOutcome};

use crate::fixture::{ApplicationTransaction, Fixture};
use crate::remote::{TestRemote, insert, update};
use crate::world::{DeployedCentre, SHOP_DDL, shop};

/// Nobody waits for ever, and who needs nothing of what it holds does not wait for long.
pub async fn an_open_transaction_stops_only_who_needs_what_it_holds<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut remotes = Vec::new();
    for user in ["anna", "berta", "clara", "anna"] {
        remotes.push(TestRemote::synced(&world, user).await);
    }
    let mut application = world.fixture.begin().await;
    application
        .execute("UPDATE product SET name = 'cocoa' WHERE product_id = 2")
        .await;
    let wanted = [
        insert("product", "5|salt"),
        update("product", "2|coffee", "2|espresso"),
        update("product", "2|coffee", "2|mocha"),
        insert("product", "6|milk"),
    ];
    let uploads = remotes.iter_mut().zip(wanted);
    let uploads: Vec<_> = uploads
        .map(|(remote, change)| remote.next_upload(&[change]))
        .collect();
    let mut worker = world.worker().await;
    let is_locked = |error: &CentreError| matches!(error, CentreError::Locked { .. });
    let first = worker.apply(uploads.clone()).await;
    match F::CONCURRENT_WRITERS {
        false => assert!(first.as_ref().is_err_and(is_locked), "{first:?}"),
        true => {
            let outcomes = first.unwrap();
            let failed = |outcome: &UploadOutcome| match outcome {
                UploadOutcome::Failed { error } => is_locked(error),
                UploadOutcome::Applied { .. } => false,
                other => panic!("{other:?}"),
            };
            let failed: Vec<bool> = outcomes.iter().map(failed).collect();
            assert_eq!(failed, [false, true, true, false]);
        }
    }
    application.commit().await;
    // The same uploads come again.
    let outcomes = worker.apply(uploads).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(
        outcome,
        UploadOutcome::Applied { .. } | UploadOutcome::AlreadyApplied { .. }
    )));
    let products = world
        .fixture
        .query("SELECT name FROM product ORDER BY product_id");
    assert_eq!(products.await, ["tea", "cocoa", "salt", "milk"]);
}
