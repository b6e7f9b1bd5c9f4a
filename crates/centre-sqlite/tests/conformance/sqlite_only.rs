//! What only SQLite does: rows that displace others, rowids, conflict clauses, values
//! of any class in any column.

use rusqlite::Connection;

use tidewater_centre::{CentreError, UploadOutcome};

use crate::fixture::SqliteFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, delete, insert, update};
use tidewater_centre_conformance::scripting::script;
use tidewater_centre_conformance::world::{DeployedCentre, SHOP_DDL, everyone, partitioned, shop};

type SqliteWorld = DeployedCentre<SqliteFixture>;

const HELD: &str = "SELECT part FROM held WHERE login = {s.username}";

/// One partitioned table `t(id, part, a, b)` of the given DDL, and a remote for each
/// of the partitions `x`, `y` and `z`.
async fn three_partitions(ddl: &str) -> (SqliteWorld, Vec<TestRemote>) {
    let ddl = format!(
        "CREATE TABLE held (login TEXT, part TEXT);
         INSERT INTO held VALUES ('x', 'x'), ('y', 'y'), ('z', 'z'); {ddl}; {RESET}"
    );
    let world = SqliteWorld::new(&ddl, vec![partitioned("t", &["part"], HELD)]).await;
    let mut remotes = Vec::new();
    for user in ["x", "y", "z"] {
        remotes.push(TestRemote::synced(&world, user).await);
    }
    (world, remotes)
}

/// The rows of [`three_partitions`] again.
const RESET: &str = "DELETE FROM t; INSERT INTO t (id, part, a, b) VALUES (1, 'x', 'a1', 'b1'),
    (2, 'y', 'a2', 'b2'), (3, 'z', 'a3', 'b3');";

/// Every remote ends with the centre's rows of its partition, and was sent nothing else.
async fn converges(world: &SqliteWorld, remotes: &mut [TestRemote]) {
    for remote in remotes {
        remote.download().await;
        let sql = format!(
            "SELECT id, part, a, b FROM t WHERE part = '{}'",
            remote.user
        );
        let mut expected = world.fixture.query(&sql).await;
        expected.sort();
        assert_eq!(remote.rows("t"), expected, "{}", remote.user);
    }
}

