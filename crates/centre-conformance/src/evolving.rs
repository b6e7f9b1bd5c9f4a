//! Deploying a changed publication while remotes have the old one.

use crate::fixture::Fixture;
use crate::remote::TestRemote;
use crate::world::{DeployedCentre, NOW_MS, SHOP_DDL, everyone, partitioned, publication, shop};
use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::records::{RemoteRecord, SyncRecord};
use tidewater_centre::{CentreError, TableSpec};

/// What a careful deployment comes to.
async fn careful<F: Fixture>(world: &DeployedCentre<F>) -> Result<DeployReport, CentreError> {
    world.centre.deploy(&world.specs, false, NOW_MS).await
}

/// The session notes what a remote has.
async fn note<F: Fixture>(world: &DeployedCentre<F>, remote: &TestRemote) {
    let schema = world.schema();
    let record = SyncRecord {
        remote_id: Some(remote.id),
        started_ms: NOW_MS + 5,
        schemas: vec![(schema.name.clone(), schema.hash().to_vec())],
        ..SyncRecord::default()
    };
    let mut worker = world.worker().await;
    worker.record_syncs(&[record]).await.unwrap();
}

pub async fn a_change_that_remotes_can_follow_is_deployed_and_told<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let remote = registered(&world).await;
    note(&world, &remote).await;
    world
        .execute("ALTER TABLE product ADD COLUMN colour VARCHAR(9)")
        .await;
    let planned = world.centre.deploy(&world.specs, true, NOW_MS).await;
    let report = careful(&world).await.unwrap();
    assert_eq!(planned.unwrap(), report);
    assert_eq!(report.held_up, []);
    let told: Vec<&str> = report
        .effects
        .iter()
        .map(|it| it.description.as_str())
        .collect();
    assert_eq!(told, ["remotes get the column \"colour\" of \"product\""]);
    assert_eq!(careful(&world).await.unwrap().effects, []);
}

pub async fn a_change_that_holds_up_remotes_is_refused_with_their_list<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    // Without remotes there is nobody to hold up.
    world.specs[0]
        .tables
        .retain(|table| table.name != "product");
    assert_eq!(careful(&world).await.unwrap().held_up, []);
    world.specs[0].tables = shop();
    careful(&world).await.unwrap();
    let remote = registered(&world).await;
    note(&world, &remote).await;
    world.specs[0]
        .tables
        .retain(|table| table.name != "product");
    let planned = world
        .centre
        .deploy(&world.specs, true, NOW_MS)
        .await
        .unwrap();
    let held: Vec<_> = planned
        .held_up
        .iter()
        .map(|it| (it.id, it.last_sync_ms))
        .collect();
    assert_eq!(held, [(remote.id, NOW_MS + 5)]);
    match careful(&world).await.unwrap_err() {
        CentreError::RemotesHeldUp { changes, remotes } => {
            assert!(changes[0].contains("\"product\" leaves"), "{changes:?}");
            assert_eq!(remotes, planned.held_up);
        }
        other => panic!("{other}"),
    }
    // Nothing was changed.
    world.specs[0].tables = shop();
    assert_eq!(careful(&world).await.unwrap().steps, []);
    // A remote that is kept out holds nothing up.
    world.specs[0]
        .tables
        .retain(|table| table.name != "product");
    assert!(world.centre.revoke_remote(remote.id).await.unwrap());
    assert_eq!(careful(&world).await.unwrap().held_up, []);
}

pub async fn the_operator_may_go_ahead_and_old_remotes_are_still_known<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let remote = registered(&world).await;
    note(&world, &remote).await;
    let without = |world: &mut DeployedCentre<F>, table: &str| {
        world.specs[0].tables = shop();
        world.specs[0].tables.retain(|it| it.name != table);
    };
    without(&mut world, "product");
    let report = world.deploy().await.unwrap();
    assert_eq!(report.held_up.len(), 1);
    // It still has what left; what comes and goes meanwhile it has never had.
    world
        .execute("CREATE TABLE shelf (shelf_id INTEGER NOT NULL PRIMARY KEY)")
        .await;
    world.specs[0].tables.push(everyone("shelf"));
    careful(&world).await.unwrap();
    without(&mut world, "product");
    let report = careful(&world).await.unwrap();
    assert_eq!(report.held_up, []);
    assert!(report.effects[0].holds_up);
}

/// A remote that the centre knows.
async fn registered<F: Fixture>(world: &DeployedCentre<F>) -> TestRemote {
    let remote = TestRemote::synced(world, "anna").await;
    let record = RemoteRecord {
        id: remote.id,
        user: "anna".into(),
        revoked: false,
        credential_hash: vec![1],
        previous_credential_hash: Vec::new(),
        rotated_ms: NOW_MS,
        created_ms: NOW_MS,
        last_sync_ms: 0,
        unverified: 0,
        device_name: String::new(),
    };
    let mut worker = world.worker().await;
    worker.save_remote(&record).await.unwrap();
    remote
}

const VISITS: &str = "
    CREATE TABLE plan (login TEXT, day_no INTEGER, long_no BIGINT, region TEXT, on_day DATE);
    CREATE TABLE visit (visit_id INTEGER NOT NULL PRIMARY KEY, day_no INTEGER NOT NULL);";

fn visits(query: &str) -> Vec<TableSpec> {
    vec![partitioned("visit", &["day_no"], query)]
}

/// The refusal of a partition query.
async fn query_refused<F: Fixture>(query: &str) -> String {
    let fixture = F::new().await;
    fixture.execute(VISITS).await;
    let centre = F::connect(&fixture.url()).await.unwrap();
    let specs = [publication("visits", visits(query))];
    let error = centre.deploy(&specs, false, NOW_MS).await;
    let error = error.expect_err("the query is refused");
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error}"
    );
    assert_eq!(fixture.traces().await, [] as [&str; 0], "{error}");
    format!("{error} / {}", error.hint())
}

pub async fn a_values_query_of_another_type_is_refused_when_it_is_deployed<F: Fixture>() {
    for (query, found) in [
        ("SELECT region FROM plan WHERE login = {s.username}", "text"),
        ("SELECT on_day FROM plan", "date"),
    ] {
        let refusal = query_refused::<F>(query).await.to_lowercase();
        let expected = ["visit", "partition column \"day_no\"", found, "convert it"];
        let told = expected.iter().all(|it| refusal.contains(it));
        assert!(told, "{refusal}");
    }
    // What the database converts by itself is fine, and what is converted in the query.
    for query in [
        "SELECT long_no FROM plan WHERE login = {s.username}",
        "SELECT CAST(region AS INTEGER) FROM plan",
        "SELECT 7",
    ] {
        DeployedCentre::<F>::new(VISITS, visits(query)).await;
    }
}

pub async fn a_values_query_that_cannot_be_run_is_refused_with_the_place<F: Fixture>() {
    for (query, expected) in [
        ("SELECT day_no FORM plan WHERE 1 = 1", "plan"),
        ("SELECT day_no FROM nowhere", "nowhere"),
        ("SELECT day_no, day_no FROM plan", "columns"),
        ("SELECT day_no FROM plan WHERE login = {s.user}", "{s.user}"),
    ] {
        let refusal = query_refused::<F>(query).await;
        assert!(
            refusal.contains("visit") && refusal.contains(expected),
            "{refusal}"
        );
    }
}
