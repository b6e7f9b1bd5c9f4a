//! SQL with named parameters, as operators write it in a configuration.
//!
//! Owns turning `{s.name}`, `{u.name}` and `{a.name}` (or `{ml s.name}`) into the positional
//! parameters of a database. Knows nothing of values: the adapter binds them in the order of
//! [`Script::parameters`], as text.

use std::fmt;

use tidewater_protocol::message::SubscriptionParameter as OfRemote;

use super::scripts::parameters as script_parameters;
use super::sql::lexing::{SqlLexing, UnterminatedText, name_length};

/// SQL with positional parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The SQL, as the database takes it.
    pub sql: String,
    /// What each positional parameter stands for, in order; every one at most once.
    pub parameters: Vec<ScriptParameter>,
}

/// What a parameter stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptParameter {
    /// One of [`SYSTEM_PARAMETERS`].
    System(&'static str),
    /// What is known of the user under this name; NULL if nothing.
    Claim(String),
    /// What the remote has set under this name; NULL if nothing.
    User(String),
    /// The argument of a call of this name, or what a remote says of itself under this number.
    Argument(String),
    /// A column of an uploaded row as it is to be; of a deleted one as it was.
    New(String),
    /// A column of it as it was.
    Old(String),
    /// What the question mark of this number stands for, from 0: the event says that.
    Mark(usize),
}

/// What stands in SQL where a database has the relation of uploaded rows.
pub const ROWS: &str = "\0rows\0";

/// For what a script is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptPurpose {
    /// For a sync: it names no arguments.
    Sync,
    /// For a call: it names nothing that only syncs have.
    Call,
    /// At an event of a sync, which says what it may name.
    Script,
}

impl ScriptParameter {
    /// The name of what a remote has set, in a sync.
    pub fn of_remote(&self) -> Option<&str> {
        match self {
            ScriptParameter::User(name) | ScriptParameter::Argument(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for ScriptParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptParameter::System(name) => write!(f, "s.{name}"),
            ScriptParameter::Claim(name) => write!(f, "s.claims.{name}"),
            ScriptParameter::User(name) => write!(f, "u.{name}"),
            ScriptParameter::Argument(name) => write!(f, "a.{name}"),
            ScriptParameter::New(name) => write!(f, "r.{name}"),
            ScriptParameter::Old(name) => write!(f, "o.{name}"),
            ScriptParameter::Mark(_) => write!(f, "?"),
        }
    }
}

/// Why SQL with named parameters is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The name in braces means nothing.
    #[error("unknown parameter {{{0}}}")]
    UnknownParameter(String, ScriptPurpose),
    /// The name stands within quotes, where it is only text.
    #[error("{{{0}}} stands within quotes, where it is only text")]
    Quoted(ScriptParameter),
    /// A brace, quote or comment has no end.
    #[error("{0:?} at byte {1} has no end")]
    Unterminated(char, usize),
}

impl From<UnterminatedText> for ScriptError {
    fn from(text: UnterminatedText) -> ScriptError {
        ScriptError::Unterminated(text.opener, text.at)
    }
}

impl ScriptError {
    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            ScriptError::UnknownParameter(_, ScriptPurpose::Call) => {
                "the known ones are {s.username}, {s.remote_id}, {s.claims.NAME} for what is kept \
                 of the user, and {a.NAME} for an argument"
                    .into()
            }
            ScriptError::UnknownParameter(_, ScriptPurpose::Sync) => {
                let known = SYSTEM_PARAMETERS.map(|name| format!("{{s.{name}}}"));
                format!(
                    "the known ones are {}, {{s.claims.NAME}} for what is kept of the user, and \
                     {{u.NAME}} for what a remote sets",
                    known.join(", ")
                )
            }
            ScriptError::UnknownParameter(_, ScriptPurpose::Script) => {
                "there are {s.NAME} as the event has them, {r.COLUMN}, {o.COLUMN}, {u.NAME}, {a.N} and \
                 {rows}"
                    .into()
            }
            ScriptError::Quoted(name) => {
                format!("write {{{name}}} without quotes: it stands for the value as it is")
            }
            ScriptError::Unterminated(..) => "close it, or quote it if it is meant as text".into(),
        }
    }
}

