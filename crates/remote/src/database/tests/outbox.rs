//! Facts about the outbox and the inbox.

use serde_json::json;
use tidewater_protocol::message::{Answer, ArgumentValue, Call, CallFailed, ColumnHeader, Returns};
use tidewater_protocol::{Code, event, json};

use super::*;
use crate::database::{EventInterest, InboxProgress, OutboxCall, OutboxOutcome, OutboxRun};

/// A time at which nothing is over.
const NOW: i64 = 1_700_000_000_000;

/// Has the next call come to this, and gives the one after it.
fn next(
    remote: &mut Remote,
    emptying: &mut OutboxRun,
    outcome: Option<OutboxOutcome>,
) -> Option<OutboxCall> {
    let database = remote.database_mut();
    database.next_of_outbox(emptying, outcome, NOW).unwrap()
}

/// The procedures that are called until nothing is left, each with this outcome.
fn empty(remote: &mut Remote, mut outcome: impl FnMut(&Call) -> OutboxOutcome) -> Vec<String> {
    let mut emptying = OutboxRun::default();
    let mut called = Vec::new();
    let mut call = next(remote, &mut emptying, None);
    while let Some(given) = call {
        let outcome = outcome(&given.call);
        called.push(given.call.procedure);
        call = next(remote, &mut emptying, Some(outcome));
    }
    called
}

fn done(_: &Call) -> OutboxOutcome {
    OutboxOutcome::Answered(json::to_answer(&json!(7)))
}

fn failed(code: Code) -> OutboxOutcome {
    OutboxOutcome::Failed(CallFailed::new(code, "no", "ask"))
}

fn lost() -> OutboxOutcome {
    OutboxOutcome::Lost {
        code: Code::ConnectionLost,
        reason: "gone".into(),
    }
}

fn call(remote: &Remote, name: &str) {
    remote.run(&format!(
        "INSERT INTO tidewater_outbox (name) VALUES ('{name}')"
    ));
}

fn states(remote: &Remote) -> Vec<String> {
    remote.query(
        "SELECT state || coalesce(' ' || code, '') || coalesce(': ' || reason, '') \
         FROM tidewater_outbox ORDER BY id",
    )
}

#[test]
fn a_call_is_executed_after_the_upload_of_what_was_committed_before_it() {
    let mut remote = with_items();
    remote.run("BEGIN; UPDATE item SET name = 'x'; INSERT INTO tidewater_outbox (name) VALUES ('p'); COMMIT");
    // Nothing was taken, so nobody knows the change.
    assert_eq!(empty(&mut remote, done), [""; 0]);
    let taken = remote.begin();
    // It is on its way.
    assert_eq!(empty(&mut remote, done), [""; 0]);
    // What is written now goes with a later upload, and so does what is called after it.
    remote.run("UPDATE item SET name = 'y'");
    call(&remote, "q");
    let mut applier = remote.applier_of(&taken, None);
    applier.result_begin(0).unwrap();
    applier.result_end().unwrap();
    remote.commit(applier);
    assert_eq!(empty(&mut remote, done), ["p"]);
    assert_eq!(states(&remote), ["answered", "pending"]);
    // Refused is decided, too.
    remote.acknowledge_refused_item();
    assert_eq!(empty(&mut remote, done), ["q"]);
    // Nothing to upload: what is in the outbox goes at once.
    call(&remote, "r");
    assert!(remote.begin().taken.is_none());
    assert_eq!(empty(&mut remote, done), ["r"]);
    // A sync that takes nothing does not execute anything new either.
    call(&remote, "s");
    remote.begin_in(SyncDirection::DownloadOnly);
    assert_eq!(empty(&mut remote, done), [""; 0]);
}

#[test]
fn a_call_waits_for_changes_that_nobody_has_recorded() {
    let mut remote = with_items();
    remote.run("DROP TRIGGER tidewater_update_item; UPDATE item SET name = 'x'");
    call(&remote, "p");
    // That there are any, only a compare finds out.
    for direction in [SyncDirection::Both, SyncDirection::UploadOnly] {
        assert!(remote.begin_in(direction).taken.is_none());
        assert_eq!(empty(&mut remote, done), [""; 0]);
    }
    remote.run("DELETE FROM tidewater_untracked");
    remote.begin_in(SyncDirection::Both);
    assert_eq!(empty(&mut remote, done), ["p"]);
}

