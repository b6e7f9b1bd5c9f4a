//! Patterns as an operator writes them: a part may be `{s.username}`, whoever asks.

use crate::subject::{
    MAX_SUBJECT_BYTES, Pattern, SubjectError, check_parts, check_space, check_wildcards, shown,
};

/// What an operator writes for the name of the user.
pub const USER: &str = "{s.username}";

/// Stands for it while parts are cut at their dots; no subject has such a character.
const USER_MARK: char = '\0';

/// A pattern of one space in which whole parts may be the name of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternTemplate {
    space: String,
    /// With marks.
    rest: String,
}

impl PatternTemplate {
    /// Reads the pattern without its space, `unit.{s.username}.>`.
    ///
    /// # Errors
    /// It is none, or the space is none.
    pub fn parse(space: &str, text: &str) -> Result<PatternTemplate, SubjectError> {
        check_space(space)?;
        if let Some(part) = text.split('.').position(|it| it.contains(USER_MARK)) {
            return Err(SubjectError::BadCharacter {
                subject: shown(text),
                part: part + 1,
                character: USER_MARK,
            });
        }
        let rest = text.replace(USER, &USER_MARK.to_string());
        if space.len() + 1 + rest.len() > MAX_SUBJECT_BYTES {
            return Err(SubjectError::TooLong(space.len() + 1 + text.len()));
        }
        // For what all parts have in common, the user is a name like another.
        let named = rest.replace(USER_MARK, "u");
        check_parts(text, &named, |_, _| Ok(()))?;
        for (index, it) in rest.split('.').enumerate() {
            let part = index + 1;
            if it.contains(USER_MARK) && it.len() > 1 {
                let pattern = shown(text);
                return Err(SubjectError::MixedUser { pattern, part });
            }
            check_wildcards(text, &rest, part, it)?;
        }
        Ok(PatternTemplate {
            space: space.to_owned(),
            rest,
        })
    }

    /// Whether it depends on who asks.
    pub fn names_user(&self) -> bool {
        self.rest.contains(USER_MARK)
    }

    /// The pattern for this user; `None` if the name cannot be a part (it has a dot, a space, a
    /// wildcard), and so stands for no subject.
    pub fn for_user(&self, user: &str) -> Option<Pattern> {
        let is_part = !user.is_empty() && !user.contains(['.', '*', '>', USER_MARK]);
        if self.names_user() && !is_part {
            return None;
        }
        let rest = self.rest.replace(USER_MARK, user);
        Pattern::in_space(&self.space, &rest).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_stands_for_itself_and_never_for_more() {
        let template = PatternTemplate::parse("fleet", "unit.{s.username}.>").unwrap();
        let of = |user| template.for_user(user).map(|it| it.to_string());
        assert_eq!(of("ann"), Some("fleet/unit.ann.>".into()));
        for user in ["", "*", ">", "a.b", "a*", "a b", "\0", &"a".repeat(300)] {
            assert_eq!(of(user), None, "{user:?}");
        }
        let everybody = PatternTemplate::parse("fleet", "news.>").unwrap();
        assert!(!everybody.names_user() && template.names_user());
        assert!(everybody.for_user("a.b").is_some());
    }

    #[test]
    fn a_user_is_a_whole_part() {
        for (text, message) in [
            (
                "unit.x{s.username}",
                "part 2 of the pattern \"unit.x{s.username}\" mixes",
            ),
            ("unit.{s.username}..a", "part 3"),
            ("unit.a*", "part 2"),
            (">.{s.username}", "part 1"),
            ("a.\0", "part 2"),
        ] {
            let error = PatternTemplate::parse("fleet", text).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        assert!(PatternTemplate::parse("fl eet", "a").is_err());
    }
}