impl Script {
    /// Parses SQL. `render` writes the positional parameter of a number that counts
    /// from 1: `?1`, `$1::text`.
    ///
    /// Names, quotes and comments of the dialect are left alone; but a known name within
    /// quotes is an error, because nobody means it: the query would find nothing.
    ///
    /// # Errors
    /// A name is not known or stands within quotes, or something has no end.
    pub fn parse(
        source: &str,
        lexing: SqlLexing,
        render: impl Fn(usize) -> String,
    ) -> Result<Script, ScriptError> {
        Script::parse_for(ScriptPurpose::Sync, source, lexing, render)
    }

    /// The same for another purpose, which tells the parameters that there are.
    ///
    /// # Errors
    /// As above.
    pub fn parse_for(
        purpose: ScriptPurpose,
        source: &str,
        lexing: SqlLexing,
        render: impl Fn(usize) -> String,
    ) -> Result<Script, ScriptError> {
        let mut script = Script {
            sql: String::with_capacity(source.len()),
            parameters: Vec::new(),
        };
        let (mut at, mut marks) = (0, 0);
        // Whether what stands before is a value: a question mark behind one is an operator.
        let mut is_behind_value = false;
        while let Some(next) = source[at..].chars().next() {
            let rest = &source[at..];
            let length = match next {
                '?' if purpose == ScriptPurpose::Script && !is_behind_value => {
                    let number = script.number_of(ScriptParameter::Mark(marks));
                    script.sql.push_str(&render(number));
                    (marks, is_behind_value) = (marks + 1, true);
                    at += 1;
                    continue;
                }
                '{' => {
                    let end = rest.find('}').ok_or(ScriptError::Unterminated(next, at))?;
                    match rest[1..end].trim() {
                        "rows" if purpose == ScriptPurpose::Script => script.sql.push_str(ROWS),
                        inside => {
                            let number = script.number(inside, purpose)?;
                            script.sql.push_str(&render(number));
                        }
                    }
                    (at, is_behind_value) = (at + end + 1, true);
                    continue;
                }
                _ => match lexing.opaque_length(rest, at)? {
                    Some(length) => {
                        let opaque = &rest[..length];
                        check_quoted(opaque, purpose)?;
                        if !is_comment(opaque) {
                            is_behind_value = !precedes_value(opaque);
                        }
                        length
                    }
                    None => {
                        if !next.is_whitespace() {
                            is_behind_value = next.is_ascii_digit() || matches!(next, ')' | ']');
                        }
                        next.len_utf8()
                    }
                },
            };
            script.sql.push_str(&rest[..length]);
            at += length;
        }
        Ok(script)
    }

    /// The number of the parameter that is named between braces.
    fn number(&mut self, inside: &str, purpose: ScriptPurpose) -> Result<usize, ScriptError> {
        let known = parameter(inside, purpose)
            .ok_or_else(|| ScriptError::UnknownParameter(inside.to_owned(), purpose))?;
        Ok(self.number_of(known))
    }

    /// The number of a parameter, which is added if it has none yet.
    pub fn number_of(&mut self, parameter: ScriptParameter) -> usize {
        let known = self.parameters.iter().position(|seen| *seen == parameter);
        known.map_or_else(
            || {
                self.parameters.push(parameter);
                self.parameters.len()
            },
            |index| index + 1,
        )
    }
}

/// The statements of a text, which are separated by semicolons: those that are more than comments.
///
/// # Errors
/// A quote or comment has no end.
pub fn statements(source: &str, lexing: SqlLexing) -> Result<Vec<&str>, ScriptError> {
    let mut found = Vec::new();
    let (mut begin, mut at, mut is_empty) = (0, 0, true);
    while let Some(next) = source[at..].chars().next() {
        let rest = &source[at..];
        let length = match lexing.opaque_length(rest, at)? {
            Some(length) => {
                is_empty &= is_comment(rest);
                length
            }
            None if next == ';' => {
                if !is_empty {
                    found.push(source[begin..at].trim());
                }
                (begin, is_empty) = (at + 1, true);
                1
            }
            None => {
                is_empty &= next.is_whitespace();
                next.len_utf8()
            }
        };
        at += length;
    }
    if !is_empty {
        found.push(source[begin..].trim());
    }
    Ok(found)
}

