//! What scripts leave in the session of a connection, and who finds it there; and what of rows that
//! a script does not give somebody is shown.

use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::{CentreError, ScriptSpec, UploadOutcome};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone};

const DDL: &str = "
    CREATE TABLE cust (cust_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, rep TEXT NOT NULL);
    CREATE TABLE journal (id INTEGER NOT NULL PRIMARY KEY, line TEXT NOT NULL)";

fn script(version: &str, table: &str, event: &str, sql: &str) -> ScriptSpec {
    ScriptSpec::at("scripts", [version, table, event], sql)
}

async fn world<F: Fixture>(scripts: Vec<ScriptSpec>) -> DeployedCentre<F> {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("cust")]).await;
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    world
}

/// A statement that leaves a word in the session.
fn leave<F: Fixture>(word: &str) -> String {
    match F::DIALECT {
        Dialect::Postgres => format!(
            "SELECT set_config('app.left',
                 coalesce(current_setting('app.left', true), '') || '{word} ', false) IS NULL"
        ),
        Dialect::Sqlite => format!("CREATE TEMP TABLE IF NOT EXISTS left_{word} (x)"),
        Dialect::Mysql => format!("SET @app_left = concat(coalesce(@app_left, ''), '{word} ')"),
    }
}

/// The words that are in the session.
fn left<F: Fixture>() -> &'static str {
    match F::DIALECT {
        Dialect::Postgres => "coalesce(trim(current_setting('app.left', true)), '')",
        Dialect::Sqlite => {
            "(SELECT coalesce(group_concat(substr(name, 6), ' '), '') FROM
              (SELECT name FROM sqlite_temp_master WHERE name LIKE 'left_%' ORDER BY rowid))"
        }
        Dialect::Mysql => "coalesce(trim(@app_left), '')",
    }
}

/// A statement that notes what is in the session.
fn note<F: Fixture>(event: &str) -> String {
    format!(
        "INSERT INTO journal (id, line)
         SELECT coalesce(max(id), 0) + 1, '{event}: ' || {} FROM journal",
        left::<F>()
    )
}

async fn journal<F: Fixture>(world: &DeployedCentre<F>) -> Vec<String> {
    let select = "SELECT line FROM journal ORDER BY id";
    let lines = world.fixture.query(select).await;
    world.execute("DELETE FROM journal").await;
    lines.iter().map(|it| it.trim().to_owned()).collect()
}

fn noted<F: Fixture>(of: &[(&str, &str, &str)]) -> Vec<ScriptSpec> {
    let scripts = of.iter().map(|(version, event, word)| {
        let sql = match word.is_empty() {
            true => note::<F>(event),
            false => format!("{}; {}", leave::<F>(word), note::<F>(event)),
        };
        script(version, "connection", event, &sql)
    });
    scripts.collect()
}

/// Interleaving 37.
pub async fn what_a_version_leaves_in_a_session_no_other_sees<F: Fixture>() {
    let mut scripts = noted::<F>(&[
        ("default", "begin_connection", "one"),
        ("default", "end_upload", ""),
        ("default", "end_connection", ""),
        ("v2", "begin_connection", "two"),
        ("v2", "end_upload", ""),
    ]);
    // A version that leaves nothing is served like what is generated.
    let plain = format!(
        "INSERT INTO cust (cust_id, name, rep) VALUES ({{r.cust_id}}, {}, 'v3')",
        left::<F>()
    );
    scripts.push(script("v3", "cust", "upload_insert", &plain));
    let mut world = world::<F>(scripts).await;
    world.specs[0].script_versions = ["default", "v2", "v3"].map(str::to_owned).into();
    world.deploy().await.unwrap();
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.upload(&[insert("cust", "1|x|x")]).await;
    anna.upload(&[insert("cust", "2|x|x")]).await;
    let of_default = [
        "begin_connection: one",
        "end_upload: one",
        "end_upload: one",
    ];
    assert_eq!(journal(&world).await, of_default);
    anna.parameters.insert("script_version".into(), "v2".into());
    anna.upload(&[insert("cust", "3|x|x")]).await;
    let of_two = [
        "end_connection: one",
        "begin_connection: two",
        "end_upload: two",
    ];
    assert_eq!(journal(&world).await, of_two);
    anna.parameters.insert("script_version".into(), "v3".into());
    anna.upload(&[insert("cust", "4|x|x")]).await;
    let rows = "SELECT '<' || name || '>' FROM cust WHERE cust_id = 4";
    assert_eq!(world.fixture.query(rows).await, ["<>"]);
    // One list of several versions shares no session either.
    let mut bela = TestRemote::new(&world, "bela").await;
    anna.parameters.insert("script_version".into(), "v2".into());
    let uploads = vec![
        bela.next_upload(&[insert("cust", "5|x|x")]),
        anna.next_upload(&[insert("cust", "6|x|x")]),
    ];
    let outcomes = bela.worker.apply(uploads).await.unwrap();
    let are_applied = |it: &UploadOutcome| matches!(it, UploadOutcome::Applied { .. });
    assert!(outcomes.iter().all(are_applied), "{outcomes:?}");
    assert_eq!(
        journal(&world).await,
        [
            "begin_connection: one",
            "end_upload: one",
            "end_connection: one",
            "begin_connection: two",
            "end_upload: two",
        ]
    );
}

