//! Values at the edges of what a type has.

use super::*;

/// What comes back of a value, as far as the driver is concerned.
fn there_and_back(kind: MysqlKind, datum: Datum<'_>) -> String {
    let native = bind(kind, &datum).expect("a value of this kind");
    let back = read(kind, &native);
    assert!(!back.is_loose(), "{back:?}");
    back.to_string()
}

fn decimal(text: &str) -> Datum<'_> {
    let any = ColumnType::Decimal { scale: None };
    any.datum(ValueRef::Text(text)).0
}

#[test]
fn reals_come_back_and_minus_zero_is_zero() {
    for (real, expected) in [
        (1.5, "1.5"),
        (-0.0, "0.0"),
        (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
    ] {
        let datum = Datum::Real(real);
        let native = bind(MysqlKind::Double, &datum).unwrap();
        assert_eq!(
            read(MysqlKind::Double, &native),
            Datum::Real(expected.parse().unwrap())
        );
    }
}

#[test]
fn what_no_column_of_the_database_has_is_not_bound() {
    for (kind, datum) in [
        (MysqlKind::Double, Datum::Real(f64::NAN)),
        (MysqlKind::Double, Datum::Real(f64::INFINITY)),
        (MysqlKind::Single, Datum::Real(1e300)),
        (MysqlKind::Decimal { scale: 2 }, decimal("NaN")),
        (MysqlKind::Decimal { scale: 2 }, decimal("-Infinity")),
        (MysqlKind::Unsigned, decimal("-1")),
        (MysqlKind::Unsigned, decimal("0.5")),
        (MysqlKind::Unsigned, decimal("18446744073709551616")),
        (MysqlKind::Date, Datum::Date(INFINITY)),
        (MysqlKind::Date, Datum::Date(days_from_civil(0, 12, 31))),
        (MysqlKind::Date, Datum::Date(days_from_civil(10_000, 1, 1))),
        (MysqlKind::DateTime, Datum::Timestamp(NEGATIVE_INFINITY)),
        (MysqlKind::Timestamp, Datum::TimestampTz(i64::MAX - 1)),
        (MysqlKind::Integer, Datum::Loose(ValueRef::Text("x"))),
        (MysqlKind::Text, Datum::Integer(1)),
    ] {
        assert_eq!(bind(kind, &datum), None, "{kind:?} {datum:?}");
    }
}

#[test]
fn decimals_keep_every_digit() {
    let longest = format!("{}.{}", "9".repeat(35), "9".repeat(30));
    let kind = MysqlKind::Decimal { scale: 30 };
    assert_eq!(there_and_back(kind, decimal(&longest)), longest);
    let small = MysqlKind::Decimal { scale: 2 };
    assert_eq!(there_and_back(small, decimal("-0.50")), "-0.50");
    let largest = u64::MAX.to_string();
    assert_eq!(
        there_and_back(MysqlKind::Unsigned, decimal(&largest)),
        largest
    );
}

#[test]
fn days_and_times_come_back_from_the_first_year_to_the_last() {
    for (year, month, day) in [(1, 1, 1), (1969, 12, 31), (2000, 2, 29), (9999, 12, 31)] {
        let days = days_from_civil(year, month, day);
        let date = Datum::Date(days);
        let native = bind(MysqlKind::Date, &date).unwrap();
        assert_eq!(read(MysqlKind::Date, &native), date);
        let micros = days * MICROS_PER_DAY + MICROS_PER_DAY - 1;
        let moment = Datum::Timestamp(micros);
        let native = bind(MysqlKind::DateTime, &moment).unwrap();
        assert_eq!(read(MysqlKind::DateTime, &native), moment);
        let moment = Datum::TimestampTz(micros);
        let native = bind(MysqlKind::Timestamp, &moment).unwrap();
        assert_eq!(read(MysqlKind::Timestamp, &native), moment);
    }
    for micros in [0, 1, MICROS_PER_DAY - 1, MICROS_PER_DAY] {
        let time = Datum::Time(micros);
        let native = bind(MysqlKind::Time, &time).unwrap();
        assert_eq!(read(MysqlKind::Time, &native), time);
    }
}

#[test]
fn what_is_no_day_and_no_time_of_a_day_is_no_value_of_the_type() {
    let none = Native::Date(2024, 0, 0, 0, 0, 0, 0);
    assert!(read(MysqlKind::Date, &none).is_loose());
    for native in [
        Native::Time(true, 0, 1, 0, 0, 0),
        Native::Time(false, 1, 0, 0, 0, 1),
    ] {
        assert!(read(MysqlKind::Time, &native).is_loose());
    }
}

#[test]
fn texts_and_bytes_are_as_they_are() {
    let text = Datum::Text("a\0b 'c' \\ \u{1F600} ");
    let native = bind(MysqlKind::Text, &text).unwrap();
    assert_eq!(read(MysqlKind::Text, &native), text);
    let bytes = Datum::Bytes(&[0, 255, 39]);
    let native = bind(MysqlKind::Bytes, &bytes).unwrap();
    assert_eq!(read(MysqlKind::Bytes, &native), bytes);
    assert!(read(MysqlKind::Text, &Native::Bytes(vec![0xff])).is_loose());
    let uuid = Datum::Uuid([7; 16]);
    let native = bind(MysqlKind::Uuid, &uuid).unwrap();
    assert_eq!(read(MysqlKind::Uuid, &native), uuid);
}

#[test]
fn truth_comes_as_a_number_or_as_a_bit() {
    for native in [Native::Int(1), Native::Bytes(vec![1])] {
        assert_eq!(read(MysqlKind::Boolean, &native), Datum::Boolean(true));
    }
    assert!(read(MysqlKind::Boolean, &Native::Int(2)).is_loose());
}

#[test]
fn a_row_that_does_not_fit_is_not_added() {
    let mut rows = NativeRows::new(&[MysqlKind::Integer, MysqlKind::Text]);
    assert!(rows.push(&[Datum::Integer(1), Datum::Null]));
    assert!(!rows.push(&[Datum::Integer(1), Datum::Integer(2)]));
    assert_eq!(rows.count(), 1);
    let source = NativeRows::source(&[MysqlKind::Integer, MysqlKind::Text], 3);
    assert_eq!(
        (&*source.number, &*source.columns.join(" ")),
        ("?3", "?4 ?5")
    );
}

#[test]
fn sums_of_integers_are_integers() {
    let sum = Native::Bytes(b"12".to_vec());
    assert_eq!(PlainColumn::Number.read(sum), Some(Value::Integer(12)));
    assert_eq!(
        PlainColumn::Number.read(Native::Bytes(b"1.5".to_vec())),
        None
    );
    let bytes = Native::Bytes(vec![1]);
    assert_eq!(PlainColumn::Bytes.read(bytes), Some(Value::Blob(vec![1])));
}
