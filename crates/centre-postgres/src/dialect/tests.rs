//! Every statement and every table, as they are spelled: what changes is seen in the review.

use tidewater_centre_conformance::golden::{check_row_statements, check_spelling};

use super::PostgresDialect;
use crate::column::PgColumn;
use crate::publication::PostgresTables;
use crate::quote::ident;
use crate::values::PostgresType;
use tidewater_centre::engine::sql::column::SqlTable;

#[test]
fn every_system_statement_is_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/system.sql");
    check_spelling(&PostgresDialect, golden.as_ref());
}

#[test]
fn row_statements_are_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/rows.sql");
    let collation = Some("\"de_DE\"".to_owned());
    let columns = [
        column("a", PostgresType::Int4, "int4"),
        PgColumn {
            collation,
            ..column("region", PostgresType::Text, "text")
        },
        PgColumn {
            scale: Some(2),
            ..column("cost", PostgresType::Numeric, "numeric")
        },
        column("mood", PostgresType::Other, "mood"),
    ];
    let table = SqlTable {
        sql_name: "public.purchase",
        title: "purchase",
        columns: &columns,
        key: &[0, 1],
        nullable_key: &[],
        row_estimate: 0,
    };
    check_row_statements::<PostgresTables>(&PostgresDialect, table, golden.as_ref());
}

fn column(name: &str, kind: PostgresType, cast_name: &str) -> PgColumn {
    PgColumn {
        sql: ident(name),
        name: name.to_owned(),
        kind,
        type_oid: 0,
        type_name: cast_name.to_owned(),
        cast_name: cast_name.to_owned(),
        scale: None,
        limit: None,
        collation: None,
        generated: false,
        identity_always: false,
        default: None,
    }
}
