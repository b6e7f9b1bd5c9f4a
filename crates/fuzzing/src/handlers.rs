//! Answers of handlers: nothing counts that says less, or more, than was asked.

use tidewater_centre::RowVerdict;
use tidewater_protocol::{Column, ColumnType, Direction, Fit, Table, Value};
use tidewater_server::fuzzing::read_answers;

use crate::input::Input;

/// A table with a column of some type beside its key.
fn table(column_type: ColumnType) -> Table {
    let columns = [("id", ColumnType::Integer), ("a", column_type)];
    let columns = columns.map(|(name, column_type)| Column {
        name: name.into(),
        column_type,
        nullable: name == "a",
        default: None,
    });
    Table {
        name: "t".into(),
        columns: columns.into(),
        key: vec![0],
        partition: vec![],
        unique: vec![],
        foreign_keys: vec![],
        direction: Direction::Both,
        checks: Vec::new(),
        identity: None,
    }
}

/// Any bytes as what a handler answers.
///
/// # Panics
/// A promise is broken.
pub fn handlers(data: &[u8]) {
    let mut input = Input::new(data);
    let content_type = ["application/json", "application/x-ndjson", ""][input.below(3)];
    let table = table(input.column_type());
    let answers = read_answers(content_type, input.rest(), &table);
    let fits = |column: usize, value: &Value| {
        let (_, fit) = table.columns[column].column_type.datum(value.as_ref());
        *value == Value::Null || fit != Fit::Unfit
    };
    for (number, verdict) in answers.verdicts.into_iter().flatten() {
        assert!((7..9).contains(&number), "a row that was not asked about");
        match verdict {
            RowVerdict::Change(columns) => {
                assert_eq!(number, 7, "a delete was changed");
                for (name, value) in columns {
                    let column = table.column(&name).expect("it is a column of the table");
                    assert!(fits(column, &value), "{name} is {value:?}");
                }
            }
            RowVerdict::Refuse(reason) => assert!(!reason.contains('\n') && reason.len() <= 2_000),
            RowVerdict::Handled => {}
        }
    }
    if let Ok([rows, removed]) = answers.page {
        for row in rows {
            assert_eq!(row.len(), 2);
            assert_ne!(row[0], Value::Null, "a key that is none");
            assert!(fits(0, &row[0]) && fits(1, &row[1]), "{row:?}");
        }
        for key in removed {
            assert!(key.len() == 1 && key[0] != Value::Null && fits(0, &key[0]));
        }
    }
}
