//! Parents and children: keys that change, deletes, and rows that need each other.

use tidewater_centre::{OnUnseenChildren, TableSpec};

use crate::fixture::Fixture;
use crate::remote::{RowChange, TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone, partitioned};

const DOCS: &str = "CREATE TABLE doc (id VARCHAR(9) NOT NULL PRIMARY KEY,
       owner VARCHAR(9) NOT NULL, title VARCHAR(9) CHECK (title <> 'bad'));
     CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
       doc_id VARCHAR(9) NOT NULL REFERENCES doc ON UPDATE CASCADE ON DELETE CASCADE,
       body VARCHAR(9) CHECK (body <> 'bad'));
     INSERT INTO doc VALUES ('d1', 'anna', 'one'), ('d2', 'anna', 'two'), ('t1', 'theirs', 'x');
     INSERT INTO line VALUES (1, 'd1', 'a'), (2, 'd1', 'b'), (3, 'd1', 'c'), (4, 'd2', 'd')";

/// Documents by owner, and their lines by document.
fn docs() -> Vec<TableSpec> {
    vec![
        partitioned("doc", &["owner"], "SELECT {s.username}"),
        partitioned(
            "line",
            &["doc_id"],
            "SELECT id FROM doc WHERE owner = {s.username}",
        ),
    ]
}

async fn equal<F: Fixture>(world: &DeployedCentre<F>, remote: &mut TestRemote, tables: &[&str]) {
    remote.download().await;
    let anew = TestRemote::synced(world, &remote.user).await;
    for table in tables {
        assert_eq!(remote.rows(table), anew.rows(table), "{table}");
    }
}

/// Interleaving 26: what the user holds once the upload is in effect decides.
pub async fn a_new_parent_and_its_new_children_arrive_together<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DOCS, docs()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    anna.write(&[
        insert("doc", "d3|anna|new"),
        insert("line", "10|d3|x"),
        insert("line", "11|d3|y"),
        update("line", "4|d2|d", "4|d3|d"),
    ]);
    let result = anna
        .upload(&[
            insert("doc", "d3|anna|new"),
            insert("line", "10|d3|x"),
            insert("line", "11|d3|y"),
            update("line", "4|d2|d", "4|d3|d"),
            // Somebody else's, and one that there is not.
            insert("line", "12|t1|y"),
            insert("line", "13|none|y"),
            // Given away, with its line: nobody may do that.
            update("doc", "d1|anna|one", "d1|berta|one"),
        ])
        .await;
    let counts = "3 inserted, 1 updated, 0 deleted, 0 conflicts, 3 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let mut refused = result[1..].to_vec();
    refused.sort();
    let reason = "out_of_scope: this row is not in your partitions";
    assert_eq!(refused[0], format!("refused doc [d1] Update {reason}"));
    assert_eq!(refused[1], format!("refused line [12] Insert {reason}"));
    assert!(refused[2].starts_with("refused line [13] Insert"));
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
    let all = ["1|d1|a", "2|d1|b", "3|d1|c", "4|d3|d", "10|d3|x", "11|d3|y"];
    assert_eq!(lines, all);
    equal(&world, &mut anna, &["doc", "line"]).await;
    assert_eq!(anna.rows("line").len(), 6);
    // In the next sync it is a document like any other.
    let result = anna.upload(&[insert("line", "14|d3|z")]).await;
    assert_eq!(result.len(), 1, "{result:?}");
}

