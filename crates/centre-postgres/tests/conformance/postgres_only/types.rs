//! The types of PostgreSQL: what travels, what is refused, what comes back in another form.

use super::table;
use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, delete, insert, update};
use tidewater_centre_conformance::world::{DeployedCentre, everyone, partitioned};

/// What PostgreSQL converts in an assignment, a query may yield.
#[tokio::test]
async fn a_query_yields_what_can_be_written_to_a_column_of_a_domain() {
    let ddl = "CREATE DOMAIN level AS integer; CREATE DOMAIN low AS level;
         CREATE TABLE staff (login text, wide bigint, high level, word text);
         CREATE TABLE door (id integer PRIMARY KEY, at low, name varchar(9));
         INSERT INTO staff VALUES ('anna', 1, 1, 'n'); INSERT INTO door VALUES (7, 1, '1')";
    let by = |column: &str, yields: &str| {
        let values = format!("SELECT {yields} FROM staff WHERE login = {{s.username}}");
        vec![partitioned("door", &[column], &values)]
    };
    let mut world = DeployedCentre::<PostgresFixture>::new(ddl, by("at", "high")).await;
    for (column, yields) in [
        ("at", "wide"),
        ("at", "high"),
        ("name", "high"),
        ("name", "wide"),
    ] {
        world.specs[0].tables = by(column, yields);
        world.deploy().await.unwrap();
        let anna = TestRemote::synced(&world, "anna").await;
        assert_eq!(anna.rows("door"), ["7|1|1"], "{yields}");
    }
    world.specs[0].tables = by("at", "word");
    let error = world.deploy().await.unwrap_err().to_string();
    let what = "yields text for the partition column \"at\", which is low";
    assert!(error.contains(what), "{error}");
}

/// What a remote holds is no value of the type any more.
#[tokio::test]
async fn a_partition_whose_value_of_an_enumeration_is_renamed_leaves_and_comes_under_its_new_name()
{
    let ddl = "CREATE TYPE reg AS ENUM ('n', 's', 'it''s');
         CREATE TABLE asg (login text, r reg);
         INSERT INTO asg VALUES ('anna', 'n'), ('anna', 'it''s');
         CREATE TABLE pe (id integer PRIMARY KEY, r reg, v text);
         INSERT INTO pe VALUES (1, 'n', 'a'), (2, 's', 'b'), (3, 'it''s', 'c')";
    let values = "SELECT r FROM asg WHERE login = {s.username}";
    let tables = vec![partitioned("pe", &["r"], values)];
    let world = DeployedCentre::<PostgresFixture>::new(ddl, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("pe"), ["1|n|a", "3|it's|c"]);
    world
        .execute(
            "ALTER TYPE reg RENAME VALUE 'n' TO 'north';
             UPDATE pe SET v = 'later' WHERE id = 3; INSERT INTO pe VALUES (4, 'north', 'd')",
        )
        .await;
    for _ in 0..2 {
        anna.download().await;
        assert_eq!(anna.rows("pe"), ["1|north|a", "3|it's|later", "4|north|d"]);
    }
}

/// Cast to the column, it would be another key than the remote's.
#[tokio::test]
async fn a_key_that_would_be_cut_or_rounded_is_refused_or_comes_back() {
    let ddl = "CREATE TABLE k (k varchar(3) PRIMARY KEY, v text)";
    let world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("k")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[insert("k", "xyz |cut"), insert("k", "xy |fits")])
        .await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    assert!(result[1].contains("cannot hold"), "{result:?}");
    anna.download().await;
    assert_eq!(
        world.fixture.query("SELECT k || '.' FROM k").await,
        ["xy ."]
    );
}

