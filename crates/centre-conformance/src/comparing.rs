//! What downloads bring to a remote that compares: the ranges of keys in which the
//! centre has something else, and nothing besides.

use std::sync::Arc;

use tidewater_centre::records::{HistoryCheck, RetentionTimes, SubscriptionRequest};
use tidewater_centre::{TableCompare, TableSpec, TrackingMode};
use tidewater_protocol::{Code, Direction};

use crate::fixture::Fixture;
use crate::remote::TestRemote;
use crate::remote::session_state;
use crate::world::{
    DeployedCentre, NOW_MS, PUBLICATION, REGIONS, SHOP_DDL, asked, everyone, partitioned, shop,
};

const SHOP: [&str; 3] = ["customer", "product", "purchase"];
const NOTHING: [&str; 0] = [];

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

/// A table of 5,000 rows that everyone holds.
async fn big<F: Fixture>() -> DeployedCentre<F> {
    let ddl = "CREATE TABLE big (id INTEGER NOT NULL PRIMARY KEY, note TEXT NOT NULL)";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("big")]).await;
    world
        .execute(
            "INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
                 WHERE i < 5000) SELECT i, 'note number ' || i FROM n",
        )
        .await;
    world
}

/// What the centre has of a table, sorted as [`TestRemote::rows`] sorts.
async fn central<F: Fixture>(world: &DeployedCentre<F>, query: &str) -> Vec<String> {
    let mut rows = world.fixture.query(query).await;
    rows.sort();
    rows
}

pub async fn a_history_is_known_or_not<F: Fixture>() {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let world = world::<F>().await;
    let another = self::world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let watermark = |remote: &TestRemote| remote.checkpoint.as_ref().map(|it| it.watermark.clone());
    let (first, garbage) = (watermark(&anna), Some(b"garbage".to_vec()));
    let asked = [first, garbage, None].map(|watermark| SubscriptionRequest {
        watermark,
        ..asked(PUBLICATION)
    });
    let (known, unknown) = (Some(HistoryCheck::Known), Some(HistoryCheck::Unknown));
    for remote_id in [None, Some(anna.id)] {
        let state = session_state(&mut anna.worker, "anna", remote_id, &asked).await;
        assert_eq!(state.unwrap().histories, [known, unknown, None]);
        let mut worker = another.worker().await;
        let state = session_state(&mut worker, "anna", remote_id, &asked).await;
        assert_eq!(state.unwrap().histories, [unknown, unknown, None]);
    }
    let retention = RetentionTimes {
        log_ms: 60 * DAY_MS,
        history_ms: 14 * DAY_MS,
        conflicts_ms: 180 * DAY_MS,
    };
    for day in [10, 30, 95] {
        let rename = format!("UPDATE customer SET name = 'N{day}' WHERE customer_id IN (1, 2)");
        world.execute(&rename).await;
        berta.now_ms = NOW_MS + day * DAY_MS;
        berta.download().await;
        world.centre.prune(retention, berta.now_ms).await.unwrap();
    }
    world.centre.prune(retention, berta.now_ms).await.unwrap();
    let state = session_state(&mut anna.worker, "anna", None, &asked).await;
    // Marks go by their age and entries by what others still see, so it may look like
    // another history as well.
    let histories = state.unwrap().histories;
    assert_ne!(histories[0], known);
    assert_eq!(histories[1..], [unknown, None]);
}

pub async fn equal_tables_send_nothing<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // With a checkpoint whose history is known, and without any.
    for forget in [false, true] {
        if forget {
            anna.checkpoint = None;
        }
        let received = anna.compare(&SHOP, 1).await;
        assert_eq!(received.rows(), NOTHING);
        assert_eq!(received.replaced, NOTHING);
        assert_eq!(received.differing, []);
        let outcome = received.outcome.as_ref().unwrap();
        assert_eq!((outcome.upserts, outcome.removals), (0, 0));
        assert!(outcome.checkpoint.is_some());
    }
    // What the comparison handed out is where the next download begins.
    assert_eq!(anna.download().await.rows(), NOTHING);
    world
        .execute("UPDATE product SET name = 'mate' WHERE product_id = 1")
        .await;
    assert_eq!(anna.download().await.rows(), ["product: 1|mate"]);
}

