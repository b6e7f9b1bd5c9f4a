//! What downloads bring, and what they leave out.

use tidewater_protocol::Direction;

use crate::fixture::{ApplicationTransaction, Fixture};
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, NOW_MS, REGIONS, SHOP_DDL, everyone, partitioned, shop};
use tidewater_centre::records::RetentionTimes;
use tidewater_centre::{TableSpec, TrackingMode};

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

pub async fn the_first_download_brings_exactly_the_partitions<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let received = anna.download().await;
    assert!(received.scope_changed);
    assert_eq!(
        received.rows(),
        [
            "customer: 1|north|Nora|nora@x",
            "customer: 2|north|Niels|NULL",
            "product: 1|tea",
            "product: 2|coffee",
            "purchase: 10|north|1|1.50",
        ]
    );
    let outcome = received.outcome.as_ref().unwrap();
    assert_eq!((outcome.upserts, outcome.removals), (5, 0));
    // Parents come before their children.
    assert_eq!(received.replaced.len(), 3);
    let place = |name| received.replaced.iter().position(|table| table == name);
    assert!(place("customer") < place("purchase"));
    // Who holds nothing receives what everyone receives.
    let mut nobody = TestRemote::new(&world, "nobody").await;
    let received = nobody.download().await;
    assert_eq!(received.rows(), ["product: 1|tea", "product: 2|coffee"]);
}

pub async fn later_downloads_bring_what_changed<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "INSERT INTO customer VALUES (4, 'north', 'Nele', NULL), (5, 'south', 'Sara', NULL);
             UPDATE customer SET name = 'Nils' WHERE customer_id = 2;
             DELETE FROM purchase WHERE purchase_id = 10;
             UPDATE product SET name = 'green tea' WHERE product_id = 1;
             UPDATE customer SET name = 'Swen' WHERE customer_id = 3;",
        )
        .await;
    let received = anna.download().await;
    assert!(!received.scope_changed);
    assert_eq!(received.replaced, [] as [&str; 0]);
    assert_eq!(
        received.rows(),
        [
            "-purchase [10]",
            "customer: 2|north|Nils|NULL",
            "customer: 4|north|Nele|NULL",
            "product: 1|green tea",
        ]
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
}

pub async fn an_empty_download_gives_no_checkpoint<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // What happens outside of the remote's partitions is nothing to it.
    world
        .execute("UPDATE customer SET name = 'Swen' WHERE customer_id = 3")
        .await;
    for _ in 0..2 {
        let received = anna.download().await;
        assert_eq!(received.rows(), [] as [&str; 0]);
        assert_eq!(received.checkpoint(), None);
        assert!(!received.scope_changed);
    }
    world
        .execute("UPDATE customer SET name = 'N' WHERE customer_id = 1")
        .await;
    assert_eq!(anna.download().await.rows().len(), 1);
}

pub async fn a_transaction_open_across_a_download_is_brought_by_the_next<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut open = world.fixture.begin().await;
    open.execute("INSERT INTO customer VALUES (7, 'north', 'Late', NULL)")
        .await;
    let mut brought = Vec::new();
    if F::CONCURRENT_WRITERS {
        // Others write and commit while it is open, and are downloaded.
        world
            .execute("INSERT INTO customer VALUES (8, 'north', 'Early', NULL)")
            .await;
        brought.extend(anna.download().await.rows());
        assert_eq!(brought, ["customer: 8|north|Early|NULL"]);
        open.commit().await;
    } else {
        // Nobody can, so the download may wait for it, or be empty.
        let (download, ()) = tokio::join!(anna.download(), open.commit());
        brought.extend(download.rows());
        world
            .execute("INSERT INTO customer VALUES (8, 'north', 'Early', NULL)")
            .await;
    }
    brought.extend(anna.download().await.rows());
    brought.sort();
    assert_eq!(
        brought,
        [
            "customer: 7|north|Late|NULL",
            "customer: 8|north|Early|NULL"
        ]
    );
}

