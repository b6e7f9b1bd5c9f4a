//! Centres that serve while somebody else deploys, or alters the tables.

use std::sync::Arc;

use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_centre::{Centre, CentreError, DeployedPublications};

use crate::fixture::Fixture;
use crate::remote::session_state;
use crate::remote::{TestRemote, insert};
use crate::world::{
    DeployedCentre, NOW_MS, PUBLICATION, REGIONS, SHOP_DDL, asked, everyone, partitioned,
    publication, shop,
};

/// The centre of another server.
async fn another<F: Fixture>(world: &DeployedCentre<F>) -> Arc<dyn Centre> {
    F::connect(&world.fixture.url()).await.unwrap()
}

async fn refreshed(centre: &Arc<dyn Centre>) -> DeployedPublications {
    centre.refresh().await.unwrap().unwrap()
}

pub async fn what_is_deployed_is_served_whatever_was_configured<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let other = another(&world).await;
    let elsewhere = [publication("elsewhere", vec![everyone("product")])];
    let error = other.load(&elsewhere).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    let served = refreshed(&other).await;
    assert_eq!(served.schemas, world.schemas);
    assert_eq!(refreshed(&other).await, served);
    assert_eq!(refreshed(&world.centre).await, served);
    let mut remote = TestRemote::synced(&world, "anna").await;
    remote.worker = other.worker().await.unwrap();
    world
        .execute("INSERT INTO customer VALUES (9, 'north', 'x', NULL)")
        .await;
    assert_eq!(remote.download().await.rows(), ["customer: 9|north|x|NULL"]);
}

pub async fn where_nothing_is_deployed_nothing_is_served<F: Fixture>() {
    let fixture = F::new().await;
    fixture.execute(SHOP_DDL).await;
    let centre = F::connect(&fixture.url()).await.unwrap();
    let error = centre.refresh().await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
}

/// Another query is nothing that remotes are told, nor the tables.
pub async fn a_deployment_is_noticed_by_a_centre_that_serves<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let other = another(&world).await;
    let mut before = refreshed(&other).await;
    let queries = [
        "SELECT region FROM visit_plan WHERE login = {s.username} AND region <> 'east'",
        "SELECT 'south'",
    ];
    for query in queries {
        let specs = [publication(
            PUBLICATION,
            vec![partitioned("customer", &["region"], query)],
        )];
        let deploy = world.centre.deploy_refusing_pending(&specs, NOW_MS);
        deploy.await.unwrap();
        let now = refreshed(&other).await;
        assert_ne!(now.number, before.number);
        let mut session = other.worker().await.unwrap();
        let state = session_state(&mut session, "anna", None, &[])
            .await
            .unwrap();
        assert_eq!(state.deployment, now.number);
        before = now;
    }
    let [schema] = &*before.schemas else {
        panic!("one publication is deployed")
    };
    assert_eq!(schema.tables.len(), 1);
    let mut remote = TestRemote::new(&world, "anna").await;
    remote.schema = schema.clone();
    remote.worker = other.worker().await.unwrap();
    assert_eq!(
        remote.download().await.rows(),
        ["customer: 3|south|Sven|sven@x"]
    );
    // To deploy the same again is no deployment.
    let again = world.centre.deploy(&[], true, NOW_MS).await;
    again.unwrap();
    assert_eq!(refreshed(&other).await, before);
}

/// What the remote was told does not fit what would be sent.
pub async fn a_download_that_a_deployment_overtakes_reads_nothing<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut remote = TestRemote::synced(&world, "anna").await;
    world.specs[0].tables.pop();
    world.deploy().await.unwrap();
    let error = remote.try_download(&[]).await.unwrap_err();
    assert!(matches!(error, CentreError::Redeployed { .. }), "{error}");
    remote.schema = world.schema();
    remote.download().await;
}

/// Nobody has deployed it: remotes do not know the column, and do without it.
pub async fn a_column_that_was_added_and_not_deployed_is_left_out<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let before = refreshed(&world.centre).await;
    let mut remote = TestRemote::synced(&world, "anna").await;
    world
        .execute("ALTER TABLE customer ADD COLUMN note TEXT; UPDATE customer SET note = 'x'")
        .await;
    for centre in [&world.centre, &another(&world).await] {
        let now = refreshed(centre).await;
        assert_eq!(now.schemas, before.schemas);
        assert_ne!(now.version, before.version);
    }
    remote.download().await;
    remote
        .upload(&[insert("customer", "20|north|New|NULL")])
        .await;
    let found = world
        .fixture
        .query("SELECT name, note FROM customer WHERE customer_id IN (1, 20) ORDER BY customer_id");
    assert_eq!(found.await, ["Nora|x", "New|NULL"]);
}

/// As a dump restores them.
pub async fn the_order_of_constraints_is_nothing_to_remotes<F: Fixture>() {
    let mut schemas = Vec::new();
    for constraints in [
        "UNIQUE (a, b), UNIQUE (b), FOREIGN KEY (a) REFERENCES parent (id),
         FOREIGN KEY (b) REFERENCES other (id)",
        "FOREIGN KEY (b) REFERENCES other (id), FOREIGN KEY (a) REFERENCES parent (id),
         UNIQUE (b), UNIQUE (a, b)",
    ] {
        let ddl = format!(
            "CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY);
             CREATE TABLE other (id INTEGER NOT NULL PRIMARY KEY);
             CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY, a INTEGER, b INTEGER,
               {constraints});"
        );
        let tables = ["parent", "other", "child"].map(everyone);
        schemas.push(
            DeployedCentre::<F>::new(&ddl, tables.to_vec())
                .await
                .schema(),
        );
    }
    assert_eq!(schemas[0], schemas[1]);
    assert_eq!(schemas[0].hash(), schemas[1].hash());
}