/// The word that a statement begins with, in capitals; empty if it begins with none.
pub fn first_word(statement: &str, lexing: SqlLexing) -> String {
    let mut at = 0;
    while let Some(next) = statement[at..].chars().next() {
        let rest = &statement[at..];
        if next.is_whitespace() || next == '(' {
            at += next.len_utf8();
        } else if is_comment(rest) {
            let length = lexing.opaque_length(rest, at).ok().flatten();
            at += length.unwrap_or(rest.len());
        } else {
            return rest[..name_length(rest)].to_ascii_uppercase();
        }
    }
    String::new()
}

/// Whether a word is one of SQL behind which a value stands, and no name.
fn precedes_value(word: &str) -> bool {
    const WORDS: [&str; 29] = [
        "SELECT",
        "DISTINCT",
        "WHERE",
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "ILIKE",
        "BETWEEN",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "SET",
        "VALUES",
        "BY",
        "LIMIT",
        "OFFSET",
        "RETURNING",
        "ON",
        "IS",
        "CALL",
        "FROM",
        "HAVING",
        "USING",
        "ANY",
        "ALL",
        "RETURN",
    ];
    WORDS.iter().any(|it| it.eq_ignore_ascii_case(word))
}

fn is_comment(rest: &str) -> bool {
    rest.starts_with("--") || rest.starts_with("/*")
}

/// The parameter that is named between braces, if it is one.
fn parameter(inside: &str, purpose: ScriptPurpose) -> Option<ScriptParameter> {
    let name = inside.trim();
    let prefixed = name.split_once(char::is_whitespace);
    let prefixed = prefixed.filter(|it| it.0.eq_ignore_ascii_case("ml"));
    let name = prefixed.map_or(name, |it| it.1.trim_start());
    let of_user = name.strip_prefix("u.").or_else(|| name.strip_prefix("ui."));
    if let Some(name) = of_user {
        let is_one = purpose != ScriptPurpose::Call && OfRemote::is_name(name);
        return is_one.then(|| ScriptParameter::User(name.to_owned()));
    }
    if let Some(name) = name.strip_prefix("a.") {
        let is_one = match purpose {
            ScriptPurpose::Sync => false,
            ScriptPurpose::Call => OfRemote::is_name(name),
            ScriptPurpose::Script => name.parse::<u16>().is_ok(),
        };
        return is_one.then(|| ScriptParameter::Argument(name.to_owned()));
    }
    if purpose == ScriptPurpose::Script {
        let column = |name: &str| {
            let bracketed = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            let name = bracketed.unwrap_or_else(|| name.trim_matches('"'));
            (!name.is_empty()).then(|| name.to_owned())
        };
        if let Some(name) = name.strip_prefix("r.") {
            return column(name).map(ScriptParameter::New);
        }
        if let Some(name) = name.strip_prefix("o.") {
            return column(name).map(ScriptParameter::Old);
        }
    }
    let name = name.strip_prefix("s.")?;
    if let Some(name) = name.strip_prefix("claims.") {
        return OfRemote::is_name(name).then(|| ScriptParameter::Claim(name.to_owned()));
    }
    if purpose == ScriptPurpose::Call && name == "publication" {
        return None;
    }
    if purpose == ScriptPurpose::Script {
        // As other products' scripts call them.
        let name = match name {
            "last_table_download" | "last_publication_download" => "last_download",
            "last_publication_upload" => "last_upload",
            "publication_name" => "publication",
            "odbc_state" | "ODBC_state" => "database_code",
            name => name,
        };
        return script_parameters()
            .find(|known| *known == name)
            .map(ScriptParameter::System);
    }
    let known = SYSTEM_PARAMETERS.into_iter().find(|known| *known == name);
    known.map(ScriptParameter::System)
}

