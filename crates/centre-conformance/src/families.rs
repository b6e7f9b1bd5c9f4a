//! Rows that follow others, tables with several rules, windows, many partitions.

use std::time::Duration;

use tidewater_centre::{RuleBy, RuleSpec, TableSpec, WindowLength, WindowSpec, WindowUnit};

use crate::fixture::{ApplicationTransaction, Fixture};
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone, partitioned};

pub(crate) const OWNED: &str = "SELECT {s.username}";

/// Documents by owner, their lines, the parts of these; between lines and parts a table that nobody
/// publishes. `act` is what the foreign keys do.
fn ddl(act: &str) -> String {
    format!(
        "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT, title TEXT);
         CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
             doc_id INTEGER REFERENCES doc {act}, body TEXT);
         CREATE INDEX line_doc ON line (doc_id);
         CREATE TABLE box (id INTEGER NOT NULL PRIMARY KEY, line_id INTEGER REFERENCES line {act});
         CREATE INDEX box_line ON box (line_id);
         CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY,
             box_id INTEGER REFERENCES box {act}, name TEXT);
         CREATE INDEX part_box ON part (box_id);
         INSERT INTO doc VALUES (1, 'anna', 'one'), (2, 'berta', 'two'), (3, NULL, 'three');
         INSERT INTO line VALUES (10, 1, 'a'), (11, 1, 'b'), (20, 2, 'c'), (30, 3, 'd');
         INSERT INTO box VALUES (100, 10), (110, 11), (200, 20), (300, 30);
         INSERT INTO part VALUES (1000, 100, 'p'), (1001, 100, 'q'), (2000, 200, 'r'),
             (3000, 300, 's'), (4000, NULL, 't');"
    )
}

const CASCADE: &str = "ON UPDATE CASCADE ON DELETE CASCADE";

/// A table whose rows go with those that they refer to.
pub fn follows(table: &str, parent: &str) -> TableSpec {
    TableSpec {
        partition: vec![RuleSpec::follows(parent)],
        ..everyone(table)
    }
}

fn tables() -> Vec<TableSpec> {
    vec![
        follows("part", "line"),
        follows("line", "doc"),
        partitioned("doc", &["owner"], OWNED),
    ]
}

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(&ddl(CASCADE), tables()).await
}

/// Downloads, and checks that the remote has what is its user's.
async fn assert_right<F: Fixture>(world: &DeployedCentre<F>, remote: &mut TestRemote) {
    remote.download().await;
    let user = &remote.user;
    let doc = format!("SELECT id FROM doc WHERE owner = '{user}'");
    let line = format!("SELECT id FROM line WHERE doc_id IN ({doc})");
    let of_box = format!("SELECT id FROM box WHERE line_id IN ({line})");
    for (table, columns, ids) in [
        ("doc", "id, owner, title", doc),
        ("line", "id, doc_id, body", line),
        (
            "part",
            "id, box_id, name",
            format!("SELECT id FROM part WHERE box_id IN ({of_box})"),
        ),
    ] {
        let sql = format!("SELECT {columns} FROM {table} WHERE id IN ({ids}) ORDER BY id");
        let mut there = world.fixture.query(&sql).await;
        there.sort();
        let mut here = remote.rows(table);
        here.sort();
        assert_eq!(here, there, "{table} of {user}");
    }
}

pub async fn rows_follow_their_parents_through_whatever_happens_to_them<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    assert_eq!(anna.rows("part"), ["1000|100|p", "1001|100|q"]);
    for sql in [
        "INSERT INTO line VALUES (12, 1, 'new')",
        "INSERT INTO box VALUES (120, 12); INSERT INTO part VALUES (1200, 120, 'new')",
        "UPDATE part SET name = 'P' WHERE id = 1000",
        "UPDATE doc SET owner = 'berta' WHERE id = 1",
        "UPDATE part SET name = 'PP' WHERE id = 1000",
        "UPDATE doc SET owner = 'anna' WHERE id IN (1, 3)",
        "UPDATE line SET doc_id = 2 WHERE id = 10",
        "UPDATE line SET doc_id = NULL WHERE id = 11",
        "UPDATE box SET line_id = 10 WHERE id = 300",
        "UPDATE doc SET id = 9 WHERE id = 2",
        "UPDATE doc SET id = 8, owner = 'anna' WHERE id = 9",
        "UPDATE part SET box_id = 120 WHERE id = 4000",
        "DELETE FROM box WHERE id = 120",
        "DELETE FROM doc WHERE id = 8",
        "DELETE FROM line WHERE doc_id = 1; DELETE FROM doc WHERE id = 1",
        "INSERT INTO doc VALUES (1, 'berta', 'again'); UPDATE line SET doc_id = 1 WHERE id = 30",
        "UPDATE doc SET owner = 'clara'",
    ] {
        world.execute(sql).await;
        assert_right(&world, &mut anna).await;
        assert_right(&world, &mut berta).await;
    }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// A statement of an application.