pub async fn writers_during_downloads_lose_nothing<F: Fixture>() {
    let world = std::sync::Arc::new(world::<F>().await);
    let mut anna = TestRemote::synced(&world, "anna").await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let world = world.clone();
            tokio::spawn(async move {
                for number in 0..15 {
                    let id = 1000 + writer * 100 + number;
                    let mut open = world.fixture.begin().await;
                    open.execute(&format!(
                        "INSERT INTO customer VALUES ({id}, 'north', 'W{writer}', NULL)"
                    ))
                    .await;
                    open.execute(&format!(
                        "UPDATE customer SET name = 'w{writer}' WHERE customer_id = {id}"
                    ))
                    .await;
                    open.commit().await;
                }
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        anna.download().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    anna.download().await;
    let centre = "SELECT customer_id, region, name, email FROM customer WHERE region = 'north'";
    let mut expected = world.fixture.query(centre).await;
    expected.sort();
    assert_eq!(anna.rows("customer"), expected);
}

pub async fn a_row_that_moves_leaves_one_remote_and_reaches_the_other<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut clara = TestRemote::synced(&world, "clara").await;
    world
        .execute("UPDATE customer SET region = 'south' WHERE customer_id = 2")
        .await;
    assert_eq!(anna.download().await.rows(), ["-customer [2]"]);
    assert_eq!(
        clara.download().await.rows(),
        ["customer: 2|south|Niels|NULL"]
    );
}

pub async fn a_changed_key_is_a_removal_and_a_row<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE customer SET customer_id = 20 WHERE customer_id = 2")
        .await;
    assert_eq!(
        anna.download().await.rows(),
        ["-customer [2]", "customer: 20|north|Niels|NULL"]
    );
}

pub async fn gained_partitions_are_sent_and_lost_ones_removed<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let first = anna.checkpoint.clone().unwrap();
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'south')")
        .await;
    let received = anna.download().await;
    assert!(received.scope_changed);
    assert_eq!(
        received.rows(),
        [
            "customer: 3|south|Sven|sven@x",
            "purchase: 11|south|3|20.00"
        ]
    );
    assert_ne!(anna.checkpoint.as_ref().unwrap().serial, first.serial);
    world
        .execute("DELETE FROM visit_plan WHERE login = 'anna' AND region = 'north'")
        .await;
    let received = anna.download().await;
    assert!(received.scope_changed);
    assert_eq!(
        received.rows(),
        ["-customer [1]", "-customer [2]", "-purchase [10]"]
    );
    assert_eq!(anna.rows("customer"), ["3|south|Sven|sven@x"]);
    assert_eq!(anna.rows("purchase"), ["11|south|3|20.00"]);
}

/// She gained the south and has uploaded a row of it, and not downloaded since.
async fn uploaded_into_a_gained_partition<F: Fixture>(world: &DeployedCentre<F>) -> TestRemote {
    let mut anna = TestRemote::synced(world, "anna").await;
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'south')")
        .await;
    let result = anna
        .upload(&[insert("customer", "50|south|Siri|NULL")])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    anna
}

/// Its removal is in the log of a partition that the remote did not hold then.
pub async fn what_went_up_into_a_gained_partition_and_was_deleted_since_goes<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = uploaded_into_a_gained_partition(&world).await;
    world
        .execute("DELETE FROM customer WHERE customer_id = 50")
        .await;
    anna.download().await;
    assert_eq!(
        anna.rows("customer"),
        [
            "1|north|Nora|nora@x",
            "2|north|Niels|NULL",
            "3|south|Sven|sven@x",
        ]
    );
}

/// No checkpoint says that the remote has the partition. Whether the sync that uploaded goes on,
/// or its answer was lost and the result is told once more.
pub async fn what_went_up_into_a_partition_that_was_lost_before_the_download_goes<F: Fixture>() {
    for answer_was_lost in [false, true] {
        let world = world::<F>().await;
        let mut anna = uploaded_into_a_gained_partition(&world).await;
        if answer_was_lost {
            let stored = anna.worker.stored_result(anna.id, &anna.schema.name).await;
            anna.own = None;
            anna.gained = stored.unwrap().unwrap().gained;
        }
        world
            .execute("DELETE FROM visit_plan WHERE login = 'anna' AND region = 'south'")
            .await;
        anna.download().await;
        assert_eq!(
            anna.rows("customer"),
            ["1|north|Nora|nora@x", "2|north|Niels|NULL"]
        );
    }
}

