mod every_type;

use super::*;
use proptest::prelude::*;

fn shape() -> RowShape {
    RowShape {
        columns: vec![
            ColumnType::Integer,
            ColumnType::Text,
            ColumnType::Decimal { scale: Some(2) },
            ColumnType::Real,
            ColumnType::Boolean,
            ColumnType::Bytes,
            ColumnType::Timestamp,
            ColumnType::Uuid,
            ColumnType::Date,
        ],
        key: vec![0, 1],
    }
}

fn row<'a>(text: &'a str, integer: i64) -> Vec<Datum<'a>> {
    vec![
        Datum::Integer(integer),
        Datum::Text(text),
        Datum::Decimal(Decimal::Exact {
            unscaled: -150,
            scale: 2,
        }),
        Datum::Real(0.25),
        Datum::Boolean(true),
        Datum::Bytes(text.as_bytes()),
        Datum::Timestamp(-1),
        Datum::Uuid([7; 16]),
        Datum::Null,
    ]
}

#[test]
fn every_operation_comes_back() {
    let shape = shape();
    let mut writer = RowsWriter::new(&shape);
    let (first, mut second) = (row("a", i64::MIN), row("a", i64::MIN));
    second[2] = Datum::Null;
    second[8] = Datum::Date(i64::MAX);
    writer.row(Op::Insert, &first);
    writer.update(&first, &second);
    writer.delete(&second);
    writer.key(Op::Request, &first[..2]);
    writer.row(Op::Upsert, &second);
    writer.key(Op::Remove, &first[..2]);
    writer.refused(&first[..2], Op::Delete, 704, "not yours");
    writer.row(Op::ConflictRow, &first);
    writer.key(Op::ConflictGone, &first[..2]);
    writer.row(Op::Made, &first);
    assert_eq!(writer.rows(), 10);
    let bytes = writer.take();

    let mut reader = RowsReader::new(&shape, &bytes);
    let mut row = UnpackedRow::default();
    let mut ops = Vec::new();
    while reader.next(&mut row).unwrap() {
        let op = row.op.unwrap();
        ops.push(op as u8);
        match op {
            Op::Insert | Op::ConflictRow | Op::Made | Op::Merged => assert_eq!(row.new, first),
            Op::Upsert => assert_eq!(row.new, second),
            Op::Update => assert_eq!((&row.old, &row.new), (&first, &second)),
            Op::Delete => assert_eq!(row.old, second),
            Op::Refused => {
                assert_eq!((row.refused_op, row.code), (Some(Op::Delete), 704));
                assert_eq!(row.reason, "not yours");
            }
            Op::Request | Op::Remove | Op::ConflictGone => {}
        }
        assert_eq!(row.key, first[..2]);
    }
    assert_eq!(ops, (1..=10).collect::<Vec<u8>>());
    assert_eq!(reader.consumed(), bytes.len());
}

#[test]
fn a_row_cut_anywhere_is_truncated_and_can_be_read_again() {
    let shape = shape();
    let mut writer = RowsWriter::new(&shape);
    writer.update(&row("first", 1), &row("second", 300));
    writer.refused(&row("x", 1)[..2], Op::Insert, 700, "why");
    let bytes = writer.take();
    for cut in 1..bytes.len() {
        let mut reader = RowsReader::new(&shape, &bytes[..cut]);
        let mut row = UnpackedRow::default();
        let mut rows = 0;
        loop {
            match reader.next(&mut row) {
                Ok(true) => rows += 1,
                Ok(false) => break,
                Err(error) => {
                    assert_eq!(error, UnpackError::Truncated);
                    break;
                }
            }
        }
        let at = reader.consumed();
        let mut rest = RowsReader::new(&shape, &bytes[at..]);
        while rest.next(&mut row).unwrap() {
            rows += 1;
        }
        assert_eq!(rows, 2);
    }
}

