//! Facts about refused changes, from the refusal to the user's decision.

use super::*;
use crate::database::{HelloState, NewIdentity, RowSelection};
use bytes::BytesMut;
use tidewater_protocol::Code;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::{Control, DownloadBegin, SettledRefusal};

/// Rows 1 (update), 3 (delete) and 9 (insert) are changed and refused.
fn with_refusals() -> Remote {
    let mut remote = with_items();
    remote.run(
        "UPDATE item SET name = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 3; \
         INSERT INTO item VALUES (9, 'new', 90); UPDATE item SET name = 'fine' WHERE id = 2",
    );
    let summary = remote.acknowledge(refuse_all);
    assert_eq!(summary.refused, 3);
    remote
}

fn refuse_all(server: &mut Sender<'_>) {
    server.table("item", |rows| {
        let code = Code::RowCheck.number();
        rows.refused(&[Datum::Integer(1)], Op::Update, code, "too cheap");
        rows.refused(&[Datum::Integer(3)], Op::Delete, code, "too dear");
        rows.refused(&[Datum::Integer(9)], Op::Insert, code, "too new");
    });
}

fn refused_keys(remote: &Remote) -> Vec<String> {
    let refused = remote.database().refused().unwrap();
    refused.into_iter().map(|row| row.key).collect()
}

const NAMES: &str = "SELECT id || ':' || name || ':' || amount FROM item ORDER BY id";

#[test]
fn a_refused_change_stays_with_its_reason_and_is_not_uploaded_again() {
    let mut remote = with_refusals();
    let refused = remote.database().refused().unwrap();
    assert_eq!(refused_keys(&remote), ["[1]", "[3]", "[9]"]);
    let first = &refused[0];
    assert_eq!(
        (
            first.operation.as_str(),
            first.code.as_str(),
            first.reason.as_str()
        ),
        ("update", "check", "too cheap")
    );
    assert_eq!(
        (first.sequence, first.at_ms, first.values.as_ref()),
        (1, 1_000, None)
    );
    assert_eq!(refused[1].operation, "delete");
    assert_eq!(remote.upload(), []);
    assert_eq!(remote.query(NAMES), ["1:mine:10", "2:fine:20", "9:new:90"]);
    let status = remote.database().status().unwrap();
    let table = &status.subscriptions[0].tables[0];
    assert_eq!((table.rows, table.pending, table.refused), (3, 0, 3));
}

/// Interleaving 6, the remote's side.
#[test]
fn a_lost_acknowledgement_tells_the_same_refusals_once() {
    let mut remote = with_items();
    remote
        .run("UPDATE item SET name = 'mine' WHERE id = 1; INSERT INTO item VALUES (9, 'new', 90)");
    remote.run("DELETE FROM item WHERE id = 3");
    let mut applier = remote.applier(None);
    applier.result_begin(0).unwrap();
    let schema = remote.schema.clone();
    refuse_all(&mut Sender {
        applier: &mut applier,
        schema: &schema,
    });
    remote.database = Some(applier.abort());
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
    let summary = remote.acknowledge(refuse_all);
    assert_eq!(summary.refused, 3);
    assert_eq!(summary.refused_rows[0].key, "[1]");
    assert_eq!(summary.refused_rows[0].reason, "too cheap");
    assert_eq!(refused_keys(&remote), ["[1]", "[3]", "[9]"]);
}

#[test]
fn a_refused_row_that_is_changed_again_goes_up_with_its_first_pre_image() {
    let mut remote = with_refusals();
    remote.run("UPDATE item SET name = 'dear' WHERE id = 1");
    remote.run("INSERT INTO item VALUES (3, 'back', 30); DELETE FROM item WHERE id = 9");
    assert_eq!(
        remote.upload(),
        [
            update(&item(1, "a", 10), &item(1, "dear", 10)),
            update(&item(3, "c", 30), &item(3, "back", 30)),
        ],
        "the insert that was taken back is no change any more"
    );
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
}

/// The upload does not have what was undone, so it tells the centre, where an operator could carry out
/// the refused change otherwise.
#[test]
fn a_refused_change_that_is_undone_is_told_as_given_up() {
    let mut remote = with_refusals();
    remote.run(
        "UPDATE item SET name = 'a' WHERE id = 1; INSERT INTO item VALUES (3, 'c', 30); \
         DELETE FROM item WHERE id = 9",
    );
    let state = remote.begin();
    assert_eq!(remote.changes(&state), []);
    let told = remote.database().given_up(&state).unwrap();
    let told: Vec<_> = told.iter().map(|it| (&*it.key, it.sequence)).collect();
    assert_eq!(told, [("[1]", 1), ("[3]", 1), ("[9]", 1)]);
    remote.acknowledge(|_| {});
    let settled = remote.database().settled_refused().unwrap();
    let settled: Vec<_> = settled.iter().map(|it| &*it.outcome).collect();
    assert_eq!(settled, ["given_up"; 3]);
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
}

