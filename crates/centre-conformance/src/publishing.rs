//! Durable events.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use tidewater_centre::{
    AppendOutcome, NewEvents, OnceKeyState, SpaceRetention, StoredEvent, Worker,
};

use crate::fixture::Fixture;
use crate::remote::fresh_id;
use crate::world::{DeployedCentre, NOW_MS};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::<F>::without_publications().await
}

/// Events, each `SUBJECT=PAYLOAD`.
fn events(space: &str, events: &[&str]) -> NewEvents {
    let events = events.iter().map(|event| {
        let (subject, payload) = event.split_once('=').unwrap();
        (subject.to_owned(), Bytes::from(payload.to_owned()))
    });
    NewEvents {
        space: space.into(),
        user: "anna".into(),
        once: None,
        events: events.collect(),
    }
}

fn under(key: [u8; 16], events: NewEvents) -> NewEvents {
    NewEvents {
        once: Some(key),
        ..events
    }
}

async fn append(worker: &mut dyn Worker, batch: Vec<NewEvents>) -> Vec<AppendOutcome> {
    worker.append_events(batch, NOW_MS).await.unwrap()
}

/// The number of the first event.
fn first(appended: &AppendOutcome) -> u64 {
    match appended {
        AppendOutcome::At { first, .. } => *first,
        AppendOutcome::KeyTaken => panic!("the key was taken"),
    }
}

fn told(events: &[StoredEvent]) -> Vec<String> {
    let told = events.iter().map(|event| {
        let payload = String::from_utf8_lossy(&event.payload);
        format!("{} {}={payload}", event.id, event.subject)
    });
    told.collect()
}

async fn after(worker: &mut dyn Worker, space: &str, after: u64) -> Vec<String> {
    let found = worker.events_after(space, after, 1_000, 1 << 20).await;
    told(&found.unwrap())
}

pub async fn events_are_numbered_and_read_in_their_order<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let batch = vec![
        events("prices", &["tea=1", "coffee=2"]),
        events("news", &["a.b=x"]),
        events("prices", &["tea=3"]),
        events("empty", &[]),
    ];
    let appended = append(&mut *worker, batch).await;
    let numbers: Vec<u64> = appended.iter().map(first).collect();
    assert_eq!(numbers, [1, 1, 3, 1]);
    let again = append(&mut *worker, vec![events("prices", &["milk=", "tea=5"])]).await;
    assert_eq!(first(&again[0]), 4);
    let mut reader = world.worker().await;
    let all = ["1 tea=1", "2 coffee=2", "3 tea=3", "4 milk=", "5 tea=5"];
    assert_eq!(after(&mut *reader, "prices", 0).await, all);
    assert_eq!(after(&mut *reader, "prices", 3).await, all[3..]);
    assert_eq!(after(&mut *reader, "prices", 5).await, [""; 0]);
    assert_eq!(after(&mut *reader, "news", 0).await, ["1 a.b=x"]);
    let some = reader.events_after("prices", 1, 2, 1 << 20).await.unwrap();
    assert_eq!(told(&some), all[1..3]);
    assert_eq!((&*some[0].user, some[0].at_ms), ("anna", NOW_MS));
    let spaces = ["news", "none", "prices", "empty"].map(str::to_owned);
    assert_eq!(reader.space_ends(&spaces).await.unwrap(), [1, 0, 5, 0]);
    // Each has the check that was told to who published it.
    let AppendOutcome::At { check, .. } = appended[2] else {
        panic!("{appended:?}");
    };
    assert_eq!(some[1].check, check);
    assert_eq!(reader.event_check("prices", 3).await.unwrap(), Some(check));
    assert_ne!(reader.event_check("prices", 4).await.unwrap(), Some(check));
    assert_eq!(reader.event_check("prices", 6).await.unwrap(), None);
    assert_eq!(reader.event_check("none", 1).await.unwrap(), None);
}

