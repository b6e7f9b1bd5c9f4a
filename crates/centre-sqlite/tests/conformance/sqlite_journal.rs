//! Deployments that commit each statement by itself and die between any two of them: what databases
//! without transactional DDL rely on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::error::CentreResult;
use tidewater_centre::{Centre, CentreError, PublicationSpec, TableSpec};
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, PUBLICATION, REGIONS, SHOP_DDL, everyone, partitioned, publication,
    shop,
};
use tidewater_centre_sqlite::{DeploymentCommits, SqliteEnvironment, connect_in};
use tidewater_protocol::Direction;

use crate::fixture::SqliteFixture;

/// What somebody has done to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Deploy the tables of [`shop`].
    Shop,
    /// Deploy others: one table has come, one has gone, one has other partition columns, one has a
    /// column less and takes no uploads.
    Others,
    Undeploy,
}

impl Order {
    fn specs(self) -> Vec<PublicationSpec> {
        let tables: Vec<TableSpec> = match self {
            Order::Shop => shop(),
            Order::Others => vec![
                everyone("purchase"),
                TableSpec {
                    columns: Some(["customer_id", "region", "name"].map(String::from).into()),
                    direction: Direction::Download,
                    ..partitioned("customer", &["region"], REGIONS)
                },
                everyone("visit_plan"),
            ],
            Order::Undeploy => return Vec::new(),
        };
        vec![publication(PUBLICATION, tables)]
    }

    async fn carry_out(self, centre: &dyn Centre) -> Result<DeployReport, CentreError> {
        let specs = self.specs();
        match self {
            Order::Undeploy => centre.undeploy(false).await,
            _ => centre.deploy_refusing_pending(&specs, NOW_MS).await,
        }
    }
}

/// A process whose deployments commit each statement, and that lives for so many commits.
async fn process(fixture: &SqliteFixture, commits: usize) -> Arc<dyn Centre> {
    let left = AtomicUsize::new(commits);
    let lives_on = move || {
        let one_less = |left: usize| left.checked_sub(1);
        let spent = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        spent.is_ok()
    };
    let environment = SqliteEnvironment {
        deployment_commits: DeploymentCommits::Each(Arc::new(lives_on)),
        ..SqliteEnvironment::real()
    };
    let url = fixture.url();
    let path = url.strip_prefix("sqlite:").expect("the URL of a file");
    connect_in(PathBuf::from(path), environment).await.unwrap()
}

/// An application writes every table in every way.
async fn write_everything(fixture: &SqliteFixture, round: usize) {
    let (one, two) = (100 + 2 * round, 101 + 2 * round);
    let written = format!(
        "INSERT INTO visit_plan VALUES ('u{one}', 'north'), ('u{two}', 'south');
         UPDATE visit_plan SET region = 'west' WHERE login = 'u{one}';
         DELETE FROM visit_plan WHERE login = 'u{two}';
         INSERT INTO product VALUES ({one}, 'one'), ({two}, 'two');
         UPDATE product SET name = 'first' WHERE product_id = {one};
         DELETE FROM product WHERE product_id = {two};
         INSERT INTO customer VALUES ({one}, 'north', 'one', NULL), ({two}, 'south', 'two', NULL);
         INSERT INTO purchase VALUES ({one}, 'north', {one}, 1), ({two}, 'north', {two}, 2);
         UPDATE purchase SET cost = cost + 1 WHERE purchase_id = {one};
         DELETE FROM purchase WHERE purchase_id = {two};
         UPDATE customer SET name = 'first' WHERE customer_id = {one};
         DELETE FROM customer WHERE customer_id = {two};"
    );
    fixture.execute(&written).await;
}

/// Whether a remote in the north has exactly what the centre has for it.
async fn has_everything(fixture: &SqliteFixture, remote: &TestRemote, told: &str) {
    for table in &remote.schema.tables {
        let columns = table.columns.iter().map(|it| match &*it.name {
            "cost" => "printf('%.2f', cost)".to_owned(),
            name => name.to_owned(),
        });
        let columns = columns.collect::<Vec<_>>().join(", ");
        let condition = match table.partition.is_empty() {
            true => "",
            false => "WHERE region = 'north'",
        };
        let sql = format!("SELECT {columns} FROM {} {condition}", table.name);
        let mut rows = fixture.query(&sql).await;
        rows.sort();
        assert_eq!(remote.rows(&table.name), rows, "{} {told}", table.name);
    }
}

/// A server that has served `before` goes on with it as it has to, or refuses.
async fn serves_or_refuses(fixture: &SqliteFixture, remote: &mut TestRemote, told: &str) -> bool {
    match remote.try_download(&[]).await {
        Ok(_) => {
            has_everything(fixture, remote, told).await;
            true
        }
        Err(error) => {
            assert!(
                matches!(error, CentreError::NotDeployed { .. }),
                "{error} {told}"
            );
            false
        }
    }
}