pub async fn only_ranges_that_differ_are_sent<F: Fixture>() {
    let world = big::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.checkpoint = None;
    anna.tamper("big", "1700", Some("1700|something else"));
    anna.tamper("big", "1701", None);
    anna.tamper("big", "-5", Some("-5|the centre never had this"));
    world
        .execute("DELETE FROM big WHERE id = 4999; INSERT INTO big VALUES (7000, 'new')")
        .await;
    let received = anna.compare(&["big"], 100).await;
    // The range up to 99, the one from 1,700 to 1,800, and all after 4,900.
    assert_eq!(received.differing, [("big".to_owned(), 3)]);
    assert_eq!(received.upserts.len(), 99 + 101 + 100);
    assert_eq!(received.removals, NOTHING);
    let expected = central(&world, "SELECT id, note FROM big").await;
    assert_eq!(anna.rows("big"), expected);
    assert_eq!(anna.compare(&["big"], 100).await.rows(), NOTHING);
}

pub async fn changes_since_the_checkpoint_come_before_what_differs<F: Fixture>() {
    let world = big::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.tamper("big", "4000", None);
    world
        .execute("UPDATE big SET note = 'changed' WHERE id = 9; DELETE FROM big WHERE id = 10")
        .await;
    let received = anna.compare(&["big"], 100).await;
    assert_eq!(received.upserts[0], "big: 9|changed");
    assert_eq!(received.removals, ["big [10]"]);
    assert_eq!(received.differing, [("big".to_owned(), 2)]);
    let expected = central(&world, "SELECT id, note FROM big").await;
    assert_eq!(anna.rows("big"), expected);
}

/// A remote whose triggers were off takes what differs for its user's changes if it is told that
/// the centre's have come before: rows of others would be deleted if that were not so.
pub async fn only_where_all_changes_came_before_a_comparison_says_so<F: Fixture>() {
    let others = "INSERT INTO product VALUES (70, 'others')";
    let forgotten = |remote: &mut TestRemote| {
        let checkpoint = remote.checkpoint.as_mut().unwrap();
        checkpoint.watermark = b"garbage".to_vec();
    };
    type Forget = fn(&mut TestRemote);
    let ways: [(Option<Forget>, TrackingMode, bool); 4] = [
        (None, TrackingMode::Log, true),
        (None, TrackingMode::Off, false),
        (Some(forgotten), TrackingMode::Log, false),
        (
            Some(|remote| remote.checkpoint = None),
            TrackingMode::Log,
            false,
        ),
    ];
    for (forget, tracking, follows) in ways {
        let product = TableSpec {
            tracking,
            ..everyone("product")
        };
        let world = DeployedCentre::<F>::new(SHOP_DDL, vec![product]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        anna.tamper("product", "1", None);
        world.execute(others).await;
        if let Some(forget) = forget {
            forget(&mut anna);
        }
        let received = anna.compare(&["product"], 1).await;
        let followed: &[&str] = if follows { &["product"] } else { &[] };
        assert_eq!(received.followed, followed);
        assert!(received.upserts.contains(&"product: 70|others".into()));
        assert_eq!(received.upserts[0] == "product: 70|others", follows);
        assert_eq!(anna.rows("product"), ["1|tea", "2|coffee", "70|others"]);
    }
}

/// Where emptying a table leaves no word of its rows, nothing is said; where it does, they come.
pub async fn an_emptied_table_says_what_came_before_a_comparison<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.tamper("product", "2", None);
    anna.tamper("product", "9", Some("9|only here"));
    world
        .execute(&F::EMPTY_TABLE.replace("{}", "product"))
        .await;
    world
        .execute("INSERT INTO product VALUES (70, 'others')")
        .await;
    let received = anna.compare(&SHOP, 1).await;
    let told = received.followed.contains(&"product".to_owned());
    let removed = received.removals.contains(&"product [1]".to_owned());
    assert_eq!(told, removed);
    assert_eq!(told, received.upserts[0] == "product: 70|others" && removed);
    assert_eq!(anna.rows("product"), ["70|others"]);
    // It is known again from now on.
    anna.tamper("product", "70", None);
    let received = anna.compare(&SHOP, 1).await;
    assert_eq!(received.followed, ["product"]);
}

