//! Defaults of the centre as remotes can have them.
//!
//! A constant becomes a literal in the type's canonical form. Of expressions, those that say when
//! a row is made or give it a UUID have a counterpart in SQLite's built-in functions. Anything
//! else stays in the centre.

use tidewater_protocol::{ColumnType, Fit, ValueRef};

/// A random UUID, version 4, as SQLite computes it.
const RANDOM_UUID: &str = "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' \
     || substr(hex(randomblob(2)), 2) || '-' || substr('89AB', 1 + (random() & 3), 1) \
     || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))";

/// The milliseconds since 1970 in twelve hexadecimal digits.
const MILLISECONDS: &str =
    "printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))";

/// What gives a UUID that nobody has had.
const UUIDS: [&str; 5] = [
    "gen_random_uuid()",
    "uuid_generate_v4()",
    "uuid_generate_v1()",
    "uuid_generate_v1mc()",
    "uuidv4()",
];

/// What says when something is.
const MOMENTS: [&str; 12] = [
    "now()",
    "current_timestamp",
    "transaction_timestamp()",
    "statement_timestamp()",
    "clock_timestamp()",
    "localtimestamp",
    "timezone('utc'::text, now())",
    "now() at time zone 'utc'",
    "timezone('utc'::text, current_timestamp)",
    "current_timestamp at time zone 'utc'",
    "datetime('now')",
    "strftime('%y-%m-%d %h:%m:%f', 'now')",
];

/// The default for remotes of a default of the centre, if they can compute it: a literal, or an
/// expression in parentheses.
pub fn default_of(expression: &str, column_type: ColumnType) -> Option<String> {
    let literal = literal_of(expression, column_type);
    literal.or_else(|| Some(format!("({})", computed(expression, column_type)?)))
}

/// The same for a default that SQLite computes in the centre, too: what is made of SQLite's own
/// functions stays as it is. In another database the words may mean something else: `random()` of
/// PostgreSQL is between 0 and 1, and its `CURRENT_TIMESTAMP` names a zone.
pub fn default_of_sqlite(expression: &str, column_type: ColumnType) -> Option<String> {
    use ColumnType::{Bytes, Integer, Text, Uuid};
    default_of(expression, column_type).or_else(|| {
        let bare = bare(expression);
        let stays = matches!(column_type, Text | Integer | Uuid | Bytes) && is_of_sqlite(bare);
        stays.then(|| format!("({bare})"))
    })
}

/// Whether a default is NULL, as it is without one.
pub fn is_null(expression: &str) -> bool {
    bare(expression).eq_ignore_ascii_case("null")
}

fn computed(expression: &str, column_type: ColumnType) -> Option<String> {
    let bare = bare(expression);
    let lower = bare.to_ascii_lowercase();
    let function = match lower.rsplit_once('.') {
        Some((schema, function)) if is_name(schema) => function,
        _ => &lower,
    };
    match column_type {
        ColumnType::Uuid | ColumnType::Text if UUIDS.contains(&function) => {
            Some(RANDOM_UUID.to_owned())
        }
        ColumnType::Uuid | ColumnType::Text if function == "uuidv7()" => Some(format!(
            "lower(substr({MILLISECONDS}, 1, 8) || '-' || substr({MILLISECONDS}, 9) || '-7' \
             || substr(hex(randomblob(2)), 2) || '-' || substr('89AB', 1 + (random() & 3), 1) \
             || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"
        )),
        ColumnType::TimestampTz if is_moment(&lower) => {
            Some("strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')".into())
        }
        ColumnType::Timestamp if is_moment(&lower) => {
            Some("strftime('%Y-%m-%dT%H:%M:%f000', 'now')".into())
        }
        ColumnType::Date
            if is_moment(&lower) || ["current_date", "date('now')"].contains(&&*lower) =>
        {
            Some("date('now')".into())
        }
        ColumnType::Time
            if ["current_time", "localtime", "time('now')"]
                .contains(&without_precision(&lower)) =>
        {
            Some("strftime('%H:%M:%f000', 'now')".into())
        }
        ColumnType::Integer if ["unixepoch()", "unixepoch('now')"].contains(&&*lower) => {
            Some("CAST(strftime('%s', 'now') AS INTEGER)".into())
        }
        _ => None,
    }
}

fn is_name(text: &str) -> bool {
    let of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    !text.is_empty() && text.chars().all(of_name)
}

fn is_moment(lower: &str) -> bool {
    MOMENTS.contains(&lower) || MOMENTS.contains(&without_precision(lower))
}

/// `current_timestamp` of `current_timestamp(3)`.
fn without_precision(lower: &str) -> &str {
    let parts = lower.strip_suffix(')').and_then(|it| it.split_once('('));
    match parts {
        Some((name, digits)) if digits.len() == 1 && digits.as_bytes()[0].is_ascii_digit() => name,
        _ => lower,
    }
}