async fn refuses<T>(told: &str, asked: CentreResult<'_, T>) {
    let Err(error) = asked.await else {
        panic!("it is served {told}");
    };
    assert!(
        matches!(error, CentreError::NotDeployed { .. }),
        "{error} {told}"
    );
    assert!(error.hint().contains("tidewater deploy"), "{error} {told}");
}

/// After `before`, a process that carries out `begun` dies at each of its commits, and the next one
/// carries out `next`.
async fn dies_everywhere(before: Order, begun: Order, next: Order) {
    let mut served = Vec::new();
    for commits in 0.. {
        let told = &format!("({begun:?} after {before:?} died after {commits} commits)");
        let fixture = SqliteFixture::new().await;
        fixture.execute(SHOP_DDL).await;
        let mut world = DeployedCentre {
            centre: process(&fixture, usize::MAX).await,
            fixture,
            specs: before.specs(),
            schemas: Vec::new(),
        };
        let mut remote = None;
        if before != Order::Undeploy {
            world.deploy().await.unwrap();
            remote = Some(TestRemote::synced(&world, "anna").await);
        }
        let dying = process(&world.fixture, commits).await;
        let has_died = match begun.carry_out(&*dying).await {
            Ok(_) => false,
            Err(CentreError::Unavailable { .. }) => true,
            Err(error) => panic!("{error} {told}"),
        };
        drop(dying);
        write_everything(&world.fixture, 0).await;
        if has_died {
            if let Some(remote) = &mut remote {
                served.push(serves_or_refuses(&world.fixture, remote, told).await);
            }
            let another = process(&world.fixture, usize::MAX).await;
            if served.last() != Some(&true) {
                refuses(told, another.load(&begun.specs())).await;
                refuses(told, another.load(&before.specs())).await;
            }
        }
        let received = finish(&mut world, remote, next, told).await;
        // Both publish it, and to both it is the same log.
        let is_sent = received.iter().any(|it| it == "customer");
        let is_another = [Order::Shop, Order::Others].contains(&before) && next != before;
        assert!(is_sent || !is_another || next == Order::Undeploy, "{told}");
        if !has_died {
            assert!(commits > 20, "{begun:?} has {commits} statements");
            break;
        }
    }
    // Every server knows it before the first step.
    assert!(served.iter().skip(1).all(|served| !served), "{served:?}");
}

/// The next deployment: afterwards all is as if no other had died. Gives the tables that a remote from
/// before gets whole.
async fn finish(
    world: &mut DeployedCentre<SqliteFixture>,
    remote: Option<TestRemote>,
    next: Order,
    told: &str,
) -> Vec<String> {
    world.centre = process(&world.fixture, usize::MAX).await;
    world.specs = next.specs();
    let planned = match next {
        Order::Undeploy => world.centre.undeploy(true).await,
        _ => world.centre.deploy(&world.specs, true, NOW_MS).await,
    };
    let done = next.carry_out(&*world.centre).await;
    assert_eq!(planned.unwrap().steps, done.unwrap().steps, "{told}");
    let again = next.carry_out(&*world.centre).await.unwrap();
    assert_eq!(again.steps, [], "{told}");
    if next == Order::Undeploy {
        assert_eq!(world.fixture.traces().await, [] as [&str; 0], "{told}");
        write_everything(&world.fixture, 1).await;
        return Vec::new();
    }
    world.schemas = world.centre.load(&world.specs).await.unwrap();
    world.centre.status().await.unwrap();
    let mut whole = Vec::new();
    let mut remotes = vec![TestRemote::synced(world, "anna").await];
    if let Some(mut remote) = remote {
        remote.worker = world.worker().await;
        remote.migrate_to(world.schema());
        whole = remote.download().await.replaced;
        remote.before = None;
        remotes.push(remote);
    }
    for round in 1..3 {
        for remote in &remotes {
            has_everything(&world.fixture, remote, told).await;
        }
        write_everything(&world.fixture, round).await;
        for remote in &mut remotes {
            let received = remote.download().await;
            assert_eq!(received.replaced, [] as [&str; 0], "{told}");
        }
    }
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_deployment_that_dies_is_finished_by_the_next() {
    dies_everywhere(Order::Undeploy, Order::Shop, Order::Shop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_deployment_that_dies_can_be_undeployed() {
    dies_everywhere(Order::Undeploy, Order::Shop, Order::Undeploy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_deployment_that_dies_is_finished_by_the_next() {
    dies_everywhere(Order::Shop, Order::Others, Order::Others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_of_more_that_dies_is_finished_by_the_next() {
    dies_everywhere(Order::Others, Order::Shop, Order::Shop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_deployment_that_dies_is_superseded_by_what_was_deployed_before() {
    dies_everywhere(Order::Others, Order::Shop, Order::Others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_deployment_that_dies_can_be_undeployed() {
    dies_everywhere(Order::Shop, Order::Others, Order::Undeploy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undeploying_that_dies_is_finished_by_the_next() {
    dies_everywhere(Order::Shop, Order::Undeploy, Order::Undeploy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undeploying_that_dies_is_superseded_by_a_deployment() {
    dies_everywhere(Order::Shop, Order::Undeploy, Order::Shop).await;
}