#[test]
fn a_change_made_while_the_refusal_was_on_its_way_takes_over_the_pre_image() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'first' WHERE id = 1");
    remote.begin();
    remote.run("UPDATE item SET name = 'second' WHERE id = 1");
    let summary = remote.acknowledge_refused_item();
    assert_eq!(summary.refused, 0);
    assert_eq!(
        refused_keys(&remote),
        Vec::<String>::new(),
        "it is pending instead"
    );
    let listed = |remote: &Remote| {
        let settled = remote.database().settled_refused().unwrap();
        let each = settled.into_iter().map(|it| {
            let times = (it.refused.at_ms, it.settled_at_ms);
            (it.refused.key, it.outcome, times)
        });
        each.collect::<Vec<_>>()
    };
    let retried = ("[1]".to_owned(), "retried".to_owned(), (1_000, 1_000));
    assert_eq!(listed(&remote), [retried]);
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "second", 10))]
    );
    remote.acknowledge(|_| {});
    let taken = ("[1]".to_owned(), "taken".to_owned(), (1_000, 1_000));
    assert_eq!(listed(&remote), [taken]);
}

#[test]
fn retried_rows_go_up_again() {
    let mut remote = with_refusals();
    let ids: Vec<i64> = remote
        .database()
        .refused()
        .unwrap()
        .iter()
        .map(|row| row.id)
        .collect();
    assert_eq!(
        remote
            .database_mut()
            .retry_refused(RowSelection::Ids(&ids[..1]))
            .unwrap(),
        1
    );
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "mine", 10))]
    );
    remote.acknowledge(|_| {});
    assert_eq!(
        remote
            .database_mut()
            .retry_refused(RowSelection::All)
            .unwrap(),
        2
    );
    assert_eq!(
        remote.upload(),
        [delete(&item(3, "c", 30)), insert(&item(9, "new", 90))]
    );
    assert_eq!(
        remote
            .database_mut()
            .retry_refused(RowSelection::All)
            .unwrap(),
        0
    );
}

#[test]
fn discarded_rows_go_back_to_the_pre_image_and_are_asked_for() {
    let mut remote = with_refusals();
    assert_eq!(
        remote
            .database_mut()
            .discard_refused(RowSelection::All)
            .unwrap(),
        3
    );
    assert_eq!(remote.query(NAMES), ["1:a:10", "2:fine:20", "3:c:30"]);
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
    assert_eq!(remote.upload(), []);
    assert_eq!(remote.requested(), 3);
}

/// Full-text search and the like would be wrong for ever.
#[test]
fn triggers_of_the_application_follow_what_is_discarded_and_nothing_is_uploaded_for_it() {
    let mut remote = with_refusals();
    remote.run(
        "CREATE TABLE copied AS SELECT id, name FROM item;
         CREATE TRIGGER came AFTER INSERT ON item BEGIN
           INSERT INTO copied VALUES (NEW.id, NEW.name); END;
         CREATE TRIGGER went AFTER DELETE ON item BEGIN
           DELETE FROM copied WHERE id = OLD.id; END;
         CREATE TRIGGER synced AFTER DELETE ON item BEGIN
           UPDATE item SET name = 'by a trigger' WHERE id = 2; END",
    );
    remote
        .database_mut()
        .discard_refused(RowSelection::All)
        .unwrap();
    assert_eq!(remote.query(NAMES), ["1:a:10", "2:fine:20", "3:c:30"]);
    let copied = remote.query("SELECT id || ':' || name FROM copied ORDER BY id");
    assert_eq!(copied, ["1:a", "2:fine", "3:c"]);
    // What is given up is told with an upload.
    assert_eq!(remote.upload(), []);
    remote.acknowledge(|_| {});
    // Tracking goes on, and so do all triggers.
    remote.run("DELETE FROM item WHERE id = 3");
    let changes = [
        update(&item(2, "fine", 20), &item(2, "by a trigger", 20)),
        delete(&item(3, "c", 30)),
    ];
    assert_eq!(remote.upload(), changes);
}

#[test]
fn refused_rows_are_tried_again_when_the_scope_changed() {
    let mut remote = with_refusals();
    let mut applier = remote.applier(None);
    applier.download_begin(0, true).unwrap();
    applier.download_end(b"").unwrap();
    remote.commit(applier);
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
    assert_eq!(remote.upload().len(), 3);
}

