//! Why a row is, is not, or was removed from a remote.

use std::collections::BTreeMap;

use tidewater_centre::explain::{ExplainQuestion, ExplainVerdict, Explanation};
use tidewater_centre::records::{RemoteRecord, SyncRecord};
use tidewater_centre::{
    CentreError, RuleBy, RuleSpec, TableSpec, TrackingMode, WindowLength, WindowSpec, WindowUnit,
    WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;

use crate::administering::user;
use crate::families::{OWNED, follows};
use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert, update};
use crate::world::{DeployedCentre, NOW_MS, REGIONS, SHOP_DDL, everyone, partitioned, shop};

/// How long a sync takes, and how long after it the next one comes.
const SYNC_MS: u64 = 1_000;
const LATER_MS: i64 = 10_000;

/// Registers a remote and its user, as the server does when they sign in.
pub async fn register<F: Fixture>(world: &DeployedCentre<F>, remote: &mut TestRemote) {
    let _ = world.centre.add_user(&user(&remote.user)).await.unwrap();
    let record = RemoteRecord {
        id: remote.id,
        user: remote.user.clone(),
        revoked: false,
        credential_hash: vec![1; 32],
        previous_credential_hash: Vec::new(),
        rotated_ms: NOW_MS,
        created_ms: NOW_MS,
        last_sync_ms: 0,
        unverified: 0,
        device_name: String::new(),
    };
    remote.worker.save_remote(&record).await.unwrap();
}

/// Downloads, and records the sync as the server does.
async fn sync(remote: &mut TestRemote, uploaded: [u64; 3]) {
    remote.now_ms += LATER_MS;
    remote.download().await;
    let record = SyncRecord {
        remote_id: Some(remote.id),
        user: remote.user.clone(),
        publications: remote.schema.name.clone(),
        started_ms: remote.now_ms,
        duration_ms: SYNC_MS,
        uploaded,
        ..SyncRecord::default()
    };
    remote.worker.record_syncs(&[record]).await.unwrap();
}

/// A remote that has signed in and synced.
async fn synced<F: Fixture>(world: &DeployedCentre<F>, name: &str) -> TestRemote {
    let mut remote = TestRemote::new(world, name).await;
    register(world, &mut remote).await;
    sync(&mut remote, [0; 3]).await;
    remote
}

fn question(remote: &TestRemote, table: &str, key: &str) -> ExplainQuestion {
    ExplainQuestion {
        remote_id: remote.id,
        table: table.into(),
        key: key.into(),
        parameters: BTreeMap::new(),
        now_ms: remote.now_ms,
    }
}

async fn ask<F: Fixture>(
    world: &DeployedCentre<F>,
    remote: &TestRemote,
    table: &str,
    key: &str,
) -> Explanation {
    let asked = question(remote, table, key);
    world.centre.explain(&asked).await.unwrap()
}

/// Checks the verdict, and that these stand in the sentence.
fn assert_told(found: &Explanation, verdict: ExplainVerdict, parts: &[&str]) {
    assert_eq!(found.verdict, verdict, "{found:#?}");
    for part in parts {
        assert!(found.sentence.contains(part), "{part}: {}", found.sentence);
    }
}

pub async fn a_row_that_is_held_is_told_with_the_rule_that_holds_it<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let anna = synced(&world, "anna").await;
    let found = ask(&world, &anna, "customer", "1").await;
    let by = "anna holds it by rule 1 (region is north)";
    assert_told(
        &found,
        ExplainVerdict::Held,
        &["The row is in the centre", by],
    );
    assert_eq!(found.key, "[1]");
    let row = r#"{"customer_id":1,"region":"north","name":"Nora","email":"nora@x"}"#;
    assert_eq!(found.row.as_deref(), Some(row));
    let rule = &found.publications[0].rules[0];
    assert_eq!((rule.holds, rule.held_count), (Some(true), 1));
    assert_eq!(rule.values, Some(vec!["north".to_owned()]));
    assert_eq!(rule.query.as_deref(), Some(REGIONS));
    assert_eq!(found.publications[0].writes.may, Some(true));
    let found = ask(&world, &anna, "product", "[2]").await;
    let by = "anna holds it by rule 1, which gives it to everyone";
    assert_told(&found, ExplainVerdict::Held, &[by]);
    // Of a row that is somebody else's it says whose it is, and what the user holds.
    let found = ask(&world, &anna, "customer", "3").await;
    let why = "its region is south and anna holds north";
    assert_told(&found, ExplainVerdict::NotHeld, &[why]);
    assert_eq!(found.publications[0].writes.may, Some(false));
    let mut clara = TestRemote::new(&world, "clara").await;
    register(&world, &mut clara).await;
    clara.download().await;
    let first = "it comes with the remote's first sync";
    let found = ask(&world, &clara, "customer", "3").await;
    assert_told(&found, ExplainVerdict::Comes, &[first]);
    assert_eq!(found.remote.last_sync_ms, None);
}

