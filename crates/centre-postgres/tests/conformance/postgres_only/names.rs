//! Names: of every kind, in every schema, whatever the search path.

use tidewater_centre::CentreError;
use tidewater_centre_postgres::connect;

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, everyone, partitioned, publication,
};

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Schema, table, key and other column; each of the longest that PostgreSQL takes, or worse.
const NAMES: &[[&str; 4]] = &[
    ["Üper.Schema", "tab.le", "k.ey", "va.lue"],
    ["select", "table", "primary", "from"],
    [
        "日本語の名前空間日本語の名前空間日本語",
        "テーブルテーブルテーブルテーブルテーブル",
        "キーキーキーキーキーキーキーキーキーキーキ",
        "列",
    ],
    ["sch'em\\a", "ta'b\"le\\", "$1", "%s{s.username}"],
    [" ", "  ", " a ", "\t"],
    ["r", "r", "r", "tidewater_new"],
    ["old", "new", "new", "old"],
    ["c0", "c0", "c0", "version"],
    ["public2", "old_tidewater", "tg_op", "tidewater_old"],
    [
        "a234567890123456789012345678901234567890123456789012345678901bc",
        "b234567890123456789012345678901234567890123456789012345678901bc",
        "c234567890123456789012345678901234567890123456789012345678901bc",
        "d234567890123456789012345678901234567890123456789012345678901bc",
    ],
];

#[tokio::test]
async fn names_of_every_kind_are_served_in_any_schema() {
    for [schema, table, key, value] in NAMES {
        let (sql, key_sql, value_sql) = (
            format!("{}.{}", quoted(schema), quoted(table)),
            quoted(key),
            quoted(value),
        );
        let ddl = format!(
            "CREATE SCHEMA {}; CREATE TABLE {sql} ({key_sql} text PRIMARY KEY, {value_sql} text);
             INSERT INTO {sql} VALUES ('a', 'mine'), ('b', 'mine'), ('c', 'theirs')",
            quoted(schema)
        );
        let spec = partitioned(&format!("{schema}.{table}"), &[value], "SELECT 'mine'");
        let world: DeployedCentre<PostgresFixture> = DeployedCentre::new(&ddl, vec![spec]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world
            .execute(&format!(
                "UPDATE {sql} SET {key_sql} = 'd' WHERE {key_sql} = 'a';
                 UPDATE {sql} SET {value_sql} = 'mine' WHERE {key_sql} = 'c';
                 DELETE FROM {sql} WHERE {key_sql} = 'b'"
            ))
            .await;
        anna.download().await;
        assert_eq!(anna.rows(table), ["c|mine", "d|mine"], "{table}");
        let result = anna
            .upload(&[insert(table, "e|mine"), update(table, "c|mine", "c|theirs")])
            .await;
        assert_eq!(
            result[0],
            "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
        );
        world.execute(&format!("TRUNCATE {sql}")).await;
        anna.download().await;
        assert_eq!(anna.rows(table), [] as [&str; 0]);
    }
}

#[tokio::test]
async fn tables_of_one_name_in_two_schemas_are_told_apart() {
    let mut world: DeployedCentre<PostgresFixture> = DeployedCentre::new(
        "CREATE SCHEMA side; CREATE TABLE t (id integer PRIMARY KEY);
         CREATE TABLE side.t (id integer PRIMARY KEY); INSERT INTO t VALUES (1); INSERT INTO side.t VALUES (2)",
        vec![everyone("t")],
    )
    .await;
    world.specs[0].tables.push(everyone("side.t"));
    let error = world.deploy().await.unwrap_err();
    assert!(error.hint().contains("two publications"), "{error}");
    world.specs[0].tables.pop();
    world
        .specs
        .push(publication("other", vec![everyone("side.t")]));
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::new(&world, "berta").await;
    berta.subscribe_to(world.schemas[1].clone());
    berta.download().await;
    world
        .execute(
            "SET search_path = side; INSERT INTO t VALUES (3); INSERT INTO public.t VALUES (4)",
        )
        .await;
    for (remote, rows) in [(&mut anna, ["1", "4"]), (&mut berta, ["2", "3"])] {
        remote.download().await;
        assert_eq!(remote.rows("t"), rows);
    }
}

/// A name with a point can be read in two ways: only one of them may exist.
#[tokio::test]
async fn a_name_that_two_tables_have_is_refused() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(
            "CREATE SCHEMA a; CREATE TABLE a.b (id integer PRIMARY KEY);
             CREATE TABLE \"a.b\" (id integer PRIMARY KEY, x text)",
        )
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    let specs = [publication("p", vec![everyone("a.b")])];
    let error = centre.deploy(&specs, true, NOW_MS).await.unwrap_err();
    let told = format!("{error} / {}", error.hint());
    assert!(told.contains("a.b") && told.contains("rename"), "{told}");
    fixture.execute("DROP TABLE a.b").await;
    centre.deploy(&specs, true, NOW_MS).await.unwrap();
    let nul = [publication("p", vec![everyone("a\0b")])];
    let error = centre.deploy(&nul, true, NOW_MS).await.unwrap_err();
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error}"
    );
}

