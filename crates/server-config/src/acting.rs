//! As whom the database sees the remotes of a publication, as it is configured.

use tidewater_centre::ActAs;

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

const HINT: &str = "write act_as = \"ROLE\" for one role, or act_as = { query = \"SELECT role FROM \
staff WHERE login = {s.username}\" } for one that a query yields for each user";

/// Reads it.
///
/// # Errors
/// It means nothing.
pub(super) fn read(
    publication: &str,
    value: Option<toml::Value>,
) -> Result<Option<ActAs>, ConfigError> {
    let act_as = match value {
        None => return Ok(None),
        Some(toml::Value::String(role)) if !role.is_empty() => Some(ActAs::Role(role)),
        Some(toml::Value::Table(table)) => {
            let mut section = SectionReader::new("publication.act_as", table);
            let query = section.text("query")?;
            query.filter(|it| !it.trim().is_empty()).map(ActAs::Query)
        }
        Some(_) => None,
    };
    let message = format!("publication {publication:?}: act_as names no role and no query");
    let missing = || ConfigError::new(message, HINT);
    act_as.map(Some).ok_or_else(missing)
}