fn statement(dice: &mut Dice) -> String {
    let owner = ["'anna'", "'berta'", "'clara'", "NULL"][dice.roll(4) as usize];
    let (one, other) = (dice.roll(8), dice.roll(8));
    match dice.roll(14) {
        0 => format!("UPDATE doc SET owner = {owner} WHERE id = {one}"),
        1 => format!("UPDATE doc SET owner = {owner} WHERE id >= {one}"),
        2 => format!("DELETE FROM doc WHERE id = {one}"),
        3 => format!("INSERT INTO doc VALUES ({one}, {owner}, 'x')"),
        4 => format!("UPDATE doc SET id = {one}, owner = {owner} WHERE id = {other}"),
        5 => format!("UPDATE line SET doc_id = {one} WHERE id = {other}"),
        6 => format!("INSERT INTO line VALUES ({one}, {other}, 'x')"),
        7 => format!("DELETE FROM line WHERE id = {one}"),
        8 => format!("UPDATE line SET id = {one}, body = 'y' WHERE id = {other}"),
        9 => format!("INSERT INTO box VALUES ({one}, {other})"),
        10 => format!("UPDATE box SET line_id = {one}, id = {other} WHERE id = {other}"),
        11 => format!("INSERT INTO part VALUES ({one}, {other}, 'x')"),
        12 => format!("UPDATE part SET box_id = {one}, name = 'z' WHERE id >= {other}"),
        _ => format!("DELETE FROM box WHERE id = {one}"),
    }
}

pub async fn any_history_of_a_family_leaves_every_remote_right<F: Fixture>() {
    for (seed, act) in [(1, CASCADE), (2, "ON UPDATE CASCADE ON DELETE SET NULL")] {
        let world = DeployedCentre::<F>::new(&ddl(act), tables()).await;
        let mut dice = Dice(seed);
        let mut remotes = [
            TestRemote::synced(&world, "anna").await,
            TestRemote::synced(&world, "berta").await,
        ];
        for _ in 0..40 {
            let count = 1 + dice.roll(4);
            let statements = (0..count).map(|_| statement(&mut dice));
            for sql in statements {
                // Some of them the database refuses.
                let _ = world.fixture.try_execute(&sql).await;
            }
            let which = dice.roll(2) as usize;
            assert_right(&world, &mut remotes[which]).await;
        }
        for remote in &mut remotes {
            assert_right(&world, remote).await;
        }
    }
}

/// Interleavings 25 and 30.
pub async fn a_parent_that_moves_takes_along_what_open_transactions_do_below_it<F: Fixture>() {
    for moves_first in [false, true] {
        moves_beside_open_transactions::<F>(moves_first).await;
    }
}

async fn moves_beside_open_transactions<F: Fixture>(moves_first: bool) {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    for (number, below) in [
        "INSERT INTO line VALUES (40, 1, 'open')",
        "UPDATE line SET body = 'open' WHERE id = 10",
        "UPDATE line SET doc_id = 2 WHERE id = 11",
        "UPDATE part SET name = 'open' WHERE id = 1000",
        "INSERT INTO part VALUES (5000, 100, 'open')",
        "UPDATE box SET line_id = 20 WHERE id = 100",
        "DELETE FROM part WHERE id = 5000",
        "DELETE FROM line WHERE id = 40",
    ]
    .into_iter()
    .enumerate()
    {
        let owner = ["berta", "anna"][number % 2];
        let mover = format!("UPDATE doc SET owner = '{owner}', title = '{number}' WHERE id = 1");
        let (first, second) = match moves_first {
            true => (&*mover, below),
            false => (below, &*mover),
        };
        let mut open = world.fixture.begin().await;
        open.execute(first).await;
        let waiting = world.execute(second);
        tokio::pin!(waiting);
        // It waits for the open transaction, or would.
        let waited = match F::CONCURRENT_WRITERS {
            true => tokio::time::timeout(Duration::from_millis(100), &mut waiting).await,
            false => tokio::time::timeout(Duration::ZERO, std::future::pending()).await,
        };
        assert_right_enough(&mut anna).await;
        assert_right_enough(&mut berta).await;
        open.commit().await;
        if waited.is_err() {
            waiting.await;
        }
        assert_right(&world, &mut anna).await;
        assert_right(&world, &mut berta).await;
    }
}

