//! Facts about the user tables' definitions.

use proptest::prelude::*;
use rusqlite::Connection;
use tidewater_protocol::{ColumnType, Fit, ValueRef};

use super::{canonical, is_literal};

fn accepts(column_type: ColumnType, value: &str) -> bool {
    let connection = Connection::open_in_memory().unwrap();
    let check = canonical::check(column_type, "\"k\"");
    connection
        .execute_batch(&format!(
            "CREATE TABLE t (k {} NOT NULL CHECK ({check}))",
            column_type.sqlite_type()
        ))
        .unwrap();
    connection
        .execute("INSERT INTO t VALUES (?1)", [value])
        .is_ok()
}

#[test]
fn keys_are_accepted_in_canonical_form_only() {
    let types = [
        ColumnType::Decimal { scale: Some(2) },
        ColumnType::Decimal { scale: Some(0) },
        ColumnType::Decimal { scale: None },
        ColumnType::Date,
        ColumnType::Time,
        ColumnType::Timestamp,
        ColumnType::TimestampTz,
        ColumnType::Uuid,
    ];
    let texts = [
        "",
        "-",
        ".",
        "0",
        "-0",
        "0.00",
        "-0.00",
        "1.5",
        "1.50",
        "01.50",
        "-1.50",
        "--1.50",
        "+1.50",
        "1.5x",
        ".50",
        "5.",
        "1e3",
        "12",
        "-12",
        "012",
        "1-2.00",
        "1.2.50",
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "2026-02-28",
        "2026-02-30",
        "2026-2-3",
        "+012026-01-01",
        "infinity",
        "-infinity",
        "24:00:00.000000",
        "24:00:00.000001",
        "23:59:59.999999",
        "23:59:59",
        "25:00:00.000000",
        "2026-01-02T03:04:05.000006",
        "2026-01-02 03:04:05.000006",
        "2026-01-02T03:04:05.000006Z",
        "2026-02-30T03:04:05.000006",
        "2026-01-02T24:00:00.000000",
        "2026-01-02T03:04:05",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "0F8FAD5B-D9CB-469F-A165-70867728950E",
        "0f8fad5bd9cb469fa16570867728950e",
    ];
    for column_type in types {
        for text in texts {
            let (_, fit) = column_type.datum(ValueRef::Text(text));
            assert_eq!(
                accepts(column_type, text),
                fit == Fit::Canonical,
                "{column_type:?} {text:?} is {fit:?}"
            );
        }
    }
}

#[test]
fn integer_and_boolean_keys_take_no_text() {
    assert!(
        accepts(ColumnType::Integer, "12"),
        "affinity makes it a number"
    );
    assert!(!accepts(ColumnType::Integer, "abc"));
    assert!(accepts(ColumnType::Boolean, "1"));
    assert!(!accepts(ColumnType::Boolean, "2"));
    assert!(accepts(ColumnType::Real, "NaN"));
    assert!(!accepts(ColumnType::Real, "abc"));
    assert!(!accepts(ColumnType::Bytes, "abc"));
}

#[test]
fn only_literals_are_defaults() {
    for literal in [
        "0",
        "-1.5",
        "1e3",
        "'it''s'",
        "x'00ff'",
        "NULL",
        "current_timestamp",
        "''",
    ] {
        assert!(is_literal(literal), "{literal}");
    }
    for other in [
        "",
        "now()",
        "'a'b'",
        "0); DROP TABLE t; --",
        "'",
        "x'0'",
        "1 + 1",
        "x''''",
    ] {
        assert!(!is_literal(other), "{other}");
    }
}

proptest! {
    #[test]
    fn whatever_text_is_accepted_as_decimal_is_canonical(text in "-?[0-9]{0,3}(\\.[0-9]{0,3})?") {
        for scale in [None, Some(0), Some(2)] {
            let column_type = ColumnType::Decimal { scale };
            let canonical = column_type.datum(ValueRef::Text(&text)).1 == Fit::Canonical;
            prop_assert_eq!(accepts(column_type, &text), canonical, "{:?} {:?}", scale, text);
        }
    }
}