pub async fn what_a_sync_leaves_in_its_session_is_there_up_to_its_end<F: Fixture>() {
    let world = world::<F>(noted::<F>(&[
        ("default", "authenticate_parameters", ""),
        ("default", "begin_synchronization", "begun"),
        ("default", "begin_upload", "uploading"),
        ("default", "begin_download", "downloading"),
        ("default", "end_synchronization", ""),
    ]))
    .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    anna.upload(&[insert("cust", "1|x|x")]).await;
    anna.download().await;
    anna.run_scripts(ScriptTransaction::End).await.unwrap();
    assert_eq!(
        journal(&world).await,
        [
            "authenticate_parameters:",
            "begin_synchronization: begun",
            "begin_upload: begun uploading",
            "begin_download: begun uploading downloading",
            "end_synchronization: begun uploading downloading",
        ]
    );
    // On another connection, what stands at its beginning for the session is run once more.
    let mut bela = TestRemote::new(&world, "bela").await;
    bela.run_scripts(ScriptTransaction::Begin).await.unwrap();
    bela.worker = world.worker().await;
    bela.upload(&[insert("cust", "2|x|x")]).await;
    bela.run_scripts(ScriptTransaction::End).await.unwrap();
    assert_eq!(
        journal(&world).await,
        [
            "authenticate_parameters:",
            "begin_synchronization: begun",
            "begin_synchronization: begun",
            "begin_upload: begun uploading",
            "end_synchronization: begun uploading",
        ]
    );
}

pub async fn a_script_that_fails_at_the_beginning_of_a_connection_leaves_nothing<F: Fixture>() {
    let fail = format!(
        "{}; INSERT INTO journal (id, line) VALUES (1, 'there already')",
        leave::<F>("half")
    );
    let mut scripts = noted::<F>(&[("default", "end_upload", "")]);
    scripts.push(script("default", "connection", "begin_connection", &fail));
    let world = world::<F>(scripts).await;
    world
        .execute("INSERT INTO journal VALUES (1, 'kept')")
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let upload = anna.next_upload(&[insert("cust", "1|x|x")]);
    let error = anna.worker.apply(vec![upload.clone()]).await.unwrap_err();
    assert!(error.to_string().contains("begin_connection"), "{error}");
    world.execute("DELETE FROM journal").await;
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Applied { .. }),
        "{outcome:?}"
    );
    assert_eq!(journal(&world).await, ["there already", "end_upload: half"]);
}

pub async fn a_row_that_a_script_does_not_give_is_not_shown<F: Fixture>() {
    let cursor = "SELECT cust_id, name, rep FROM cust WHERE rep = {s.username} -- his own";
    let mut world = world::<F>(vec![script("default", "cust", "download_cursor", cursor)]).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'anna'), (2, 'Sven', 'bela')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("cust"), ["1|Nora|anna"]);
    world
        .execute("UPDATE cust SET name = 'N' WHERE cust_id = 1")
        .await;
    let told = anna
        .upload(&[
            update("cust", "1|Nora|anna", "1|NORA|anna"),
            insert("cust", "2|mine|anna"),
            insert("cust", "3|new|anna"),
        ])
        .await;
    assert_eq!(
        told,
        [
            "1 inserted, 0 updated, 0 deleted, 1 conflicts, 1 refused",
            "refused cust [2] Insert key_in_use: key in use",
            "conflict cust: 1|N|anna",
        ]
    );
    for change in [
        update("cust", "2|guess|anna", "2|mine|anna"),
        delete("cust", "2|guess|anna"),
    ] {
        let told = anna.upload(&[change]).await.join("; ");
        assert!(told.contains("1 refused"), "{told}");
        assert!(!told.contains("Sven") && !told.contains("bela"), "{told}");
    }
    // Nor by what resolves conflicts, or by what a script has written past him.
    world.specs[0].tables[0].conflict.resolve = vec!["client_wins".into()];
    world.deploy().await.unwrap();
    let told = anna
        .upload(&[update("cust", "2|guess|anna", "2|mine|anna")])
        .await;
    assert!(told[0].ends_with("1 refused"), "{told:?}");
    let rows = "SELECT name FROM cust WHERE cust_id = 2";
    assert_eq!(world.fixture.query(rows).await, ["Sven"]);
    world.specs[0].tables[0].conflict.resolve = Vec::new();
    let blind = "UPDATE cust SET rep = rep WHERE cust_id = {r.cust_id}";
    let write = script("default", "cust", "upload_update", blind);
    world.specs[0].scripts.push(write);
    world.deploy().await.unwrap();
    let told = anna
        .upload(&[
            update("cust", "2|guess|anna", "2|mine|anna"),
            update("cust", "3|new|anna", "3|newer|anna"),
        ])
        .await;
    assert_eq!(
        told,
        [
            "0 inserted, 2 updated, 0 deleted, 0 conflicts, 0 refused",
            "made cust: 3|new|anna",
        ]
    );
}

