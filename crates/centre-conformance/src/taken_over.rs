//! Scripts as their authors wrote them for other synchronization servers: question marks, names,
//! order of events, forced conflicts, temporary tables, errors and figures.

use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::scripting::{journal, now_ms, script};
use crate::world::{DeployedCentre, everyone};
use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{ScriptSpec, UploadOrder};

const DDL: &str = "
    CREATE TABLE cust (cust_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, rep TEXT NOT NULL);
    CREATE TABLE item (item_id INTEGER NOT NULL PRIMARY KEY,
                       cust_id INTEGER NOT NULL REFERENCES cust (cust_id), what TEXT UNIQUE);
    CREATE TABLE journal (id INTEGER NOT NULL PRIMARY KEY, line TEXT)";

async fn world<F: Fixture>(scripts: Vec<ScriptSpec>) -> DeployedCentre<F> {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("cust"), everyone("item")]).await;
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    world
}

/// A statement that writes a line.
fn note(line: &str) -> String {
    format!("INSERT INTO journal (id, line) SELECT coalesce(max(id), 0) + 1, {line} FROM journal")
}

pub async fn question_marks_stand_for_parameters_in_their_documented_order<F: Fixture>() {
    let text = match F::DIALECT {
        Dialect::Postgres => "CAST(? AS text)",
        Dialect::Sqlite => "?",
        Dialect::Mysql => "CAST(? AS CHAR)",
    };
    let noted = |prefix: &str, count: usize| {
        let values = vec![text; count].join(" || ',' || ");
        note(&format!("'{prefix} ' || {values}"))
    };
    let mut world = world::<F>(vec![
        script("connection", "begin_upload", &noted("upload", 1)),
        script("cust", "begin_upload", &noted("table", 2)),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id, name, rep) VALUES (?, ?, ?)",
        ),
        script(
            "cust",
            "upload_fetch",
            "SELECT cust_id, name, rep FROM cust WHERE cust_id = ?",
        ),
        script(
            "cust",
            "upload_update",
            "UPDATE cust SET name = ?, rep = ? WHERE cust_id = ?",
        ),
        script("cust", "upload_old_row_insert", &noted("old", 4)),
        script("cust", "upload_new_row_insert", &noted("new", 3)),
        script(
            "cust",
            "upload_delete",
            "DELETE FROM cust WHERE cust_id = ?",
        ),
        script("cust", "upload_statistics", &noted("figures", 7)),
    ])
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("cust", "1|Nora|x"), insert("cust", "2|Ida|y")])
        .await;
    let lines = journal(&world).await;
    assert_eq!(
        lines,
        [
            "upload anna",
            "table anna,cust",
            "figures anna,cust,0,0,2,0,0"
        ]
    );
    world
        .execute("UPDATE cust SET name = 'Idun' WHERE cust_id = 2")
        .await;
    anna.upload(&[
        update("cust", "1|Nora|x", "1|Nora B|z"),
        update("cust", "2|Ida|y", "2|Ida B|y"),
    ])
    .await;
    let lines = journal(&world).await;
    assert_eq!(
        lines[2..4],
        ["old anna,2,Ida,y", "new 2,Ida B,y"].map(String::from)
    );
    anna.upload(&[delete("cust", "1|Nora B|z")]).await;
    let rows = "SELECT cust_id || ' ' || name FROM cust ORDER BY cust_id";
    assert_eq!(world.fixture.query(rows).await, ["2 Idun"]);
    // The form that finds conflicts by its WHERE, and other spellings.
    world.specs[0].scripts = vec![
        script(
            "cust",
            "upload_update",
            "UPDATE cust SET name = ?, rep = ? WHERE cust_id = ? AND name = ? AND rep = ?",
        ),
        script(
            "cust",
            "upload_delete",
            "DELETE FROM cust WHERE cust_id = {ml r.1}",
        ),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id, name, rep) VALUES ({ml r.Cust_ID}, {ml r.\"NAME\"}, {ml r.[rep]})",
        ),
    ];
    world.deploy().await.unwrap();
    let mut bert = TestRemote::synced(&world, "bert").await;
    let told = bert
        .upload(&[
            update("cust", "2|Idun|y", "2|Ida C|y"),
            insert("cust", "7|Ole|q"),
        ])
        .await;
    assert_eq!(
        told[0],
        "1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"
    );
    world
        .execute("UPDATE cust SET rep = 'other' WHERE cust_id = 2")
        .await;
    let told = bert
        .upload(&[
            update("cust", "2|Ida C|y", "2|Ida D|y"),
            delete("cust", "7|Ole|q"),
        ])
        .await;
    assert!(
        told[0].ends_with("1 deleted, 1 conflicts, 0 refused"),
        "{told:?}"
    );
    assert_eq!(world.fixture.query(rows).await, ["2 Ida C"]);
}