/// Refuses quoted text that names a parameter. Comments may say what they like.
fn check_quoted(opaque: &str, purpose: ScriptPurpose) -> Result<(), ScriptError> {
    if is_comment(opaque) {
        return Ok(());
    }
    let braces = opaque.split('{').skip(1);
    let mut named = braces.filter_map(|rest| parameter(rest.split_once('}')?.0, purpose));
    named
        .next()
        .map_or(Ok(()), |name| Err(ScriptError::Quoted(name)))
}

/// The facts of a sync that `{s.name}` parameters can name.
pub const SYSTEM_PARAMETERS: [&str; 3] = ["username", "remote_id", "publication"];

#[cfg(test)]
mod tests {
    use super::*;

    const POSTGRES: SqlLexing = SqlLexing {
        has_escape_strings: true,
        has_dollar_quotes: true,
        nests_comments: true,
        ends_comments_at_returns: true,
        ..SqlLexing::STANDARD
    };

    const SQLITE: SqlLexing = SqlLexing {
        has_backticks: true,
        has_brackets: true,
        ..SqlLexing::STANDARD
    };

    fn parse(source: &str) -> Result<Script, ScriptError> {
        parse_for(POSTGRES, source)
    }

    fn parse_for(lexing: SqlLexing, source: &str) -> Result<Script, ScriptError> {
        Script::parse(source, lexing, |number| format!("${number}"))
    }

    #[test]
    fn a_name_becomes_one_parameter_however_often_it_stands_there() {
        let script = parse("SELECT {s.username}, {ML s.remote_id}, {s.username}").unwrap();
        assert_eq!(script.sql, "SELECT $1, $2, $1");
        assert_eq!(names(&script), ["s.username", "s.remote_id"]);
    }

    fn names(script: &Script) -> Vec<String> {
        script
            .parameters
            .iter()
            .map(ScriptParameter::to_string)
            .collect()
    }

    #[test]
    fn what_a_remote_sets_is_a_parameter_like_others() {
        let script = parse("SELECT {u.month} WHERE {ml u.month} > {s.username}").unwrap();
        assert_eq!(script.sql, "SELECT $1 WHERE $1 > $2");
        assert_eq!(names(&script), ["u.month", "s.username"]);
        assert!(parse("SELECT {u.}").is_err());
        assert!(parse("SELECT {u.a b}").is_err());
        let error = parse("SELECT '{u.month}'").unwrap_err();
        assert_eq!(
            error,
            ScriptError::Quoted(ScriptParameter::User("month".into()))
        );
    }

    #[test]
    fn what_is_known_of_a_user_is_a_parameter_like_others() {
        for purpose in [ScriptPurpose::Sync, ScriptPurpose::Call] {
            let source = "SELECT {s.claims.region}, {ml s.claims.region}, {s.claims.unit}";
            let script = Script::parse_for(purpose, source, POSTGRES, |it| format!("${it}"));
            let script = script.unwrap();
            assert_eq!(script.sql, "SELECT $1, $1, $2");
            assert_eq!(names(&script), ["s.claims.region", "s.claims.unit"]);
        }
        for wrong in [
            "{s.claims}",
            "{s.claims.}",
            "{s.claims.a b}",
            "{s.claims.a.b}",
        ] {
            let error = parse(&format!("SELECT {wrong}")).unwrap_err();
            assert!(error.hint().contains("{s.claims.NAME}"), "{error}");
        }
        let quoted = parse("SELECT '{s.claims.region}'").unwrap_err();
        assert_eq!(
            quoted,
            ScriptError::Quoted(ScriptParameter::Claim("region".into()))
        );
    }