#[test]
fn an_answer_comes_into_the_inbox_with_the_state_of_its_row() {
    let mut remote = with_items();
    remote.run(
        "INSERT INTO tidewater_outbox (name, arguments) VALUES ('p', '{\"a\": 1, \"b\": null}')",
    );
    remote.begin();
    let mut emptying = OutboxRun::default();
    let given = next(&mut remote, &mut emptying, None).unwrap();
    assert_eq!(states(&remote), ["sent"]);
    assert_eq!(
        given.call.arguments[0].given,
        Some(ArgumentValue::Integer(1))
    );
    assert_eq!(given.call.arguments[1].given, None);
    assert_eq!(given.call.key.len(), 16);
    let answer = json::to_answer(&json!({"price": 3, "of": "x"}));
    let outcome = OutboxOutcome::Answered(answer);
    assert_eq!(next(&mut remote, &mut emptying, Some(outcome)), None);
    assert_eq!(emptying.counts().0.answered, 1);
    assert_eq!(
        remote.query("SELECT kind || outbox || payload FROM tidewater_inbox"),
        ["answer1{\"of\":\"x\",\"price\":3}"]
    );
    let status = remote.database().status().unwrap();
    assert_eq!(
        (status.outbox.pending, status.outbox.failed, status.inbox),
        (0, 0, 1)
    );
}

#[test]
fn what_was_sent_goes_again_under_the_same_key_before_anything_else() {
    let mut remote = with_items();
    call(&remote, "p");
    call(&remote, "q");
    remote.begin();
    let mut emptying = OutboxRun::default();
    let first = next(&mut remote, &mut emptying, None).unwrap();
    assert_eq!(next(&mut remote, &mut emptying, Some(lost())), None);
    assert_eq!(
        states(&remote),
        ["sent connection_lost: gone".to_owned(), "pending".into()]
    );
    // As if the program had been killed.
    let mut emptying = OutboxRun::default();
    let again = next(&mut remote, &mut emptying, None).unwrap();
    assert_eq!(again, first);
    let outcome = Some(done(&again.call));
    let second = next(&mut remote, &mut emptying, outcome).unwrap();
    assert_eq!(second.call.procedure, "q");
    assert_ne!(second.call.key, first.call.key);
    assert_eq!(states(&remote), ["answered", "sent"]);
}

#[test]
fn what_cannot_be_done_now_waits_and_what_cannot_be_done_at_all_fails() {
    let mut remote = with_items();
    for name in ["p", "away", "q", "away", "busy", "r"] {
        call(&remote, name);
    }
    remote.begin();
    let outcome = |call: &Call| match call.procedure.as_str() {
        "p" => failed(Code::ProcedureFailed),
        "away" => failed(Code::NoProvider),
        "busy" => failed(Code::Busy),
        _ => done(call),
    };
    // Those behind a procedure that nobody provides wait with it, others do not.
    assert_eq!(empty(&mut remote, outcome), ["p", "away", "q", "busy"]);
    assert_eq!(
        states(&remote),
        [
            "failed procedure_failed: no; ask",
            "pending no_provider: no",
            "answered",
            "pending",
            "pending busy: no",
            "pending",
        ]
    );
    assert_eq!(remote.database().waiting_in_outbox().unwrap(), 4);
    assert_eq!(empty(&mut remote, done), ["away", "away", "busy", "r"]);
    assert_eq!(remote.database().waiting_in_outbox().unwrap(), 0);
    // After a database that was lost nobody knows.
    call(&remote, "t");
    remote.begin();
    let outcome = |_: &Call| failed(Code::ConsolidatedUnavailable);
    assert_eq!(empty(&mut remote, outcome), ["t"]);
    let last = states(&remote).pop();
    assert_eq!(last.unwrap(), "sent consolidated_unavailable: no");
}

#[test]
fn what_took_too_long_is_asked_for_once_more_because_it_may_have_been_done() {
    let mut remote = with_items();
    call(&remote, "done");
    call(&remote, "slow");
    call(&remote, "behind");
    remote.begin();
    let late = |call: &Call| match call.procedure.as_str() {
        "behind" => done(call),
        _ => failed(Code::DeadlineExceeded),
    };
    assert_eq!(empty(&mut remote, late).len(), 3);
    let sent = "sent deadline_exceeded: no";
    assert_eq!(states(&remote), [sent, sent, "answered"]);
    // Its key told the centre that the first one had been done just in time.
    let outcome = |call: &Call| match call.procedure.as_str() {
        "done" => done(call),
        _ => late(call),
    };
    assert_eq!(empty(&mut remote, outcome), ["done", "slow"]);
    let states = states(&remote);
    assert_eq!(states[0], "answered");
    assert!(states[1].starts_with("failed outcome_unknown: it took too long"));
}

