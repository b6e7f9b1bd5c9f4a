//! Subjects, `SPACE/a.b.c`, and the patterns that subscribers name them by.
//!
//! A part of a pattern may be `*`, which stands for exactly one part, and its last one `>`, which
//! stands for one or more.

use std::fmt;
use std::sync::Arc;

/// The longest name of a space, in bytes.
pub const MAX_SPACE_BYTES: usize = 64;

/// The longest subject or pattern, in bytes, with its space.
pub const MAX_SUBJECT_BYTES: usize = 256;

/// The most parts of a subject or pattern, without its space.
pub const MAX_PARTS: usize = 16;

/// The most `*` in a pattern that is subscribed to: with each of them more ways lead to what a
/// publisher's event matches.
pub const MAX_ONES: usize = 4;

/// Stands for exactly one part.
pub(crate) const ONE: &str = "*";

/// Stands for one part or more, at the end.
pub(crate) const REST: &str = ">";

/// A subject or a pattern that is none. Parts are counted from 1, behind the space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// No slash ends the name of a space.
    #[error("{0:?} names no space")]
    NoSpace(String),
    /// A space's name is empty, or has other characters than it may.
    #[error("{0:?} cannot be the name of a space")]
    BadSpace(String),
    /// A space's name is too long.
    #[error("the space's name {0:?} is longer than {MAX_SPACE_BYTES} bytes")]
    SpaceTooLong(String),
    /// The whole is too long.
    #[error("a subject of {0} bytes is longer than {MAX_SUBJECT_BYTES}")]
    TooLong(usize),
    /// There are too many parts.
    #[error("{0:?} has more than {MAX_PARTS} parts")]
    TooManyParts(String),
    /// A part is empty.
    #[error("part {part} of {subject:?} is empty")]
    EmptyPart {
        /// Where.
        subject: String,
        /// Which.
        part: usize,
    },
    /// A part has a character that none may have.
    #[error("part {part} of {subject:?} has the character {character:?}")]
    BadCharacter {
        /// Where.
        subject: String,
        /// Which part.
        part: usize,
        /// Which character.
        character: char,
    },
    /// A subject has a wildcard.
    #[error("part {part} of the subject {subject:?} has the wildcard {wildcard:?}")]
    Wildcard {
        /// Where.
        subject: String,
        /// Which part.
        part: usize,
        /// Which wildcard.
        wildcard: char,
    },
    /// A part of a pattern is a wildcard and something else.
    #[error("part {part} of the pattern {pattern:?} mixes {wildcard:?} with other characters")]
    Mixed {
        /// Where.
        pattern: String,
        /// Which part.
        part: usize,
        /// Which wildcard.
        wildcard: char,
    },
    /// Something follows the wildcard for the rest.
    #[error("part {part} of the pattern {pattern:?} is \">\", and something follows it")]
    RestNotLast {
        /// Where.
        pattern: String,
        /// Which part.
        part: usize,
    },
    /// A pattern that is subscribed to has too many wildcards.
    #[error("the pattern {0:?} has more than {MAX_ONES} \"*\"")]
    TooManyWildcards(String),
    /// The user stands in a part beside something else.
    #[error("part {part} of the pattern {pattern:?} mixes {{s.username}} with other characters")]
    MixedUser {
        /// Where.
        pattern: String,
        /// Which part.
        part: usize,
    },
}