/// Downloads while a transaction is open; what it brings may be from before it.
async fn assert_right_enough(remote: &mut TestRemote) {
    remote.download().await;
}

pub async fn a_row_that_two_rules_hold_stays_until_the_last_lets_it_go<F: Fixture>() {
    let ddl = "CREATE TABLE member (login TEXT NOT NULL, team TEXT NOT NULL,
            PRIMARY KEY (login, team));
        CREATE TABLE task (id INTEGER NOT NULL PRIMARY KEY, owner TEXT, team TEXT);
        CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, task_id INTEGER REFERENCES task);
        INSERT INTO member VALUES ('anna', 'red'), ('berta', 'blue');
        INSERT INTO task VALUES (1, 'anna', 'red'), (2, 'anna', 'blue'), (3, 'berta', 'red'),
            (4, 'clara', 'green');
        INSERT INTO note VALUES (10, 1), (20, 2), (30, 3), (40, 4);";
    let teams = "SELECT team FROM member WHERE login = {s.username}";
    let task = TableSpec {
        partition: vec![
            RuleSpec::columns(&["owner"], OWNED),
            RuleSpec::columns(&["team"], teams),
        ],
        ..everyone("task")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![task, follows("note", "task")]).await;
    let mut anna = TestRemote::new(&world, "anna").await;
    let first = anna.download().await;
    assert_eq!(
        anna.rows("task"),
        ["1|anna|red", "2|anna|blue", "3|berta|red"]
    );
    assert_eq!(anna.rows("note"), ["10|1", "20|2", "30|3"]);
    assert_eq!(first.upserts.len(), 6, "{first:?}");
    for (sql, tasks) in [
        ("UPDATE task SET owner = 'berta' WHERE id = 1", "1 2 3"),
        ("UPDATE task SET team = 'green' WHERE id = 1", "2 3"),
        ("DELETE FROM member WHERE login = 'anna'", "2"),
        ("INSERT INTO member VALUES ('anna', 'blue')", "2"),
        ("UPDATE task SET owner = 'clara' WHERE id = 2", "2"),
        (
            "UPDATE member SET team = 'green' WHERE login = 'anna'",
            "1 4",
        ),
        (
            "UPDATE task SET owner = 'anna', team = NULL WHERE id = 4",
            "1 4",
        ),
    ] {
        world.execute(sql).await;
        anna.download().await;
        let held = |table: &str, column: usize| {
            let rows = anna.rows(table);
            let ids = rows
                .iter()
                .map(|row| row.split('|').nth(column).unwrap().to_owned());
            ids.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(held("task", 0), tasks, "{sql}");
        assert_eq!(held("note", 1), tasks, "{sql}");
    }
}

