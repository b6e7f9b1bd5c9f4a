//! Whether uploaded values fit their columns, and whether these give them back as they were.

use tidewater_protocol::Datum;

use crate::column::PgColumn;
use crate::values::{PostgresType, decimal_is_exact, shortest};

/// Why a value cannot go into its column, without asking the database.
pub(crate) fn obstacle(column: &PgColumn, is_key: bool, value: &Datum<'_>) -> Option<String> {
    // What is blank beyond the limit of a varchar is cut off without an error.
    let cut = |text: &str| {
        let limit = column.limit.and_then(|limit| usize::try_from(limit).ok());
        column.kind == PostgresType::Text && limit.is_some_and(|limit| text.chars().count() > limit)
    };
    let padded = |text: &str| {
        is_key && text.ends_with(' ') && (column.kind == PostgresType::Bpchar || cut(text))
    };
    match value {
        // Two spellings of one key would be two rows on the remote.
        Datum::Text(text) if padded(text) => Some(unfit(column, value)),
        Datum::Time(micros) | Datum::Timestamp(micros) | Datum::TimestampTz(micros)
            if is_key && is_rounded(column, *micros) =>
        {
            Some(unfit(column, value))
        }
        Datum::Loose(_) => Some(unfit(column, value)),
        _ => None,
    }
}

/// Whether a column that keeps fewer digits of a second changes a time.
fn is_rounded(column: &PgColumn, micros: i64) -> bool {
    let digits = column.limit.and_then(|limit| u32::try_from(limit).ok());
    let infinite = micros == i64::MAX || micros == i64::MIN;
    !infinite && digits.is_some_and(|it| it < 6 && micros % 10_i64.pow(6 - it) != 0)
}

/// The reason why a value does not fit a column.
pub(crate) fn unfit(column: &PgColumn, value: &Datum<'_>) -> String {
    const LONGEST: usize = 60;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    format!(
        "column {:?} of type {} cannot hold {text:?}",
        column.name, column.type_name
    )
}

/// Whether the column gives back the value exactly as it was.
pub(crate) fn is_exact(column: &PgColumn, value: &Datum<'_>) -> bool {
    let fits = |text: &str| match column.limit {
        Some(limit) => text.len() <= limit as usize || text.chars().count() <= limit as usize,
        None => true,
    };
    match (column.kind, *value) {
        (_, Datum::Null) => true,
        (PostgresType::Jsonb | PostgresType::Other, _) => false,
        (PostgresType::Text, Datum::Text(text)) => fits(text),
        (PostgresType::Bpchar, Datum::Text(text)) => fits(text) && !text.ends_with(' '),
        (PostgresType::Float4, Datum::Real(real)) => {
            shortest(real as f32).to_bits() == real.to_bits()
        }
        (PostgresType::Float8, Datum::Real(real)) => {
            real.is_finite() && (real != 0.0 || real.is_sign_positive())
                || real.is_infinite()
                || real.to_bits() == f64::NAN.to_bits()
        }
        (PostgresType::Numeric, Datum::Decimal(decimal)) => {
            // A negative scale rounds before the point.
            !column.type_name.contains('-') && decimal_is_exact(decimal, column.scale)
        }
        (PostgresType::Time | PostgresType::Timestamp | PostgresType::TimestampTz, _) => {
            column.limit.is_none_or(|limit| limit >= 6)
        }
        _ => true,
    }
}
