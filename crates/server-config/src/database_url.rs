//! The kinds of central databases that a URL can name.

use std::path::Path;

use crate::error::ConfigError;

/// The URL of a central database, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseUrl<'u> {
    /// An SQLite file, by its path.
    Sqlite(&'u str),
    /// PostgreSQL, by the whole URL.
    Postgres(&'u str),
}

impl DatabaseUrl<'_> {
    /// Reads `postgres://user:password@host:port/database` or `sqlite:path`. Opens nothing.
    ///
    /// # Errors
    /// The URL is of no known kind; the error shows no password.
    pub fn parse(url: &str) -> Result<DatabaseUrl<'_>, ConfigError> {
        if let Some(path) = sqlite_path(url) {
            return Ok(DatabaseUrl::Sqlite(path));
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(DatabaseUrl::Postgres(url));
        }
        // What follows the scheme may hold a password.
        let message = match url.split_once(':') {
            _ if url.trim().is_empty() => "the consolidated database's URL is empty".to_owned(),
            Some(("sqlite", _)) => format!("{url:?} names no file"),
            Some((scheme, _)) => format!("{scheme:?} is no kind of consolidated database"),
            None => format!("{url:?} does not name a consolidated database"),
        };
        Err(ConfigError::new(
            message,
            "write postgres://user@host:5432/database or sqlite:path",
        ))
    }
}

/// The path of an SQLite file, if the URL names one.
fn sqlite_path(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty() && Path::new(path).file_name().is_some()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::DatabaseUrl;

    #[test]
    fn a_url_of_no_known_kind_is_told_without_its_password() {
        for (url, message) in [
            ("", "the consolidated database's URL is empty"),
            (" ", "the consolidated database's URL is empty"),
            ("sqlite:", "\"sqlite:\" names no file"),
            ("sqlite:..", "\"sqlite:..\" names no file"),
            (
                "shop.db",
                "\"shop.db\" does not name a consolidated database",
            ),
            (
                "mysql://u:s3cret@h/d",
                "\"mysql\" is no kind of consolidated database",
            ),
        ] {
            let error = DatabaseUrl::parse(url).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.hint().contains("postgres://"), "{url}");
        }
        for url in [
            "sqlite:shop.db",
            "sqlite:///srv/shop.db",
            "postgresql://h/d",
        ] {
            DatabaseUrl::parse(url).unwrap();
        }
    }
}
