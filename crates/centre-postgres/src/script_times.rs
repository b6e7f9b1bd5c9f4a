//! The statements of scripts, prepared under the types that their parameters are told to have.

use std::borrow::Cow;

use tokio_postgres::Statement;

use super::connection::PostgresConnection;
use super::description::parameter_types;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::scripts::told_types;
use tidewater_centre::error::CentreError;

/// The statement of a script.
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