pub async fn a_row_that_moves_with_its_partitions_is_never_lost<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // From a partition that is kept into one that is gained, and from one that is lost
    // into one that is kept.
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'east')")
        .await;
    anna.download().await;
    world
        .execute(
            "INSERT INTO customer VALUES (30, 'east', 'Eva', NULL);
             INSERT INTO visit_plan VALUES ('anna', 'south');",
        )
        .await;
    anna.download().await;
    world
        .execute(
            "UPDATE customer SET region = 'west' WHERE customer_id = 1;
             UPDATE customer SET region = 'south' WHERE customer_id = 30;
             DELETE FROM visit_plan WHERE login = 'anna' AND region = 'east';
             INSERT INTO visit_plan VALUES ('anna', 'west');",
        )
        .await;
    anna.download().await;
    assert_eq!(
        anna.rows("customer"),
        [
            "1|west|Nora|nora@x",
            "2|north|Niels|NULL",
            "30|south|Eva|NULL",
            "3|south|Sven|sven@x",
        ]
    );
}

pub async fn null_is_in_no_partition<F: Fixture>() {
    let ddl = "
        CREATE TABLE visit_plan (login TEXT, region TEXT);
        INSERT INTO visit_plan VALUES ('anna', NULL), ('anna', 'north');
        CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, region TEXT);
        INSERT INTO t VALUES (1, NULL), (2, 'north');";
    let world = DeployedCentre::<F>::new(ddl, vec![partitioned("t", &["region"], REGIONS)]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("t"), ["2|north"]);
    world
        .execute("UPDATE t SET region = NULL WHERE id = 2")
        .await;
    assert_eq!(anna.download().await.rows(), ["-t [2]"]);
}

pub async fn a_removed_parent_takes_no_children_with_it<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // The customer leaves the scope, the purchase stays in it (interleaving 3).
    world
        .execute("UPDATE customer SET region = 'south' WHERE customer_id = 1")
        .await;
    assert_eq!(anna.download().await.rows(), ["-customer [1]"]);
    assert_eq!(anna.rows("purchase"), ["10|north|1|1.50"]);
    let kept = "SELECT count(*) FROM purchase WHERE purchase_id = 10";
    assert_eq!(world.fixture.query(kept).await, ["1"]);
}

pub async fn own_rows_are_not_sent_back<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let result = anna
        .upload(&[
            insert("customer", "40|north|Nina|NULL"),
            update("customer", "2|north|Niels|NULL", "2|north|Nils|NULL"),
            delete("purchase", "10|north|1|1.50"),
        ])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 1 deleted, 0 conflicts, 0 refused"]
    );
    let received = anna.download().await;
    assert_eq!(received.rows(), [] as [&str; 0]);
    assert!(received.checkpoint().is_some());
    // Not at the next sync either, in which it is not known any more whose they were.
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    assert_eq!(
        berta.download().await.rows(),
        [
            "-purchase [10]",
            "customer: 2|north|Nils|NULL",
            "customer: 40|north|Nina|NULL",
        ]
    );
}

pub async fn requested_rows_are_sent_again<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let received = anna
        .download_requesting(&[
            ("customer", "1|x|x|x"),
            ("customer", "3|x|x|x"),
            ("customer", "99|x|x|x"),
            ("product", "2|x"),
        ])
        .await;
    assert_eq!(
        received.rows(),
        [
            "-customer [3]",
            "-customer [99]",
            "customer: 1|north|Nora|nora@x",
            "product: 2|coffee",
        ]
    );
}

pub async fn an_unknown_mark_means_everything_anew<F: Fixture>() {
    let one = world::<F>().await;
    let other = world::<F>().await;
    // The same remote at two centres with the same history but for the marks.
    let mut anna = TestRemote::synced(&one, "anna").await;
    let mut twin = TestRemote::synced(&other, "anna").await;
    twin.checkpoint = anna.checkpoint.take();
    let received = twin.download().await;
    assert_eq!(received.replaced.len(), 3);
    assert_eq!(received.upserts.len(), 5);
    assert_eq!(twin.download().await.rows(), [] as [&str; 0]);
}

