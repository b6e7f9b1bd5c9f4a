//! As whom the database sees the remotes of a publication, as it is configured.

use tidewater_centre::ActAs;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::keys::line_of;
use crate::error::ServerError;

const HINT: &str = "write act_as = \"ROLE\" for one role, or act_as = { query = \"SELECT role FROM \
staff WHERE login = {s.username}\" } for one that a query yields for each user";

/// Reads it.
///
/// # Errors
/// It means nothing.
pub(super) fn read(
    publication: &str,
    value: Option<toml::Value>,
) -> Result<Option<ActAs>, ServerError> {
    let act_as = match value {
        None => return Ok(None),
        Some(toml::Value::String(role)) if !role.is_empty() => Some(ActAs::Role(role)),
        Some(toml::Value::Table(mut table)) => match table.remove("query") {
            Some(toml::Value::String(query)) if !query.trim().is_empty() => {
                Some(ActAs::Query(query))
            }
            _ => None,
        },
        Some(_) => None,
    };
    let message = format!("publication {publication:?}: act_as names no role and no query");
    let missing = || ServerError::configuration(message, HINT);
    act_as.map(Some).ok_or_else(missing)
}

/// Looks whether the database has roles at all.
///
/// # Errors
/// It has none, and one is named; the error says on which line.
pub(super) fn check(text: &str, config: &Config) -> Result<(), ServerError> {
    let has_roles = !config.server.consolidated.starts_with("sqlite:");
    let mut publications = config.publications.iter();
    let acting = publications.position(|it| it.act_as.is_some());
    let Some(number) = acting.filter(|_| !has_roles) else {
        return Ok(());
    };
    let line = line(text, number).map(|line| format!("line {line}: "));
    Err(ServerError::configuration(
        format!(
            "{}publication {:?}: act_as needs a database that has roles",
            line.unwrap_or_default(),
            config.publications[number].name
        ),
        "remove act_as, or use PostgreSQL: SQLite has no roles",
    ))
}

/// The line on which the publication with this number says it.
fn line(text: &str, number: usize) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let DeValue::Array(publications) = table.get_ref().get("publication")?.get_ref() else {
        return None;
    };
    let DeValue::Table(publication) = publications.get(number)?.get_ref() else {
        return None;
    };
    let mut keys = publication.iter();
    let (key, _) = keys.find(|(key, _)| key.get_ref() == "act_as")?;
    Some(line_of(text, key.span().start))
}
