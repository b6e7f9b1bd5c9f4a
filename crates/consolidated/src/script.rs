//! SQL with named parameters, as operators write it in a configuration.
//!
//! Owns turning `{s.name}` (or `{ml s.name}`) into the positional parameters of a
//! database. Knows nothing of values: the adapter binds them in the order of
//! [`Script::parameters`], as text.

use crate::publication::SYSTEM_PARAMETERS;

/// SQL with positional parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The SQL, as the database takes it.
    pub sql: String,
    /// Which of [`SYSTEM_PARAMETERS`] each positional parameter stands for, in order;
    /// every name at most once.
    pub parameters: Vec<&'static str>,
}

/// Why SQL with named parameters is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The name in braces means nothing.
    #[error("unknown parameter {{{0}}}")]
    UnknownParameter(String),
    /// The name stands within quotes, where it is only text.
    #[error("{{s.{0}}} stands within quotes, where it is only text")]
    Quoted(&'static str),
    /// A brace, quote or comment has no end.
    #[error("{0:?} at byte {1} has no end")]
    Unterminated(char, usize),
}

impl ScriptError {
    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            ScriptError::UnknownParameter(_) => {
                let known = SYSTEM_PARAMETERS.map(|name| format!("{{s.{name}}}"));
                format!("the known ones are {}", known.join(", "))
            }
            ScriptError::Quoted(name) => {
                format!("write {{s.{name}}} without quotes: it stands for the value as it is")
            }
            ScriptError::Unterminated(..) => "close it, or quote it if it is meant as text".into(),
        }
    }
}

impl Script {
    /// Parses SQL. `render` writes the positional parameter of a number that counts
    /// from 1: `?1`, `$1::text`.
    ///
    /// Text in quotes, dollar quotes and comments is left alone; but a known name within
    /// quotes is an error, because nobody means it: the query would find nothing.
    ///
    /// # Errors
    /// A name is not known or stands within quotes, or something has no end.
    pub fn parse(source: &str, render: impl Fn(usize) -> String) -> Result<Script, ScriptError> {
        let mut script = Script {
            sql: String::with_capacity(source.len()),
            parameters: Vec::new(),
        };
        let mut at = 0;
        while let Some(next) = source[at..].chars().next() {
            let rest = &source[at..];
            let length = match next {
                '{' => {
                    let end = rest.find('}').ok_or(ScriptError::Unterminated(next, at))?;
                    let number = script.number(&rest[1..end])?;
                    script.sql.push_str(&render(number));
                    at += end + 1;
                    continue;
                }
                _ => match opaque_length(source, at)? {
                    Some(length) => {
                        check_quoted(&rest[..length])?;
                        length
                    }
                    None => next.len_utf8(),
                },
            };
            script.sql.push_str(&rest[..length]);
            at += length;
        }
        Ok(script)
    }

    /// The number of the parameter that is named between braces.
    fn number(&mut self, inside: &str) -> Result<usize, ScriptError> {
        let known =
            parameter(inside).ok_or_else(|| ScriptError::UnknownParameter(inside.to_owned()))?;
        if let Some(index) = self.parameters.iter().position(|seen| *seen == known) {
            return Ok(index + 1);
        }
        self.parameters.push(known);
        Ok(self.parameters.len())
    }
}

/// The parameter that is named between braces, if it is one.
fn parameter(inside: &str) -> Option<&'static str> {
    let name = inside.trim();
    let name = name.strip_prefix("ml ").map_or(name, str::trim_start);
    let name = name.strip_prefix("s.")?;
    SYSTEM_PARAMETERS.into_iter().find(|known| *known == name)
}

/// Refuses quoted text that names a parameter. Comments may say what they like.
fn check_quoted(opaque: &str) -> Result<(), ScriptError> {
    if opaque.starts_with("--") || opaque.starts_with("/*") {
        return Ok(());
    }
    let braces = opaque.split('{').skip(1);
    let mut named = braces.filter_map(|rest| parameter(rest.split_once('}')?.0));
    named
        .next()
        .map_or(Ok(()), |name| Err(ScriptError::Quoted(name)))
}

/// The length of the quoted text or comment that begins at `at`; `None` if none does.
fn opaque_length(source: &str, at: usize) -> Result<Option<usize>, ScriptError> {
    let rest = &source[at..];
    let bytes = rest.as_bytes();
    let unterminated = |what| ScriptError::Unterminated(what, at);
    match bytes[0] {
        quote @ (b'\'' | b'"' | b'`') => {
            let escapes = quote == b'\'' && is_escape_string(&source.as_bytes()[..at]);
            let mut index = 1;
            while index < bytes.len() {
                if escapes && bytes[index] == b'\\' {
                    index += 2;
                } else if bytes[index] != quote {
                    index += 1;
                } else if bytes.get(index + 1) == Some(&quote) {
                    index += 2;
                } else {
                    return Ok(Some(index + 1));
                }
            }
            Err(unterminated(quote as char))
        }
        b'-' if rest.starts_with("--") => Ok(Some(rest.find('\n').unwrap_or(rest.len()))),
        b'/' if rest.starts_with("/*") => {
            let end = rest[2..].find("*/").ok_or_else(|| unterminated('/'))?;
            Ok(Some(end + 4))
        }
        b'$' => {
            let Some(end) = rest[1..].find('$') else {
                return Ok(None);
            };
            let tag = &rest[..end + 2];
            let inner = &tag[1..tag.len() - 1];
            let is_tag = !inner.starts_with(|first: char| first.is_ascii_digit())
                && inner
                    .chars()
                    .all(|each| each.is_alphanumeric() || each == '_');
            if !is_tag {
                return Ok(None);
            }
            let body = rest[tag.len()..]
                .find(tag)
                .ok_or_else(|| unterminated('$'))?;
            Ok(Some(body + 2 * tag.len()))
        }
        _ => Ok(None),
    }
}

/// Whether the quote after `before` begins a string with backslash escapes (`E'...'`).
fn is_escape_string(before: &[u8]) -> bool {
    match before {
        [.., word, b'e' | b'E'] => !word.is_ascii_alphanumeric() && *word != b'_',
        [b'e' | b'E'] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(source: &str) -> Result<Script, ScriptError> {
        Script::parse(source, |number| format!("${number}"))
    }

    #[test]
    fn a_name_becomes_one_parameter_however_often_it_stands_there() {
        let script = parse("SELECT {s.username}, {ml s.remote_id}, {s.username}").unwrap();
        assert_eq!(script.sql, "SELECT $1, $2, $1");
        assert_eq!(script.parameters, ["username", "remote_id"]);
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
            assert_eq!(script.parameters, ["publication"]);
        }
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
            assert_eq!(error, ScriptError::Quoted("username"), "{source}");
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
        assert_eq!(error, ScriptError::UnknownParameter("s.user".into()));
        assert!(error.hint().contains("{s.username}"));
        assert!(parse("SELECT {username}").is_err());
    }

    #[test]
    fn what_has_no_end_is_refused() {
        for source in ["SELECT {s.username", "SELECT 'x", "/* x", "$a$ x", "\""] {
            assert!(
                matches!(parse(source), Err(ScriptError::Unterminated(..))),
                "{source}"
            );
        }
    }
}
