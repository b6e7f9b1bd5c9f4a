//! Rows that leave others, which the same upload deletes.

use crate::fixture::Fixture;
use crate::remote::{Change, Remote, delete, insert, update};
use crate::world::{World, everyone};

/// A parent under another key is a delete, an insert and updates of its children, and its unique
/// value lets none of them go first. What refers to the children was not touched at all.
pub async fn a_parent_under_another_key_keeps_its_children<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY,
               code VARCHAR(9) UNIQUE CHECK (code <> 'bad'),
               boss INTEGER REFERENCES par ON DELETE {action});
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER REFERENCES par ON DELETE {action}, v VARCHAR(9) UNIQUE);
             CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY,
               c INTEGER REFERENCES ch ON DELETE CASCADE);
             INSERT INTO par VALUES (1, 'one', NULL), (2, 'two', NULL), (3, 'three', 1),
               (5, 'five', NULL), (7, 'seven', NULL);
             INSERT INTO ch VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 1, 'c'), (5, 5, 'e'), (7, 7, 'g'),
               (8, 1, 'h'), (9, 7, 'i'), (6, 5, 'j');
             INSERT INTO item VALUES (1, 1), (2, 2), (3, 3), (5, 5), (7, 7), (8, 8)"
        );
        let tables = ["par", "ch", "item"].map(everyone);
        let world = World::<F>::new(&ddl, tables.to_vec()).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut carl = Remote::synced(&world, "carl").await;
        world
            .execute("UPDATE ch SET v = 'changed' WHERE id = 2")
            .await;
        let result = anna
            .upload(&[
                delete("par", "1|one|NULL"),
                insert("par", "4|one|NULL"),
                update("par", "3|three|1", "3|three|4"),
                update("ch", "1|1|a", "1|4|a"),
                // Somebody else has changed it: it loses, and goes with its parent.
                update("ch", "2|1|b", "2|4|b"),
                // Its value is taken: it is refused, and its row goes all the same.
                update("ch", "8|1|h", "8|4|g"),
                // A child under another key, in the same way.
                delete("ch", "3|1|c"),
                insert("ch", "4|4|c"),
                update("item", "3|3", "3|4"),
                // What cannot be: nobody else suffers from it.
                delete("par", "5|five|NULL"),
                insert("par", "6|two|NULL"),
                update("ch", "5|5|e", "5|6|e"),
                delete("par", "7|seven|NULL"),
                insert("par", "8|seven|NULL"),
                update("ch", "7|7|g", "7|8|g"),
                // The parent is there, but its value comes from a child that is deleted.
                delete("ch", "9|7|i"),
                update("ch", "6|5|j", "6|3|i"),
            ])
            .await;
        let counts = "3 inserted, 5 updated, 5 deleted, 1 conflicts, 3 refused";
        assert_eq!(result[0], counts, "{action}: {result:?}");
        let berta = Remote::synced(&world, "berta").await;
        carl.download().await;
        let parents = ["2|two|NULL", "3|three|4", "4|one|NULL", "8|seven|NULL"];
        let (children, items): (&[&str], &[&str]) = match action {
            "CASCADE" => (
                &["1|4|a", "4|4|c", "6|3|i", "7|8|g"],
                &["1|1", "3|4", "7|7"],
            ),
            _ => (
                &[
                    "1|4|a",
                    "2|NULL|changed",
                    "4|4|c",
                    "5|NULL|e",
                    "6|3|i",
                    "7|8|g",
                    "8|NULL|h",
                ],
                &["1|1", "2|2", "3|4", "5|5", "7|7", "8|8"],
            ),
        };
        for remote in [&berta, &carl] {
            assert_eq!(remote.rows("par"), parents, "{action}");
            assert_eq!(remote.rows("ch"), children, "{action}");
            assert_eq!(remote.rows("item"), items, "{action}");
        }
    }
}

