//! A centre that was restored: what it forgot is given back, and what remotes hold is
//! compared.

use futures_util::future::select;

use tidewater_centre::records::{IncidentKind, IncidentRecord};
use tidewater_protocol::compare::{Ranges, pack_key};
use tidewater_protocol::message::{
    CompareTable, Control, FormerId, KeyRange, TableBegin, UploadState,
};
use tidewater_protocol::{Code, ColumnType, Datum, RemoteId};

use crate::centre::{NAME, schema};
use crate::client::{Client, Opening, Remote, Reply, inserts};
use crate::world::{PASSWORD, World, eventually};

/// What a remote that has these notes sends of them, in ranges of two.
fn sums(notes: &[(i64, String)]) -> Vec<KeyRange> {
    let shape = schema().tables[0].shape();
    let bounds = notes.iter().skip(1).step_by(2).map(|(id, _)| {
        let mut bound = Vec::new();
        pack_key(&mut bound, &[ColumnType::Integer], &[Datum::Integer(*id)]);
        bound
    });
    let bounds: Vec<Vec<u8>> = bounds.collect();
    let mut ranges = Ranges::at(&shape, bounds.iter().map(Vec::as_slice)).unwrap();
    for (id, note) in notes {
        let row = [Datum::Integer(*id), Datum::Text(note)];
        ranges.add(&row[..1], &row);
    }
    ranges.to_wire()
}

fn table(ranges: Vec<KeyRange>) -> CompareTable {
    CompareTable {
        subscription: 0,
        table: Some(Box::new(TableBegin::for_table(&schema().tables[0]))),
        ranges,
        untracked: false,
    }
}

fn comparing(mut hello: Opening) -> Opening {
    hello.subscriptions[0].compares = true;
    hello
}

/// A sync that compares, in so many messages.
async fn compare(client: &mut Client, hello: Opening, tables: Vec<CompareTable>) -> Reply {
    client.put_opening(comparing(hello));
    for table in tables {
        client.put(Control::CompareTable(table));
    }
    client.put_request().flush().await;
    client.reply().await
}

/// A centre with ten notes of Ada's, as her first upload brought them.
async fn ten_notes(world: &World) -> Remote {
    let mut ada = world.remote("ada").await;
    let rows = inserts(0..10, "x");
    let mut client = world.connect().await;
    let reply = client.upload(&ada, ada.token(), 1, &rows, 10).await;
    ada.learn(&reply);
    (ada.sequence, ada.upload_id) = (1, vec![1; 16]);
    ada
}

#[tokio::test]
async fn a_restored_centre_says_what_it_has_and_takes_the_rest_again() {
    let world = World::start().await;
    let mut ada = ten_notes(&world).await;
    let earlier = world.centre.state().clone();
    let rows = inserts(10..12, "y");
    let mut client = world.connect().await;
    let reply = client.upload(&ada, ada.token(), 2, &rows, 2).await;
    ada.learn(&reply);
    (ada.sequence, ada.upload_id) = (2, vec![2; 16]);
    world.centre.restore(earlier);

    // What is pending is not taken, and what it is asked for is told at once.
    let pending = inserts(20..21, "pending");
    let reply = client.upload(&ada, ada.token(), 3, &pending, 1).await;
    assert!(reply.complete && reply.results.is_empty());
    assert_eq!(reply.state(), UploadState::CentreRestored);
    let answer = reply.answer().clone();
    assert_eq!((answer.sequence, &answer.upload_id), (1, &vec![1; 16]));
    assert!(answer.compare);
    assert!(reply.checkpoint.is_empty() && !reply.replaced);
    assert_eq!(world.centre.state().notes().len(), 10);
    assert!(reply.welcome.unwrap().remote_id.is_empty(), "it stays");

    // The same connection goes on: the lost upload under its id, then the pending one.
    (ada.sequence, ada.upload_id) = (answer.sequence, answer.upload_id);
    ada.checkpoint.clear();
    let reply = client.upload(&ada, ada.token(), 2, &rows, 2).await;
    assert_eq!(reply.state(), UploadState::InSequence);
    assert_eq!(reply.results[0].inserts, 2);
    (ada.sequence, ada.upload_id) = (2, vec![2; 16]);
    let reply = client.upload(&ada, ada.token(), 3, &pending, 1).await;
    assert_eq!(reply.results[0].inserts, 1);
    assert_eq!(world.centre.state().notes().len(), 13);
}

