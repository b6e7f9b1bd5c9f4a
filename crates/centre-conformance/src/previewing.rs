//! What a changed configuration would mean to remotes, before it is deployed.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_centre::preview::{Preview, PreviewRequest};
use tidewater_centre::{
    CentreError, PublicationSpec, RuleBy, RuleSpec, ScriptSpec, TableSpec, WindowLength,
    WindowSpec, WindowUnit,
};
use tidewater_protocol::Direction;

use crate::explaining::register;
use crate::families::{OWNED, follows};
use crate::fixture::Fixture;
use crate::remote::TestRemote;
use crate::world::{
    DeployedCentre, NOW_MS, PUBLICATION, REGIONS, SHOP_DDL, everyone, partitioned, publication,
    shop,
};

fn asked(rows: usize) -> PreviewRequest {
    PreviewRequest {
        rows,
        now_ms: NOW_MS,
        ..PreviewRequest::default()
    }
}

/// A remote that has signed in and downloaded.
async fn synced<F: Fixture>(world: &DeployedCentre<F>, name: &str) -> TestRemote {
    let mut remote = TestRemote::new(world, name).await;
    register(world, &mut remote).await;
    remote.download().await;
    remote
}

/// What comes and goes, a line for each remote and table.
fn told(preview: &Preview) -> Vec<String> {
    let of_remotes = preview.remotes.iter().flat_map(|remote| {
        remote.tables.iter().map(|table| {
            format!(
                "{} {} +{} -{} {:?} {:?}",
                remote.user,
                table.table,
                table.added,
                table.removed,
                table.added_keys.join(" "),
                table.removed_keys.join(" ")
            )
        })
    });
    let mut told: Vec<String> = of_remotes.collect();
    told.sort();
    told
}

/// The keys that a remote has of each table, as JSON would have them.
fn keys(remote: &TestRemote) -> BTreeMap<String, BTreeSet<String>> {
    let tables = remote.schema.tables.iter();
    let of_tables = tables.map(|table| {
        let rows = remote.rows(&table.name);
        let keys = rows.iter().map(|row| {
            let values: Vec<&str> = row.split('|').collect();
            format!("[{}]", values[table.key[0]])
        });
        (table.name.clone(), keys.collect())
    });
    of_tables.collect()
}

/// Previews publications, deploys them, and checks that what remotes then have is what was told.
async fn assert_comes_true<F: Fixture>(
    world: &mut DeployedCentre<F>,
    tables: Vec<TableSpec>,
    users: &[&str],
) -> Vec<String> {
    let specs = vec![publication(PUBLICATION, tables)];
    let mut before = Vec::new();
    for user in users {
        before.push(keys(&synced(world, user).await));
    }
    let preview = world.centre.preview(&specs, &asked(1_000)).await.unwrap();
    world.specs = specs;
    world.deploy().await.unwrap();
    for (user, before) in users.iter().zip(before) {
        let after = keys(&TestRemote::synced(world, user).await);
        let nothing = BTreeSet::new();
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let of_user = preview.remotes.iter().find(|it| it.user == *user);
        for name in names {
            let (was, is) = (
                before.get(name).unwrap_or(&nothing),
                after.get(name).unwrap_or(&nothing),
            );
            let table = of_user.and_then(|it| it.tables.iter().find(|it| it.table == *name));
            let of = |keys: Option<&Vec<String>>| -> BTreeSet<String> {
                keys.into_iter().flatten().cloned().collect()
            };
            let added: BTreeSet<String> = is.difference(was).cloned().collect();
            let removed: BTreeSet<String> = was.difference(is).cloned().collect();
            assert_eq!(of(table.map(|it| &it.added_keys)), added, "{user} {name}");
            assert_eq!(
                of(table.map(|it| &it.removed_keys)),
                removed,
                "{user} {name}"
            );
        }
    }
    told(&preview)
}

