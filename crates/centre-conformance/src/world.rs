//! A database that is deployed and served, for the cases of the suite.

use std::sync::Arc;

use tidewater_protocol::{Direction, PublicationSchema};

use crate::fixture::Fixture;
use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::records::SubscriptionRequest;
use tidewater_centre::{
    Centre, CentreError, ConflictSpec, HandledSpec, OnReject, OnUnseenChildren, PublicationSpec,
    ReplayPolicy, RuleSpec, TableSpec, TrackingMode, UploadMode, UploadOrder, Worker, WritesSpec,
};

/// The name of the publication of most cases.
pub const PUBLICATION: &str = "sales";

/// The server's clock in most cases, in milliseconds since 1970.
pub const NOW_MS: i64 = 1_700_000_000_000;

/// A deployed database and the centre that serves it.
pub struct DeployedCentre<F> {
    pub fixture: F,
    pub centre: Arc<dyn Centre>,
    pub specs: Vec<PublicationSpec>,
    pub schemas: Vec<Arc<PublicationSchema>>,
}

impl<F: Fixture> DeployedCentre<F> {
    /// Runs the application's DDL and deploys one publication of the tables.
    pub async fn new(ddl: &str, tables: Vec<TableSpec>) -> DeployedCentre<F> {
        let fixture = F::new().await;
        fixture.execute(ddl).await;
        let mut world = DeployedCentre {
            centre: F::connect(&fixture.url()).await.unwrap(),
            fixture,
            specs: vec![publication(PUBLICATION, tables)],
            schemas: Vec::new(),
        };
        world.deploy().await.unwrap();
        world
    }

    /// Of a database with a table, and nothing published.
    pub async fn without_publications() -> DeployedCentre<F> {
        let fixture = F::new().await;
        fixture
            .execute("CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY)")
            .await;
        let mut world = DeployedCentre {
            centre: F::connect(&fixture.url()).await.unwrap(),
            fixture,
            specs: Vec::new(),
            schemas: Vec::new(),
        };
        world.deploy().await.unwrap();
        world
    }

    /// Deploys what `specs` says, whatever remotes have pending, and loads it.
    pub async fn deploy(&mut self) -> Result<DeployReport, CentreError> {
        let deploy = self.centre.deploy_refusing_pending(&self.specs, NOW_MS);
        let report = deploy.await?;
        self.schemas = self.centre.load(&self.specs).await?;
        Ok(report)
    }

    /// The schema of the first publication.
    pub fn schema(&self) -> Arc<PublicationSchema> {
        self.schemas[0].clone()
    }

    /// A worker of its own.
    pub async fn worker(&self) -> Box<dyn Worker> {
        self.centre.worker().await.unwrap()
    }

    /// Runs SQL as an application.
    pub async fn execute(&self, sql: &str) {
        self.fixture.execute(sql).await;
    }
}

/// A publication.
pub fn publication(name: &str, tables: Vec<TableSpec>) -> PublicationSpec {
    PublicationSpec {
        name: name.into(),
        tables,
        parameters: Vec::new(),
        act_as: None,
        upload: UploadMode::Net,
        on_reject: OnReject::SetAside,
        upload_order: UploadOrder::RowsFirst,
        script_versions: Vec::new(),
        replay: ReplayPolicy::Auto,
        scripts: Vec::new(),
    }
}

/// What a session asks about a publication, without a watermark.
pub fn asked(publication: &str) -> SubscriptionRequest {
    SubscriptionRequest {
        publication: publication.into(),
        watermark: None,
        formers: Vec::new(),
    }
}

/// A table that everyone holds.
pub fn everyone(table: &str) -> TableSpec {
    TableSpec {
        name: table.into(),
        partition: vec![RuleSpec::everyone()],
        direction: Direction::Both,
        columns: None,
        tracking: TrackingMode::Log,
        identity: None,
        filled_by_centre: Vec::new(),
        on_unseen_children: OnUnseenChildren::Conflict,
        writes: WritesSpec::default(),
        conflict: ConflictSpec::default(),
        handled: HandledSpec::default(),
    }
}

/// A table partitioned by columns.
pub fn partitioned(table: &str, columns: &[&str], values: &str) -> TableSpec {
    TableSpec {
        partition: vec![RuleSpec::columns(columns, values)],
        ..everyone(table)
    }
}

/// The tables of most cases: customers by region, their orders by region too,
/// products for everyone, and which user has which regions.
pub const SHOP_DDL: &str = "
    CREATE TABLE visit_plan (login TEXT NOT NULL, region TEXT, PRIMARY KEY (login, region));
    CREATE TABLE product (product_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE customer (customer_id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL,
        name TEXT NOT NULL CHECK (name <> 'forbidden'), email TEXT UNIQUE);
    CREATE TABLE purchase (purchase_id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL,
        customer_id INTEGER NOT NULL REFERENCES customer, cost NUMERIC(12,2));
    INSERT INTO visit_plan VALUES ('anna', 'north'), ('berta', 'north'), ('clara', 'south');
    INSERT INTO product VALUES (1, 'tea'), (2, 'coffee');
    INSERT INTO customer VALUES (1, 'north', 'Nora', 'nora@x'), (2, 'north', 'Niels', NULL),
        (3, 'south', 'Sven', 'sven@x');
    INSERT INTO purchase VALUES (10, 'north', 1, 1.5), (11, 'south', 3, 20);
";

/// The values query of [`shop`].
pub const REGIONS: &str = "SELECT region FROM visit_plan WHERE login = {s.username}";

/// The publication of [`SHOP_DDL`], children first to see that the order is found.
pub fn shop() -> Vec<TableSpec> {
    vec![
        partitioned("purchase", &["region"], REGIONS),
        partitioned("customer", &["region"], REGIONS),
        everyone("product"),
    ]
}
