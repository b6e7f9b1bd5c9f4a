//! Deploying and undeploying.

use tidewater_centre::{Centre, CentreError, TableSpec};
use tidewater_protocol::{ColumnType, Direction, ForeignKeyAction};

use crate::fixture::Fixture;
use crate::remote::TestRemote;
use crate::world::{
    DeployedCentre, NOW_MS, PUBLICATION, REGIONS, SHOP_DDL, everyone, partitioned, publication,
    shop,
};

/// An application's database that nothing is deployed in.
async fn bare<F: Fixture>() -> (F, std::sync::Arc<dyn Centre>) {
    let fixture = F::new().await;
    fixture.execute(SHOP_DDL).await;
    let centre = F::connect(&fixture.url()).await.unwrap();
    (fixture, centre)
}

/// The message and the hint of deploying one table that cannot be deployed.
async fn refusal<F: Fixture>(table: TableSpec) -> String {
    let (fixture, centre) = bare::<F>().await;
    let specs = [publication(PUBLICATION, vec![table])];
    let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error}"
    );
    assert_eq!(fixture.traces().await, [] as [&str; 0], "{error}");
    format!("{error} / {}", error.hint())
}

pub async fn deploying_twice_does_nothing_the_second_time<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let keys = world.centre.signing_keys().await.unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].secret.len(), 32);
    let report = world.deploy().await.unwrap();
    assert_eq!(report.steps, []);
    assert_eq!(world.centre.signing_keys().await.unwrap(), keys);
}

pub async fn a_dry_run_tells_and_changes_nothing<F: Fixture>() {
    let (fixture, centre) = bare::<F>().await;
    let specs = [publication(PUBLICATION, shop())];
    let planned = centre.deploy(&specs, true, NOW_MS).await.unwrap();
    assert!(!planned.steps.is_empty());
    assert_eq!(fixture.traces().await, [] as [&str; 0]);
    let error = centre.load(&specs).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    let done = centre.deploy(&specs, false, NOW_MS).await.unwrap();
    assert_eq!(done.steps, planned.steps);
    centre.load(&specs).await.unwrap();
}

/// A newer program has deployed: this one neither serves nor changes what it does not know.
pub async fn a_state_of_a_newer_format_is_refused<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let newer = format!("UPDATE {} SET format_version = 2", F::own_table("meta"));
    world.fixture.execute(&newer).await;
    let specs = [publication(PUBLICATION, shop())];
    for error in [
        world.centre.load(&specs).await.map(drop),
        world.deploy().await.map(drop),
        world.centre.status().await.map(drop),
    ] {
        let error = error.expect_err("the format is not known");
        assert!(
            matches!(&error, CentreError::Configuration { message, .. } if message.contains("version 2")),
            "{error}"
        );
    }
}

/// Somebody has dropped a table of the server's by hand.
pub async fn a_missing_table_of_the_servers_is_named_and_undeploying_still_works<F: Fixture>() {
    for dropped in ["refused", "meta", "change_log", "publication"] {
        let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
        TestRemote::synced(&world, "anna").await;
        let specs = [publication(PUBLICATION, shop())];
        let own = F::own_table(dropped);
        world.execute(&format!("DROP TABLE {own}")).await;
        let message = format!("the server's table {own} is missing from the database");
        for failed in [
            world.centre.deploy(&specs, true, NOW_MS).await.map(drop),
            world.centre.deploy(&specs, false, NOW_MS).await.map(drop),
            world.centre.load(&specs).await.map(drop),
            world.centre.status().await.map(drop),
        ] {
            let error = failed.unwrap_err().to_string();
            assert!(error.contains(&message), "{error}");
        }
        world.centre.undeploy(false).await.unwrap();
        assert_eq!(world.fixture.traces().await, [] as [&str; 0], "{dropped}");
        world.centre.deploy(&specs, false, NOW_MS).await.unwrap();
        world.centre.load(&specs).await.unwrap();
    }
}

pub async fn a_missing_change_log_is_made_anew<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut before = TestRemote::synced(&world, "anna").await;
    let specs = [publication(PUBLICATION, shop())];
    world
        .execute(&format!("DROP TABLE {}", F::own_table("log_1")))
        .await;
    let error = world.centre.load(&specs).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    world.centre.deploy(&specs, false, NOW_MS).await.unwrap();
    assert_eq!(
        world
            .centre
            .deploy(&specs, false, NOW_MS)
            .await
            .unwrap()
            .steps,
        []
    );
    world.centre.load(&specs).await.unwrap();
    world
        .execute("INSERT INTO customer VALUES (9, 'north', 'x', NULL)")
        .await;
    before.download().await;
    let rows = before.rows("customer");
    assert!(rows.contains(&"9|north|x|NULL".into()), "{rows:?}");
    assert_eq!(
        rows,
        TestRemote::synced(&world, "anna").await.rows("customer")
    );
}