#[tokio::test]
async fn what_remotes_and_the_centre_are_at_odds_about_is_recorded() {
    let world = World::start().await;
    let before = world.centre.state().clone();
    let ada = ten_notes(&world).await;
    let known = world.centre.state().clone();
    let ahead = Remote {
        sequence: 3,
        upload_id: vec![3; 16],
        ..ada.clone()
    };
    world.centre.restore(known);
    world.connect().await.sync(ahead.token()).await;
    let behind = Remote {
        sequence: 0,
        upload_id: Vec::new(),
        ..ada.clone()
    };
    let reply = world.connect().await.sync(behind.token()).await;
    // Noted when it comes with the new identity: it may never have heard of it.
    let mut successor = Remote {
        checkpoint: Vec::new(),
        ..behind
    };
    successor.learn(&reply);
    assert_ne!(successor.id, ada.id);
    let reply = world.connect().await.sync(successor.credential()).await;
    assert!(reply.complete, "{reply:?}");
    // A comparison that was asked for is none.
    let notes = world.centre.state().notes();
    let mut client = world.connect().await;
    let reply = compare(&mut client, ada.token(), vec![table(sums(&notes))]).await;
    assert!(reply.complete);
    let incidents = || {
        let state = world.centre.state();
        let syncs = state.history.iter();
        let incidents = syncs.flat_map(|sync| &sync.incidents);
        let mut kinds: Vec<_> = incidents.map(|it| (it.kind, it.remote_id)).collect();
        kinds.sort();
        kinds
    };
    let id = RemoteId::from_slice(&ada.id);
    let expected = [
        (IncidentKind::HistoryUnknown, id),
        (IncidentKind::HistoryUnknown, id),
        (IncidentKind::UploadsMissing, id),
        (IncidentKind::NewIdentity, id),
    ];
    eventually("incidents", || incidents() == expected).await;
    let missing = |it: &&IncidentRecord| it.kind == IncidentKind::UploadsMissing;
    {
        let state = world.centre.state();
        let mut found = state.history.iter().flat_map(|sync| &sync.incidents);
        let detail = &found.find(missing).unwrap().detail;
        assert_eq!(detail, "uploads 2 to 3 are missing");
    }
    world.centre.restore(before.clone());
    world.connect().await.sync(ada.password(PASSWORD)).await;
    let expected = [
        (IncidentKind::HistoryUnknown, id),
        (IncidentKind::UploadsMissing, id),
    ];
    eventually("the forgotten remote", || incidents() == expected).await;
    world.centre.restore(before);
    let unknown = Remote {
        centre: "another".into(),
        ..ada
    };
    world.connect().await.sync(unknown.password(PASSWORD)).await;
    let expected = [(IncidentKind::NewIdentity, id)];
    eventually("the unknown remote", || incidents() == expected).await;
}

#[tokio::test]
async fn a_centre_without_the_subscription_has_nothing_of_it() {
    let world = World::start().await;
    let ada = world.remote("ada").await;
    let earlier = world.centre.state().clone();
    let rows = inserts(0..1, "x");
    let mut client = world.connect().await;
    client.upload(&ada, ada.token(), 1, &rows, 1).await;
    world.centre.restore(earlier);
    let ahead = Remote {
        sequence: 1,
        upload_id: vec![1; 16],
        ..ada
    };
    let reply = client.sync(ahead.token()).await;
    assert_eq!(reply.state(), UploadState::CentreRestored);
    let answer = reply.answer();
    assert_eq!((answer.sequence, answer.upload_id.len()), (0, 0));
}