#[test]
fn what_leaves_with_the_changed_scope_takes_its_refused_change_with_it() {
    let mut remote = with_refusals();
    let mut applier = remote.applier(None);
    applier.download_begin(0, true).unwrap();
    let schema = remote.schema.clone();
    let mut server = Sender {
        applier: &mut applier,
        schema: &schema,
    };
    server.replace("item", |rows| rows.row(Op::Upsert, &item(3, "c", 30)));
    applier.download_end(b"").unwrap();
    remote.commit(applier);
    // The update of row 1 is the user's to read; the rest is tried again.
    let refused = remote.database().refused().unwrap();
    assert_eq!(refused_keys(&remote), ["[1]"]);
    assert!(refused[0].values.is_some());
    assert_eq!(remote.query(NAMES), ["9:new:90"]);
    assert_eq!(remote.upload().len(), 2);
}

#[test]
fn what_a_sync_refused_stays_listed_though_it_changed_the_scope_and_goes_up_with_the_next() {
    let mut remote = with_refusals();
    remote.run("UPDATE item SET name = 'later' WHERE id = 2");
    let mut applier = remote.applier(None);
    applier.result_begin(0).unwrap();
    let schema = remote.schema.clone();
    let mut server = Sender {
        applier: &mut applier,
        schema: &schema,
    };
    server.table("item", |rows| {
        rows.refused(&[Datum::Integer(2)], Op::Update, 704, "not yours");
    });
    applier.result_end().unwrap();
    applier.download_begin(0, true).unwrap();
    applier.download_end(b"").unwrap();
    let summary = remote.commit(applier);
    // The report and the list agree; what earlier syncs refused is pending again.
    assert_eq!(summary.refused, 1);
    assert_eq!(refused_keys(&remote), ["[2]"]);
    assert_eq!(remote.database().status().unwrap().refused, 1);
    let keys: Vec<_> = remote.upload().into_iter().map(|it| it.op).collect();
    assert_eq!(keys, [Op::Update, Op::Update, Op::Delete, Op::Insert]);
    assert_eq!(refused_keys(&remote), Vec::<String>::new());
    // Refused once more, and nothing changed: it waits for the user.
    remote.acknowledge(|server| {
        server.table("item", |rows| {
            rows.refused(&[Datum::Integer(2)], Op::Update, 704, "not yours");
        });
    });
    assert_eq!(refused_keys(&remote), ["[2]"]);
    assert_eq!(remote.upload(), []);
}

#[test]
fn a_refused_change_alone_goes_up_with_the_sync_after_the_scope_changed() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let mut applier = remote.applier(None);
    applier.result_begin(0).unwrap();
    let schema = remote.schema.clone();
    let mut server = Sender {
        applier: &mut applier,
        schema: &schema,
    };
    server.table("item", |rows| {
        rows.refused(&[Datum::Integer(1)], Op::Update, 704, "not yours");
    });
    applier.result_end().unwrap();
    applier.download_begin(0, true).unwrap();
    applier.download_end(b"").unwrap();
    remote.commit(applier);
    assert_eq!(refused_keys(&remote), ["[1]"]);
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "mine", 10))]
    );
}

#[test]
fn a_downloaded_row_does_not_overwrite_a_refused_one() {
    let mut remote = with_refusals();
    let summary = remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "centre", 1)));
    });
    assert_eq!(summary.stale, 1);
    assert_eq!(remote.query(NAMES)[0], "1:mine:10");
}

