//! What a restored centre makes of uploads that are given back to it, and of the ids under which
//! they first came.

use tidewater_centre::UploadOutcome;
use tidewater_centre::records::{FormerRecord, RemoteRecord, RetentionTimes, SubscriptionRequest};
use tidewater_protocol::RemoteId;

use crate::administering;
use crate::fixture::Fixture;
use crate::remote::session_state;
use crate::remote::{TestRemote, delete, fresh_id, insert};
use crate::world::{DeployedCentre, NOW_MS, PUBLICATION, SHOP_DDL, asked, shop};

const CUSTOMERS: &str = "SELECT customer_id, name FROM customer WHERE customer_id > 3 ORDER BY 1";
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

pub async fn the_same_upload_of_two_copies_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut copy = TestRemote::synced(&world, "anna").await;
    let mut upload = anna.next_upload(&[
        insert("customer", "40|north|Nina|NULL"),
        insert("customer", "41|north|forbidden|NULL"),
    ]);
    upload.given_back = true;
    let outcome = anna.apply(upload.clone()).await;
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((result.inserts, result.refused), (1, 1));
    world
        .execute("DELETE FROM customer WHERE customer_id = 40")
        .await;
    // Its own acknowledgement may be lost; that is told as ever.
    let outcome = anna.apply(upload.clone()).await;
    let UploadOutcome::AlreadyApplied { result: again } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(again, result);
    upload.context.remote_id = copy.id;
    let outcome = copy.apply(upload.clone()).await;
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((result.inserts, result.refused), (0, 0));
    assert_eq!(world.fixture.query(CUSTOMERS).await, [""; 0]);
    assert_eq!(world.centre.refused().await.unwrap().len(), 1);
    // Its number is taken.
    upload.upload_id = tidewater_protocol::UploadId(fresh_id());
    let outcome = copy.apply(upload.clone()).await;
    assert!(matches!(outcome, UploadOutcome::OutOfSequence));
    // One that was not taken is not noted as one that was.
    upload.sequence = 2;
    let outcome = copy.apply(upload).await;
    assert!(matches!(outcome, UploadOutcome::Applied { result, .. } if result.inserts == 1));
}

pub async fn what_was_given_back_is_remembered_for_90_days<F: Fixture>() {
    let retention = RetentionTimes {
        log_ms: DAY_MS,
        history_ms: DAY_MS,
        conflicts_ms: DAY_MS,
    };
    for (days, remembered) in [(89, true), (91, false)] {
        let world = world::<F>().await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut upload = anna.next_upload(&[insert("customer", "40|north|Nina|NULL")]);
        upload.given_back = true;
        anna.apply(upload.clone()).await;
        let now_ms = NOW_MS + days * DAY_MS;
        world.centre.prune(retention, now_ms).await.unwrap();
        upload.sequence = 2;
        let UploadOutcome::Applied { result, .. } = anna.apply(upload).await else {
            panic!("it is not applied");
        };
        assert_eq!(result.inserts == 0, remembered);
    }
}

/// Whoever inserted the row may give that back later: then it is there again.
pub async fn a_delete_that_is_given_back_and_finds_no_row_is_a_conflict<F: Fixture>() {
    let world = world::<F>().await;
    let mut first = TestRemote::synced(&world, "anna").await;
    let mut second = TestRemote::synced(&world, "berta").await;
    let row = "40|north|Nina|NULL";
    for (remote, change, conflicts) in [
        (&mut second, delete("customer", row), 1),
        (&mut first, insert("customer", row), 0),
    ] {
        let mut upload = remote.next_upload(&[change]);
        upload.given_back = true;
        let UploadOutcome::Applied { result, .. } = remote.apply(upload).await else {
            panic!("it is not applied");
        };
        assert_eq!((result.conflicts, result.refused), (conflicts, 0));
    }
    let told = world.centre.conflicts().await.unwrap().into_iter();
    let told = told.map(|it| (it.user, it.operation, it.key, it.winner));
    let delete = ("berta".into(), "delete".into(), "[40]".into(), None);
    assert_eq!(told.collect::<Vec<_>>(), [delete]);
}

pub async fn the_centre_and_former_ids_are_known_again<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut clara = TestRemote::synced(&world, "clara").await;
    for remote in [&mut anna, &mut clara] {
        let record = RemoteRecord {
            id: remote.id,
            ..administering::remote(1, &remote.user)
        };
        remote.worker.save_remote(&record).await.unwrap();
        remote.upload(&[]).await;
    }
    let clara_herself = administering::user("clara");
    world.centre.add_user(&clara_herself).await.unwrap();
    let unknown = RemoteId::from_random(fresh_id());
    let session = async |user: &str, id: RemoteId, formers: &[RemoteId]| {
        let asked = [SubscriptionRequest {
            formers: formers.to_vec(),
            ..asked(PUBLICATION)
        }];
        let mut worker = world.worker().await;
        let state = session_state(&mut worker, user, Some(id), &asked).await;
        state.unwrap()
    };
    let state = session("anna", anna.id, &[unknown, anna.id, clara.id]).await;
    assert!(!state.centre.is_empty() && !state.removed);
    let nothing = FormerRecord::default();
    let last = state.subscriptions[0].clone();
    assert_eq!(last.as_ref().map(|it| it.sequence), Some(1));
    let own = FormerRecord {
        removed: false,
        last,
    };
    // What others have uploaded is nobody's to know.
    assert_eq!(state.formers, [[nothing.clone(), own, nothing.clone()]]);
    assert!(world.centre.remove_user("clara").await.unwrap());
    let state = session("anna", clara.id, &[clara.id]).await;
    assert!(state.removed && state.remote.is_none());
    let removed = FormerRecord {
        removed: true,
        last: None,
    };
    assert_eq!(state.formers, [[removed]]);
    let again = session("anna", anna.id, &[]).await;
    assert_eq!(
        (&again.centre, again.formers),
        (&state.centre, vec![vec![]])
    );
    let another = self::world::<F>().await;
    let mut worker = another.worker().await;
    let other = session_state(&mut worker, "anna", None, &[]).await.unwrap();
    assert_ne!(other.centre, state.centre);
}