pub async fn question_marks_that_stand_for_nothing_are_refused<F: Fixture>() {
    let mut world = world::<F>(Vec::new()).await;
    for (table, event, sql, message) in [
        (
            "connection",
            "begin_upload",
            "SELECT ?, ?",
            "has 2 question marks",
        ),
        (
            "cust",
            "upload_insert",
            "INSERT INTO cust VALUES (?, {r.name}, ?)",
            "and names {r.name} beside them",
        ),
        (
            "cust",
            "begin_download_rows",
            "SELECT 1",
            "write begin_download",
        ),
        ("cust", "handle_UploadData", "SELECT 1", "write a handler"),
        (
            "connection",
            "handle_odbc_error",
            "SELECT 1",
            "{s.database_code}",
        ),
    ] {
        world.specs[0].scripts = vec![script(table, event, sql)];
        let error = world.deploy().await.unwrap_err();
        let told = format!("{error} {error:?}");
        assert!(told.contains(message), "{event}: {told}");
    }
}

pub async fn rows_go_before_deletes_and_events_stand_around_their_own_table<F: Fixture>() {
    let events = [
        "begin_upload",
        "begin_upload_rows",
        "end_upload_rows",
        "begin_upload_deletes",
        "end_upload_deletes",
        "end_upload",
        "upload_statistics",
    ];
    let mut scripts = Vec::new();
    for table in ["cust", "item"] {
        for event in events {
            scripts.push(script(table, event, &note(&format!("'{table} {event}'"))));
        }
    }
    let item = "INSERT INTO item (item_id, cust_id, what)
         VALUES ({r.item_id}, {r.cust_id}, {r.what})";
    let noted = |event: &str, sql: &str| {
        let sql = format!("{}; {sql}", note(&format!("'item {event}'")));
        script("item", event, &sql)
    };
    scripts.push(noted("upload_insert", item));
    scripts.push(noted(
        "upload_delete",
        "DELETE FROM item WHERE item_id = {r.item_id}",
    ));
    let mut world = world::<F>(scripts).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("cust", "1|Nora|x")]).await;
    // No script of a table without rows was run.
    assert!(
        journal(&world)
            .await
            .iter()
            .all(|it| it.starts_with("cust"))
    );
    anna.upload(&[insert("item", "1|1|pen")]).await;
    journal(&world).await;
    // The new row has the name that the deleted one gives up: it waits for that.
    anna.upload(&[
        insert("item", "2|2|pen"),
        delete("item", "1|1|pen"),
        insert("cust", "2|Ida|x"),
        delete("cust", "1|Nora|x"),
    ])
    .await;
    let lines = journal(&world).await;
    let place = |line: &str| {
        let found = lines.iter().position(|it| it == line);
        found.unwrap_or_else(|| panic!("no {line} in {lines:?}"))
    };
    for (before, after) in [
        ("cust begin_upload", "item begin_upload"),
        ("item begin_upload", "cust begin_upload_rows"),
        ("cust end_upload_rows", "item begin_upload_rows"),
        ("item begin_upload_rows", "item end_upload_rows"),
        ("item end_upload_rows", "item begin_upload_deletes"),
        ("item begin_upload_deletes", "item upload_delete"),
        ("item upload_delete", "item end_upload_deletes"),
        ("item end_upload_deletes", "cust begin_upload_deletes"),
        ("cust end_upload_deletes", "cust end_upload"),
        ("item end_upload", "cust upload_statistics"),
    ] {
        assert!(place(before) < place(after), "{before}, {after}: {lines:?}");
    }
    let rows = world
        .fixture
        .query("SELECT what FROM item WHERE item_id = 2")
        .await;
    assert_eq!(rows, ["pen"]);
    world.specs[0].upload_order = UploadOrder::DeletesFirst;
    world.deploy().await.unwrap();
    let mut bert = TestRemote::synced(&world, "bert").await;
    bert.upload(&[insert("item", "3|2|ink"), delete("item", "2|2|pen")])
        .await;
    let lines = journal(&world).await;
    let place = |line: &str| lines.iter().position(|it| it == line).unwrap();
    assert!(place("item upload_delete") < place("item end_upload_deletes"));
    assert!(place("item end_upload_deletes") < place("item begin_upload_rows"));
    assert!(place("item upload_insert") < place("item end_upload_rows"));
}

