//! The times of scripts, `{s.last_download}` and the like: moments, whatever they are compared with.
//!
//! PostgreSQL gives a parameter the type of what it is compared with, unless it is told one. A
//! `timestamptz` is compared with a time without a zone in the zone of the session, which is that of
//! the database, as for every application that writes the column by `now()`.

use std::borrow::Cow;

use tokio_postgres::Statement;

use super::connection::PostgresConnection;
use super::description::parameter_types;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::scripts::told_types;
use tidewater_centre::error::CentreError;

/// The statement of a script, with the types that its parameters are told to have.
pub(super) async fn prepare(
    connection: &mut PostgresConnection,
    script: &Script,
) -> Result<Statement, CentreError> {
    let types = parameter_types(&told_types(script));
    // Statements are known by their texts, and another script may have the same text with a parameter
    // that is no time.
    let sql = match types.is_empty() {
        true => Cow::from(&script.sql),
        false => {
            let typed = types.iter().map(|it| it.name()).collect::<Vec<_>>();
            Cow::from(format!("{}\n-- {}", script.sql, typed.join(", ")))
        }
    };
    connection.prepare(&sql, &types).await
}