pub async fn as_many_bytes_are_read_as_are_wanted_and_one_event_at_least<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let large = format!("a={}", "x".repeat(300_000));
    let small = format!("b={}", "x".repeat(400));
    let batch = events("space", &[&large, &small, &small, &small]);
    append(&mut *worker, vec![batch]).await;
    let mut read = async |after, bytes| {
        let found = worker
            .events_after("space", after, 100, bytes)
            .await
            .unwrap();
        let last = worker.last_values("space", "", 100, bytes).await.unwrap();
        let ids = found.iter().map(|it| it.id).collect::<Vec<_>>();
        (ids, last.len())
    };
    assert_eq!(read(0, 1_000).await, (vec![1], 1));
    assert_eq!(read(1, 1_000).await, (vec![2, 3, 4], 1));
    assert_eq!(read(1, 800).await, (vec![2, 3], 1));
    assert_eq!(read(0, 0).await, (vec![1], 1));
    assert_eq!(read(0, 1 << 20).await, (vec![1, 2, 3, 4], 2));
}

/// Whatever a reader has seen, nothing before it comes later.
pub async fn whoever_reads_while_others_append_skips_nothing<F: Fixture>() {
    let world = world::<F>().await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(world.worker().await);
    }
    let appending = workers
        .into_iter()
        .enumerate()
        .map(|(number, mut worker)| async move {
            for round in 0..40 {
                // In both spaces, named in another order by every second one.
                let subject = format!("{number}.{round}=x");
                let mut batch = vec![
                    events("one", &[&subject, &subject, &subject]),
                    events("two", &[&subject]),
                ];
                if number % 2 == 1 {
                    batch.reverse();
                }
                append(&mut *worker, batch).await;
            }
        });
    let mut appending: Vec<_> = appending.map(Box::pin).collect();
    let (a, b, c) = (
        appending.remove(0),
        appending.remove(0),
        appending.remove(0),
    );
    let appending = async { tokio::join!(a, b, c) };
    let mut appending = std::pin::pin!(appending);
    let mut reader = world.worker().await;
    let (mut seen, mut is_done) = (0, false);
    while !is_done {
        tokio::select! {
            _ = &mut appending => is_done = true,
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        let found = reader
            .events_after("one", seen, 1_000, 1 << 20)
            .await
            .unwrap();
        for event in found {
            assert_eq!(event.id, seen + 1);
            seen = event.id;
        }
    }
    assert_eq!(seen, 360);
    let ends = reader.space_ends(&["one".into(), "two".into()]).await;
    assert_eq!(ends.unwrap(), [360, 120]);
}

pub async fn events_under_a_key_are_appended_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let (one, two) = (fresh_id(), fresh_id());
    let new = |key, event: &str| under(key, events("space", &[event]));
    // The answer is lost on the way.
    let lost = append(
        &mut *worker,
        vec![new(one, "a=1"), events("space", &["b=2"])],
    )
    .await;
    let mut another = world.worker().await;
    let batch = vec![
        new(one, "a=1"),
        new(two, "c=3"),
        new(two, "c=3"),
        events("space", &["d=4"]),
    ];
    let appended = append(&mut *another, batch).await;
    assert_eq!(appended[0], lost[0]);
    assert_eq!(appended[1], appended[2]);
    let numbers: Vec<u64> = appended.iter().map(first).collect();
    assert_eq!(numbers, [1, 3, 3, 4]);
    let repeated = append(&mut *worker, vec![new(two, "c=3"), new(two, "c=3")]).await;
    assert_eq!(repeated, [appended[1]; 2]);
    // Another user has keys of her own; and one stands for one thing only.
    let of_berta = NewEvents {
        user: "berta".into(),
        ..new(one, "e=5")
    };
    let called = fresh_id();
    let begun = worker.begin_once("anna", called, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::New);
    let appended = append(&mut *worker, vec![new(called, "f=6"), of_berta]).await;
    assert_eq!(appended[0], AppendOutcome::KeyTaken);
    assert_eq!(first(&appended[1]), 5);
    let begun = worker.begin_once("anna", one, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::KeyTaken);
    let all = ["1 a=1", "2 b=2", "3 c=3", "4 d=4", "5 e=5"];
    assert_eq!(after(&mut *worker, "space", 0).await, all);
}

pub async fn events_at_two_connections_under_one_key_are_appended_once<F: Fixture>() {
    let world = world::<F>().await;
    let (mut one, mut other) = (world.worker().await, world.worker().await);
    for round in 0..10 {
        let keys = [fresh_id(), fresh_id()];
        let mut batch = keys
            .map(|key| under(key, events("space", &["a=1"])))
            .to_vec();
        let first_batch = batch.clone();
        batch.reverse();
        let (mut left, right) =
            tokio::join!(append(&mut *one, first_batch), append(&mut *other, batch),);
        left.reverse();
        assert_eq!(left, right);
        let ends = one.space_ends(&["space".into()]).await.unwrap();
        assert_eq!(ends, [2 * (round + 1)]);
    }
}