pub async fn conflicts_of_inserts_and_deletes_are_forced_where_no_script_writes_rows<F: Fixture>() {
    let world = world::<F>(vec![
        script(
            "cust",
            "upload_old_row_insert",
            &note("'old ' || {o.cust_id} || {o.name}"),
        ),
        script(
            "cust",
            "upload_new_row_insert",
            &note("'new ' || {r.cust_id} || {r.name}"),
        ),
        script(
            "cust",
            "resolve_conflict",
            &note("'resolve ' || {s.username} || {s.table}"),
        ),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (5, 'Five', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("cust", "1|Nora|x")]).await;
    assert_eq!(journal(&world).await, ["new 1Nora", "resolve annacust"]);
    anna.upload(&[update("cust", "5|Five|x", "5|Fem|x")]).await;
    assert_eq!(
        journal(&world).await,
        ["old 5Five", "new 5Fem", "resolve annacust"]
    );
    let told = anna.upload(&[delete("cust", "5|Five|x")]).await;
    assert_eq!(journal(&world).await, ["old 5Five", "resolve annacust"]);
    // The row is as the scripts have made it: it is still there.
    assert!(told.iter().any(|it| it.contains("5|Five|x")), "{told:?}");
    let rows = world.fixture.query("SELECT cust_id FROM cust").await;
    assert_eq!(rows, ["5"]);
}

pub async fn temporary_tables_of_earlier_scripts_are_there_when_scripts_are_read<F: Fixture>() {
    let create = "CREATE TEMP TABLE IF NOT EXISTS fought (cust_id integer, name text);
         DELETE FROM fought";
    let mut world = world::<F>(vec![
        // By the names of the files, they would be read before the table is there.
        script("cust", "end_upload", &note("(SELECT name FROM fought)")),
        script("cust", "begin_upload", create),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO fought VALUES ({r.cust_id}, {r.name})",
        ),
    ])
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("cust", "1|Nora|x")]).await;
    assert_eq!(journal(&world).await, ["Nora"]);
    world.specs[0].scripts.push(script(
        "cust",
        "end_upload_rows",
        "INSERT INTO fught VALUES (1)",
    ));
    world.specs[0].scripts.push(script(
        "item",
        "upload_insert",
        "INSERT INTO itm VALUES (1)",
    ));
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(error.contains("fught") && error.contains("itm"), "{error}");
    assert!(!error.contains("aborted"), "{error}");
}