/// Whoever may write the table that says who holds what, holds what he wrote as soon as that is in
/// effect, and not what he has taken from himself.
pub async fn a_scope_is_what_it_is_at_the_end_of_the_upload<F: Fixture>() {
    let ddl = "CREATE TABLE member (id INTEGER NOT NULL PRIMARY KEY, login VARCHAR(9) NOT NULL,
           team VARCHAR(9) NOT NULL);
         CREATE TABLE task (id INTEGER NOT NULL PRIMARY KEY, team VARCHAR(9) NOT NULL);
         INSERT INTO member VALUES (1, 'anna', 'red'); INSERT INTO task VALUES (1, 'red')";
    let teams = "SELECT team FROM member WHERE login = {s.username}";
    let tables = vec![everyone("member"), partitioned("task", &["team"], teams)];
    let world = DeployedCentre::<F>::new(ddl, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        update("member", "1|anna|red", "1|anna|blue"),
        // Once more under the last signed scope.
        insert("task", "2|red"),
        update("task", "1|red", "1|blue"),
        insert("task", "3|blue"),
    ];
    anna.write(&changes);
    let result = anna.upload(&changes).await;
    assert_eq!(
        result,
        ["2 inserted, 2 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let reason = "out_of_scope: this row is not in your partitions";
    let result = anna
        .upload(&[insert("task", "4|red"), insert("task", "5|blue")])
        .await;
    assert_eq!(result[1], format!("refused task [4] Insert {reason}"));
    anna.write(&[insert("task", "5|blue")]);
    equal(&world, &mut anna, &["member", "task"]).await;
    assert_eq!(anna.rows("task"), ["1|blue", "3|blue", "5|blue"]);
}

/// Interleaving 27: so the centre's own foreign keys act, also on children that nobody has seen.
pub async fn a_parent_under_another_key_takes_its_children_along<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DOCS, docs()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut carl = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "INSERT INTO line VALUES (9, 'd1', 'unseen'); UPDATE line SET body = 'o' WHERE id = 2",
        )
        .await;
    let changes = [
        update("doc", "d1|anna|one", "d1x|anna|uno"),
        // The remote's own cascade, once with more than that.
        update("line", "1|d1|a", "1|d1x|A"),
        delete("line", "3|d1|c"),
        insert("line", "10|d1x|new"),
        // Somebody else has changed it.
        update("line", "2|d1|b", "2|d1x|B"),
    ];
    anna.write(&changes);
    let result = anna.upload(&changes).await;
    let told = [
        "1 inserted, 2 updated, 1 deleted, 1 conflicts, 0 refused",
        "conflict line: 2|d1x|o",
    ];
    assert_eq!(result, told);
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
    let all = ["1|d1x|A", "2|d1x|o", "4|d2|d", "9|d1x|unseen", "10|d1x|new"];
    assert_eq!(lines, all);
    for remote in [&mut anna, &mut carl] {
        equal(&world, remote, &["doc", "line"]).await;
    }
    // The same once more, as from a copy of the file, is in effect already.
    let result = carl
        .upload(&[
            update("doc", "d1|anna|one", "d1x|anna|uno"),
            update("line", "1|d1|a", "1|d1x|A"),
        ])
        .await;
    assert_eq!(
        result[0],
        "0 inserted, 2 updated, 0 deleted, 0 conflicts, 0 refused"
    );
}

/// The key of a child is made of its parent's.
pub async fn children_whose_keys_follow_their_parents_are_found<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, title VARCHAR(9));
         CREATE TABLE line (doc INTEGER NOT NULL REFERENCES doc ON UPDATE CASCADE ON DELETE CASCADE,
           n INTEGER NOT NULL, body VARCHAR(9), PRIMARY KEY (doc, n));
         CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, doc INTEGER, n INTEGER,
           FOREIGN KEY (doc, n) REFERENCES line ON UPDATE CASCADE ON DELETE SET NULL);
         INSERT INTO doc VALUES (1, 'one');
         INSERT INTO line VALUES (1, 1, 'a'), (1, 2, 'b'), (1, 3, 'c');
         INSERT INTO note VALUES (1, 1, 1), (2, 1, 2), (3, NULL, NULL)";
    let world = DeployedCentre::<F>::new(ddl, ["doc", "line", "note"].map(everyone).to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("INSERT INTO line VALUES (1, 9, 'unseen')")
        .await;
    let changes = [
        update("doc", "1|one", "7|one"),
        update("line", "1|1|a", "7|1|A"),
        update("line", "1|2|b", "7|2|b"),
        delete("line", "1|3|c"),
        update("note", "1|1|1", "1|7|1"),
        update("note", "3|NULL|NULL", "3|7|2"),
    ];
    anna.write(&changes);
    let result = anna.upload(&changes).await;
    assert_eq!(
        result,
        ["0 inserted, 5 updated, 1 deleted, 0 conflicts, 0 refused"]
    );
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 2").await;
    assert_eq!(lines, ["7|1|A", "7|2|b", "7|9|unseen"]);
    let notes = world.fixture.query("SELECT * FROM note ORDER BY 1").await;
    assert_eq!(notes, ["1|7|1", "2|7|2", "3|7|2"]);
    equal(&world, &mut anna, &["doc", "line", "note"]).await;
}

