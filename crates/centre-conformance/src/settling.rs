//! Conflicts that their operator settles: what is written, what is refused, and what is noted.

use tidewater_centre::records::{ConflictFilter, ConflictOutcome, ConflictRecord, RetentionTimes};
use tidewater_centre::{
    ConflictChoice, ConflictDetection, ConflictSpec, ConflictVersion, Judgement, SettleOutcome,
    TableSpec, WritesSpec,
};
use tidewater_protocol::Code;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, NOW_MS, everyone};

const DDL: &str = "
    CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        stock INTEGER CHECK (stock >= 0), price NUMERIC(8,2));
    CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
        item INTEGER NOT NULL REFERENCES item ON DELETE CASCADE)";

const OLD: &str = "1|tea|10|1.50";
const THEIRS: &str = "1|tea|8|1.60";
const MINE: &str = "1|TEA|7|1.70";

fn parked() -> TableSpec {
    TableSpec {
        conflict: ConflictSpec {
            detect: ConflictDetection::Row,
            resolve: vec!["park".into()],
            ..ConflictSpec::default()
        },
        // What remotes may not write an operator may.
        writes: WritesSpec {
            read_only: vec!["price".into()],
            ..WritesSpec::default()
        },
        ..everyone("item")
    }
}

fn choice(conflict: i64, version: ConflictVersion) -> ConflictChoice {
    ConflictChoice {
        conflict,
        version,
        force: false,
        judgement: Judgement::default(),
        by: "olga".into(),
        now_ms: NOW_MS + 5,
    }
}

/// An item that anna has lost against berta, and what is kept of it.
async fn lost<F: Fixture>(world: &DeployedCentre<F>) -> (TestRemote, ConflictRecord) {
    world.execute("DELETE FROM line").await;
    world.execute("DELETE FROM item").await;
    world
        .execute("INSERT INTO item VALUES (1, 'tea', 10, 1.5), (2, 'milk', 1, 1)")
        .await;
    let mut anna = TestRemote::synced(world, "anna").await;
    world
        .execute("UPDATE item SET stock = 8, price = 1.6 WHERE id = 1")
        .await;
    let mine = MINE.replace("1.70", "1.50");
    let told = anna.upload(&[update("item", OLD, &mine)]).await;
    assert_eq!(told[1], format!("conflict item: {THEIRS}"));
    anna.download().await;
    let newest = ConflictFilter::newest(1);
    let mut kept = world.centre.find_conflicts(&newest).await.unwrap();
    (anna, kept.remove(0))
}

async fn settle<F: Fixture>(world: &DeployedCentre<F>, choice: ConflictChoice) -> SettleOutcome {
    let mut worker = world.worker().await;
    worker.settle_conflict(choice).await.unwrap()
}

fn json(name: &str, stock: i64, price: &str) -> String {
    format!(r#"{{"id":1,"name":"{name}","stock":{stock},"price":"{price}"}}"#)
}

pub async fn a_version_that_is_chosen_reaches_everybody<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![parked()]).await;
    let given = r#"{"stock": 3, "price": "9.90"}"#;
    for (version, name, stock, price) in [
        // The remote cannot write the price, and so it has said the old one.
        (ConflictVersion::Uploaded, "TEA", 7, "1.50"),
        (ConflictVersion::Centre, "tea", 8, "1.60"),
        (ConflictVersion::PreImage, "tea", 10, "1.50"),
        (ConflictVersion::Given(Some(given.into())), "tea", 3, "9.90"),
    ] {
        let (mut anna, conflict) = lost(&world).await;
        assert!(conflict.is_open() && conflict.settled.is_none());
        assert_eq!(world.centre.status().await.unwrap().open_conflicts, 1);
        let name_of = version.name();
        let settled = settle(&world, choice(conflict.id, version)).await;
        let row = json(name, stock, price);
        assert_eq!(settled, SettleOutcome::settled(Some(row)));
        anna.download().await;
        let expected = format!("1|{name}|{stock}|{price}");
        assert_eq!(
            anna.rows("item"),
            [&*expected, "2|milk|1|1.00"],
            "{name_of}"
        );
        let kept = world.centre.conflict(conflict.id).await.unwrap().unwrap();
        assert!(!kept.is_open());
        let settled = kept.settled.unwrap();
        assert_eq!((&*settled.by, settled.at_ms), ("olga", NOW_MS + 5));
        assert_eq!(settled.version, name_of);
        assert_eq!(world.centre.status().await.unwrap().open_conflicts, 0);
    }
    let gone = choice(0, ConflictVersion::Centre);
    assert_eq!(settle(&world, gone).await, SettleOutcome::Unknown);
}