pub async fn a_changed_query_tells_which_rows_come_and_go<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let _ = synced(&world, "anna").await;
    let traces = world.fixture.traces().await;
    let swapped = "SELECT CASE region WHEN 'north' THEN 'south' ELSE 'north' END
                   FROM visit_plan WHERE login = {s.username} -- swapped";
    let tables = || {
        vec![
            partitioned("purchase", &["region"], REGIONS),
            partitioned("customer", &["region"], swapped),
            everyone("product"),
        ]
    };
    let specs = vec![publication(PUBLICATION, tables())];
    let preview = world.centre.preview(&specs, &asked(1)).await.unwrap();
    assert_eq!(told(&preview), [r#"anna customer +1 -2 "[3]" "[1]""#]);
    assert_eq!((preview.added, preview.removed), (1, 2));
    assert!(preview.changes.is_empty() && preview.notes.is_empty());
    let counted = world.centre.preview(&specs, &asked(0)).await.unwrap();
    assert_eq!(told(&counted), [r#"anna customer +1 -2 "" """#]);
    // Nothing was changed: the old configuration is still all there, and the new one is not.
    assert_eq!(world.fixture.traces().await, traces);
    let report = world
        .centre
        .deploy(&world.specs, true, NOW_MS)
        .await
        .unwrap();
    assert!(report.steps.is_empty(), "{report:?}");
    assert_comes_true(&mut world, tables(), &["berta", "clara"]).await;
}

pub async fn what_is_deployed_already_changes_nothing<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let _ = synced(&world, "anna").await;
    let preview = world.centre.preview(&world.specs, &asked(5)).await.unwrap();
    let nothing = Preview {
        remotes_looked_at: 1,
        ..Preview::default()
    };
    assert_eq!(preview, nothing);
}

pub async fn tables_and_columns_that_come_and_go_are_told<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let _ = synced(&world, "anna").await;
    let tables = || {
        vec![
            TableSpec {
                columns: Some(vec!["customer_id".into(), "region".into(), "name".into()]),
                ..partitioned("customer", &["region"], REGIONS)
            },
            TableSpec {
                direction: Direction::Upload,
                ..everyone("product")
            },
            TableSpec {
                direction: Direction::Download,
                ..partitioned("visit_plan", &["login"], OWNED)
            },
        ]
    };
    let specs = vec![publication(PUBLICATION, tables())];
    let preview = world.centre.preview(&specs, &asked(9)).await.unwrap();
    let changes = preview.changes.iter().map(|it| {
        let sign = if it.comes { "+" } else { "-" };
        let column = it.column.as_deref().map(|it| format!(".{it}"));
        format!(
            "{sign}{}{}",
            it.table.as_deref().unwrap_or_default(),
            column.unwrap_or_default()
        )
    });
    let changes: Vec<String> = changes.collect();
    assert_eq!(changes, ["-customer.email", "-purchase", "+visit_plan"]);
    assert_eq!(
        told(&preview),
        [
            r#"anna product +0 -2 "" "[1] [2]""#,
            r#"anna purchase +0 -1 "" "[10]""#,
            r#"anna visit_plan +1 -0 "[\"anna\",\"north\"]" """#,
        ]
    );
    let none: Vec<PublicationSpec> = vec![publication("other", vec![everyone("product")])];
    let preview = world.centre.preview(&none, &asked(0)).await.unwrap();
    assert_eq!(preview.removed, 2 + 1 + 2, "{preview:?}");
    world.specs = specs;
    world.deploy().await.unwrap();
}

pub async fn rows_that_follow_and_windows_are_counted_as_they_are_sent<F: Fixture>() {
    let ddl = "CREATE TABLE visit (id INTEGER NOT NULL PRIMARY KEY, owner TEXT NOT NULL,
            on_day DATE, number INTEGER);
        CREATE TABLE remark (id INTEGER NOT NULL PRIMARY KEY, visit_id INTEGER REFERENCES visit);
        INSERT INTO visit VALUES (1, 'anna', '2023-11-01', 1000), (2, 'anna', '2023-11-08', 1500),
            (3, 'anna', '2023-12-24', 2000), (4, 'berta', '2023-11-14', 2500), (5, 'anna', NULL, NULL);
        INSERT INTO remark VALUES (10, 1), (20, 2), (30, 3), (40, 4), (50, 5), (60, NULL);";
    let windowed = |column: &str, last: WindowLength| {
        let visit = TableSpec {
            partition: vec![RuleSpec {
                by: RuleBy::Columns {
                    columns: vec!["owner".into()],
                    values: OWNED.into(),
                },
                window: Some(WindowSpec {
                    column: column.into(),
                    last,
                }),
            }],
            ..everyone("visit")
        };
        vec![visit, follows("remark", "visit")]
    };
    let all = vec![
        partitioned("visit", &["owner"], OWNED),
        follows("remark", "visit"),
    ];
    let mut world = DeployedCentre::<F>::new(ddl, all).await;
    let users = ["anna", "berta"];
    let days = windowed("on_day", WindowLength::Time(7, WindowUnit::Days));
    let found = assert_comes_true(&mut world, days, &users).await;
    assert_eq!(found.len(), 2, "{found:?}");
    let numbers = windowed("number", WindowLength::Number(600));
    assert_comes_true(&mut world, numbers, &users).await;
    // Several rules, of which any holds.
    let mut several = windowed("number", WindowLength::Number(600));
    several[0]
        .partition
        .push(RuleSpec::columns(&["id"], "SELECT 1 UNION SELECT 4"));
    assert_comes_true(&mut world, several, &users).await;
    let everything = vec![everyone("visit"), everyone("remark")];
    assert_comes_true(&mut world, everything, &users).await;
}

