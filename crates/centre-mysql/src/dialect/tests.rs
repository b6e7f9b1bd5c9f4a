//! Every statement and every table, as they are spelled: what changes is seen in the review.

use tidewater_centre::engine::sql::column::SqlTable;
use tidewater_centre_conformance::golden::{check_row_statements, check_spelling};

use super::MysqlDialect;
use crate::catalog::MysqlColumn;
use crate::publication::MysqlTables;
use crate::values::MysqlKind;

#[test]
fn every_system_statement_is_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/system.sql");
    check_spelling(&MysqlDialect, golden.as_ref());
}

#[test]
fn row_statements_are_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/rows.sql");
    let columns = [
        ("a", MysqlKind::Integer),
        ("region", MysqlKind::Text),
        ("cost", MysqlKind::Decimal { scale: 2 }),
        ("notes", MysqlKind::Text),
    ];
    let columns = columns.map(|(name, kind)| MysqlColumn::of_kind(name, kind));
    let table = SqlTable {
        sql_name: "`purchase`",
        title: "purchase",
        columns: &columns,
        key: &[0, 1],
        nullable_key: &[],
        row_estimate: 0,
    };
    check_row_statements::<MysqlTables>(&MysqlDialect, table, golden.as_ref());
}
