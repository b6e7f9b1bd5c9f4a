//! A column, as SQL needs it.

use tidewater_protocol::{ColumnType, Datum};

use crate::rows::fitness::{is_exact, obstacle, unfit};
use crate::values::PostgresType;
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