pub async fn one_remote_can_be_asked_about_and_what_it_sets_is_not_guessed<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let anna = synced(&world, "anna").await;
    let _ = synced(&world, "clara").await;
    let set = vec![
        partitioned("customer", &["region"], "SELECT {u.region}"),
        everyone("product"),
        partitioned("purchase", &["region"], REGIONS),
    ];
    let specs = vec![publication(PUBLICATION, set)];
    let preview = world.centre.preview(&specs, &asked(0)).await.unwrap();
    assert!(preview.remotes.is_empty());
    let note = preview.notes.join("\n");
    assert!(note.contains("customer: not counted"), "{note}");
    assert!(note.contains("--parameter region=VALUE"), "{note}");
    let south = PreviewRequest {
        remote_id: Some(anna.id),
        parameters: BTreeMap::from([("region".to_owned(), "south".to_owned())]),
        ..asked(0)
    };
    let preview = world.centre.preview(&specs, &south).await.unwrap();
    assert_eq!(preview.remotes_looked_at, 1);
    assert_eq!(told(&preview), [r#"anna customer +1 -2 "" """#]);
    let stranger = PreviewRequest {
        remote_id: Some(TestRemote::new(&world, "anna").await.id),
        ..asked(0)
    };
    let refused = world.centre.preview(&specs, &stranger).await.unwrap_err();
    assert!(
        matches!(refused, CentreError::Configuration { .. }),
        "{refused}"
    );
}

/// A table that a script gives is named with the script; the others are counted.
pub async fn what_scripts_give_is_named_and_the_rest_is_counted<F: Fixture>() {
    let ddl = "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL);
        CREATE TABLE plan (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL);
        INSERT INTO note VALUES (1, 'x'), (2, 'y');
        INSERT INTO plan VALUES (1, 'x'), (2, 'y'), (3, 'z')";
    let script = |version: &str, table: &str, event: &str, sql: &str| {
        ScriptSpec::at("scripts", [version, table, event], sql)
    };
    let mut world = DeployedCentre::<F>::new(ddl, vec![everyone("note"), everyone("plan")]).await;
    let log = "INSERT INTO note (id, text) VALUES (99, 'never')";
    let write = "UPDATE plan SET text = {r.text} WHERE id = {r.id}";
    world.specs[0].scripts = vec![
        script("default", "connection", "end_upload", log),
        script("default", "plan", "upload_update", write),
    ];
    world.deploy().await.unwrap();
    synced(&world, "anna").await;
    let mine = RuleSpec::columns(&["text"], "SELECT 'z'");
    world.specs[0].tables[1].partition = vec![mine];
    let all = "SELECT id, text FROM note";
    let cursor = script("v2", "note", "download_cursor", all);
    world.specs[0].scripts.push(cursor.clone());
    world.specs[0].script_versions = vec!["default".into(), "v2".into()];
    let preview = world.centre.preview(&world.specs, &asked(0)).await.unwrap();
    assert_eq!(told(&preview), ["anna plan +0 -2 \"\" \"\""]);
    let notes = preview.notes.join("; ");
    assert!(
        notes.contains("counted as for script version \"default\""),
        "{notes}"
    );
    assert!(
        notes.contains("scripts/v2/note/download_cursor.sql says"),
        "{notes}"
    );
    // Asked for the other version, which is not deployed yet.
    let mut of_version = asked(0);
    of_version
        .parameters
        .insert("script_version".into(), "v2".into());
    let preview = world
        .centre
        .preview(&world.specs, &of_version)
        .await
        .unwrap();
    let notes = preview.notes.join("; ");
    assert!(
        notes.contains("there is no script version \"v2\""),
        "{notes}"
    );
    world.specs[0].scripts[2] = script("default", "note", "download_cursor", all);
    let preview = world.centre.preview(&world.specs, &asked(0)).await.unwrap();
    assert_eq!(told(&preview), ["anna plan +0 -2 \"\" \"\""]);
    let notes = preview.notes.join("; ");
    assert!(
        notes.contains("note: not counted: scripts/default/note/download_cursor.sql says"),
        "{notes}"
    );
}
