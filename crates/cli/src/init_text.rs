//! Names and remarks of a database as TOML: nothing of them ends a text or a comment.

use std::fmt::Write;

/// Text of the database on one line.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).collect()
}

/// Appends comment lines. Names and reasons come from the database and may hold line
/// ends; they must not end the comment.
pub(crate) fn comment(text: &mut String, content: &str) {
    for line in content.split(['\n', '\r']) {
        let clean = line.chars().filter(|it| !it.is_control());
        let _ = writeln!(text, "# {}", clean.collect::<String>());
    }
}

/// A name as a TOML string: `${` in it is no environment variable.
pub(crate) fn name(text: &str) -> String {
    quoted(&text.replace("${", "$${"))
}

/// A basic TOML string, always on one line, so that it can stand in a comment.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