#[tokio::test]
async fn every_type_travels_there_and_back() {
    let world = table(
        "CREATE TYPE mood AS ENUM ('sad', 'happy');
         CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0);
         CREATE TABLE v (id bigint PRIMARY KEY, s smallint, b boolean, r real, d double precision,
           n numeric, p price, c char(4), x varchar(5), y bytea, day date, t time, ts timestamp,
           tz timestamptz, u uuid, j json, jb jsonb, m mood, a integer[], i interval);
         INSERT INTO v VALUES (1, -7, true, 0.1, 0.1, 1.50, 2.5, 'ab', 'xyz', '\\x00ff', '2026-02-28',
           '23:59:59.5', '1999-12-31 23:59:59', '2026-01-01 00:00:00+01',
           '0F8FAD5B-D9CB-469F-A165-70867728950E', '{\"a\" : 1}', '{\"b\":2}', 'happy', '{1,2}',
           '1 day')",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let row = "1|-7|1|0.1|0.1|1.50|2.50|ab|xyz|x'00ff'|2026-02-28|23:59:59.500000|\
               1999-12-31T23:59:59.000000|2025-12-31T23:00:00.000000Z|\
               0f8fad5b-d9cb-469f-a165-70867728950e|{\"a\" : 1}|{\"b\": 2}|happy|{1,2}|P1D";
    assert_eq!(anna.rows("v"), [row]);
    // As another new row of the remote's, with bytes as the suite writes them.
    let new = row.replace("1|-7", "2|-8").replace("x'00ff'", "bytes");
    let result = anna.upload(&[insert("v", &new)]).await;
    assert_eq!(result.len(), 1, "{result:?}");
    let changed = new.replace("happy", "sad").replace("P1D", "P2D");
    let result = anna.upload(&[update("v", &new, &changed)]).await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let berta = TestRemote::synced(&world, "berta").await;
    assert_eq!(
        berta.rows("v"),
        [row.to_owned(), changed.replace("bytes", "x'6279746573'")]
    );
    assert_eq!(
        world
            .fixture
            .query("SELECT s, p, c = 'ab', m, i FROM v WHERE id = 2")
            .await,
        ["-8|2.50|t|sad|2 days"]
    );
    let result = anna.upload(&[delete("v", &changed)]).await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 1 deleted, 0 conflicts, 0 refused"]
    );
}

#[tokio::test]
async fn values_that_postgresql_refuses_are_refused_by_row() {
    let world = table(
        "CREATE TYPE mood AS ENUM ('sad', 'happy');
         CREATE TABLE v (id integer PRIMARY KEY, s smallint, x varchar(3), j json, m mood)",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("v", "1|1|abc|{}|sad"),
            insert("v", "2|40000|abc|{}|sad"),
            insert("v", "3|1|abcd|{}|sad"),
            insert("v", "4|1|abc|{|sad"),
            insert("v", "5|1|abc|{}|angry"),
            insert("v", "6|1|a\0c|{}|sad"),
            insert("v", "70000000000|1|abc|{}|sad"),
            insert("v", "8|x|abc|{}|sad"),
            insert("v", "9|1|xyz|{}|happy"),
        ])
        .await;
    assert_eq!(
        result[0],
        "2 inserted, 0 updated, 0 deleted, 0 conflicts, 7 refused"
    );
    let refused = world.centre.refused().await.unwrap();
    assert_eq!(refused.len(), 7);
    assert!(
        refused.iter().all(|row| row.code == "bad_value"),
        "{refused:?}"
    );
    assert!(refused.iter().any(|row| {
        row.reason
            .contains("\"s\" of type smallint cannot hold \"40000\"")
    }));
    assert_eq!(
        world.fixture.query("SELECT id FROM v ORDER BY 1").await,
        ["1", "9"]
    );
}

/// Values that the centre gives back in another form reach their uploader in it.
#[tokio::test]
async fn converted_values_are_sent_to_whoever_uploaded_them() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, r real, j jsonb)",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[insert("v", "1|0.5|{}"), insert("v", "2|0.1|{\"a\":1}")])
        .await;
    assert_eq!(result[1..], ["made v: 2|0.1|{\"a\": 1}"]);
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
}