pub async fn undeploying_removes_every_trace<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    TestRemote::synced(&world, "anna").await;
    assert!(!world.fixture.traces().await.is_empty());
    let planned = world.centre.undeploy(true).await.unwrap();
    assert!(!world.fixture.traces().await.is_empty());
    let done = world.centre.undeploy(false).await.unwrap();
    assert_eq!(done.steps, planned.steps);
    assert!(!done.steps.is_empty());
    assert_eq!(world.fixture.traces().await, [] as [&str; 0]);
    assert_eq!(world.centre.undeploy(false).await.unwrap().steps, []);
    // The application's tables work as before.
    world
        .execute("INSERT INTO customer VALUES (9, 'north', 'x', NULL)")
        .await;
}

pub async fn what_the_database_does_not_have_is_named<F: Fixture>() {
    let message = refusal::<F>(everyone("custmer")).await;
    assert!(
        message.contains("custmer") && message.contains("customer"),
        "{message}"
    );
    let message = refusal::<F>(partitioned("customer", &["regio"], REGIONS)).await;
    assert!(
        message.contains("regio") && message.contains("region"),
        "{message}"
    );
    let message = refusal::<F>(TableSpec {
        columns: Some(vec!["customer_id".into(), "nam".into()]),
        ..everyone("customer")
    })
    .await;
    assert!(
        message.contains("nam") && message.contains("did you mean \"name\"?"),
        "{message}"
    );
}

pub async fn key_and_partition_columns_must_be_published<F: Fixture>() {
    let columns = |names: &[&str]| Some(names.iter().map(|&name| name.into()).collect());
    let message = refusal::<F>(TableSpec {
        columns: columns(&["region", "name"]),
        ..everyone("customer")
    })
    .await;
    assert!(message.contains("customer_id"), "{message}");
    let message = refusal::<F>(TableSpec {
        columns: columns(&["customer_id", "name"]),
        ..partitioned("customer", &["region"], REGIONS)
    })
    .await;
    assert!(message.contains("region"), "{message}");
}

pub async fn a_values_query_that_cannot_be_is_refused<F: Fixture>() {
    for (query, part) in [
        ("SELECT regio FROM visit_plan", "regio"),
        ("SELECT region, login FROM visit_plan", "2 columns"),
        (
            "SELECT region FROM visit_plan WHERE login = {s.user}",
            "{s.username}",
        ),
        (
            "SELECT region FROM visit_plan WHERE login = {s.username",
            "no end",
        ),
        ("SELEC region FROM visit_plan", "SELEC"),
        ("DELETE FROM visit_plan", "customer"),
    ] {
        let message = refusal::<F>(partitioned("customer", &["region"], query)).await;
        assert!(message.contains(part), "{query}: {message}");
        assert!(message.contains("customer"), "{query}: {message}");
    }
}

pub async fn a_table_without_a_primary_key_is_an_obstacle<F: Fixture>() {
    let fixture = F::new().await;
    fixture
        .execute("CREATE TABLE loose (a INTEGER, b TEXT); CREATE TABLE good (a INTEGER NOT NULL PRIMARY KEY)")
        .await;
    let centre = F::connect(&fixture.url()).await.unwrap();
    let tables = centre.tables().await.unwrap();
    let obstacle = |name: &str| {
        let mut tables = tables.iter();
        tables
            .find(|table| table.name == name)
            .unwrap()
            .obstacle
            .clone()
    };
    assert!(obstacle("loose").unwrap().contains("primary key"));
    assert_eq!(obstacle("good"), None);
    let specs = [publication(PUBLICATION, vec![everyone("loose")])];
    let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
    assert!(error.to_string().contains("primary key"), "{error}");
}

pub async fn tables_are_listed_as_they_are<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let tables = world.centre.tables().await.unwrap();
    let names: Vec<_> = tables.iter().map(|table| table.name.as_str()).collect();
    // Nothing of the server's own is among them.
    assert_eq!(names, ["customer", "product", "purchase", "visit_plan"]);
    let purchase = &tables[2];
    assert_eq!(purchase.primary_key, ["purchase_id"]);
    assert_eq!(purchase.references.len(), 1);
    assert_eq!(purchase.references[0].parent, "customer");
    assert_eq!(purchase.references[0].columns, ["customer_id"]);
    let columns: Vec<_> = purchase
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column.nullable))
        .collect();
    assert_eq!(
        columns,
        [
            ("purchase_id", false),
            ("region", false),
            ("customer_id", false),
            ("cost", true)
        ]
    );
}

