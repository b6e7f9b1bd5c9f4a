//! Values: what a type understands, it stores in one form, and understands that form as
//! the same value.

use tidewater_protocol::pack::{pack_values, same, unpack_values};
use tidewater_protocol::{ColumnType, Fit, ValueRef};

use crate::input::Input;

/// A type, a class of storage, and the value.
///
/// # Panics
/// A promise is broken.
pub fn values(data: &[u8]) {
    let mut input = Input::new(data);
    let column = input.column_type();
    let class = input.below(5);
    let bytes = input.rest();
    let number = || {
        let mut number = [0; 8];
        let count = bytes.len().min(8);
        number[..count].copy_from_slice(&bytes[..count]);
        number
    };
    match class {
        0 => one(column, ValueRef::Integer(i64::from_le_bytes(number()))),
        1 => one(column, ValueRef::Real(f64::from_le_bytes(number()))),
        2 => one(column, ValueRef::Blob(bytes)),
        _ => {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return;
            };
            one(column, ValueRef::Text(text));
        }
    }
}

fn one(column: ColumnType, value: ValueRef<'_>) {
    let (datum, fit) = column.datum(value);
    let mut scratch = String::new();
    let stored = datum.stored(&mut scratch);
    if fit != Fit::Convertible {
        assert!(is_stored_as(value, stored), "{value:?} became {stored:?}");
    }
    assert_eq!(fit == Fit::Unfit, datum.is_loose());
    let (again, fit_again) = column.datum(stored);
    assert!(
        same(&datum, &again),
        "{value:?}: {datum:?} became {again:?}"
    );
    let mut scratch = String::new();
    let stored_again = again.stored(&mut scratch);
    assert!(
        is_stored_as(stored, stored_again),
        "{stored:?}, {stored_again:?}"
    );
    // A decimal with more digits than its column has is for the centre to round.
    if !matches!(column, ColumnType::Decimal { scale: Some(_) }) && fit != Fit::Unfit {
        assert_eq!(fit_again, Fit::Canonical, "{value:?} became {stored:?}");
    }
    let mut packed = Vec::new();
    pack_values(&mut packed, &[column], &[datum]);
    let unpacked = unpack_values(&packed, &[column]).expect("it was just packed");
    assert!(same(&unpacked[0], &datum), "{datum:?} became {unpacked:?}");
}

/// To the bit, all NaN being one.
fn is_stored_as(left: ValueRef<'_>, right: ValueRef<'_>) -> bool {
    match (left, right) {
        (ValueRef::Real(left), ValueRef::Real(right)) => {
            left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
        }
        // SQLite has no NaN.
        (ValueRef::Real(left), ValueRef::Text("NaN")) => left.is_nan(),
        _ => left == right,
    }
}
