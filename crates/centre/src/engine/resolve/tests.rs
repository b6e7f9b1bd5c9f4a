//! Whatever the resolver: what one side alone has changed is there in the end where columns are
//! told apart, and nothing is there that neither side has.

use proptest::prelude::*;
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::{ColumnType, Datum, Value};

use super::*;

const TYPES: [ColumnType; 4] = [
    ColumnType::Integer,
    ColumnType::Integer,
    ColumnType::Text,
    ColumnType::Real,
];

fn row((a, b, text, real): (i64, i64, u8, i8)) -> [Datum<'static>; 4] {
    let text = ["", "one\n", "one\ntwo\n", "two\n"][usize::from(text % 4)];
    let real = f64::from(real);
    [
        Datum::Integer(a % 3),
        Datum::Integer(b),
        Datum::Text(text),
        Datum::Real(real),
    ]
}

fn winners() -> impl Strategy<Value = Winner> {
    prop_oneof![
        Just(Winner::Centre),
        Just(Winner::Remote),
        Just(Winner::Nobody),
        Just(Winner::Greater(1)),
        Just(Winner::Less(3)),
    ]
}

proptest! {
    #[test]
    fn every_value_comes_from_somewhere(
        old in any::<(i64, i64, u8, i8)>(),
        new in any::<(i64, i64, u8, i8)>(),
        central in any::<(i64, i64, u8, i8)>(),
        has_old in any::<bool>(),
        by_column in any::<bool>(),
        winner in winners(),
        additive in any::<bool>(),
        merged in any::<bool>(),
    ) {
        let (old, new, central) = (row(old), row(new), row(central));
        let old = has_old.then_some(&old[..]);
        let mut computed = Vec::new();
        computed.extend(additive.then_some((1, ComputedValue::Additive)));
        computed.extend(merged.then_some((2, ComputedValue::MergedText)));
        let detect = match by_column {
            true => ConflictDetection::Column,
            false => ConflictDetection::Row,
        };
        let resolver = Resolver { detect, computed, winner, users: Vec::new(), centre_rank: None };
        let sides = Sides {
            outranks: false,
            old, new: &new, central: &central, written: &[0, 1, 2, 3], may_be_in: false,
        };
        let (from_remote, computed, is_conflict) = match resolver.resolve(&TYPES, sides) {
            ResolvedRow::Centre | ResolvedRow::Parked | ResolvedRow::Asked => return Ok(()),
            ResolvedRow::Merged { from_remote, computed, is_conflict } => {
                (from_remote, computed, is_conflict)
            }
        };
        prop_assert!(!from_remote.is_empty() || !computed.is_empty());
        for column in 0..4 {
            let is_computed = computed.iter().any(|it| it.0 == column);
            let is_remote = from_remote.contains(&column);
            prop_assert!(!(is_computed && is_remote));
            let Some(old) = old.filter(|_| by_column) else { continue };
            let changed_here = !same(&old[column], &new[column]);
            let changed_there = !same(&old[column], &central[column]);
            match (changed_here, changed_there) {
                (true, false) => prop_assert!(is_remote, "a change of one side is taken"),
                (false, _) => prop_assert!(!is_remote && !is_computed),
                (true, true) => {
                    let differs = !same(&new[column], &central[column]);
                    prop_assert!(is_conflict || !differs);
                }
            }
        }
    }
}

#[test]
fn numbers_add_up_exactly_or_not_at_all() {
    let decimal = |text| Datum::Decimal(Decimal::parse(text).unwrap().0);
    let price = ColumnType::Decimal { scale: Some(2) };
    let free = ColumnType::Decimal { scale: None };
    let big = "123456789012345678901234567890123456789012345.5";
    let text = |text: &str| Some(Value::Text(text.into()));
    for (how, column_type, old, new, central, value) in [
        (
            ComputedValue::Additive,
            price,
            "1.50",
            "1.75",
            "1.60",
            text("1.85"),
        ),
        (
            ComputedValue::Average,
            price,
            "1.50",
            "1.75",
            "1.60",
            text("1.68"),
        ),
        (
            ComputedValue::Additive,
            free,
            "1",
            big,
            "2",
            text("123456789012345678901234567890123456789012346.5"),
        ),
        (ComputedValue::Additive, free, "1", "NaN", "2", None),
    ] {
        let made = compute::compute(
            how,
            column_type,
            Some(decimal(old)),
            decimal(new),
            decimal(central),
        );
        assert_eq!(made, value, "{old} {new} {central}");
    }
    let integer = |how, new, central| {
        let (new, central) = (Datum::Integer(new), Datum::Integer(central));
        compute::compute(
            how,
            ColumnType::Integer,
            Some(Datum::Integer(0)),
            new,
            central,
        )
    };
    assert_eq!(
        integer(ComputedValue::Additive, 5, -7),
        Some(Value::Integer(-2))
    );
    assert_eq!(integer(ComputedValue::Additive, i64::MAX, 1), None);
    assert_eq!(
        integer(ComputedValue::Average, -1, 2),
        Some(Value::Integer(0))
    );
    assert_eq!(
        integer(ComputedValue::Average, -2, -1),
        Some(Value::Integer(-2))
    );
}
