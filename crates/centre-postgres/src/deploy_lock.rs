//! The lock under which change logs are made, and the marker after which every remote fetches a table whole.

use crate::connection::PostgresConnection;
use crate::driver_error::statement_failed;
use crate::state::ADVISORY_LOCK;
use crate::triggers::marker;
use tidewater_centre::engine::connection::{DatabaseConnection as _, TransactionMode};
use tidewater_centre::error::CentreError;

/// The SQL that has remotes fetch all rows of a log's table.
pub(super) fn everything(log_id: i64) -> String {
    marker(log_id as i32) + "\n"
}

/// Begins a transaction that alone may change what is deployed.
pub(super) async fn begin_alone(
    connection: &mut PostgresConnection,
    lock_timeout_ms: u32,
) -> Result<(), CentreError> {
    connection.begin(TransactionMode::WRITING).await?;
    let settings = format!(
        "SET LOCAL lock_timeout = {lock_timeout_ms}; \
         SELECT pg_catalog.pg_advisory_xact_lock({ADVISORY_LOCK});"
    );
    let alone = connection.client().batch_execute(&settings).await;
    alone.map_err(|failure| match failure.code().map(|code| code.code()) {
        Some("55P03") => CentreError::Locked {
            message: "somebody else deploys or prunes; nothing was changed".into(),
        },
        _ => statement_failed("deploying")(failure),
    })
}