impl SubjectError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            SubjectError::NoSpace(_) => {
                "write SPACE/a.b.c: the space, a slash, parts with dots".into()
            }
            SubjectError::BadSpace(_) => {
                "name the space with ASCII letters, digits, \"_\" and \"-\"".into()
            }
            SubjectError::SpaceTooLong(_) => {
                format!("give the space a name of at most {MAX_SPACE_BYTES} bytes")
            }
            SubjectError::TooLong(_) => "move what makes it long into the payload".into(),
            SubjectError::TooManyParts(_) => {
                "join some parts, or move them into the payload".into()
            }
            SubjectError::EmptyPart { .. } => {
                "write something before, between and behind the dots".into()
            }
            SubjectError::BadCharacter { .. } => "leave out spaces and control characters".into(),
            SubjectError::Wildcard { .. } => {
                "wildcards are for subscribing; publish to a subject without \"*\" and \">\"".into()
            }
            SubjectError::Mixed { .. } => {
                "let \"*\" or \">\" be a part of its own, such as in \"unit.*.position\"".into()
            }
            SubjectError::RestNotLast { .. } => {
                "put \">\" at the end, or write \"*\" for a single part".into()
            }
            SubjectError::TooManyWildcards(_) => {
                "write \">\" for all parts at the end, or subscribe to several patterns".into()
            }
            SubjectError::MixedUser { .. } => {
                "let {s.username} be a part of its own, such as in \"unit.{s.username}.>\"".into()
            }
        }
    }
}

/// Checks the name of a space.
///
/// # Errors
/// It is none.
pub fn check_space(name: &str) -> Result<(), SubjectError> {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || !name.bytes().all(may) {
        return Err(SubjectError::BadSpace(shown(name)));
    }
    if name.len() > MAX_SPACE_BYTES {
        return Err(SubjectError::SpaceTooLong(shown(name)));
    }
    Ok(())
}

/// Checks a subject that somebody publishes to, and gives its space and the rest.
///
/// # Errors
/// It is none.
pub fn check_subject(subject: &str) -> Result<(&str, &str), SubjectError> {
    let (space, rest) = split(subject)?;
    check_parts(subject, rest, |part, text| {
        match text.chars().find(|c| matches!(c, '*' | '>')) {
            None => Ok(()),
            Some(wildcard) => Err(SubjectError::Wildcard {
                subject: shown(subject),
                part,
                wildcard,
            }),
        }
    })?;
    Ok((space, rest))
}

/// The space and the rest, of which the space was checked.
fn split(subject: &str) -> Result<(&str, &str), SubjectError> {
    if subject.len() > MAX_SUBJECT_BYTES {
        return Err(SubjectError::TooLong(subject.len()));
    }
    let (space, rest) = subject
        .split_once('/')
        .ok_or_else(|| SubjectError::NoSpace(shown(subject)))?;
    check_space(space)?;
    Ok((space, rest))
}

/// Checks what all parts have in common, and each as the caller says.
pub(crate) fn check_parts(
    subject: &str,
    rest: &str,
    mut check: impl FnMut(usize, &str) -> Result<(), SubjectError>,
) -> Result<(), SubjectError> {
    for (index, text) in rest.split('.').enumerate() {
        let part = index + 1;
        if part > MAX_PARTS {
            return Err(SubjectError::TooManyParts(shown(subject)));
        }
        if text.is_empty() {
            let subject = shown(subject);
            return Err(SubjectError::EmptyPart { subject, part });
        }
        if let Some(character) = text.chars().find(|c| c.is_control() || c.is_whitespace()) {
            return Err(SubjectError::BadCharacter {
                subject: shown(subject),
                part,
                character,
            });
        }
        check(part, text)?;
    }
    Ok(())
}

/// Checks the wildcards of a pattern. A wildcard that stands for the rest must be the last part.
pub(crate) fn check_wildcards(
    pattern: &str,
    rest: &str,
    part: usize,
    text: &str,
) -> Result<(), SubjectError> {
    let wildcard = text.chars().find(|c| matches!(c, '*' | '>'));
    match wildcard {
        Some(wildcard) if text.len() > 1 => Err(SubjectError::Mixed {
            pattern: shown(pattern),
            part,
            wildcard,
        }),
        Some('>') if rest.split('.').nth(part).is_some() => Err(SubjectError::RestNotLast {
            pattern: shown(pattern),
            part,
        }),
        _ => Ok(()),
    }
}