/// Whatever the database and the application have put before the system's own functions.
#[tokio::test]
async fn search_paths_and_functions_of_the_same_name_change_nothing() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(
            "CREATE SCHEMA trap;
             CREATE FUNCTION trap.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '3'::xid8 $$;
             CREATE FUNCTION trap.unnest(int4[]) RETURNS SETOF int4 LANGUAGE sql AS $$ SELECT 1 WHERE false $$;
             CREATE FUNCTION trap.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql
               AS $$ SELECT '3:3:'::pg_snapshot $$;
             CREATE TYPE trap.text AS ENUM ('no');
             CREATE TABLE trap.t (id integer PRIMARY KEY, x pg_catalog.text);
             CREATE TABLE t (id integer PRIMARY KEY, x pg_catalog.text);
             INSERT INTO t VALUES (1, 'a');
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = trap, pg_catalog, public',
               current_database()); END $$",
        )
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    let specs = [publication("sales", vec![everyone("t")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    // The application has the other path.
    fixture
        .execute("INSERT INTO t VALUES (7, 'trap'); INSERT INTO public.t VALUES (2, 'b')")
        .await;
    anna.upload(&[insert("t", "3|c"), update("t", "1|a", "1|A")])
        .await;
    anna.download().await;
    let rows = fixture.query("SELECT * FROM public.t ORDER BY id").await;
    assert_eq!(rows, ["1|A", "2|b", "3|c"]);
    let fresh = {
        let mut fresh =
            TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
        fresh.download().await;
        fresh
    };
    assert_eq!(fresh.rows("t"), rows);
}

/// Settings of the database, or of the role, under which values are read and written otherwise.
#[tokio::test]
async fn settings_of_the_database_change_no_values() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(
            "CREATE TABLE t (id integer PRIMARY KEY, numbers double precision[], place point,
               page xml, path text, span interval, day date);
             INSERT INTO t VALUES (1, '{0.1,0.30000000000000004}', '(0.1,0.30000000000000004)',
               '<a/><b/>', 'c:\\new', '1 day 2 hours', '2026-02-03')",
        )
        .await;
    for setting in [
        "extra_float_digits = -9",
        "xmloption = document",
        "standard_conforming_strings = off",
        "lock_timeout = 1",
        "IntervalStyle = sql_standard",
        "DateStyle = 'SQL, DMY'",
        "bytea_output = escape",
        // As a superuser we can have our triggers fire all the same.
        "session_replication_role = replica",
    ] {
        let sql = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {}', current_database()); END $$",
            setting.replace('\'', "\'\'")
        );
        fixture.execute(&sql).await;
    }
    let centre = connect(&fixture.url()).await.unwrap();
    let specs = [publication("sales", vec![everyone("t")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    let values = "{0.1,0.30000000000000004}|(0.1,0.30000000000000004)|<a/><b/>|c:\\new|P1DT2H|\
                  2026-02-03";
    let row = |id: i32| format!("{id}|{values}");
    assert_eq!(anna.rows("t"), [row(1)]);
    let mut carl =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "carl");
    carl.download().await;
    let changed = row(1).replace("c:\\new", "d:\\old");
    let result = anna
        .upload(&[insert("t", &row(2)), update("t", &row(1), &changed)])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let mut fresh =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    fresh.download().await;
    carl.download().await;
    for remote in [&fresh, &carl] {
        assert_eq!(remote.rows("t"), [changed.clone(), row(2)]);
    }
}

/// What a session that counts as replicating writes is logged for nobody.
#[tokio::test]
async fn a_role_for_which_triggers_do_not_fire_is_refused() {
    let fixture = PostgresFixture::new().await;
    let role = format!("replica_{}", fixture.url().rsplit('_').next().unwrap());
    let sql = format!(
        "CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET session_replication_role = replica;
         DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
    );
    fixture.execute(&sql).await;
    let url = fixture.url().replace("postgres@", &format!("{role}@"));
    let error = connect(&url).await.err().unwrap();
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error:?}"
    );
    let told = error.to_string();
    assert!(told.contains("session_replication_role"), "{told}");
    fixture
        .execute(&format!("ALTER ROLE {role} RESET session_replication_role"))
        .await;
    connect(&url).await.unwrap();
}