/// Without the parentheses around it, and without casts behind it.
fn bare(expression: &str) -> &str {
    let mut bare = expression.trim();
    loop {
        let before = bare;
        if let Some(inner) = bare.strip_prefix('(').and_then(|it| it.strip_suffix(')'))
            && is_balanced(inner)
        {
            bare = inner.trim();
        }
        if let Some((cast, of)) = bare.rsplit_once("::").map(|(of, cast)| (cast, of))
            && cast
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || " _()".contains(it))
            && is_balanced(cast)
            && is_balanced(of)
        {
            bare = of.trim();
        }
        if bare == before {
            return bare;
        }
    }
}

/// Whether each parenthesis outside of quotes has its other one, in this order.
fn is_balanced(text: &str) -> bool {
    let (mut depth, mut quoted) = (0_i32, false);
    for character in text.chars() {
        match character {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0 && !quoted
}

/// What an expression that is taken over as it is may be made of: functions that SQLite has had
/// for long, and that know no tables.
const WORDS: [&str; 21] = [
    "abs",
    "as",
    "cast",
    "char",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "hex",
    "integer",
    "julianday",
    "lower",
    "printf",
    "random",
    "randomblob",
    "replace",
    "strftime",
    "substr",
    "text",
    "upper",
];

/// Whether an expression is one of a few functions of SQLite's, of constants and operators.
fn is_of_sqlite(expression: &str) -> bool {
    let mut rest = expression;
    let mut calls = false;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '\'' => match rest[1..].find('\'') {
                Some(end) => end + 2,
                None => return false,
            },
            _ if first.is_ascii_alphabetic() || first == '_' => {
                let of_word = |it: char| !(it.is_ascii_alphanumeric() || it == '_');
                let end = rest.find(of_word).unwrap_or(rest.len());
                if !WORDS.contains(&&*rest[..end].to_ascii_lowercase()) {
                    return false;
                }
                calls = true;
                end
            }
            _ if first.is_ascii_digit() || first.is_ascii_whitespace() => 1,
            _ if "(),.|+-*/%&".contains(first) => 1,
            _ => return false,
        };
        rest = &rest[end..];
    }
    calls && is_balanced(expression) && !expression.contains("--") && !expression.contains("/*")
}