    #[test]
    fn quotes_and_comments_are_left_alone() {
        for opaque in [
            "'{s.x} it''s'",
            "\"{s.x}\"",
            "-- {s.x}\n",
            "/* {s.x} ' */",
            "$q$ {s.x} ' $q$",
            "E'\\' {s.x}'",
        ] {
            let source = format!("SELECT {opaque} , {{s.publication}}");
            let script = parse(&source).unwrap();
            assert_eq!(script.sql, format!("SELECT {opaque} , $1"));
            assert_eq!(names(&script), ["s.publication"]);
        }
    }

    #[track_caller]
    fn assert_replaced(lexing: SqlLexing, source: &str, sql: &str) {
        assert_eq!(
            parse_for(lexing, source).map(|script| script.sql),
            Ok(sql.to_owned())
        );
    }

    #[test]
    fn comments_stand_within_comments_in_postgresql_only() {
        let source = "SELECT 1 /* a /* {s.x} */ ' */ + {s.username}";
        let replaced = "SELECT 1 /* a /* {s.x} */ ' */ + $1";
        assert_replaced(POSTGRES, source, replaced);
        let source = "SELECT 1 /* a /* {s.x} */ + {s.username}";
        let replaced = "SELECT 1 /* a /* {s.x} */ + $1";
        assert_replaced(SQLITE, source, replaced);
        assert_eq!(
            parse_for(POSTGRES, source),
            Err(ScriptError::Unterminated('/', 9))
        );
        assert_replaced(POSTGRES, "/*/**/*/{s.username}", "/*/**/*/$1");
        assert_replaced(SQLITE, "/*/*/{s.username}", "/*/*/$1");
    }

    #[test]
    fn a_dollar_in_a_name_begins_no_quote() {
        for name in ["a$b$", "a$$", "_$x$", "\u{e9}$b$", "e$$"] {
            for lexing in [POSTGRES, SQLITE] {
                let source = format!("SELECT {name} FROM {name} WHERE x = {{s.username}}");
                let replaced = format!("SELECT {name} FROM {name} WHERE x = $1");
                assert_replaced(lexing, &source, &replaced);
            }
        }
        // After a quote another one may begin.
        let source = "SELECT $a$ ' $a$$b$ ' $b$, {s.username}";
        assert_replaced(POSTGRES, source, "SELECT $a$ ' $a$$b$ ' $b$, $1");
        // A name that ends in "e" makes no escapes of what follows.
        let source = "SELECT date'\\', {s.username}";
        assert_replaced(POSTGRES, source, "SELECT date'\\', $1");
    }

    #[test]
    fn each_database_has_quotes_of_its_own() {
        assert_replaced(
            SQLITE,
            "SELECT [it's], `it's`, $a, e'\\', {s.username}",
            "SELECT [it's], `it's`, $a, e'\\', $1",
        );
        assert_replaced(
            POSTGRES,
            "SELECT a[1], '[', b ` 1 -- '\r, {s.username}",
            "SELECT a[1], '[', b ` 1 -- '\r, $1",
        );
        assert_eq!(
            parse_for(SQLITE, "SELECT [{s.username}]"),
            Err(ScriptError::Quoted(ScriptParameter::System("username")))
        );
    }

    #[test]
    fn a_parameter_within_quotes_is_refused_and_within_a_comment_left_alone() {
        for source in [
            "SELECT r FROM t WHERE login = '{s.username}'",
            "SELECT '%' || 'x{ml s.username}%'",
            "SELECT \"{s.username}\"",
            "SELECT $$ { {s.username} $$",
        ] {
            let error = parse(source).unwrap_err();
            assert_eq!(
                error,
                ScriptError::Quoted(ScriptParameter::System("username")),
                "{source}"
            );
            assert!(
                error
                    .hint()
                    .starts_with("write {s.username} without quotes")
            );
        }
        assert!(parse("SELECT 1 -- '{s.username}'").is_ok());
        assert!(parse("SELECT 1 /* '{s.username}' */").is_ok());
    }

    #[test]
    fn unknown_names_are_told_with_the_known_ones() {
        let error = parse("SELECT {s.user}").unwrap_err();
        assert_eq!(
            error,
            ScriptError::UnknownParameter("s.user".into(), ScriptPurpose::Sync)
        );
        assert!(error.hint().contains("{s.username}"));
        assert!(parse("SELECT {username}").is_err());
    }

