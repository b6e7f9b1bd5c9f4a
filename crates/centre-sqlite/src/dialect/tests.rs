//! Every statement and every table, as they are spelled: what changes is seen in the review.

use tidewater_centre_conformance::golden::{check_row_statements, check_spelling};

use super::SqliteDialect;
use crate::catalog::SqliteColumn;
use crate::publication::SqliteTables;
use tidewater_centre::engine::sql::column::SqlTable;

#[test]
fn every_system_statement_is_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/system.sql");
    check_spelling(&SqliteDialect, golden.as_ref());
}

#[test]
fn row_statements_are_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/rows.sql");
    let columns = [
        ("a", "INTEGER"),
        ("region", "TEXT"),
        ("cost", "NUMERIC(9,2)"),
        ("notes", "TEXT"),
    ];
    let columns = columns.map(|(name, declared)| SqliteColumn::declared(name, declared));
    let table = SqlTable {
        sql_name: "\"purchase\"",
        title: "purchase",
        columns: &columns,
        key: &[0, 1],
        nullable_key: &[],
        row_estimate: 0,
    };
    check_row_statements::<SqliteTables>(&SqliteDialect, table, golden.as_ref());
}
