//! What is served, and keeping it up to date with the file.

use std::sync::Arc;

use super::connection::SqliteConnection;
use super::publication::SqliteTables;
use super::{SqliteCentre, failure};
use tidewater_centre::engine::deploy::reload;
use tidewater_centre::engine::served_publications::{CentreShared, ServedPublications};
use tidewater_centre::engine::thread::at_once;
use tidewater_centre::error::CentreError;

/// Publications as they are served.
pub(super) type SqlitePublications = ServedPublications<SqliteTables>;

/// What is served, checked and compiled anew if something else was deployed since, or if the
/// file's schema has changed: a new unique index needs a trigger of ours, a new trigger may fail
/// half-way. A column that was added and not deployed is left out.
///
/// # Errors
/// [`CentreError::NotDeployed`] when the file does not fit any more. Deploying has
/// remotes fetch what may have been missed.
pub(super) fn refresh(
    connection: &mut SqliteConnection,
    shared: &CentreShared<SqliteTables>,
) -> Result<Arc<SqlitePublications>, CentreError> {
    let served = shared.served();
    if served.publications.is_empty() {
        return Ok(served);
    }
    let fresh = at_once(reload::<SqliteCentre>(connection, &served));
    let Some(fresh) = fresh.map_err(changed_since)? else {
        return Ok(served);
    };
    let served = Arc::new(fresh);
    shared.serve(served.clone());
    Ok(served)
}

/// The file fitted when it was deployed.
fn changed_since(error: CentreError) -> CentreError {
    match error {
        CentreError::NotDeployed { message } | CentreError::Configuration { message, .. } => {
            CentreError::NotDeployed {
                message: format!("the file was changed since it was deployed: {message}"),
            }
        }
        other => other,
    }
}

/// SQLite's counter of schema changes.
pub(super) fn schema_version(connection: &SqliteConnection) -> Result<String, CentreError> {
    connection
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(0)))
        .map(|version| version.to_string())
        .map_err(failure("reading the schema's version"))
}