#[test]
fn a_deadline_that_has_passed_ends_it_and_tells_whether_it_was_sent() {
    let mut remote = with_items();
    remote.run(
        "INSERT INTO tidewater_outbox (name, deadline) VALUES
         ('late', '2001-01-01 00:00:00'), ('sent', '2001-01-01T00:00:00Z'),
         ('soon', '2023-11-14T22:13:30Z'), ('zone', '2023-11-15T00:13:20.500+02:00');
         UPDATE tidewater_outbox SET state = 'sent' WHERE name = 'sent'",
    );
    remote.begin();
    let mut emptying = OutboxRun::default();
    let soon = next(&mut remote, &mut emptying, None).unwrap();
    assert_eq!(
        (soon.call.procedure.as_str(), soon.within_ms),
        ("soon", Some(10_000))
    );
    let outcome = Some(done(&soon.call));
    let zone = next(&mut remote, &mut emptying, outcome).unwrap();
    assert_eq!(zone.within_ms, Some(500));
    assert_eq!(emptying.counts().0.failed, 2);
    let states = states(&remote);
    assert!(states[0].starts_with("failed deadline_exceeded: "));
    assert!(states[1].starts_with("failed outcome_unknown: "));
}

#[test]
fn a_row_that_cannot_be_is_refused_at_once_or_fails() {
    let mut remote = with_items();
    for (columns, values, told) in [
        ("kind, name", "'cry', 'p'", "kind is call or event"),
        ("name", "''", "name is that of a procedure"),
        ("kind, name", "'event', 'space'", "name is that of a"),
        ("name, key", "'p', x'01'", "key has 16 bytes"),
        (
            "name, recipient",
            "'p', 'nancy'",
            "recipient of a call is user:NAME",
        ),
        (
            "name, recipient",
            "'p', 'user:'",
            "recipient of a call is user:NAME",
        ),
        (
            "kind, name, recipient",
            "'event', 's/a', 'user:nancy'",
            "recipient of a call",
        ),
        ("name, state", "'p', 'done'", "state is pending, sent"),
        ("name, deadline", "'p', 'now'", "deadline is a time in UTC"),
        ("name, deadline", "'p', '2026-13-01'", "deadline is a time"),
        ("name", "NULL", "NOT NULL"),
    ] {
        let sql = format!("INSERT INTO tidewater_outbox ({columns}) VALUES ({values})");
        let error = remote.fails(&sql);
        assert!(error.contains(told), "{error}");
    }
    // Whatever gets in all the same is no trouble for the sync.
    remote.run(
        "PRAGMA ignore_check_constraints = 1;
         INSERT INTO tidewater_outbox (kind, name, arguments, key, deadline) VALUES
         ('cry', 'p', NULL, randomblob(16), NULL),
         ('call', x'ff', NULL, randomblob(16), NULL),
         ('call', 'p', NULL, 'key', NULL),
         ('call', 'p', NULL, randomblob(16), 'now'),
         ('call', 'p', NULL, randomblob(16), 2460000.5),
         ('call', 'p', '{', randomblob(16), NULL),
         ('call', 'p', '[1]', randomblob(16), NULL),
         ('call', 'p', x'7b7d', randomblob(16), NULL),
         ('call', 'p', CAST(x'ff' AS TEXT), randomblob(16), NULL),
         ('call', 'tidewater.live', NULL, randomblob(16), NULL),
         ('event', 'nowhere', NULL, randomblob(16), NULL),
         ('call', 'right', '{}', randomblob(16), NULL);
         INSERT INTO tidewater_outbox (kind, name, recipient) VALUES
         ('event', 's/a', 'user:nancy'), ('call', 'p', x'ff')",
    );
    remote.begin();
    assert_eq!(empty(&mut remote, done), ["right"]);
    let mut bad = states(&remote);
    assert_eq!((bad.remove(11).as_str(), bad.len()), ("answered", 13));
    let is_told = |state: &String| state.starts_with("failed bad_argument: ");
    assert!(bad.iter().all(is_told), "{bad:?}");
}

