//! Partitioned tables: writes to the root and to leaves, partitions that come and go.

use tidewater_centre::{CentreError, TableSpec, TrackingMode};
use tidewater_centre_postgres::connect;

use super::{PostgresWorld, major_version};
use crate::fixture::PostgresFixture;
use crate::fixture::{ApplicationTransaction, Fixture};
use tidewater_centre_conformance::remote::{TestRemote, delete, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, everyone, partitioned, publication,
};

/// Three levels; the oldest leaf has its columns in another order.
const SALE_DDL: &str = "
    CREATE TABLE sale (day date NOT NULL, id integer NOT NULL, region text NOT NULL, note text,
      PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE sale_2024 (note text, region text NOT NULL, gone integer, id integer NOT NULL,
      day date NOT NULL, PRIMARY KEY (id, day));
    ALTER TABLE sale_2024 DROP COLUMN gone;
    ALTER TABLE sale ATTACH PARTITION sale_2024 FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
    CREATE TABLE sale_2025 PARTITION OF sale FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')
      PARTITION BY HASH (id);
    CREATE TABLE sale_2025_even PARTITION OF sale_2025 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE sale_2025_odd PARTITION OF sale_2025 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    CREATE TABLE plan (login text, region text);
    INSERT INTO plan VALUES ('anna', 'north'), ('berta', 'south');
    INSERT INTO sale VALUES ('2024-05-01', 1, 'north', 'a'), ('2025-05-01', 2, 'north', 'b'),
      ('2025-05-01', 3, 'south', 'c')";

fn sale() -> TableSpec {
    let mine = "SELECT region FROM plan WHERE login = {s.username}";
    partitioned("sale", &["region"], mine)
}

async fn sales() -> PostgresWorld {
    DeployedCentre::new(SALE_DDL, vec![sale()]).await
}

/// Whether a remote has what the centre has for its user.
async fn assert_equal(world: &PostgresWorld, remote: &TestRemote, region: &str) {
    let rows = format!(
        "SELECT * FROM (SELECT * FROM sale WHERE region = '{region}') s
         ORDER BY concat_ws('|', day, id, region, note)"
    );
    assert_eq!(remote.rows("sale"), world.fixture.query(&rows).await);
}

/// Interleaving 15, first half.
#[tokio::test]
async fn writes_to_the_root_and_to_partitions_of_any_level_reach_remotes() {
    for tracking in [TrackingMode::Log, TrackingMode::Row] {
        let spec = TableSpec { tracking, ..sale() };
        let world: PostgresWorld = DeployedCentre::new(SALE_DDL, vec![spec]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut berta = TestRemote::synced(&world, "berta").await;
        for sql in [
            "INSERT INTO sale VALUES ('2024-06-01', 10, 'north', 'root'), ('2025-06-01', 11, 'south', 'root')",
            "INSERT INTO sale_2024 (day, id, region, note) VALUES ('2024-07-01', 12, 'north', 'leaf')",
            "INSERT INTO sale_2025 VALUES ('2025-07-01', 13, 'north', 'middle')",
            "UPDATE sale SET note = note || '!'",
            "UPDATE sale_2024 SET note = 'leaf' WHERE id = 12",
            "UPDATE sale_2025 SET region = 'south' WHERE id = 13",
            // To another leaf: below the root, and below one of its partitions.
            "UPDATE sale SET day = '2025-08-01' WHERE id = 10",
            "UPDATE sale SET day = '2024-08-01', region = 'north' WHERE id = 11",
            "UPDATE sale_2025 SET id = id + 101",
            "COPY sale (day, id, region) FROM PROGRAM 'printf ''2024-01-01\t50\tnorth\n2025-01-01\t51\tsouth\n'''",
            "DELETE FROM sale_2024 WHERE id = 12",
            "DELETE FROM sale WHERE id = 1",
        ] {
            world.execute(sql).await;
            let changed = [anna.download().await, berta.download().await];
            assert!(changed.iter().all(|it| it.replaced.is_empty()), "{sql}");
            assert_equal(&world, &anna, "north").await;
            assert_equal(&world, &berta, "south").await;
        }
        for sql in ["TRUNCATE sale_2024", "TRUNCATE sale_2025", "TRUNCATE sale"] {
            let row = "INSERT INTO sale VALUES ('2024-06-01', 70, 'north', ''), ('2025-06-01', 71, 'north', '')";
            world.execute(row).await;
            world.execute(sql).await;
            anna.download().await;
            assert_equal(&world, &anna, "north").await;
            world.execute("TRUNCATE sale").await;
        }
    }
}

/// Interleaving 15, second half.
#[tokio::test]
async fn rows_come_and_go_with_the_partitions_that_are_attached_and_detached() {
    let world = sales().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "CREATE TABLE old (LIKE sale INCLUDING ALL);
             INSERT INTO old VALUES ('2023-01-01', 20, 'north', 'old'), ('2023-01-02', 21, 'south', 'old');
             ALTER TABLE sale ATTACH PARTITION old FOR VALUES FROM ('2023-01-01') TO ('2024-01-01')",
        )
        .await;
    let received = anna.download().await;
    // Only the rows that came, and they are tracked from now on.
    assert_eq!(received.rows(), ["sale: 2023-01-01|20|north|old"]);
    world.execute("UPDATE old SET note = 'older'").await;
    assert_eq!(
        anna.download().await.rows(),
        ["sale: 2023-01-01|20|north|older"]
    );
    let mut ways = vec!["ALTER TABLE sale DETACH PARTITION old"];
    if major_version(&world).await >= 14 {
        ways.push("ALTER TABLE sale DETACH PARTITION old CONCURRENTLY");
    }
    for detach in ways {
        world.execute(detach).await;
        anna.download().await;
        assert_equal(&world, &anna, "north").await;
        assert_eq!(anna.rows("sale").len(), 2);
        // What happens to it meanwhile is not news, but is there when it comes back.
        world
            .execute("UPDATE old SET id = id + 1; DELETE FROM old WHERE region = 'south'")
            .await;
        anna.download().await;
        assert_eq!(anna.rows("sale").len(), 2);
        world
            .execute("ALTER TABLE sale ATTACH PARTITION old FOR VALUES FROM ('2023-01-01') TO ('2024-01-01')")
            .await;
        anna.download().await;
        assert_equal(&world, &anna, "north").await;
    }
    // Detached, changed and attached again between two downloads: its rows are others.
    world
        .execute(
            "ALTER TABLE sale DETACH PARTITION old; TRUNCATE old;
             INSERT INTO old VALUES ('2023-01-09', 29, 'north', 'new');
             ALTER TABLE sale ATTACH PARTITION old FOR VALUES FROM ('2023-01-01') TO ('2024-01-01')",
        )
        .await;
    anna.download().await;
    assert_equal(&world, &anna, "north").await;
    world.execute("DROP TABLE old").await;
    anna.download().await;
    assert_equal(&world, &anna, "north").await;
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_new_partition_is_tracked_without_deploying_and_sends_nothing_again() {
    let world = sales().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "CREATE TABLE sale_2026 PARTITION OF sale FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')
               PARTITION BY RANGE (day);
             CREATE TABLE sale_2026_rest PARTITION OF sale_2026 DEFAULT;
             INSERT INTO sale_2026_rest VALUES ('2026-01-01', 30, 'north', 'early')",
        )
        .await;
    assert_eq!(
        anna.download().await.rows(),
        ["sale: 2026-01-01|30|north|early"]
    );
    world
        .execute("INSERT INTO sale_2026_rest VALUES ('2026-01-02', 31, 'north', 'late')")
        .await;
    let received = anna.download().await;
    assert_eq!(received.rows(), ["sale: 2026-01-02|31|north|late"]);
    assert!(received.replaced.is_empty());
    world.execute("TRUNCATE sale_2026_rest").await;
    anna.download().await;
    assert_equal(&world, &anna, "north").await;
    // Deploying finds everything in place, and so does a server that starts.
    let report = world.centre.deploy(&world.specs, false, NOW_MS).await;
    assert!(report.unwrap().steps.is_empty());
    world.centre.load(&world.specs).await.unwrap();
}

/// Interleaving 15 with the transaction that attaches open across a download, and a writer of the
/// new leaf that is in the way of its triggers.
#[tokio::test]
async fn a_partition_that_cannot_be_tracked_at_once_makes_its_table_go_whole() {
    let world = sales().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut open = world.fixture.begin().await;
    open.execute(
        "CREATE TABLE sale_2026 (LIKE sale INCLUDING ALL);
         INSERT INTO sale_2026 VALUES ('2026-01-01', 30, 'north', 'early');
         ALTER TABLE sale ATTACH PARTITION sale_2026 FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
    )
    .await;
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    open.commit().await;
    let mut writer = world.fixture.begin().await;
    writer
        .execute("INSERT INTO sale_2026 VALUES ('2026-01-02', 31, 'north', 'writer')")
        .await;
    let received = anna.download().await;
    assert_eq!(received.replaced, ["sale"]);
    assert_eq!(anna.rows("sale").len(), 3);
    writer.commit().await;
    // Not tried again at every download.
    assert_eq!(anna.download().await.replaced, ["sale"]);
    assert_equal(&world, &anna, "north").await;
    anna.now_ms += 3_600_000;
    assert!(anna.download().await.replaced.is_empty());
    world
        .execute("INSERT INTO sale_2026 VALUES ('2026-01-03', 32, 'north', 'tracked')")
        .await;
    let received = anna.download().await;
    assert_eq!(received.rows(), ["sale: 2026-01-03|32|north|tracked"]);
}

/// A server whose role does not own the new leaf sends the table whole; deploying by the
/// owner's role ends that.
#[tokio::test]
async fn a_partition_of_another_owner_is_tracked_by_deploying() {
    let mut world = sales().await;
    let role = format!("server_{}", world.fixture.url().rsplit('_').next().unwrap());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tidewater TO {role};
             GRANT ALL ON ALL TABLES IN SCHEMA tidewater, public TO {role};
             GRANT ALL ON ALL SEQUENCES IN SCHEMA tidewater TO {role}"
        ))
        .await;
    let url = world
        .fixture
        .url()
        .replace("postgres@", &format!("{role}@"));
    let serving = connect(&url).await.unwrap();
    let schemas = serving.load(&world.specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), serving.worker().await.unwrap(), "anna");
    anna.download().await;
    world
        .execute(
            "CREATE TABLE sale_2026 PARTITION OF sale FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
             INSERT INTO sale_2026 VALUES ('2026-01-01', 30, 'north', 'early')",
        )
        .await;
    assert_eq!(anna.download().await.replaced, ["sale"]);
    assert_equal(&world, &anna, "north").await;
    let report = world.deploy().await.unwrap();
    assert_eq!(report.steps.len(), 1);
    let step = &report.steps[0].description;
    assert_eq!(step, "partitions of sale: track sale_2026");
    assert!(anna.download().await.replaced.is_empty());
    world
        .execute("INSERT INTO sale_2026 VALUES ('2026-01-02', 31, 'north', 'late')")
        .await;
    let received = anna.download().await;
    assert_eq!(received.rows(), ["sale: 2026-01-02|31|north|late"]);
    drop((anna, serving));
    world
        .execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn uploads_go_into_partitions_and_are_not_sent_back() {
    let world = sales().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut second = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("sale", "2024-03-01|40|north|new"),
            insert("sale", "2031-03-01|41|north|no partition"),
            update("sale", "2025-05-01|2|north|b", "2025-05-01|2|north|B"),
            delete("sale", "2024-05-01|1|north|a"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "1 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused",
            "refused sale [41|2031-03-01] Insert check: no partition of relation \"sale\" found for row",
        ]
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    let many = (1000..1400).map(|id| insert("sale", &format!("2025-03-01|{id}|north|")));
    let result = anna.upload(&many.collect::<Vec<_>>()).await;
    assert_eq!(
        result[0],
        "400 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    second.download().await;
    assert_equal(&world, &second, "north").await;
    // A trigger that only one leaf has gives its rows other keys.
    world
        .execute(
            "CREATE FUNCTION renumber() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN NEW.id := NEW.id + 1000000; RETURN NEW; END $$;
             CREATE TRIGGER renumber BEFORE INSERT ON sale_2024 FOR EACH ROW
               EXECUTE FUNCTION renumber()",
        )
        .await;
    let rows = (0..200).map(|id| insert("sale", &format!("2024-04-01|{id}|north|leaf")));
    anna.upload(&rows.collect::<Vec<_>>()).await;
    let leaf = "SELECT count(*), min(id) >= 1000000 FROM sale WHERE note = 'leaf'";
    assert_eq!(world.fixture.query(leaf).await, ["200|t"]);
}

#[tokio::test]
async fn nothing_is_left_on_partitions_when_all_is_removed() {
    for tracking in [TrackingMode::Log, TrackingMode::Row] {
        let spec = TableSpec { tracking, ..sale() };
        let mut world: PostgresWorld = DeployedCentre::new(SALE_DDL, vec![spec]).await;
        // A lost trigger of a leaf is found missing, and what it missed is made up for.
        let mut anna = TestRemote::synced(&world, "anna").await;
        world
            .execute("DO $$ BEGIN EXECUTE format('DROP TRIGGER %I ON sale_2024',
               (SELECT tgname FROM pg_trigger WHERE tgrelid = 'sale_2024'::regclass AND tgname ~ 'truncate')); END $$;
               TRUNCATE sale_2024")
            .await;
        let error = world.centre.load(&world.specs).await.unwrap_err();
        assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
        let report = world.deploy().await.unwrap();
        assert!(report.steps[0].description.contains("sale_2024"));
        anna.download().await;
        assert_equal(&world, &anna, "north").await;
        // A detached table keeps no triggers once somebody deploys.
        world
            .execute("ALTER TABLE sale DETACH PARTITION sale_2024")
            .await;
        world.deploy().await.unwrap();
        let left = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'sale_2024'::regclass";
        assert_eq!(world.fixture.query(left).await, ["0"]);
        assert!(world.deploy().await.unwrap().steps.is_empty());
        world.centre.undeploy(false).await.unwrap();
        assert_eq!(world.fixture.traces().await, [] as [&str; 0]);
    }
}

#[tokio::test]
async fn partitions_that_nobody_can_track_are_refused_with_the_way_out() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(&format!(
            "{SALE_DDL};
             CREATE TABLE no_key (id integer, day date) PARTITION BY RANGE (day);
             CREATE TABLE fast (id integer PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE UNLOGGED TABLE fast_1 PARTITION OF fast FOR VALUES FROM (1) TO (2);
             CREATE TABLE far (id integer NOT NULL, x text) PARTITION BY RANGE (id);
             ALTER TABLE far ADD CONSTRAINT far_key PRIMARY KEY (id);
             CREATE TABLE parent (id integer PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)"
        ))
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    for (table, reason) in [
        ("sale_2024", "it is a partition of sale: publish sale"),
        ("sale_2025_odd", "it is a partition of sale: publish sale"),
        ("no_key", "it has no primary key; declare one"),
        (
            "fast",
            "its partition fast_1 is an unlogged table, which loses its rows in a crash",
        ),
        (
            "parent",
            "child inherits from it, and what is written to one of them is not noticed at the \
             other; a partitioned table can be published",
        ),
        (
            "child",
            "it inherits from parent, and what is written through parent is not noticed; to \
             publish it alone: ALTER TABLE child NO INHERIT parent",
        ),
    ] {
        let specs = [publication("sales", vec![everyone(table)])];
        let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
        assert!(error.to_string().ends_with(reason), "{table}: {error}");
        assert!(!error.hint().is_empty());
    }
    let tables = centre.tables().await.unwrap();
    assert!(
        tables
            .iter()
            .any(|table| table.name == "sale" && table.obstacle.is_none())
    );
    assert!(!tables.iter().any(|table| table.name.starts_with("sale_")));
}