pub async fn a_pruned_log_means_everything_anew<F: Fixture>() {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let retention = RetentionTimes {
        log_ms: 60 * DAY_MS,
        history_ms: 14 * DAY_MS,
        conflicts_ms: 180 * DAY_MS,
    };
    let mut name = 0;
    for day in [10, 30, 31, 95] {
        name += 1;
        world
            .execute(&format!(
                "UPDATE customer SET name = 'N{name}' WHERE customer_id IN (1, 2)"
            ))
            .await;
        berta.now_ms = NOW_MS + day * DAY_MS;
        let received = berta.download().await;
        assert_eq!(received.replaced, [] as [&str; 0], "day {day}");
        assert_eq!(received.upserts.len(), 2, "day {day}");
        world.centre.prune(retention, berta.now_ms).await.unwrap();
    }
    world.centre.prune(retention, berta.now_ms).await.unwrap();
    // Berta came often enough; Anna's watermark is older than the log.
    assert_eq!(berta.download().await.rows(), [] as [&str; 0]);
    anna.now_ms = berta.now_ms;
    let received = anna.download().await;
    assert!(received.replaced.contains(&"customer".to_owned()));
    assert_eq!(anna.rows("customer"), berta.rows("customer"));
}

/// Interleaving 17.
pub async fn a_log_that_is_pruned_under_an_open_download_skips_nothing<F: Fixture>() {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let retention = RetentionTimes {
        log_ms: 60 * DAY_MS,
        history_ms: 14 * DAY_MS,
        conflicts_ms: 180 * DAY_MS,
    };
    let ddl = "CREATE TABLE big (id INTEGER NOT NULL PRIMARY KEY, note TEXT NOT NULL);
        CREATE TABLE last (id INTEGER NOT NULL PRIMARY KEY, note TEXT NOT NULL)";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("big"), everyone("last")]).await;
    let world = std::sync::Arc::new(world);
    let mut anna = TestRemote::synced(&world, "anna").await;
    // So much that the reading has to wait for the sink, and the last table for its turn.
    let note = "n".repeat(200);
    world
        .execute(&format!(
            "INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
                 WHERE i < 10000) SELECT i, '{note}' FROM n;
             INSERT INTO last VALUES (1, 'before');"
        ))
        .await;
    let application = world.clone();
    let runtime = tokio::runtime::Handle::current();
    let pruned = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (count, change) = (
        pruned.clone(),
        "INSERT INTO last VALUES (2, 'after'); DELETE FROM big WHERE id = 7",
    );
    let meanwhile = async move {
        application.execute(change).await;
        // The first one notes until when transactions have ended, the next one goes by it. As long
        // as other tests have transactions of before open, that is not far enough.
        let days = std::iter::once(1).chain(100..200);
        for day in days {
            let done = application
                .centre
                .prune(retention, NOW_MS + day * DAY_MS)
                .await;
            let entries = done.unwrap().log_entries;
            let before = count.fetch_add(entries, std::sync::atomic::Ordering::Relaxed);
            if before + entries > 10_000 {
                break;
            }
            if day > 100 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    };
    anna.meanwhile = Some(Box::new(move || {
        tokio::task::block_in_place(|| runtime.block_on(meanwhile));
    }));
    let received = anna.download().await;
    assert!(pruned.load(std::sync::atomic::Ordering::Relaxed) > 10_000);
    assert_eq!(received.upserts.len(), 10_001);
    assert_eq!(anna.rows("last"), ["1|before"]);
    // What was committed after the snapshot comes, although the log has it no more.
    anna.now_ms = NOW_MS + 200 * DAY_MS;
    anna.download().await;
    assert_eq!(anna.rows("last"), ["1|before", "2|after"]);
    assert_eq!(anna.rows("big").len(), 9_999);
}

