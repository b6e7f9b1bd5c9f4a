//! Control messages and schemas: what was understood is said again in the same words.

use tidewater_protocol::compare::{Intervals, Ranges};
use tidewater_protocol::message::{Control, TableBegin};
use tidewater_protocol::schema::{column_type_from_wire, column_type_to_wire};
use tidewater_protocol::{Code, PublicationSchema, RowsReader};

use crate::input::Input;

/// The first byte says whether the others are a message or a schema.
///
/// # Panics
/// A promise is broken.
pub fn messages(data: &[u8]) {
    let mut input = Input::new(data);
    let is_schema = input.byte() % 2 == 1;
    let bytes = input.rest();
    if is_schema {
        return schema(bytes);
    }
    let Ok(Some(control)) = Control::from_payload(bytes) else {
        return;
    };
    let payload = control.clone().to_payload();
    let again = Control::from_payload(&payload).expect("it was just encoded");
    assert_eq!(again.as_ref(), Some(&control));
    match &control {
        Control::TableBegin(begin) => table_begin(begin),
        Control::CompareTable(compare) => {
            let Some(begin) = &compare.table else { return };
            table_begin(begin);
            if let Some(shape) = begin.shape()
                && let Ok(ranges) = Ranges::like(&shape, &compare.ranges)
            {
                assert_eq!(ranges.sums().len(), compare.ranges.len());
            }
        }
        Control::Failure(failure) => {
            if let Some(code) = Code::from_number(failure.code) {
                assert_eq!(code.number(), failure.code);
            }
        }
        Control::Welcome(welcome) => {
            for subscription in &welcome.subscriptions {
                schema(&subscription.schema);
            }
        }
        _ => {}
    }
}

fn table_begin(begin: &TableBegin) {
    let Some(shape) = begin.shape() else { return };
    assert_eq!(shape.columns.len(), begin.columns.len());
    assert!(shape.key.iter().all(|&index| index < shape.columns.len()));
    assert_eq!(begin.key_headers().count(), shape.key.len());
    // A row of this shape can be looked for in anything.
    let mut row = tidewater_protocol::UnpackedRow::default();
    let mut reader = RowsReader::new(&shape, begin.table.as_bytes());
    while let Ok(true) = reader.next(&mut row) {}
    let _ = Intervals::new(&shape, &begin.ranges);
}

fn schema(bytes: &[u8]) {
    let Ok(schema) = PublicationSchema::decode(bytes) else {
        return;
    };
    let encoded = schema.encode();
    let again = PublicationSchema::decode(&encoded).expect("it was just encoded");
    assert_eq!(again, schema);
    assert_eq!(again.hash(), schema.hash());
    assert_eq!(again.encode(), encoded);
    for table in &schema.tables {
        let shape = table.shape();
        let inside = |&index: &usize| index < shape.columns.len();
        assert!(shape.key.iter().all(inside) && table.partition.iter().all(inside));
        assert!(!shape.key.is_empty(), "a table without a key");
        for foreign_key in &table.foreign_keys {
            assert!(foreign_key.columns.iter().all(inside));
            assert_eq!(foreign_key.columns.len(), foreign_key.parent_columns.len());
        }
        for column in &shape.columns {
            let (number, scale_plus_one) = column_type_to_wire(*column);
            assert_eq!(column_type_from_wire(number, scale_plus_one), Some(*column));
        }
        table_begin(&TableBegin::for_table(table));
        assert!(
            TableBegin::for_table(table).shape().is_some(),
            "a header that nobody understands"
        );
        assert!(TableBegin::for_table(table).has_key_of(table));
    }
}
