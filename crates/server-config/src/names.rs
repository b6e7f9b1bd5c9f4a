//! What names of users, publications, procedures and columns may be.

use std::collections::HashSet;

use crate::error::ConfigError;

/// Names of users, publications and programs have at most so many bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The names of procedures that the server itself has begin with this.
pub const BUILT_IN_PREFIX: &str = "tidewater.";

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

/// No column is named twice.
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
