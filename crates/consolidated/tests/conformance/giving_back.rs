//! What a restored centre makes of uploads that are given back to it, and of the ids under which
//! they first came.

use tidewater_consolidated::UploadOutcome;
use tidewater_consolidated::records::{AskedSubscription, FormerRecord, RemoteRecord, Retention};
use tidewater_protocol::RemoteId;

use crate::administering;
use crate::fixture::Fixture;
use crate::remote::{Change, Remote, delete, fresh_id, insert, update};
use crate::world::{NOW_MS, PUBLICATION, SHOP_DDL, World, asked, shop};

const CUSTOMERS: &str = "SELECT customer_id, name FROM customer WHERE customer_id > 3 ORDER BY 1";
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

async fn world<F: Fixture>() -> World<F> {
    World::new(SHOP_DDL, shop()).await
}

pub async fn the_same_upload_of_two_copies_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut copy = Remote::synced(&world, "anna").await;
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
    upload.remote_id = copy.id;
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
    let retention = Retention {
        log_ms: DAY_MS,
        history_ms: DAY_MS,
        conflicts_ms: DAY_MS,
    };
    for (days, remembered) in [(89, true), (91, false)] {
        let world = world::<F>().await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut upload = anna.next_upload(&[delete("customer", "40|north|Nina|NULL")]);
        upload.given_back = true;
        anna.apply(upload.clone()).await;
        let now_ms = NOW_MS + days * DAY_MS;
        world.centre.prune(retention, now_ms).await.unwrap();
        upload.sequence = 2;
        let UploadOutcome::Applied { result, .. } = anna.apply(upload).await else {
            panic!("it is not applied");
        };
        assert_eq!(result.deletes == 0, remembered);
    }
}

/// What was done after the backup by `first`, then by `second`; given back the other way round.
pub async fn what_others_undo_by_giving_back_later_is_told<F: Fixture>() {
    let world = world::<F>().await;
    let mut first = Remote::synced(&world, "anna").await;
    let mut second = Remote::synced(&world, "berta").await;
    let gives_back = async |remote: &mut Remote, changes: &[Change]| {
        let mut upload = remote.next_upload(changes);
        upload.given_back = true;
        let UploadOutcome::Applied { result, .. } = remote.apply(upload).await else {
            panic!("it is not applied");
        };
        assert_eq!((result.conflicts, result.refused), (0, 0));
    };
    let told = async || {
        let conflicts = world.centre.conflicts().await.unwrap();
        let told = conflicts.into_iter().map(|it| {
            let texts = [it.pre_image, it.uploaded, it.winner];
            let texts = texts.map(|text| text.unwrap_or_else(|| "-".into()));
            format!(
                "{} {} {} {}",
                it.user,
                it.operation,
                it.key,
                texts.join(" ")
            )
        });
        let mut told: Vec<String> = told.collect();
        told.sort();
        told
    };
    let changes = [
        delete("customer", "40|north|Nina|NULL"),
        delete("customer", "41|north|Nele|NULL"),
        delete("customer", "42|north|Nadja|NULL"),
        // Changed back to what it is in the backup; changed by nobody else; not changed at all.
        update("customer", "1|north|Norma|nora@x", "1|north|Nora|nora@x"),
        update("customer", "2|north|Nick|NULL", "2|north|Niels|NULL"),
    ];
    gives_back(&mut second, &changes).await;
    // A device's own order is kept, and what is not given back is newer.
    let anew = [insert("customer", "42|north|Nelly|NULL")];
    gives_back(&mut second, &anew).await;
    second
        .upload(&[insert("customer", "41|north|Nora|NULL")])
        .await;
    second
        .upload(&[delete("customer", "41|north|Nora|NULL")])
        .await;
    // An insert of what is there again; and what was pending when the centre was restored.
    gives_back(&mut second, &[insert("product", "2|coffee")]).await;
    let mut upload = second.next_upload(&[delete("customer", "43|north|Nils|NULL")]);
    upload.unknown_history = true;
    second.apply(upload).await;
    assert_eq!(told().await, [""; 0]);
    let unchanged = [update("product", "1|tea", "1|tea")];
    gives_back(&mut second, &unchanged).await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        insert("customer", "41|north|Nele|NULL"),
        insert("customer", "43|north|Nils|NULL"),
        delete("product", "2|coffee"),
        update("customer", "1|north|Nora|nora@x", "1|north|Norma|nora@x"),
        update("product", "1|tea", "1|green tea"),
    ];
    gives_back(&mut first, &changes).await;
    let expected = [
        concat!(
            r#"berta delete [40] {"customer_id":40,"region":"north","name":"Nina","email":null} - "#,
            r#"{"customer_id":40,"region":"north","name":"Nina","email":null}"#,
        ),
        concat!(
            r#"berta delete [43] {"customer_id":43,"region":"north","name":"Nils","email":null} - "#,
            r#"{"customer_id":43,"region":"north","name":"Nils","email":null}"#,
        ),
        r#"berta insert [2] - {"product_id":2,"name":"coffee"} -"#,
        concat!(
            r#"berta update [1] {"customer_id":1,"region":"north","name":"Norma","email":"nora@x"} "#,
            r#"{"customer_id":1,"region":"north","name":"Nora","email":"nora@x"} "#,
            r#"{"customer_id":1,"region":"north","name":"Norma","email":"nora@x"}"#,
        ),
    ];
    assert_eq!(told().await, expected);
    // Once.
    let again = [update(
        "customer",
        "1|north|Norma|nora@x",
        "1|north|N|nora@x",
    )];
    gives_back(&mut first, &again).await;
    assert_eq!(told().await.len(), 4);
    // It is remembered as long as what was given back is.
    let retention = Retention {
        log_ms: DAY_MS,
        history_ms: DAY_MS,
        conflicts_ms: DAY_MS,
    };
    let now_ms = NOW_MS + 91 * DAY_MS;
    world.centre.prune(retention, now_ms).await.unwrap();
    let late = [update(
        "customer",
        "2|north|Niels|NULL",
        "2|north|Nick|NULL",
    )];
    gives_back(&mut first, &late).await;
    assert_eq!(told().await, [""; 0]);
}