    #[test]
    fn a_call_names_arguments_and_nothing_that_only_syncs_have() {
        let call = |source| {
            Script::parse_for(ScriptPurpose::Call, source, POSTGRES, |it| format!("${it}"))
        };
        let script = call("SELECT {a.item}, {s.username}, {ml a.item}").unwrap();
        assert_eq!(script.sql, "SELECT $1, $2, $1");
        assert_eq!(names(&script), ["a.item", "s.username"]);
        for source in [
            "SELECT {u.month}",
            "SELECT {s.publication}",
            "SELECT {a.a b}",
        ] {
            let error = call(source).unwrap_err();
            assert!(error.hint().contains("{a.NAME}"), "{source}");
        }
        assert!(parse("SELECT {a.item}").is_err());
        assert!(call("SELECT '{a.item}'").is_err());
        assert!(parse("SELECT '{a.item}'").is_ok());
    }

    #[test]
    fn statements_are_separated_by_semicolons_that_are_not_quoted() {
        let found = statements(" A ';' ; -- none; \n; B /* ; */ (\";\") ", SQLITE);
        assert_eq!(found.unwrap(), ["A ';'", "B /* ; */ (\";\")"]);
        assert_eq!(statements("--x", SQLITE), Ok(vec![]));
        for (statement, word) in [
            (" /* a */ -- b\n select 1", "SELECT"),
            ("((Values (1)))", "VALUES"),
            ("'x'", ""),
            ("", ""),
        ] {
            assert_eq!(first_word(statement, POSTGRES), word);
        }
    }

    fn script_of(source: &str) -> Script {
        let parsed = Script::parse_for(ScriptPurpose::Script, source, POSTGRES, |it| {
            format!("${it}")
        });
        parsed.unwrap()
    }

    #[test]
    fn a_question_mark_is_a_parameter_where_a_value_stands_and_an_operator_behind_one() {
        for (source, sql) in [
            (
                "UPDATE t SET a = ?, b = ? WHERE id = ?",
                "UPDATE t SET a = $1, b = $2 WHERE id = $3",
            ),
            ("CALL p( ?,? )", "CALL p( $1,$2 )"),
            (
                "SELECT ? WHERE x BETWEEN ? AND ? -- why?\n",
                "SELECT $1 WHERE x BETWEEN $2 AND $3 -- why?\n",
            ),
            (
                "SELECT a ? 'k', b ?| c, f(x) ?& d, '{}' ? 'k', '?' FROM t WHERE e = ?",
                "SELECT a ? 'k', b ?| c, f(x) ?& d, '{}' ? 'k', '?' FROM t WHERE e = $1",
            ),
        ] {
            assert_eq!(script_of(source).sql, sql);
        }
        let marks = script_of("VALUES (?, ?)").parameters;
        assert_eq!(marks, [ScriptParameter::Mark(0), ScriptParameter::Mark(1)]);
        assert_eq!(parse("SELECT ?").unwrap().sql, "SELECT ?");
    }

    #[test]
    fn parameters_of_other_servers_have_the_names_that_these_give_them() {
        let script = script_of(
            "SELECT {ml ui.x}, {ml s.last_publication_download}, {ml r.[two words]}, {ml o.\"b\"}",
        );
        assert_eq!(
            names(&script),
            ["u.x", "s.last_download", "r.two words", "o.b"]
        );
    }

    #[test]
    fn what_has_no_end_is_refused() {
        for source in ["SELECT {s.username", "SELECT 'x", "/* x", "$a$ x", "\""] {
            assert!(
                matches!(parse(source), Err(ScriptError::Unterminated(..))),
                "{source}"
            );
        }
        for source in ["[a", "`a", "'a"] {
            let error = parse_for(SQLITE, source).unwrap_err();
            assert!(matches!(error, ScriptError::Unterminated(_, 0)), "{source}");
        }
    }
}
