//! Values that several sections take: durations, choices, names, lists of columns, compression.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;

use tidewater_carrier::{Compression, CompressionOptions, NoCompression};
use tidewater_centre::nearest;

use super::text;
use crate::error::ConfigError;

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawSize {
    Bytes(u64),
    Text(String),
}

/// Each section of a kind has a name of its own.
pub(super) fn check_names<'n>(
    kind: &str,
    names: impl Iterator<Item = &'n String>,
) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ConfigError::new(
                format!("two {kind}s are named {name:?}"),
                format!("give each [[{kind}]] a name of its own"),
            ));
        }
    }
    Ok(())
}

pub(super) fn packing(
    section: &str,
    compression: Option<String>,
    level: Option<u64>,
) -> Result<CompressionOptions, ConfigError> {
    let compression = match compression {
        None => Compression::default(),
        Some(text) => text.parse().map_err(|error: NoCompression| {
            ConfigError::new(
                format!("{section}.compression is {text:?}: {error}"),
                "write compression = \"auto\"",
            )
        })?,
    };
    let most = compression.levels();
    let level = match level {
        None => None,
        Some(level) => match u8::try_from(level) {
            Ok(level) if (1..=most).contains(&level) => Some(level),
            _ => {
                return Err(ConfigError::new(
                    format!("{section}.compression_level is {level}"),
                    format!("write a number from 1 (fast) to {most} (small), or leave the key out"),
                ));
            }
        },
    };
    Ok(CompressionOptions { compression, level })
}

pub(super) fn duration(
    key: &str,
    value: Option<String>,
    default: Duration,
) -> Result<Duration, ConfigError> {
    let Some(value) = value else {
        return Ok(default);
    };
    text::duration(&value)
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            ConfigError::new(
                format!("{key} is {value:?}, which is no duration"),
                "write a number and a unit: \"250ms\", \"30s\", \"5m\", \"12h\", \"60d\"",
            )
        })
}

pub(super) fn choice(key: &str, value: &str, known: &[&str]) -> ConfigError {
    let hint = match nearest(value, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("write one of: {}", known.join(", ")),
    };
    ConfigError::new(format!("{key} is {value:?}"), hint)
}

/// Whether the columns exist, deploying finds out.
pub(super) fn check_columns<'a>(
    place: &str,
    columns: impl IntoIterator<Item = &'a String>,
) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for column in columns {
        let message = match column.is_empty() {
            true => format!("{place} holds an empty name"),
            false if !seen.insert(column) => format!("{place} names {column:?} twice"),
            false => continue,
        };
        return Err(ConfigError::new(message, "remove it"));
    }
    Ok(())
}
