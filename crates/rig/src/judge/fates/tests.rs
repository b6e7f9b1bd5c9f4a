#![allow(
    clippy::field_reassign_with_default,
    reason = "what is in the records grows with the story of a test"
)]

use super::*;

const REMOTE: &[u8] = b"remote";

fn edit(is_delete: bool, is_own: bool) -> Edit {
    Edit {
        table: JudgedTable::Visit,
        key: 7,
        is_delete,
        is_own,
        tag: "d1.1".into(),
    }
}

fn there(is_refused: bool, is_last: bool) -> There<'static> {
    There {
        remote: REMOTE,
        is_refused,
        is_last,
    }
}

fn applied(times: u64) -> Records {
    Records {
        applied: HashMap::from([("d1.1".to_owned(), times)]),
        ..Records::default()
    }
}

#[test]
fn a_change_that_is_nowhere_is_found() {
    let records = Records::default();
    assert!(
        records
            .fate(&edit(false, true), &there(false, true))
            .is_err()
    );
    let overwritten = records.fate(&edit(false, true), &there(false, false));
    assert_eq!(overwritten, Ok(Fate::Overwritten));
}

#[test]
fn a_change_that_was_applied_twice_is_found() {
    let write = edit(false, true);
    assert_eq!(
        applied(1).fate(&write, &there(false, true)),
        Ok(Fate::InCentre)
    );
    assert!(applied(2).fate(&write, &there(false, true)).is_err());
    assert!(applied(2).fate(&write, &there(false, false)).is_err());
}

#[test]
fn a_change_that_was_applied_and_lost_is_found() {
    let mut records = applied(1);
    records.conflicts = HashMap::from([("d1.1".to_owned(), 1)]);
    assert!(
        records
            .fate(&edit(false, false), &there(false, true))
            .is_err()
    );
    records.applied.clear();
    let write = edit(false, false);
    assert_eq!(
        records.fate(&write, &there(false, true)),
        Ok(Fate::Conflict)
    );
}

#[test]
fn a_conflict_about_a_row_that_nobody_else_changes_is_found() {
    let mut records = Records::default();
    records.conflicts = HashMap::from([("d1.1".to_owned(), 1)]);
    assert!(
        records
            .fate(&edit(false, true), &there(false, true))
            .is_err()
    );
}

#[test]
fn a_refusal_that_one_side_does_not_know_is_found() {
    let write = edit(false, true);
    assert!(Records::default().fate(&write, &there(true, true)).is_err());
    let mut records = Records::default();
    records.refused = HashSet::from(["d1.1".to_owned()]);
    assert!(records.fate(&write, &there(false, true)).is_err());
    assert_eq!(records.fate(&write, &there(true, true)), Ok(Fate::Refused));
}

#[test]
fn a_deleted_row_that_is_there_is_found() {
    let delete = edit(true, false);
    let mut records = Records::default();
    records.present = HashSet::from([(JudgedTable::Visit, 7)]);
    assert!(records.fate(&delete, &there(false, true)).is_err());
    records.conflicting_deletes = HashSet::from([(b"another".to_vec(), JudgedTable::Visit, 7)]);
    assert!(records.fate(&delete, &there(false, true)).is_err());
    records.conflicting_deletes = HashSet::from([(REMOTE.to_vec(), JudgedTable::Visit, 7)]);
    assert_eq!(
        records.fate(&delete, &there(false, true)),
        Ok(Fate::Conflict)
    );
    records.present.clear();
    records.deleted = HashSet::from([(JudgedTable::Visit, 7)]);
    assert_eq!(
        records.fate(&delete, &there(false, true)),
        Ok(Fate::InCentre)
    );
}

#[test]
fn a_refused_delete_is_known_on_the_remote_until_the_row_is_back() {
    let delete = edit(true, false);
    let mut records = Records::default();
    records.present = HashSet::from([(JudgedTable::Visit, 7)]);
    records.refused_deletes = HashSet::from([(REMOTE.to_vec(), JudgedTable::Visit, 7)]);
    assert!(records.fate(&delete, &there(false, true)).is_err());
    assert_eq!(records.fate(&delete, &there(true, true)), Ok(Fate::Refused));
    assert_eq!(
        records.fate(&delete, &there(false, false)),
        Ok(Fate::Refused)
    );
}

#[test]
fn a_refused_delete_is_settled_only_by_a_later_change_of_its_device() {
    let delete = edit(true, false);
    let mut records = Records::default();
    records.present = HashSet::from([(JudgedTable::Visit, 7)]);
    records.settled_deletes = HashSet::from([(REMOTE.to_vec(), JudgedTable::Visit, 7)]);
    assert!(records.fate(&delete, &there(false, true)).is_err());
    assert!(records.fate(&delete, &there(true, true)).is_err());
    assert_eq!(
        records.fate(&delete, &there(false, false)),
        Ok(Fate::Refused)
    );
}
