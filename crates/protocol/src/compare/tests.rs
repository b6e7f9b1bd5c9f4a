//! Tests of the range order, of ranges and of intervals.

use proptest::prelude::*;

use super::*;
use crate::value::Value;

fn decimal(text: &str) -> Decimal<'_> {
    Decimal::parse(text).expect("a decimal").0
}

fn integers() -> RowShape {
    RowShape {
        columns: vec![ColumnType::Integer, ColumnType::Text],
        key: vec![0],
    }
}

fn packed(shape: &RowShape, key: &[Datum<'_>]) -> Vec<u8> {
    let mut packed = Vec::new();
    pack_key(&mut packed, &shape.key_columns(), key);
    packed
}

fn bounds(shape: &RowShape, keys: &[i64]) -> Vec<Vec<u8>> {
    let keys = keys.iter();
    keys.map(|&key| packed(shape, &[Datum::Integer(key)]))
        .collect()
}

/// The sums of these rows of [`integers`], divided at these keys.
fn summed(shape: &RowShape, at: &[i64], rows: &[(i64, &str)]) -> Vec<KeyRange> {
    let bounds = bounds(shape, at);
    let mut ranges = Ranges::at(shape, bounds.iter().map(Vec::as_slice)).expect("ascending");
    for &(id, text) in rows {
        let row = [Datum::Integer(id), Datum::Text(text)];
        ranges.add(&row[..1], &row);
    }
    ranges.to_wire()
}

#[test]
fn every_type_has_its_natural_order_and_null_comes_first() {
    let ascending: [&[Datum<'_>]; 8] = [
        &[
            Datum::Null,
            Datum::Integer(i64::MIN),
            Datum::Integer(-1),
            Datum::Integer(i64::MAX),
            Datum::Loose(ValueRef::Real(-1.0)),
            Datum::Loose(ValueRef::Text("")),
            Datum::Loose(ValueRef::Text("a")),
            Datum::Loose(ValueRef::Blob(&[])),
        ],
        &[Datum::Null, Datum::Boolean(false), Datum::Boolean(true)],
        &[
            Datum::Real(f64::NEG_INFINITY),
            Datum::Real(-1.0),
            Datum::Real(0.0),
            Datum::Real(1e300),
            Datum::Real(f64::INFINITY),
            Datum::Real(f64::NAN),
        ],
        &[
            Datum::Text(""),
            Datum::Text("B"),
            Datum::Text("a"),
            Datum::Text("aa"),
            Datum::Text("é"),
        ],
        &[
            Datum::Bytes(&[]),
            Datum::Bytes(&[0]),
            Datum::Bytes(&[0, 0]),
            Datum::Bytes(&[255]),
        ],
        &[
            Datum::Date(i64::MIN),
            Datum::Date(-1),
            Datum::Date(i64::MAX),
        ],
        &[
            Datum::Timestamp(i64::MIN),
            Datum::Timestamp(5),
            Datum::Timestamp(i64::MAX),
        ],
        &[Datum::Uuid([0; 16]), Datum::Uuid([255; 16])],
    ];
    for values in ascending {
        for (left_at, left) in values.iter().enumerate() {
            for (right_at, right) in values.iter().enumerate() {
                assert_eq!(
                    compare_values(left, right),
                    left_at.cmp(&right_at),
                    "{left:?} {right:?}"
                );
            }
        }
    }
}

#[test]
fn decimals_are_ordered_by_their_exact_value() {
    let ascending = [
        "-Infinity",
        "-123456789012345678901234567890123456789012345.5",
        "-99999999999999999999999999999999999999",
        "-2",
        "-1.50",
        "-1.5000000000000000000000000000000000000000000001",
        "0.00",
        "0.00000000000000000000000000000000000001",
        "1.499999999999999999999999999999999999999999999",
        "1.5",
        "10",
        "99999999999999999999999999999999999999",
        "99999999999999999999999999999999999999.5",
        "123456789012345678901234567890123456789012345.5",
        "Infinity",
        "NaN",
    ];
    // -1.5000...1 is below -1.50.
    let mut ascending = ascending.map(decimal);
    ascending.swap(4, 5);
    for (left_at, left) in ascending.iter().enumerate() {
        for (right_at, right) in ascending.iter().enumerate() {
            assert_eq!(
                compare_decimals(left, right),
                left_at.cmp(&right_at),
                "{left:?} {right:?}"
            );
        }
    }
    assert!(compare_decimals(&decimal("1.5"), &decimal("1.50")).is_eq());
    assert!(compare_decimals(&decimal("0"), &decimal("0.000")).is_eq());
}

#[test]
fn keys_of_several_columns_are_ordered_column_by_column() {
    let key = |number, text| [Datum::Integer(number), Datum::Text(text)];
    assert!(compare_keys(&key(1, "b"), &key(2, "a")).is_lt());
    assert!(compare_keys(&key(1, "b"), &key(1, "a")).is_gt());
    assert!(compare_keys(&key(1, "b"), &key(1, "b")).is_eq());
}

#[test]
fn sampled_keys_are_sorted_and_stand_once() {
    let shape = integers();
    let mut keys = bounds(&shape, &[300, -5, 7, 300, 0]);
    sort_keys(&shape.key_columns(), &mut keys).expect("they are keys");
    assert_eq!(keys, bounds(&shape, &[-5, 0, 7, 300]));
    keys.push(vec![9]);
    assert!(sort_keys(&shape.key_columns(), &mut keys).is_err());
}

#[test]
fn equal_rows_in_any_order_have_equal_sums_and_one_difference_shows_in_its_range() {
    let shape = integers();
    let rows = [(1, "a"), (5, "b"), (6, "c"), (10, "d"), (11, "e")];
    let mut shuffled = rows;
    shuffled.reverse();
    let own = summed(&shape, &[5, 10], &rows);
    assert_eq!(own, summed(&shape, &[5, 10], &shuffled));
    assert_eq!(
        own.iter().map(|range| range.rows).collect::<Vec<_>>(),
        [2, 2, 1]
    );

    let differing = |rows: &[(i64, &str)]| {
        let theirs = summed(&shape, &[5, 10], rows);
        let mut ranges = Ranges::like(&shape, &theirs).expect("ranges");
        for (id, text) in [(1, "a"), (5, "b"), (6, "c"), (10, "d"), (11, "e")] {
            let row = [Datum::Integer(id), Datum::Text(text)];
            ranges.add(&row[..1], &row);
        }
        ranges.differing(&theirs)
    };
    let bound = |key| packed(&shape, &[Datum::Integer(key)]);
    let interval = |after, until| KeyInterval { after, until };
    assert_eq!(differing(&rows), []);
    // A changed row, a missing one, an extra one at the end, and two neighbours.
    assert_eq!(
        differing(&[(1, "x"), (5, "b"), (6, "c"), (10, "d"), (11, "e")]),
        [interval(vec![], bound(5))]
    );
    assert_eq!(
        differing(&[(1, "a"), (5, "b"), (6, "c"), (11, "e")]),
        [interval(bound(5), bound(10))]
    );
    assert_eq!(
        differing(&[
            (1, "a"),
            (5, "b"),
            (6, "c"),
            (10, "d"),
            (11, "e"),
            (12, "f")
        ]),
        [interval(bound(10), vec![])]
    );
    assert_eq!(
        differing(&[(1, "a"), (5, "b"), (6, "x"), (10, "d")]),
        [interval(bound(5), vec![])]
    );
    assert_eq!(
        differing(&[(1, "y"), (5, "b"), (6, "c"), (10, "d")]),
        [interval(vec![], bound(5)), interval(bound(10), vec![])]
    );
}

#[test]
fn ranges_that_do_not_follow_each_other_are_refused() {
    let shape = integers();
    let good = summed(&shape, &[1, 2], &[]);
    assert!(Ranges::like(&shape, &good).is_ok());
    let refused = |ranges: &[KeyRange]| Ranges::like(&shape, ranges).err();
    assert_eq!(refused(&[]), Some(CompareError::Order));
    assert_eq!(refused(&good[..2]), Some(CompareError::Order));
    let swapped = [good[1].clone(), good[0].clone(), good[2].clone()];
    assert_eq!(refused(&swapped), Some(CompareError::Order));
    let twice = [good[0].clone(), good[0].clone(), good[2].clone()];
    assert_eq!(refused(&twice), Some(CompareError::Order));
    let open = [good[2].clone(), good[2].clone()];
    assert_eq!(refused(&open), Some(CompareError::Order));
    let mut garbage = good;
    garbage[0].until = vec![0, 0];
    assert!(matches!(refused(&garbage), Some(CompareError::Bound(_))));
}

#[test]
fn intervals_hold_what_lies_behind_their_beginning_up_to_and_with_their_end() {
    let shape = integers();
    let bound = |key: Option<i64>| match key {
        Some(key) => packed(&shape, &[Datum::Integer(key)]),
        None => Vec::new(),
    };
    let held = |intervals: &[(Option<i64>, Option<i64>)]| {
        let wire: Vec<KeyInterval> = intervals
            .iter()
            .map(|&(after, until)| KeyInterval {
                after: bound(after),
                until: bound(until),
            })
            .collect();
        let intervals = Intervals::new(&shape, &wire).ok()?;
        let keys = (0..7).filter(|&key| intervals.contains(&[Datum::Integer(key)]));
        Some((keys.collect::<Vec<_>>(), intervals.is_everything()))
    };
    assert_eq!(held(&[]), Some((vec![], false)));
    assert_eq!(
        held(&[(None, None)]),
        Some(((0..7).collect::<Vec<_>>(), true))
    );
    assert_eq!(
        held(&[(None, Some(1)), (Some(3), Some(4)), (Some(5), None)]),
        Some((vec![0, 1, 4, 6], false))
    );
    assert_eq!(
        held(&[(Some(1), Some(3)), (Some(4), Some(5))]),
        Some((vec![2, 3, 5], false))
    );
    assert_eq!(held(&[(Some(3), Some(1))]), None);
    assert_eq!(held(&[(None, None), (Some(1), None)]), None);
    assert_eq!(held(&[(Some(1), Some(2)), (None, Some(3))]), None);
}

#[test]
fn a_hundred_thousand_rows_are_described_in_less_than_32_kib() {
    use prost::Message;
    let shape = RowShape {
        columns: vec![ColumnType::Uuid],
        key: vec![0],
    };
    let step = rows_per_range(100_000) as usize;
    assert_eq!(step, 256);
    let key = |index: usize| {
        let mut uuid = [0x5a; 16];
        uuid[..8].copy_from_slice(&(index as u64).to_be_bytes());
        [Datum::Uuid(uuid)]
    };
    let keys = (0..100_000).step_by(step);
    let bounds: Vec<Vec<u8>> = keys.map(|index| packed(&shape, &key(index))).collect();
    let mut ranges = Ranges::at(&shape, bounds.iter().map(Vec::as_slice)).expect("ascending");
    for index in 0..100_000 {
        ranges.add(&key(index), &key(index));
    }
    let message = crate::message::CompareTable {
        subscription: 0,
        table: None,
        ranges: ranges.to_wire(),
        untracked: false,
    };
    assert!(
        message.encoded_len() < 32 << 10,
        "{}",
        message.encoded_len()
    );
    assert_eq!(rows_per_range(10), MIN_ROWS_PER_RANGE);
    assert_eq!(rows_per_range(409_600_000), 100_000);
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Real),
        "[-0-9.a-zN]{0,6}".prop_map(Value::Text),
        proptest::collection::vec(any::<u8>(), 0..3).prop_map(Value::Blob),
    ]
}