/// Foreign keys that do not act: the parent cannot go before its children, nor they before it.
pub async fn a_parent_and_children_that_nothing_moves_change_together<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, title VARCHAR(9) UNIQUE);
         CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc INTEGER NOT NULL REFERENCES doc,
           body VARCHAR(9));
         INSERT INTO doc VALUES (1, 'one'), (2, 'two');
         INSERT INTO line VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c')";
    let world = DeployedCentre::<F>::new(ddl, ["doc", "line"].map(everyone).to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("INSERT INTO line VALUES (9, 2, 'unseen')")
        .await;
    let result = anna
        .upload(&[
            update("doc", "1|one", "7|one"),
            update("line", "1|1|a", "1|7|a"),
            update("line", "2|1|b", "2|7|B"),
            // One that nobody has seen does not come along.
            update("doc", "2|two", "8|two"),
            update("line", "3|2|c", "3|8|c"),
        ])
        .await;
    let counts = "0 inserted, 3 updated, 0 deleted, 0 conflicts, 2 refused";
    assert_eq!(result[0], counts, "{result:?}");
    assert!(
        result[1].starts_with("refused doc [2] Update foreign_key"),
        "{result:?}"
    );
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
    assert_eq!(lines, ["1|7|a", "2|7|B", "3|2|c", "9|2|unseen"]);
}

/// A parent that does not get its new key keeps its children, and none attaches to another's row.
pub async fn children_of_a_parent_that_stays_stay_with_it<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DOCS, docs()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("UPDATE doc SET title = 'changed' WHERE id = 'd1'")
        .await;
    let result = anna
        .upload(&[
            // It loses: so do those that were to follow.
            update("doc", "d1|anna|one", "d1x|anna|one"),
            update("line", "1|d1|a", "1|d1x|a"),
            delete("line", "3|d1|c"),
            insert("line", "10|d1x|new"),
            // Its key is somebody else's.
            update("doc", "d2|anna|two", "t1|anna|two"),
            update("line", "4|d2|d", "4|t1|d"),
            insert("line", "11|t1|new"),
        ])
        .await;
    let counts = "0 inserted, 0 updated, 1 deleted, 2 conflicts, 4 refused";
    assert_eq!(result[0], counts, "{result:?}");
    for line in ["conflict doc: d1|anna|changed", "conflict line: 1|d1|a"] {
        assert!(result.iter().any(|it| it == line), "{result:?}");
    }
    for key in [
        "doc [d2] Update key_in_use",
        "line [10]",
        "line [11]",
        "line [4]",
    ] {
        let line = format!("refused {key}");
        assert!(result.iter().any(|it| it.starts_with(&line)), "{result:?}");
    }
    let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
    assert_eq!(lines, ["1|d1|a", "2|d1|b", "4|d2|d"]);
}