#[test]
fn a_call_goes_to_whom_its_row_says_and_waits_for_him_alone() {
    let mut remote = with_items();
    remote.run(
        "INSERT INTO tidewater_outbox (name, recipient) VALUES
         ('p', 'user:nancy'), ('p', 'user:bob'), ('p', 'user:nancy'), ('p', NULL)",
    );
    remote.begin();
    let mut asked = Vec::new();
    let outcome = |call: &Call| {
        asked.push(call.to.clone());
        match call.to.as_str() {
            "user:nancy" => failed(Code::NoProvider),
            _ => done(call),
        }
    };
    assert_eq!(empty(&mut remote, outcome).len(), 3);
    assert_eq!(asked, ["user:nancy", "user:bob", ""]);
    assert_eq!(
        states(&remote),
        ["pending no_provider: no", "answered", "pending", "answered"]
    );
}

#[test]
fn what_the_application_withdraws_or_another_sync_has_settled_is_no_news() {
    let mut remote = with_items();
    call(&remote, "p");
    call(&remote, "q");
    remote.begin();
    let mut emptying = OutboxRun::default();
    next(&mut remote, &mut emptying, None).unwrap();
    remote.run("DELETE FROM tidewater_outbox WHERE name = 'p'");
    let outcome = OutboxOutcome::Answered(Answer::nothing());
    next(&mut remote, &mut emptying, Some(outcome)).unwrap();
    // Another process is faster.
    let mut other = RemoteDatabase::open(&remote.path()).unwrap();
    let mut others = OutboxRun::default();
    let given = other.next_of_outbox(&mut others, None, NOW).unwrap();
    let outcome = Some(done(&given.unwrap().call));
    other.next_of_outbox(&mut others, outcome, NOW).unwrap();
    next(&mut remote, &mut emptying, Some(failed(Code::NotAllowed)));
    assert_eq!(states(&remote), ["answered"]);
    assert_eq!(remote.query("SELECT outbox FROM tidewater_inbox"), ["2"]);
    assert_eq!(emptying.counts().0, Default::default());
    // Ids do not come back.
    remote.run("DELETE FROM tidewater_outbox");
    call(&remote, "r");
    assert_eq!(remote.query("SELECT id FROM tidewater_outbox"), ["3"]);
    assert_eq!(empty(&mut remote, done), [""; 0]);
}

#[test]
fn an_event_is_published_under_its_key() {
    let mut remote = with_items();
    remote.run(
        "INSERT INTO tidewater_outbox (kind, name, arguments) VALUES
         ('event', 'field/unit.7', '{\"free\": true}'), ('event', 'field/raw', x'00ff')",
    );
    remote.begin();
    let mut emptying = OutboxRun::default();
    let mut outcome = None;
    for (name, payload) in [
        ("field/unit.7", &b"{\"free\": true}"[..]),
        ("field/raw", &[0, 255]),
    ] {
        let given = next(&mut remote, &mut emptying, outcome).unwrap();
        assert_eq!(given.call.procedure, "tidewater.publish");
        assert_eq!(given.call.key.len(), 16);
        let arguments = &given.call.arguments;
        assert_eq!(arguments[0].given, Some("field".into()));
        let Some(ArgumentValue::Bytes(packed)) = &arguments[1].given else {
            panic!("{arguments:?}");
        };
        let mut reader = event::EventsReader::new(packed, 1_000);
        let event = reader.next_event().unwrap().unwrap();
        assert_eq!((event.subject, event.payload), (name, payload));
        outcome = Some(OutboxOutcome::Answered(Answer::nothing()));
    }
    next(&mut remote, &mut emptying, outcome);
    assert_eq!(states(&remote), ["answered", "answered"]);
    // There is nothing to tell beyond the state.
    assert_eq!(remote.query("SELECT id FROM tidewater_inbox"), [""; 0]);
}