pub async fn a_row_that_moved_is_told_with_where_it_was<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = synced(&world, "anna").await;
    let mut clara = synced(&world, "clara").await;
    let moved = "UPDATE customer SET region = 'south' WHERE customer_id = 2";
    world.execute(moved).await;
    let found = ask(&world, &anna, "customer", "2").await;
    let parts = [
        "it was anna's in the partition (north)",
        "it leaves the remote with the next sync",
        "its region is south and anna holds north",
    ];
    assert_told(&found, ExplainVerdict::Leaves, &parts);
    let log = &found.publications[0].log;
    let held: Vec<_> = log
        .iter()
        .map(|it| (&*it.partition[0], it.is_held))
        .collect();
    assert!(held.contains(&("north", Some(true))), "{held:?}");
    assert!(held.contains(&("south", Some(false))), "{held:?}");
    // It was after the sync that made the last mark.
    assert!(
        log.iter()
            .all(|it| it.after_ms >= Some(NOW_MS + LATER_MS) && !it.is_covered)
    );
    let found = ask(&world, &clara, "customer", "2").await;
    let comes = "it was changed since the remote's last sync: it comes with the next one";
    assert_told(&found, ExplainVerdict::Comes, &[comes]);
    sync(&mut anna, [0; 3]).await;
    sync(&mut clara, [0; 3]).await;
    let found = ask(&world, &anna, "customer", "2").await;
    assert_told(
        &found,
        ExplainVerdict::Left,
        &["it has left the remote", "moved"],
    );
    let found = ask(&world, &clara, "customer", "2").await;
    assert_told(&found, ExplainVerdict::Held, &["clara holds it by rule 1"]);
    // What a change of the query does nobody has noted anywhere.
    world
        .execute("DELETE FROM visit_plan WHERE login = 'clara'")
        .await;
    let found = ask(&world, &clara, "customer", "2").await;
    assert_told(&found, ExplainVerdict::NotHeld, &["clara holds nothing"]);
}

pub async fn a_row_that_was_deleted_is_told_by_the_change_log<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = synced(&world, "anna").await;
    let clara = synced(&world, "clara").await;
    world
        .execute("DELETE FROM purchase WHERE purchase_id = 10")
        .await;
    let found = ask(&world, &anna, "purchase", "10").await;
    let parts = [
        "not in the centre any more",
        "(north)",
        "with the next sync",
    ];
    assert_told(&found, ExplainVerdict::Goes, &parts);
    assert_eq!(found.row, None);
    let found = ask(&world, &clara, "purchase", "10").await;
    let not_hers = "the user does not hold the partition that it was in";
    assert_told(&found, ExplainVerdict::Absent, &[not_hers]);
    sync(&mut anna, [0; 3]).await;
    let found = ask(&world, &anna, "purchase", "10").await;
    assert_told(
        &found,
        ExplainVerdict::Gone,
        &["it is not on the remote any more"],
    );
    let found = ask(&world, &anna, "purchase", "999").await;
    let never = "the change log, as far back as it goes, knows of none";
    assert_told(&found, ExplainVerdict::Absent, &[never]);
}

pub async fn a_row_that_follows_others_is_told_parent_by_parent<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT);
        CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc_id INTEGER REFERENCES doc);
        CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY, line_id INTEGER REFERENCES line);
        INSERT INTO doc VALUES (1, 'anna'), (2, 'berta');
        INSERT INTO line VALUES (10, 1), (20, 2), (30, NULL);
        INSERT INTO part VALUES (100, 10), (200, 20), (300, 30);";
    let tables = vec![
        partitioned("doc", &["owner"], OWNED),
        follows("line", "doc"),
        follows("part", "line"),
    ];
    let world = DeployedCentre::<F>::new(ddl, tables).await;
    let anna = synced(&world, "anna").await;
    let found = ask(&world, &anna, "part", "100").await;
    assert_told(
        &found,
        ExplainVerdict::Held,
        &["rule 1 (doc's owner is anna)"],
    );
    let parents = &found.publications[0].rules[0].follows;
    let told: Vec<_> = parents
        .iter()
        .map(|it| format!("{} {:?} {}", it.table, it.refers, it.is_there))
        .collect();
    assert_eq!(
        told,
        [
            r#"line [("line_id", "10")] true"#,
            r#"doc [("doc_id", "1")] true"#
        ]
    );
    let found = ask(&world, &anna, "part", "200").await;
    let why = "its doc's owner is berta and anna holds anna";
    assert_told(&found, ExplainVerdict::NotHeld, &[why]);
    let found = ask(&world, &anna, "part", "300").await;
    let why = "it follows doc, and there is no such row (doc_id = NULL)";
    assert_told(&found, ExplainVerdict::NotHeld, &[why]);
    // The root moves, and what is below it is told by it.
    world
        .execute("UPDATE doc SET owner = 'berta' WHERE id = 1")
        .await;
    let found = ask(&world, &anna, "part", "100").await;
    assert_told(&found, ExplainVerdict::Leaves, &["the partition (anna)"]);
}