pub async fn a_comparison_stays_in_the_scope<F: Fixture>() {
    let world = world::<F>().await;
    // One whose checkpoint is known, and one whose is not.
    let mut remotes = [
        TestRemote::synced(&world, "anna").await,
        TestRemote::synced(&world, "anna").await,
    ];
    remotes[1].checkpoint = None;
    world
        .execute(
            "INSERT INTO visit_plan VALUES ('anna', 'west');
             INSERT INTO customer VALUES (4, 'west', 'Wim', NULL);
             DELETE FROM visit_plan WHERE login = 'anna' AND region = 'north';",
        )
        .await;
    for anna in &mut remotes {
        // It holds a row of somebody else's, and lacks one that it is to lose.
        anna.tamper("customer", "3", Some("3|south|Sven|sven@x"));
        anna.tamper("purchase", "10", None);
        let received = anna.compare(&SHOP, 1).await;
        assert!(received.scope_changed);
        assert!(received.upserts.iter().all(|row| !row.contains("south")));
        assert_eq!(anna.rows("customer"), ["4|west|Wim|NULL"]);
        assert_eq!(anna.rows("purchase"), NOTHING);
        assert_eq!(anna.rows("product"), ["1|tea", "2|coffee"]);
    }
}

pub async fn every_type_compares_equal_after_a_download<F: Fixture>() {
    let types = [
        "SMALLINT",
        "BIGINT",
        "NUMERIC(12,3)",
        "NUMERIC",
        "DOUBLE PRECISION",
    ];
    let more = [
        "BOOLEAN",
        "TEXT",
        F::BYTES,
        "DATE",
        "TIME",
        "TIMESTAMP",
        "UUID",
        "JSON",
    ];
    let types: Vec<&str> = types.into_iter().chain(more).collect();
    let columns: Vec<String> = types
        .iter()
        .enumerate()
        .map(|(index, name)| format!("c{index} {name}"))
        .collect();
    let ddl = format!(
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, {})",
        columns.join(", ")
    );
    let world = DeployedCentre::<F>::new(&ddl, vec![everyone("t")]).await;
    let nulls = vec!["NULL"; types.len()].join(", ");
    world
        .execute(&format!(
            r#"INSERT INTO t VALUES (1, {nulls}), (2, -7, 9007199254740993, 1.5, 0.1, -0.0, TRUE,
                'it''s', NULL, '2026-02-28', '23:59:59.5', '2026-02-28 01:02:03',
                '00000000-0000-4000-8000-00000000000a', '{{"a": [1, null]}}'),
             (3, 0, 0, 0, 100, 1e300, FALSE, '', NULL, '0001-01-01', '00:00:00',
                '9999-12-31 23:59:59.999999', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '1')"#
        ))
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("t").len(), 3);
    anna.checkpoint = None;
    for rows_per_range in [1, 2, 10] {
        let received = anna.compare(&["t"], rows_per_range).await;
        assert_eq!(received.rows(), NOTHING);
        assert_eq!(received.differing, []);
    }
    world.execute("UPDATE t SET c2 = 1.501 WHERE id = 2").await;
    anna.checkpoint = None;
    let received = anna.compare(&["t"], 1).await;
    assert_eq!(received.differing, [("t".to_owned(), 1)]);
    assert_eq!(received.upserts.len(), 1);
}

pub async fn keys_of_several_columns_are_divided_into_ranges<F: Fixture>() {
    let ddl = "
        CREATE TABLE t (name TEXT NOT NULL, day DATE NOT NULL, cost NUMERIC(9,2) NOT NULL,
            flag BOOLEAN NOT NULL, number INTEGER NOT NULL, note TEXT,
            PRIMARY KEY (name, day, cost, flag, number));
        INSERT INTO t VALUES ('b', '2026-01-01', 1.5, TRUE, 1, 'x'),
            ('a', '2026-01-02', 10, FALSE, -1, NULL), ('a', '2026-01-02', 9, TRUE, 5, NULL),
            ('B', '1999-12-31', -3, FALSE, 0, 'y'), ('ä', '2026-01-01', 0, TRUE, 2, NULL);";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("t")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.checkpoint = None;
    assert_eq!(anna.compare(&["t"], 1).await.rows(), NOTHING);
    world
        .execute("UPDATE t SET note = 'new' WHERE name = 'a' AND cost = 9")
        .await;
    anna.checkpoint = None;
    let received = anna.compare(&["t"], 1).await;
    assert_eq!(received.upserts, ["t: a|2026-01-02|9.00|1|5|new"]);
    let spell = |row: &String| row.contains("a|2026-01-02|9.00|1|5|new");
    assert_eq!(anna.rows("t").iter().filter(|row| spell(row)).count(), 1);
    assert_eq!(anna.rows("t").len(), 5);
}