/// The literal for remotes of a default that is a constant: `'new'::text`, `0`,
/// `'-1'::integer`, `true`. Anything else is an expression, which remotes cannot run.
fn literal_of(expression: &str, column_type: ColumnType) -> Option<String> {
    let expression = expression.trim();
    let (value, rest) = match expression.strip_prefix('\'') {
        Some(quoted) => {
            let mut value = String::new();
            let mut characters = quoted.char_indices();
            loop {
                match characters.next()? {
                    (at, '\'') if !quoted[at + 1..].starts_with('\'') => {
                        break (value, &quoted[at + 1..]);
                    }
                    (_, '\'') => {
                        characters.next();
                        value.push('\'');
                    }
                    (_, other) => value.push(other),
                }
            }
        }
        None => {
            let end = expression.find("::").unwrap_or(expression.len());
            let word = expression[..end].trim_matches(|it| matches!(it, '(' | ')'));
            let letter = |it: char| it.is_alphabetic() && !matches!(it, 'e' | 'E');
            let is_number = word.parse::<f64>().is_ok() && !word.contains(letter);
            let is_flag = ["true", "false"]
                .iter()
                .any(|it| word.eq_ignore_ascii_case(it));
            let fits = match column_type {
                ColumnType::Boolean => is_number || is_flag,
                ColumnType::Integer | ColumnType::Real | ColumnType::Decimal { .. } => is_number,
                // A number that is text has the database's spelling of numbers.
                _ => word.parse::<i64>().is_ok_and(|it| it.to_string() == word),
            };
            fits.then(|| (word.to_owned(), &expression[end..]))?
        }
    };
    let is_cast = |character: char| {
        character.is_alphanumeric() || matches!(character, ' ' | '_' | '"' | '(' | ')' | ',')
    };
    if !rest.split("::").all(|cast| cast.chars().all(is_cast)) {
        return None;
    }
    let stored = match (column_type, value.parse::<i64>(), value.parse::<f64>()) {
        (ColumnType::Integer, Ok(integer), _) => return Some(integer.to_string()),
        (ColumnType::Real, _, Ok(real)) if real.is_finite() => return Some(format!("{real:?}")),
        (ColumnType::Integer | ColumnType::Real | ColumnType::Bytes, _, _) => return None,
        _ => column_type.datum(ValueRef::Text(&value)),
    };
    match (stored.1, stored.0.to_value().as_ref()) {
        (Fit::Unfit, _) => None,
        (_, ValueRef::Integer(integer)) => Some(integer.to_string()),
        (_, ValueRef::Text(text)) if !text.contains('\0') => {
            Some(format!("'{}'", text.replace('\'', "''")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_that_remotes_can_compute_are_computed_there() {
        let is = |expression: &str, column_type, begin: &str| {
            let default = default_of_sqlite(expression, column_type).unwrap_or_default();
            assert!(
                !begin.is_empty() && default.starts_with(begin) || default == begin,
                "{expression}: {default}"
            );
        };
        let (text, moment) = (
            ColumnType::Text,
            "(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))",
        );
        is("gen_random_uuid()", ColumnType::Uuid, "(lower(hex(");
        is(
            "extensions.uuid_generate_v4()",
            ColumnType::Uuid,
            "(lower(hex(",
        );
        is("(gen_random_uuid())::text", text, "(lower(hex(");
        is("uuidv7()", ColumnType::Uuid, "(lower(substr(printf(");
        for now in [
            "now()",
            "CURRENT_TIMESTAMP",
            "CURRENT_TIMESTAMP(3)",
            "clock_timestamp()",
        ] {
            is(now, ColumnType::TimestampTz, moment);
        }
        is("('now'::text)::date", ColumnType::Date, "");
        is("(now())::date", ColumnType::Date, "(date('now'))");
        is("CURRENT_DATE", ColumnType::Date, "(date('now'))");
        let moment = "(strftime('%Y-%m-%dT%H:%M:%f000', 'now'))";
        is(
            "timezone('utc'::text, now())",
            ColumnType::Timestamp,
            moment,
        );
        is(
            "(now() AT TIME ZONE 'utc'::text)",
            ColumnType::Timestamp,
            moment,
        );
        is("datetime('now')", ColumnType::Timestamp, moment);
        is("datetime('now')", text, "(datetime('now'))");
        is(
            "(lower(hex(randomblob(16))))",
            text,
            "(lower(hex(randomblob(16))))",
        );
        is("unixepoch()", ColumnType::Integer, "(CAST(strftime(");
        for unknown in [
            "nextval('s'::regclass)",
            "upper(name)",
            "x'00'",
            "(SELECT 1)",
            "f()",
        ] {
            is(unknown, ColumnType::Integer, "");
            is(unknown, text, "");
        }
        is("now()", text, "");
        is("lower('a') -- b", text, "");
        is("lower('a'); DROP TABLE t", text, "");
    }

    #[test]
    fn words_that_mean_something_else_in_another_database_stay_there() {
        for (expression, column_type) in [
            ("random()", ColumnType::Integer),
            ("random()", ColumnType::Text),
            ("CURRENT_DATE", ColumnType::Text),
            ("(CURRENT_DATE)::text", ColumnType::Text),
            ("(CURRENT_TIMESTAMP)::text", ColumnType::Text),
            ("(now())::text", ColumnType::Text),
            ("replace('a'::text, ''::text, 'b'::text)", ColumnType::Text),
        ] {
            assert_eq!(default_of(expression, column_type), None, "{expression}");
        }
        for (expression, column_type) in [
            ("random()", ColumnType::Integer),
            ("CURRENT_DATE", ColumnType::Text),
            ("CURRENT_TIMESTAMP", ColumnType::Text),
        ] {
            let travels = default_of_sqlite(expression, column_type);
            assert_eq!(travels, Some(format!("({expression})")));
        }
        assert!(is_null("NULL::character varying") && is_null("null") && !is_null("'null'"));
        let day = default_of("CURRENT_DATE", ColumnType::Date);
        assert_eq!(day.as_deref(), Some("(date('now'))"));
    }

    #[test]
    fn defaults_that_are_constants_become_literals() {
        let decimal = ColumnType::Decimal { scale: Some(2) };
        for (expression, column_type, literal) in [
            ("0", ColumnType::Integer, Some("0")),
            ("'-1'::integer", ColumnType::Integer, Some("-1")),
            ("(-1)", ColumnType::Integer, Some("-1")),
            ("1.5", decimal, Some("'1.50'")),
            ("true", ColumnType::Boolean, Some("1")),
            ("'it''s'::text", ColumnType::Text, Some("'it''s'")),
            ("'a'::character varying(3)", ColumnType::Text, Some("'a'")),
            ("'2026-01-02'::date", ColumnType::Date, Some("'2026-01-02'")),
            ("now()", ColumnType::TimestampTz, None),
            ("nextval('s'::regclass)", ColumnType::Integer, None),
            ("('a'::text || 'b'::text)", ColumnType::Text, None),
            ("'a'::text || 'b'::text", ColumnType::Text, None),
            ("NULL::integer", ColumnType::Integer, None),
            ("'nan'::real", ColumnType::Real, None),
            ("TRUE", ColumnType::Boolean, Some("1")),
            ("1e3", ColumnType::Real, Some("1000.0")),
            ("7", ColumnType::Text, Some("'7'")),
            ("7.50", ColumnType::Text, None),
            ("'a' || 'b'", ColumnType::Text, None),
        ] {
            assert_eq!(
                literal_of(expression, column_type).as_deref(),
                literal,
                "{expression}"
            );
        }
    }
}
