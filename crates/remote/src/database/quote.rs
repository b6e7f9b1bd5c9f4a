//! Names and literals in SQL text. Every name that reaches SQL goes through here.

/// A name as an SQL identifier.
pub(crate) fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal.
pub(crate) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// `prefix."a", prefix."b"` and the like: every item through `each`, joined by `separator`.
pub(crate) fn list<T>(
    items: impl IntoIterator<Item = T>,
    separator: &str,
    mut each: impl FnMut(T) -> String,
) -> String {
    let items: Vec<String> = items.into_iter().map(&mut each).collect();
    items.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_inside_names_and_texts_are_doubled() {
        assert_eq!(name("a\"b c"), "\"a\"\"b c\"");
        assert_eq!(text("it's"), "'it''s'");
        assert_eq!(list([1, 2], " AND ", |n| format!("x{n}")), "x1 AND x2");
    }
}