const TABLES: [&str; 6] = [
    "CREATE TABLE t (id INTEGER PRIMARY KEY, part TEXT NOT NULL, a TEXT UNIQUE, b TEXT)",
    "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, part TEXT NOT NULL, a TEXT COLLATE NOCASE,
         b TEXT, UNIQUE (a)) WITHOUT ROWID",
    "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, part TEXT NOT NULL, a TEXT, b TEXT);
     CREATE UNIQUE INDEX by_a ON t (lower(a) DESC) WHERE b IS NOT NULL",
    "CREATE TABLE t (id INT NOT NULL, part TEXT NOT NULL, a TEXT, b TEXT, PRIMARY KEY (id),
         UNIQUE (a, part) ON CONFLICT REPLACE, UNIQUE (a))",
    "CREATE TABLE t (id INTEGER PRIMARY KEY, part TEXT NOT NULL, a TEXT, b TEXT);
     CREATE UNIQUE INDEX by_a ON t ((a || '-' || coalesce(b, '')), a COLLATE NOCASE);
     CREATE UNIQUE INDEX by_a_alone ON t (a)",
    "CREATE TABLE t (id INTEGER PRIMARY KEY, part TEXT NOT NULL, a TEXT NOT NULL DEFAULT 'a2' UNIQUE,
         b TEXT)",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_change_a_row_reaches_its_partitions() {
    let changes = [
        "REPLACE INTO t VALUES (9, 'x', 'a2', 'b2')",
        "INSERT OR REPLACE INTO t VALUES (2, 'x', 'a9', 'b9')",
        "REPLACE INTO t VALUES (2, 'z', 'a3', 'b3')",
        "UPDATE OR REPLACE t SET a = 'a3', b = 'b3' WHERE id = 1",
        "UPDATE OR REPLACE t SET id = 3 WHERE id = 1",
        "INSERT INTO t VALUES (2, 'x', 'a8', 'b8')
             ON CONFLICT (id) DO UPDATE SET part = 'z', a = excluded.a",
        "INSERT OR IGNORE INTO t VALUES (3, 'x', 'a7', 'b7')",
        "UPDATE t SET part = CASE part WHEN 'x' THEN 'y' ELSE 'x' END",
        // NULL becomes the default, where there is one.
        "INSERT OR REPLACE INTO t VALUES (9, 'x', NULL, 'b9')",
        "UPDATE OR REPLACE t SET a = NULL WHERE id = 1",
        "UPDATE t SET id = id + 10",
        "DELETE FROM t",
        "UPDATE t SET b = NULL WHERE id = 3; UPDATE t SET a = 'a5' WHERE id = 2;
         REPLACE INTO t VALUES (3, 'y', 'a5', 'b5')",
        "BEGIN; REPLACE INTO t VALUES (1, 'y', 'a2', 'b2'); DELETE FROM t WHERE id = 1; COMMIT",
        "PRAGMA recursive_triggers = ON; REPLACE INTO t VALUES (9, 'x', 'a2', 'b2')",
    ];
    for table in TABLES {
        let (world, mut remotes) = three_partitions(table).await;
        for change in changes {
            world.execute(RESET).await;
            converges(&world, &mut remotes).await;
            // Not every table has every constraint: what fails changes nothing.
            let _ = world.fixture.try_execute(change).await;
            converges(&world, &mut remotes).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn setting_the_rowid_is_changing_the_key() {
    let (world, mut remotes) = three_partitions(TABLES[0]).await;
    world.execute("UPDATE t SET rowid = 77 WHERE id = 1").await;
    converges(&world, &mut remotes).await;
    world
        .execute("UPDATE OR REPLACE t SET _rowid_ = 2 WHERE id = 77")
        .await;
    converges(&world, &mut remotes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cascades_are_tracked() {
    let (world, mut remotes) = three_partitions(
        "CREATE TABLE root (id INTEGER PRIMARY KEY);
         INSERT INTO root VALUES (1), (2), (3);
         CREATE TABLE t (id INTEGER PRIMARY KEY REFERENCES root ON DELETE CASCADE ON UPDATE CASCADE,
             part TEXT NOT NULL, a TEXT, b TEXT)",
    )
    .await;
    world
        .execute("DELETE FROM root WHERE id = 1; UPDATE root SET id = 20 WHERE id = 2")
        .await;
    converges(&world, &mut remotes).await;
    assert_eq!(remotes[0].rows("t"), [] as [&str; 0]);
    assert_eq!(remotes[1].rows("t"), ["20|y|a2|b2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_never_displaces_another_row() {
    // The application's own conflict clauses must not let a remote remove what it does
    // not see.
    for clause in ["REPLACE", "IGNORE", "FAIL", "ABORT"] {
        let (world, mut remotes) = three_partitions(&format!(
            "CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT {clause}, part TEXT NOT NULL,
                 a TEXT UNIQUE ON CONFLICT {clause}, b TEXT)"
        ))
        .await;
        let result = remotes[0]
            .upload(&[
                insert("t", "9|x|a2|b"),
                update("t", "1|x|a1|b1", "1|x|a3|b1"),
                insert("t", "10|x|a10|b"),
            ])
            .await;
        assert_eq!(
            result[0], "1 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused",
            "{clause}: {result:?}"
        );
        assert!(result[1..].iter().all(|line| line.contains("key_in_use")));
        let count = "SELECT group_concat(id || part) FROM (SELECT * FROM t ORDER BY id)";
        assert_eq!(world.fixture.query(count).await, ["1x,2y,3z,10x"]);
    }
}

/// What a trigger does to a statement of a script, it does to the row alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_ends_the_transaction_is_refused_for_its_row_alone() {
    for columns in [
        "VALUES ({r.id}, {r.a})",
        "SELECT id, a FROM {rows} AS r WHERE true",
    ] {
        let ddl = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);
             CREATE TRIGGER no_x BEFORE INSERT ON t WHEN NEW.a = 'x' BEGIN
                 SELECT RAISE(ROLLBACK, 'no x here'); END;";
        let mut world = SqliteWorld::new(ddl, vec![everyone("t")]).await;
        let insert_rows = format!("INSERT INTO t (id, a) {columns}");
        world.specs[0].scripts = vec![script("t", "upload_insert", &insert_rows)];
        world.deploy().await.unwrap();
        let mut anna = TestRemote::synced(&world, "anna").await;
        let value = |id| if id % 3 == 0 { "x" } else { "fine" };
        let rows = (1..=6).map(|id| insert("t", &format!("{id}|{}", value(id))));
        let result = anna.upload(&rows.collect::<Vec<_>>()).await;
        let counts = "4 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused";
        assert_eq!(result[0], counts, "{columns}: {result:?}");
        for line in &result[1..] {
            assert!(line.contains("no x here"), "{columns}: {result:?}");
        }
        let rows = world.fixture.query("SELECT group_concat(id) FROM t").await;
        assert_eq!(rows, ["1,2,4,5"], "{columns}");
    }
}

/// SQLite does not say which foreign key refuses what a script writes, and in which table.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_that_refuses_a_script_is_told_without_a_table() {
    let ddl = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE line (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent(id));
         CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);
         INSERT INTO parent VALUES (1); INSERT INTO line VALUES (1, 1);
         INSERT INTO t VALUES (1, 'parent')";
    let mut world = SqliteWorld::new(ddl, vec![everyone("t")]).await;
    world.specs[0].scripts = vec![
        script("t", "upload_insert", "INSERT INTO line VALUES ({r.id}, 7)"),
        script("t", "upload_delete", "DELETE FROM parent WHERE id = {r.id}"),
    ];
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[insert("t", "2|new"), delete("t", "1|parent")])
        .await;
    let refused: Vec<&String> = result
        .iter()
        .filter(|it| it.contains("refused t"))
        .collect();
    assert_eq!(refused.len(), 2, "{result:?}");
    for line in refused {
        let reason = "a foreign key refuses what the script writes: a row that is referred to";
        assert!(line.contains(reason), "{result:?}");
    }
}