proptest! {
    #[test]
    fn the_order_is_total_for_all_values_that_a_file_can_hold(
        values in proptest::collection::vec(any_value(), 3),
        column in prop_oneof![
            Just(ColumnType::Integer),
            Just(ColumnType::Real),
            Just(ColumnType::Decimal { scale: None }),
            Just(ColumnType::Text),
            Just(ColumnType::Bytes),
        ],
    ) {
        let data: Vec<Datum<'_>> = values.iter().map(|value| column.datum(value.as_ref()).0).collect();
        let [a, b, c] = &data[..] else { unreachable!("three values") };
        prop_assert_eq!(compare_values(a, b), compare_values(b, a).reverse());
        prop_assert!(compare_values(a, a).is_eq());
        if compare_values(a, b).is_le() && compare_values(b, c).is_le() {
            prop_assert!(compare_values(a, c).is_le());
        }
    }

    #[test]
    fn bounds_that_anybody_may_send_never_panic(
        untils in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..5),
    ) {
        let shape = integers();
        let ranges: Vec<KeyRange> = untils
            .iter()
            .map(|until| KeyRange { until: until.clone(), rows: 1, checksum: 1 })
            .collect();
        let _ = Ranges::like(&shape, &ranges);
        let intervals: Vec<KeyInterval> = untils
            .windows(2)
            .map(|pair| KeyInterval { after: pair[0].clone(), until: pair[1].clone() })
            .collect();
        let _ = Intervals::new(&shape, &intervals);
    }
}
