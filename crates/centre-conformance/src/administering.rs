//! The server's records: users, remotes, credentials, history, figures.

use tidewater_centre::records::{
    ConflictFilter, IncidentKind, IncidentRecord, ProvenIdentity, RemoteRecord, RetentionTimes,
    ShutOutReason, SigningKey, SyncRecord, UserRecord,
};
use tidewater_protocol::RemoteId;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, session_state, update};
use crate::world::{DeployedCentre, NOW_MS, PUBLICATION, SHOP_DDL, asked, shop};

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

pub fn user(name: &str) -> UserRecord {
    UserRecord {
        name: name.into(),
        password_hash: "$argon2id$x".into(),
        disabled: false,
        created_ms: NOW_MS,
        proven: ProvenIdentity::default(),
    }
}

pub fn remote(number: u8, user: &str) -> RemoteRecord {
    RemoteRecord {
        id: RemoteId::from_random([number; 16]),
        user: user.into(),
        revoked: false,
        credential_hash: vec![number; 32],
        previous_credential_hash: Vec::new(),
        rotated_ms: NOW_MS,
        created_ms: NOW_MS + i64::from(number),
        last_sync_ms: 0,
        unverified: 0,
        device_name: String::new(),
    }
}

pub async fn users_are_kept<F: Fixture>() {
    let world = DeployedCentre::<F>::without_publications().await;
    let centre = &world.centre;
    let odd = "o'brien\"; --";
    for name in ["berta", odd, "anna"] {
        assert!(centre.add_user(&user(name)).await.unwrap());
    }
    assert!(!centre.add_user(&user("anna")).await.unwrap());
    assert!(centre.set_password("anna", "new").await.unwrap());
    assert!(!centre.set_password("nobody", "new").await.unwrap());
    assert!(centre.set_disabled(odd, true).await.unwrap());
    assert!(!centre.set_disabled("nobody", true).await.unwrap());
    let users = centre.users().await.unwrap();
    let names: Vec<_> = users.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["anna", "berta", odd]);
    assert_eq!((&*users[0].password_hash, users[2].disabled), ("new", true));
    let mut worker = world.worker().await;
    let state = session_state(&mut worker, odd, None, &[]).await.unwrap();
    assert!(state.user.unwrap().disabled);
    assert!(centre.set_disabled(odd, false).await.unwrap());
    assert!(centre.remove_user("berta").await.unwrap());
    assert!(!centre.remove_user("berta").await.unwrap());
    let state = session_state(&mut worker, "berta", None, &[])
        .await
        .unwrap();
    assert_eq!(state.user, None);
    assert_eq!(centre.status().await.unwrap().users, [2, 0]);
}

pub async fn remotes_and_credentials_are_kept<F: Fixture>() {
    let world = DeployedCentre::<F>::without_publications().await;
    let mut worker = world.worker().await;
    world.centre.add_user(&user("anna")).await.unwrap();
    let first = remote(1, "anna");
    worker.save_remote(&first).await.unwrap();
    worker.save_remote(&remote(2, "anna")).await.unwrap();
    let rotated = RemoteRecord {
        credential_hash: vec![9; 32],
        previous_credential_hash: first.credential_hash.clone(),
        rotated_ms: NOW_MS + 5,
        ..first.clone()
    };
    worker.save_remote(&rotated).await.unwrap();
    let publications = [asked(PUBLICATION)];
    let state = session_state(&mut worker, "anna", Some(first.id), &publications)
        .await
        .unwrap();
    assert_eq!(state.user, Some(user("anna")));
    assert_eq!(state.remote, Some(rotated.clone()));
    assert_eq!(state.subscriptions, [None]);
    // Late, of an older rotation: the one before now still counts.
    let forget = worker.forget_previous_credential(first.id, vec![8; 32]);
    forget.await.unwrap();
    let state = session_state(&mut worker, "anna", Some(first.id), &publications);
    assert_eq!(state.await.unwrap().remote, Some(rotated.clone()));
    let previous = first.credential_hash.clone();
    let forget = worker.forget_previous_credential(first.id, previous);
    forget.await.unwrap();
    assert!(world.centre.revoke_remote(first.id).await.unwrap());
    let unknown = RemoteId::from_random([77; 16]);
    assert!(!world.centre.revoke_remote(unknown).await.unwrap());
    let remotes = world.centre.remotes().await.unwrap();
    assert_eq!(remotes.len(), 2);
    assert_eq!(
        remotes[0],
        RemoteRecord {
            revoked: true,
            previous_credential_hash: Vec::new(),
            ..rotated
        }
    );
    assert_eq!(world.centre.status().await.unwrap().remotes, [2, 1]);
    assert!(world.centre.restore_remote(first.id).await.unwrap());
    assert!(!world.centre.restore_remote(unknown).await.unwrap());
    assert_eq!(world.centre.status().await.unwrap().remotes, [2, 0]);
    assert!(world.centre.revoke_remote(first.id).await.unwrap());
    let state = session_state(&mut worker, "anna", Some(unknown), &publications)
        .await
        .unwrap();
    assert_eq!(state.remote, None);
}