pub async fn a_row_that_is_gone_can_be_chosen_and_one_that_is_there_can_go<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![parked()]).await;
    world
        .execute("INSERT INTO item VALUES (1, 'tea', 10, 1.5)")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("DELETE FROM item").await;
    let mine = "1|TEA|7|1.50";
    let told = anna.upload(&[update("item", OLD, mine)]).await;
    assert_eq!(told[1], "gone item [1]");
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    let settled = settle(&world, choice(conflict.id, ConflictVersion::Uploaded)).await;
    let row = Some(json("TEA", 7, "1.50"));
    assert_eq!(settled, SettleOutcome::settled(row));
    anna.download().await;
    assert_eq!(anna.rows("item"), [mine]);

    world.execute("UPDATE item SET stock = 6").await;
    let told = anna.upload(&[delete("item", mine)]).await;
    assert_eq!(told[1], "conflict item: 1|TEA|6|1.50");
    let conflict = world.centre.conflicts().await.unwrap().remove(1);
    let settled = settle(&world, choice(conflict.id, ConflictVersion::Uploaded)).await;
    assert_eq!(settled, SettleOutcome::settled(None));
    anna.download().await;
    assert_eq!(anna.rows("item"), [""; 0]);
    // A row that is gone already is settled as that.
    let again = choice(conflict.id, ConflictVersion::Given(None));
    let forced = ConflictChoice {
        force: true,
        ..again
    };
    let settled = settle(&world, forced).await;
    assert_eq!(settled, SettleOutcome::settled(None));
}

pub async fn what_was_resolved_by_rule_can_be_chosen_otherwise<F: Fixture>() {
    let table = TableSpec {
        conflict: ConflictSpec {
            detect: ConflictDetection::Row,
            resolve: vec!["client_wins".into()],
            ..ConflictSpec::default()
        },
        ..everyone("item")
    };
    let world = DeployedCentre::<F>::new(DDL, vec![table]).await;
    world
        .execute("INSERT INTO item VALUES (1, 'tea', 10, 1.5)")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE item SET stock = 8, price = 1.6")
        .await;
    anna.upload(&[update("item", OLD, MINE)]).await;
    let conflict = world.centre.conflicts().await.unwrap().remove(0);
    assert_eq!(conflict.outcome, ConflictOutcome::Remote);
    let settled = settle(&world, choice(conflict.id, ConflictVersion::Centre)).await;
    let row = Some(json("tea", 8, "1.60"));
    assert_eq!(settled, SettleOutcome::settled(row));
    anna.download().await;
    assert_eq!(anna.rows("item"), [THEIRS]);
}

pub async fn a_row_that_was_changed_since_is_not_written_over_unasked<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![parked()]).await;
    let (_, conflict) = lost(&world).await;
    world
        .execute("UPDATE item SET stock = 5 WHERE id = 1")
        .await;
    let chosen = choice(conflict.id, ConflictVersion::Uploaded);
    let outcome = settle(&world, chosen.clone()).await;
    let row = Some(json("tea", 5, "1.60"));
    assert_eq!(outcome, SettleOutcome::Changed { row });
    let kept = world.centre.conflict(conflict.id).await.unwrap().unwrap();
    assert!(kept.is_open());
    let forced = ConflictChoice {
        force: true,
        ..chosen
    };
    let outcome = settle(&world, forced).await;
    let row = Some(json("TEA", 7, "1.50"));
    assert_eq!(outcome, SettleOutcome::settled(row));
    world.execute("DELETE FROM item WHERE id = 1").await;
    let outcome = settle(&world, choice(conflict.id, ConflictVersion::Centre)).await;
    assert_eq!(outcome, SettleOutcome::Changed { row: None });
}

