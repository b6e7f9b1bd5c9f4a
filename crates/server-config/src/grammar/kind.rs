//! Of which kind the value of a key is, and how errors say so.

use std::time::Duration;

use toml::de::DeValue;

use crate::text::{duration_text, size_text};

/// What the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Text in quotes.
    Text,
    /// The path of a file or folder, which starts at the folder of the configuration.
    Path,
    /// A list of texts.
    Texts,
    /// Text, or a list of texts.
    OneOrMoreTexts,
    /// Texts with names: `{ item = "integer" }`.
    NamedTexts,
    /// `true` or `false`.
    Flag,
    /// A whole number from the first to the second.
    Number(i64, i64),
    /// A number of bytes, or text with a unit, from the first to the second.
    Size(u64, u64),
    /// A number and a unit as text, of at least so many milliseconds.
    Duration(u64),
    /// Text with a unit of the calendar, or a number.
    Window,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A section that is written where it belongs, as `{ ... }` or below a heading.
    Section,
    /// Text, or a section.
    TextOrSection,
    /// One of several kinds, which its reader tells apart and has errors for.
    Several,
}

impl ValueKind {
    /// Whether a value is of the kind. What its text says is looked at when it is read.
    pub(crate) fn takes(self, value: &DeValue<'_>) -> bool {
        let is_text = |it: &DeValue<'_>| matches!(it, DeValue::String(_));
        let are_texts = |it: &DeValue<'_>| match it {
            DeValue::Array(array) => array.iter().all(|element| is_text(element.get_ref())),
            _ => false,
        };
        match self {
            ValueKind::Text | ValueKind::Path | ValueKind::Duration(_) | ValueKind::Choice(_) => {
                is_text(value)
            }
            ValueKind::Texts => are_texts(value),
            ValueKind::OneOrMoreTexts => is_text(value) || are_texts(value),
            ValueKind::NamedTexts => match value {
                DeValue::Table(table) => table.values().all(|it| is_text(it.get_ref())),
                _ => false,
            },
            ValueKind::Flag => matches!(value, DeValue::Boolean(_)),
            ValueKind::Number(..) => matches!(value, DeValue::Integer(_)),
            ValueKind::Size(..) | ValueKind::Window => {
                matches!(value, DeValue::Integer(_)) || is_text(value)
            }
            ValueKind::Section => matches!(value, DeValue::Table(_)),
            ValueKind::TextOrSection => is_text(value) || matches!(value, DeValue::Table(_)),
            ValueKind::Several => true,
        }
    }

    /// Which values of the kind there are, in Markdown; empty where it is not limited.
    pub(crate) fn range(self) -> String {
        match self {
            ValueKind::Number(i64::MIN, i64::MAX) => String::new(),
            ValueKind::Number(least, i64::MAX) => format!("From {least}"),
            ValueKind::Number(least, most) => format!("From {least} to {most}"),
            ValueKind::Size(least, most) if most < u64::MAX => {
                format!(
                    "From `\"{}\"` to `\"{}\"`",
                    size_text(least),
                    size_text(most)
                )
            }
            ValueKind::Duration(least_ms) if least_ms > 1 => {
                let least = duration_text(Duration::from_millis(least_ms));
                format!("At least `\"{least}\"`")
            }
            _ => String::new(),
        }
    }

    /// What a value of the kind is called, as the end of a sentence.
    pub(crate) fn description(self, example: &str) -> String {
        match self {
            ValueKind::Text | ValueKind::Path => "text in quotes".into(),
            ValueKind::Texts => "a list of texts".into(),
            ValueKind::OneOrMoreTexts => "text in quotes, or a list of texts".into(),
            ValueKind::NamedTexts => "a section of texts".into(),
            ValueKind::Flag => "true or false".into(),
            ValueKind::Number(..) => "a number".into(),
            ValueKind::Size(..) => "a number of bytes, or text with a unit".into(),
            ValueKind::Duration(_) => format!("a duration such as {example}"),
            ValueKind::Window => "a time with its unit as text, or a number".into(),
            ValueKind::Choice(names) => format!("one of {}", quoted(names)),
            ValueKind::Section => "a section of its own".into(),
            ValueKind::TextOrSection => "text in quotes, or a section".into(),
            ValueKind::Several => "a value of one of several kinds".into(),
        }
    }
}

/// The kind of a value that is there, for people.
pub(super) fn kind_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|it| format!("{it:?}")).collect();
    names.join(", ")
}
