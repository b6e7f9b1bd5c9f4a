//! Properties of packing across every type: rows of any table come back under every
//! operation, however their bytes are cut, with the extremes of every type and with values
//! that no type takes.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::value::{Fit, Value};

fn column() -> impl Strategy<Value = ColumnType> {
    prop_oneof![
        select(vec![
            ColumnType::Integer,
            ColumnType::Decimal { scale: None },
            ColumnType::Real,
            ColumnType::Boolean,
            ColumnType::Text,
            ColumnType::Bytes,
            ColumnType::Date,
            ColumnType::Time,
            ColumnType::Timestamp,
            ColumnType::TimestampTz,
            ColumnType::Uuid,
            ColumnType::Json,
            ColumnType::Opaque,
        ]),
        (0u16..45).prop_map(|scale| ColumnType::Decimal { scale: Some(scale) }),
    ]
}

/// What a remote may store in a column of the type: its extremes, its values in any
/// spelling, and what belongs to another type.
fn stored(column: ColumnType) -> BoxedStrategy<Value> {
    let extremes: &[&str] = match column {
        ColumnType::Decimal { .. } => &[
            "NaN",
            "-Infinity",
            "0",
            "-0.00",
            "99999999999999999999999999999999999999",
            "-0.00000000000000000000000000000000000001",
            "123456789012345678901234567890123456789012345.5",
            "1e-2147483648",
        ],
        ColumnType::Date => &[
            "infinity",
            "-infinity",
            "0001-01-01",
            "+010000-01-01",
            "-004713-11-24",
        ],
        ColumnType::Time => &["00:00:00.000000", "24:00:00.000000", "23:59:59.999999"],
        ColumnType::Timestamp => &[
            "-infinity",
            "9999-12-31T23:59:59.999999",
            "+292000-01-01T00:00:00",
        ],
        ColumnType::TimestampTz => &[
            "infinity",
            "0001-01-01T00:00:00.000000Z",
            "1999-12-31T24:00:00+15:59",
        ],
        ColumnType::Uuid => &[
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        ],
        ColumnType::Real => &["NaN", "nan"],
        ColumnType::Boolean => &["true", "F", "2"],
        _ => &["", "\0", "{\"a\": 1.0}", "Zoë \u{10ffff}"],
    };
    let spelled = match column {
        ColumnType::Decimal { .. } => "[+-]?[0-9]{0,42}(\\.[0-9]{0,42})?([eE]-?[0-9]{1,3})?",
        ColumnType::Date => "[+-]?[0-9]{4,7}-(0[0-9]|1[0-3])-[0-3][0-9]",
        ColumnType::Time => "[0-9]{1,2}:[0-6][0-9](:[0-6][0-9](\\.[0-9]{0,8})?)?",
        ColumnType::Timestamp | ColumnType::TimestampTz => {
            "[+-]?[0-9]{4,6}-(0[1-9]|1[0-2])-[0-2][0-9][T ][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,6})?)?(Z|[+-][01][0-9](:?[0-5][0-9])?)?"
        }
        ColumnType::Uuid => {
            "\\{?[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\\}?"
        }
        _ => ".{0,60}",
    };
    prop_oneof![
        2 => select(extremes.to_vec()).prop_map(|text| Value::Text(text.to_owned())),
        4 => spelled.prop_map(Value::Text),
        1 => Just(Value::Null),
        1 => select(vec![i64::MIN, -1, 0, 1, i64::MAX]).prop_map(Value::Integer),
        1 => any::<i64>().prop_map(Value::Integer),
        1 => select(vec![0.0, -0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, 5e-324])
            .prop_map(Value::Real),
        1 => any::<f64>().prop_filter("SQLite has no NaN", |real| !real.is_nan()).prop_map(Value::Real),
        1 => proptest::collection::vec(any::<u8>(), 0..60).prop_map(Value::Blob),
    ]
    .boxed()
}

/// A table, and rows that a remote may store in it.
#[derive(Clone, Debug)]
struct FilledTable {
    shape: RowShape,
    rows: Vec<Vec<Value>>,
}

fn filled() -> impl Strategy<Value = FilledTable> {
    let columns = proptest::collection::vec(column(), 1..18);
    columns.prop_flat_map(|columns| {
        let count = columns.len();
        let indexes: Vec<usize> = (0..count).collect();
        let row = columns
            .iter()
            .map(|&column| stored(column))
            .collect::<Vec<_>>();
        (
            proptest::sample::subsequence(indexes, 1..=count.min(4)).prop_shuffle(),
            proptest::collection::vec(row, 2..6),
        )
            .prop_map(move |(key, rows)| FilledTable {
                shape: RowShape {
                    columns: columns.clone(),
                    key,
                },
                rows,
            })
    })
}

fn understood<'a>(shape: &RowShape, row: &'a [Value]) -> Vec<Datum<'a>> {
    let values = shape.columns.iter().zip(row);
    values
        .map(|(column, value)| column.datum(value.as_ref()).0)
        .collect()
}

