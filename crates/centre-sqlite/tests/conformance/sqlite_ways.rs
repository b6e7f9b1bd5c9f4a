//! Every way to change a row of an SQLite centre: one statement after the other, each of
//! which has to reach the remotes.

use crate::fixture::SqliteFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{DeployedCentre, everyone, partitioned};

const DDL: &str = "
    CREATE TABLE plan (login TEXT, region TEXT);
    INSERT INTO plan VALUES ('anna', 'north'), ('berta', 'south');
    CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE customer (id INTEGER PRIMARY KEY, region TEXT, name TEXT, email TEXT UNIQUE);
    CREATE TABLE purchase (id INTEGER PRIMARY KEY, region TEXT,
      customer_id INTEGER REFERENCES customer ON DELETE CASCADE ON UPDATE CASCADE, cost NUMERIC(12,2));
    CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, region TEXT,
      customer_id INTEGER REFERENCES customer ON DELETE SET NULL ON UPDATE SET NULL,
      purchase_id INTEGER DEFAULT 1 REFERENCES purchase ON DELETE SET DEFAULT ON UPDATE CASCADE) WITHOUT ROWID;
    CREATE TABLE tree (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES tree ON DELETE CASCADE
      DEFERRABLE INITIALLY DEFERRED, depth INTEGER);
    -- Of the application: what a customer is called is counted, and a child gets its depth.
    CREATE TRIGGER named AFTER UPDATE OF name ON customer BEGIN
      UPDATE product SET name = 'for ' || NEW.name WHERE id = 1;
      INSERT INTO note (id, region, customer_id) VALUES (1000 + NEW.id, NEW.region, NEW.id)
        ON CONFLICT (id) DO UPDATE SET region = excluded.region; END;
    CREATE TRIGGER deeper AFTER UPDATE OF depth ON tree BEGIN
      UPDATE tree SET depth = NEW.depth + 1 WHERE parent = NEW.id; END;
    CREATE VIEW northern AS SELECT id, name FROM customer WHERE region = 'north';
    CREATE TRIGGER northern_update INSTEAD OF UPDATE ON northern BEGIN
      UPDATE customer SET name = NEW.name WHERE id = OLD.id; END;
    CREATE TRIGGER northern_insert INSTEAD OF INSERT ON northern BEGIN
      INSERT INTO customer (id, region, name) VALUES (NEW.id, 'north', NEW.name); END;
    CREATE TRIGGER northern_delete INSTEAD OF DELETE ON northern BEGIN
      DELETE FROM customer WHERE id = OLD.id; END;";

const ROWS: &str = "
    PRAGMA foreign_keys = OFF;
    DELETE FROM product; DELETE FROM customer; DELETE FROM purchase; DELETE FROM note; DELETE FROM tree;
    INSERT INTO product VALUES (1, 'tea'), (2, 'coffee');
    INSERT INTO customer VALUES (1, 'south', 'a', '1@x'), (2, 'north', 'b', '2@x'), (3, 'south', 'c', '3@x'),
      (4, 'north', 'd', NULL);
    INSERT INTO purchase SELECT id, region, id, id FROM customer;
    INSERT INTO note SELECT id, region, id, id FROM customer;
    INSERT INTO tree VALUES (1, NULL, 0), (2, 1, 1), (3, 2, 2), (4, NULL, 0);";

const TABLES: [(&str, bool); 5] = [
    ("product", false),
    ("customer", true),
    ("purchase", true),
    ("note", true),
    ("tree", false),
];