#[tokio::test]
async fn a_remote_that_knows_the_restored_centre_keeps_its_id_whatever_it_can_show_of_it() {
    let world = World::start().await;
    let before = world.centre.state().clone();
    let mut ada = ten_notes(&world).await;
    assert_eq!(ada.centre, NAME);
    world.centre.restore(before.clone());
    // It has never downloaded.
    ada.checkpoint.clear();
    let mut client = world.connect().await;
    let reply = client.sync(ada.password(PASSWORD)).await;
    assert!(reply.complete);
    assert_eq!(reply.state(), UploadState::CentreRestored);
    let answer = reply.answer().clone();
    assert_eq!((answer.sequence, answer.upload_id.len()), (0, 0));
    assert_eq!(reply.remote_id(), ada.id);
    // What it is given goes on for it, and only for its user.
    let credential = reply.signed_in().credential.clone();
    let again = Remote {
        credential,
        sequence: 0,
        upload_id: Vec::new(),
        ..ada.clone()
    };
    let reply = world.connect().await.sync(again.credential()).await;
    assert_eq!(reply.state(), UploadState::InSequence);
    // The same of another centre, and of one that was removed, becomes another.
    for (centre, removed) in [("another", false), (NAME, true)] {
        world.centre.restore(before.clone());
        if removed {
            let id = RemoteId::from_slice(&ada.id).unwrap();
            world.centre.state().removed.insert(id);
        }
        let stranger = Remote {
            centre: centre.into(),
            ..ada.clone()
        };
        let mut client = world.connect().await;
        let reply = client.sync(stranger.password(PASSWORD)).await;
        assert_eq!(
            reply.state(),
            UploadState::NewIdentity,
            "{centre} {removed}"
        );
        assert_ne!(reply.remote_id(), ada.id);
    }
}

#[tokio::test]
async fn uploads_of_former_ids_are_missed_by_their_numbers_and_ids() {
    let world = World::start().await;
    let before = ten_notes(&world).await;
    let (mut ada, gone) = (world.remote("ada").await, RemoteId([9; 16]));
    world.centre.state().removed.insert(gone);
    let mut reply_to = async |remote_id: &[u8], sequence, upload_id: u8| {
        let mut hello = ada.token();
        hello.subscriptions[0].formers = vec![FormerId {
            remote_id: remote_id.to_vec(),
            sequence,
            upload_id: vec![upload_id; 16],
        }];
        let reply = world.connect().await.sync(hello).await;
        ada.learn(&reply);
        (reply.state(), reply.answer().formers.clone())
    };
    use UploadState::{CentreRestored, InSequence};
    // It has all; it lacks the second one; in the place of the first one it has another.
    assert_eq!(reply_to(&before.id, 1, 1).await, (InSequence, vec![]));
    assert_eq!(reply_to(&before.id, 2, 2).await, (CentreRestored, vec![1]));
    assert_eq!(reply_to(&before.id, 1, 7).await, (CentreRestored, vec![0]));
    // What was removed is not wanted back; what is not known is.
    assert_eq!(reply_to(&gone.0, 3, 3).await, (InSequence, vec![]));
    assert_eq!(reply_to(&[8; 16], 3, 3).await, (CentreRestored, vec![0]));
}

#[tokio::test]
async fn a_remote_that_was_removed_gives_nothing_back() {
    let world = World::start().await;
    let ada = ten_notes(&world).await;
    world.centre.state().remotes.clear();
    let id = RemoteId::from_slice(&ada.id).unwrap();
    world.centre.state().removed.insert(id);
    let mut client = world.connect().await;
    let reply = client.sync(ada.password(PASSWORD)).await;
    assert_eq!(reply.state(), UploadState::NewIdentity);
}

