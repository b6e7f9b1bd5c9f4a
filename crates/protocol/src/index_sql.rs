//! What SQLite's pragmas do not tell of an index: the text of its expressions and of
//! its condition, cut out of its CREATE INDEX statement. For both ends: a remote and an
//! SQLite centre.

/// The terms and the condition of a CREATE INDEX statement of SQLite's; `None` if it is not
/// understood. Comments, ASC and DESC are cut off.
pub fn parts(sql: &str) -> Option<(Vec<String>, Option<String>)> {
    let sql = &without_comments(sql)?;
    let mut terms = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    let mut at = 0;
    while at < sql.len() {
        let rest = &sql[at..];
        match rest.as_bytes()[0] {
            b'(' => {
                depth += 1;
                if depth == 1 {
                    start = at + 1;
                }
            }
            b',' if depth == 1 => {
                terms.push(term(&sql[start..at]));
                start = at + 1;
            }
            b')' => {
                depth -= 1;
                if depth == 0 {
                    terms.push(term(&sql[start..at]));
                    return Some((terms, condition(&sql[at + 1..])));
                }
            }
            _ => {}
        }
        at += token_length(rest)?;
    }
    None
}

/// The same statement, with a blank for each comment.
fn without_comments(sql: &str) -> Option<String> {
    let mut kept = String::with_capacity(sql.len());
    let mut at = 0;
    while at < sql.len() {
        let rest = &sql[at..];
        let length = token_length(rest)?;
        match rest.starts_with("--") || rest.starts_with("/*") {
            true => kept.push(' '),
            false => kept.push_str(&rest[..length]),
        }
        at += length;
    }
    Some(kept)
}

/// The length of what must not be looked into (quoted text, a comment), else of the
/// next character.
fn token_length(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    let quoted = |close: char| {
        let mut from = first.len_utf8();
        loop {
            from += rest[from..].find(close)? + 1;
            // A doubled quote stands for itself.
            if close != ']' && rest[from..].starts_with(close) {
                from += 1;
            } else {
                return Some(from);
            }
        }
    };
    match first {
        '\'' | '"' | '`' => quoted(first),
        '[' => quoted(']'),
        '-' if rest.starts_with("--") => Some(rest.find('\n').unwrap_or(rest.len())),
        '/' if rest.starts_with("/*") => rest[2..].find("*/").map(|end| end + 4),
        _ => Some(first.len_utf8()),
    }
}

fn term(text: &str) -> String {
    let text = text.trim();
    for order in ["asc", "desc"] {
        let Some(cut) = text.len().checked_sub(order.len()) else {
            continue;
        };
        let is_order = text.is_char_boundary(cut)
            && text[cut..].eq_ignore_ascii_case(order)
            && text[..cut].ends_with(|before: char| before.is_whitespace() || before == ')');
        if is_order {
            return text[..cut].trim_end().to_owned();
        }
    }
    text.to_owned()
}

fn condition(rest: &str) -> Option<String> {
    let rest = rest.trim_start();
    let (word, condition) = rest.split_at_checked(5)?;
    word.eq_ignore_ascii_case("where")
        .then(|| condition.trim().trim_end_matches(';').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_and_conditions_are_cut_out() {
        let sql = "CREATE UNIQUE INDEX \"i (x\" ON [t (y](lower(a, ')') DESC, b COLLATE nocase, \
                   \"c,\"\"d\" asc) WHERE deleted = 0";
        let (terms, condition) = parts(sql).unwrap();
        assert_eq!(terms, ["lower(a, ')')", "b COLLATE nocase", "\"c,\"\"d\""]);
        assert_eq!(condition.as_deref(), Some("deleted = 0"));
        let sql = "CREATE UNIQUE INDEX i /* (x, */ ON t(lower(a) -- it's (\n , b\nDESC -- last\n) \
                   WHERE c /* , */ > '--'";
        let (terms, condition) = parts(sql).unwrap();
        assert_eq!(terms, ["lower(a)", "b"]);
        assert_eq!(condition.as_deref(), Some("c   > '--'"));
        let (terms, condition) = parts("CREATE UNIQUE INDEX i ON t(a)").unwrap();
        assert_eq!((terms, condition), (vec!["a".to_owned()], None));
    }
}
