//! Every statement and every table, as they are spelled: what changes is seen in the review.

use tidewater_centre_conformance::golden::check_spelling;

use super::PostgresDialect;

#[test]
fn every_system_statement_is_spelled_as_in_the_golden_file() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/system.sql");
    check_spelling(&PostgresDialect, golden.as_ref());
}