/// What the server tells of events with these numbers, having read up to `reached`.
fn told(anew: bool, ids: &[i64], reached: i64) -> Answer {
    let columns = [
        ("id", ColumnType::Integer),
        ("check", ColumnType::Bytes),
        ("subject", ColumnType::Text),
        ("payload", ColumnType::Bytes),
        ("user", ColumnType::Text),
        ("at_ms", ColumnType::Integer),
    ];
    let columns = columns.map(|(name, column_type)| ColumnHeader::new(name, column_type));
    let checks: Vec<[u8; 8]> = ids.iter().map(|id| (-id).to_le_bytes()).collect();
    let mut rows: Vec<_> = ids
        .iter()
        .zip(&checks)
        .map(|(&id, check)| {
            [
                Datum::Integer(id),
                Datum::Bytes(check),
                Datum::Text("unit.7"),
                Datum::Bytes(if id % 2 == 0 { b"even" } else { b"\xff" }),
                Datum::Text("bob"),
                Datum::Integer(NOW),
            ]
        })
        .collect();
    let check = (-reached).to_le_bytes();
    let mark = |id: i64, check| {
        let mut mark = [Datum::Null; 6];
        (mark[0], mark[1]) = (Datum::Integer(id), Datum::Bytes(check));
        mark
    };
    if anew {
        rows.insert(0, mark(0, &[0; 8]));
    }
    rows.push(mark(reached, &check));
    let rows: Vec<&[Datum<'_>]> = rows.iter().map(|row| &row[..]).collect();
    Answer::new(Returns::Rows, columns.to_vec(), &rows)
}

#[test]
fn events_and_their_place_come_in_one_transaction() {
    let mut remote = with_items();
    let database = remote.database();
    assert!(!database.has_something_to_upload().unwrap());
    remote.run("INSERT INTO tidewater_interest (space, subject) VALUES ('field', 'unit.>')");
    assert!(remote.database().has_something_to_upload().unwrap());
    let take = |remote: &mut Remote, interest: &mut EventInterest, answer: &Answer| {
        let database = remote.database_mut();
        database.take_events(interest, answer, NOW).unwrap()
    };
    let mut interest = remote.database().interests().unwrap().remove(0);
    let mut stale = interest.clone();
    assert_eq!(interest.call().arguments[2].given, None);
    let none = ColumnHeader::new("id", ColumnType::Integer);
    let none = Answer::new(Returns::Rows, vec![none], &[]);
    assert_eq!(
        take(&mut remote, &mut interest, &none),
        Some(InboxProgress::All)
    );
    assert!(!remote.database().has_something_to_upload().unwrap());
    let two = take(&mut remote, &mut interest, &told(false, &[1, 2], 2));
    assert_eq!(two, Some(InboxProgress::More(2)));
    // Another sync of the file that had asked at the same time gets the same, and leaves it.
    assert_eq!(
        take(&mut remote, &mut stale, &told(false, &[1, 2], 2)),
        Some(InboxProgress::Others)
    );
    let inbox = "SELECT kind || ' ' || space || '/' || subject || ' ' || hex(payload) || ' ' \
                 || typeof(payload) || ' ' || user FROM tidewater_inbox ORDER BY id";
    assert_eq!(
        remote.query(inbox),
        [
            "event field/unit.7 FF blob bob",
            "event field/unit.7 6576656E text bob"
        ]
    );
    let place = |remote: &Remote| {
        let interest = remote.database().interests().unwrap().remove(0);
        match &interest.call().arguments[2].given {
            Some(ArgumentValue::Bytes(place)) => place.to_vec(),
            given => panic!("{given:?}"),
        }
    };
    let at = |id: i64| [id.to_le_bytes(), (-id).to_le_bytes()].concat();
    assert_eq!(place(&remote), at(2));
    // Others have published what is of no interest.
    let none = take(&mut remote, &mut interest, &told(false, &[], 7));
    assert_eq!((none, place(&remote)), (Some(InboxProgress::All), at(7)));
    // The centre was restored, and begins anew.
    let anew = take(&mut remote, &mut interest, &told(true, &[1], 1));
    assert_eq!(
        (anew, place(&remote)),
        (Some(InboxProgress::More(1)), at(1))
    );
    let kinds = "SELECT kind || ' ' || subject FROM tidewater_inbox WHERE id > 2 ORDER BY id";
    assert_eq!(remote.query(kinds), ["anew unit.>", "event unit.7"]);
    // What is no answer leaves everything as it is, and is told.
    let mut same = interest.clone();
    let answer = json::to_answer(&json!("what"));
    assert_eq!(take(&mut remote, &mut same, &answer), None);
    assert_eq!(same, interest);
}

#[test]
fn rows_that_arrive_call_nothing() {
    let mut remote = with_items();
    remote.run(
        "CREATE TRIGGER calls AFTER INSERT ON item BEGIN
         INSERT INTO tidewater_outbox (name) VALUES ('p'); END",
    );
    remote.run("INSERT INTO item VALUES (8, 'mine', 1)");
    remote.acknowledge(|_| {});
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(9, "theirs", 90));
        });
    });
    assert_eq!(remote.query("SELECT count(*) FROM item"), ["5"]);
    assert_eq!(states(&remote), ["pending"]);
    assert_eq!(empty(&mut remote, done), ["p"]);
}
