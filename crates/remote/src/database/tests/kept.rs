//! Facts about uploads that are kept, and given back to a centre that has forgotten them.

use super::*;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::Control;

use crate::database::{CentreState, CompareDue, HelloState};

const ROWS: &str = "SELECT id || name || amount FROM item ORDER BY id";

/// The centre has forgotten all uploads.
pub(super) fn restored(remote: &mut Remote) {
    restored_to(remote, (0, None));
}

/// The centre has forgotten all uploads after this one.
pub(super) fn restored_to(remote: &mut Remote, last_upload: (u64, Option<UploadId>)) {
    let state = CentreState {
        subscription: remote.state().id,
        last_upload: Some(last_upload),
        formers: Vec::new(),
        compare_due: CompareDue::Yes,
    };
    let subscriptions = [remote.state()];
    let said = HelloState {
        remote_id: None,
        subscriptions: &subscriptions,
    };
    let accepted = remote
        .database_mut()
        .accept_centre_state(said, &[state], &mut || UploadId([98; 16]));
    accepted.unwrap();
}

#[test]
fn what_is_given_back_is_decided_by_the_id_of_the_last_upload_and_not_by_its_number() {
    let mut remote = with_items();
    let ids = ["one", "two", "three"].map(|name| {
        remote.run(&format!("UPDATE item SET name = '{name}' WHERE id = 1"));
        let id = remote.begin().taken.unwrap();
        remote.acknowledge(|_| {});
        id
    });
    let giving = |remote: &Remote| {
        remote.query("SELECT group_concat(sequence) FROM tidewater_kept WHERE giving = 1")
    };
    // The centre counts otherwise.
    restored_to(&mut remote, (7, Some(ids[1])));
    assert_eq!(giving(&remote), ["3"]);
    let state = remote.state();
    assert_eq!((state.sequence, state.upload_id), (7, Some(ids[1])));
    // Nothing is given back that it has.
    restored(&mut remote);
    restored_to(&mut remote, (2, Some(ids[1])));
    assert_eq!(giving(&remote), ["3"]);
    // Somebody else has uploaded under our number.
    restored_to(&mut remote, (2, Some(UploadId([9; 16]))));
    assert_eq!(giving(&remote), ["2,3"]);

    let database = remote.database_mut();
    let said = database.subscriptions().unwrap();
    let recognised = |has| database.recognise(&said, &[has]).unwrap();
    let states = recognised(Some((5, ids[0]))).unwrap();
    assert_eq!(states[0].last_upload, Some((5, Some(ids[0]))));
    assert_eq!(recognised(Some((3, UploadId([8; 16])))), None);
    assert_eq!(recognised(None), None);
    // It has what we have last: whoever is at odds, it is not about this.
    assert_eq!(recognised(Some((2, UploadId([9; 16])))), None);
}

#[test]
fn acknowledged_uploads_are_kept_by_number_and_given_back_in_order() {
    let mut remote = with_items();
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        remote.run(&format!("UPDATE item SET name = '{name}' WHERE id = 1"));
        ids.push(remote.begin().taken.unwrap());
        remote.acknowledge(|_| {});
    }
    assert_eq!(remote.state().giving, None);
    restored(&mut remote);
    assert_eq!(
        (remote.state().sequence, remote.state().upload_id),
        (0, None)
    );
    remote.run("UPDATE item SET name = 'pending' WHERE id = 1");
    for (number, id) in ids.into_iter().enumerate() {
        let state = remote.begin();
        assert_eq!((state.next_upload(), state.taken), (Some(id), None));
        remote.acknowledge(|_| {});
        assert_eq!(remote.state().sequence, number as u64 + 1);
        assert_eq!(remote.state().upload_id, Some(id));
    }
    assert_eq!(
        remote.upload(),
        [update(&item(1, "two", 10), &item(1, "pending", 10))]
    );
    // Forgotten once more, they go up once more.
    restored(&mut remote);
    assert!(remote.state().giving.is_some());
}

