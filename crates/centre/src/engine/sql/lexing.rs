//! Quotes and comments of SQL, as far as the statements of operators are read by the engine.

/// A quote or comment has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnterminatedText {
    /// What it begins with.
    pub opener: char,
    /// Where that stands, in bytes.
    pub at: usize,
}

/// Which quotes and comments a database's SQL has beside those of every SQL: `'text'`, `"name"`,
/// `-- comment` and `/* comment */`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlLexing {
    /// Names stand in backticks, too.
    pub has_backticks: bool,
    /// Names stand in brackets, too.
    pub has_brackets: bool,
    /// Text is `E'...'`, too, with backslashes that escape.
    pub has_escape_strings: bool,
    /// Text is `$tag$...$tag$`, too.
    pub has_dollar_quotes: bool,
    /// Comments are `# comment`, too.
    pub has_hash_comments: bool,
    /// Comments stand within comments.
    pub nests_comments: bool,
    /// A carriage return ends a `--` comment.
    pub ends_comments_at_returns: bool,
}

impl SqlLexing {
    /// What every SQL has.
    pub const STANDARD: SqlLexing = SqlLexing {
        has_backticks: false,
        has_brackets: false,
        has_escape_strings: false,
        has_dollar_quotes: false,
        has_hash_comments: false,
        nests_comments: false,
        ends_comments_at_returns: false,
    };

    /// The length of the name, quoted text or comment that a text begins with; `None` if it begins
    /// with none, or if that has no end.
    pub fn length_of_opaque(self, text: &str) -> Option<usize> {
        self.opaque_length(text, 0).ok().flatten()
    }

    /// The length of the name, quoted text or comment that `rest` begins with; `None` if it
    /// begins with none. It stands at the byte `at`.
    pub(in crate::engine) fn opaque_length(
        self,
        rest: &str,
        at: usize,
    ) -> Result<Option<usize>, UnterminatedText> {
        let length = match rest.as_bytes() {
            [quote @ (b'\'' | b'"'), ..] => quoted_length(rest, *quote, false),
            [b'`', ..] if self.has_backticks => quoted_length(rest, b'`', false),
            [b'[', ..] if self.has_brackets => rest.find(']').map(|end| end + 1),
            [b'e' | b'E', b'\'', ..] if self.has_escape_strings => {
                quoted_length(&rest[1..], b'\'', true).map(|length| length + 1)
            }
            [b'-', b'-', ..] => Some(self.line_length(rest)),
            [b'#', ..] if self.has_hash_comments => Some(self.line_length(rest)),
            [b'/', b'*', ..] => self.comment_length(rest),
            [b'$', ..] if self.has_dollar_quotes => match dollar_tag(rest) {
                Some(tag) => {
                    let body = rest[tag.len()..].find(tag);
                    body.map(|body| body + 2 * tag.len())
                }
                None => return Ok(None),
            },
            // As a whole: a '$' in a name begins nothing.
            _ => match name_length(rest) {
                0 => return Ok(None),
                length => Some(length),
            },
        };
        let first = rest.chars().next().unwrap_or_default();
        length
            .map(Some)
            .ok_or(UnterminatedText { opener: first, at })
    }

    fn line_length(self, rest: &str) -> usize {
        let ends = |each| each == '\n' || each == '\r' && self.ends_comments_at_returns;
        rest.find(ends).unwrap_or(rest.len())
    }

    fn comment_length(self, rest: &str) -> Option<usize> {
        let mut depth = 0;
        let mut at = 0;
        while at < rest.len() {
            match rest.as_bytes()[at..] {
                [b'/', b'*', ..] if depth == 0 || self.nests_comments => depth += 1,
                [b'*', b'/', ..] => depth -= 1,
                _ => {
                    at += 1;
                    continue;
                }
            }
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        }
        None
    }
}

/// The length of text in quotes, which are doubled within it; `None` if it has no end.
fn quoted_length(rest: &str, quote: u8, has_escapes: bool) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut index = 1;
    while index < bytes.len() {
        if has_escapes && bytes[index] == b'\\' {
            index += 2;
        } else if bytes[index] != quote {
            index += 1;
        } else if bytes.get(index + 1) == Some(&quote) {
            index += 2;
        } else {
            return Some(index + 1);
        }
    }
    None
}

/// The `$tag$` that a dollar quote begins with.
fn dollar_tag(rest: &str) -> Option<&str> {
    let name = name_length(&rest[1..]);
    let name = rest[1..=name].split('$').next()?.len();
    rest[1 + name..].starts_with('$').then(|| &rest[..name + 2])
}

/// The length of the name, not quoted, that text begins with.
pub(in crate::engine) fn name_length(rest: &str) -> usize {
    let begins = |each: char| !each.is_ascii() || each.is_ascii_alphabetic() || each == '_';
    let goes_on = |each: char| begins(each) || each.is_ascii_digit() || each == '$';
    if !rest.starts_with(begins) {
        return 0;
    }
    rest.find(|each| !goes_on(each)).unwrap_or(rest.len())
}
