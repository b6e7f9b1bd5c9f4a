use super::*;

fn rows(all: &[(i64, i64, &str)]) -> Rows {
    let row = |&(key, region, values): &(i64, i64, &str)| (key, (region, values.to_owned()));
    all.iter().map(row).collect()
}

#[test]
fn every_row_that_differs_is_found() {
    let centre = rows(&[(1, 1, "a"), (2, 2, "b"), (3, 0, "c")]);
    let found = |remote: &[(i64, i64, &str)]| differences(&rows(remote), &centre, &[1]).len();
    assert_eq!(found(&[(1, 1, "a"), (3, 0, "c")]), 0);
    // Missing, changed, moved, extra, and out of scope.
    assert_eq!(found(&[(1, 1, "a")]), 1);
    assert_eq!(found(&[(1, 1, "x"), (3, 0, "c")]), 1);
    assert_eq!(found(&[(1, 2, "a"), (3, 0, "c")]), 1);
    assert_eq!(found(&[(1, 1, "a"), (3, 0, "c"), (4, 1, "d")]), 1);
    assert_eq!(found(&[(1, 1, "a"), (3, 0, "c"), (2, 2, "b")]), 1);
}