/// Interleaving 31.
pub async fn thirty_thousand_partitions_are_a_digest<F: Fixture>() {
    let ddl = "CREATE TABLE grip (login TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (login, n));
        CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, n INTEGER, name TEXT);
        CREATE INDEX item_n ON item (n);
        INSERT INTO grip WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s
            WHERE n < 30000) SELECT 'anna', n FROM s;
        INSERT INTO item VALUES (1, 1, 'a'), (2, 30000, 'b'), (3, 30001, 'c'), (4, 17, 'd');";
    let query = "SELECT n FROM grip WHERE login = {s.username}";
    let world = DeployedCentre::<F>::new(ddl, vec![partitioned("item", &["n"], query)]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("item"), ["1|1|a", "2|30000|b", "4|17|d"]);
    let size = anna.checkpoint.as_ref().unwrap().encode().len();
    assert!(size < 1_000, "{size} bytes");
    assert!(anna.download().await.outcome.unwrap().checkpoint.is_none());
    world
        .execute("UPDATE item SET name = 'dd' WHERE id = 4; UPDATE item SET n = 0 WHERE id = 1")
        .await;
    assert_eq!(anna.download().await.rows(), ["-item [1]", "item: 4|17|dd"]);
    world
        .execute("INSERT INTO grip VALUES ('anna', 30001); DELETE FROM grip WHERE n = 17")
        .await;
    let received = anna.download().await;
    assert!(received.scope_changed && received.replaced.is_empty());
    assert_eq!(received.rows(), ["-item [4]", "item: 3|30001|c"]);
    // That it has arrived is news.
    assert!(anna.download().await.outcome.unwrap().checkpoint.is_some());
    // Nobody has the list any more: all of it comes anew.
    world
        .execute(&format!("DELETE FROM {}", F::own_table("scope_piece")))
        .await;
    assert!(anna.download().await.outcome.unwrap().checkpoint.is_none());
    world.execute("DELETE FROM grip WHERE n < 30000").await;
    assert_eq!(anna.download().await.replaced, ["item"]);
    assert_eq!(anna.rows("item"), ["2|30000|b", "3|30001|c"]);
}

/// Deploys these tables; gives the error.
async fn refusal<F: Fixture>(world: &mut DeployedCentre<F>, tables: Vec<TableSpec>) -> String {
    world.specs[0].tables = tables;
    let error = world.deploy().await.unwrap_err();
    format!("{error} / {}", error.hint())
}

pub async fn what_cannot_be_followed_is_named<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT, tags TEXT);
        CREATE TABLE link (id INTEGER NOT NULL PRIMARY KEY, from_id INTEGER REFERENCES doc,
            to_id INTEGER REFERENCES doc, up INTEGER REFERENCES link);
        CREATE TABLE alone (id INTEGER NOT NULL PRIMARY KEY);";
    let doc = || partitioned("doc", &["owner"], OWNED);
    let mut world = DeployedCentre::<F>::new(ddl, vec![doc()]).await;
    let by = |columns: &[&str]| TableSpec {
        partition: vec![
            RuleBy::Follows {
                table: "doc".into(),
                by: Some(columns.iter().map(|&it| it.into()).collect()),
            }
            .into(),
        ],
        ..everyone("link")
    };
    for (table, told) in [
        (
            follows("link", "dok"),
            ["\"dok\", which the publication", "did you mean \"doc\"?"],
        ),
        (
            follows("alone", "doc"),
            ["no foreign key leads there", "declare one"],
        ),
        (
            follows("link", "doc"),
            [
                "several foreign keys lead",
                "by = [\"from_id\"], by = [\"to_id\"]",
            ],
        ),
        (
            follows("link", "link"),
            ["follows itself", "columns of its own"],
        ),
        (
            by(&["up"]),
            [
                "no foreign key leads there",
                "name the columns of a foreign key",
            ],
        ),
        (
            by(&["form_id"]),
            ["no column \"form_id\"", "did you mean \"from_id\"?"],
        ),
    ] {
        let message = refusal(&mut world, vec![doc(), table]).await;
        assert!(told.iter().all(|it| message.contains(it)), "{message}");
    }
    let circle = vec![
        TableSpec {
            partition: vec![RuleSpec::follows("link")],
            ..everyone("doc")
        },
        by(&["from_id"]),
    ];
    let message = refusal(&mut world, circle).await;
    assert!(
        message.contains("no foreign key leads") || message.contains("follows itself"),
        "{message}"
    );
    let window = |column: &str, last| TableSpec {
        partition: vec![RuleSpec {
            by: RuleBy::Everyone,
            window: Some(WindowSpec {
                column: column.into(),
                last,
            }),
        }],
        ..everyone("doc")
    };
    for (column, last, told) in [
        (
            "tags",
            WindowLength::Number(3),
            "neither a date nor an integer",
        ),
        ("id", WindowLength::Time(3, WindowUnit::Days), "is a number"),
        ("tag", WindowLength::Number(3), "did you mean \"tags\"?"),
    ] {
        let message = refusal(&mut world, vec![window(column, last)]).await;
        assert!(message.contains(told), "{message}");
    }
}