pub async fn a_row_outside_of_a_window_is_told_with_where_that_begins<F: Fixture>() {
    let ddl = "CREATE TABLE visit (id INTEGER NOT NULL PRIMARY KEY, owner TEXT, on_day DATE);
        INSERT INTO visit VALUES (1, 'anna', '2023-11-01'), (2, 'anna', '2023-11-14'),
            (3, 'anna', NULL);";
    let visit = TableSpec {
        partition: vec![RuleSpec {
            by: RuleBy::Columns {
                columns: vec!["owner".into()],
                values: OWNED.into(),
            },
            window: Some(WindowSpec {
                column: "on_day".into(),
                last: WindowLength::Time(7, WindowUnit::Days),
            }),
        }],
        ..everyone("visit")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![visit]).await;
    let anna = synced(&world, "anna").await;
    let found = ask(&world, &anna, "visit", "2").await;
    assert_told(&found, ExplainVerdict::Held, &["owner is anna"]);
    assert_eq!(found.publications[0].rules[0].windows[0].is_in, Some(true));
    let found = ask(&world, &anna, "visit", "1").await;
    let why = "its on_day is 2023-11-01, and the window of the last 7 days begins at 2023-11-07";
    assert_told(&found, ExplainVerdict::NotHeld, &[why]);
    let found = ask(&world, &anna, "visit", "3").await;
    assert_told(&found, ExplainVerdict::NotHeld, &["its on_day is NULL"]);
    // It has left the window, and not the partition.
    let aged = "UPDATE visit SET on_day = '2023-10-01' WHERE id = 2";
    world.execute(aged).await;
    let found = ask(&world, &anna, "visit", "2").await;
    assert_told(
        &found,
        ExplainVerdict::NotHeld,
        &["its on_day is 2023-10-01"],
    );
    assert!(!found.sentence.contains("moved"), "{}", found.sentence);
}

pub async fn what_a_remote_sets_itself_is_not_guessed<F: Fixture>() {
    let ddl = "CREATE TABLE visit (id INTEGER NOT NULL PRIMARY KEY, city TEXT NOT NULL);
        INSERT INTO visit VALUES (1, 'Bern'), (2, 'Basel');";
    let visit = partitioned("visit", &["city"], "SELECT {u.city}");
    let world = DeployedCentre::<F>::new(ddl, vec![visit]).await;
    let anna = synced(&world, "anna").await;
    let found = ask(&world, &anna, "visit", "1").await;
    let parts = [
        "depends on the parameter \"city\", which the remote keeps itself",
        "--parameter city=VALUE",
    ];
    assert_told(&found, ExplainVerdict::Unknown, &parts);
    let with = |city: &str| ExplainQuestion {
        parameters: BTreeMap::from([("city".to_owned(), city.to_owned())]),
        ..question(&anna, "visit", "1")
    };
    let found = world.centre.explain(&with("Bern")).await.unwrap();
    assert_told(&found, ExplainVerdict::Held, &["city is Bern"]);
    let found = world.centre.explain(&with("Basel")).await.unwrap();
    let why = "its city is Bern and anna holds Basel";
    assert_told(&found, ExplainVerdict::NotHeld, &[why]);
}

pub async fn what_was_refused_of_a_row_and_its_conflicts_are_told_with_it<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut anna = synced(&world, "anna").await;
    let mut berta = synced(&world, "berta").await;
    let forbidden = insert("customer", "9|north|forbidden|NULL");
    let mine = update("customer", "2|north|Niels|NULL", "2|north|mine|NULL");
    let theirs = update("customer", "2|north|Niels|NULL", "2|north|theirs|NULL");
    berta.upload(&[mine]).await;
    sync(&mut berta, [0, 1, 0]).await;
    anna.upload(&[forbidden, theirs]).await;
    let found = ask(&world, &anna, "customer", "9").await;
    assert_told(
        &found,
        ExplainVerdict::Absent,
        &["insert of it was refused: check"],
    );
    assert_eq!(found.refused.len(), 1);
    let found = ask(&world, &anna, "customer", "2").await;
    assert_eq!((found.conflicts.len(), found.refused.len()), (1, 0));
    assert_eq!(found.conflicts[0].remote_id, anna.id);
    let change = found.last_change.unwrap();
    let users: Vec<_> = change.uploads.iter().map(|it| &*it.user).collect();
    assert_eq!((users, change.uploads[0].rows), (vec!["berta"], [0, 1, 0]));
}