/// One child of three refers to what there is not, and two of the others want one value.
pub async fn children_that_cannot_follow_their_parent_keep_no_others_from_it<F: Fixture>() {
    const COUNT: i32 = 60;
    let children: Vec<String> = (0..COUNT).map(|id| format!("({id}, 1, 1, {id})")).collect();
    let ddl = format!(
        "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE);
         CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY);
         CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
           p INTEGER REFERENCES par ON DELETE CASCADE, k INTEGER REFERENCES kind,
           v INTEGER UNIQUE);
         INSERT INTO par VALUES (1, 'one');
         INSERT INTO kind VALUES (1);
         INSERT INTO ch VALUES {}",
        children.join(", ")
    );
    let tables = ["par", "kind", "ch"].map(everyone);
    let world = World::<F>::new(&ddl, tables.to_vec()).await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut changes = vec![delete("par", "1|one"), insert("par", "2|one")];
    changes.extend((0..COUNT).map(|id| {
        let kind = if id % 3 == 0 { 9 } else { 1 };
        let value = if id == 4 || id == 8 { 1_000 } else { id };
        update(
            "ch",
            &format!("{id}|1|1|{id}"),
            &format!("{id}|2|{kind}|{value}"),
        )
    }));
    let result = anna.upload(&changes).await;
    let counts = "1 inserted, 39 updated, 1 deleted, 0 conflicts, 21 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let berta = Remote::synced(&world, "berta").await;
    let values: Vec<String> = (0..COUNT)
        .filter(|id| id % 3 != 0 && *id != 8)
        .map(|id| format!("{id}|2|1|{}", if id == 4 { 1_000 } else { id }))
        .collect();
    let mut rows = berta.rows("ch");
    rows.sort_by_key(|row| row.split('|').next().map(str::len));
    assert_eq!(rows, values);
}

/// A child that cannot follow its parent goes with the old one. So would what the same upload has
/// made refer to the child, or changed below it, though the upload counted it as taken.
pub async fn what_goes_with_a_child_that_cannot_follow_its_parent_is_refused<F: Fixture>() {
    for code in ["code VARCHAR(9)", "code VARCHAR(9) UNIQUE"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, {code});
             CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY);
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER REFERENCES par ON DELETE CASCADE, k INTEGER REFERENCES kind);
             CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY,
               c INTEGER REFERENCES ch ON DELETE CASCADE, v VARCHAR(9));
             CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY,
               i INTEGER REFERENCES item ON DELETE CASCADE);
             INSERT INTO kind VALUES (1);
             INSERT INTO par VALUES (1, 'one');
             INSERT INTO ch VALUES (1, 1, 1), (2, 1, 1);
             INSERT INTO item VALUES (1, 2, 'a'), (2, 1, 'b'), (3, 1, 'c'), (4, 2, 'd')"
        );
        let tables = ["par", "kind", "ch", "item", "part"].map(everyone);
        let world = World::<F>::new(&ddl, tables.to_vec()).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let changes = [
            delete("par", "1|one"),
            insert("par", "2|one"),
            update("ch", "1|1|1", "1|2|9"),
            update("ch", "2|1|1", "2|2|1"),
            // To the child that goes, from the one that stays.
            update("item", "1|2|a", "1|1|a"),
            // There already.
            update("item", "2|1|b", "2|1|B"),
            // Away from it in time.
            update("item", "3|1|c", "3|2|c"),
            update("item", "4|2|d", "4|2|D"),
            insert("item", "5|1|e"),
            insert("part", "1|5"),
            insert("part", "2|2"),
            insert("part", "3|4"),
        ];
        let result = anna.upload(&changes).await;
        let counts = "2 inserted, 3 updated, 1 deleted, 0 conflicts, 6 refused";
        assert_eq!(result[0], counts, "{code}: {result:?}");
        let berta = Remote::synced(&world, "berta").await;
        assert_eq!(berta.rows("ch"), ["2|2|1"]);
        assert_eq!(berta.rows("item"), ["1|2|a", "3|2|c", "4|2|D"]);
        assert_eq!(berta.rows("part"), ["3|4"]);
    }
}