#[test]
fn a_refused_change_that_was_given_back_is_told_with_the_users_own_values() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'one' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         INSERT INTO item VALUES (9, 'new', 90)",
    );
    remote.acknowledge(|_| {});
    restored(&mut remote);
    remote.run("UPDATE item SET name = 'newer' WHERE id = 1");
    let summary = remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(1)], Op::Update, 703, "no");
            rows.key(Op::ConflictGone, &[Datum::Integer(2)]);
            rows.refused(&[Datum::Integer(9)], Op::Insert, 701, "taken");
            rows.refused(&[Datum::Integer(77)], Op::Insert, 701, "never sent");
        });
    });
    assert_eq!((summary.refused, summary.conflicts), (2, 1));
    let refused = remote.database().refused().unwrap();
    let told: Vec<_> = refused
        .iter()
        .map(|it| (it.operation.as_str(), it.values.as_deref(), it.at_ms))
        .collect();
    assert_eq!(
        told,
        [
            ("update", Some(r#"{"id":1,"name":"one"}"#), 1_000),
            (
                "insert",
                Some(r#"{"amount":90,"id":9,"name":"new"}"#),
                1_000
            ),
        ]
    );
    assert_eq!(remote.query(ROWS), ["1newer10", "3c30", "9new90"]);
    assert_eq!(
        remote.upload(),
        [update(&item(1, "one", 10), &item(1, "newer", 10))]
    );
}

#[test]
fn columns_that_left_before_their_upload_was_given_back_are_told_with_the_users_own_values() {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'one' WHERE id = 1; UPDATE item SET amount = 21 WHERE id = 2; \
         INSERT INTO item VALUES (9, NULL, 90), (10, 'new', 100); DELETE FROM item WHERE id = 3",
    );
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 22 WHERE id = 2");
    remote.acknowledge(|_| {});
    restored(&mut remote);
    let mut schema = items();
    schema.tables[0].columns.remove(1);
    schema.tables[0].partition = vec![1];
    let told = |summary: &ApplySummary| -> Vec<(String, String)> {
        let refused = summary.refused_rows.iter();
        refused
            .map(|it| (it.key.clone(), it.reason.clone()))
            .collect()
    };
    let reason = "the column \"name\" left the publication before its change arrived";
    // With the schema that the column left, and after it.
    for (schema, keys) in [(Some(schema), vec!["[1]", "[10]"]), (None, vec![])] {
        let mut applier = remote.applier(schema.clone());
        applier.result_begin(0).unwrap();
        applier.result_end().unwrap();
        applier.download_begin(0, false).unwrap();
        applier.download_end(b"checkpoint").unwrap();
        let summary = remote.commit(applier);
        let expected = keys.iter().map(|&key| (key.into(), reason.into()));
        assert_eq!(told(&summary), expected.collect::<Vec<_>>());
    }
    let refused = remote.database().refused().unwrap();
    let values: Vec<_> = refused.iter().map(|it| it.values.as_deref()).collect();
    assert_eq!(
        values,
        [
            Some(r#"{"id":1,"name":"one"}"#),
            Some(r#"{"id":10,"name":"new"}"#)
        ]
    );
}

#[test]
fn what_was_refused_is_not_kept() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'secret' WHERE id < 3");
    let refuse = |server: &mut Sender<'_>, ids: &[i64]| {
        server.table("item", |rows| {
            for &id in ids {
                rows.refused(&[Datum::Integer(id)], Op::Update, 704, "no");
            }
        });
    };
    remote.acknowledge(|server| refuse(server, &[1]));
    restored(&mut remote);
    let state = remote.begin();
    let mut frames = remote
        .database()
        .kept_frames(state.giving.unwrap())
        .unwrap();
    let mut rows = 0;
    while let Some(frame) = crate::database::kept_uploads::next_frame(&mut frames).unwrap() {
        if let Frame::Control {
            control: Some(Control::UploadEnd(end)),
            ..
        } = frame
        {
            rows = end.updates;
        }
    }
    assert_eq!(rows, 1);
    // Refused now, too: nothing is left.
    remote.acknowledge(|server| refuse(server, &[2]));
    assert_eq!(remote.query("SELECT count(*) FROM tidewater_kept"), ["0"]);
    assert_eq!(remote.state().sequence, 1);
    // What it had refused before goes up like any other change.
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "secret", 10))]
    );
}

#[test]
fn what_was_refused_is_not_kept_whatever_its_columns_hold() {
    let mut remote = with_items();
    remote.run("INSERT INTO item VALUES (9, 'new', 'ninety')");
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(9)], Op::Insert, 706, "no number");
        });
    });
    assert_eq!(remote.query("SELECT count(*) FROM tidewater_kept"), ["0"]);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut remote = with_items();
    let kept = "SELECT count(*) FROM tidewater_kept";
    // A sync that uploads no net change keeps nothing.
    remote.run("UPDATE item SET name = 'x' WHERE id = 1; UPDATE item SET name = 'a' WHERE id = 1");
    remote.acknowledge(|_| {});
    assert_eq!(remote.query(kept), ["0"]);
    // Of a large one, only that it was there.
    remote.run("UPDATE item SET name = hex(zeroblob(4500000)) WHERE id = 3");
    remote.acknowledge(|_| {});
    // Seven of six megabytes: of the oldest, too.
    for number in 0..7 {
        remote.run(&format!(
            "UPDATE item SET name = {number} || hex(zeroblob(1500000)) WHERE id = 1"
        ));
        remote.acknowledge(|_| {});
    }
    let numbers = "SELECT sequence || iif(bytes = x'', ' gap', '') FROM tidewater_kept \
                   ORDER BY id";
    let gaps = ["2 gap", "3 gap", "4 gap"];
    let expected = [&gaps[..], &["5", "6", "7", "8", "9"]].concat();
    assert_eq!(remote.query(numbers), expected);
    // Two weeks later all of them are too old.
    remote.run("UPDATE tidewater_kept SET at = -1300000000");
    remote.run("UPDATE item SET name = 'small' WHERE id = 2");
    remote.acknowledge(|_| {});
    assert_eq!(remote.query(numbers), ["10"]);
}