pub async fn what_does_not_come_down_by_rules_is_told_so<F: Fixture>() {
    let tables = vec![
        partitioned("customer", &["region"], REGIONS),
        TableSpec {
            direction: Direction::Upload,
            ..partitioned("purchase", &["region"], REGIONS)
        },
        TableSpec {
            tracking: TrackingMode::Off,
            direction: Direction::Download,
            ..everyone("product")
        },
    ];
    let world = DeployedCentre::<F>::new(SHOP_DDL, tables).await;
    let anna = synced(&world, "anna").await;
    let found = ask(&world, &anna, "purchase", "10").await;
    assert_told(
        &found,
        ExplainVerdict::NotDownloaded,
        &["upload to the table"],
    );
    let found = ask(&world, &anna, "product", "1").await;
    assert_eq!(found.verdict, ExplainVerdict::Held);
    assert!(!found.publications[0].is_tracked);
    assert_eq!(found.publications[0].writes.may, Some(false));
    let notes = found.notes.join("\n");
    assert!(notes.contains("every download sends it whole"), "{notes}");
}

pub async fn what_may_be_written_of_a_row_is_told<F: Fixture>() {
    let customer = TableSpec {
        writes: WritesSpec {
            scope: Some(WriteScopeSpec {
                columns: vec!["customer_id".into()],
                values: "SELECT 1".into(),
            }),
            read_only: vec!["email".into()],
            hand_over: false,
        },
        ..partitioned("customer", &["region"], REGIONS)
    };
    let world = DeployedCentre::<F>::new(SHOP_DDL, vec![customer]).await;
    let anna = synced(&world, "anna").await;
    let writes = ask(&world, &anna, "customer", "1").await.publications[0]
        .writes
        .clone();
    assert_eq!(
        (writes.may, &*writes.read_only),
        (Some(true), &["email".to_owned()][..])
    );
    let writes = ask(&world, &anna, "customer", "2").await.publications[0]
        .writes
        .clone();
    assert_eq!(writes.may, Some(false));
    assert!(
        writes.reason.contains("may be read, but not written"),
        "{}",
        writes.reason
    );
}

pub async fn keys_are_understood_and_what_is_unknown_is_named<F: Fixture>() {
    let ddl = "CREATE TABLE stock (site TEXT NOT NULL, item INTEGER NOT NULL, n INTEGER,
            PRIMARY KEY (site, item));
        INSERT INTO stock VALUES ('north', 7, 1), ('a,b', 8, 2);";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("stock")]).await;
    let anna = synced(&world, "anna").await;
    for (spelled, key) in [
        ("north,7", r#"["north",7]"#),
        ("north, 7", r#"["north",7]"#),
        (r#"["north",7]"#, r#"["north",7]"#),
        (r#"["a,b", 8]"#, r#"["a,b",8]"#),
    ] {
        let found = ask(&world, &anna, "stock", spelled).await;
        assert_eq!(
            (&*found.key, found.verdict),
            (key, ExplainVerdict::Held),
            "{spelled}"
        );
    }
    let refused = |asked: ExplainQuestion| {
        let centre = world.centre.clone();
        async move {
            match centre.explain(&asked).await {
                Err(error @ CentreError::Configuration { .. }) => {
                    format!("{error}; {}", error.hint())
                }
                other => panic!("{other:?}"),
            }
        }
    };
    for (table, key, told) in [
        ("stok", "north,7", "did you mean \"stock\"?"),
        (
            "stock",
            "north",
            "the key of \"stock\" is (site, item), and 1 value is given",
        ),
        ("stock", "north,x", "x is no value of \"item\""),
        ("stock", "[\"north\"", "is no JSON array"),
    ] {
        let found = refused(question(&anna, table, key)).await;
        assert!(found.contains(told), "{told}: {found}");
    }
    let stranger = TestRemote::new(&world, "anna").await;
    let found = refused(question(&stranger, "stock", "north,7")).await;
    assert!(found.contains("there is no remote"), "{found}");
    let mut new = TestRemote::new(&world, "anna").await;
    register(&world, &mut new).await;
    let found = refused(question(&new, "stock", "north,7")).await;
    assert!(found.contains("has not synced"), "{found}");
}