/// Children that refer to a unique value of a row stay on the remote when the row gets another key,
/// and nothing of them is uploaded. So they stay in the centre, or the row does.
pub async fn children_by_a_unique_value_outlive_the_key_of_their_parent<F: Fixture>() {
    for action in ["CASCADE", "SET NULL"] {
        let ddl = format!(
            "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY,
               code VARCHAR(9) UNIQUE, v VARCHAR(9) CHECK (v <> 'bad'));
             CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
               code VARCHAR(9) REFERENCES par (code) ON DELETE {action});
             CREATE TABLE sub (id INTEGER NOT NULL PRIMARY KEY,
               p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
             INSERT INTO par VALUES (1, 'one', 'a'), (2, 'two', 'b'), (3, 'three', 'c'),
               (5, 'five', 'e'), (7, 'seven', 'g'), (9, 'nine', 'i'), (10, 'ten', 'j'),
               (12, 'twelve', 'l'), (14, 'x', 'n'), (16, 'y', 'p');
             INSERT INTO ch VALUES (1, 'one'), (2, 'two'), (3, 'three'), (9, 'nine'), (12, 'twelve'),
               (14, 'x'), (16, 'y');
             INSERT INTO sub VALUES (1, 1), (2, 2), (12, 12)"
        );
        let tables = ["par", "ch", "sub"].map(everyone);
        let world = World::<F>::new(&ddl, tables.to_vec()).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut carl = Remote::synced(&world, "carl").await;
        world
            .execute("UPDATE par SET v = 'changed' WHERE id = 16")
            .await;
        let result = anna
            .upload(&[
                // Its children by the key come along.
                delete("par", "1|one|a"),
                insert("par", "4|one|new"),
                update("sub", "1|1", "1|4"),
                // What is to take its place is refused: so is the delete.
                delete("par", "2|two|b"),
                insert("par", "6|two|bad"),
                // A row that is there already cannot take its place.
                delete("par", "3|three|c"),
                update("par", "5|five|e", "5|three|e"),
                // Nothing refers to it.
                delete("par", "7|seven|g"),
                insert("par", "8|seven|h"),
                // Nothing refers to it any more, but that the upload alone does not tell.
                delete("ch", "9|nine"),
                delete("par", "9|nine|i"),
                update("par", "10|ten|j", "10|nine|j"),
                // Its children by the key did not leave it: it cannot get another one.
                delete("par", "12|twelve|l"),
                insert("par", "13|twelve|l"),
                // A chain.
                delete("par", "14|x|n"),
                insert("par", "15|x|n"),
                // Somebody else has changed it.
                delete("par", "16|y|p"),
                insert("par", "17|y|p"),
            ])
            .await;
        let counts = "3 inserted, 1 updated, 4 deleted, 1 conflicts, 9 refused";
        assert_eq!(result[0], counts, "{action}: {result:?}");
        let berta = Remote::synced(&world, "berta").await;
        carl.download().await;
        for remote in [&berta, &carl] {
            let parents = [
                "10|ten|j",
                "12|twelve|l",
                "15|x|n",
                "16|y|changed",
                "2|two|b",
                "3|three|c",
                "4|one|new",
                "5|five|e",
                "8|seven|h",
                "9|nine|i",
            ];
            assert_eq!(remote.rows("par"), parents, "{action}");
            let children = ["12|twelve", "14|x", "16|y", "1|one", "2|two", "3|three"];
            assert_eq!(remote.rows("ch"), children, "{action}");
            assert_eq!(remote.rows("sub"), ["12|12", "1|4", "2|2"], "{action}");
        }
    }
}