/// What replaces all that a remote has of the table has its own rows, too.
pub async fn rows_that_a_remote_uploads_stay_when_a_script_gives_all_of_its_rows<F: Fixture>() {
    let cursor = "SELECT cust_id, name, rep FROM cust WHERE rep = {s.username}";
    let world = world::<F>(vec![script("default", "cust", "download_cursor", cursor)]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let new = [insert("cust", "1|Nora|anna")];
    anna.write(&new);
    anna.upload(&new).await;
    // What it had from before counts for nothing, so that all of them come.
    anna.checkpoint = None;
    let received = anna.download().await;
    assert_eq!(received.replaced, ["cust"]);
    assert_eq!(anna.rows("cust"), ["1|Nora|anna"]);
}

/// A row that a remote asks for is one row, of which the script is asked, and no other table's affair.
pub async fn a_row_that_is_asked_for_comes_by_the_script_of_its_table<F: Fixture>() {
    let mut world =
        DeployedCentre::<F>::new(DDL, vec![everyone("cust"), everyone("journal")]).await;
    world.specs[0].scripts = vec![
        script(
            "default",
            "cust",
            "download_cursor",
            "SELECT cust_id, name, rep FROM cust
             WHERE rep = {s.username} AND {s.last_download} < '1950-01-01'",
        ),
        script("default", "journal", "download_cursor", "--{ml_ignore}"),
    ];
    world.deploy().await.unwrap();
    world
        .execute(
            "INSERT INTO cust VALUES (1, 'Nora', 'anna'), (2, 'Otto', 'bela'), (3, 'Pia', 'anna')",
        )
        .await;
    let mut anna = TestRemote::new(&world, "anna").await;
    // What is downloaded of a table by nobody is the device's own from the first sync on.
    anna.write(&[insert("journal", "7|mine")]);
    let received = anna.download().await;
    assert_eq!(received.replaced, ["cust"]);
    assert_eq!(anna.rows("journal"), ["7|mine"]);
    assert_eq!(anna.rows("cust"), ["1|Nora|anna", "3|Pia|anna"]);
    anna.write(&[update("cust", "1|Nora|anna", "1|Nora B.|anna")]);
    anna.write(&[insert("cust", "2|x|x")]);
    let asked = [
        ("cust", "1|x|x"),
        // Somebody else's, and one that is nobody's.
        ("cust", "2|x|x"),
        ("cust", "9|x|x"),
        ("journal", "7|x"),
    ];
    let received = anna.download_requesting(&asked).await;
    assert!(received.replaced.is_empty(), "{received:?}");
    assert_eq!(anna.rows("cust"), ["1|Nora|anna", "3|Pia|anna"]);
    assert_eq!(anna.rows("journal"), ["7|mine"]);
    // Nor does it go where all is sent anew.
    anna.checkpoint = None;
    anna.download().await;
    assert_eq!(anna.rows("journal"), ["7|mine"]);
}

/// What a query fails of may be a row that somebody has written since: the error says where to look.
pub async fn a_script_that_fails_while_rows_are_downloaded_is_named<F: Fixture>() {
    let fails_by_a_row = match F::DIALECT {
        Dialect::Sqlite => "json(rep) IS NOT NULL",
        _ => "rep IN (SELECT rep FROM cust) AND 'x' = (SELECT 'x' FROM cust)",
    };
    let all = "SELECT cust_id, name, rep FROM cust";
    let rows = format!("{all} WHERE {fails_by_a_row}");
    let keys = format!("SELECT cust_id FROM cust WHERE {fails_by_a_row}");
    for (event, scripts) in [
        ("download_cursor", [&*rows, "--{ml_ignore}"]),
        ("download_delete_cursor", [all, &*keys]),
    ] {
        let events = ["download_cursor", "download_delete_cursor"];
        let scripts = events.iter().zip(scripts);
        let scripts = scripts.map(|(event, sql)| script("default", "cust", event, sql));
        let world = world::<F>(scripts.collect()).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world
            .execute("INSERT INTO cust VALUES (1, 'Nora', 'anna'), (2, 'Sven', 'bela')")
            .await;
        let error = anna.try_download(&[]).await.unwrap_err();
        let CentreError::Script { file, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*file, format!("scripts/default/cust/{event}.sql"));
    }
}

/// Scripts that were changed do not find what those before them have left; nor does any sync find
/// what one that failed has left.
pub async fn a_session_ends_with_a_deployment_and_with_a_failure<F: Fixture>() {
    let begin = "DELETE FROM st; INSERT INTO st (x) VALUES ('a')";
    let create = |columns: &str| format!("CREATE TEMP TABLE IF NOT EXISTS st ({columns})");
    let insert_row =
        "INSERT INTO cust (cust_id, name, rep) VALUES ({r.cust_id}, {r.name}, (SELECT x FROM st))";
    let mut scripts = vec![
        script(
            "default",
            "connection",
            "begin_synchronization",
            &format!("{}; {begin}", create("x text")),
        ),
        script("default", "cust", "upload_insert", insert_row),
    ];
    let mut world = world::<F>(scripts.clone()).await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    anna.upload(&[insert("cust", "1|x|x")]).await;
    scripts[0].sql = format!(
        "{}; {}",
        create("x text, y text"),
        begin.replace("(x) VALUES ('a')", "(x, y) VALUES ('a', 'b')")
    );
    scripts[1].sql = insert_row.replace("SELECT x", "SELECT x || y");
    world.specs[0].scripts = scripts;
    world.deploy().await.unwrap();
    anna.scripts = Default::default();
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    anna.upload(&[insert("cust", "2|x|x")]).await;
    let all = "SELECT rep FROM cust ORDER BY cust_id";
    assert_eq!(world.fixture.query(all).await, ["a", "ab"]);
    // What the failed sync has left would be in the way of the next.
    world.specs[0].scripts = noted::<F>(&[
        ("default", "begin_synchronization", "begun"),
        ("default", "begin_upload", ""),
    ]);
    let fails = "INSERT INTO cust (cust_id, name, rep)
        SELECT {r.cust_id}, {r.name}, CASE WHEN {r.name} = 'bad' THEN NULL ELSE 'x' END";
    let ends = "SELECT 3000 AS action_code";
    let more = [
        script("default", "cust", "upload_insert", fails),
        script("default", "cust", "handle_error", ends),
    ];
    world.specs[0].scripts.extend(more);
    world.deploy().await.unwrap();
    anna.scripts = Default::default();
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    journal(&world).await;
    let upload = anna.next_upload(&[insert("cust", "3|bad|x")]);
    let error = format!("{:?}", anna.apply(upload).await);
    assert!(error.contains("handle_error"), "{error}");
    anna.scripts = Default::default();
    anna.run_scripts(ScriptTransaction::Begin).await.unwrap();
    let mut upload = anna.next_upload(&[insert("cust", "3|good|x")]);
    // It is the first that takes effect under this number.
    upload.sequence -= 1;
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Applied { .. }),
        "{outcome:?}"
    );
    let begun = "begin_synchronization: begun";
    assert_eq!(journal(&world).await, [begun, "begin_upload: begun"]);
}

pub async fn nobody_is_woken_by_a_table_of_which_a_script_says_who_gets_what<F: Fixture>() {
    let cursor = "SELECT cust_id, name, rep FROM cust WHERE rep = {s.username}";
    let mut world =
        DeployedCentre::<F>::new(DDL, vec![everyone("cust"), everyone("journal")]).await;
    world.specs[0].scripts = vec![script("v2", "cust", "download_cursor", cursor)];
    world.specs[0].script_versions = vec!["default".into(), "v2".into()];
    world.deploy().await.unwrap();
    let mut anna = TestRemote::new(&world, "anna").await;
    let of_all = anna.download().await.holding.unwrap().interests().len();
    let mut bela = TestRemote::new(&world, "bela").await;
    bela.parameters.insert("script_version".into(), "v2".into());
    let of_his = bela.download().await.holding.unwrap().interests().len();
    assert!(0 < of_his && of_his < of_all, "{of_his} of {of_all}");
}