pub async fn what_cannot_be_is_refused_with_its_reason<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![parked(), everyone("line")]).await;
    let (_, conflict) = lost(&world).await;
    world.execute("INSERT INTO line VALUES (7, 1)").await;
    let given = |row: &str| ConflictVersion::Given(Some(row.into()));
    for (version, code, told) in [
        (given(r#"{"stock":-1}"#), Code::RowCheck, ""),
        (given(r#"{"name":"milk"}"#), Code::RowKeyInUse, ""),
        (given(r#"{"name":null}"#), Code::RowNotNull, "name"),
        (given(r#"{"stock":"many"}"#), Code::RowBadValue, ""),
        (given(r#"{"stok":1}"#), Code::RowBadValue, "stok"),
        (given(r#"{"price":1.5}"#), Code::RowBadValue, "as text"),
        (
            ConflictVersion::Given(None),
            Code::RowForeignKey,
            "refer to it",
        ),
    ] {
        let name = format!("{version:?}");
        match settle(&world, choice(conflict.id, version)).await {
            SettleOutcome::Refused {
                code: found,
                reason,
            } => {
                assert_eq!(found, code, "{name}: {reason}");
                assert!(reason.contains(told), "{name}: {reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let rows = world.fixture.query("SELECT stock FROM item WHERE id = 1");
        assert_eq!(rows.await, ["8"], "{name}");
        let kept = world.centre.conflict(conflict.id).await.unwrap().unwrap();
        assert!(kept.is_open(), "{name}");
    }
    let forced = ConflictChoice {
        force: true,
        ..choice(conflict.id, ConflictVersion::Given(None))
    };
    let settled = settle(&world, forced).await;
    assert_eq!(settled, SettleOutcome::settled(None));
    let rows = world.fixture.query("SELECT count(*) FROM line").await;
    assert_eq!(rows, ["0"]);
}

pub async fn conflicts_are_found_by_what_they_are<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![parked(), everyone("line")]).await;
    let (mut anna, first) = lost(&world).await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    world.execute("INSERT INTO line VALUES (7, 1)").await;
    berta.upload(&[insert("line", "7|2")]).await;
    anna.upload(&[update("item", OLD, "1|tea|3|1.50")]).await;
    let all = world.centre.conflicts().await.unwrap();
    assert_eq!(all.len(), 3);
    settle(&world, choice(first.id, ConflictVersion::Centre)).await;
    let newest = || ConflictFilter::newest(10);
    for (filter, expected) in [
        (newest(), vec![2, 1, 0]),
        (ConflictFilter::newest(1), vec![2]),
        (
            ConflictFilter {
                table: Some("line".into()),
                ..newest()
            },
            vec![1],
        ),
        (
            ConflictFilter {
                user: Some("anna".into()),
                ..newest()
            },
            vec![2, 0],
        ),
        (
            ConflictFilter {
                outcome: Some(ConflictOutcome::Parked),
                ..newest()
            },
            vec![2, 0],
        ),
        (
            ConflictFilter {
                open: true,
                ..newest()
            },
            vec![2],
        ),
    ] {
        let found = world.centre.find_conflicts(&filter).await.unwrap();
        let found: Vec<i64> = found.iter().map(|it| it.id).collect();
        let expected: Vec<i64> = expected.into_iter().map(|at: usize| all[at].id).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
    // What is open is kept until it is settled.
    let retention = RetentionTimes {
        log_ms: 1_000,
        history_ms: 1_000,
        conflicts_ms: 1_000,
    };
    let later = NOW_MS + 10_000;
    let pruned = world.centre.prune(retention, later).await.unwrap();
    assert_eq!(pruned.conflicts, 2);
    let left = world.centre.conflicts().await.unwrap();
    assert_eq!(left.len(), 1);
    settle(&world, choice(left[0].id, ConflictVersion::Centre)).await;
    let pruned = world.centre.prune(retention, later).await.unwrap();
    assert_eq!(pruned.conflicts, 1);
}
