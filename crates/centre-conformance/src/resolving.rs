//! What becomes of rows that two sides have changed, with each resolver.

use tidewater_centre::records::ConflictOutcome;
use tidewater_centre::{ConflictDetection, ConflictSpec, TableSpec};
use tidewater_protocol::Direction;

use crate::fixture::Fixture;
use crate::remote::{RowChange, TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone};

const DDL: &str = "
    CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
        stock INTEGER, price NUMERIC(8,2), changed TIMESTAMP, notes TEXT);
    CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
        item INTEGER NOT NULL REFERENCES item ON DELETE CASCADE)";

/// The row that all begin with.
const OLD: &str = "1|tea|10|1.50|2026-01-01T10:00:00.000000|one\ntwo\nthree\nfour\nfive\n";

fn item(detect: ConflictDetection, resolve: &[&str]) -> TableSpec {
    TableSpec {
        conflict: ConflictSpec {
            detect,
            resolve: resolve.iter().map(|&it| it.to_owned()).collect(),
            ..ConflictSpec::default()
        },
        ..everyone("item")
    }
}

/// Two remotes have a row, the second one changes it and uploads first.
struct LostContest<'w, F: Fixture> {
    world: &'w DeployedCentre<F>,
    anna: TestRemote,
    berta: TestRemote,
}

