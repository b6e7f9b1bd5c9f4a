//! The spellings of dates and times that docs/remote-database.md lists are read as it says.

use tidewater_protocol::{ColumnType, Fit, Value, ValueRef};

const DOCUMENT: &str = include_str!("../../../docs/remote-database.md");

/// The lines of the table: types, what is written, what it means.
fn listed() -> Vec<(Vec<ColumnType>, &'static str, &'static str)> {
    let lines = DOCUMENT.lines();
    let table = lines.skip_while(|line| !line.starts_with("| type | written | means |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let quoted = |cell: &'static str| cell.trim().trim_matches('`');
    rows.map(|line| {
        let cells: Vec<&'static str> = line.trim_matches('|').split('|').collect();
        let types = cells[0].split(',').map(|name| match name.trim() {
            "date" => ColumnType::Date,
            "time" => ColumnType::Time,
            "timestamp" => ColumnType::Timestamp,
            "timestamptz" => ColumnType::TimestampTz,
            other => panic!("{other:?} is no type of this table"),
        });
        (types.collect(), quoted(cells[1]), quoted(cells[2]))
    })
    .collect()
}

#[test]
fn what_the_document_lists_is_read_as_it_says() {
    let listed = listed();
    assert!(listed.len() > 20, "the table is there");
    for (types, written, means) in listed {
        for column_type in types {
            let (datum, fit) = column_type.datum(ValueRef::Text(written));
            assert_eq!(fit, Fit::Convertible, "{column_type:?} {written}");
            assert_eq!(
                datum.to_value(),
                Value::Text(means.into()),
                "{column_type:?} {written}"
            );
            let (again, fit) = column_type.datum(ValueRef::Text(means));
            assert_eq!(
                (again, fit),
                (datum, Fit::Canonical),
                "{column_type:?} {means}"
            );
        }
    }
}
