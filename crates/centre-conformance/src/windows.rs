//! Windows: rows that age out, and come back when a window is wider.

use tidewater_centre::{RuleBy, RuleSpec, TableSpec, WindowLength, WindowSpec, WindowUnit};

use crate::families::{OWNED, follows};
use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, update};
use crate::world::{DeployedCentre, NOW_MS, everyone};

const DAY_MS: i64 = 86_400_000;

fn windowed(last: WindowLength) -> Vec<TableSpec> {
    let window = WindowSpec {
        column: "on_day".into(),
        last,
    };
    let visit = TableSpec {
        partition: vec![RuleSpec {
            by: RuleBy::Columns {
                columns: vec!["owner".into()],
                values: OWNED.into(),
            },
            window: Some(window),
        }],
        ..everyone("visit")
    };
    vec![visit, follows("remark", "visit")]
}

pub async fn rows_age_out_of_a_window_and_come_back_when_it_is_wider<F: Fixture>() {
    // NOW_MS is in the evening of 2023-11-14.
    let ddl = "CREATE TABLE visit (id INTEGER NOT NULL PRIMARY KEY, owner TEXT NOT NULL,
            on_day DATE);
        CREATE TABLE remark (id INTEGER NOT NULL PRIMARY KEY, visit_id INTEGER REFERENCES visit);
        INSERT INTO visit VALUES (1, 'anna', '2023-11-01'), (2, 'anna', '2023-11-08'),
            (3, 'anna', '2023-12-24'), (4, 'berta', '2023-11-14'), (5, 'anna', NULL);
        INSERT INTO remark VALUES (10, 1), (20, 2), (30, 3), (40, 4), (50, 5);";
    let mut world =
        DeployedCentre::<F>::new(ddl, windowed(WindowLength::Time(7, WindowUnit::Days))).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let held = |anna: &TestRemote| {
        let of = |table: &str| {
            let rows = anna.rows(table);
            let ids = rows
                .iter()
                .map(|row| row.split('|').next().unwrap().to_owned());
            ids.collect::<Vec<_>>().join(" ")
        };
        format!("{} / {}", of("visit"), of("remark"))
    };
    assert_eq!(held(&anna), "2 3 / 20 30");
    // The same day: nothing to do.
    anna.now_ms = NOW_MS + 3_600_000;
    assert!(anna.download().await.outcome.unwrap().checkpoint.is_none());
    anna.now_ms = NOW_MS + 2 * DAY_MS;
    assert_eq!(anna.download().await.rows(), ["-remark [20]", "-visit [2]"]);
    world
        .execute("UPDATE visit SET on_day = '2023-11-10' WHERE id = 1")
        .await;
    anna.download().await;
    assert_eq!(held(&anna), "1 3 / 10 30");
    world
        .execute("UPDATE visit SET on_day = NULL WHERE id = 3")
        .await;
    anna.download().await;
    assert_eq!(held(&anna), "1 / 10");
    // What is too old may be written, and is not shown.
    let lost = anna
        .upload(&[
            insert("visit", "2|anna|2023-11-16"),
            update("visit", "1|anna|2023-11-10", "1|anna|2023-11-01"),
        ])
        .await;
    assert_eq!(
        lost,
        [
            "0 inserted, 1 updated, 0 deleted, 0 conflicts, 1 refused",
            "refused visit [2] Insert key_in_use: key in use: somebody else has inserted another \
             row under it; give this one a new key",
        ]
    );
    anna.download().await;
    assert_eq!(held(&anna), " / ");
    world.specs[0].tables = windowed(WindowLength::Time(1, WindowUnit::Months));
    world.deploy().await.unwrap();
    let received = anna.download().await;
    assert_eq!(held(&anna), "1 2 / 10 20");
    assert_eq!(
        received.rows(),
        [
            "remark: 10|1",
            "remark: 20|2",
            "visit: 1|anna|2023-11-01",
            "visit: 2|anna|2023-11-08"
        ]
    );
}

pub async fn a_window_of_numbers_stands_alone<F: Fixture>() {
    let ddl = "CREATE TABLE reading (id INTEGER NOT NULL PRIMARY KEY, seq INTEGER);
        INSERT INTO reading VALUES (1, 100), (2, 190), (3, 250), (4, NULL);";
    let window = WindowSpec {
        column: "seq".into(),
        last: WindowLength::Number(100),
    };
    let reading = TableSpec {
        partition: vec![RuleSpec {
            by: RuleBy::Everyone,
            window: Some(window),
        }],
        ..everyone("reading")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![reading]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("reading"), ["2|190", "3|250"]);
    world.execute("INSERT INTO reading VALUES (5, 300)").await;
    anna.download().await;
    assert_eq!(anna.rows("reading"), ["3|250", "5|300"]);
    world.execute("DELETE FROM reading WHERE id = 5").await;
    anna.download().await;
    assert_eq!(anna.rows("reading"), ["2|190", "3|250"]);
    world
        .execute("DELETE FROM reading WHERE seq IS NOT NULL")
        .await;
    anna.download().await;
    assert!(anna.rows("reading").is_empty());
}
