//! Values that a configuration spells as text: durations, sizes, and the
//! `${VARIABLE}`s of the environment in any of them.

use std::time::Duration;

use crate::error::ConfigError;
use crate::grammar::join;

/// Replaces `${NAME}` in every string. `$${` stands for `${` itself.
///
/// # Errors
/// A variable is not set, or a brace is missing.
pub(super) fn expand_table(
    table: &mut toml::Table,
    path: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    for (key, element) in table.iter_mut() {
        expand(element, &join(path, key), variable)?;
    }
    Ok(())
}

fn expand(
    value: &mut toml::Value,
    path: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    match value {
        toml::Value::String(text) if text.contains("${") => {
            *text = expand_text(text, path, variable)?;
        }
        toml::Value::Array(array) => {
            for (index, element) in array.iter_mut().enumerate() {
                expand(element, &format!("{path}[{index}]"), variable)?;
            }
        }
        toml::Value::Table(table) => expand_table(table, path, variable)?,
        _ => {}
    }
    Ok(())
}

fn expand_text(
    text: &str,
    path: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let Some(length) = rest[at..].find('}') else {
            return Err(ConfigError::new(
                format!("{path}: \"${{\" without \"}}\""),
                "write ${NAME} for an environment variable, $${ for the characters themselves",
            ));
        };
        let name = &rest[at + 2..at + length];
        let value = variable(name).ok_or_else(|| {
            ConfigError::new(
                format!("{path}: the environment variable {name:?} is not set"),
                format!(
                    "set it, or write the value itself; $${{{name}}} stands for the characters"
                ),
            )
        })?;
        out.push_str(&value);
        rest = &rest[at + length + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Reads `250ms`, `30s`, `5m`, `12h`, `60d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let total_ms = number.checked_mul(unit_ms)?;
    // A thousand years: no sum of times overflows.
    (total_ms <= 1_000 * 366 * 86_400_000).then(|| Duration::from_millis(total_ms))
}

/// Writes a duration as [`parse_duration`] reads it, with the largest unit that has no rest.
pub(crate) fn duration_text(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    let unit = units
        .iter()
        .find(|(unit_ms, _)| ms > 0 && ms.is_multiple_of(*unit_ms));
    let (unit_ms, unit) = unit.copied().unwrap_or((1, "ms"));
    format!("{}{unit}", ms / unit_ms)
}

/// Reads a value of the grammar, which is TOML.
pub(crate) fn toml_value(text: &str) -> toml::Value {
    let table: Result<toml::Table, _> = format!("value = {text}").parse();
    let mut table = table.expect("values of the grammar are TOML");
    table.remove("value").expect("the value is there")
}

/// Writes a number of bytes with the largest unit that it is a whole number of.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units
        .into_iter()
        .find(|(_, size)| bytes.is_multiple_of(*size) && bytes > 0);
    match unit {
        Some((name, size)) => format!("{}{name}", bytes / size),
        None => bytes.to_string(),
    }
}

/// Reads `4096`, `64KiB`, `256MiB`, `4GiB`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}