/// Interleaving 20, the remote's side.
#[test]
fn a_refused_row_that_leaves_the_scope_leaves_all_its_values() {
    let remove_one_by_one = |rows: &mut RowsWriter<'_>| {
        for id in [1, 3, 9] {
            rows.key(Op::Remove, &[Datum::Integer(id)]);
        }
    };
    type Removal<'a> = (&'a dyn Fn(&mut RowsWriter<'_>), bool);
    let removals: [Removal<'_>; 2] = [
        (&remove_one_by_one, false),
        (
            &|rows: &mut RowsWriter<'_>| rows.row(Op::Upsert, &item(2, "fine", 20)),
            true,
        ),
    ];
    for (removal, replace) in removals {
        let mut remote = with_refusals();
        remote.download(|server| server.send("item", replace, removal));
        assert_eq!(remote.query(NAMES), ["2:fine:20", "9:new:90"]);
        assert_eq!(remote.requested(), 0);
        let refused = remote.database().refused().unwrap();
        let mut values: Vec<String> = refused.into_iter().filter_map(|row| row.values).collect();
        values.sort();
        assert_eq!(
            values,
            [r#"{"amount":10,"id":1,"name":"mine"}"#, r#"{"id":3}"#]
        );
        assert_eq!(remote.upload(), []);
        // The insert is all the user's own.
        remote.run("DELETE FROM item WHERE id = 9");
        assert_eq!(remote.upload(), []);
        assert_eq!(
            remote
                .database_mut()
                .retry_refused(RowSelection::All)
                .unwrap(),
            0
        );
        assert_eq!(
            remote
                .database_mut()
                .discard_refused(RowSelection::All)
                .unwrap(),
            2
        );
    }
}

#[test]
fn a_refused_row_that_arrives_with_its_replaced_table_stays() {
    let mut remote = with_refusals();
    remote.download(|server| {
        server.replace("item", |rows| rows.row(Op::Upsert, &item(1, "a", 10)));
    });
    assert_eq!(remote.query(NAMES), ["1:mine:10", "9:new:90"]);
    let refused = remote.database().refused().unwrap();
    let kept: Vec<(&str, bool)> = refused
        .iter()
        .map(|row| (row.key.as_str(), row.values.is_none()))
        .collect();
    assert_eq!(kept, [("[1]", true), ("[3]", false), ("[9]", true)]);
}

#[test]
fn a_new_identity_keeps_what_was_taken_under_a_new_id() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    let before = remote.upload();
    let id = tidewater_protocol::RemoteId([7; 16]);
    let subscriptions = [remote.begin()];
    let said = HelloState {
        remote_id: None,
        subscriptions: &subscriptions,
    };
    let identity = NewIdentity {
        remote_id: id,
        token: None,
        credential: Some(b"credential"),
        centre: "",
    };
    let mut adopt = |said: HelloState<'_>| {
        let database = remote.database_mut();
        database.adopt_identity(said, &identity, &mut || UploadId([99; 16]))
    };
    // Another sync has gone on since the server was told of this.
    let mut earlier = subscriptions.clone();
    earlier[0].sequence += 1;
    let error = adopt(HelloState {
        subscriptions: &earlier,
        ..said
    })
    .unwrap_err();
    assert!(matches!(error, RemoteError::AnotherSyncWentAhead));
    adopt(said).unwrap();
    let state = remote.begin();
    assert_eq!((state.sequence, state.upload_id), (0, None));
    assert_eq!(state.taken, Some(UploadId([99; 16])));
    assert!(state.checkpoint.is_empty());
    assert_eq!(remote.changes(&state), before);
    assert_eq!(remote.database().account().unwrap().remote_id, Some(id));
}

#[test]
fn a_row_whose_change_is_refused_is_asked_for_only_when_the_change_is_gone() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.download(|server| {
        server.table("item", |rows| rows.row(Op::Upsert, &item(1, "theirs", 11)));
    });
    assert_eq!(remote.requested(), 0, "it could not be applied");
    remote
        .database_mut()
        .discard_refused(RowSelection::All)
        .unwrap();
    assert_eq!(remote.requested(), 1);
}

#[test]
fn a_row_whose_key_is_text_that_is_no_unicode_is_refused_like_any_other() {
    let word = table(
        "word",
        vec![
            column("w", ColumnType::Text, false),
            column("n", ColumnType::Integer, true),
        ],
        vec![0],
    );
    let mut remote = Remote::new(publication(vec![word]));
    remote.run("INSERT INTO word VALUES (CAST(x'61ff' AS TEXT), 1), ('good', 1)");
    let sent = |n: i64| Change {
        table: "word".into(),
        op: Op::Insert,
        old: Vec::new(),
        new: vec![Value::Blob(vec![0x61, 0xff]), Value::Integer(n)],
    };
    assert_eq!(remote.upload()[0], sent(1));
    let refuse = |server: &mut Sender<'_>| {
        server.table("word", |rows| {
            let key = Datum::Loose(tidewater_protocol::ValueRef::Blob(b"a\xff"));
            let code = Code::RowBadValue.number();
            rows.refused(&[key], Op::Insert, code, "w: no text");
        });
    };
    assert_eq!(remote.acknowledge(refuse).refused, 1);
    assert_eq!(refused_keys(&remote), ["[\"x'61ff'\"]"]);
    assert_eq!(remote.upload(), []);
    assert_eq!(
        remote
            .database_mut()
            .retry_refused(RowSelection::All)
            .unwrap(),
        1
    );
    assert_eq!(remote.upload(), [sent(1)]);
    assert_eq!(remote.acknowledge(refuse).refused, 1);
    // Changed again, before the next sync and while it is under way.
    remote.run("UPDATE word SET n = 2");
    let state = remote.begin();
    remote.run("UPDATE word SET n = 3 WHERE w <> 'good'");
    assert_eq!(remote.changes(&state)[0], sent(2));
    assert_eq!(remote.acknowledge(refuse).refused, 0);
    assert_eq!(remote.upload(), [sent(3)]);
    assert_eq!(remote.acknowledge(refuse).refused, 1);
    assert_eq!(
        remote
            .database_mut()
            .discard_refused(RowSelection::All)
            .unwrap(),
        1
    );
    assert_eq!(remote.query("SELECT w FROM word"), ["good"]);
    assert_eq!(remote.upload(), []);
}

