//! Scripts: what stands at the events of a sync, in their order and transaction.

use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::{ScriptSpec, TableSpec};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::{RowChange, TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone, partitioned};

/// The customer database of the manuals: timestamps, a shadow table of deletes, customers by sales
/// person.
const DDL: &str = "
    CREATE TABLE cust (cust_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, rep TEXT NOT NULL);
    CREATE TABLE cust_stamp (cust_id INTEGER NOT NULL PRIMARY KEY, last_modified {timestamp});
    CREATE TABLE cust_gone (cust_id INTEGER NOT NULL PRIMARY KEY, last_modified {timestamp});
    CREATE TABLE cust_fought (cust_id INTEGER NOT NULL, old_name TEXT, new_name TEXT);
    CREATE TABLE journal (id INTEGER NOT NULL PRIMARY KEY, line TEXT NOT NULL)";

/// A script of the default version.
pub fn script(table: &str, event: &str, sql: &str) -> ScriptSpec {
    ScriptSpec::at("scripts", ["default", table, event], sql)
}

/// The databases' clock: scripts compare with what it says.
pub fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |it| it.as_millis() as i64)
}

pub async fn world<F: Fixture>(scripts: Vec<ScriptSpec>) -> DeployedCentre<F> {
    let timestamp = match F::DIALECT {
        Dialect::Postgres => "timestamptz",
        Dialect::Sqlite => "TIMESTAMP",
        Dialect::Mysql => "TIMESTAMP(6)",
    };
    let ddl = DDL.replace("{timestamp}", timestamp);
    let mut world = DeployedCentre::<F>::new(&ddl, vec![everyone("cust")]).await;
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    world
}

/// The lines that scripts have written, which are forgotten.
pub async fn journal<F: Fixture>(world: &DeployedCentre<F>) -> Vec<String> {
    let lines = world
        .fixture
        .query("SELECT line FROM journal ORDER BY id")
        .await;
    world.execute("DELETE FROM journal").await;
    lines
}

