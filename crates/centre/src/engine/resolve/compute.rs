//! Values that are made of those of both sides.

use std::str::FromStr;

use bigdecimal::{BigDecimal, RoundingMode};
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::{ColumnType, Datum, Value};

use super::ComputedValue;
use super::merge_text::merge_text;

/// The value of a column that both sides have changed; `None` if there is none, because one of
/// them is NULL or no number, or because both have changed the same lines.
pub(super) fn compute(
    how: ComputedValue,
    column_type: ColumnType,
    old: Option<Datum<'_>>,
    new: Datum<'_>,
    central: Datum<'_>,
) -> Option<Value> {
    match (how, new, central) {
        (ComputedValue::MergedText, Datum::Text(new), Datum::Text(central)) => {
            let Some(Datum::Text(old)) = old else {
                return None;
            };
            merge_text(old, new, central).map(Value::Text)
        }
        (ComputedValue::MergedText, ..) => None,
        (_, Datum::Integer(new), Datum::Integer(central)) => {
            let (new, central) = (i128::from(new), i128::from(central));
            let old = match old {
                None | Some(Datum::Null) => 0,
                Some(Datum::Integer(old)) => i128::from(old),
                Some(_) => return None,
            };
            let value = match how {
                ComputedValue::Additive => central + (new - old),
                _ => (new + central).div_euclid(2),
            };
            i64::try_from(value).ok().map(Value::Integer)
        }
        (_, Datum::Real(new), Datum::Real(central)) => {
            let old = match old {
                None | Some(Datum::Null) => 0.0,
                Some(Datum::Real(old)) => old,
                Some(_) => return None,
            };
            let value = match how {
                ComputedValue::Additive => central + (new - old),
                _ => new.midpoint(central),
            };
            value.is_finite().then_some(Value::Real(value))
        }
        (_, Datum::Decimal(new), Datum::Decimal(central)) => {
            let old = match old {
                None | Some(Datum::Null) => BigDecimal::default(),
                Some(Datum::Decimal(old)) => number(old)?,
                Some(_) => return None,
            };
            let (new, central) = (number(new)?, number(central)?);
            let value = match how {
                ComputedValue::Additive => central + (new - old),
                _ => half(new + central),
            };
            let value = match column_type {
                ColumnType::Decimal { scale: Some(scale) } => {
                    value.with_scale_round(scale.into(), RoundingMode::HalfUp)
                }
                _ => value,
            };
            Some(Value::Text(value.to_plain_string()))
        }
        _ => None,
    }
}

/// What is added to get from one number to another one, with its sign; `None` if they are equal, or if
/// one of them is none.
pub(super) fn difference(old: Datum<'_>, new: Datum<'_>) -> Option<String> {
    let text = match (old, new) {
        (Datum::Integer(old), Datum::Integer(new)) => {
            (i128::from(new) - i128::from(old)).to_string()
        }
        (Datum::Real(old), Datum::Real(new)) => (new - old).to_string(),
        (Datum::Decimal(old), Datum::Decimal(new)) => {
            let difference = number(new)? - number(old)?;
            difference.normalized().to_plain_string()
        }
        _ => return None,
    };
    match text.as_str() {
        "0" | "-0" => None,
        _ if text.starts_with('-') => Some(text),
        _ => Some(format!("+{text}")),
    }
}

/// `None` for NaN and the infinities.
fn number(decimal: Decimal<'_>) -> Option<BigDecimal> {
    let mut text = String::new();
    decimal.push_to(&mut text);
    BigDecimal::from_str(&text).ok()
}

fn half(sum: BigDecimal) -> BigDecimal {
    sum * BigDecimal::new(5.into(), 1)
}