/// As much of a text as an error repeats.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SUBJECT_BYTES) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The parts of a subject or pattern that was checked: its space, and those with dots between.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = &str> {
    let (space, rest) = text.split_once('/').unwrap_or((text, ""));
    std::iter::once(space).chain(rest.split('.'))
}

/// A pattern of subjects of one space, `SPACE/a.*.>`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// Reads a pattern with its space.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Pattern, SubjectError> {
        let (_, rest) = split(text)?;
        check_parts(text, rest, |part, it| check_wildcards(text, rest, part, it))?;
        Ok(Pattern(text.into()))
    }

    /// Reads a pattern without its space that somebody subscribes to.
    ///
    /// # Errors
    /// It is none, or has too many `*`.
    pub fn to_subscribe(space: &str, text: &str) -> Result<Pattern, SubjectError> {
        let pattern = Pattern::in_space(space, text)?;
        match pattern.parts().filter(|it| *it == ONE).count() {
            0..=MAX_ONES => Ok(pattern),
            _ => Err(SubjectError::TooManyWildcards(shown(text))),
        }
    }

    /// Reads a pattern without its space.
    ///
    /// # Errors
    /// It is none, or the space is none.
    pub fn in_space(space: &str, text: &str) -> Result<Pattern, SubjectError> {
        check_space(space)?;
        Pattern::parse(&format!("{space}/{text}"))
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The space of all its subjects, and what is behind that.
    pub fn split(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or_default()
    }

    /// The space of all its subjects.
    pub fn space(&self) -> &str {
        self.split().0
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        parts(&self.0)
    }

    /// Whether it stands for this subject, which is one.
    pub fn matches(&self, subject: &str) -> bool {
        let mut theirs = parts(subject);
        for (index, mine) in self.parts().enumerate() {
            match (mine, theirs.next()) {
                (_, None) => return false,
                // The space is never a wildcard.
                (REST, Some(_)) if index > 0 => return true,
                (ONE, Some(_)) if index > 0 => {}
                (mine, Some(their)) if mine != their => return false,
                _ => {}
            }
        }
        theirs.next().is_none()
    }

    /// Whether every subject that the other stands for is one of its own. (Where a pattern is as
    /// long as one may be, the other may be called wider than it can get.)
    pub fn contains(&self, other: &Pattern) -> bool {
        let mut theirs = other.parts();
        for mine in self.parts() {
            match (mine, theirs.next()) {
                (_, None) => return false,
                (REST, Some(_)) => return true,
                (_, Some(REST)) => return false,
                (ONE, Some(_)) => {}
                (mine, Some(their)) if mine != their => return false,
                _ => {}
            }
        }
        theirs.next().is_none()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn an_error_says_which_part_is_wrong_and_what_to_do() {
        let long = format!("news/{}", "a".repeat(MAX_SUBJECT_BYTES));
        let deep = format!("news/{}a", "a.".repeat(MAX_PARTS));
        let name = format!("{}/a", "a".repeat(MAX_SPACE_BYTES + 1));
        for (text, message, hint) in [
            ("news", "\"news\" names no space", "SPACE/a.b.c"),
            ("ne ws/a", "\"ne ws\" cannot be the name", "ASCII letters"),
            ("/a", "\"\" cannot be the name", "ASCII letters"),
            (&name, "is longer than 64 bytes", "at most 64 bytes"),
            (&long, "a subject of 261 bytes", "payload"),
            (&deep, "has more than 16 parts", "join some parts"),
            ("news/", "part 1 of \"news/\" is empty", "the dots"),
            ("news/a..b", "part 2 of \"news/a..b\" is empty", "the dots"),
            ("news/a.b c", "part 2 of \"news/a.b c\" has", "control"),
        ] {
            for error in [
                check_subject(text).unwrap_err(),
                Pattern::parse(text).unwrap_err(),
            ] {
                assert!(error.to_string().contains(message), "{error}");
                assert!(error.hint().contains(hint), "{}", error.hint());
            }
        }
        let wildcard = check_subject("news/a.*").unwrap_err();
        assert!(wildcard.to_string().starts_with("part 2 of the subject"));
        for (text, message) in [
            ("news/a.b*", "part 2 of the pattern \"news/a.b*\" mixes '*'"),
            ("news/>.a", "part 1 of the pattern \"news/>.a\" is \">\""),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        assert_eq!(check_subject("n-1_X/ä.b/c"), Ok(("n-1_X", "ä.b/c")));
        let longest = format!("news/{}", "a".repeat(MAX_SUBJECT_BYTES - 5));
        assert!(check_subject(&longest).is_ok());
    }

    #[test]
    fn a_wildcard_stands_for_one_part_or_for_the_rest() {
        for (text, yes, no) in [
            ("n/a.b", &["n/a.b"][..], &["n/a", "n/a.b.c", "m/a.b"][..]),
            ("n/*", &["n/a", "n/b"], &["n/a.b", "m/a"]),
            ("n/a.*.c", &["n/a.b.c"], &["n/a.c", "n/a.b.d", "n/a.b.c.d"]),
            ("n/>", &["n/a", "n/a.b.c"], &["m/a"]),
            ("n/a.>", &["n/a.b", "n/a.b.c"], &["n/a", "n/b.c"]),
        ] {
            let pattern = pattern(text);
            assert!(yes.iter().all(|it| pattern.matches(it)), "{text}");
            assert!(!no.iter().any(|it| pattern.matches(it)), "{text}");
        }
    }

    #[test]
    fn a_pattern_contains_what_is_nowhere_wider() {
        for (wide, narrow, is) in [
            ("n/>", "n/>", true),
            ("n/>", "n/*.a", true),
            ("n/*", "n/>", false),
            ("n/*.>", "n/>", false),
            ("n/*.>", "n/a.*", true),
            ("n/a.*", "n/a.b", true),
            ("n/a.*", "n/*.b", false),
            ("n/a.>", "n/a", false),
            ("n/a", "n/a", true),
            ("n/>", "m/a", false),
        ] {
            assert_eq!(
                pattern(wide).contains(&pattern(narrow)),
                is,
                "{wide} {narrow}"
            );
        }
    }

    #[test]
    fn who_subscribes_writes_few_stars() {
        let may = Pattern::to_subscribe("n", "*.a.*.*.b.*.>").unwrap();
        assert_eq!(may, pattern("n/*.a.*.*.b.*.>"));
        let error = Pattern::to_subscribe("n", "*.*.*.*.*").unwrap_err();
        assert!(error.to_string().contains("more than 4"), "{error}");
        assert!(!error.hint().is_empty());
        // Rules, and what somebody reads, may be written so.
        assert!(Pattern::in_space("n", "*.*.*.*.*").is_ok());
    }

    pub(crate) fn any_pattern() -> impl Strategy<Value = Pattern> {
        "[mn]/([ab*](\\.[ab*]){0,2}(\\.>)?|>)".prop_map(|text| pattern(&text))
    }

    proptest! {
        #[test]
        fn to_contain_is_to_match_all_that_the_other_does(
            mine in any_pattern(), other in any_pattern(),
        ) {
            // Another name stands for all that nobody wrote, and one part more for all longer ones.
            let names = ["a", "b", "c"];
            let mut subjects: Vec<String> = vec!["m/".into(), "n/".into()];
            let mut all = Vec::new();
            for depth in 0..5 {
                let dot = if depth == 0 { "" } else { "." };
                let longer = subjects.iter().flat_map(|it| names.map(|name| format!("{it}{dot}{name}")));
                subjects = longer.collect();
                all.extend_from_slice(&subjects);
            }
            let mut theirs = all.iter().filter(|it| other.matches(it));
            prop_assert_eq!(mine.contains(&other), theirs.all(|it| mine.matches(it)));
        }
    }
}
