//! Scripts as they are declared: which can be, and which of them a remote gets.

use tidewater_centre::{ParameterSpec, ScriptSpec, TableSpec};

use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, update};
use crate::scripting::{script, world};
use crate::world::{DeployedCentre, everyone};

pub async fn parameters_of_columns_have_their_type_where_none_follows<F: Fixture>() {
    let sql = "UPDATE cust SET name = {r.name} || ({r.cust_id} - {o.cust_id}) WHERE cust_id = {r.cust_id}";
    let world = world::<F>(vec![script("cust", "upload_update", sql)]).await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'x')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[update("cust", "1|Nora|x", "1|Nora B.|x")])
        .await;
    let rows = world.fixture.query("SELECT name FROM cust").await;
    assert_eq!(rows, ["Nora B.0"]);
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
            "download_cursor",
            "SELECT name, cust_id, rep FROM cust",
            "yields the column \"name\" in another place",
        ),
        (
            "connection",
            "authenticate_parameters",
            "SELECT 4000 AS authentication_staus",
            "yields a column \"authentication_staus\", which sets nothing",
        ),
        (
            "connection",
            "authenticate_parameters",
            "SELECT 4000 AS authentication_status, 1 AS level",
            "yields a column \"level\", which sets nothing",
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
        (
            "cust",
            "upload_delete",
            "DELETE FROM cust WHERE cust_id = {o.cust_id} AND cust_id <> $2",
            "has parameters of ",
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
    world.specs[0].tables[0].handled.upload = true;
    let insert = "INSERT INTO cust (cust_id) VALUES ({r.cust_id})";
    world.specs[0].scripts = vec![script("cust", "upload_insert", insert)];
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(
        error.contains("handler is asked about uploaded rows"),
        "{error}"
    );
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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
    // Who may have which is a parameter like any other.
    world.specs[0].parameters = vec![ParameterSpec {
        name: "script_version".into(),
        allowed: Some("SELECT 'v2' WHERE {s.username} = 'bela'".into()),
    }];
    world.deploy().await.unwrap();
    let mut cora = TestRemote::new(&world, "cora").await;
    cora.parameters.insert("script_version".into(), "v2".into());
    let upload = cora.next_upload(&[insert("cust", "3|x|x")]);
    let error = format!("{:?}", cora.apply(upload).await);
    assert!(error.contains("NotAllowed"), "{error}");
}

/// Which version it has, a remote says itself: none is a way round what another says of rows.
pub async fn who_names_no_version_gets_round_no_script<F: Fixture>() {
    let of_version =
        |table: &str, event: &str, sql: &str| ScriptSpec::at("scripts", ["fs1", table, event], sql);
    let mut world = world::<F>(vec![
        of_version(
            "cust",
            "download_cursor",
            "SELECT cust_id, name, rep FROM cust WHERE rep = {s.username}",
        ),
        of_version(
            "cust",
            "upload_insert",
            "INSERT INTO cust (cust_id, name, rep) VALUES ({r.cust_id}, {r.name}, {s.username})",
        ),
        // It has a script, and none of the table.
        script("connection", "end_upload", "SELECT 1"),
    ])
    .await;
    world
        .execute("INSERT INTO cust VALUES (1, 'Nora', 'anna'), (2, 'Otto', 'bela')")
        .await;
    let warnings = world.deploy().await.unwrap().warnings.join("; ");
    let told = "script version \"default\" is not served";
    assert!(warnings.contains(told), "{warnings}");
    let refuses = async |world: &DeployedCentre<F>, version: Option<&str>, word: &str| {
        let mut anna = TestRemote::new(world, "anna").await;
        let set = version.map(|it| ("script_version".to_owned(), it.to_owned()));
        anna.parameters.extend(set);
        let error = anna.try_download(&[]).await.unwrap_err();
        let hint = error.hint();
        assert!(hint.contains("--script-version"), "{hint}");
        let error = error.to_string();
        assert!(error.contains(word) && error.contains("fs1"), "{error}");
        let upload = anna.next_upload(&[insert("cust", "3|x|bela")]);
        let error = format!("{:?}", anna.apply(upload).await);
        assert!(error.contains(word), "{error}");
    };
    refuses(&world, None, "no download_cursor").await;
    refuses(&world, Some("default"), "no download_cursor").await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.parameters
        .insert("script_version".into(), "fs1".into());
    anna.upload(&[insert("cust", "3|Pia|x")]).await;
    anna.download().await;
    assert_eq!(anna.rows("cust"), ["1|Nora|anna", "3|Pia|anna"]);
    // A script for the rows that come down leaves open who writes them.
    let mut cursor = world.specs[0].scripts[0].clone();
    cursor.version = "default".into();
    world.specs[0].scripts.push(cursor);
    world.deploy().await.unwrap();
    refuses(&world, None, "no scripts for uploaded rows").await;
    world.specs[0].scripts.pop();
    world.specs[0].script_versions = vec!["fs1".into()];
    let warnings = world.deploy().await.unwrap().warnings.join("; ");
    assert!(!warnings.contains(told), "{warnings}");
    refuses(&world, None, "does not name it").await;
    // Whoever wants what is generated for the others says so.
    world.specs[0].script_versions.push("default".into());
    world.deploy().await.unwrap();
    let mut cora = TestRemote::new(&world, "cora").await;
    cora.download().await;
    assert_eq!(cora.rows("cust").len(), 3);
    // Who names none has named `default`, and that is judged, too.
    world.specs[0].parameters = vec![ParameterSpec {
        name: "script_version".into(),
        allowed: Some("SELECT CASE {s.username} WHEN 'cora' THEN 'default' ELSE 'fs1' END".into()),
    }];
    world.deploy().await.unwrap();
    TestRemote::new(&world, "cora").await.download().await;
    let mut dora = TestRemote::new(&world, "dora").await;
    let error = dora.try_download(&[]).await.unwrap_err().to_string();
    assert!(error.contains("\"default\" is not allowed"), "{error}");
    let upload = dora.next_upload(&[insert("cust", "4|x|bela")]);
    let error = format!("{:?}", dora.apply(upload).await);
    assert!(error.contains("NotAllowed"), "{error}");
}