pub async fn a_script_that_is_refused_for_a_row_has_done_nothing_for_it<F: Fixture>() {
    let keep = "INSERT INTO journal (id, line) VALUES ({r.cust_id}, {r.name});
         INSERT INTO cust (cust_id, name, rep) VALUES ({r.cust_id}, {r.name}, {r.rep})";
    let world = world::<F>(vec![script("cust", "upload_insert", keep)]).await;
    world
        .execute("INSERT INTO cust VALUES (2, 'there', 'x')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let rows: Vec<String> = (1..=60).map(|id| format!("{id}|n{id}|x")).collect();
    let inserts: Vec<RowChange> = rows.iter().map(|it| insert("cust", it)).collect();
    let told = anna.upload(&inserts).await;
    assert_eq!(
        told[0],
        "59 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    let lines = world.fixture.query("SELECT count(*) FROM journal").await;
    assert_eq!(lines, ["59"]);
}

pub async fn scripts_of_sets_run_once_for_all_rows<F: Fixture>() {
    let world = world::<F>(vec![
        script(
            "cust",
            "upload_insert",
            "INSERT INTO journal (id, line) SELECT coalesce(max(id), 0) + 1, 'insert' FROM journal;
             INSERT INTO cust (cust_id, name, rep) SELECT cust_id, upper(name), {s.username} FROM {rows} AS r",
        ),
        script(
            "cust",
            "upload_update",
            "UPDATE cust SET name = r.name || '/' || r.old_name FROM {rows} AS r
             WHERE cust.cust_id = r.cust_id",
        ),
        script(
            "cust",
            "upload_delete",
            "DELETE FROM cust WHERE cust_id IN (SELECT cust_id FROM {rows} AS r)",
        ),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (7, 'there', 'x')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let rows: Vec<String> = (1..=20).map(|id| format!("{id}|n{id}|x")).collect();
    let inserts: Vec<RowChange> = rows.iter().map(|it| insert("cust", it)).collect();
    let told = anna.upload(&inserts).await;
    assert_eq!(
        told[0],
        "19 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    assert!(
        told.contains(&"made cust: 1|N1|anna".to_owned()),
        "{told:?}"
    );
    let lines = world.fixture.query("SELECT count(*) FROM journal").await;
    // Those that go in are run in as few sets as the refused one is found by.
    assert!(lines[0].parse::<u32>().unwrap() < 20, "{lines:?}");
    let told = anna
        .upload(&[
            update("cust", "1|N1|anna", "1|Nora|anna"),
            update("cust", "2|N2|anna", "2|Niels|anna"),
            delete("cust", "3|N3|anna"),
        ])
        .await;
    assert_eq!(
        told[0],
        "0 inserted, 2 updated, 1 deleted, 0 conflicts, 0 refused"
    );
    let rows = "SELECT name FROM cust WHERE cust_id <= 3 ORDER BY cust_id";
    assert_eq!(world.fixture.query(rows).await, ["Nora/N1", "Niels/N2"]);
}

pub async fn conflicts_that_the_server_finds_are_resolved_by_scripts<F: Fixture>() {
    let fight = "INSERT INTO cust_fought (cust_id, old_name, new_name)
         VALUES ({r.cust_id}, {o.name}, {r.name})";
    let resolve = "UPDATE cust SET name = name || '+' || {r.name}
         WHERE cust_id = {r.cust_id} AND {r.name} <> 'bad';
         INSERT INTO journal (id, line) VALUES ({r.cust_id}, nullif({r.name}, 'bad'))";
    let mut world = world::<F>(Vec::new()).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x'), (3, 'Ada', 'x')")
        .await;
    world.specs[0].tables[0].conflict.resolve = vec!["script".into()];
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(error.contains("there is no script"), "{error}");
    world.specs[0].scripts = vec![script("cust", "upload_insert", "SELECT {r.cust_id}")];
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(
        error.contains("resolves conflicts by script, and has none"),
        "{error}"
    );
    world.specs[0].scripts = vec![
        script("cust", "upload_new_row_insert", fight),
        script("cust", "resolve_conflict", resolve),
    ];
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE cust SET name = 'N' WHERE cust_id <> 2")
        .await;
    let told = anna
        .upload(&[
            update("cust", "1|Nora|x", "1|NORA|x"),
            update("cust", "2|Niels|x", "2|NIELS|x"),
            // What the last script refuses, the one before it has not done.
            update("cust", "3|Ada|x", "3|bad|x"),
        ])
        .await;
    assert_eq!(
        told[0],
        "0 inserted, 2 updated, 0 deleted, 1 conflicts, 1 refused"
    );
    assert!(
        told.contains(&"merged cust: 1|N+NORA|x".to_owned()),
        "{told:?}"
    );
    let fought = world
        .fixture
        .query("SELECT new_name FROM cust_fought")
        .await;
    assert_eq!(fought, ["NORA"]);
}

/// A script finds rows by their keys: it would write over a row that its remote does not know, or may
/// not write.
pub async fn an_updated_key_that_another_row_has_is_refused<F: Fixture>() {
    let plain = "UPDATE cust SET name = {r.name} WHERE cust_id = {r.cust_id}";
    let set = "UPDATE cust SET name = r.name FROM {rows} AS r WHERE cust.cust_id = r.cust_id";
    let cursor = script(
        "cust",
        "download_cursor",
        "SELECT cust_id, name, rep FROM cust WHERE rep = {s.username}",
    );
    let is_partitioned = |it: &TableSpec| !it.partition.is_empty();
    for table in [
        everyone("cust"),
        partitioned("cust", &["rep"], "SELECT {s.username}"),
    ] {
        for (event, sql) in [
            ("upload_update", plain),
            ("upload_update", set),
            ("resolve_conflict", plain),
        ] {
            let mut world = world::<F>(Vec::new()).await;
            world.specs[0].tables = vec![table.clone()];
            world.specs[0].scripts = vec![script("cust", event, sql)];
            if !is_partitioned(&table) {
                world.specs[0].scripts.push(cursor.clone());
            }
            world.deploy().await.unwrap();
            world
                .execute("INSERT INTO cust VALUES (1, 'hers', 'anna'), (2, 'his', 'bert')")
                .await;
            let mut anna = TestRemote::synced(&world, "anna").await;
            let told = anna
                .upload(&[update("cust", "1|hers|anna", "2|written|anna")])
                .await;
            let refused = "refused cust [1] Update key_in_use: key in use";
            assert_eq!(told[1..], [refused], "{event} {sql}");
            // Nor a row that has come since, and that its remote may write.
            world
                .execute("INSERT INTO cust VALUES (3, 'new', 'anna')")
                .await;
            let told = anna
                .upload(&[update("cust", "1|hers|anna", "3|written|anna")])
                .await;
            assert_eq!(told[1..], [refused], "{event} {sql}");
            let rows = "SELECT cust_id || ' ' || name FROM cust ORDER BY cust_id";
            let rows = world.fixture.query(rows).await;
            assert_eq!(rows, ["1 hers", "2 his", "3 new"], "{event} {sql}");
        }
    }
}

/// What a script has written under another key, for another user or not at all, its remote has not
/// any more.
pub async fn a_row_that_its_script_writes_elsewhere_leaves_the_remote<F: Fixture>() {
    let inserts = [
        "INSERT INTO cust VALUES ({r.cust_id} + 100, {r.name}, {r.rep})",
        "INSERT INTO cust VALUES ({r.cust_id}, {r.name}, 'bert')",
        "INSERT INTO journal VALUES ({r.cust_id}, {r.name})",
    ];
    for (at, insertion) in inserts.into_iter().enumerate() {
        let mut world = world::<F>(vec![script("cust", "upload_insert", insertion)]).await;
        world.specs[0].tables = vec![partitioned("cust", &["rep"], "SELECT {s.username}")];
        world.deploy().await.unwrap();
        let mut anna = TestRemote::synced(&world, "anna").await;
        let written = [insert("cust", "1|Nora|anna")];
        anna.write(&written);
        anna.upload(&written).await;
        anna.download().await;
        let expected: &[&str] = if at == 0 { &["101|Nora|anna"] } else { &[] };
        assert_eq!(anna.rows("cust"), expected, "{insertion}");
    }
    let by_old_key = "UPDATE cust SET name = {r.name} WHERE cust_id = {o.cust_id}";
    let world = world::<F>(vec![script("cust", "upload_update", by_old_key)]).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let written = [update("cust", "1|Nora|x", "5|Nina|x")];
    anna.write(&written);
    anna.upload(&written).await;
    anna.download().await;
    assert_eq!(anna.rows("cust"), ["1|Nina|x"]);
}

pub async fn an_update_of_a_row_that_is_gone_is_told_though_scripts_resolve_conflicts<
    F: Fixture,
>() {
    let keep = "INSERT INTO cust_fought VALUES ({r.cust_id}, {o.name}, {r.name})";
    let fetch = "SELECT cust_id, name, rep FROM cust WHERE cust_id = {r.cust_id}";
    for fetches in [false, true] {
        let mut scripts = vec![script("cust", "upload_new_row_insert", keep)];
        if fetches {
            scripts.push(script("cust", "upload_fetch", fetch));
        }
        let world = world::<F>(scripts).await;
        world
            .execute("INSERT INTO cust VALUES (1, 'Nora', 'x')")
            .await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world.execute("DELETE FROM cust").await;
        let told = anna.upload(&[update("cust", "1|Nora|x", "1|NORA|x")]).await;
        assert_eq!(
            told,
            [
                "0 inserted, 0 updated, 0 deleted, 1 conflicts, 0 refused",
                "gone cust [1]"
            ]
        );
    }
}

pub async fn a_row_that_its_script_does_not_delete_comes_back<F: Fixture>() {
    let flag = "UPDATE cust SET rep = 'gone' WHERE cust_id = {r.cust_id} AND cust_id > 1";
    let world = world::<F>(vec![script("cust", "upload_delete", flag)]).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [delete("cust", "1|Nora|x"), delete("cust", "2|Niels|x")];
    let told = anna.upload(&changes).await;
    assert_eq!(
        told,
        [
            "0 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused",
            "made cust: 1|Nora|x",
            "made cust: 2|Niels|gone",
        ]
    );
    assert_eq!(world.centre.conflicts().await.unwrap(), []);
}

pub async fn a_row_of_which_a_script_ignores_the_delete_comes_back<F: Fixture>() {
    let ignore = script("cust", "upload_delete", "--{ml_ignore}");
    let world = world::<F>(vec![ignore]).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [delete("cust", "1|Nora|x"), delete("cust", "2|Niels|x")];
    let told = anna.upload(&changes).await;
    assert_eq!(
        told,
        [
            "0 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused",
            "made cust: 1|Nora|x",
            "made cust: 2|Niels|x",
        ]
    );
}

/// A set that finds some of its rows is not taken for one that has found all of them.
pub async fn an_update_that_a_script_of_sets_does_not_find_loses<F: Fixture>() {
    let sql = "UPDATE cust SET name = r.name || '!' FROM {rows} AS r
         WHERE cust.cust_id = r.cust_id AND cust.name = r.old_name";
    let world = world::<F>(vec![script("cust", "upload_update", sql)]).await;
    world
        .execute(
            "INSERT INTO cust VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'x'), (4, 'd', 'x')",
        )
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for change in [
        "UPDATE cust SET name = 'other' WHERE cust_id = 2",
        "UPDATE cust SET name = 'D' WHERE cust_id = 4",
        "DELETE FROM cust WHERE cust_id = 3",
    ] {
        world.execute(change).await;
    }
    let told = anna
        .upload(&[
            update("cust", "1|a|x", "1|A|x"),
            update("cust", "2|b|x", "2|B|x"),
            update("cust", "3|c|x", "3|C|x"),
            // What it wants is there already.
            update("cust", "4|d|x", "4|D|x"),
        ])
        .await;
    assert_eq!(
        told[0],
        "0 inserted, 2 updated, 0 deleted, 2 conflicts, 0 refused"
    );
    assert!(told.contains(&"conflict cust: 2|other|x".to_owned()));
    let rows = "SELECT cust_id || name FROM cust ORDER BY cust_id";
    assert_eq!(world.fixture.query(rows).await, ["1A!", "2other", "4D"]);
    assert_eq!(world.centre.conflicts().await.unwrap().len(), 2);
}

/// The script deletes a row only as its device had it: what another side has made of it stands, and
/// the device is told that its delete lost.
pub async fn a_delete_whose_script_finds_another_row_loses<F: Fixture>() {
    for sql in [
        "DELETE FROM cust WHERE cust_id = {o.cust_id} AND name = {o.name}",
        "DELETE FROM cust WHERE EXISTS (SELECT 1 FROM {rows} AS r
             WHERE r.cust_id = cust.cust_id AND r.name = cust.name)",
    ] {
        let world = world::<F>(vec![script("cust", "upload_delete", sql)]).await;
        world
            .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x')")
            .await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world
            .execute("UPDATE cust SET name = 'NORA' WHERE cust_id = 1")
            .await;
        let changes = [delete("cust", "1|Nora|x"), delete("cust", "2|Niels|x")];
        let told = anna.upload(&changes).await;
        assert_eq!(
            told,
            [
                "0 inserted, 0 updated, 1 deleted, 1 conflicts, 0 refused",
                "conflict cust: 1|NORA|x",
            ]
        );
        let conflicts = world.centre.conflicts().await.unwrap();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    }
}

pub async fn what_a_script_sets_lives_for_the_sync<F: Fixture>() {
    let mut world = world::<F>(vec![
        script(
            "connection",
            "modify_user",
            "SELECT upper({s.username}) AS username",
        ),
        script(
            "connection",
            "begin_synchronization",
            "SELECT 'x' || {s.username} AS \"u.seen\"",
        ),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id, name, rep) VALUES ({r.cust_id}, {u.seen}, {s.username})",
        ),
        script(
            "connection",
            "authenticate_parameters",
            "SELECT CASE {a.1} WHEN 'in' THEN 1000 ELSE 4000 END AS authentication_status",
        ),
    ])
    .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let refused = anna.run_scripts(ScriptTransaction::Begin).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("status 4000"), "{error}");
    anna.parameters.insert("1".into(), "in".into());
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    anna.upload(&[insert("cust", "1|x|x")]).await;
    let rows = "SELECT name || ' ' || rep FROM cust";
    assert_eq!(world.fixture.query(rows).await, ["xANNA ANNA"]);
    // A procedure gives back what it was given, in the order of the parameters that it can set.
    if F::DIALECT == Dialect::Postgres {
        world
            .execute(
                "CREATE PROCEDURE who(INOUT name text, INOUT seen text) LANGUAGE plpgsql
                 AS $$ BEGIN seen := name || seen; name := 'p'; END $$",
            )
            .await;
        world.specs[0].scripts[0] = script(
            "connection",
            "modify_user",
            "CALL who({ml s.username}, {ml u.seen})",
        );
        world.specs[0].scripts.remove(1);
        world.deploy().await.unwrap();
        let mut bela = TestRemote::new(&world, "bela").await;
        bela.parameters = [("1", "in"), ("seen", "!")]
            .map(|(n, v)| (n.into(), v.into()))
            .into();
        bela.run_scripts(ScriptTransaction::Begin).await.unwrap();
        bela.upload(&[insert("cust", "2|x|x")]).await;
        let rows = "SELECT name || ' ' || rep FROM cust WHERE cust_id = 2";
        assert_eq!(world.fixture.query(rows).await, ["bela! p"]);
        let few = script("connection", "modify_user", "CALL who({s.username}, 'x')");
        world.specs[0].scripts[0] = few;
        let error = world.deploy().await.unwrap_err().to_string();
        assert!(
            error.contains("gives back 2 values, and names 1"),
            "{error}"
        );
    }
}

