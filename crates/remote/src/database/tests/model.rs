//! Net changes against a naive model: whatever statements the application ran, an upload is
//! the difference between the table as last synced and as it was at the taking.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Rows = BTreeMap<i64, (Option<String>, Option<i64>)>;

#[derive(Clone, Debug)]
enum Step {
    Sql(String),
    /// Takes an upload; the next step that needs its end acknowledges it.
    Take,
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6i64;
    let name = prop_oneof![
        Just("NULL".to_owned()),
        "[a-c]".prop_map(|name| format!("'{name}'"))
    ];
    let conflict = prop_oneof![
        Just(""),
        Just("OR REPLACE"),
        Just("OR IGNORE"),
        Just("OR FAIL"),
        Just("OR ABORT"),
        Just("OR ROLLBACK"),
    ];
    let statement =
        prop_oneof![
        (conflict.clone(), key.clone(), name.clone(), 0..4i64).prop_map(|(clause, key, name, n)| {
            format!("INSERT {clause} INTO item VALUES ({key}, {name}, {n})")
        }),
        (key.clone(), name.clone(), 0..4i64).prop_map(|(key, name, n)| format!(
            "INSERT INTO item VALUES ({key}, {name}, {n}) ON CONFLICT (id) DO UPDATE SET \
             name = excluded.name, id = id + amount % 2"
        )),
        (conflict.clone(), key.clone(), name.clone())
            .prop_map(|(clause, key, name)| format!(
                "UPDATE {clause} item SET name = {name} WHERE id = {key}"
            )),
        (conflict.clone(), key.clone(), key.clone()).prop_map(|(clause, from, to)| format!(
            "UPDATE {clause} item SET id = {to} WHERE id = {from}"
        )),
        (conflict, 1..3i64)
            .prop_map(|(clause, by)| format!("UPDATE {clause} item SET id = id + {by}")),
        key.clone().prop_map(|key| format!("DELETE FROM item WHERE id = {key}")),
        (0..4i64).prop_map(|n| format!("DELETE FROM item WHERE amount = {n}")),
        (key, name).prop_map(|(key, name)| format!(
            "BEGIN; UPDATE item SET name = {name}; SAVEPOINT s; DELETE FROM item WHERE id > {key}; \
             ROLLBACK TO s; COMMIT"
        )),
    ];
    prop_oneof![
        8 => statement.prop_map(Step::Sql),
        1 => Just(Step::Take),
        1 => Just(Step::Acknowledge),
    ]
}

fn rows(remote: &Remote) -> Rows {
    let application = remote.application();
    let mut statement = application
        .prepare("SELECT id, name, amount FROM item")
        .unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))
        .unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

fn difference(before: &Rows, after: &Rows) -> Vec<Change> {
    let image = |id: i64, (name, amount): &(Option<String>, Option<i64>)| {
        vec![
            Value::Integer(id),
            name.clone().map_or(Value::Null, Value::Text),
            amount.map_or(Value::Null, Value::Integer),
        ]
    };
    let mut keys: Vec<i64> = before.keys().chain(after.keys()).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    let mut changes = Vec::new();
    for id in keys {
        let (op, old, new) = match (before.get(&id), after.get(&id)) {
            (Some(old), Some(new)) if old != new => (Op::Update, image(id, old), image(id, new)),
            (None, Some(new)) => (Op::Insert, Vec::new(), image(id, new)),
            (Some(old), None) => (Op::Delete, image(id, old), Vec::new()),
            _ => continue,
        };
        changes.push(Change {
            table: "item".into(),
            op,
            old,
            new,
        });
    }
    changes
}

fn check(steps: &[Step], index: Option<&str>) {
    let mut remote = with_items();
    if let Some(index) = index {
        remote.run(index);
        remote.begin();
    }
    let mut synced = rows(&remote);
    let mut taken: Option<Rows> = None;
    for step in steps {
        match step {
            // What fails is no change either.
            Step::Sql(sql) => drop(remote.application().execute_batch(sql)),
            Step::Take | Step::Acknowledge => {
                let now = taken.take().unwrap_or_else(|| rows(&remote));
                let upload = by_key(&remote.schema.clone(), remote.upload());
                assert_eq!(upload, difference(&synced, &now));
                if remote.begin().taken.is_none() {
                    assert_eq!(synced, now);
                } else if matches!(step, Step::Take) {
                    taken = Some(now);
                } else {
                    remote.acknowledge(|_| {});
                    synced = now;
                }
            }
        }
    }
    let now = taken.unwrap_or_else(|| rows(&remote));
    let upload = by_key(&remote.schema.clone(), remote.upload());
    assert_eq!(upload, difference(&synced, &now));
}

/// The same, where transactions go up one by one: `ends` says behind which steps one ends.
fn check_transactions(steps: &[(Step, bool)]) {
    let mut remote = with_items_of(PublicationSchema {
        transactional: true,
        ..items()
    });
    let mut synced = rows(&remote);
    let mut ended: BTreeMap<i64, Rows> = BTreeMap::new();
    let mut all: Vec<(&Step, bool)> = steps.iter().map(|(step, ends)| (step, *ends)).collect();
    // In the end everything goes up.
    all.extend(std::iter::repeat_n(
        (&Step::Acknowledge, false),
        steps.len() + 1,
    ));
    for (step, ends) in all {
        match step {
            Step::Sql(sql) => drop(remote.application().execute_batch(sql)),
            Step::Take | Step::Acknowledge => {
                let upload = by_key(&remote.schema.clone(), remote.upload());
                let Some(taken) = remote.begin().taken_generation else {
                    assert_eq!(synced, rows(&remote));
                    continue;
                };
                let now = ended.get(&taken).cloned();
                let now = now.unwrap_or_else(|| rows(&remote));
                assert_eq!(upload, difference(&synced, &now));
                ended.insert(taken, now.clone());
                if matches!(step, Step::Acknowledge) {
                    remote.acknowledge(|_| {});
                    synced = now;
                }
            }
        }
        if ends {
            let generation = remote.query("SELECT generation FROM tidewater_subscription");
            ended.insert(generation[0].parse().unwrap(), rows(&remote));
            remote.run("INSERT INTO tidewater_transaction DEFAULT VALUES");
        }
    }
    assert_eq!(synced, rows(&remote));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn uploads_are_the_net_changes(steps in prop::collection::vec(step(), 1..24)) {
        check(&steps, None);
    }

    #[test]
    fn uploads_are_the_changes_of_transactions(
        steps in prop::collection::vec((step(), prop::bool::weighted(0.3)), 1..24),
    ) {
        check_transactions(&steps);
    }

    #[test]
    fn uploads_are_the_net_changes_under_a_unique_index(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        check(&steps, Some("CREATE UNIQUE INDEX own ON item (name)"));
    }
}