/// Entries of the same row are dropped but for the last, whoever has seen which of them.
pub async fn what_a_log_says_again_and_again_is_compacted_and_nothing_is_missed<F: Fixture>() {
    const UPDATES: usize = 20;
    let retention = RetentionTimes {
        log_ms: i64::MAX,
        history_ms: i64::MAX,
        conflicts_ms: i64::MAX,
    };
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let update = async |round: usize| {
        let name = format!("UPDATE customer SET name = 'name {round}' WHERE customer_id = 2");
        world.execute(&name).await;
    };
    for round in 0..UPDATES {
        update(round).await;
        if round == UPDATES / 2 {
            berta.download().await;
        }
    }
    // A row that moved, and one that is gone.
    world
        .execute("UPDATE customer SET region = 'south' WHERE customer_id = 1")
        .await;
    world
        .execute("DELETE FROM purchase WHERE purchase_id = 10")
        .await;
    // Of a row that nobody has touched since the last time, all entries may still be needed. As long
    // as other tests have older transactions open, nothing is known to have ended.
    let mut compacted = 0;
    for round in 0..200 {
        compacted += world
            .centre
            .prune(retention, NOW_MS)
            .await
            .unwrap()
            .log_entries;
        update(1_000 + round).await;
        if compacted >= UPDATES as u64 - 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    assert!(compacted >= UPDATES as u64 - 1, "{compacted}");
    for remote in [&mut anna, &mut berta] {
        let received = remote.download().await;
        assert_eq!(received.replaced, [""; 0]);
        let customers = "SELECT customer_id, region, name, email FROM customer
                         WHERE region = 'north' ORDER BY 1";
        assert_eq!(
            remote.rows("customer"),
            world.fixture.query(customers).await
        );
        assert_eq!(remote.rows("purchase"), [""; 0]);
    }
}

pub async fn an_emptied_table_is_emptied_everywhere<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(&F::EMPTY_TABLE.replace("{}", "product"))
        .await;
    anna.download().await;
    assert_eq!(anna.rows("product"), [] as [&str; 0]);
    world
        .execute("INSERT INTO product VALUES (1, 'mate')")
        .await;
    assert_eq!(anna.download().await.rows(), ["product: 1|mate"]);
}

pub async fn an_untracked_table_is_sent_whole<F: Fixture>() {
    let tables = vec![TableSpec {
        tracking: TrackingMode::Off,
        ..partitioned("customer", &["region"], REGIONS)
    }];
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, tables).await;
    let warnings = world.deploy().await.unwrap().warnings.join("\n");
    assert!(
        warnings.contains("sends its partitions whole"),
        "{warnings}"
    );
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("DELETE FROM customer WHERE customer_id = 2")
        .await;
    let received = anna.download().await;
    assert_eq!(received.replaced, ["customer"]);
    assert_eq!(anna.rows("customer"), ["1|north|Nora|nora@x"]);
}

pub async fn an_upload_only_table_is_not_downloaded<F: Fixture>() {
    let tables = vec![TableSpec {
        direction: Direction::Upload,
        tracking: TrackingMode::Off,
        ..partitioned("customer", &["region"], REGIONS)
    }];
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, tables).await;
    let warnings = world.deploy().await.unwrap().warnings.join("\n");
    assert!(!warnings.contains("partitions whole"), "{warnings}");
    let mut anna = TestRemote::new(&world, "anna").await;
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    let result = anna
        .upload(&[insert("customer", "50|north|Nadja|NULL")])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    // Asked for by name, its rows are given, so that conflicts settle.
    let received = anna
        .download_requesting(&[("customer", "50|x|x|x"), ("customer", "3|x|x|x")])
        .await;
    assert_eq!(received.rows(), ["customer: 50|north|Nadja|NULL"]);
}

pub async fn twenty_thousand_rows_arrive<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
        "CREATE TABLE big (id INTEGER NOT NULL PRIMARY KEY, note TEXT NOT NULL)",
        vec![everyone("big")],
    )
    .await;
    world
        .execute(
            "INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
                 WHERE i < 20000) SELECT i, 'note number ' || i FROM n",
        )
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("big").len(), 20_000);
    world
        .execute(
            "UPDATE big SET note = note || '!' WHERE id <= 15000; DELETE FROM big WHERE id > 19000",
        )
        .await;
    let received = anna.download().await;
    assert_eq!(
        (received.upserts.len(), received.removals.len()),
        (15_000, 1000)
    );
    let mut expected = world.fixture.query("SELECT id, note FROM big").await;
    expected.sort();
    assert_eq!(anna.rows("big"), expected);
    // And up again, by another.
    let mut berta = TestRemote::synced(&world, "berta").await;
    let changes: Vec<_> = (20_001..40_001)
        .map(|id| insert("big", &format!("{id}|uploaded {id}")))
        .collect();
    let result = berta.upload(&changes).await;
    assert_eq!(
        result,
        ["20000 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(berta.download().await.upserts.len(), 0);
    assert_eq!(anna.download().await.upserts.len(), 20_000);
}

pub async fn a_sink_that_is_gone_ends_the_download<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::new(&world, "anna").await;
    anna.refuse_rows = true;
    let error = anna.try_download(&[]).await.unwrap_err();
    assert_eq!(error.code(), tidewater_protocol::Code::Cancelled);
    // The worker goes on.
    anna.refuse_rows = false;
    assert_eq!(anna.download().await.upserts.len(), 5);
}
