//! What can be the name of a user.

use tidewater_terminal::Failure;

/// The longest name that a user may have, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Any text can be a name, as long as a person can type it and see it.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    match wrong_with_name(name) {
        None => Ok(()),
        Some(wrong) => Err(Failure::usage(
            format!("the name {name:?} {wrong}"),
            "choose another name",
        )),
    }
}

/// Why a text cannot be a name.
pub(super) fn wrong_with_name(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        Some("is empty".to_owned())
    } else if name.len() > MAX_NAME_BYTES {
        Some(format!("is longer than {MAX_NAME_BYTES} bytes"))
    } else if name.chars().any(char::is_control) {
        Some("holds a control character".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_any_visible_text() {
        for name in ["nancy", "o'brien; DROP TABLE users", "名前", "a b"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", " ", "a\nb", "a\u{0}", &"x".repeat(256)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