pub async fn tables_that_are_not_compared_are_sent_as_always<F: Fixture>() {
    let untracked = TableSpec {
        tracking: TrackingMode::Off,
        ..everyone("product")
    };
    let up = TableSpec {
        direction: Direction::Upload,
        ..partitioned("purchase", &["region"], REGIONS)
    };
    let customer = partitioned("customer", &["region"], REGIONS);
    let world = DeployedCentre::<F>::new(SHOP_DDL, vec![untracked, up, customer]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // Known, and compared: an untracked table is not sent whole then, and one that is
    // only uploaded is not spoken of.
    let received = anna.compare(&["product", "purchase"], 1).await;
    assert_eq!((received.replaced.len(), received.rows().len()), (0, 0));
    // Not known: what is not compared is sent whole.
    anna.checkpoint = None;
    let received = anna.compare(&["product"], 1).await;
    assert_eq!(received.replaced, ["customer"]);
    assert_eq!(received.differing, []);
    assert_eq!(received.upserts.len(), 2);
}

pub async fn an_empty_remote_compares_too<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let received = anna.compare(&SHOP, 1).await;
    let differing: Vec<_> = received.differing.iter().map(|(name, _)| name).collect();
    assert_eq!(differing.len(), 3);
    assert_eq!(received.replaced, NOTHING);
    assert_eq!(received.upserts.len(), 5);
    // And the other way round: the centre is empty.
    world
        .execute("DELETE FROM purchase; DELETE FROM customer; DELETE FROM product")
        .await;
    anna.checkpoint = None;
    let received = anna.compare(&SHOP, 1).await;
    assert_eq!((received.differing.len(), received.upserts.len()), (3, 0));
    for table in SHOP {
        assert_eq!(anna.rows(table), NOTHING);
    }
}

pub async fn rows_are_asked_for_again_in_a_comparison<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for forget in [false, true] {
        if forget {
            anna.checkpoint = None;
        }
        anna.compares = anna.sums(&["customer", "product", "purchase"], 1);
        let requests = [("customer", "1|x|x|x"), ("customer", "3|x|x|x")];
        let received = anna.download_requesting(&requests).await;
        assert_eq!(received.differing, []);
        assert_eq!(
            received.rows(),
            ["-customer [3]", "customer: 1|north|Nora|nora@x"]
        );
    }
}

pub async fn ranges_that_do_not_fit_the_table_end_the_download<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut sums = anna.sums(&["product"], 1);
    let mut ranges = sums[0].ranges.to_vec();
    ranges.swap(0, 1);
    sums[0].ranges = ranges.into();
    let empty = TableCompare {
        table: "product".into(),
        ranges: Arc::new([]),
        untracked: false,
    };
    for compares in [sums, vec![empty]] {
        anna.compares = compares;
        let error = anna.try_download(&[]).await.unwrap_err();
        assert_eq!(error.code(), Code::SchemaMismatch);
    }
    // The worker goes on.
    assert_eq!(anna.compare(&SHOP, 1).await.rows(), NOTHING);
}

pub async fn a_remote_that_is_gone_ends_the_comparison<F: Fixture>() {
    let world = big::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.checkpoint = None;
    anna.compares = anna.sums(&["big"], 100);
    anna.refuse_rows = true;
    // Nothing differs, so it is found while rows are compared.
    let error = anna.try_download(&[]).await.unwrap_err();
    assert_eq!(error.code(), Code::Cancelled);
    anna.refuse_rows = false;
    assert_eq!(anna.compare(&["big"], 100).await.rows(), NOTHING);
}