fn of<'a>(row: &[Datum<'a>], indexes: &[usize]) -> Vec<Datum<'a>> {
    indexes.iter().map(|&index| row[index]).collect()
}

/// One row as it was read: what of it must be there.
type Read = (u8, Vec<Vec<Value>>);

fn values(row: &[Datum<'_>]) -> Vec<Value> {
    row.iter().map(Datum::to_value).collect()
}

/// Packs the rows under every operation; also what must come of it.
fn pack_all(filled: &FilledTable) -> (Vec<u8>, Vec<Read>) {
    let shape = &filled.shape;
    let mut writer = RowsWriter::new(shape);
    let mut expected = Vec::new();
    for pair in filled.rows.windows(2) {
        let (old, new) = (understood(shape, &pair[0]), understood(shape, &pair[1]));
        for op in [
            Op::Insert,
            Op::Upsert,
            Op::ConflictRow,
            Op::Made,
            Op::Merged,
        ] {
            writer.row(op, &new);
            expected.push((
                op as u8,
                vec![vec![], values(&new), values(&of(&new, &shape.key))],
            ));
        }
        writer.update(&old, &new);
        let key = values(&of(&old, &shape.key));
        expected.push((
            Op::Update as u8,
            vec![values(&old), values(&new), key.clone()],
        ));
        writer.delete(&old);
        expected.push((Op::Delete as u8, vec![values(&old), vec![], key.clone()]));
        for op in [Op::Request, Op::Remove, Op::ConflictGone] {
            writer.key(op, &of(&old, &shape.key));
            expected.push((op as u8, vec![vec![], vec![], key.clone()]));
        }
        writer.refused(
            &of(&old, &shape.key),
            Op::Update,
            u32::MAX,
            "why \u{10ffff}",
        );
        expected.push((Op::Refused as u8, vec![vec![], vec![], key]));
    }
    assert_eq!(writer.rows(), expected.len() as u64);
    (writer.take(), expected)
}

/// Reads what arrives in pieces, as receivers do: an incomplete row again, with more.
fn read_in_pieces(shape: &RowShape, packed: &[u8], piece: usize) -> Vec<Read> {
    let mut read = Vec::new();
    let mut unread: Vec<u8> = Vec::new();
    for piece in packed.chunks(piece) {
        unread.extend_from_slice(piece);
        let mut reader = RowsReader::new(shape, &unread);
        let mut row = UnpackedRow::default();
        loop {
            match reader.next(&mut row) {
                Ok(true) => {
                    let parts = [&row.old, &row.new, &row.key];
                    let parts = parts.map(|part| values(part)).to_vec();
                    read.push((row.op.unwrap() as u8, parts));
                    if row.op == Some(Op::Refused) {
                        assert_eq!(row.refused_op, Some(Op::Update));
                        assert_eq!((row.code, row.reason), (u32::MAX, "why \u{10ffff}"));
                    }
                }
                Ok(false) | Err(UnpackError::Truncated) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let consumed = reader.consumed();
        unread.drain(..consumed);
    }
    assert!(unread.is_empty(), "{} bytes are left", unread.len());
    read
}

proptest! {
    #[test]
    fn rows_of_any_table_come_back_under_every_operation_however_they_are_cut(
        filled in filled(),
        piece in 1usize..300,
    ) {
        let (packed, expected) = pack_all(&filled);
        for piece in [piece, packed.len()] {
            let read = read_in_pieces(&filled.shape, &packed, piece);
            // By what it looks like: a REAL is equal to the bit, as -0.0 has its sign.
            prop_assert_eq!(format!("{read:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn equal_rows_pack_to_equal_bytes_and_others_do_not(filled in filled()) {
        let shape = &filled.shape;
        for left in &filled.rows {
            for right in &filled.rows {
                let pack = |row: &[Value]| {
                    let mut packed = Vec::new();
                    pack_values(&mut packed, &shape.columns, &understood(shape, row));
                    packed
                };
                // By what they look like, as above.
                let look = |row| format!("{:?}", values(&understood(shape, row)));
                let equal = look(left) == look(right);
                prop_assert_eq!(pack(left) == pack(right), equal);
            }
        }
    }

    #[test]
    fn a_value_is_understood_stored_and_understood_again_as_the_same(
        (column, value) in column().prop_flat_map(|column| (Just(column), stored(column))),
    ) {
        let (datum, fit) = column.datum(value.as_ref());
        let once = datum.to_value();
        if fit != Fit::Convertible {
            prop_assert_eq!(format!("{once:?}"), format!("{value:?}"));
        }
        let (again, fit_again) = column.datum(once.as_ref());
        prop_assert_eq!(format!("{:?}", again.to_value()), format!("{once:?}"));
        // How to round what has more digits than its column is the centre's business.
        if fit != Fit::Unfit && !matches!(column, ColumnType::Decimal { scale: Some(_) }) {
            prop_assert_eq!(fit_again, Fit::Canonical, "{:?}", once);
        }
    }
}