/// `{other}` is another database file.
const WAYS: &[&str] = &[
    "INSERT INTO customer VALUES (90, 'north', 'n', NULL), (91, 'south', 's', NULL)",
    "INSERT INTO customer DEFAULT VALUES",
    "UPDATE customer SET name = name || '!'",
    "UPDATE customer SET region = CASE region WHEN 'north' THEN 'south' ELSE 'north' END",
    "UPDATE customer SET region = NULL WHERE id < 3; UPDATE customer SET region = 'north' WHERE id = 1",
    // One or several rows in the place of others.
    "REPLACE INTO customer VALUES (3, 'north', 'r', '2@x')",
    "INSERT OR REPLACE INTO note VALUES (2, 'south', 1, 1)",
    "UPDATE OR REPLACE customer SET email = '3@x', region = 'north' WHERE id = 1",
    "UPDATE OR IGNORE customer SET id = 2",
    "INSERT OR IGNORE INTO product VALUES (1, 'x'), (3, 'y')",
    "INSERT INTO customer VALUES (2, 'south', 'u', NULL) ON CONFLICT (id) DO UPDATE SET region = excluded.region",
    "INSERT INTO customer VALUES (9, 'south', 'u', '2@x') ON CONFLICT (email) DO UPDATE SET id = excluded.id
       WHERE customer.id = 2",
    "INSERT INTO product VALUES (1, 'x'), (7, 'y') ON CONFLICT DO NOTHING",
    // Sets.
    "UPDATE customer SET region = p.name FROM product p WHERE p.id = customer.id",
    "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
       INSERT INTO product SELECT i, 'n' || i FROM n",
    "INSERT INTO product SELECT id + 10, name FROM product; DELETE FROM product WHERE id IN (SELECT id FROM tree)",
    "DELETE FROM product",
    // Keys.
    "UPDATE customer SET id = id + 100 WHERE id < 3",
    "UPDATE product SET rowid = rowid + 50",
    "UPDATE purchase SET id = -id",
    // Cascades.
    "DELETE FROM customer WHERE id > 1",
    "DELETE FROM purchase WHERE id > 1",
    "DELETE FROM tree WHERE id = 1",
    "BEGIN; DELETE FROM tree WHERE id = 1; INSERT INTO tree VALUES (1, NULL, 5); COMMIT",
    "PRAGMA recursive_triggers = ON; UPDATE tree SET depth = 7 WHERE id = 1",
    "PRAGMA recursive_triggers = ON; REPLACE INTO customer VALUES (2, 'south', 'r', '3@x')",
    "PRAGMA foreign_keys = OFF; DELETE FROM customer WHERE id = 2; UPDATE purchase SET customer_id = 77 WHERE id = 3",
    "PRAGMA ignore_check_constraints = ON; PRAGMA defer_foreign_keys = ON; UPDATE customer SET id = 50 WHERE id = 4",
    // Savepoints.
    "BEGIN; UPDATE customer SET name = 'kept'; SAVEPOINT a; DELETE FROM note; ROLLBACK TO a; RELEASE a;
       SAVEPOINT b; UPDATE customer SET region = 'south' WHERE id = 2; RELEASE b; COMMIT",
    "SAVEPOINT outer_one; SAVEPOINT inner_one; DELETE FROM product; RELEASE inner_one; ROLLBACK TO outer_one;
       INSERT INTO product VALUES (60, 'after'); RELEASE outer_one",
    "BEGIN; DELETE FROM note; ROLLBACK",
    "BEGIN EXCLUSIVE; UPDATE product SET name = 'x'; COMMIT",
    // Views, other files, temporary tables of the same name.
    "UPDATE northern SET name = 'seen'; INSERT INTO northern VALUES (70, 'new'); DELETE FROM northern WHERE id = 4",
    "ATTACH '{other}' AS other; CREATE TABLE IF NOT EXISTS other.product (id INTEGER PRIMARY KEY, name TEXT);
       INSERT INTO other.product VALUES (500 + (SELECT count(*) FROM other.product), 'other');
       INSERT INTO main.product SELECT * FROM other.product; DETACH other",
    "CREATE TEMP TABLE product (id, name); INSERT INTO product VALUES (8, 'temporary');
       INSERT INTO main.product VALUES (9, 'real')",
    "CREATE TEMP TRIGGER t AFTER INSERT ON main.product BEGIN UPDATE customer SET region = 'south' WHERE id = 2; END;
       INSERT INTO product VALUES (10, 'x')",
    // The file itself.
    "UPDATE product SET name = 'before'; VACUUM; UPDATE product SET name = 'after' WHERE id = 1",
    "REINDEX; ANALYZE; UPDATE customer SET email = 'new@x' WHERE id = 4",
];

type SqliteWorld = DeployedCentre<SqliteFixture>;

async fn converge(world: &SqliteWorld, remotes: &mut [(TestRemote, &str)], way: &str) {
    for (remote, region) in remotes {
        remote.download().await;
        for (table, by_region) in TABLES {
            let condition = match by_region {
                true => format!("WHERE region = '{region}'"),
                false => String::new(),
            };
            let mut rows = world
                .fixture
                .query(&format!("SELECT * FROM {table} {condition}"))
                .await;
            rows.sort();
            let held = remote.rows(table);
            let held: Vec<String> = held.iter().map(|row| row.replace(".00", "")).collect();
            assert_eq!(held, rows, "{table} of {region} after: {way}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_change_a_row_of_sqlite_reaches_remotes() {
    let mine = "SELECT region FROM plan WHERE login = {s.username}";
    let tables = TABLES.map(|(table, by_region)| match by_region {
        true => partitioned(table, &["region"], mine),
        false => everyone(table),
    });
    let world = SqliteWorld::new(DDL, tables.to_vec()).await;
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.db").display().to_string();
    let mut remotes = [
        (TestRemote::synced(&world, "anna").await, "north"),
        (TestRemote::synced(&world, "berta").await, "south"),
    ];
    for way in WAYS {
        world.execute(ROWS).await;
        converge(&world, &mut remotes, ROWS).await;
        world.execute(&way.replace("{other}", &other)).await;
        converge(&world, &mut remotes, way).await;
    }
}