pub async fn a_script_says_what_becomes_of_what_is_refused<F: Fixture>() {
    let handle =
        "SELECT CASE {s.error_code} WHEN 'not_null' THEN 3000 ELSE 1000 END AS action_code";
    let report = "INSERT INTO journal (id, line)
        SELECT coalesce(max(id), 0) + 1, {s.table} || ' ' || {s.error_code} FROM journal";
    let world = world::<F>(vec![
        script("connection", "handle_error", handle),
        script("connection", "report_error", report),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust VALUES ({r.cust_id}, nullif({r.name}, ''), {r.rep})",
        ),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (1, 'there', 'x')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let told = anna
        .upload(&[insert("cust", "1|n|x"), insert("cust", "2|n|x")])
        .await;
    assert_eq!(
        told[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    assert_eq!(journal(&world).await, ["cust key_in_use"]);
    let upload = anna.next_upload(&[insert("cust", "3|n|x"), insert("cust", "4||x")]);
    let error = format!("{:?}", anna.apply(upload).await);
    let named = ["handle_error.sql", "EndedByScript", "table: \"cust\""];
    assert!(named.iter().all(|it| error.contains(it)), "{error}");
    let rows = world
        .fixture
        .query("SELECT cust_id FROM cust ORDER BY 1")
        .await;
    assert_eq!(rows, ["1", "2"]);
    assert_eq!(journal(&world).await, ["cust not_null"]);
}

pub async fn a_time_that_would_lose_rows_is_not_taken<F: Fixture>() {
    let cursor =
        "SELECT c.cust_id, c.name, c.rep FROM cust c JOIN cust_stamp s ON s.cust_id = c.cust_id
         WHERE s.last_modified >= {s.last_download}";
    let note = "INSERT INTO journal (id, line) SELECT coalesce(max(id), 0) + 1, {s.fetched_rows}
        FROM journal";
    let world = world::<F>(vec![
        script("cust", "download_cursor", cursor),
        script(
            "connection",
            "modify_next_last_download",
            "SELECT '2999-01-01 00:00:00' AS next_last_download",
        ),
        script("connection", "download_statistics", note),
    ])
    .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.now_ms = now_ms();
    anna.download().await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'anna')")
        .await;
    world
        .execute("INSERT INTO cust_stamp VALUES (1, CURRENT_TIMESTAMP)")
        .await;
    anna.now_ms = now_ms();
    anna.download().await;
    assert_eq!(anna.rows("cust"), ["1|Nora|anna"]);
    assert_eq!(journal(&world).await, ["0", "1"]);
}

pub async fn rows_are_uploaded_by_scripts<F: Fixture>() {
    let world = world::<F>(vec![
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id, name, rep) VALUES ({ml r.cust_id}, upper({r.name}), {s.username})",
        ),
        script(
            "cust",
            "upload_update",
            "UPDATE cust SET name = {r.name} || '/' || {o.name} WHERE cust_id = {r.cust_id}",
        ),
        script(
            "cust",
            "upload_delete",
            "INSERT INTO cust_gone (cust_id) VALUES ({r.cust_id});
             DELETE FROM cust WHERE cust_id = {r.cust_id}",
        ),
    ]);
    let world = world.await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let told = anna
        .upload(&[insert("cust", "1|nora|x"), insert("cust", "2|niels|x")])
        .await;
    assert_eq!(
        told,
        [
            "2 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused",
            "made cust: 1|NORA|anna",
            "made cust: 2|NIELS|anna",
        ]
    );
    let told = anna
        .upload(&[
            update("cust", "1|NORA|anna", "1|Nora|anna"),
            delete("cust", "2|NIELS|anna"),
        ])
        .await;
    assert_eq!(
        told,
        [
            "0 inserted, 1 updated, 1 deleted, 0 conflicts, 0 refused",
            "made cust: 1|Nora/NORA|anna",
        ]
    );
    let gone = world.fixture.query("SELECT cust_id FROM cust_gone").await;
    assert_eq!(gone, ["2"]);
    // What the database refuses of a row is refused of that row.
    let told = anna
        .upload(&[
            insert("cust", "3|Ada|x"),
            insert("cust", "1|twice|x"),
            insert("cust", "4|Eve|x"),
        ])
        .await;
    assert_eq!(
        told[0],
        "2 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    let rows = world
        .fixture
        .query("SELECT cust_id FROM cust ORDER BY 1")
        .await;
    assert_eq!(rows, ["1", "3", "4"]);
}

pub async fn conflicts_are_found_and_resolved_by_scripts<F: Fixture>() {
    let fetch = "SELECT cust_id, name, rep FROM cust WHERE cust_id = {r.cust_id}";
    let write = "UPDATE cust SET name = {r.name} WHERE cust_id = {r.cust_id}";
    let fight = "INSERT INTO cust_fought (cust_id, old_name, new_name)
         VALUES ({r.cust_id}, {o.name}, {r.name})";
    let resolve = "UPDATE cust SET name = name || '+' || {r.name} WHERE cust_id = {r.cust_id}";
    let mut world = world::<F>(vec![
        script("cust", "upload_fetch", fetch),
        script("cust", "upload_update", write),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE cust SET name = 'N' WHERE cust_id = 1")
        .await;
    let changes = [
        update("cust", "1|Nora|x", "1|NORA|x"),
        update("cust", "2|Niels|x", "2|NIELS|x"),
    ];
    let told = anna.upload(&changes).await;
    assert_eq!(
        told[0],
        "0 inserted, 1 updated, 0 deleted, 1 conflicts, 0 refused"
    );
    assert_eq!(told[1], "conflict cust: 1|N|x");
    world.specs[0].scripts.extend([
        script("cust", "upload_new_row_insert", fight),
        script("cust", "resolve_conflict", resolve),
    ]);
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE cust SET name = 'M' WHERE cust_id = 1")
        .await;
    let told = anna.upload(&[update("cust", "1|N|x", "1|NORA|x")]).await;
    assert_eq!(
        told[0],
        "0 inserted, 1 updated, 0 deleted, 1 conflicts, 0 refused"
    );
    assert_eq!(told[1], "merged cust: 1|M+NORA|x");
    let fought = world
        .fixture
        .query("SELECT old_name || ' ' || new_name FROM cust_fought");
    assert_eq!(fought.await, ["N NORA"]);
}

pub async fn rows_are_downloaded_by_their_time_as_scripts_do_it<F: Fixture>() {
    let cursor =
        "SELECT c.cust_id, c.name, c.rep FROM cust c JOIN cust_stamp s ON s.cust_id = c.cust_id
         WHERE s.last_modified >= {ml s.last_table_download} AND c.rep = {ml s.username}";
    let deletes = "SELECT cust_id FROM cust_gone WHERE last_modified >= {s.last_download}";
    let world = world::<F>(vec![
        script("cust", "download_cursor", cursor),
        script("cust", "download_delete_cursor", deletes),
    ])
    .await;
    let stamp = |id: i64| {
        format!(
            "INSERT INTO cust_stamp VALUES ({id}, CURRENT_TIMESTAMP)
                 ON CONFLICT (cust_id) DO UPDATE SET last_modified = CURRENT_TIMESTAMP"
        )
    };
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'anna'), (2, 'Niels', 'anna'), (3, 'Sven', 'bela')")
        .await;
    for id in 1..=3 {
        world.execute(&stamp(id)).await;
    }
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.now_ms = now_ms();
    let received = anna.download().await;
    assert_eq!(anna.rows("cust"), ["1|Nora|anna", "2|Niels|anna"]);
    assert!(received.rows().iter().all(|it| !it.contains("Sven")));
    // Only what was written since comes, and keys that are gone go.
    world
        .execute("UPDATE cust SET name = 'N' WHERE cust_id = 1")
        .await;
    world.execute(&stamp(1)).await;
    world.execute("DELETE FROM cust WHERE cust_id = 2").await;
    world
        .execute("DELETE FROM cust_stamp WHERE cust_id = 2")
        .await;
    world
        .execute("INSERT INTO cust_gone VALUES (2, CURRENT_TIMESTAMP)")
        .await;
    anna.now_ms = now_ms();
    anna.download().await;
    assert_eq!(anna.rows("cust"), ["1|N|anna"]);
}

pub async fn a_row_of_nulls_takes_all_rows_of_the_table_from_the_remote<F: Fixture>() {
    let cursor = "SELECT c.cust_id, c.name, c.rep FROM cust c, journal j WHERE j.id = c.cust_id";
    let deletes = "SELECT CAST(NULL AS INTEGER) FROM cust_fought";
    let world = world::<F>(vec![
        script("cust", "download_cursor", cursor),
        script("cust", "download_delete_cursor", deletes),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x'), (2, 'Niels', 'x')")
        .await;
    world
        .execute("INSERT INTO journal VALUES (1, ''), (2, '')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("cust").len(), 2);
    world.execute("DELETE FROM journal WHERE id = 1").await;
    anna.download().await;
    assert_eq!(anna.rows("cust").len(), 2);
    world
        .execute("INSERT INTO cust_fought VALUES (0, '', '')")
        .await;
    anna.download().await;
    assert_eq!(anna.rows("cust"), ["2|Niels|x"]);
}
