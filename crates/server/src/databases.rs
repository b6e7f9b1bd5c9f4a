//! The kinds of central databases that a server can stand on.

use std::sync::Arc;

use tidewater_centre::{Centre, CentreError};

use crate::config::DatabaseUrl;

pub use tidewater_centre_postgres::{SqlNames, SqliteTranslation, TranslatedTable};

/// Connects to the consolidated database that a URL names:
/// `postgres://user:password@host:port/database` or `sqlite:path`.
///
/// # Errors
/// The URL is of no known kind, or the database cannot be reached.
pub async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
    match read_url(url)? {
        DatabaseUrl::Sqlite(path) => tidewater_centre_sqlite::connect(path).await,
        DatabaseUrl::Postgres(url) => tidewater_centre_postgres::connect(url).await,
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
    match read_url(url)? {
        DatabaseUrl::Sqlite(_) => Ok(None),
        DatabaseUrl::Postgres(url) => {
            let translated = tidewater_centre_postgres::translate(url, with_rows, most_bytes);
            translated.await.map(Some)
        }
    }
}

fn read_url(url: &str) -> Result<DatabaseUrl<'_>, CentreError> {
    DatabaseUrl::parse(url).map_err(|error| CentreError::Configuration {
        message: error.to_string(),
        hint: error.hint(),
    })
}