/// However many there are, the list is run anew a few times only.
#[tokio::test(flavor = "multi_thread")]
async fn many_rows_that_end_the_transaction_are_refused() {
    let world = SqliteWorld::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);
         CREATE TRIGGER no_x BEFORE INSERT ON t WHEN NEW.a = 'x' BEGIN
             SELECT RAISE(ROLLBACK, 'no x here'); END;",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let value = |id| if id % 3 == 0 { "fine" } else { "x" };
    let rows = (0..3_000).map(|id| insert("t", &format!("{id}|{}", value(id))));
    let result = anna.upload(&rows.collect::<Vec<_>>()).await;
    let counts = "1000 inserted, 0 updated, 0 deleted, 0 conflicts, 2000 refused";
    assert_eq!(result[0], counts);
    assert_eq!(
        world.fixture.query("SELECT count(*) FROM t").await,
        ["1000"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_ends_the_transaction_is_refused_alone() {
    let world = SqliteWorld::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);
         CREATE TABLE audit (a TEXT);
         CREATE TRIGGER no_x BEFORE INSERT ON t WHEN NEW.a = 'x' BEGIN
             INSERT INTO audit VALUES ('seen'); SELECT RAISE(ROLLBACK, 'no x here'); END;
         CREATE TRIGGER no_y AFTER INSERT ON t WHEN NEW.a = 'y' BEGIN
             INSERT INTO audit VALUES ('seen'); SELECT RAISE(FAIL, 'no y here'); END;
         CREATE TRIGGER no_z BEFORE INSERT ON t WHEN NEW.a = 'z' BEGIN
             SELECT RAISE(IGNORE); END;",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let uploads = vec![
        berta.next_upload(&[insert("t", "1|fine")]),
        anna.next_upload(&[
            insert("t", "2|fine"),
            insert("t", "3|x"),
            insert("t", "4|y"),
            insert("t", "5|z"),
            insert("t", "6|x"),
            insert("t", "7|fine"),
        ]),
    ];
    let outcomes = anna.worker.apply(uploads).await.unwrap();
    let [
        UploadOutcome::Applied { result: first, .. },
        UploadOutcome::Applied { result, .. },
    ] = outcomes.as_slice()
    else {
        panic!("{outcomes:?}");
    };
    assert_eq!((first.inserts, first.refused), (1, 0));
    assert_eq!((result.inserts, result.refused), (2, 4));
    let lines = tidewater_centre_conformance::remote::result_text(&anna.schema, result);
    let reason = |key: &str| lines.iter().find(|line| line.contains(key)).unwrap();
    assert!(
        reason("[3]").ends_with("constraint: no x here"),
        "{lines:?}"
    );
    assert!(
        reason("[4]").ends_with("constraint: no y here"),
        "{lines:?}"
    );
    assert!(reason("[5]").contains("ignored"), "{lines:?}");
    let rows = world.fixture.query("SELECT id FROM t ORDER BY 1").await;
    assert_eq!(rows, ["1", "2", "7"]);
    assert_eq!(
        world.fixture.query("SELECT * FROM audit").await,
        [] as [&str; 0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_need_each_other_are_taken_together() {
    let world = SqliteWorld::new(
        "CREATE TABLE hen (id INTEGER PRIMARY KEY,
             egg INTEGER NOT NULL REFERENCES egg DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE egg (id INTEGER PRIMARY KEY,
             hen INTEGER NOT NULL REFERENCES hen DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE nest (id INTEGER PRIMARY KEY, hen TEXT NOT NULL REFERENCES wild_hen,
             tree INTEGER NOT NULL REFERENCES tree DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE wild_hen (id TEXT PRIMARY KEY,
             nest INTEGER NOT NULL REFERENCES nest DEFERRABLE INITIALLY DEFERRED) WITHOUT ROWID;
         CREATE TABLE wild_egg (id TEXT PRIMARY KEY, hen TEXT NOT NULL REFERENCES wild_hen,
             nest INTEGER NOT NULL REFERENCES nest DEFERRABLE INITIALLY DEFERRED) WITHOUT ROWID;
         CREATE TABLE tree (id INTEGER PRIMARY KEY);
         CREATE TABLE department (id INTEGER PRIMARY KEY, head INTEGER REFERENCES employee);
         CREATE TABLE employee (id INTEGER PRIMARY KEY,
             department INTEGER REFERENCES department, name TEXT CHECK (name <> 'nobody'),
             tree INTEGER REFERENCES tree);",
        [
            "hen",
            "egg",
            "nest",
            "wild_hen",
            "wild_egg",
            "tree",
            "department",
            "employee",
        ]
        .map(everyone)
        .to_vec(),
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let both = [insert("hen", "1|1"), insert("egg", "1|1")];
    assert_eq!(anna.upload(&both).await.len(), 1);
    // Also beside one that can never be taken.
    let result = anna
        .upload(&[
            insert("hen", "2|2"),
            insert("egg", "2|2"),
            insert("egg", "3|99"),
        ])
        .await;
    assert!(
        result
            .iter()
            .any(|line| line.starts_with("refused egg [3] Insert foreign_key")),
        "{result:?}"
    );
    let eggs = world.fixture.query("SELECT id FROM egg ORDER BY 1").await;
    assert_eq!(eggs, ["1", "2"], "{result:?}");
    let result = anna
        .upload(&[delete("hen", "1|1"), delete("egg", "1|1")])
        .await;
    assert_eq!(result.len(), 1, "{result:?}");
    // Also where tables have no rowids by which SQLite could tell what violates a key.
    let result = anna
        .upload(&[
            insert("tree", "1"),
            insert("nest", "1|a|1"),
            insert("wild_hen", "a|1"),
            insert("wild_egg", "a|a|1"),
            insert("nest", "2|a|99"),
            insert("wild_egg", "b|a|2"),
        ])
        .await;
    let counts = "4 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused";
    assert_eq!(result[0], counts, "{result:?}");
    // The remote wrote one of them in two steps, of which nothing is left.
    let result = anna
        .upload(&[
            insert("department", "1|1"),
            insert("employee", "1|1|Ada|NULL"),
            insert("employee", "2|1|nobody|NULL"),
            insert("department", "2|3"),
            insert("employee", "3|2|nobody|NULL"),
        ])
        .await;
    let counts = "2 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused";
    assert_eq!(result[0], counts, "{result:?}");
    // Whoever refers to what there is not keeps nobody from it for whom he is not needed.
    let result = anna
        .upload(&[
            insert("department", "4|4"),
            insert("employee", "4|4|Ada|1"),
            insert("employee", "5|4|Bob|99"),
            insert("employee", "6|4|Cleo|1"),
            insert("department", "7|7"),
            insert("employee", "7|7|Dora|99"),
            insert("employee", "8|7|Emil|1"),
        ])
        .await;
    let counts = "3 inserted, 0 updated, 0 deleted, 0 conflicts, 4 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let result = anna
        .upload(&[
            delete("department", "1|1"),
            delete("employee", "1|1|Ada|NULL"),
        ])
        .await;
    assert_eq!(result.len(), 1, "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_wrong_class_travel_as_they_are() {
    let world = SqliteWorld::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, d DATE, amount DECIMAL(10,2),
             exact DECIMAL_TEXT(40,3))",
        vec![everyone("t")],
    )
    .await;
    world
        .execute(
            "INSERT INTO t VALUES (1, 'many', 'tomorrow', 'much', 'x'),
                 (2, 7, '2026-01-02', 12345678.25, '1234567890123456789012345.678')",
        )
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let rows = [
        "1|many|tomorrow|much|x",
        "2|7|2026-01-02|12345678.25|1234567890123456789012345.678",
    ];
    assert_eq!(anna.rows("t"), rows);
    let result = anna
        .upload(&[
            // What was wrong may stay wrong, and be corrected.
            update("t", rows[0], "1|8|tomorrow|much|x"),
            update("t", rows[1], "2|7|2026-01-02|12345678901234567.25|0.001"),
            insert("t", "3|1|2026-02-30|1|1"),
        ])
        .await;
    assert_eq!(
        result[0],
        "0 inserted, 1 updated, 0 deleted, 0 conflicts, 2 refused"
    );
    assert!(result[1].contains("2026-02-30"), "{result:?}");
    assert!(
        result[2].contains("amount") && result[2].contains("15"),
        "{result:?}"
    );
    // More digits than the scale are rounded, and the remote learns of it.
    let result = anna
        .upload(&[update("t", rows[1], "2|7|2026-01-02|1.005|0.001")])
        .await;
    assert_eq!(result[1..], ["made t: 2|7|2026-01-02|1.01|0.001"]);
    let mut berta = TestRemote::synced(&world, "berta").await;
    let expected = ["1|8|tomorrow|much|x", "2|7|2026-01-02|1.01|0.001"];
    assert_eq!(berta.rows("t"), expected);
    assert_eq!(berta.download().await.rows(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_download_writes_nothing() {
    let world = SqliteWorld::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let watcher = world.fixture.connection();
    let version = || -> i64 {
        let version = watcher.query_row("PRAGMA data_version", [], |row| row.get(0));
        version.unwrap()
    };
    let before = version();
    assert_eq!(anna.download().await.checkpoint(), None);
    assert_eq!(version(), before);
    // A day later the watermark is made new, so that it outlives the log.
    anna.now_ms += 25 * 60 * 60 * 1000;
    assert!(anna.download().await.checkpoint().is_some());
    assert_eq!(anna.download().await.checkpoint(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_copy_is_noticed() {
    let world = SqliteWorld::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let copy = tempfile::tempdir().unwrap();
    let saved = copy.path().join("saved.db");
    world
        .execute(&format!("VACUUM INTO '{}'", saved.display()))
        .await;
    world
        .execute("INSERT INTO customer VALUES (90, 'north', 'Lost', NULL)")
        .await;
    anna.download().await;
    assert_eq!(anna.rows("customer").len(), 3);
    // Back to the copy: the same numbers are given out again, for another row.
    let mut target = world.fixture.connection();
    let source = Connection::open(&saved).unwrap();
    let backup = rusqlite::backup::Backup::new(&source, &mut target).unwrap();
    backup
        .run_to_completion(1000, std::time::Duration::ZERO, None)
        .unwrap();
    drop(backup);
    drop(target);
    world
        .execute("INSERT INTO customer VALUES (91, 'north', 'Found', NULL)")
        .await;
    let received = anna.download().await;
    assert!(received.replaced.contains(&"customer".to_owned()));
    assert!(
        anna.rows("customer")
            .contains(&"91|north|Found|NULL".to_owned())
    );
    assert!(
        !anna
            .rows("customer")
            .contains(&"90|north|Lost|NULL".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_triggers_are_told_and_made_good() {
    let mut world = SqliteWorld::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // A tool rebuilds the table, and with it the triggers vanish.
    world
        .execute(
            "PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON; BEGIN;
             CREATE TABLE product_new (product_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
             INSERT INTO product_new SELECT * FROM product;
             DROP TABLE product; ALTER TABLE product_new RENAME TO product;
             UPDATE product SET name = 'changed' WHERE product_id = 1; COMMIT;",
        )
        .await;
    let error = world.centre.load(&world.specs).await.unwrap_err();
    assert!(error.to_string().contains("product"), "{error}");
    world.deploy().await.unwrap();
    let received = anna.download().await;
    assert_eq!(received.replaced, ["product"]);
    assert_eq!(anna.rows("product"), ["1|changed", "2|coffee"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_index_made_while_serving_skips_no_change() {
    let (mut world, mut remotes) = three_partitions(TABLES[0]).await;
    world
        .execute(
            "CREATE UNIQUE INDEX by_b ON t (b);
             REPLACE INTO t VALUES (9, 'x', 'a9', 'b2');",
        )
        .await;
    let error = remotes[1].try_download(&[]).await.unwrap_err();
    assert!(matches!(error, CentreError::NotDeployed { .. }), "{error}");
    world.deploy().await.unwrap();
    for remote in &mut remotes {
        remote.schema = world.schema();
    }
    converges(&world, &mut remotes).await;
    assert_eq!(remotes[1].rows("t"), [] as [&str; 0]);
    // A table that has nothing to do with it is no reason to stop.
    world.execute("CREATE TABLE unrelated (a)").await;
    converges(&world, &mut remotes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_made_while_serving_leaves_nothing_half_done() {
    let world = SqliteWorld::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY)",
        vec![everyone("t")],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "CREATE TRIGGER no_two AFTER INSERT ON t WHEN NEW.id = 2
                 BEGIN SELECT RAISE(FAIL, 'no two'); END",
        )
        .await;
    let result = anna.upload(&[insert("t", "1"), insert("t", "2")]).await;
    assert!(result[1].ends_with("no two"), "{result:?}");
    assert_eq!(world.fixture.query("SELECT id FROM t").await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tracking_looks_rows_up_by_index() {
    let (world, _) = three_partitions(TABLES[0]).await;
    let connection = world.fixture.connection();
    let log: String = connection
        .query_row(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'tidewater_centre_log_%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let sqls: Vec<String> = connection
        .prepare("SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE '%BEFORE%'")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(sqls.len(), 2);
    for sql in sqls {
        let body = sql.split_once("BEGIN ").unwrap().1.trim_end_matches("END");
        for statement in body.split(';').filter(|statement| statement.contains(&log)) {
            let select = &statement[statement.find("SELECT").unwrap()..];
            let select =
                ["id", "part", "a", "b"]
                    .iter()
                    .fold(select.to_owned(), |select, column| {
                        select
                            .replace(&format!("NEW.\"{column}\""), "?1")
                            .replace(&format!("OLD.\"{column}\""), "?2")
                    });
            let parameters = if select.contains("?2") { 2 } else { 1 };
            let plan: String = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {select}"))
                .unwrap()
                .query_row(rusqlite::params_from_iter(0..parameters), |row| row.get(3))
                .unwrap();
            assert!(plan.starts_with("SEARCH"), "{plan}: {select}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_file_is_a_clear_error() {
    let error = match SqliteFixture::connect("sqlite:/nowhere/at/all.db").await {
        Ok(_) => panic!("connected to a file that is not there"),
        Err(error) => error,
    };
    assert!(!error.hint().is_empty(), "{error}");
    assert_eq!(error.code(), tidewater_protocol::Code::Usage);
}

/// A row that only spells a value otherwise has not given it up.
#[tokio::test]
async fn a_value_that_others_refer_to_can_be_spelled_otherwise() {
    let ddl = "CREATE TABLE par (id INTEGER PRIMARY KEY, u TEXT COLLATE NOCASE UNIQUE);
        CREATE TABLE ch (id INTEGER PRIMARY KEY,
          u TEXT COLLATE NOCASE REFERENCES par (u) ON UPDATE CASCADE);
        INSERT INTO par VALUES (1, 'abc'); INSERT INTO ch VALUES (1, 'abc')";
    let world = SqliteWorld::new(ddl, ["par", "ch"].map(everyone).to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna.upload(&[update("par", "1|abc", "1|Abc")]).await;
    let counts = "0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused";
    assert_eq!(result[0], counts, "{result:?}");
}

/// A delete takes rows of another table along, whose trigger changes a row that the same upload
/// deletes: what the trigger wrote is not known to the remote.
#[tokio::test]
async fn a_row_that_a_cascade_has_changed_is_not_deleted_unseen() {
    let ddl = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
         CREATE TABLE entry (id INTEGER PRIMARY KEY, other INTEGER NOT NULL,
             account INTEGER NOT NULL REFERENCES account (id) ON DELETE CASCADE);
         CREATE TRIGGER given_back AFTER DELETE ON entry BEGIN
             UPDATE account SET balance = balance + 1 WHERE id = OLD.other; END;
         INSERT INTO account VALUES (1, 10), (2, 20), (3, 30);
         INSERT INTO entry VALUES (1, 2, 1)";
    let world = SqliteWorld::new(ddl, vec![everyone("account")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let told = anna
        .upload(&[
            delete("account", "1|10"),
            delete("account", "2|20"),
            delete("account", "3|30"),
        ])
        .await;
    let rows = world.fixture.query("SELECT id, balance FROM account").await;
    assert_eq!(rows, ["2|21"], "{told:?}");
    assert!(told[0].contains("2 deleted, 1 conflicts"), "{told:?}");
}

/// Of a table whose trigger cannot be read, no row is to blame.
#[tokio::test]
async fn a_statement_that_cannot_be_prepared_refuses_no_row() {
    let ddl = "CREATE TABLE audit (what TEXT);
         CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT);
         CREATE TRIGGER noted AFTER INSERT ON note BEGIN
             INSERT INTO audit VALUES (NEW.text); END";
    let world = SqliteWorld::new(ddl, vec![everyone("note")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("DROP TABLE audit").await;
    let upload = anna.next_upload(&[insert("note", "1|a")]);
    let told = world.worker().await.apply(vec![upload.clone()]).await;
    assert!(
        !matches!(told.as_deref(), Ok([UploadOutcome::Applied { .. }])),
        "{told:?}"
    );
    world.execute("CREATE TABLE audit (what TEXT)").await;
    let told = world.worker().await.apply(vec![upload]).await.unwrap();
    assert!(
        matches!(&told[..], [UploadOutcome::Applied { .. }]),
        "{told:?}"
    );
    assert_eq!(world.fixture.query("SELECT what FROM audit").await, ["a"]);
}