pub async fn the_schema_tells_what_remotes_need<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let schema = world.schema();
    let names: Vec<_> = schema.tables.iter().map(|table| &*table.name).collect();
    let place = |name| names.iter().position(|each| *each == name).unwrap();
    assert!(place("customer") < place("purchase"), "{names:?}");
    let purchase = schema.table("purchase").unwrap();
    assert_eq!(
        (purchase.key.as_slice(), purchase.partition.as_slice()),
        (&[0][..], &[1][..])
    );
    assert_eq!(
        purchase.columns[3].column_type,
        ColumnType::Decimal { scale: Some(2) }
    );
    assert!(purchase.columns[3].nullable && !purchase.columns[2].nullable);
    let reference = &purchase.foreign_keys[0];
    assert_eq!(
        (&*reference.parent, &*reference.columns),
        ("customer", &[2][..])
    );
    assert_eq!(reference.parent_columns, ["customer_id"]);
    assert_eq!(reference.on_delete, ForeignKeyAction::NoAction);
    assert_eq!(schema.table("customer").unwrap().unique, [[3]]);
}

pub async fn changed_partition_columns_send_the_table_anew<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.specs = vec![publication(
        PUBLICATION,
        vec![
            partitioned("customer", &["region"], REGIONS),
            everyone("product"),
            everyone("purchase"),
        ],
    )];
    let error = world.centre.load(&world.specs).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    assert!(!world.deploy().await.unwrap().steps.is_empty());
    anna.schema = world.schema();
    let received = anna.download().await;
    assert!(received.replaced.contains(&"purchase".to_owned()));
    assert_eq!(anna.rows("purchase").len(), 2);
    assert_eq!(world.deploy().await.unwrap().steps, []);
    // A table that is new to the publication comes whole.
    world.specs[0].tables.push(everyone("visit_plan"));
    world.deploy().await.unwrap();
    let mut fresh = TestRemote::new(&world, "anna").await;
    fresh.checkpoint = anna.checkpoint.take();
    let received = fresh.download().await;
    assert!(received.replaced.contains(&"visit_plan".to_owned()));
}

pub async fn two_publications_share_a_table<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    world.specs.push(publication(
        "catalogue",
        vec![everyone("product"), everyone("customer")],
    ));
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut reader = TestRemote::new(&world, "reader").await;
    reader.subscribe_to(world.schemas[1].clone());
    assert_eq!(reader.download().await.upserts.len(), 5);
    world
        .execute("UPDATE customer SET name = 'N' WHERE customer_id IN (1, 3)")
        .await;
    assert_eq!(reader.download().await.upserts.len(), 2);
    assert_eq!(anna.download().await.upserts.len(), 1);
    // Without it, everything of it goes and the rest goes on.
    world.specs.pop();
    world.deploy().await.unwrap();
    world
        .execute("UPDATE customer SET name = 'M' WHERE customer_id = 1")
        .await;
    assert_eq!(anna.download().await.upserts.len(), 1);
    assert!(reader.try_download(&[]).await.is_err());
}

pub async fn a_table_that_is_too_wide_for_uploads_is_refused<F: Fixture>() {
    let (fixture, centre) = bare::<F>().await;
    let columns: Vec<String> = (0..990).map(|it| format!("c{it} INTEGER")).collect();
    let columns = columns.join(", ");
    fixture
        .execute(&format!(
            "CREATE TABLE wide (id INTEGER NOT NULL PRIMARY KEY, {columns})"
        ))
        .await;
    let deploy = async |table: TableSpec| {
        let specs = [publication(PUBLICATION, vec![table])];
        centre.deploy(&specs, true, NOW_MS).await
    };
    let error = deploy(everyone("wide")).await.unwrap_err();
    assert!(
        error.to_string().contains("more than 990 columns"),
        "{error}"
    );
    // Nobody reads changes of it on a remote.
    let download = TableSpec {
        direction: Direction::Download,
        ..everyone("wide")
    };
    deploy(download).await.unwrap();
}

/// What a remote has changed in a table that takes no changes any more is not in the centre.
pub async fn a_table_that_travels_in_another_direction_is_sent_anew<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let product = world.specs[0]
        .tables
        .iter_mut()
        .find(|it| it.name == "product");
    product.unwrap().direction = Direction::Download;
    world.deploy().await.unwrap();
    anna.schema = world.schemas[0].clone();
    let received = anna.download().await;
    assert_eq!(received.replaced, ["product"]);
}
