//! Scripts: what stands at the events of a sync, in their order and transaction.

use tidewater_centre::{ScriptSpec, TableSpec};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::{Remote, delete, insert, update};
use crate::world::{World, everyone};

/// The customer database of the manuals: timestamps, a shadow table of deletes, customers by sales
/// person.
const DDL: &str = "
    CREATE TABLE cust (cust_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, rep TEXT NOT NULL);
    CREATE TABLE cust_stamp (cust_id INTEGER NOT NULL PRIMARY KEY, last_modified {timestamp});
    CREATE TABLE cust_gone (cust_id INTEGER NOT NULL PRIMARY KEY, last_modified {timestamp});
    CREATE TABLE cust_fought (cust_id INTEGER NOT NULL, old_name TEXT, new_name TEXT);
    CREATE TABLE journal (id INTEGER NOT NULL PRIMARY KEY, line TEXT NOT NULL)";

fn script(table: &str, event: &str, sql: &str) -> ScriptSpec {
    ScriptSpec {
        version: "default".into(),
        table: (table != "connection").then(|| table.to_owned()),
        event: event.into(),
        file: format!("scripts/default/{table}/{event}.sql"),
        sql: sql.into(),
    }
}

fn note(table: &str, event: &str, line: &str) -> ScriptSpec {
    let sql = format!(
        "INSERT INTO journal (id, line) SELECT coalesce(max(id), 0) + 1, '{line}' FROM journal"
    );
    script(table, event, &sql)
}

/// The databases' clock: scripts compare with what it says.
fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |it| it.as_millis() as i64)
}

async fn world<F: Fixture>(scripts: Vec<ScriptSpec>) -> World<F> {
    let timestamp = match F::DIALECT {
        Dialect::Postgres => "timestamptz",
        Dialect::Sqlite => "TIMESTAMP",
    };
    let ddl = DDL.replace("{timestamp}", timestamp);
    let mut world = World::<F>::new(&ddl, vec![everyone("cust")]).await;
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    world
}

async fn journal<F: Fixture>(world: &World<F>) -> Vec<String> {
    let lines = world
        .fixture
        .query("SELECT line FROM journal ORDER BY id")
        .await;
    world.execute("DELETE FROM journal").await;
    lines
}

pub async fn events_of_an_upload_happen_in_their_order<F: Fixture>() {
    let world = world::<F>(vec![
        note(
            "connection",
            "begin_synchronization",
            "begin_synchronization",
        ),
        note("connection", "begin_publication", "begin_publication"),
        note("connection", "begin_upload", "begin_upload"),
        note("cust", "begin_upload", "cust begin_upload"),
        note("cust", "begin_upload_rows", "cust begin_upload_rows"),
        note("cust", "end_upload_rows", "cust end_upload_rows"),
        note("cust", "end_upload", "cust end_upload"),
        note("connection", "end_upload", "end_upload"),
    ])
    .await;
    let mut anna = Remote::synced(&world, "anna").await;
    journal(&world).await;
    anna.upload(&[insert("cust", "1|Nora|anna")]).await;
    assert_eq!(
        journal(&world).await,
        [
            "begin_synchronization",
            "begin_publication",
            "begin_upload",
            "cust begin_upload",
            "cust begin_upload_rows",
            "cust end_upload_rows",
            "cust end_upload",
            "end_upload",
        ]
    );
    // The rows were written as ever.
    let rows = world.fixture.query("SELECT name FROM cust").await;
    assert_eq!(rows, ["Nora"]);
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
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut anna = Remote::synced(&world, "anna").await;
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
    let mut anna = Remote::new(&world, "anna").await;
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

pub async fn scripts_that_cannot_be_are_named<F: Fixture>() {
    let mut world = world::<F>(Vec::new()).await;
    for (table, event, sql, message) in [
        ("cust", "upload_insrt", "SELECT 1", "stands for no event"),
        (
            "connection",
            "upload_insert",
            "SELECT 1",
            "stands for an event of tables",
        ),
        (
            "cust",
            "begin_publication",
            "SELECT 1",
            "stands for an event of the connection",
        ),
        (
            "cust",
            "download_cursor",
            "SELECT cust_id FROM cust",
            "yields 1 columns, and 3 are wanted",
        ),
        (
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id) VALUES ({r.custid})",
            "no such column",
        ),
        (
            "cust",
            "upload_insert",
            "INSERT INTO cust (name) VALUES ('{r.name}')",
            "stands within quotes",
        ),
        (
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id) VALUES ({o.cust_id})",
            "does not have",
        ),
        (
            "cust",
            "upload_insert",
            "INSERT INTO cst VALUES (1)",
            "is refused by",
        ),
        ("cust", "upload_insert", "COMMIT", "begins with \"COMMIT\""),
        (
            "cust",
            "begin_upload",
            "SELECT {s.fetched_rows}",
            "does not have",
        ),
        (
            "cust",
            "download_delete_cursor",
            "SELECT cust_id FROM cust",
            "without download_cursor",
        ),
    ] {
        world.specs[0].scripts = vec![script(table, event, sql)];
        let error = world.deploy().await.unwrap_err().to_string();
        assert!(error.contains(message), "{event}: {error}");
        assert!(error.contains(table), "{error}");
    }
    let partitioned = TableSpec {
        partition: vec![tidewater_centre::RuleSpec::columns(
            &["rep"],
            "SELECT {s.username}",
        )],
        ..everyone("cust")
    };
    world.specs[0].tables = vec![partitioned];
    world.specs[0].scripts = vec![script(
        "cust",
        "download_cursor",
        "SELECT cust_id, name, rep FROM cust",
    )];
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(error.contains("a partition beside"), "{error}");
}

pub async fn each_remote_has_the_version_that_it_asks_for<F: Fixture>() {
    let old =
        "INSERT INTO cust (cust_id, name, rep) VALUES ({r.cust_id}, 'old', {s.script_version})";
    let mut world = world::<F>(vec![script("cust", "upload_insert", old)]).await;
    let mut new = script("cust", "upload_insert", &old.replace("'old'", "'new'"));
    new.version = "v2".into();
    world.specs[0].scripts.push(new);
    world.deploy().await.unwrap();
    let mut anna = Remote::synced(&world, "anna").await;
    anna.upload(&[insert("cust", "1|x|x")]).await;
    anna.parameters.insert("script_version".into(), "v2".into());
    anna.upload(&[insert("cust", "2|x|x")]).await;
    let rows = world
        .fixture
        .query("SELECT name || ' ' || rep FROM cust ORDER BY cust_id")
        .await;
    assert_eq!(rows, ["old default", "new v2"]);
    anna.parameters.insert("script_version".into(), "v3".into());
    let upload = anna.next_upload(&[insert("cust", "3|x|x")]);
    let error = format!("{:?}", anna.apply(upload).await);
    assert!(error.contains("there is no script version"), "{error}");
    let rows = world.fixture.query("SELECT count(*) FROM cust").await;
    assert_eq!(rows, ["2"]);
}