pub async fn a_removed_user_takes_remotes_and_subscriptions_with_him<F: Fixture>() {
    let world = world::<F>().await;
    world.centre.add_user(&user("anna")).await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let record = RemoteRecord {
        id: anna.id,
        ..remote(1, "anna")
    };
    anna.worker.save_remote(&record).await.unwrap();
    anna.upload(&[insert("customer", "40|north|Nina|NULL")])
        .await;
    assert!(world.centre.remove_user("anna").await.unwrap());
    assert!(world.centre.remotes().await.unwrap().is_empty());
    let state = session_state(
        &mut anna.worker,
        "anna",
        Some(anna.id),
        &[asked(PUBLICATION)],
    )
    .await
    .unwrap();
    assert_eq!((state.remote, state.subscriptions), (None, vec![None]));
}

pub async fn syncs_are_remembered_and_forgotten_in_time<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    worker.save_remote(&remote(1, "anna")).await.unwrap();
    let id = remote(1, "anna").id;
    for number in 0..25 {
        let record = SyncRecord {
            remote_id: (number > 0).then_some(id),
            user: "anna".into(),
            publications: "sales,catalogue".into(),
            started_ms: NOW_MS + number,
            duration_ms: 12,
            uploaded: [1, 2, 3],
            downloaded: [4, 5],
            conflicts: 6,
            refused: 7,
            bytes: [8, 9],
            error: if number == 24 {
                "busy".into()
            } else {
                String::new()
            },
            schemas: Vec::new(),
            verified: number == 20,
            incidents: Vec::new(),
        };
        worker
            .record_syncs(std::slice::from_ref(&record))
            .await
            .unwrap();
        if number == 24 {
            let status = world.centre.status().await.unwrap();
            assert_eq!(status.syncs.len(), 20);
            assert_eq!(status.syncs[0], record);
        }
    }
    let remotes = world.centre.remotes().await.unwrap();
    // When the last one ended that did not fail.
    assert_eq!(remotes[0].last_sync_ms, NOW_MS + 23 + 12);
    // Of those since it compared everything, that did not fail.
    assert_eq!(remotes[0].unverified, 3);
    let retention = RetentionTimes {
        log_ms: 1000,
        history_ms: 10,
        conflicts_ms: 1000,
    };
    let pruned = world.centre.prune(retention, NOW_MS + 30).await.unwrap();
    assert_eq!(pruned.history, 20);
    assert_eq!(world.centre.status().await.unwrap().syncs.len(), 5);
}

