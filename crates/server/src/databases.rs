//! The kinds of central databases that a server can stand on.

use std::sync::Arc;

use tidewater_centre::{Centre, CentreError};

pub use tidewater_centre_postgres::{SqlNames, SqliteTranslation, TranslatedTable};

/// Connects to the consolidated database that a URL names:
/// `postgres://user:password@host:port/database` or `sqlite:path`.
///
/// # Errors
/// The URL is of no known kind, or the database cannot be reached.
pub async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
    match Kind::of(url)? {
        Kind::Sqlite(path) => tidewater_centre_sqlite::connect(path).await,
        Kind::Postgres => tidewater_centre_postgres::connect(url).await,
    }
}

/// Translates a database that cannot run in simulated time into one of SQLite, with its rows or
/// without; `most_bytes`: so much of them at most. `None` for one that need not be translated.
///
/// # Errors
/// The URL is of no known kind, or the database cannot be read.
pub async fn translate(
    url: &str,
    with_rows: bool,
    most_bytes: u64,
) -> Result<Option<SqliteTranslation>, CentreError> {
    match Kind::of(url)? {
        Kind::Sqlite(_) => Ok(None),
        Kind::Postgres => {
            let translated = tidewater_centre_postgres::translate(url, with_rows, most_bytes);
            translated.await.map(Some)
        }
    }
}

/// Looks whether a URL names a kind of database that [`connect`] knows. Opens nothing.
///
/// # Errors
/// It does not; the error shows no password.
pub fn check_url(url: &str) -> Result<(), CentreError> {
    Kind::of(url).map(|_| ())
}

/// The kinds of consolidated databases.
enum Kind<'a> {
    /// A file.
    Sqlite(&'a str),
    Postgres,
}

impl Kind<'_> {
    fn of(url: &str) -> Result<Kind<'_>, CentreError> {
        if let Some(path) = tidewater_centre_sqlite::path_of(url) {
            return Ok(Kind::Sqlite(path));
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Kind::Postgres);
        }
        // What follows the scheme may hold a password.
        let message = match url.split_once(':') {
            _ if url.trim().is_empty() => "the consolidated database's URL is empty".to_owned(),
            Some(("sqlite", _)) => format!("{url:?} names no file"),
            Some((scheme, _)) => format!("{scheme:?} is no kind of consolidated database"),
            None => format!("{url:?} does not name a consolidated database"),
        };
        Err(CentreError::Configuration {
            message,
            hint: "write postgres://user@host:5432/database or sqlite:path".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::check_url;

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
            let error = check_url(url).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.hint().contains("postgres://"), "{url}");
        }
        for url in [
            "sqlite:shop.db",
            "sqlite:///srv/shop.db",
            "postgresql://h/d",
        ] {
            check_url(url).unwrap();
        }
    }
}