pub async fn a_script_that_fails_is_passed_over_if_handle_error_says_so<F: Fixture>() {
    let fails = "INSERT INTO journal (id, line) VALUES (1, 'once')";
    let handle = "SELECT CASE {s.table} WHEN 'cust' THEN 1000 ELSE 3000 END AS action_code";
    let report = note(
        "{s.action_code} || ' ' || {s.table} || ' ' || {s.error_code} || ' ' || {s.database_code}",
    );
    let mut scripts = vec![
        script("cust", "begin_upload_rows", fails),
        script("item", "begin_upload_rows", fails),
        script("connection", "handle_error", handle),
        script("connection", "report_error", &report),
        script("connection", "end_upload", &note("'errors ' || {s.errors}")),
    ];
    scripts[4] = script(
        "connection",
        "upload_statistics",
        &note("'errors ' || {s.errors}"),
    );
    let world = world::<F>(scripts).await;
    world
        .execute("INSERT INTO journal VALUES (1, 'there')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let told = anna.upload(&[insert("cust", "1|Nora|x")]).await;
    assert!(told[0].starts_with("1 inserted"), "{told:?}");
    let code = match F::DIALECT {
        Dialect::Postgres => "23505",
        Dialect::Sqlite => "1555",
        Dialect::Mysql => "1062",
    };
    let lines = world
        .fixture
        .query("SELECT line FROM journal ORDER BY id")
        .await;
    let passed = format!("1000 cust script_failed {code}");
    assert_eq!(lines, ["there", "errors 1", &passed]);
    let upload = anna.next_upload(&[insert("item", "1|1|pen")]);
    let error = format!("{:?}", anna.apply(upload).await);
    assert!(error.contains("begin_upload_rows"), "{error}");
    let lines = world
        .fixture
        .query("SELECT line FROM journal ORDER BY id")
        .await;
    // It is of no table: the sync has failed as a whole.
    assert_eq!(lines[3..], [format!("3000  script_failed {code}")]);
}

pub async fn what_ends_a_sync_before_its_download_is_reported<F: Fixture>() {
    let world = world::<F>(vec![
        script(
            "connection",
            "begin_synchronization",
            "INSERT INTO journal (id, line) VALUES (1, 'once')",
        ),
        script(
            "connection",
            "report_error",
            &note("{s.action_code} || ' ' || {s.error_code}"),
        ),
    ])
    .await;
    world
        .execute("INSERT INTO journal VALUES (1, 'there')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let error = anna
        .run_scripts(ScriptTransaction::Begin)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("begin_synchronization"),
        "{error}"
    );
    let lines = world
        .fixture
        .query("SELECT line FROM journal ORDER BY id")
        .await;
    assert_eq!(lines, ["there", "3000 script_failed"]);
}

pub async fn figures_of_a_sync_are_counted<F: Fixture>() {
    let figures = |names: &[&str]| {
        let values: Vec<String> = names.iter().map(|it| format!("{{s.{it}}}")).collect();
        note(&values.join(" || ' ' || "))
    };
    let cursor = "SELECT cust_id, name, rep FROM cust";
    let mut scripts = vec![
        script("cust", "download_cursor", cursor),
        script("cust", "download_delete_cursor", "--{ml_ignore}"),
        script("item", "download_cursor", "{ml_ignore}"),
        script(
            "cust",
            "upload_insert",
            "INSERT INTO cust VALUES ({r.cust_id}, {r.name}, {r.rep})",
        ),
        script(
            "cust",
            "download_statistics",
            &figures(&["table", "fetched_rows", "filtered_rows", "errors"]),
        ),
        script(
            "connection",
            "time_statistics",
            &figures(&["event_name", "number_of_calls"]),
        ),
        script(
            "connection",
            "synchronization_statistics",
            &figures(&["warnings", "errors", "deadlocks", "connection_retries"]),
        ),
        script(
            "connection",
            "end_synchronization",
            &figures(&["synchronization_ok"]),
        ),
    ];
    if F::DIALECT == Dialect::Postgres {
        scripts.push(script("cust", "begin_upload_rows", "SELECT warn()"));
    }
    let mut world = world::<F>(Vec::new()).await;
    if F::DIALECT == Dialect::Postgres {
        world
            .execute(
                "CREATE FUNCTION warn() RETURNS integer LANGUAGE plpgsql
                 AS $$ BEGIN RAISE WARNING 'one'; RAISE NOTICE 'none'; RETURN 1; END $$",
            )
            .await;
    }
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    world
        .execute("INSERT INTO cust VALUES (5, 'Five', 'x')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.now_ms = now_ms();
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    anna.upload(&[insert("cust", "1|Nora|x"), insert("cust", "5|Fem|x")])
        .await;
    let notes = anna.scripts.clone();
    anna.download().await;
    anna.scripts = notes;
    anna.run_scripts(ScriptTransaction::End).await.unwrap();
    let lines = journal(&world).await;
    let warnings = if F::DIALECT == Dialect::Postgres {
        1
    } else {
        0
    };
    // A table that comes whole has what the remote has sent, too.
    assert_eq!(lines[0], "cust 2 0 1", "{lines:?}");
    assert_eq!(
        lines[1..3],
        ["1".to_owned(), format!("{warnings} 1 0 0")],
        "{lines:?}"
    );
    // The one that is refused is run again by itself.
    let inserts = lines.iter().find(|it| it.starts_with("upload_insert "));
    let runs = inserts.and_then(|it| it.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(runs.is_some_and(|it| it >= 2), "{lines:?}");
    assert!(lines.contains(&"download_cursor 1".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"end_synchronization 1".to_owned()),
        "{lines:?}"
    );
    anna.now_ms = now_ms();
    anna.scripts = ScriptNotes::default();
    anna.upload(&[insert("cust", "2|Ole|x")]).await;
    anna.download().await;
    assert_eq!(journal(&world).await, ["cust 3 1 0"]);
}
