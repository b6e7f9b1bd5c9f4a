//! CHECK expressions that hold exactly for the canonical form of a key value, so that one
//! row never has two keys. Built-in functions only, and what SQLite 3.9 can parse: every driver must be
//! able to run them.

use tidewater_protocol::ColumnType;

/// The expression for a column of this type; `column` is its quoted name.
pub(crate) fn check(column_type: ColumnType, column: &str) -> String {
    match column_type {
        ColumnType::Integer => format!("typeof({column}) = 'integer'"),
        ColumnType::Boolean => format!("typeof({column}) = 'integer' AND {column} IN (0, 1)"),
        ColumnType::Real => format!("typeof({column}) = 'real' OR {column} = 'NaN'"),
        ColumnType::Text | ColumnType::Json | ColumnType::Opaque => {
            format!("typeof({column}) = 'text'")
        }
        ColumnType::Bytes => format!("typeof({column}) = 'blob'"),
        ColumnType::Uuid => uuid(column),
        ColumnType::Decimal { scale } => decimal(column, scale),
        ColumnType::Date => format!("{} OR {}", date(column, ""), infinite(column)),
        ColumnType::Time => {
            format!("{column} GLOB '{TIME}' AND ({column} < '24' OR {column} = '24:00:00.000000')")
        }
        ColumnType::Timestamp => {
            format!("{} OR {}", timestamp(column, ""), infinite(column))
        }
        ColumnType::TimestampTz => {
            format!("{} OR {}", timestamp(column, "Z"), infinite(column))
        }
    }
}

/// The canonical form of a type's keys, for people.
pub(crate) fn form(column_type: ColumnType) -> String {
    match column_type {
        ColumnType::Integer => "INTEGER".into(),
        ColumnType::Boolean => "0 or 1".into(),
        ColumnType::Real => "REAL".into(),
        ColumnType::Text | ColumnType::Json | ColumnType::Opaque => "TEXT".into(),
        ColumnType::Bytes => "BLOB".into(),
        ColumnType::Uuid => "00000000-0000-0000-0000-000000000000, in small letters".into(),
        ColumnType::Decimal { scale: None } => "TEXT like 1.5".into(),
        ColumnType::Decimal { scale: Some(0) } => "TEXT like 1".into(),
        ColumnType::Decimal { scale: Some(scale) } => {
            format!("TEXT like 1.{}", "0".repeat(usize::from(scale)))
        }
        ColumnType::Date => "YYYY-MM-DD".into(),
        ColumnType::Time => "HH:MM:SS.ffffff".into(),
        ColumnType::Timestamp => "YYYY-MM-DDTHH:MM:SS.ffffff".into(),
        ColumnType::TimestampTz => "YYYY-MM-DDTHH:MM:SS.ffffffZ".into(),
    }
}

const DATE: &str = "[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]";
const FAR_DATE: &str = "[+-][0-9][0-9][0-9][0-9][0-9][0-9]*-[01][0-9]-[0-3][0-9]";
const TIME: &str = "[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]";

fn infinite(column: &str) -> String {
    format!("{column} IN ('infinity', '-infinity')")
}

fn uuid(column: &str) -> String {
    let hex = |count| "[0-9a-f]".repeat(count);
    let pattern = [8, 4, 4, 4, 12].map(hex).join("-");
    format!("typeof({column}) = 'text' AND {column} GLOB '{pattern}'")
}

/// `date()` gives a day back unchanged only if the calendar has it. Years that need a sign
/// are beyond it; their shape has to do.
fn date(column: &str, after: &str) -> String {
    let day = format!("substr({column}, 1, 10)");
    format!(
        "typeof({column}) = 'text' AND (({column} GLOB '{DATE}{after}' AND date({day}) IS {day} \
         AND {column} > '0001') OR {column} GLOB '{FAR_DATE}{after}')"
    )
}

fn timestamp(column: &str, zone: &str) -> String {
    format!(
        "{} AND (substr({column}, 12, 2) < '24' OR {column} GLOB '[+-]*')",
        date(column, &format!("T{TIME}{zone}"))
    )
}

fn decimal(column: &str, scale: Option<u16>) -> String {
    let unsigned = format!("ltrim({column}, '-')");
    let (whole, fraction) = match scale {
        Some(0) => (unsigned, "1".to_owned()),
        Some(scale) => (
            format!("substr({unsigned}, 1, length({unsigned}) - {})", scale + 1),
            format!(
                "substr({column}, -{}, 1) = '.' AND substr({column}, -{scale}) NOT GLOB '*[^0-9]*'",
                scale + 1
            ),
        ),
        None => (
            format!("substr({unsigned}, 1, instr({unsigned} || '.', '.') - 1)"),
            format!(
                "({column} NOT GLOB '*.*' OR ({column} GLOB '*.[0-9]*' AND {column} NOT GLOB \
                 '*.*[^0-9]*'))"
            ),
        ),
    };
    format!(
        "typeof({column}) = 'text' AND (({column} NOT GLOB '--*' AND {fraction} \
         AND {whole} NOT GLOB '*[^0-9]*' AND ({whole} = '0' OR {whole} GLOB '[1-9]*') \
         AND NOT ({column} GLOB '-*' AND {column} NOT GLOB '*[1-9]*')) \
         OR {column} IN ('NaN', 'Infinity', '-Infinity'))"
    )
}