/// What the taken upload says of changes that were refused before.
fn retried(remote: &mut Remote) -> Vec<u64> {
    let state = remote.begin();
    remote.database().retried(&state).unwrap()
}

/// An operator has settled what was refused of item 1 with this upload.
fn settle_item(remote: &mut Remote, sequence: u64, outcome: &str) {
    let state = remote.state();
    let mut applier = remote.applier_of(&state, None);
    let begin = DownloadBegin {
        settled: vec![SettledRefusal {
            table: "item".into(),
            key: "[1]".into(),
            sequence,
            at_ms: 900,
            by: "olga".into(),
            outcome: outcome.into(),
        }],
        ..DownloadBegin::default()
    };
    applier.take_refused_terms(&begin).unwrap();
    applier.download_begin(0, false).unwrap();
    applier.download_end(b"checkpoint").unwrap();
    remote.commit(applier);
}

#[test]
fn an_upload_names_those_with_which_its_changes_were_refused_before() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 9 WHERE id = 1");
    assert_eq!(retried(&mut remote), [0; 0]);
    remote.acknowledge_refused_item();
    // Of other rows nothing was refused.
    remote.run("UPDATE item SET amount = 19 WHERE id = 2");
    assert_eq!(retried(&mut remote), [0; 0]);
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 8 WHERE id = 1");
    assert_eq!(retried(&mut remote), [1]);
    // The number is that of the last try.
    remote.acknowledge_refused_item();
    remote
        .database_mut()
        .retry_refused(RowSelection::All)
        .unwrap();
    assert_eq!(retried(&mut remote), [3]);
    remote.acknowledge(|_| {});
    remote.run("UPDATE item SET amount = 7 WHERE id = 1");
    assert_eq!(retried(&mut remote), [0; 0], "it was taken");
}

#[test]
fn what_was_changed_before_the_word_of_an_operator_came_names_the_upload_that_he_has_settled() {
    for (outcome, named) in [
        ("replayed", vec![1]),
        ("edited", vec![1]),
        ("discarded", vec![]),
    ] {
        let mut remote = with_items();
        remote.run("UPDATE item SET amount = 9 WHERE id = 1");
        remote.acknowledge_refused_item();
        remote.run("UPDATE item SET amount = 8 WHERE id = 1");
        settle_item(&mut remote, 1, outcome);
        // It has the refused change in it, with the pre-image of that.
        let upload = [update(&item(1, "a", 10), &item(1, "a", 8))];
        assert_eq!(remote.upload(), upload);
        assert_eq!(retried(&mut remote), named, "{outcome}");
        remote.acknowledge(|_| {});
        remote.run("UPDATE item SET amount = 7 WHERE id = 1");
        assert_eq!(retried(&mut remote), [0; 0], "{outcome}");
    }
}

#[test]
fn what_is_changed_after_the_word_of_an_operator_came_names_nothing() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 9 WHERE id = 1");
    remote.acknowledge_refused_item();
    settle_item(&mut remote, 1, "replayed");
    remote.run("UPDATE item SET amount = 8 WHERE id = 1");
    assert_eq!(retried(&mut remote), [0; 0]);
}

#[test]
fn a_kept_upload_names_those_with_which_its_changes_were_refused_before() {
    let mut remote = with_items();
    remote.run("UPDATE item SET amount = 9 WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.run("UPDATE item SET amount = 8 WHERE id = 1");
    remote.acknowledge(|_| {});
    let kept: Vec<u8> = remote
        .application()
        .query_row(
            "SELECT bytes FROM tidewater_kept ORDER BY id DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let mut frames = BytesMut::from(&kept[..]);
    let Some(Frame::Control {
        control: Some(Control::UploadBegin(begin)),
        ..
    }) = crate::database::kept_uploads::next_frame(&mut frames).unwrap()
    else {
        panic!("a kept upload begins with its beginning");
    };
    assert_eq!(begin.retried, [1]);
}
