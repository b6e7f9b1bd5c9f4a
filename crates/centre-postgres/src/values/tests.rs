use super::*;
use tidewater_protocol::ValueRef;

fn there_and_back(kind: PostgresType, scale: Option<u16>, stored: ValueRef<'_>) -> String {
    let (datum, _) = kind.column_type(scale).datum(stored);
    let mut bytes = Vec::new();
    kind.encode(&datum, &mut bytes).unwrap();
    let length = i32::from_be_bytes(bytes[..4].try_into().unwrap());
    assert_eq!(length as usize, bytes.len() - 4);
    kind.decode(&bytes[4..], &mut String::new())
        .unwrap()
        .to_string()
}

#[test]
fn decimals_come_back_to_the_digit() {
    for text in [
        "0",
        "0.00",
        "7",
        "-7",
        "10000",
        "9999",
        "0.0001",
        "0.00001",
        "123456789.120000",
        "-0.5",
        "100000000.00",
        "18446744073709551615",
        "99999999999999999999999999999999999999",
        "0.0000000000000000000000000000000000001",
        "12345678901234567890.123456789012345678",
        "123456789012345678901234567890123456789012345.5",
        "-100000000000000000000000000000000000000000000",
        "NaN",
        "Infinity",
        "-Infinity",
    ] {
        let back = there_and_back(PostgresType::Numeric, None, ValueRef::Text(text));
        assert_eq!(back, text);
    }
}

#[test]
fn a_decimal_has_the_bytes_that_postgresql_sends() {
    // SELECT numeric_send(123456789.12::numeric(30,6)), numeric_send(-0.5)
    for (text, scale, hex) in [
        ("123456789.120000", 6, "0004000200000006000109291a8504b0"),
        ("-0.5", 1, "0001ffff400000011388"),
        ("0.00", 2, "0000000000000002"),
    ] {
        let (datum, _) = ColumnType::Decimal { scale: Some(scale) }.datum(ValueRef::Text(text));
        let mut bytes = Vec::new();
        PostgresType::Numeric.encode(&datum, &mut bytes).unwrap();
        let sent: String = bytes[4..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(sent, hex, "{text}");
    }
}

#[test]
fn dates_and_times_come_back() {
    for (kind, text) in [
        (PostgresType::Date, "1970-01-01"),
        (PostgresType::Date, "2000-01-01"),
        (PostgresType::Date, "0001-01-01"),
        (PostgresType::Date, "infinity"),
        (PostgresType::Date, "-infinity"),
        (PostgresType::Time, "24:00:00.000000"),
        (PostgresType::Timestamp, "1999-12-31T23:59:59.999999"),
        (PostgresType::Timestamp, "-infinity"),
        (PostgresType::TimestampTz, "2026-07-01T12:00:00.000001Z"),
    ] {
        assert_eq!(there_and_back(kind, None, ValueRef::Text(text)), text);
    }
}

#[test]
fn values_out_of_range_are_unfit_and_leave_nothing_behind() {
    let nul = Datum::Text("a\0b");
    for (kind, datum) in [
        (PostgresType::Int2, Datum::Integer(40_000)),
        (PostgresType::Int4, Datum::Integer(1 << 40)),
        (PostgresType::Float4, Datum::Real(1e300)),
        (PostgresType::Text, nul),
        (PostgresType::Jsonb, nul),
        (PostgresType::Date, Datum::Date(i64::MAX - 1)),
        (PostgresType::Timestamp, Datum::Timestamp(i64::MIN + 1)),
        (PostgresType::Int4, Datum::Text("1")),
    ] {
        let mut bytes = vec![9];
        assert_eq!(kind.encode(&datum, &mut bytes), Err(UnfitValue), "{kind:?}");
        assert_eq!(bytes, [9]);
    }
}

#[test]
fn bytes_that_are_no_value_are_errors() {
    for kind in [
        PostgresType::Int4,
        PostgresType::Numeric,
        PostgresType::Uuid,
        PostgresType::Jsonb,
        PostgresType::Time,
    ] {
        assert_eq!(kind.decode(&[2, 2, 3], &mut String::new()), Err(UnfitValue));
    }
    assert_eq!(
        PostgresType::Text.decode(&[0xff], &mut String::new()),
        Err(UnfitValue)
    );
}

#[test]
fn a_single_is_the_shortest_decimal_that_means_it_and_comes_back_equal() {
    for (single, expected) in [
        (21.35_f32, 21.35_f64),
        (1.1, 1.1),
        (-0.1, -0.1),
        (16_777_216.0, 16_777_216.0),
        (f32::MAX, 3.4028235e38),
        (f32::MIN_POSITIVE, 1.1754944e-38),
        (1e-45, 1e-45),
        (f32::INFINITY, f64::INFINITY),
    ] {
        assert_eq!(shortest(single).to_bits(), expected.to_bits(), "{single}");
    }
    let mut bits = 1_u32;
    for _ in 0..200_000 {
        // A walk over all singles (xorshift).
        bits ^= bits << 13;
        bits ^= bits >> 17;
        bits ^= bits << 5;
        let single = f32::from_bits(bits);
        if !single.is_nan() {
            assert_eq!((shortest(single) as f32).to_bits(), bits, "{single}");
        }
    }
}
