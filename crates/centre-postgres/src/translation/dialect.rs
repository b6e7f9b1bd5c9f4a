//! How SQLite spells what PostgreSQL spells otherwise.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use tidewater_protocol::Value;

/// Types of which SQLite's name is the same, as PostgreSQL writes them, without what is in brackets.
const TYPES: [(&str, &str); 16] = [
    ("smallint", "INTEGER"),
    ("integer", "INTEGER"),
    ("bigint", "INTEGER"),
    ("real", "REAL"),
    ("double precision", "REAL"),
    ("boolean", "BOOLEAN"),
    ("text", "TEXT"),
    ("character varying", "TEXT"),
    ("character", "TEXT"),
    ("bytea", "BLOB"),
    ("date", "DATE"),
    ("time without time zone", "TIME"),
    ("timestamp without time zone", "TIMESTAMP"),
    ("timestamp with time zone", "TIMESTAMPTZ"),
    ("uuid", "UUID"),
    ("json", "JSON"),
];

/// The names of types that a cast can have, the longest first.
const CASTS: [&str; 8] = [
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
    "character varying",
    "double precision",
    "bit varying",
    "\"char\"",
];

/// The tables that SQL names with their schemas.
#[derive(Clone, Debug, Default)]
pub struct SqlNames(BTreeMap<String, String>);

impl SqlNames {
    pub(super) fn add(&mut self, schema: &str, table: &str) {
        self.0.insert(format!("{schema}.{table}"), table.to_owned());
    }

    /// A table's name as SQLite has it.
    pub fn table<'n>(&'n self, name: &'n str) -> &'n str {
        self.0.get(name).map_or(name, String::as_str)
    }

    /// SQL as SQLite may understand it: without schemas, casts and `now()`.
    pub fn sql(&self, sql: &str) -> String {
        let mut text = without_casts(sql);
        for (name, table) in &self.0 {
            text = replaced(&text, name, table);
        }
        replaced(&text, "now()", "CURRENT_TIMESTAMP")
    }
}

