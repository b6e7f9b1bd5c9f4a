//! Writing names and values into SQL text.
//!
//! The only door through which a name or a value gets into a statement's text; all
//! other values travel as parameters.

/// An identifier, always quoted.
pub(super) fn ident(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len() + 2);
    quoted.push('"');
    for character in name.chars() {
        // PostgreSQL has no NUL in names; a name with one must not end the text early.
        match character {
            '"' => quoted.push_str("\"\""),
            '\0' => {}
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A name within a schema.
pub(super) fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", ident(schema), ident(name))
}

/// A list of identifiers, each with a prefix such as `t.`.
pub(super) fn ident_list<'a>(prefix: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let mut list = String::new();
    for name in names {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(prefix);
        list.push_str(&ident(name));
    }
    list
}

/// A text literal that means the same whatever `standard_conforming_strings` says.
/// `None` for text with a NUL, which no PostgreSQL value has.
pub(super) fn literal(text: &str) -> Option<String> {
    if text.contains('\0') {
        return None;
    }
    let escape = text.contains('\\');
    let mut quoted = String::with_capacity(text.len() + 4);
    if escape {
        // The blank keeps the E from joining a word before it.
        quoted.push_str(" E");
    }
    quoted.push('\'');
    for character in text.chars() {
        if character == '\'' || character == '\\' {
            quoted.push(character);
        }
        quoted.push(character);
    }
    quoted.push('\'');
    Some(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_cannot_break_out_of_their_quotes() {
        assert_eq!(ident("customer"), "\"customer\"");
        assert_eq!(
            ident("a\"; DROP TABLE x; --"),
            "\"a\"\"; DROP TABLE x; --\""
        );
        assert_eq!(ident("a\0b"), "\"ab\"");
        assert_eq!(qualified("S", "t.u"), "\"S\".\"t.u\"");
        assert_eq!(ident_list("t.", ["a", "b"]), "t.\"a\", t.\"b\"");
    }

    #[test]
    fn literals_cannot_break_out_of_their_quotes() {
        assert_eq!(literal("plain").unwrap(), "'plain'");
        assert_eq!(literal("it's").unwrap(), "'it''s'");
        assert_eq!(literal("\\'; --").unwrap(), " E'\\\\''; --'");
        assert_eq!(literal("a\0b"), None);
    }
}