#[tokio::test]
async fn a_checkpoint_of_another_history_is_compared_and_equal_rows_stay_at_home() {
    let world = World::start().await;
    let mut ada = ten_notes(&world).await;
    let earlier = world.centre.state().clone();
    world.centre.restore(earlier);
    let mut client = world.connect().await;
    let pending = inserts(20..21, "pending");
    let reply = client.upload(&ada, ada.token(), 2, &pending, 1).await;
    assert_eq!(reply.state(), UploadState::InSequence);
    assert!(reply.answer().compare && reply.complete);
    assert!(reply.results.is_empty() && reply.checkpoint.is_empty());

    let notes = world.centre.state().notes();
    let reply = compare(&mut client, ada.token(), vec![table(sums(&notes))]).await;
    assert!(reply.complete && !reply.answer().compare);
    assert!(reply.rows.is_empty() && reply.ranges.is_empty() && !reply.replaced);
    assert!(!reply.checkpoint.is_empty());
    ada.learn(&reply);
    let reply = client.upload(&ada, ada.token(), 2, &pending, 1).await;
    assert_eq!(reply.results[0].inserts, 1);
    assert!(!reply.replaced && reply.rows.is_empty());
}

#[tokio::test]
async fn a_checkpoint_that_no_key_verifies_is_compared_too() {
    let world = World::start().await;
    let ada = ten_notes(&world).await;
    let spoiled = Remote {
        checkpoint: vec![1; 60],
        ..ada.clone()
    };
    let mut client = world.connect().await;
    let reply = client.sync(spoiled.token()).await;
    assert!(reply.answer().compare && reply.complete && !reply.replaced);
    let notes = world.centre.state().notes();
    let reply = compare(&mut client, spoiled.token(), vec![table(sums(&notes))]).await;
    assert!(reply.complete && reply.rows.is_empty() && !reply.replaced);
    // Whoever holds nothing has nothing to compare.
    let empty = Remote {
        checkpoint: Vec::new(),
        ..ada
    };
    let reply = client.sync(empty.token()).await;
    assert!(!reply.answer().compare && reply.replaced);
}

#[tokio::test]
async fn only_ranges_that_differ_are_sent_whatever_pieces_the_comparison_comes_in() {
    let world = World::start().await;
    let ada = ten_notes(&world).await;
    let mut notes = world.centre.state().notes();
    notes[4].1 = "something else".into();
    notes.remove(9);
    let ranges = sums(&notes);
    assert_eq!(ranges.len(), 5);
    for piece in [1, 2, 5] {
        let pieces = ranges.chunks(piece).map(|piece| table(piece.to_vec()));
        let mut client = world.connect().await;
        let reply = compare(&mut client, ada.token(), pieces.collect()).await;
        assert!(reply.complete && !reply.replaced, "{reply:?}");
        assert_eq!(reply.ranges.len(), 2);
        let rows: Vec<i64> = reply.rows.iter().map(|(id, _)| *id).collect();
        assert_eq!(rows, [4, 5, 8, 9]);
    }
}

#[tokio::test]
async fn a_comparison_under_another_schema_is_ignored() {
    let world = World::start().await;
    let mut ada = ten_notes(&world).await;
    ada.schema_hash = vec![9; 32];
    let mut strange = table(sums(&[]));
    strange.table = Some(Box::new(TableBegin {
        table: "gone".into(),
        ..TableBegin::default()
    }));
    let mut client = world.connect().await;
    let reply = compare(&mut client, ada.token(), vec![strange]).await;
    assert!(reply.complete && reply.replaced && reply.ranges.is_empty());
    assert_eq!(reply.rows.len(), 10);
    assert!(!reply.answer().schema.is_empty());
    // It is not asked for one either.
    let reply = client.sync(ada.token()).await;
    assert!(!reply.answer().compare && reply.replaced);
}