/// What others refer to by a unique value is not taken along, or given to another row, by a row of
/// an upload that gives the value up to another one.
pub async fn children_by_a_unique_value_stay_with_it<F: Fixture>() {
    struct Case {
        ddl: &'static str,
        tables: &'static [&'static str],
        centre: &'static str,
        changes: Vec<Change>,
        counts: &'static str,
        /// In the last table.
        left: &'static [&'static str],
    }
    let cases = [
        // The delete goes with others before its time.
        Case {
            ddl: "CREATE TABLE cust (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE);
                CREATE TABLE addr (id INTEGER NOT NULL PRIMARY KEY,
                  cust INTEGER REFERENCES cust ON DELETE CASCADE, kind VARCHAR(9),
                  UNIQUE (cust, kind));
                CREATE TABLE inv (id INTEGER NOT NULL PRIMARY KEY,
                  code VARCHAR(9) REFERENCES cust (code) ON DELETE CASCADE);
                INSERT INTO cust VALUES (1, 'a'), (2, 'b');
                INSERT INTO addr VALUES (1, 1, 'home'), (2, 2, 'home');
                INSERT INTO inv VALUES (1, 'a')",
            tables: &["cust", "addr", "inv"],
            centre: "",
            changes: vec![
                delete("addr", "2|2|home"),
                update("addr", "1|1|home", "1|2|home"),
                delete("cust", "1|a"),
                update("cust", "2|b", "2|a"),
            ],
            counts: "0 inserted, 1 updated, 1 deleted, 0 conflicts, 2 refused",
            left: &["1|a"],
        },
        // The parent's parent is refused.
        Case {
            ddl: "CREATE TABLE g (id INTEGER NOT NULL PRIMARY KEY CHECK (id < 9),
                  u VARCHAR(9) UNIQUE);
                CREATE TABLE p (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES g (u) ON DELETE CASCADE, k VARCHAR(9) UNIQUE);
                CREATE TABLE c (id INTEGER NOT NULL PRIMARY KEY,
                  k VARCHAR(9) REFERENCES p (k) ON DELETE CASCADE);
                INSERT INTO g VALUES (1, 'a'); INSERT INTO p VALUES (1, 'a', 'k');
                INSERT INTO c VALUES (1, 'k')",
            tables: &["g", "p", "c"],
            centre: "",
            changes: vec![
                delete("g", "1|a"),
                insert("g", "20|a"),
                delete("p", "1|a|k"),
                insert("p", "2|a|k"),
            ],
            counts: "1 inserted, 0 updated, 1 deleted, 0 conflicts, 2 refused",
            left: &["1|k"],
        },
        // All keys are one more: the values go on from row to row.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES par (u) ON UPDATE CASCADE ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a'), (2, 'b'); INSERT INTO ch VALUES (1, 'b')",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|a"),
                update("par", "2|b", "2|a"),
                insert("par", "3|b"),
            ],
            counts: "0 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused",
            left: &["1|b"],
        },
        // A value that nobody takes is given up, and its children follow it.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES par (u) ON UPDATE CASCADE ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a'), (2, 'b');
                INSERT INTO ch VALUES (1, 'a'), (2, 'b')",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![delete("par", "1|a"), update("par", "2|b", "2|c")],
            counts: "0 inserted, 1 updated, 1 deleted, 0 conflicts, 0 refused",
            left: &["2|c"],
        },
        // A tree in which everybody gets another key.
        Case {
            ddl: "CREATE TABLE emp (id INTEGER NOT NULL PRIMARY KEY, badge VARCHAR(9) UNIQUE,
                  boss INTEGER REFERENCES emp ON DELETE CASCADE ON UPDATE CASCADE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  badge VARCHAR(9) REFERENCES emp (badge) ON DELETE CASCADE);
                INSERT INTO emp VALUES (1, 'a', NULL), (2, 'b', 1), (3, 'c', 2);
                INSERT INTO ch VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            tables: &["emp", "ch"],
            centre: "",
            changes: vec![
                delete("emp", "1|a|NULL"),
                delete("emp", "2|b|1"),
                delete("emp", "3|c|2"),
                insert("emp", "101|a|NULL"),
                insert("emp", "102|b|101"),
                insert("emp", "103|c|102"),
            ],
            counts: "3 inserted, 0 updated, 3 deleted, 0 conflicts, 0 refused",
            left: &["1|a", "2|b", "3|c"],
        },
        // The row that was to have the value loses.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE,
                  v VARCHAR(9));
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES par (u) ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a', 'x'), (2, 'b', 'x');
                INSERT INTO ch VALUES (1, 'a')",
            tables: &["par", "ch"],
            centre: "UPDATE par SET v = 'changed' WHERE id = 2",
            changes: vec![delete("par", "1|a|x"), update("par", "2|b|x", "2|a|x")],
            counts: "0 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused",
            left: &["1|a"],
        },
        // The table comes twice, which no remote of ours sends.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES par (u) ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a'); INSERT INTO ch VALUES (1, 'a')",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|a"),
                insert("ch", "5|a"),
                insert("par", "6|b"),
                insert("par", "7|a"),
            ],
            counts: "2 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused",
            left: &["1|a", "5|a"],
        },
        // What takes another row's place needs what a third one frees.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE,
                  slot INTEGER UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  u VARCHAR(9) REFERENCES par (u) ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a', 5), (2, 'b', 6); INSERT INTO ch VALUES (1, 'a')",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|a|5"),
                delete("par", "2|b|6"),
                insert("par", "3|a|6"),
            ],
            counts: "1 inserted, 0 updated, 2 deleted, 0 conflicts, 0 refused",
            left: &["1|a"],
        },
    ];
    for case in cases {
        let tables = case.tables.iter().copied().map(everyone);
        let world = World::<F>::new(case.ddl, tables.collect()).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut carl = Remote::synced(&world, "carl").await;
        if !case.centre.is_empty() {
            world.execute(case.centre).await;
        }
        let result = anna.upload(&case.changes).await;
        assert_eq!(result[0], case.counts, "{}: {result:?}", case.ddl);
        carl.download().await;
        let berta = Remote::synced(&world, "berta").await;
        for remote in [&berta, &carl] {
            let children = case.tables[case.tables.len() - 1];
            assert_eq!(remote.rows(children), case.left, "{}", case.ddl);
        }
    }
}

