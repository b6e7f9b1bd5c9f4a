//! Every way to change a row: one statement after the other, each of which has to reach the
//! remotes, whatever the triggers fire by.

use tidewater_centre::{TableSpec, TrackingMode};

use super::{PostgresWorld, major_version};
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::TestRemote;
use tidewater_centre_conformance::world::{DeployedCentre, everyone, partitioned};

/// Tables that refer to each other in every way, and one of two levels of partitions.
const WAYS_DDL: &str = "
    CREATE TABLE plan (login text, region text);
    INSERT INTO plan VALUES ('anna', 'north'), ('berta', 'south');
    CREATE TABLE product (id integer PRIMARY KEY, name text);
    CREATE TABLE customer (id integer PRIMARY KEY, region text, name text, email text UNIQUE);
    CREATE TABLE purchase (id integer PRIMARY KEY, region text,
      customer_id integer REFERENCES customer ON DELETE CASCADE ON UPDATE CASCADE, cost numeric(12,2));
    CREATE TABLE note (id integer PRIMARY KEY, region text,
      customer_id integer REFERENCES customer ON DELETE SET NULL ON UPDATE SET NULL,
      purchase_id integer DEFAULT 1 REFERENCES purchase ON DELETE SET DEFAULT ON UPDATE CASCADE);
    CREATE TABLE sale (id integer, day date, region text, note text, PRIMARY KEY (id, day))
      PARTITION BY RANGE (day);
    CREATE TABLE sale_old PARTITION OF sale FOR VALUES FROM (MINVALUE) TO ('2025-01-01');
    CREATE TABLE sale_new PARTITION OF sale FOR VALUES FROM ('2025-01-01') TO (MAXVALUE)
      PARTITION BY HASH (id);
    CREATE TABLE sale_even PARTITION OF sale_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE sale_odd PARTITION OF sale_new FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    CREATE TABLE staging (id integer, region text, name text);
    INSERT INTO staging VALUES (1, 'south', 'one'), (2, 'north', 'two'), (90, 'north', 'ninety');";

/// The rows that every way starts from.
const ROWS: &str = "
    TRUNCATE product, customer, purchase, note, sale;
    INSERT INTO product VALUES (1, 'tea'), (2, 'coffee');
    INSERT INTO customer SELECT i, CASE i % 2 WHEN 0 THEN 'north' ELSE 'south' END, 'c' || i, i || '@x'
      FROM generate_series(1, 8) i;
    INSERT INTO purchase SELECT i, region, i, i FROM customer, generate_series(1, 8) i WHERE customer.id = i;
    INSERT INTO note SELECT i, region, i, i FROM purchase, generate_series(1, 8) i WHERE purchase.id = i;
    INSERT INTO sale SELECT i, CASE WHEN i > 4 THEN '2025-06-01' ELSE '2024-06-01' END::date,
      CASE i % 2 WHEN 0 THEN 'north' ELSE 'south' END, 's' || i FROM generate_series(1, 8) i;";

const TABLES: [(&str, bool); 5] = [
    ("product", false),
    ("customer", true),
    ("purchase", true),
    ("note", true),
    ("sale", true),
];

/// Two remotes of different regions.
struct Pair {
    world: PostgresWorld,
    anna: TestRemote,
    berta: TestRemote,
}

impl Pair {
    async fn new(tracking: TrackingMode) -> Pair {
        let mine = "SELECT region FROM plan WHERE login = {s.username}";
        let spec = |&(table, by_region): &(&str, bool)| TableSpec {
            tracking,
            ..match by_region {
                true => partitioned(table, &["region"], mine),
                false => everyone(table),
            }
        };
        let world: PostgresWorld =
            DeployedCentre::new(WAYS_DDL, TABLES.iter().map(spec).collect()).await;
        world.execute(ROWS).await;
        let anna = TestRemote::synced(&world, "anna").await;
        let berta = TestRemote::synced(&world, "berta").await;
        Pair { world, anna, berta }
    }

