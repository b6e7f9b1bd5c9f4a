//! Refuses keys that are not in the grammar, and values of another kind than their key takes. Looks
//! at the text before anything is read from it, because only the text has lines.

use toml::de::{DeTable, DeValue};

use tidewater_centre::nearest;

use super::kind::kind_name;
use super::{KeyGrammar, SECTIONS, SectionGrammar, join};
use crate::error::ConfigError;

/// Finds the first key that no section has, or whose value is of another kind.
///
/// # Errors
/// There is one, or the text is not TOML.
pub(crate) fn check_text(text: &str) -> Result<(), ConfigError> {
    let table = DeTable::parse(text).map_err(|error| not_toml(text, &error))?;
    check_table(text, table.get_ref(), "")
}

/// The error of a text that is not TOML.
pub(crate) fn not_toml(text: &str, error: &toml::de::Error) -> ConfigError {
    let place = error
        .span()
        .map(|span| format!("line {}: ", line_of(text, span.start)))
        .unwrap_or_default();
    ConfigError::new(
        format!("{place}{}", error.message()),
        "see docs/configuration.md for an example of every setting",
    )
}

fn check_table(text: &str, table: &DeTable<'_>, path: &str) -> Result<(), ConfigError> {
    let Some(section) = SectionGrammar::find(path) else {
        return Ok(());
    };
    for (key, value) in table {
        let name: &str = key.get_ref();
        let below = join(path, name);
        let line = line_of(text, value.span().start);
        if let Some(known) = section.key(name) {
            check_kind(known, value.get_ref(), &below, line)?;
        } else if let Some(known) = SectionGrammar::find(&below) {
            check_section(known, value.get_ref(), line)?;
        } else {
            return Err(unknown(name, section, line_of(text, key.span().start)));
        }
        check_value(text, value.get_ref(), &below)?;
    }
    Ok(())
}

fn check_value(text: &str, value: &DeValue<'_>, path: &str) -> Result<(), ConfigError> {
    match value {
        DeValue::Table(table) => check_table(text, table, path),
        DeValue::Array(array) => array
            .iter()
            .try_for_each(|element| check_value(text, element.get_ref(), path)),
        _ => Ok(()),
    }
}

fn check_kind(
    key: &KeyGrammar,
    value: &DeValue<'_>,
    path: &str,
    line: usize,
) -> Result<(), ConfigError> {
    if key.kind.takes(value) {
        return Ok(());
    }
    let is = kind_name(value);
    let takes = key.kind.description(key.example);
    Err(ConfigError::new(
        format!("line {line}: {path} is {is}, and takes {takes}"),
        format!("write {}", key.example_line()),
    ))
}

fn check_section(
    section: &SectionGrammar,
    value: &DeValue<'_>,
    line: usize,
) -> Result<(), ConfigError> {
    let is_table = |it: &DeValue<'_>| matches!(it, DeValue::Table(_));
    let (is_right, takes) = match (section.is_repeated, value) {
        (true, DeValue::Array(array)) => (
            array.iter().all(|it| is_table(it.get_ref())),
            "sections of its own",
        ),
        (true, _) => (false, "sections of its own"),
        (false, value) => (is_table(value), "a section of its own"),
    };
    if is_right {
        return Ok(());
    }
    let (path, is) = (section.path, kind_name(value));
    Err(ConfigError::new(
        format!("line {line}: {path} is {is}, and takes {takes}"),
        format!("write {}", section.heading()),
    ))
}

fn unknown(name: &str, section: &SectionGrammar, line: usize) -> ConfigError {
    let place = match section.path {
        "" => "at the top level".to_owned(),
        _ => format!("in {}", section.heading()),
    };
    let mut others = SECTIONS.iter().filter(|it| it.path != section.path);
    let elsewhere = others.find(|it| it.names().any(|known| known == name));
    let hint = match (nearest(name, section.names()), elsewhere) {
        (Some(near), _) => format!("did you mean {near:?}?"),
        (None, Some(SectionGrammar { path: "", .. })) => {
            format!("{name:?} belongs at the top level")
        }
        (None, Some(other)) if other.key(name).is_some() => {
            format!("{name:?} belongs in {}", other.heading())
        }
        (None, Some(other)) => match SectionGrammar::find(&join(other.path, name)) {
            Some(section) => format!("write {}", section.heading()),
            None => format!("{name:?} belongs in {}", other.heading()),
        },
        (None, None) => {
            let known: Vec<&str> = section.names().collect();
            format!("known here are: {}", known.join(", "))
        }
    };
    ConfigError::new(format!("line {line}: unknown key {name:?} {place}"), hint)
}

/// The line of a place in a text.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
