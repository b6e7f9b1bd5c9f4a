//! Parameters of remotes: what they are in queries, and who may ask for what.

use tidewater_centre::{CentreError, ParameterSpec, TableSpec, UploadOutcome};
use tidewater_protocol::Code;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, update};
use crate::world::{DeployedCentre, PUBLICATION, partitioned};

const DDL: &str = "CREATE TABLE rental (id INTEGER NOT NULL PRIMARY KEY, month TEXT, note TEXT);
     CREATE TABLE stock (id INTEGER NOT NULL PRIMARY KEY, store INTEGER, note TEXT);
     CREATE TABLE manager (login TEXT NOT NULL, store INTEGER NOT NULL);
     INSERT INTO rental VALUES (1, '2026-10', 'a'), (2, '2026-11', 'b'), (3, NULL, 'c');
     INSERT INTO stock VALUES (1, 1, 'a'), (2, 2, 'b');
     INSERT INTO manager VALUES ('anna', 1), ('berta', 2), ('carla', 1), ('carla', 2);";

fn tables() -> Vec<TableSpec> {
    vec![
        partitioned("rental", &["month"], "SELECT {u.month}"),
        partitioned(
            "stock",
            &["store"],
            "SELECT store FROM manager WHERE CAST(store AS TEXT) = {ml u.store}",
        ),
    ]
}

/// A world in which users may ask for the stores that they manage.
async fn world<F: Fixture>() -> DeployedCentre<F> {
    let mut world = DeployedCentre::new(DDL, tables()).await;
    world.specs[0].parameters = vec![
        parameter(
            "store",
            Some("SELECT store FROM manager WHERE login = {s.username};"),
        ),
        parameter("month", None),
    ];
    world.deploy().await.unwrap();
    world
}

fn parameter(name: &str, allowed: Option<&str>) -> ParameterSpec {
    ParameterSpec {
        name: name.into(),
        allowed: allowed.map(str::to_owned),
    }
}

fn set(remote: &mut TestRemote, name: &str, value: &str) {
    remote.parameters.insert(name.into(), value.into());
}

pub async fn a_scope_follows_what_a_remote_sets<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert!(anna.rows("rental").is_empty() && anna.rows("stock").is_empty());
    set(&mut anna, "month", "2026-10");
    set(&mut anna, "store", "1");
    anna.download().await;
    assert_eq!(anna.rows("rental"), ["1|2026-10|a"]);
    assert_eq!(anna.rows("stock"), ["1|1|a"]);
    set(&mut anna, "month", "2026-11");
    anna.parameters.remove("store");
    anna.download().await;
    assert_eq!(anna.rows("rental"), ["2|2026-11|b"]);
    assert!(anna.rows("stock").is_empty());
}

pub async fn what_a_remote_sets_is_only_text<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    for value in [
        "2026-10' OR '1'='1",
        "2026-10'); DROP TABLE rental; --",
        "{s.username}",
        "",
        "\u{e9}\u{1f600}\\",
    ] {
        set(&mut anna, "month", value);
        anna.download().await;
        assert!(anna.rows("rental").is_empty(), "{value}");
    }
    set(&mut anna, "store", "1' OR '1'='1");
    let refused = anna.try_download(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ParameterNotAllowed);
}

pub async fn changes_of_what_a_remote_lets_go_are_taken_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    set(&mut anna, "month", "2026-10");
    anna.download().await;
    set(&mut anna, "month", "2026-11");
    let result = anna
        .upload(&[
            update("rental", "1|2026-10|a", "1|2026-10|mine"),
            insert("rental", "9|2026-11|new"),
        ])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    anna.download().await;
    assert_eq!(anna.rows("rental"), ["2|2026-11|b", "9|2026-11|new"]);
    let result = anna
        .upload(&[update("rental", "1|2026-10|mine", "1|2026-10|again")])
        .await;
    assert_eq!(
        result[0],
        "0 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
}

pub async fn what_a_user_may_not_ask_for_is_refused_to_her_alone<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let mut carla = TestRemote::new(&world, "carla").await;
    set(&mut anna, "store", "1");
    set(&mut carla, "store", "2");
    anna.download().await;
    carla.download().await;
    set(&mut anna, "store", "2");
    let uploads = vec![
        anna.next_upload(&[update("stock", "1|1|a", "1|1|hers")]),
        carla.next_upload(&[update("stock", "2|2|b", "2|2|carla")]),
    ];
    let mut outcomes = world.worker().await.apply(uploads).await.unwrap();
    assert!(matches!(
        outcomes.pop(),
        Some(UploadOutcome::Applied { .. })
    ));
    match outcomes.pop() {
        Some(UploadOutcome::Failed { error }) => assert_denied(&error),
        other => panic!("{other:?}"),
    }
    assert_denied(&anna.try_download(&[]).await.unwrap_err());
    let stock = "SELECT id, store, note FROM stock ORDER BY 1";
    assert_eq!(world.fixture.query(stock).await, ["1|1|a", "2|2|carla"]);
    // What she had in mind is not lost: the number was not used up.
    anna.sequence -= 1;
    set(&mut anna, "store", "1");
    anna.upload(&[update("stock", "1|1|a", "1|1|hers")]).await;
    assert_eq!(world.fixture.query(stock).await, ["1|1|hers", "2|2|carla"]);
}

fn assert_denied(error: &CentreError) {
    assert_eq!(error.code(), Code::ParameterNotAllowed);
    let message = error.to_string();
    assert!(
        message.contains("\"2\"") && message.contains("\"store\""),
        "{message}"
    );
    assert!(error.hint().contains("--parameter store="));
}

pub async fn parameters_that_cannot_be_are_refused_with_the_place<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, tables()).await;
    for (name, allowed, expected) in [
        ("moth", None, "\"month\""),
        ("store", Some("SELECT store FROM nowhere"), "nowhere"),
        (
            "store",
            Some("SELECT store, login FROM manager"),
            "2 columns",
        ),
        (
            "store",
            Some("SELECT store FROM manager WHERE x = {s.x}"),
            "{s.x}",
        ),
        ("store", Some("SELECT '{u.store}'"), "without quotes"),
        ("store", Some("DELETE FROM manager RETURNING store"), ""),
    ] {
        world.specs[0].parameters = vec![parameter(name, allowed)];
        let error = world.deploy().await.unwrap_err();
        assert!(
            matches!(error, CentreError::Configuration { .. }),
            "{error:?}"
        );
        let told = format!("{error} {}", error.hint());
        let place = format!("publication {PUBLICATION:?}, parameter {name:?}");
        assert!(told.contains(&place) && told.contains(expected), "{told}");
    }
}