/// Rows pass keys on to each other.
pub async fn keys_that_others_give_up_can_be_taken<F: Fixture>() {
    let ddl = "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(9));
         INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e'), (6, 'f'), (8, 'h')";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("t")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    world.execute("UPDATE t SET v = 'other' WHERE id = 8").await;
    let result = anna
        .upload(&[
            insert("t", "1|new"),
            update("t", "1|a", "2|a"),
            update("t", "2|b", "3|b"),
            update("t", "3|c", "7|C"),
            delete("t", "4|d"),
            update("t", "5|e", "4|e"),
            // Its row is not there as it was; what was to take its key cannot.
            update("t", "8|h", "9|h"),
            insert("t", "8|new"),
        ])
        .await;
    let counts = "1 inserted, 4 updated, 1 deleted, 1 conflicts, 1 refused";
    assert_eq!(result[0], counts, "{result:?}");
    assert!(
        result[1..].contains(&"conflict t: 8|other".into()),
        "{result:?}"
    );
    let rows = world.fixture.query("SELECT * FROM t ORDER BY 1").await;
    let all = ["1|new", "2|a", "3|b", "4|e", "6|f", "7|C", "8|other"];
    assert_eq!(rows, all);
    berta.download().await;
    assert_eq!(berta.rows("t"), all);
}

/// Interleaving 28: a delete takes along only what its own upload deletes, too.
pub async fn a_delete_takes_along_nothing_that_nobody_has_seen<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        for on_unseen_children in [OnUnseenChildren::Conflict, OnUnseenChildren::Cascade] {
            let ddl = format!(
                "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, title VARCHAR(9));
                 CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY,
                   doc INTEGER REFERENCES doc ON DELETE {action}, body VARCHAR(9));
                 CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY,
                   line INTEGER REFERENCES line ON DELETE {action});
                 CREATE TABLE audit (id INTEGER NOT NULL PRIMARY KEY,
                   doc INTEGER REFERENCES doc ON DELETE CASCADE);
                 INSERT INTO doc VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four');
                 INSERT INTO line VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, 4, 'd');
                 INSERT INTO part VALUES (1, 1), (3, 3); INSERT INTO audit VALUES (1, 4)"
            );
            let tables = ["doc", "line", "part"].map(|name| TableSpec {
                on_unseen_children,
                ..everyone(name)
            });
            let world = DeployedCentre::<F>::new(&ddl, tables.to_vec()).await;
            let mut anna = TestRemote::synced(&world, "anna").await;
            world
                .execute(
                    "INSERT INTO line VALUES (9, 1, 'unseen'); INSERT INTO part VALUES (9, 3);
                     UPDATE line SET body = 'other' WHERE id = 2",
                )
                .await;
            let changes = |table: &str, rows: &[&str]| {
                let rows = rows.iter();
                rows.map(|row| delete(table, row))
                    .collect::<Vec<RowChange>>()
            };
            let mut all = changes("part", &["1|1", "3|3"]);
            all.extend(changes("line", &["1|1|a", "2|2|b", "3|3|c", "4|4|d"]));
            all.extend(changes("doc", &["1|one", "2|two", "3|three", "4|four"]));
            let result = anna.upload(&all).await;
            let place = format!("{action} {on_unseen_children:?}: {result:?}");
            let lines = world.fixture.query("SELECT * FROM line ORDER BY 1").await;
            let parts = world.fixture.query("SELECT * FROM part ORDER BY 1").await;
            let docs = world.fixture.query("SELECT id FROM doc ORDER BY 1").await;
            let audit = world.fixture.query("SELECT id FROM audit").await;
            // What is not published goes as it would for any application.
            assert_eq!(audit, [] as [&str; 0], "{place}");
            let (left, counts): ([&[&str]; 3], _) = match (on_unseen_children, action) {
                (OnUnseenChildren::Conflict, "CASCADE") => (
                    [
                        &["1", "2", "3"],
                        &["1|1|a", "2|2|other", "3|3|c", "9|1|unseen"],
                        &["1|1", "3|3", "9|3"],
                    ],
                    "0 inserted, 0 updated, 2 deleted, 8 conflicts, 0 refused",
                ),
                // Of these, each row was deleted for itself.
                (OnUnseenChildren::Conflict, _) => (
                    [
                        &["1", "2", "3"],
                        &["2|2|other", "3|3|c", "9|1|unseen"],
                        &["9|3"],
                    ],
                    "0 inserted, 0 updated, 5 deleted, 5 conflicts, 0 refused",
                ),
                (_, "CASCADE") => (
                    [&[], &[], &[]],
                    "0 inserted, 0 updated, 9 deleted, 1 conflicts, 0 refused",
                ),
                _ => (
                    [&[], &["2|NULL|other", "9|NULL|unseen"], &["9|NULL"]],
                    "0 inserted, 0 updated, 9 deleted, 1 conflicts, 0 refused",
                ),
            };
            assert_eq!(result[0], counts, "{place}");
            assert_eq!(docs, left[0], "{place}");
            assert_eq!(lines, left[1], "{place}");
            assert_eq!(parts, left[2], "{place}");
        }
    }
}

