//! Facts about uploads that are too large to be kept: what happens when they would have to be
//! given back.

use tidewater_protocol::{Code, RemoteId};

use super::comparing::CENTRE;
use super::kept::{restored, restored_to};
use super::*;
use crate::database::{CompareDue, HelloState, KeptLimits, NewIdentity};

/// Every upload is too large to be kept.
const TINY: KeptLimits = KeptLimits {
    upload_bytes: 1,
    total_bytes: 1 << 20,
};

const ROWS: &str = "SELECT id || name || amount FROM item ORDER BY id";

const UNTRACKED: &str = "SELECT table_name || forgotten FROM tidewater_untracked";

/// Whether each kept upload has bytes, with its number.
fn kept(remote: &Remote) -> Vec<String> {
    remote.query("SELECT sequence || '/' || (bytes <> x'') FROM tidewater_kept ORDER BY id")
}

/// Rows 1 to 3, of which an upload that was too large has changed, deleted and added some, and a
/// later one that is kept another one.
fn with_gap() -> (Remote, [UploadId; 2]) {
    let mut remote = with_items();
    remote.database_mut().limit_kept(TINY);
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2; \
         INSERT INTO item VALUES (4, 'new', 40)",
    );
    let large = remote.begin().taken.unwrap();
    remote.acknowledge(|_| {});
    remote.database_mut().limit_kept(KeptLimits::default());
    remote.run("UPDATE item SET amount = 31 WHERE id = 3");
    let small = remote.begin().taken.unwrap();
    remote.acknowledge(|_| {});
    assert_eq!(kept(&remote), ["1/0", "2/1"]);
    (remote, [large, small])
}

#[test]
fn what_comes_after_a_gap_is_given_back() {
    let (mut remote, [large, small]) = with_gap();
    restored_to(&mut remote, (1, Some(large)));
    assert_eq!(remote.begin().next_upload(), Some(small));
    assert_eq!(remote.query(UNTRACKED).len(), 0);
}

#[test]
fn i2_a_gap_is_compared_and_goes_up_where_the_centre_knows_what_has_happened_since() {
    let (mut remote, _) = with_gap();
    restored(&mut remote);
    assert_eq!(remote.query(UNTRACKED), ["item1"]);
    assert_eq!(kept(&remote).len(), 0);
    let state = remote.begin_in(SyncDirection::Both);
    assert_eq!((state.giving, state.compare_due), (None, CompareDue::Yes));
    let summary = remote.compare_saying(true, &CENTRE, |_| {});
    assert_eq!(summary.refused, 0);
    assert_eq!(remote.query(UNTRACKED).len(), 0);
    let expected = [
        update(&item(1, "a", 10), &item(1, "mine", 10)),
        delete(&item(2, "b", 20)),
        update(&item(3, "c", 30), &item(3, "c", 31)),
        insert(&item(4, "new", 40)),
    ];
    assert_eq!(remote.upload(), expected);
}

#[test]
fn i2_a_gap_is_compared_and_told_where_the_centre_does_not_know_what_has_happened_since() {
    let (mut remote, _) = with_gap();
    restored(&mut remote);
    let summary = remote.compare_saying(false, &CENTRE, |_| {});
    assert_eq!(summary.refused, 4);
    assert_eq!(remote.query(ROWS), ["1a10", "2b20", "3c30"]);
    let refused = remote.database().refused().unwrap();
    let told = refused.iter().map(|it| {
        let values = it.values.as_deref().unwrap_or_default();
        format!("{} {} {values}", it.operation, it.code)
    });
    let mut told: Vec<String> = told.collect();
    told.sort_unstable();
    let (untracked, forgotten) = (Code::RowUntracked.name(), Code::RowForgotten.name());
    assert_eq!(
        told,
        [
            format!("delete {forgotten} {{\"id\":2}}"),
            format!("update {untracked} {{\"amount\":31,\"id\":3}}"),
            format!("update {untracked} {{\"amount\":40,\"id\":4,\"name\":\"new\"}}"),
            format!("update {untracked} {{\"id\":1,\"name\":\"mine\"}}"),
        ]
    );
    assert_eq!(remote.upload(), []);
    // It is told once: a row that comes later is no delete.
    let centre = [CENTRE[0], CENTRE[1], CENTRE[2], (5, "others", 50)];
    assert_eq!(remote.compare_saying(false, &centre, |_| {}).refused, 0);
}

#[test]
fn i2_what_only_goes_up_goes_up_once_more() {
    let mut schema = items();
    schema.tables[0].direction = Direction::Upload;
    let mut remote = Remote::new(schema);
    remote.database_mut().limit_kept(TINY);
    remote.download(|_| {});
    remote.run("INSERT INTO item VALUES (1, 'a', 10), (2, 'b', 20)");
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET name = 'B' WHERE id = 2");
    restored(&mut remote);
    assert_eq!(remote.query(UNTRACKED).len(), 0);
    let expected = [
        insert(&item(1, "a", 10)),
        update(&item(2, "b", 20), &item(2, "B", 20)),
    ];
    assert_eq!(remote.upload(), expected);
}

#[test]
fn the_oldest_uploads_become_gaps_and_the_oldest_gaps_go() {
    let mut remote = with_items();
    remote.database_mut().limit_kept(KeptLimits {
        total_bytes: 300,
        ..KeptLimits::default()
    });
    for number in 0..9 {
        remote.run(&format!("UPDATE item SET name = 'a{number}' WHERE id = 1"));
        remote.acknowledge(|_| {});
    }
    let kept_now = kept(&remote);
    assert_eq!(kept_now.len(), 9);
    assert_eq!((&*kept_now[0], &*kept_now[8]), ("1/0", "9/1"));
    remote.run(
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) \
         INSERT INTO tidewater_kept (subscription, sequence, upload_id, at, total_bytes, bytes) \
         SELECT 1, 9, x'00', 1000, (SELECT max(total_bytes) FROM tidewater_kept), x'' FROM n; \
         UPDATE item SET name = 'last' WHERE id = 1",
    );
    remote.acknowledge(|_| {});
    let gaps = remote.query("SELECT count(*) FROM tidewater_kept WHERE bytes = x''");
    assert_eq!(gaps, ["1000"]);
    assert_eq!(kept(&remote).last().unwrap(), "10/1");
}

#[test]
fn gaps_of_one_centre_say_nothing_of_another() {
    let mut remote = with_items();
    remote.database_mut().limit_kept(TINY);
    let identity = |number: u8, centre| NewIdentity {
        remote_id: RemoteId([number; 16]),
        token: None,
        credential: None,
        centre,
    };
    let adopt = |remote: &mut Remote, number, centre| {
        let subscriptions = remote.database().subscriptions().unwrap();
        let remote_id = remote.database().account().unwrap().remote_id;
        let said = HelloState {
            remote_id,
            subscriptions: &subscriptions,
        };
        let database = remote.database_mut();
        let adopted =
            database.adopt_identity(said, &identity(number, centre), &mut || UploadId([99; 16]));
        adopted.unwrap();
    };
    adopt(&mut remote, 1, "one");
    remote.run("UPDATE item SET name = 'one' WHERE id = 1");
    remote.acknowledge(|_| {});
    // Another id of the same centre knows it by its id.
    adopt(&mut remote, 2, "one");
    assert_eq!(kept(&remote), ["1/0"]);
    let state = remote.database().subscriptions().unwrap().remove(0);
    assert_eq!(state.formers.len(), 1);
    assert_eq!(state.formers[0].remote_id, RemoteId([1; 16]));
    adopt(&mut remote, 3, "another");
    assert_eq!(kept(&remote).len(), 0);
}