    /// Downloads, and compares what both have with what the centre has for them.
    async fn converge(&mut self, way: &str) {
        for (remote, region) in [(&mut self.anna, "north"), (&mut self.berta, "south")] {
            remote.download().await;
            for (table, by_region) in TABLES {
                let rows = match by_region {
                    true => format!("SELECT * FROM {table} t WHERE region = '{region}'"),
                    false => format!("SELECT * FROM {table} t"),
                };
                let mut rows = self.world.fixture.query(&rows).await;
                rows.sort();
                assert_eq!(remote.rows(table), rows, "{table} of {region} after: {way}");
            }
        }
    }

    /// Runs something on the rows that every way starts from.
    async fn run(&mut self, way: &str) {
        self.world.execute(ROWS).await;
        self.converge(ROWS).await;
        self.world.execute(way).await;
        self.converge(way).await;
    }
}

/// What every version that is supported has.
const WAYS: &[&str] = &[
    "INSERT INTO customer VALUES (90, 'north', 'n', NULL), (91, 'south', 's', NULL)",
    "UPDATE customer SET name = name || '!'",
    "UPDATE customer SET region = CASE region WHEN 'north' THEN 'south' ELSE 'north' END",
    "UPDATE customer SET region = NULL WHERE id < 4; UPDATE customer SET region = 'north' WHERE id = 1",
    "DELETE FROM note; DELETE FROM purchase",
    // Copied, with rows left out and with rows frozen.
    "COPY customer (id, region, name) FROM PROGRAM 'printf ''90\tnorth\tn\n91\tsouth\ts\n'''",
    "COPY product FROM PROGRAM 'printf ''8\ta\n9\tb\n''' WHERE id > 8",
    "BEGIN; TRUNCATE product; COPY product FROM PROGRAM 'printf ''8\ta\n''' WITH (FREEZE); COMMIT",
    // Inserted or updated.
    "INSERT INTO customer (id, region, name) SELECT * FROM staging
       ON CONFLICT (id) DO UPDATE SET region = excluded.region, name = excluded.name",
    "INSERT INTO customer (id, region, name) SELECT * FROM staging ON CONFLICT DO NOTHING",
    "INSERT INTO customer VALUES (90, 'north', 'n', '1@x') ON CONFLICT (email) DO UPDATE SET id = excluded.id",
    "INSERT INTO sale VALUES (1, '2024-06-01', 'north', 'x'), (90, '2025-06-01', 'north', 'y')
       ON CONFLICT (id, day) DO UPDATE SET region = excluded.region, note = excluded.note",
    "UPDATE customer c SET name = s.name, region = s.region FROM staging s WHERE s.id = c.id",
    "DELETE FROM sale USING staging s WHERE s.id = sale.id",
    // Several in one statement.
    "WITH gone AS (DELETE FROM product RETURNING *), more AS (INSERT INTO product VALUES (5, 'five') RETURNING id)
       INSERT INTO product SELECT id + 10, name FROM gone",
    "WITH moved AS (UPDATE customer SET region = 'north' WHERE id < 4 RETURNING id),
       renamed AS (UPDATE customer SET name = 'r' WHERE id > 6)
       UPDATE note SET region = 'north' FROM moved WHERE note.customer_id = moved.id",
    // Keys.
    "UPDATE product SET id = id + 7",
    "UPDATE customer SET id = id + 100 WHERE id < 3",
    "UPDATE purchase SET id = -id",
    // Cascades of each kind.
    "DELETE FROM customer WHERE id IN (2, 3)",
    "DELETE FROM customer WHERE id > 1",
    "DELETE FROM purchase WHERE id > 1",
    // Emptied.
    "TRUNCATE product",
    "TRUNCATE purchase CASCADE",
    "TRUNCATE customer RESTART IDENTITY CASCADE",
    "TRUNCATE sale_old",
    "TRUNCATE sale_new; INSERT INTO sale VALUES (70, '2025-01-01', 'north', 'after')",
    "TRUNCATE sale",
    "BEGIN; TRUNCATE sale_even, sale_odd; INSERT INTO sale_new VALUES (71, '2025-01-01', 'north', ''); COMMIT",
    // Leaves, and rows that move between them.
    "INSERT INTO sale_old VALUES (80, '2024-01-01', 'north', ''); DELETE FROM sale_odd",
    "UPDATE sale SET day = '2025-01-01' WHERE id < 3",
    "UPDATE sale SET day = '2024-01-01', region = 'north'",
    "UPDATE sale_new SET id = id + 31, region = CASE region WHEN 'north' THEN 'south' ELSE 'north' END",
    "UPDATE sale_old SET id = id + 10",
    // Savepoints: what was rolled back is not there, what was released is.
    "BEGIN; UPDATE customer SET name = 'kept'; SAVEPOINT a; DELETE FROM note; ROLLBACK TO a;
       SAVEPOINT b; UPDATE customer SET name = 'b' WHERE id = 2; RELEASE b;
       SAVEPOINT c; TRUNCATE product; ROLLBACK TO c; COMMIT",
    "DO $$ BEGIN FOR i IN 1..300 LOOP
       BEGIN
         UPDATE product SET name = 'n' || i WHERE id = 1;
         IF i % 3 > 0 THEN RAISE EXCEPTION 'undone'; END IF;
         INSERT INTO product VALUES (1000 + i, 'kept');
       EXCEPTION WHEN raise_exception THEN NULL; END;
     END LOOP; END $$",
    // Nothing at all.
    "UPDATE customer SET name = 'x' WHERE false; DELETE FROM sale WHERE false",
    "BEGIN; DELETE FROM note; UPDATE customer SET region = 'south'; ROLLBACK",
    // Cursors, functions, views, other settings of the session.
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM customer WHERE id = 4 FOR UPDATE; MOVE c;
       UPDATE customer SET region = 'south' WHERE CURRENT OF c; CLOSE c; COMMIT",
    "CREATE OR REPLACE VIEW northern AS SELECT * FROM customer WHERE region = 'north';
     UPDATE northern SET region = 'south' WHERE id = 2; INSERT INTO northern VALUES (90, 'north', 'v', NULL)",
    "SET search_path = pg_temp; CREATE TEMP TABLE product (id integer, name text);
     INSERT INTO product VALUES (7, 'temporary'); INSERT INTO public.product VALUES (8, 'real')",
    "SET DateStyle = 'German, DMY'; SET IntervalStyle = sql_standard; SET extra_float_digits = -15;
     UPDATE public.sale SET id = id + 20",
    "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE customer SET region = 'north' WHERE id = 1; COMMIT",
];