/// The same in a table that refers to itself: a tree of which one leaf is unseen stays, as far as
/// that leaf hangs on it.
pub async fn of_a_tree_only_what_has_nothing_unseen_below_is_deleted<F: Fixture>() {
    for (action, left, counts) in [
        (
            "CASCADE",
            &["1|NULL", "2|1", "3|2", "4|1", "9|3"][..],
            "0 inserted, 0 updated, 1 deleted, 4 conflicts, 0 refused",
        ),
        (
            "SET NULL",
            &["1|NULL", "2|1", "3|2", "9|3"],
            "0 inserted, 0 updated, 2 deleted, 3 conflicts, 0 refused",
        ),
    ] {
        let ddl = format!(
            "CREATE TABLE node (id INTEGER NOT NULL PRIMARY KEY,
               up INTEGER REFERENCES node ON DELETE {action});
             INSERT INTO node VALUES (1, NULL), (2, 1), (3, 2), (4, 1), (5, NULL)"
        );
        let world = DeployedCentre::<F>::new(&ddl, vec![everyone("node")]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        world.execute("INSERT INTO node VALUES (9, 3)").await;
        let rows = ["1|NULL", "2|1", "3|2", "4|1", "5|NULL"];
        let changes: Vec<RowChange> = rows.iter().map(|row| delete("node", row)).collect();
        let result = anna.upload(&changes).await;
        assert_eq!(result[0], counts, "{action}: {result:?}");
        let nodes = world.fixture.query("SELECT * FROM node ORDER BY 1").await;
        assert_eq!(nodes, left, "{action}");
    }
}

/// One bad row of many costs its siblings nothing; and the one that all of them refer to may get
/// another key meanwhile.
pub async fn bad_children_keep_no_good_ones_out<F: Fixture>() {
    const COUNT: i32 = 300;
    let children: Vec<String> = (0..COUNT).map(|id| format!("({id}, 1, 1, {id})")).collect();
    let ddl = format!(
        "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE);
         CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY);
         CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
           p INTEGER REFERENCES par ON DELETE CASCADE ON UPDATE CASCADE,
           k INTEGER REFERENCES kind, v INTEGER UNIQUE CHECK (v <> 666));
         INSERT INTO par VALUES (1, 'one');
         INSERT INTO kind VALUES (1);
         INSERT INTO ch VALUES {}",
        children.join(", ")
    );
    let tables = ["par", "kind", "ch"].map(everyone);
    let world = DeployedCentre::<F>::new(&ddl, tables.to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut changes = vec![update("par", "1|one", "2|one")];
    let kind = |id: i32| if id % 3 == 0 { 9 } else { 1 };
    changes.extend((0..COUNT).map(|id| {
        let value = match id {
            // Two want one value, one has a bad one.
            4 | 8 => 1_000,
            5 => 666,
            _ => id,
        };
        update(
            "ch",
            &format!("{id}|1|1|{id}"),
            &format!("{id}|2|{}|{value}", kind(id)),
        )
    }));
    changes.extend((0..COUNT).map(|id| {
        let (id, value) = (id + 1_000, id + 2_000);
        insert("ch", &format!("{id}|2|{}|{value}", kind(id - 1_000)))
    }));
    let result = anna.upload(&changes).await;
    let counts = "200 inserted, 199 updated, 0 deleted, 0 conflicts, 202 refused";
    assert_eq!(result[0], counts, "{:?}", &result[..3]);
    let well = "SELECT count(*) FROM ch WHERE p = 2 AND k = 1";
    assert_eq!(world.fixture.query(well).await, ["500"]);
}