pub async fn incidents_are_remembered_and_forgotten_in_time<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let incident = |number: i64| IncidentRecord {
        at_ms: NOW_MS + number,
        kind: IncidentKind::ALL[number as usize % 3],
        remote_id: (number % 2 > 0).then_some(remote(1, "anna").id),
        user: "anna".into(),
        publication: "sales".into(),
        detail: format!("number {number}"),
    };
    for numbers in [0..10, 10..25] {
        let record = SyncRecord {
            started_ms: NOW_MS,
            incidents: numbers.map(incident).collect(),
            ..SyncRecord::default()
        };
        worker.record_syncs(&[record]).await.unwrap();
    }
    let status = world.centre.status().await.unwrap();
    let newest: Vec<_> = (5..25).rev().map(incident).collect();
    assert_eq!(status.incidents, newest);
    let mut counts = status.incident_counts;
    counts.sort();
    let expected = IncidentKind::ALL.into_iter().zip([9, 8, 8]);
    assert_eq!(counts, expected.collect::<Vec<_>>());
    assert!(status.syncs.iter().all(|sync| sync.incidents.is_empty()));
    let retention = RetentionTimes {
        log_ms: 1000,
        history_ms: 10,
        conflicts_ms: 1000,
    };
    let pruned = world.centre.prune(retention, NOW_MS + 30).await.unwrap();
    assert_eq!(pruned.history, 20 + 2);
    let status = world.centre.status().await.unwrap();
    assert_eq!(status.incidents, newest[..5]);
}

pub async fn conflicts_and_refused_rows_are_forgotten_in_time<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for age_ms in [500, 50] {
        anna.now_ms = NOW_MS - age_ms;
        anna.upload(&[
            insert("customer", "41|north|forbidden|NULL"),
            update("customer", "2|north|Other|NULL", "2|north|Nils|NULL"),
        ])
        .await;
    }
    let retention = RetentionTimes {
        log_ms: 1000,
        history_ms: 1000,
        conflicts_ms: 100,
    };
    assert_eq!(world.centre.conflicts().await.unwrap().len(), 2);
    let newest = world
        .centre
        .find_conflicts(&ConflictFilter::newest(1))
        .await
        .unwrap();
    assert_eq!(newest.len(), 1);
    assert_eq!(newest[0].at_ms, NOW_MS - 50);
    let pruned = world.centre.prune(retention, NOW_MS).await.unwrap();
    assert_eq!(pruned.conflicts, 2);
    let conflicts = world.centre.conflicts().await.unwrap();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].at_ms, NOW_MS - 50);
    assert_eq!(world.centre.refused().await.unwrap().len(), 1);
    let status = world.centre.status().await.unwrap();
    assert_eq!((status.conflicts, status.refused), (1, 1));
    let mut tables: Vec<_> = status.logs.iter().map(|(table, _)| &**table).collect();
    tables.sort();
    assert_eq!(tables, ["customer", "product", "purchase"]);
}

pub async fn a_list_of_users_is_added_as_a_whole_or_not_at_all<F: Fixture>() {
    let world = DeployedCentre::<F>::without_publications().await;
    let centre = &world.centre;
    let mut berta = user("berta");
    berta.disabled = true;
    assert!(centre.add_user(&berta).await.unwrap());
    let list: Vec<UserRecord> = (0..2_500)
        .map(|number| user(&format!("u{number}")))
        .collect();
    let mut changed = user("berta");
    changed.password_hash = "$argon2id$new".into();
    let with_berta: Vec<UserRecord> = list.iter().chain([&changed]).cloned().collect();

    let import = centre.import_users(&with_berta, false).await.unwrap();
    assert_eq!((import.added, import.updated), (0, 0));
    assert_eq!(import.taken, ["berta"]);
    assert_eq!(centre.status().await.unwrap().users, [1, 1]);
    let import = centre.import_users(&with_berta, true).await.unwrap();
    assert_eq!((import.added, import.updated), (2_500, 1));
    assert!(import.taken.is_empty());
    let users = centre.users().await.unwrap();
    assert_eq!(users.len(), 2_501);
    let kept = UserRecord {
        disabled: true,
        ..changed
    };
    assert_eq!(users[0], kept, "still disabled, with the new password");
}