impl<'w, F: Fixture> LostContest<'w, F> {
    async fn new(world: &'w DeployedCentre<F>, old: Option<&str>) -> LostContest<'w, F> {
        world.execute("DELETE FROM item").await;
        let mut setter = TestRemote::synced(world, "setter").await;
        if let Some(old) = old {
            setter.upload(&[insert("item", old)]).await;
        }
        LostContest {
            anna: TestRemote::synced(world, "anna").await,
            berta: TestRemote::synced(world, "berta").await,
            world,
        }
    }

    /// What anna is told, and what all have in the end.
    async fn fight(mut self, theirs: RowChange, mine: RowChange) -> (Vec<String>, Vec<String>) {
        self.berta.write(std::slice::from_ref(&theirs));
        self.berta.upload(std::slice::from_ref(&theirs)).await;
        self.anna.write(std::slice::from_ref(&mine));
        let told = self.anna.upload(std::slice::from_ref(&mine)).await;
        for remote in [&mut self.anna, &mut self.berta] {
            remote.download().await;
        }
        let mut fresh = TestRemote::synced(self.world, "fresh").await;
        fresh.download().await;
        let rows = fresh.rows("item");
        assert_eq!(self.berta.rows("item"), rows);
        let lost = told
            .iter()
            .any(|it| it.starts_with("conflict") || it.starts_with("gone"));
        if !lost {
            assert_eq!(self.anna.rows("item"), rows, "{told:?}");
        }
        (told[1..].to_vec(), rows)
    }
}

/// What each resolver makes of an update of both sides: berta's row, anna's, and what is there in
/// the end.
const UPDATES: [(&[&str], &str, &str, &str, ConflictOutcome); 17] = [
    (
        &["server_wins"],
        "1|tea|8|1.50|2026-01-02T00:00:00.000000|x",
        "1|TEA|9|1.50|2026-01-03T00:00:00.000000|y",
        "1|tea|8|1.50|2026-01-02T00:00:00.000000|x",
        ConflictOutcome::Centre,
    ),
    (
        &["client_wins"],
        "1|tea|8|1.60|2026-01-02T00:00:00.000000|x",
        "1|TEA|9|1.50|2026-01-03T00:00:00.000000|y",
        "1|TEA|9|1.50|2026-01-03T00:00:00.000000|y",
        ConflictOutcome::Remote,
    ),
    (
        &["later(changed)"],
        "1|tea|8|1.50|2026-01-02T00:00:00.000000|x",
        "1|TEA|9|1.50|2026-01-03T00:00:00.000000|y",
        "1|TEA|9|1.50|2026-01-03T00:00:00.000000|y",
        ConflictOutcome::Remote,
    ),
    (
        &["later(changed)"],
        "1|tea|8|1.50|2026-01-03T00:00:00.000000|x",
        "1|TEA|9|1.50|2026-01-02T00:00:00.000000|y",
        "1|tea|8|1.50|2026-01-03T00:00:00.000000|x",
        ConflictOutcome::Centre,
    ),
    (
        &["earlier(changed)"],
        "1|tea|8|1.50|2026-01-03T00:00:00.000000|x",
        "1|TEA|9|1.50|2026-01-02T00:00:00.000000|y",
        "1|TEA|9|1.50|2026-01-02T00:00:00.000000|y",
        ConflictOutcome::Remote,
    ),
    (
        &["maximum(price)"],
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        "1|TEA|9|1.70|2026-01-02T00:00:00.000000|y",
        "1|TEA|9|1.70|2026-01-02T00:00:00.000000|y",
        ConflictOutcome::Remote,
    ),
    (
        &["minimum(price)"],
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        "1|TEA|9|1.70|2026-01-02T00:00:00.000000|y",
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        ConflictOutcome::Centre,
    ),
    (
        &["priority(stock)"],
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        "1|TEA|9|1.70|2026-01-02T00:00:00.000000|y",
        "1|TEA|9|1.70|2026-01-02T00:00:00.000000|y",
        ConflictOutcome::Remote,
    ),
    (
        &["additive(stock, price)"],
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        "1|TEA|7|1.75|2026-01-02T00:00:00.000000|y",
        "1|tea|5|1.85|2026-01-03T00:00:00.000000|x",
        ConflictOutcome::Merged,
    ),
    (
        &["average(stock, price)"],
        "1|tea|8|1.60|2026-01-03T00:00:00.000000|x",
        "1|TEA|6|1.75|2026-01-02T00:00:00.000000|y",
        "1|tea|7|1.68|2026-01-03T00:00:00.000000|x",
        ConflictOutcome::Merged,
    ),
    (
        &["merge_text(notes)"],
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nfive\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|one\ntwo\nthree\nfour\nFIVE\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nFIVE\n",
        ConflictOutcome::Merged,
    ),
    (
        // Lines next to each other are two lines.
        &["merge_text(notes)"],
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nFIVE\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|one\nTWO\nthree\nfour\nfive\nsix",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\nTWO\nthree\nfour\nFIVE\nsix",
        ConflictOutcome::Merged,
    ),
    (
        // Both have changed the same line.
        &["merge_text(notes)"],
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nfive\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|EINS\ntwo\nthree\nfour\nfive\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nfive\n",
        ConflictOutcome::Centre,
    ),
    (
        // Nothing is left to decide.
        &["merge_text(notes)", "park"],
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nfive\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|one\ntwo\nthree\nfour\nFIVE\n",
        "1|tea|10|1.50|2026-01-01T10:00:00.000000|ONE\ntwo\nthree\nfour\nFIVE\n",
        ConflictOutcome::Merged,
    ),
    (
        &["additive(stock)", "park"],
        "1|tea|8|1.60|2026-01-01T10:00:00.000000|x",
        "1|TEA|7|1.50|2026-01-01T10:00:00.000000|x",
        "1|tea|8|1.60|2026-01-01T10:00:00.000000|x",
        ConflictOutcome::Parked,
    ),
    (
        &["additive(stock)", "later(changed)"],
        "1|tea|8|1.60|2026-01-02T00:00:00.000000|x",
        "1|TEA|7|1.70|2026-01-03T00:00:00.000000|y",
        "1|TEA|5|1.70|2026-01-03T00:00:00.000000|y",
        ConflictOutcome::Merged,
    ),
    (
        &["park"],
        "1|tea|8|1.60|2026-01-02T00:00:00.000000|x",
        "1|TEA|7|1.70|2026-01-03T00:00:00.000000|y",
        "1|tea|8|1.60|2026-01-02T00:00:00.000000|x",
        ConflictOutcome::Parked,
    ),
];

pub async fn updates_of_both_sides_end_as_their_resolver_says<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await;
    for (resolve, theirs, mine, row, outcome) in UPDATES {
        world.specs[0].tables[0] = item(ConflictDetection::Row, resolve);
        world.deploy().await.unwrap();
        let contest = LostContest::new(&world, Some(OLD)).await;
        let before = world.centre.conflicts().await.unwrap().len();
        let fought = contest.fight(update("item", OLD, theirs), update("item", OLD, mine));
        let (told, rows) = fought.await;
        assert_eq!(rows, [row], "{resolve:?}");
        let line = match outcome {
            ConflictOutcome::Centre | ConflictOutcome::Parked => Some("conflict"),
            ConflictOutcome::Merged => Some("merged"),
            ConflictOutcome::Remote => None,
        };
        let expected: Vec<String> = line.iter().map(|it| format!("{it} item: {row}")).collect();
        assert_eq!(told, expected, "{resolve:?}");
        let kept = world.centre.conflicts().await.unwrap();
        assert_eq!(kept.len(), before + 1, "{resolve:?}");
        let kept = kept.last().unwrap();
        assert_eq!(kept.outcome, outcome, "{resolve:?}");
        let is_replaced = kept.replaced.is_some();
        assert_eq!(is_replaced, line != Some("conflict"), "{resolve:?}");
        assert!(kept.pre_image.is_some() && kept.uploaded.is_some() && kept.winner.is_some());
    }
}

