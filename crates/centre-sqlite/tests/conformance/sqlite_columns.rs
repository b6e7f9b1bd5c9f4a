//! Columns that are dropped and added again.

use tidewater_centre::CentreError;
use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{DeployedCentre, everyone};

use crate::fixture::SqliteFixture;

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_columns_are_dropped_and_added_again_are_sent_once_more() {
    let ddl = "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT, other TEXT, last TEXT);
         INSERT INTO t VALUES (1, 'old', 'x', 'old')";
    let mut world = DeployedCentre::<SqliteFixture>::new(ddl, vec![everyone("t")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for again in [
        "ALTER TABLE t DROP COLUMN last; ALTER TABLE t ADD COLUMN last TEXT DEFAULT 'new'",
        "ALTER TABLE t DROP COLUMN note; ALTER TABLE t ADD COLUMN note TEXT",
    ] {
        world.execute(again).await;
        let error = anna.try_download(&[]).await.unwrap_err();
        assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
        world.deploy().await.unwrap();
        anna.schema = world.schema();
        assert_eq!(anna.download().await.replaced, ["t"], "{again}");
        assert_eq!(anna.download().await.replaced, [""; 0]);
        assert_eq!(world.deploy().await.unwrap().steps, []);
    }
    assert_eq!(anna.rows("t"), ["1|x|new|NULL"]);
    // What comes and goes beside is no matter.
    world
        .execute("ALTER TABLE t ADD COLUMN extra TEXT; ALTER TABLE t DROP COLUMN extra")
        .await;
    assert_eq!(anna.download().await.replaced, [""; 0]);
}