/// A remote that has not heard yet what became of its values changes them again.
#[tokio::test]
async fn values_that_the_centre_rounds_are_the_same_to_it() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, n numeric(9,2), t time(1), s timestamp(3),
           z timestamptz(0), r real, q numeric(9,2) GENERATED ALWAYS AS (n * 2) STORED)",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let row = "1|1.005|01:02:03.45678|2026-01-02 03:04:05.678912|2026-01-02 03:04:05.6+00|0.1|NULL";
    let made = "1|1.01|01:02:03.500000|2026-01-02 03:04:05.679000|2026-01-02 03:04:06.000000+00:00";
    let result = anna.upload(&[insert("v", row)]).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"
    );
    let left = world.fixture.query("SELECT n, t, s, z FROM v").await;
    assert_eq!(result.len(), 2, "{result:?} {made} {left:?}");
    let result = anna
        .upload(&[update("v", row, &row.replace("1.005", "7.00"))])
        .await;
    assert_eq!(
        result[0],
        "0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"
    );
    let left = world.fixture.query("SELECT n, q FROM v").await;
    assert_eq!(left, ["7.00|14.00"]);
}

#[tokio::test]
async fn identity_and_generated_columns_are_respected() {
    let world = table(
        "CREATE TABLE v (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a integer,
           n integer GENERATED ALWAYS AS IDENTITY, doubled integer GENERATED ALWAYS AS (a * 2) STORED)",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna.upload(&[insert("v", "1000|4|1|NULL")]).await;
    assert_eq!(result[1..], ["made v: 1000|4|1|8"]);
    let result = anna
        .upload(&[update("v", "1000|4|1|8", "1000|5|1|8")])
        .await;
    assert_eq!(result[1..], ["made v: 1000|5|1|10"]);
    // What only the centre computes is told to whoever wrote it.
    let result = anna
        .upload(&[update("v", "1000|5|1|10", "1000|5|1|99")])
        .await;
    assert_eq!(
        result,
        [
            "0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused",
            "made v: 1000|5|1|10"
        ]
    );
    let changes = (0..200).map(|id| insert("v", &format!("{id}|{id}|{id}|NULL")));
    let result = anna.upload(&changes.collect::<Vec<_>>()).await;
    let counts = "200 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused";
    assert_eq!((&*result[0], result.len()), (counts, 201));
}

#[tokio::test]
async fn tables_of_other_schemas_with_awkward_names_are_served() {
    let name = "Pur\"chase; --$tidewater$";
    let quoted = "\"Side\".\"Pur\"\"chase; --$tidewater$\"";
    let world = DeployedCentre::<PostgresFixture>::new(
        &format!(
            "CREATE SCHEMA \"Side\"; CREATE TABLE {quoted} (\"k$tidewater$'\" integer PRIMARY KEY,
               \"select\" text COLLATE \"C\"); INSERT INTO {quoted} VALUES (1, 'it''s \\')"
        ),
        vec![partitioned(
            &format!("Side.{name}"),
            &["select"],
            "SELECT E'it''s \\\\' -- the only one",
        )],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows(name), ["1|it's \\"]);
    world
        .execute(&format!("UPDATE {quoted} SET \"k$tidewater$'\" = 2"))
        .await;
    anna.download().await;
    assert_eq!(anna.rows(name), ["2|it's \\"]);
    let changes = [
        update(name, "2|it's \\", "2|gone"),
        insert(name, "3|it's \\"),
    ];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
}

/// Interleaving 22.
#[tokio::test]
async fn json_is_compared_though_it_has_no_equality() {
    let world = table(
        r#"CREATE TABLE v (id integer PRIMARY KEY, doc json);
           INSERT INTO v VALUES (1, '{"a": 1}'), (2, '{"a": 1}'), (3, NULL)"#,
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            update("v", r#"1|{"a": 1}"#, r#"1|{"a": 2}"#),
            // The same value in another spelling is another text.
            update("v", r#"2|{"a":1}"#, r#"2|{"a": 2}"#),
            delete("v", "3|NULL"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "0 inserted, 1 updated, 1 deleted, 1 conflicts, 0 refused",
            r#"conflict v: 2|{"a": 1}"#
        ]
    );
}

/// Interleaving 22.
#[tokio::test]
async fn other_spellings_under_a_collation_are_conflicts() {
    let world = table(
        "CREATE COLLATION careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE v (id integer PRIMARY KEY, name text COLLATE careless);
         INSERT INTO v VALUES (1, 'ABC')",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna.upload(&[update("v", "1|abc", "1|new")]).await;
    assert_eq!(result[1..], ["conflict v: 1|ABC"]);
}