pub async fn what_one_side_deletes_and_the_other_changes_ends_as_its_resolver_says<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await;
    let changed = "1|tea|8|1.60|2026-01-02T00:00:00.000000|x";
    // Whether the row is there in the end: deleted by the centre, and by the remote.
    for (resolve, [deleted_there, deleted_here], parked) in [
        (&["server_wins"][..], [false, true], false),
        (&["client_wins"], [true, false], false),
        (&["client_wins(anna)"], [true, false], false),
        (&["client_wins(berta, setter)"], [false, true], false),
        (&["later(changed)"], [true, true], false),
        (&["minimum(price)"], [true, true], false),
        (&["additive(stock)"], [false, true], false),
        (&["merge_text(notes)", "client_wins"], [true, false], false),
        (&["park"], [false, true], true),
    ] {
        world.specs[0].tables[0] = item(ConflictDetection::Row, resolve);
        world.deploy().await.unwrap();
        let contest = LostContest::new(&world, Some(OLD)).await;
        let fought = contest.fight(delete("item", OLD), update("item", OLD, changed));
        let (told, rows) = fought.await;
        let last = world.centre.conflicts().await.unwrap().pop().unwrap();
        match deleted_there {
            true => {
                assert_eq!(
                    (rows, told),
                    (vec![changed.to_owned()], vec![]),
                    "{resolve:?}"
                );
                assert_eq!(last.outcome, ConflictOutcome::Remote);
            }
            false => {
                assert_eq!(
                    (rows.len(), told),
                    (0, vec!["gone item [1]".into()]),
                    "{resolve:?}"
                );
                assert_eq!(last.outcome == ConflictOutcome::Parked, parked);
            }
        }
        let contest = LostContest::new(&world, Some(OLD)).await;
        let fought = contest.fight(update("item", OLD, changed), delete("item", OLD));
        let (told, rows) = fought.await;
        match deleted_here {
            true => {
                let told_so = vec![format!("conflict item: {changed}")];
                assert_eq!(
                    (rows, told),
                    (vec![changed.to_owned()], told_so),
                    "{resolve:?}"
                );
            }
            false => assert_eq!((rows.len(), told.len()), (0, 0), "{resolve:?}"),
        }
    }
}

pub async fn rows_that_both_sides_insert_end_as_their_resolver_says<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await;
    let theirs = "1|tea|8|1.60|2026-01-02T00:00:00.000000|x";
    let mine = "1|TEA|7|1.70|2026-01-03T00:00:00.000000|y";
    for (resolve, row) in [
        (&["server_wins"][..], theirs),
        (&["client_wins"], mine),
        (&["client_wins(berta, anna)"], mine),
        (&["client_wins(berta)"], theirs),
        (&["later(changed)"], mine),
        (&["earlier(changed)"], theirs),
        (&["maximum(price)"], mine),
        (&["minimum(price)"], theirs),
        (&["priority(stock)"], theirs),
        (
            &["additive(stock)"],
            "1|tea|15|1.60|2026-01-02T00:00:00.000000|x",
        ),
        (
            &["average(price)"],
            "1|tea|8|1.65|2026-01-02T00:00:00.000000|x",
        ),
        // They have no line in common.
        (&["merge_text(notes)"], theirs),
        (&["park"], theirs),
    ] {
        for detect in [ConflictDetection::Row, ConflictDetection::Column] {
            world.specs[0].tables[0] = item(detect, resolve);
            world.deploy().await.unwrap();
            let contest = LostContest::new(&world, None).await;
            let fought = contest.fight(insert("item", theirs), insert("item", mine));
            let (_, rows) = fought.await;
            assert_eq!(rows, [row], "{resolve:?} {detect:?}");
        }
    }
}

pub async fn edits_of_different_columns_merge_by_themselves<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![item(ConflictDetection::Column, &[])]).await;
    let contest = LostContest::new(&world, Some(OLD)).await;
    let theirs = OLD.replace("|10|", "|8|");
    let mine = OLD.replace("tea", "TEA");
    let fought = contest.fight(update("item", OLD, &theirs), update("item", OLD, &mine));
    let (told, rows) = fought.await;
    let merged = mine.replace("|10|", "|8|");
    assert_eq!(rows, [&*merged]);
    // What comes of others with the download is not taken for what was made of the own change.
    assert!(told.is_empty());
    assert!(world.centre.conflicts().await.unwrap().is_empty());
    // Of those that both have changed the centre's stands, and the others merge all the same.
    let contest = LostContest::new(&world, Some(OLD)).await;
    let mine = mine.replace("|10|", "|9|");
    let fought = contest.fight(update("item", OLD, &theirs), update("item", OLD, &mine));
    let (told, rows) = fought.await;
    assert_eq!(rows, [&*merged]);
    assert_eq!(told, [format!("merged item: {merged}")]);
    let kept = world.centre.conflicts().await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].outcome, ConflictOutcome::Merged);
}

