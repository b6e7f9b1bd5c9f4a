//! Conditions that rows are of partitions and in windows, spelled with their values: COPY takes no
//! parameters.

use tidewater_protocol::{ColumnType, Datum};

use super::quote::literal;
use crate::column::PgColumn;
use tidewater_centre::engine::sql::served_table::WindowColumn;
use tidewater_centre::engine::window::WindowBound;

/// More are compared with a list of rows.
const FEW_PARTITIONS: usize = 100;

/// Whether a row is in these windows.
pub(super) fn is_in_window(
    window: &WindowColumn<PgColumn>,
    bound: &WindowBound,
    column_type: ColumnType,
) -> String {
    let WindowColumn { alias, column, .. } = window;
    let value = |position: i64| {
        let text = match column_type {
            ColumnType::Integer => position.to_string(),
            ColumnType::Date => moment(&Datum::Date(position).to_string()),
            ColumnType::TimestampTz => moment(&Datum::TimestampTz(position).to_string()),
            _ => moment(&Datum::Timestamp(position).to_string()),
        };
        format!(
            "{}::{}",
            literal(&text).unwrap_or_default(),
            column.cast_name
        )
    };
    let mut conditions = vec![format!("{alias}.{} IS NOT NULL", column.sql)];
    // Of an integer that is too small for its column nothing has to be said.
    if bound.from > i64::MIN {
        let from = value(bound.from);
        conditions.push(format!("{alias}.{} >= {from}", column.sql));
    }
    if let Some(to) = bound.to {
        let to = value(to);
        conditions.push(format!("{alias}.{} < {to}", column.sql));
    }
    conditions.join(" AND ")
}

/// Whether a row is in one of the partitions.
pub(super) fn is_in_partitions(
    alias: &str,
    columns: &[PgColumn],
    partitions: &[Vec<Datum<'_>>],
) -> String {
    let mut rows = Vec::new();
    for values in partitions {
        let mut row = Vec::with_capacity(values.len());
        for (value, column) in values.iter().zip(columns) {
            let text = match value {
                Datum::Bytes(bytes) => {
                    let hex = bytes.iter().map(|byte| format!("{byte:02x}"));
                    format!("\\x{}", hex.collect::<String>())
                }
                Datum::Date(_) | Datum::Timestamp(_) | Datum::TimestampTz(_) => {
                    moment(&value.to_string())
                }
                value => value.to_string(),
            };
            // Text with a NUL is in no row.
            let quoted = literal(&text).unwrap_or_else(|| "NULL".into());
            row.push(format!("{quoted}::{}", column.cast_for_comparison()));
        }
        rows.push(format!("({})", row.join(", ")));
    }
    let alias = format!("{alias}.");
    let compared = columns.iter().map(|column| column.compared(&alias));
    let compared = compared.collect::<Vec<_>>().join(", ");
    match columns.len() == 1 && rows.len() <= FEW_PARTITIONS {
        true => format!("{compared} IN ({})", rows.join(", ")),
        false => format!("({compared}) IN (VALUES {})", rows.join(", ")),
    }
}

/// A date or timestamp as PostgreSQL reads it: years beyond 9999 without a sign, those before
/// the year 1 counted backwards.
fn moment(text: &str) -> String {
    let expanded = text.strip_prefix(['+', '-']).and_then(|unsigned| {
        let (year, rest) = unsigned.split_once('-')?;
        Some((year.parse::<i64>().ok()?, rest))
    });
    match expanded {
        // ISO 8601 has a year 0, which is 1 BC.
        Some((year, rest)) if year == 0 || text.starts_with('-') => {
            format!("{:04}-{rest} BC", year + 1)
        }
        Some((year, rest)) => format!("{year}-{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_that_need_a_sign_are_spelled_as_postgres_reads_them() {
        for (ours, theirs) in [
            ("2026-01-02", "2026-01-02"),
            ("+5874897-12-31", "5874897-12-31"),
            ("+000000-02-29", "0001-02-29 BC"),
            (
                "-004712-01-01T00:00:00.000000Z",
                "4713-01-01T00:00:00.000000Z BC",
            ),
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
        ] {
            assert_eq!(moment(ours), theirs);
        }
    }
}