const MERGES: &[&str] = &[
    "MERGE INTO customer c USING staging s ON c.id = s.id
       WHEN MATCHED AND s.id = 2 THEN DELETE
       WHEN MATCHED THEN UPDATE SET name = s.name, region = s.region
       WHEN NOT MATCHED THEN INSERT (id, region, name) VALUES (s.id, s.region, s.name)",
    "MERGE INTO product p USING staging s ON p.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name",
    "MERGE INTO sale t USING staging s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = s.name",
    "MERGE INTO sale t USING staging s ON t.id = s.id WHEN MATCHED THEN DELETE",
    // To other leaves.
    "MERGE INTO sale t USING staging s ON t.id = s.id WHEN MATCHED THEN UPDATE SET day = '2026-01-01'",
    "MERGE INTO sale t USING staging s ON t.id = s.id
       WHEN MATCHED AND s.id = 1 THEN UPDATE SET day = '2026-01-01', region = s.region
       WHEN MATCHED THEN DELETE
       WHEN NOT MATCHED THEN INSERT VALUES (s.id, '2024-01-01', s.region, s.name)",
];

async fn every_way(tracking: TrackingMode) {
    let mut pair = Pair::new(tracking).await;
    for way in WAYS {
        pair.run(way).await;
    }
    if major_version(&pair.world).await >= 15 {
        for way in MERGES {
            pair.run(way).await;
        }
    }
}

#[tokio::test]
async fn every_way_to_change_a_row_reaches_remotes() {
    every_way(TrackingMode::Log).await;
}

#[tokio::test]
async fn every_way_to_change_a_row_reaches_remotes_by_row_triggers() {
    every_way(TrackingMode::Row).await;
}