/// A delete whose foreign keys act comes when what has to leave before has left, whatever that was
/// waiting for; and what cannot leave is refused, for nobody else has won.
pub async fn what_leaves_a_deleted_row_goes_before_it<F: Fixture>() {
    struct Case {
        ddl: &'static str,
        tables: &'static [&'static str],
        centre: &'static str,
        changes: Vec<Change>,
        counts: &'static str,
        left: &'static [&'static str],
    }
    let cases = [
        // A place in the new list has to become free first.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE, pos INTEGER NOT NULL,
                  UNIQUE (p, pos));
                INSERT INTO par VALUES (1), (2); INSERT INTO ch VALUES (1, 1, 1), (2, 2, 1)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                update("ch", "1|1|1", "1|2|1"),
                update("ch", "2|2|1", "2|2|2"),
                delete("par", "1"),
            ],
            counts: "0 inserted, 2 updated, 1 deleted, 0 conflicts, 0 refused",
            left: &["1|2|1", "2|2|2"],
        },
        // The unique value is one level higher.
        Case {
            ddl: "CREATE TABLE g (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, g INTEGER REFERENCES g);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO g VALUES (1, 'x'); INSERT INTO par VALUES (1, 1);
                INSERT INTO ch VALUES (1, 1)",
            tables: &["g", "par", "ch"],
            centre: "",
            changes: vec![
                delete("g", "1|x"),
                insert("g", "2|x"),
                insert("par", "2|2"),
                delete("par", "1|1"),
                update("ch", "1|1", "1|2"),
            ],
            counts: "2 inserted, 1 updated, 2 deleted, 0 conflicts, 0 refused",
            left: &["1|2"],
        },
        // One bad row among those that are inserted.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, up INTEGER REFERENCES par,
                  v INTEGER CHECK (v < 100));
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (10, NULL, 0); INSERT INTO ch VALUES (1, 10)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                insert("par", "1|2|0"),
                insert("par", "2|NULL|0"),
                insert("par", "3|NULL|1000"),
                delete("par", "10|NULL|0"),
                update("ch", "1|10", "1|1"),
            ],
            counts: "2 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused",
            left: &["1|1"],
        },
        // One for which another row waits: these two alone are refused.
        Case {
            ddl: "CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY);
                CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE,
                  k INTEGER REFERENCES kind, c INTEGER REFERENCES ch);
                INSERT INTO par VALUES (1, 'one');
                INSERT INTO ch VALUES (1, 1, NULL, NULL), (2, 1, NULL, NULL)",
            tables: &["kind", "par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|one"),
                insert("par", "2|one"),
                update("ch", "1|1|NULL|NULL", "1|2|NULL|NULL"),
                update("ch", "2|1|NULL|NULL", "2|2|NULL|NULL"),
                insert("ch", "51|2|NULL|50"),
                insert("ch", "50|2|9|NULL"),
            ],
            counts: "1 inserted, 2 updated, 1 deleted, 0 conflicts, 2 refused",
            left: &["1|2|NULL|NULL", "2|2|NULL|NULL"],
        },
        // What cannot be stored is refused, though its row goes with the parent.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE, v INTEGER CHECK (v < 100));
                INSERT INTO par VALUES (1), (2); INSERT INTO ch VALUES (1, 1, 0), (2, 1, 0)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1"),
                update("ch", "1|1|0", "1|2|1000"),
                update("ch", "2|1|0", "2|2|1"),
            ],
            counts: "0 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused",
            left: &["2|2|1"],
        },
        // Two parents get other keys. One of them was changed by somebody else: the other does not
        // suffer from it, though a child moves from one to the other.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE,
                  v INTEGER);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'x', 0), (2, 'y', 0);
                INSERT INTO ch VALUES (1, 1), (2, 1), (3, 2)",
            tables: &["par", "ch"],
            centre: "UPDATE par SET v = 77 WHERE id = 1",
            changes: vec![
                delete("par", "1|x|0"),
                insert("par", "11|x|0"),
                delete("par", "2|y|0"),
                insert("par", "12|y|0"),
                update("ch", "1|1", "1|11"),
                update("ch", "2|1", "2|12"),
                update("ch", "3|2", "3|12"),
            ],
            counts: "1 inserted, 2 updated, 1 deleted, 1 conflicts, 2 refused",
            left: &["1|1", "2|12", "3|12"],
        },
        // A chain: the update needs what the delete frees, and the insert what the update frees.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, u VARCHAR(9) UNIQUE);
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY,
                  p INTEGER NOT NULL REFERENCES par ON DELETE CASCADE);
                INSERT INTO par VALUES (1, 'a'), (2, 'b');
                INSERT INTO ch VALUES (1, 1), (2, 2), (3, 1)",
            tables: &["par", "ch"],
            centre: "",
            changes: vec![
                delete("par", "1|a"),
                update("par", "2|b", "2|a"),
                insert("par", "3|b"),
                update("ch", "1|1", "1|2"),
                update("ch", "2|2", "2|3"),
                update("ch", "3|1", "3|3"),
            ],
            counts: "1 inserted, 4 updated, 1 deleted, 0 conflicts, 0 refused",
            left: &["1|2", "2|3", "3|3"],
        },
        // A row that only refers to what is updated is to blame for itself.
        Case {
            ddl: "CREATE TABLE par (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER NOT NULL,
                  UNIQUE (ten, id));
                CREATE TABLE ch (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER, p INTEGER,
                  FOREIGN KEY (ten, p) REFERENCES par (ten, id));
                CREATE TABLE d (id INTEGER NOT NULL PRIMARY KEY, ten INTEGER, p INTEGER,
                  v INTEGER CHECK (v < 100), FOREIGN KEY (ten, p) REFERENCES par (ten, id));
                INSERT INTO par VALUES (1, 1); INSERT INTO ch VALUES (1, 1, 1), (2, 1, 1)",
            tables: &["par", "ch", "d"],
            centre: "",
            changes: vec![
                update("par", "1|1", "1|2"),
                update("ch", "1|1|1", "1|2|1"),
                update("ch", "2|1|1", "2|2|1"),
                insert("d", "1|2|1|1000"),
            ],
            counts: "0 inserted, 3 updated, 0 deleted, 0 conflicts, 1 refused",
            left: &["1|2|1", "2|2|1"],
        },
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let tables = case.tables.iter().map(|name| everyone(name)).collect();
        let world = World::<F>::new(case.ddl, tables).await;
        let mut anna = Remote::synced(&world, "anna").await;
        let mut berta = Remote::synced(&world, "berta").await;
        if !case.centre.is_empty() {
            world.execute(case.centre).await;
        }
        let result = anna.upload(&case.changes).await;
        assert_eq!(result[0], case.counts, "case {number}: {result:?}");
        berta.download().await;
        assert_eq!(berta.rows("ch"), case.left, "case {number}");
        let rows = world.fixture.query("SELECT * FROM ch ORDER BY id").await;
        assert_eq!(rows, case.left, "case {number}");
    }
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
        let world = World::<F>::new(&ddl, vec![everyone("par"), everyone("ch")]).await;
        let mut anna = Remote::synced(&world, "anna").await;
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
        let berta = Remote::synced(&world, "berta").await;
        assert_eq!(berta.rows("ch"), ["1|2|moved", "3|4|new"], "{action}");
        let parents = ["2|two|NULL", "3|three|2", "4|one|NULL"];
        assert_eq!(berta.rows("par"), parents, "{action}");
    }
}