pub async fn two_that_give_back_at_once_take_turns<F: Fixture>() {
    let world = world::<F>().await;
    let mut first = Remote::synced(&world, "anna").await;
    let mut second = Remote::synced(&world, "berta").await;
    for round in 0..3 {
        let row = |number: i32| format!("{}|north|Nina|NULL", round * 10_000 + number + 100);
        let inserts: Vec<_> = (0..2_000).map(|it| insert("customer", &row(it))).collect();
        let deletes: Vec<_> = (0..2_000).map(|it| delete("customer", &row(it))).collect();
        let mut uploads = [first.next_upload(&inserts), second.next_upload(&deletes)];
        for upload in &mut uploads {
            upload.given_back = true;
        }
        let [inserts, deletes] = uploads;
        tokio::join!(first.apply(inserts), second.apply(deletes));
    }
    let back = world.fixture.query(CUSTOMERS).await.len();
    assert_eq!(world.centre.conflicts().await.unwrap().len(), back);
}

pub async fn many_rows_that_are_given_back_undo_what_was_deleted_first<F: Fixture>() {
    let world = world::<F>().await;
    let mut first = Remote::synced(&world, "anna").await;
    let mut second = Remote::synced(&world, "berta").await;
    let row = |number: usize| format!("{}|north|Nina|NULL", number + 100);
    let inserts: Vec<_> = (0..5_000).map(|it| insert("customer", &row(it))).collect();
    let deletes: Vec<_> = (0..5_000)
        .step_by(2)
        .map(|it| delete("customer", &row(it)))
        .collect();
    for (remote, changes) in [(&mut second, deletes), (&mut first, inserts)] {
        let mut upload = remote.next_upload(&changes);
        upload.given_back = true;
        remote.apply(upload).await;
    }
    let conflicts = world.centre.conflicts().await.unwrap();
    assert_eq!(conflicts.len(), 2_500);
    assert!(conflicts.iter().all(|it| it.user == "berta"));
}

pub async fn the_centre_and_former_ids_are_known_again<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut clara = Remote::synced(&world, "clara").await;
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
        let asked = [AskedSubscription {
            formers: formers.to_vec(),
            ..asked(PUBLICATION)
        }];
        let mut worker = world.worker().await;
        let state = worker.session_state(user, Some(id), &asked).await;
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
    let other = worker.session_state("anna", None, &[]).await.unwrap();
    assert_ne!(other.centre, state.centre);
}