pub async fn a_row_that_resolves_to_what_the_centre_has_is_told<F: Fixture>() {
    let world =
        DeployedCentre::<F>::new(DDL, vec![item(ConflictDetection::Row, &["average(stock)"])])
            .await;
    let contest = LostContest::new(&world, Some(OLD)).await;
    let theirs = OLD.replace("|10|", "|12|");
    // In the middle is what is there.
    let mine = OLD.replace("|10|", "|13|").replace("tea", "TEA");
    let fought = contest.fight(update("item", OLD, &theirs), update("item", OLD, &mine));
    let (told, rows) = fought.await;
    assert_eq!(rows, [&*theirs]);
    assert_eq!(told, [format!("merged item: {theirs}")]);
}

pub async fn what_is_resolved_is_refused_as_anything_else<F: Fixture>() {
    let ddl = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        stock INTEGER CHECK (stock >= 0))";
    let spec = item(ConflictDetection::Row, &["additive(stock)", "client_wins"]);
    let world = DeployedCentre::<F>::new(ddl, vec![spec]).await;
    world
        .execute("INSERT INTO item VALUES (1, 'tea', 10), (2, 'milk', 10)")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.execute("UPDATE item SET stock = stock - 7").await;
    let changes = [
        update("item", "1|tea|10", "1|tea|4"),
        update("item", "2|milk|10", "2|milk|9"),
    ];
    let told = anna.upload(&changes).await;
    let counts = "0 inserted, 1 updated, 0 deleted, 1 conflicts, 1 refused";
    assert_eq!(told[0], counts);
    assert!(told[1].starts_with("refused item [1] Update"), "{told:?}");
    assert_eq!(told[2], "merged item: 2|milk|2");
    let rows = world.fixture.query("SELECT stock FROM item ORDER BY id");
    assert_eq!(rows.await, ["3", "2"]);
}

/// A delete that wins takes no children along that nobody has seen.
pub async fn a_delete_that_wins_leaves_rows_with_children<F: Fixture>() {
    let tables = vec![
        item(ConflictDetection::Row, &["client_wins"]),
        everyone("line"),
    ];
    let world = DeployedCentre::<F>::new(DDL, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.upload(&[insert("item", OLD)]).await;
    anna.download().await;
    world.execute("UPDATE item SET stock = 3").await;
    world.execute("INSERT INTO line VALUES (7, 1)").await;
    let told = anna.upload(&[delete("item", OLD)]).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].starts_with("conflict item: 1|tea|3"), "{told:?}");
    let rows = world.fixture.query("SELECT count(*) FROM line");
    assert_eq!(rows.await, ["1"]);
}

pub async fn resolvers_that_cannot_be_are_named<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await;
    for (resolve, message, hint) in [
        (
            &["latest(changed)"][..],
            "there is no resolver \"latest\"",
            "did you mean \"later\"?",
        ),
        (
            &["client_wins()"],
            "\"client_wins()\" names nobody",
            "client_wins for all",
        ),
        (
            &["later"],
            "\"later\" does not name the columns that it needs",
            "write later(changed)",
        ),
        (
            &["later(name)"],
            "later needs a date or a time, and the column \"name\" is",
            "changed",
        ),
        (
            &["maximum(notes)"],
            "maximum needs a number, a date or a time",
            "stock, price, changed",
        ),
        (
            &["merge_text(stock)"],
            "merge_text needs text",
            "name, notes",
        ),
        (
            &["additive(id)"],
            "the column \"id\" belongs to the primary key",
            "leave it out",
        ),
        (
            &["additive(stok)"],
            "no column \"stok\"",
            "did you mean \"stock\"?",
        ),
        (
            &["additive(stock", "park"],
            "has no closing bracket",
            "later(changed_at)",
        ),
        (
            &["park", "client_wins"],
            "both park and client_wins say whose values count",
            "keep one",
        ),
        (
            &["additive(stock)", "average(stock)"],
            "\"stock\" has a resolver already",
            "leave it out",
        ),
    ] {
        world.specs[0].tables[0] = item(ConflictDetection::Row, resolve);
        let error = world.deploy().await.unwrap_err();
        let tidewater_centre::CentreError::Configuration {
            message: told,
            hint: hinted,
        } = error
        else {
            panic!("{error:?}");
        };
        assert!(told.contains(message), "{told}");
        assert!(told.contains("table \"item\""), "{told}");
        assert!(hinted.contains(hint), "{hinted}");
    }
    world.specs[0].tables[0] = TableSpec {
        direction: Direction::Download,
        ..item(ConflictDetection::Row, &["client_wins"])
    };
    let error = world.deploy().await.unwrap_err().to_string();
    assert!(error.contains("they only download it"), "{error}");
}