pub async fn signing_keys_are_added_and_retired_but_never_the_last<F: Fixture>() {
    let world = DeployedCentre::<F>::without_publications().await;
    let centre = &world.centre;
    let first = centre.signing_keys().await.unwrap();
    assert_eq!(first.len(), 1);
    assert!(!centre.retire_signing_key(first[0].id).await.unwrap());
    let second = SigningKey {
        id: first[0].id + 1,
        secret: vec![7; 32],
        created_ms: NOW_MS + 1_000,
    };
    assert!(centre.add_signing_key(&second).await.unwrap());
    assert!(!centre.add_signing_key(&second).await.unwrap());
    let keys = centre.signing_keys().await.unwrap();
    assert_eq!(keys, [second.clone(), first[0].clone()]);
    // The old one is of use as long as anything that it signed.
    let retention = RetentionTimes {
        log_ms: 5_000,
        history_ms: 1_000,
        conflicts_ms: 1_000,
    };
    centre.prune(retention, NOW_MS + 6_000).await.unwrap();
    assert_eq!(centre.signing_keys().await.unwrap().len(), 2);
    centre.prune(retention, NOW_MS + 6_001).await.unwrap();
    let left = centre.signing_keys().await.unwrap();
    assert_eq!(left, std::slice::from_ref(&second));
    assert!(!centre.retire_signing_key(second.id).await.unwrap());
    assert!(!centre.retire_signing_key(99).await.unwrap());
}

pub async fn remotes_that_are_shut_out_are_told_with_the_reason<F: Fixture>() {
    let world = DeployedCentre::<F>::without_publications().await;
    let mut worker = world.worker().await;
    for name in ["anna", "berta"] {
        world.centre.add_user(&user(name)).await.unwrap();
    }
    for (number, name) in [(1, "anna"), (2, "anna"), (3, "berta"), (4, "nobody")] {
        worker.save_remote(&remote(number, name)).await.unwrap();
    }
    world.centre.set_disabled("berta", true).await.unwrap();
    let ids: Vec<RemoteId> = (1..=5).map(|number| remote(number, "").id).collect();
    world.centre.revoke_remote(ids[1]).await.unwrap();
    let mut shut_out = worker.shut_out(&ids).await.unwrap();
    shut_out.sort_by_key(|(id, _)| id.0);
    let expected = [
        (ids[1], ShutOutReason::RemoteRevoked),
        (ids[2], ShutOutReason::UserDisabled),
        (ids[3], ShutOutReason::Removed),
        (ids[4], ShutOutReason::Removed),
    ];
    assert_eq!(shut_out, expected);
    assert!(worker.shut_out(&[]).await.unwrap().is_empty());
}

pub async fn the_pulse_tells_the_logs_and_who_was_away_longest<F: Fixture>() {
    let world = world::<F>().await;
    let centre = &world.centre;
    let pulse = centre.pulse().await.unwrap();
    assert_eq!(pulse.oldest_sync_ms, None, "nobody has synced");
    let mut worker = world.worker().await;
    assert!(centre.add_user(&user("anna")).await.unwrap());
    for number in 1..=3 {
        worker.save_remote(&remote(number, "anna")).await.unwrap();
        let synced = SyncRecord {
            remote_id: Some(RemoteId::from_random([number; 16])),
            user: "anna".into(),
            started_ms: NOW_MS + i64::from(number) * 1_000,
            ..SyncRecord::default()
        };
        worker.record_syncs(&[synced]).await.unwrap();
    }
    let oldest_ms = centre.pulse().await.unwrap().oldest_sync_ms;
    assert_eq!(oldest_ms, Some(NOW_MS + 1_000));
    let longest_away = RemoteId::from_random([1; 16]);
    assert!(centre.revoke_remote(longest_away).await.unwrap());
    let pulse = centre.pulse().await.unwrap();
    assert_eq!(pulse.oldest_sync_ms, Some(NOW_MS + 2_000));
    let logs = centre.status().await.unwrap().logs;
    let tables = |logs: &[(String, u64)]| -> Vec<String> {
        logs.iter().map(|(table, _)| table.clone()).collect()
    };
    assert_eq!(tables(&pulse.logs), tables(&logs));
}
