//! A column, as SQL needs it.

use tidewater_protocol::{ColumnType, Datum};

use crate::values::{PostgresType, decimal_is_exact, shortest};
use tidewater_centre::engine::sql::column::SqlColumn;

/// A column, as SQL needs it.
#[derive(Clone, Debug)]
pub(super) struct PgColumn {
    /// Its name in SQL.
    pub(super) sql: String,
    pub(super) name: String,
    pub(super) kind: PostgresType,
    /// The declared type, a domain perhaps.
    pub(super) type_oid: u32,
    /// As people write it.
    pub(super) type_name: String,
    /// The type (below all domains) without its modifiers, for casts and logs.
    pub(super) cast_name: String,
    /// The scale of a numeric column.
    pub(super) scale: Option<u16>,
    /// The most characters that a varchar takes, the digits of a second that a time keeps.
    pub(super) limit: Option<i32>,
    /// The collation's name, quoted, where the type has one.
    pub(super) collation: Option<String>,
    /// GENERATED ALWAYS AS (expression): nobody writes it.
    pub(super) generated: bool,
    /// GENERATED ALWAYS AS IDENTITY: an update cannot write it.
    pub(super) identity_always: bool,
    /// The expression of its default.
    pub(super) default: Option<String>,
}

impl SqlColumn for PgColumn {
    type Kind = PostgresType;

    fn kind(&self) -> PostgresType {
        self.kind
    }

    fn column_type(&self) -> ColumnType {
        self.kind.column_type(self.scale)
    }

    fn input(&self, value: &str) -> String {
        match self.kind {
            PostgresType::Other => format!("{value}::{}", self.cast_name),
            PostgresType::Bpchar => format!("{value}::bpchar"),
            _ => value.to_owned(),
        }
    }

    fn compares_loosely(&self) -> bool {
        self.collation.is_some()
    }

    fn same(&self, column: &str, value: &str) -> String {
        match self.kind {
            PostgresType::Text => format!("{column} COLLATE \"C\" IS NOT DISTINCT FROM {value}"),
            PostgresType::Bpchar => {
                format!("{column} COLLATE \"C\" IS NOT DISTINCT FROM {value}::bpchar")
            }
            PostgresType::Json => format!("{column}::text IS NOT DISTINCT FROM {value}::text"),
            PostgresType::Other => {
                format!("{column}::text COLLATE \"C\" IS NOT DISTINCT FROM {value}")
            }
            _ => format!("{column} IS NOT DISTINCT FROM {value}"),
        }
    }

    /// Rounded. Other than a cast to the column's type this never fails.
    fn kept(&self, value: &str) -> String {
        let digits = self.limit.filter(|digits| *digits < 6);
        match (self.kind, self.scale, digits) {
            (PostgresType::Numeric, Some(scale), _) => {
                format!("pg_catalog.round({value}, {scale})")
            }
            (PostgresType::Time, _, Some(digits)) => format!("{value}::time({digits})"),
            (PostgresType::Timestamp, _, Some(digits)) => format!("{value}::timestamp({digits})"),
            (PostgresType::TimestampTz, _, Some(digits)) => {
                format!("{value}::timestamptz({digits})")
            }
            _ => value.to_owned(),
        }
    }

    /// A partition's value as the column takes it, NULL if it takes it no more: a remote may hold
    /// one of an enumeration that has been renamed since.
    fn held(&self, value: &str) -> String {
        let input = self.input(value);
        if self.kind != PostgresType::Other {
            return input;
        }
        let labels = format!(
            "SELECT FROM pg_catalog.pg_enum e \
             WHERE e.enumtypid = pg_catalog.pg_typeof(NULL::{})",
            self.cast_name
        );
        format!(
            "CASE WHEN NOT EXISTS ({labels}) OR EXISTS ({labels} AND e.enumlabel = {value}) \
             THEN {input} END"
        )
    }

    /// Of the column's own type, in the order of its index.
    fn equals_logged(&self, column: &str, value: &str) -> String {
        match &self.collation {
            Some(collation) => format!("{column} = {value} COLLATE {collation}"),
            None => format!("{column} = {value}"),
        }
    }

    fn logged_output(&self, value: &str) -> String {
        match self.kind {
            PostgresType::Other => format!("{value}::text"),
            _ => value.to_owned(),
        }
    }

    fn misfit(&self, is_key: bool, value: &Datum<'_>, room: &mut Vec<u8>) -> Option<String> {
        obstacle(self, is_key, value).or_else(|| {
            let fits = self.kind.encode(value, room).is_ok();
            (!fits).then(|| unfit(self, value))
        })
    }

    fn keeps(&self, value: &Datum<'_>) -> bool {
        is_exact(self, value)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn sql_name(&self) -> &str {
        &self.sql
    }

    fn default_sql(&self) -> Option<&str> {
        self.default.as_deref()
    }

    fn is_generated(&self) -> bool {
        self.generated
    }

    fn is_settable(&self) -> bool {
        !self.identity_always
    }

    fn cast_value(&self, value: &str) -> Option<String> {
        // A numeric's scale decides how it is spelled; a varchar's limit must not cut
        // a longer value down to another partition's.
        let cast = match self.kind {
            PostgresType::Numeric
            | PostgresType::Time
            | PostgresType::Timestamp
            | PostgresType::TimestampTz => &self.type_name,
            _ => &self.cast_name,
        };
        Some(match self.kind {
            PostgresType::Other => format!("{value}::{cast}::text"),
            _ => format!("{value}::{cast}"),
        })
    }

    fn typed_parameter(&self, parameter: &str) -> Option<String> {
        Some(format!("({parameter}::{})", self.cast_name))
    }

    fn parameter_type(&self) -> &str {
        self.kind.parameter().1
    }

    /// In binary form: of the type as which it is decoded, even if its owner has given it another
    /// one meanwhile.
    fn output(&self, prefix: &str) -> String {
        let (_, decoded) = self.kind.parameter();
        format!("{prefix}{}::{decoded}", self.sql)
    }
}

impl PgColumn {
    /// The column as it is compared with a partition's value: of exotic types the
    /// text, because that is what partitions are told apart by.
    pub(super) fn compared(&self, prefix: &str) -> String {
        match self.kind {
            PostgresType::Other => format!("{prefix}{}::text COLLATE \"C\"", self.sql),
            _ => format!("{prefix}{}", self.sql),
        }
    }

    /// The type of what [`Self::compared`] is compared with.
    pub(super) fn cast_for_comparison(&self) -> &str {
        match self.kind {
            PostgresType::Other => "text",
            _ => &self.cast_name,
        }
    }
}

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
fn unfit(column: &PgColumn, value: &Datum<'_>) -> String {
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