/// A schema that is called as ours and is somebody else's is left alone.
#[tokio::test]
async fn a_schema_of_the_users_that_has_our_name_is_left_alone() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(
            "CREATE SCHEMA tidewater; CREATE TABLE tidewater.tides (id integer PRIMARY KEY);
             CREATE TABLE t (id integer PRIMARY KEY)",
        )
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    let specs = [publication("p", vec![everyone("t")])];
    let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error}"
    );
    assert!(error.hint().contains("rename"), "{}", error.hint());
    let error = centre.undeploy(false).await.unwrap_err();
    assert!(error.hint().contains("rename"), "{}", error.hint());
    let left = fixture.query("SELECT count(*) FROM tidewater.tides").await;
    assert_eq!(left, ["0"]);
}

/// What the centre computes a remote may say anything about: a partition that is generated
/// would let it write into those of others.
#[tokio::test]
async fn a_generated_column_is_no_partition_of_a_table_that_takes_uploads() {
    let fixture = PostgresFixture::new().await;
    fixture
        .execute(
            "CREATE TABLE t (id integer PRIMARY KEY, code text NOT NULL,
               region text GENERATED ALWAYS AS (split_part(code, '-', 1)) STORED);
             INSERT INTO t VALUES (1, 'north-1'), (2, 'south-1')",
        )
        .await;
    let centre = connect(&fixture.url()).await.unwrap();
    let mut specs = [publication(
        "sales",
        vec![partitioned("t", &["region"], "SELECT 'north'")],
    )];
    let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
    let told = format!("{error} / {}", error.hint());
    assert!(
        told.contains("\"region\"") && told.contains("direction = \"download\""),
        "{told}"
    );
    specs[0].tables[0].direction = tidewater_protocol::Direction::Download;
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    assert_eq!(anna.rows("t"), ["1|north-1|north"]);
    fixture
        .execute("UPDATE t SET code = 'north-2' WHERE id = 2; UPDATE t SET code = 'south-2' WHERE id = 1")
        .await;
    anna.download().await;
    assert_eq!(anna.rows("t"), ["2|north-2|north"]);
}

/// No remote can have such a table: every sync would fail, and deploying would have told nobody.
#[tokio::test]
async fn names_that_no_remote_can_have_are_refused_at_deploy() {
    let fixture = PostgresFixture::new().await;
    let tables = "CREATE TABLE t (id integer PRIMARY KEY, v text, \"V\" text);
         CREATE TABLE \"T\" (id integer PRIMARY KEY);
         CREATE TABLE sqlite_t (id integer PRIMARY KEY);
         CREATE TABLE tidewater_state (id integer PRIMARY KEY)";
    fixture.execute(tables).await;
    let centre = connect(&fixture.url()).await.unwrap();
    let mut two = vec![everyone("t"), everyone("T")];
    two[0].columns = Some(vec!["id".into(), "v".into()]);
    for (tables, what) in [
        (vec![everyone("t")], "two columns differ from \"V\""),
        (two, "two tables differ from"),
        (vec![everyone("sqlite_t")], "reserved prefix"),
        (vec![everyone("tidewater_state")], "reserved prefix"),
    ] {
        let specs = [publication("sales", tables)];
        let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}