/// A text with words in place of others, outside of quotes.
fn replaced(text: &str, word: &str, by: &str) -> String {
    let is_of_word = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.' | '"');
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(next) = rest.chars().next() {
        let is_begun = out.chars().next_back().is_some_and(is_of_word);
        let behind = rest.get(word.len()..).unwrap_or_default();
        let is_whole = !behind.starts_with(|it: char| it.is_alphanumeric() || it == '_');
        let is_it = rest
            .get(..word.len())
            .is_some_and(|it| it.eq_ignore_ascii_case(word));
        if !quoted && !is_begun && is_it && is_whole {
            out.push_str(by);
            rest = behind;
            continue;
        }
        quoted ^= next == '\'';
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}

/// SQL without casts (`::type`), with lists in place of arrays.
pub fn without_casts(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let (mut rest, mut quoted) = (sql, false);
    while let Some(next) = rest.chars().next() {
        if !quoted && let Some(behind) = rest.strip_prefix("::") {
            rest = behind_type(behind);
            continue;
        }
        quoted ^= next == '\'';
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    for (begin, end) in [("= ANY ((ARRAY[", "]))"), ("= ANY (ARRAY[", "])")] {
        while let Some((before, after)) = out.split_once(begin) {
            let Some((list, behind)) = after.split_once(end) else {
                break;
            };
            out = format!("{before}IN ({list}){behind}");
        }
    }
    out
}

/// What is behind the name of a type.
fn behind_type(text: &str) -> &str {
    let long = CASTS.iter().find_map(|it| text.strip_prefix(it));
    let is_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.');
    let mut rest = long.unwrap_or_else(|| text.trim_start_matches(is_name));
    if let Some((_, behind)) = rest.strip_prefix('(').and_then(|it| it.split_once(')')) {
        rest = behind;
    }
    while let Some(behind) = rest.strip_prefix("[]") {
        rest = behind;
    }
    rest
}

fn base(declared: &str) -> String {
    match declared.split_once('(') {
        None => declared.to_owned(),
        Some((before, after)) => {
            let behind = after.split_once(')').map_or("", |it| it.1);
            format!("{}{behind}", before.trim_end())
        }
    }
}

/// How a type is declared; `None` if SQLite has none like it.
pub(super) fn declared(declared: &str) -> Option<&str> {
    let base = base(declared);
    if base == "numeric" {
        return Some(declared);
    }
    if base == "jsonb" {
        return Some("JSON");
    }
    TYPES.iter().find(|it| it.0 == base).map(|it| it.1)
}

/// The longest that a text may be.
pub(super) fn length(declared: &str) -> Option<u32> {
    let rest = declared.strip_prefix("character")?;
    let (_, rest) = rest.split_once('(')?;
    rest.strip_suffix(')')?.parse().ok()
}

/// A default that SQLite has, too.
pub(super) fn default(default: &str) -> Option<String> {
    let text = without_casts(default);
    let text = text.trim();
    let is_text = text.len() > 1 && text.starts_with('\'') && text.ends_with('\'');
    let is_number = text.trim_matches(['(', ')']).parse::<f64>().is_ok();
    match text.to_ascii_lowercase().as_str() {
        "true" => Some("1".into()),
        "false" => Some("0".into()),
        "null" => Some("NULL".into()),
        "now()"
        | "current_timestamp"
        | "statement_timestamp()"
        | "transaction_timestamp()"
        | "clock_timestamp()" => Some("CURRENT_TIMESTAMP".into()),
        "current_date" => Some("CURRENT_DATE".into()),
        _ if is_text || is_number => Some(text.to_owned()),
        _ => None,
    }
}

/// How SQLite declares a reference.
pub(super) fn reference(constraint: &Row, columns: &str, target: &str) -> String {
    let to: Vec<String> = constraint.get::<_, Option<_>>(5).unwrap_or_default();
    let action = |of: usize| match constraint.get::<_, String>(of).as_str() {
        "c" => "CASCADE",
        "n" => "SET NULL",
        "d" => "SET DEFAULT",
        "r" => "RESTRICT",
        _ => "NO ACTION",
    };
    let deferred = match constraint.get(8) {
        true => " DEFERRABLE INITIALLY DEFERRED",
        false => "",
    };
    format!(
        "FOREIGN KEY ({columns}) REFERENCES {target} ({}) ON DELETE {} ON UPDATE {}{deferred}",
        super::listed(&to),
        action(6),
        action(7),
    )
}

/// How a column is read so that it comes as SQLite's own functions write it.
pub(super) fn read(declared: &str, name: &str) -> String {
    match base(declared).as_str() {
        "smallint" | "integer" | "bigint" => format!("{name}::int8"),
        "boolean" => format!("{name}::int4::int8"),
        "real" | "double precision" => format!("{name}::float8"),
        "bytea" => name.to_owned(),
        "timestamp without time zone" => format!("to_char({name}, 'YYYY-MM-DD HH24:MI:SS.US')"),
        "timestamp with time zone" => {
            format!("to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')")
        }
        "time without time zone" => format!("to_char({name}, 'HH24:MI:SS.US')"),
        _ => format!("{name}::text"),
    }
}

/// A value that was read so.
pub(super) fn value(row: &Row, at: usize) -> Result<Value, tokio_postgres::Error> {
    let column_type = row.columns()[at].type_();
    let value = match *column_type {
        Type::INT8 => row.try_get::<_, Option<i64>>(at)?.map(Value::Integer),
        Type::FLOAT8 => row.try_get::<_, Option<f64>>(at)?.map(Value::Real),
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at)?.map(Value::Blob),
        _ => row.try_get::<_, Option<String>>(at)?.map(Value::Text),
    };
    Ok(value.unwrap_or(Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_and_arrays_are_spelled_as_sqlite_does() {
        for (sql, expected) in [
            ("(stock >= 0)", "(stock >= 0)"),
            ("(name)::text <> ''::text", "(name) <> ''"),
            ("x::character varying(5) || '::int'", "x || '::int'"),
            (
                "((status)::text = ANY ((ARRAY['a'::character varying, 'b'::text])::text[]))",
                "((status) IN ('a', 'b'))",
            ),
        ] {
            assert_eq!(without_casts(sql), expected);
        }
    }

    #[test]
    fn schemas_go_from_names_and_not_from_texts() {
        let mut names = SqlNames::default();
        names.add("public", "customer");
        assert_eq!(
            names.sql("SELECT 'public.customer', now() FROM public.customer c"),
            "SELECT 'public.customer', CURRENT_TIMESTAMP FROM customer c"
        );
        assert_eq!(names.sql("public.customers"), "public.customers");
        assert_eq!(names.table("public.customer"), "customer");
    }

    #[test]
    fn defaults_that_sqlite_has_are_kept() {
        assert_eq!(default("'x'::text").as_deref(), Some("'x'"));
        assert_eq!(default("0.5").as_deref(), Some("0.5"));
        assert_eq!(default("now()").as_deref(), Some("CURRENT_TIMESTAMP"));
        assert_eq!(default("gen_random_uuid()"), None);
    }
}