/// A department and its head; whoever only waits for them is to blame for himself.
pub async fn rows_that_refer_to_each_other_are_taken_together<F: Fixture>() {
    let ddl = "CREATE TABLE department (id INTEGER NOT NULL PRIMARY KEY, head INTEGER NOT NULL);
         CREATE TABLE employee (id INTEGER NOT NULL PRIMARY KEY,
           department INTEGER NOT NULL REFERENCES department, name VARCHAR(9) CHECK (name <> 'bad'));
         CREATE TABLE office (id INTEGER NOT NULL PRIMARY KEY, dep INTEGER REFERENCES department,
           boss INTEGER REFERENCES office)";
    let tables = ["department", "employee", "office"].map(everyone);
    let world = DeployedCentre::<F>::new(ddl, tables.to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("employee", "1|1|Ada"),
            insert("employee", "2|1|bad"),
            insert("employee", "3|1|Cleo"),
            insert("employee", "4|9|Dora"),
            insert("department", "1|1"),
            // Each waits for the next one.
            insert("office", "1|1|2"),
            insert("office", "2|1|3"),
            insert("office", "3|1|NULL"),
            // These for each other.
            insert("office", "4|1|5"),
            insert("office", "5|1|4"),
            // And these too, but one of them cannot be.
            insert("office", "6|1|7"),
            insert("office", "7|9|6"),
        ])
        .await;
    let counts = "8 inserted, 0 updated, 0 deleted, 0 conflicts, 4 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let offices = world
        .fixture
        .query("SELECT id FROM office ORDER BY 1")
        .await;
    assert_eq!(offices, ["1", "2", "3", "4", "5"]);
    let result = anna
        .upload(&[delete("office", "4|1|5"), delete("office", "5|1|4")])
        .await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused"]
    );
}

/// Merging duplicates: the children are moved, then their parent is deleted, whose foreign keys
/// would take them along. Its unique value is taken again, too.
pub async fn a_delete_takes_along_nothing_that_the_same_upload_moves<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE,
               boss INTEGER REFERENCES par ON DELETE {action});
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER REFERENCES par ON DELETE {action}, v VARCHAR(9));
             INSERT INTO par VALUES (1, 'one', NULL), (2, 'two', NULL), (3, 'three', 1);
             INSERT INTO ch VALUES (1, 1, 'child'), (2, 1, 'gone')"
        );
        let world = DeployedCentre::<F>::new(&ddl, vec![everyone("par"), everyone("ch")]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let result = anna
            .upload(&[
                insert("par", "4|one|NULL"),
                update("par", "3|three|1", "3|three|2"),
                delete("par", "1|one|NULL"),
                insert("ch", "3|4|new"),
                update("ch", "1|1|child", "1|2|moved"),
                delete("ch", "2|1|gone"),
            ])
            .await;
        let all = "2 inserted, 2 updated, 2 deleted, 0 conflicts, 0 refused";
        assert_eq!(result, [all], "{action}");
        let berta = TestRemote::synced(&world, "berta").await;
        assert_eq!(berta.rows("ch"), ["1|2|moved", "3|4|new"], "{action}");
        let parents = ["2|two|NULL", "3|three|2", "4|one|NULL"];
        assert_eq!(berta.rows("par"), parents, "{action}");
    }
}