pub async fn the_newest_event_of_each_subject_is_found<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let batch = vec![
        events(
            "prices",
            &["tea=1", "coffee=2", "Zebra=0", "milk=1", "tea=2"],
        ),
        events("other", &["tea=9"]),
        events("prices", &["coffee=3", "\u{e9}=4"]),
    ];
    append(&mut *worker, batch).await;
    let all = [
        "3 Zebra=0",
        "6 coffee=3",
        "4 milk=1",
        "5 tea=2",
        "7 \u{e9}=4",
    ];
    let mut paged = Vec::new();
    let mut last = String::new();
    loop {
        let page = worker
            .last_values("prices", &last, 2, 1 << 20)
            .await
            .unwrap();
        let Some(event) = page.last() else { break };
        assert!(page.len() <= 2);
        last.clone_from(&event.subject);
        paged.extend(told(&page));
    }
    assert_eq!(paged, all);
    assert!(
        worker
            .last_values("none", "", 10, 1 << 20)
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn events_are_forgotten_in_time_but_for_the_newest_of_a_subject<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    for (at_ms, event) in [(3, "a=1"), (3, "b=1"), (2, "a=2"), (0, "c=1"), (0, "c=2")] {
        let at_ms = NOW_MS - at_ms * DAY_MS;
        let batch = ["short", "long", "last", "unknown"].map(|space| events(space, &[event]));
        worker.append_events(batch.to_vec(), at_ms).await.unwrap();
    }
    let check = worker.event_check("short", 4).await.unwrap();
    let kept = |space: &str, days: i64, keeps_last| SpaceRetention {
        space: space.into(),
        kept_ms: days * DAY_MS,
        keeps_last,
    };
    let spaces = [
        kept("short", 1, false),
        kept("long", 2, false),
        kept("last", 1, true),
    ];
    assert_eq!(
        world.centre.prune_events(&spaces, NOW_MS).await.unwrap(),
        3 + 2 + 1
    );
    assert_eq!(world.centre.prune_events(&spaces, NOW_MS).await.unwrap(), 0);
    assert_eq!(after(&mut *worker, "short", 0).await, ["4 c=1", "5 c=2"]);
    assert_eq!(
        after(&mut *worker, "long", 0).await,
        ["3 a=2", "4 c=1", "5 c=2"]
    );
    let last = ["2 b=1", "3 a=2", "4 c=1", "5 c=2"];
    assert_eq!(after(&mut *worker, "last", 0).await, last);
    assert_eq!(after(&mut *worker, "unknown", 0).await.len(), 5);
    // What stays is what it was, and no number is given out again.
    assert_eq!(worker.event_check("short", 4).await.unwrap(), check);
    assert_eq!(worker.event_check("short", 3).await.unwrap(), None);
    let later = NOW_MS + 9 * DAY_MS;
    assert_eq!(
        world.centre.prune_events(&spaces, later).await.unwrap(),
        2 + 3 + 1
    );
    let appended = append(&mut *worker, vec![events("short", &["d=1"])]).await;
    assert_eq!(first(&appended[0]), 6);
}

pub async fn many_events_are_pruned_and_none_that_is_kept<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let subjects: Vec<String> = (0..15_000)
        .map(|it| format!("s{}=x", it % 12_000))
        .collect();
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    let batch = ["all", "last"].map(|space| events(space, &subjects));
    let old = NOW_MS - DAY_MS;
    worker.append_events(batch.to_vec(), old).await.unwrap();
    let kept = |space: &str, keeps_last| SpaceRetention {
        space: space.into(),
        kept_ms: 1_000,
        keeps_last,
    };
    let spaces = [kept("all", false), kept("last", true)];
    let pruned = world.centre.prune_events(&spaces, NOW_MS).await.unwrap();
    assert_eq!(pruned, 15_000 + 3_000);
    let left = worker
        .events_after("last", 0, 20_000, 1 << 30)
        .await
        .unwrap();
    let subjects: BTreeSet<&str> = left.iter().map(|it| &*it.subject).collect();
    assert_eq!((left.len(), subjects.len()), (12_000, 12_000));
}