pub async fn missing_indexes_of_a_family_are_told_with_the_statement_that_makes_them<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT);
        CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc_id INTEGER REFERENCES doc);";
    let tables = vec![
        partitioned("doc", &["owner"], OWNED),
        follows("line", "doc"),
    ];
    let mut world = DeployedCentre::<F>::new(ddl, tables).await;
    let warnings = world.deploy().await.unwrap().warnings.join("\n");
    for statement in [
        "CREATE INDEX doc_owner ON doc (owner)",
        "CREATE INDEX line_doc_id ON line (doc_id)",
    ] {
        assert!(warnings.contains(statement), "{warnings}");
        world.execute(statement).await;
    }
    assert_eq!(
        world
            .deploy()
            .await
            .unwrap()
            .warnings
            .join("")
            .matches("CREATE INDEX")
            .count(),
        0
    );
}

const TAKEN: &str = "0 conflicts, 0 refused";

/// Interleaving 26.
pub async fn rows_that_follow_a_new_parent_arrive_with_it<F: Fixture>() {
    let world = DeployedCentre::<F>::new(&ddl(CASCADE), tables()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("doc", "5|anna|five"),
            insert("line", "50|5|e"),
            insert("line", "51|5|f"),
            update("line", "10|1|a", "10|5|a"),
            delete("line", "11|1|b"),
        ])
        .await;
    assert!(result[0].ends_with(TAKEN), "{result:?}");
    // What is below the line that moved is looked at again, and is as it was.
    let parts = ["part: 1000|100|p", "part: 1001|100|q"];
    assert_eq!(anna.download().await.rows(), parts);
    let there = world
        .fixture
        .query("SELECT id FROM line WHERE doc_id = 5 ORDER BY id")
        .await;
    assert_eq!(there, ["10", "50", "51"]);
}

pub async fn what_belongs_to_others_by_its_parents_is_not_taken<F: Fixture>() {
    const REFUSED: &str = "out_of_scope: this row is not in your partitions";
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let all = "SELECT id, doc_id, body FROM line ORDER BY id";
    let before = world.fixture.query(all).await;
    for (change, told) in [
        (
            insert("line", "60|2|x"),
            format!("refused line [60] Insert {REFUSED}"),
        ),
        (
            insert("line", "60|NULL|x"),
            format!("refused line [60] Insert {REFUSED}"),
        ),
        (
            insert("line", "20|1|x"),
            "refused line [20] Insert key_in_use: key in use".into(),
        ),
        (
            update("line", "20|2|c", "20|2|C"),
            format!("refused line [20] Update {REFUSED}"),
        ),
        (
            update("line", "10|1|a", "10|2|a"),
            format!("refused line [10] Update {REFUSED}"),
        ),
        (
            update("line", "20|2|c", "20|1|c"),
            format!("refused line [20] Update {REFUSED}"),
        ),
        (
            delete("line", "20|2|c"),
            format!("refused line [20] Delete {REFUSED}"),
        ),
        (
            delete("line", "20|2|z"),
            format!("refused line [20] Delete {REFUSED}"),
        ),
    ] {
        let result = anna.upload(&[change]).await;
        assert_eq!(result[1..], [told]);
    }
    assert_eq!(world.fixture.query(all).await, before);
    // What was hers is not any more.
    world
        .execute("UPDATE doc SET owner = 'berta' WHERE id = 1")
        .await;
    let result = anna
        .upload(&[
            update("part", "1000|100|p", "1000|100|P"),
            delete("line", "11|1|b"),
            insert("doc", "7|anna|seven"),
            insert("line", "70|7|g"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "2 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused".to_owned(),
            format!("refused part [1000] Update {REFUSED}"),
            format!("refused line [11] Delete {REFUSED}"),
        ]
    );
    assert_right(&world, &mut TestRemote::synced(&world, "anna").await).await;
}

/// A parent that leaves in the same upload takes its children out of scope.
pub async fn a_row_is_judged_by_what_its_parent_is_in_the_end<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("doc", "5|anna|five"),
            insert("line", "50|5|e"),
            insert("line", "51|6|f"),
            insert("doc", "6|berta|six"),
        ])
        .await;
    let refused = result.iter().filter(|it| it.starts_with("refused")).count();
    assert_eq!(refused, 2, "{result:?}");
    let there = world
        .fixture
        .query("SELECT id FROM line WHERE id >= 50")
        .await;
    assert_eq!(there, ["50"]);
    assert_right(&world, &mut TestRemote::synced(&world, "anna").await).await;
}