/// A peer may send any of the many NaN, and text beside it has a row spelled loosely, where NaN
/// is text.
#[test]
fn a_nan_of_other_bits_is_no_change() {
    let shape = RowShape {
        columns: vec![ColumnType::Integer, ColumnType::Real],
        key: vec![0],
    };
    let odd = Datum::Real(f64::from_bits(0xffff_ffff_0000_0001));
    let nan = Datum::Real(f64::NAN);
    assert!(super::same(&odd, &nan));
    let mut writer = RowsWriter::new(&shape);
    writer.update(&[Datum::Integer(1), odd], &[Datum::Integer(1), nan]);
    let changed = writer.take();
    writer.update(&[Datum::Integer(1), nan], &[Datum::Integer(1), nan]);
    assert_eq!(changed, writer.take());
}

#[test]
fn unfit_values_travel_as_they_are() {
    let shape = shape();
    let mut values = row("x", 1);
    values[2] = Datum::Loose(ValueRef::Text("1,5"));
    values[4] = Datum::Loose(ValueRef::Integer(7));
    values[5] = Datum::Null;
    let mut writer = RowsWriter::new(&shape);
    writer.row(Op::Insert, &values);
    let bytes = writer.take();
    let mut reader = RowsReader::new(&shape, &bytes);
    let mut row = UnpackedRow::default();
    assert!(reader.next(&mut row).unwrap());
    assert_eq!(row.new, values);
}

fn datum_of(column: ColumnType) -> BoxedStrategy<Value> {
    use crate::value::Value as V;
    let text = ".{0,40}".prop_map(V::Text);
    let any = prop_oneof![
        Just(V::Null),
        any::<i64>().prop_map(V::Integer),
        any::<f64>().prop_map(V::Real),
        text.clone(),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(V::Blob),
    ];
    match column {
        ColumnType::Decimal { .. } => {
            prop_oneof!["-?[0-9]{1,30}(\\.[0-9]{1,12})?".prop_map(V::Text), any].boxed()
        }
        ColumnType::Timestamp => prop_oneof![
            "[0-9]{4}-0[1-9]-[012][1-8]T[01][0-9]:[0-5][0-9]:[0-5][0-9]\\.[0-9]{6}"
                .prop_map(V::Text),
            any
        ]
        .boxed(),
        _ => any.boxed(),
    }
}

use crate::value::Value;

fn values() -> impl Strategy<Value = Vec<Value>> {
    shape()
        .columns
        .into_iter()
        .map(datum_of)
        .collect::<Vec<_>>()
}

proptest! {
    #[test]
    fn what_a_remote_stores_comes_back_through_packing(old in values(), new in values()) {
        let shape = shape();
        let understand = |values: &'_ [Value]| -> Vec<Value> {
            shape.columns.iter().zip(values)
                .map(|(column, value)| column.datum(value.as_ref()).0.to_value())
                .collect()
        };
        let data = |values: &'_ [Value]| -> Vec<u8> {
            let data: Vec<_> = shape.columns.iter().zip(values)
                .map(|(column, value)| column.datum(value.as_ref()).0).collect();
            let mut out = Vec::new();
            pack_values(&mut out, &shape.columns, &data);
            out
        };
        let mut writer = RowsWriter::new(&shape);
        {
            let old: Vec<_> = shape.columns.iter().zip(&old).map(|(c, v)| c.datum(v.as_ref()).0).collect();
            let new: Vec<_> = shape.columns.iter().zip(&new).map(|(c, v)| c.datum(v.as_ref()).0).collect();
            writer.update(&old, &new);
        }
        let bytes = writer.take();
        let mut reader = RowsReader::new(&shape, &bytes);
        let mut row = UnpackedRow::default();
        prop_assert!(reader.next(&mut row).unwrap());
        let stored = |data: &[Datum<'_>]| data.iter().map(Datum::to_value).collect::<Vec<_>>();
        prop_assert_eq!(format!("{:?}", stored(&row.old)), format!("{:?}", understand(&old)));
        prop_assert_eq!(format!("{:?}", stored(&row.new)), format!("{:?}", understand(&new)));
        let packed = data(&new);
        prop_assert_eq!(unpack_values(&packed, &shape.columns).unwrap().len(), 9);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let shape = shape();
        let mut reader = RowsReader::new(&shape, &bytes);
        let mut row = UnpackedRow::default();
        while let Ok(true) = reader.next(&mut row) {}
        let _ = unpack_values(&bytes, &shape.columns);
    }
}