#[tokio::test]
async fn comparisons_that_make_no_sense_end_the_sync() {
    let world = World::start().await;
    let ada = ten_notes(&world).await;
    let notes = world.centre.state().notes();
    let code = async |hello: Opening, tables: Vec<CompareTable>| {
        let mut client = world.connect().await;
        compare(&mut client, hello, tables).await.code()
    };
    let another = |change: &dyn Fn(&mut TableBegin)| {
        let mut compare = table(sums(&[]));
        change(compare.table.as_mut().unwrap());
        vec![compare]
    };
    for tables in [
        another(&|begin| begin.table = "gone".into()),
        another(&|begin| begin.columns.truncate(1)),
        another(&|begin| begin.key = vec![1]),
        vec![table(Vec::new())],
        vec![table(sums(&notes)), table(sums(&notes))],
        vec![table(sums(&notes).into_iter().rev().collect())],
        vec![CompareTable {
            table: None,
            ..table(sums(&notes))
        }],
    ] {
        assert_eq!(code(ada.token(), tables).await, Code::MalformedMessage);
    }
    let elsewhere = CompareTable {
        subscription: 1,
        ..table(sums(&notes))
    };
    assert_eq!(
        code(ada.token(), vec![elsewhere]).await,
        Code::UnexpectedMessage
    );
    // Not announced, and in the middle of an upload.
    let mut client = world.connect().await;
    client.put_opening(ada.token());
    client.put(Control::CompareTable(table(sums(&notes))));
    client.put_request().flush().await;
    assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
    let mut client = world.connect().await;
    let rows = inserts(30..31, "x");
    let hello = crate::client::pending(comparing(ada.token()), 2);
    client.put_opening(hello);
    client.put_upload_begin(2, 2, &rows, 1);
    client.put(Control::CompareTable(table(sums(&notes))));
    client.flush().await;
    assert_eq!(client.reply().await.code(), Code::UnexpectedMessage);
}

/// So many ranges that are well-formed.
fn many(ranges: i64) -> Vec<CompareTable> {
    let range = |id: i64| {
        let mut until = Vec::new();
        pack_key(&mut until, &[ColumnType::Integer], &[Datum::Integer(id)]);
        KeyRange {
            until,
            rows: 1,
            checksum: u64::MAX,
        }
    };
    let ids: Vec<i64> = (0..ranges).collect();
    let messages = ids.chunks(20_000);
    messages
        .map(|ids| table(ids.iter().map(|&id| range(id)).collect()))
        .collect()
}

#[tokio::test]
async fn what_is_compared_is_bounded_and_taken_from_the_budget() {
    let world = World::with_limits("memory = \"1MiB\"").await;
    let ada = ten_notes(&world).await;
    let (mut one, mut other) = (world.connect().await, world.connect().await);
    let bob = world.remote("bob").await;
    // Each is larger than the budget: one goes beyond it, and meanwhile no other.
    for (client, remote) in [(&mut one, &ada), (&mut other, &bob)] {
        client.put_opening(comparing(remote.token()));
        for table in many(20_000) {
            client.put(Control::CompareTable(table));
        }
        client.flush_if_possible().await;
    }
    let replies = select(Box::pin(one.reply()), Box::pin(other.reply()));
    let (reply, _) = replies.await.factor_first();
    assert!(reply.busy.is_some(), "{reply:?}");
    drop((one, other));
    // All of it is free again.
    let mut client = world.connect().await;
    let notes = world.centre.state().notes();
    let reply = compare(&mut client, ada.token(), vec![table(sums(&notes))]).await;
    assert!(reply.complete && reply.rows.is_empty());

    let world = World::start().await;
    let ada = ten_notes(&world).await;
    let mut client = world.connect().await;
    client.put_opening(comparing(ada.token()));
    for table in many(500_000) {
        client.put(Control::CompareTable(table));
    }
    client.flush_if_possible().await;
    assert_eq!(client.reply().await.code(), Code::LimitExceeded);
}
