//! Reading an upload: the same rows, whichever way the table is read.

use super::*;
use crate::database::upload::SAMPLE_ROWS;

fn words() -> PublicationSchema {
    publication(vec![table(
        "word",
        vec![
            column("w", ColumnType::Text, false),
            column("n", ColumnType::Integer, false),
            column("x", ColumnType::Integer, true),
        ],
        vec![0, 1],
    )])
}

/// Makes rows whose order depends on collation, encoding and direction, and changes some of
/// them: many in a row, and a few far apart.
fn history(remote: &mut Remote) -> Vec<Change> {
    remote.run(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 400) \
         INSERT INTO word SELECT char(65 + n % 3 * 32 + n % 5) || CASE n % 4 WHEN 0 THEN '\u{ff5e}' \
         WHEN 1 THEN '\u{1d11e}' ELSE '' END, n, 0 FROM n",
    );
    remote.acknowledge(|_| {});
    remote.run(
        "UPDATE word SET x = 1 WHERE n + 0 BETWEEN 100 AND 200; \
         DELETE FROM word WHERE n % 50 = 7; \
         INSERT INTO word SELECT 'new', n, n FROM word WHERE n % 60 = 1",
    );
    remote.upload()
}

#[test]
fn an_upload_is_the_same_in_whatever_order_the_table_is_kept() {
    let expected = history(&mut Remote::new(words()));
    assert!(expected.len() > 100);
    for encoding in ["UTF-16le", "UTF-16be"] {
        let mut found = history(&mut Remote::encoded(words(), encoding));
        // Only the order differs, because SQLite compares the bytes of this encoding.
        let by_key = |change: &Change| format!("{change:?}");
        let mut expected = expected.clone();
        expected.sort_by_key(by_key);
        found.sort_by_key(by_key);
        assert_eq!(found, expected, "{encoding}");
    }
    for definition in [
        "w TEXT, n INTEGER, x INTEGER, PRIMARY KEY (w DESC, n)) WITHOUT ROWID",
        "w TEXT, n INTEGER, x INTEGER, PRIMARY KEY (n, w)) WITHOUT ROWID",
        "w TEXT, n NUMERIC, x INTEGER, PRIMARY KEY (w, n)) WITHOUT ROWID",
        "w TEXT NOT NULL, n INTEGER NOT NULL, x INTEGER, PRIMARY KEY (w, n))",
    ] {
        let mut remote = Remote::new(words());
        remote.run(&format!("DROP TABLE word; CREATE TABLE word ({definition}"));
        remote.begin();
        assert_eq!(history(&mut remote), expected, "{definition}");
    }
}

#[test]
fn a_small_upload_is_the_same_when_it_is_read_once_more() {
    let mut remote = Remote::new(words());
    history(&mut remote);
    remote.acknowledge(|_| {});
    remote.run(
        "UPDATE word SET x = 5 WHERE n BETWEEN 110 AND 140; DELETE FROM word WHERE n = 150; \
         INSERT INTO word VALUES ('z', 1, NULL), ('\u{1d11e}', 2, NULL), ('', 3, NULL)",
    );
    let state = remote.begin();
    let beginning = remote.database().begin_upload(&state).unwrap();
    let (mut cursor, mut pieces) = (beginning.cursor, beginning.read);
    while let Some(piece) = remote.database().upload_chunk(&state, &mut cursor).unwrap() {
        pieces.push_back(piece);
    }
    let small: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.rows).collect();
    assert_eq!(beginning.bytes, small.len() as u64);
    assert!(
        (30..=SAMPLE_ROWS).contains(&beginning.rows),
        "{}",
        beginning.rows
    );
    let again = remote.packed_upload(&state);
    assert!(small == again[0].1, "the order differs");
}

#[test]
fn changes_far_apart_are_read_like_neighbours() {
    let mut remote = Remote::new(items());
    remote.run(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000) \
         INSERT INTO item SELECT n, 'name number ' || n || ' with some more text', n FROM n",
    );
    remote.acknowledge(|_| {});
    remote.run(
        "UPDATE item SET amount = -1 WHERE id % 700 = 0 OR id BETWEEN 5000 AND 9000; \
         DELETE FROM item WHERE id % 1000 = 1; UPDATE item SET id = -id WHERE id % 3000 = 2",
    );
    let changes = remote.upload();
    let of = |op: Op| changes.iter().filter(|change| change.op == op).count();
    assert_eq!((of(Op::Insert), of(Op::Delete)), (0, 20));
    let is_rekeyed = |change: &&Change| change.op == Op::Update && change.old[0] != change.new[0];
    let rekeyed: Vec<&Change> = changes.iter().filter(is_rekeyed).collect();
    assert_eq!(rekeyed.len(), 7);
    let negative = |change: &&Change| match (&change.old[0], &change.new[0]) {
        (Value::Integer(old), Value::Integer(new)) => *old == -*new,
        _ => false,
    };
    assert!(rekeyed.iter().all(negative) && rekeyed.iter().all(|it| it.old[1] == it.new[1]));
    let updated = remote.query("SELECT count(*) FROM item WHERE amount = -1 AND id > 0");
    assert_eq!((of(Op::Update) - 7).to_string(), updated[0]);
    assert!(changes.iter().all(|change| change.op != Op::Update
        || is_rekeyed(&change)
        || (change.old[..2] == change.new[..2] && change.new[2] == Value::Integer(-1))));
}

#[test]
fn a_large_upload_under_composite_keys_has_every_row_once_and_in_order() {
    for rows_of_each in [1, 7, 900, 4000] {
        let mut remote = Remote::new(words());
        remote.run(&format!(
            "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 7999) \
             INSERT INTO word SELECT 'a word of some length, number ' || (n / {rows_of_each}), n, n \
             FROM n; DELETE FROM word WHERE n % 11 = 3"
        ));
        let keys: Vec<Vec<Value>> = remote
            .upload()
            .into_iter()
            .map(|change| change.new[..2].to_vec())
            .collect();
        let expected = remote.query("SELECT w || ' ' || n FROM word ORDER BY w, n");
        let found: Vec<String> = keys
            .iter()
            .map(|key| match &key[..] {
                [Value::Text(word), Value::Integer(number)] => format!("{word} {number}"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(found == expected, "{rows_of_each}: {} rows", found.len());
    }
}

/// Bound as the blob that it was read as, it would come after all text.
#[test]
fn text_that_is_no_unicode_as_a_key_takes_no_other_row_along() {
    for (encoding, bad) in [("UTF-8", "ff"), ("UTF-16le", "00d8"), ("UTF-16be", "d800")] {
        let mut remote = Remote::encoded(words(), encoding);
        remote.run(&format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 18000) \
             INSERT INTO word SELECT CASE n % 2 WHEN 0 THEN CAST(x'{bad}' AS TEXT) ELSE 'a' END \
             || printf('%09d', n), n, 0 FROM n"
        ));
        remote.acknowledge(|_| {});
        remote.run(&format!(
            "INSERT INTO word SELECT substr(w, 1, 1), -n, 0 FROM word WHERE n % 3 = 0; \
             INSERT INTO word VALUES (CAST(x'{bad}' AS TEXT), 0, 0), \
             (char(65535), 0, 0), ('', 0, 0); \
             UPDATE word SET x = 1 WHERE n > 0"
        ));
        let state = remote.begin();
        let changes = remote.changes(&state);
        let of = |op: Op| changes.iter().filter(|change| change.op == op).count();
        assert_eq!((of(Op::Update), of(Op::Delete)), (18_000, 0), "{encoding}");
        assert_eq!(of(Op::Insert), 6_000 + 3, "{encoding}");
    }
}