/// Of a table that gets a column, the rows go that have something else in it than remotes fill in;
/// of others, what has changed.
pub async fn a_new_column_sends_only_rows_in_which_it_has_another_value<F: Fixture>() {
    let columns = |names: &[&str]| {
        Some(
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let mut customer = partitioned("customer", &["region"], REGIONS);
    customer.columns = columns(&["customer_id", "region", "name"]);
    let tables = vec![customer, everyone("product"), everyone("extra")];
    let ddl = format!(
        "{SHOP_DDL} CREATE TABLE extra (id INTEGER NOT NULL PRIMARY KEY, kind TEXT DEFAULT 'a');
         INSERT INTO extra VALUES (1, 'a'), (2, 'b'), (3, NULL)"
    );
    let mut world = DeployedCentre::<F>::new(&ddl, tables).await;
    world.specs[0].tables[2].columns = columns(&["id"]);
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let before = world.schema().hash().to_vec();
    world.specs[0].tables[0].columns = None;
    world.deploy().await.unwrap();
    world
        .execute("INSERT INTO product VALUES (3, 'cocoa')")
        .await;
    (anna.schema, anna.before) = (world.schema(), Some(before));
    let received = anna.download().await;
    assert_eq!(received.replaced, [""; 0]);
    assert_eq!(
        received.rows(),
        ["customer: 1|north|Nora|nora@x", "product: 3|cocoa"]
    );
    anna.before = None;
    assert_eq!(anna.download().await.rows(), [""; 0]);
    // What remotes may have had before goes whole, and who has an unknown schema gets all.
    let before = world.schema().hash().to_vec();
    world.specs[0].tables[2].columns = None;
    world.deploy().await.unwrap();
    (anna.schema, anna.before) = (world.schema(), Some(before));
    assert_eq!(anna.download().await.replaced, ["extra"]);
    anna.before = Some(vec![7; 32]);
    let mut all = anna.download().await.replaced;
    all.sort();
    assert_eq!(all, ["customer", "extra", "product"]);
}

/// Nothing that is known to the one is known to the other, but its users.
pub async fn a_copy_that_gets_a_name_of_its_own_knows_no_remotes<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("product", "5|salt")]).await;
    let user = UserRecord {
        name: "anna".into(),
        password_hash: "hash".into(),
        disabled: false,
        created_ms: NOW_MS,
        proven: ProvenIdentity::default(),
    };
    world.centre.add_user(&user).await.unwrap();
    let [key] = &world.centre.signing_keys().await.unwrap()[..] else {
        panic!("one key")
    };
    let asked = [asked(PUBLICATION)];
    let mut worker = world.worker().await;
    let before = session_state(&mut worker, "anna", Some(anna.id), &asked).await;
    let before = before.unwrap();
    assert!(before.subscriptions[0].is_some());
    assert!(world.centre.rename(NOW_MS).await.unwrap());
    let after = session_state(&mut worker, "anna", Some(anna.id), &asked).await;
    let after = after.unwrap();
    assert_eq!(after.subscriptions, [None]);
    assert_eq!((&after.remote, after.removed), (&None, false));
    assert!(after.user.is_some());
    assert_ne!(after.centre, before.centre);
    assert_ne!(after.deployment, before.deployment);
    let [now] = &world.centre.signing_keys().await.unwrap()[..] else {
        panic!("one key")
    };
    assert!(now.id != key.id && now.secret != key.secret);
    assert_eq!(world.deploy().await.unwrap().steps, []);
    // Where nothing is deployed there is no name yet.
    let bare = F::new().await;
    bare.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        .await;
    let centre = F::connect(&bare.url()).await.unwrap();
    assert!(!centre.rename(NOW_MS).await.unwrap());
}

/// Each upload of a list by its own user, and nobody outside of uploads.
pub async fn triggers_of_the_application_know_who_uploads<F: Fixture>() {
    let ddl = format!(
        "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT);
         CREATE TABLE seen (id INTEGER, who TEXT, remote TEXT); {}",
        F::who_trigger()
    );
    let world = DeployedCentre::<F>::new(&ddl, vec![everyone("note")]).await;
    let mut remotes = Vec::new();
    for user in ["anna", "berta"] {
        remotes.push(TestRemote::synced(&world, user).await);
    }
    let uploads = remotes.iter_mut().zip(["1|a", "2|b"]);
    let uploads: Vec<_> = uploads
        .map(|(remote, row)| remote.next_upload(&[insert("note", row)]))
        .collect();
    world.worker().await.apply(uploads).await.unwrap();
    world.execute("INSERT INTO note VALUES (3, 'c')").await;
    let seen = "SELECT id, who, remote FROM seen ORDER BY id";
    let expected = [
        format!("1|anna|{}", remotes[0].id),
        format!("2|berta|{}", remotes[1].id),
        "3|NULL|NULL".to_owned(),
    ];
    assert_eq!(world.fixture.query(seen).await, expected);
}
