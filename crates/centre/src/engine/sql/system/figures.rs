//! The figures of the status that are of several tables.

use crate::engine::connection::{SystemStatement, system_sql};
use crate::engine::sql::statement_shape::SystemSql;

statements! {
    COUNT = SystemSql::Text(
        "SELECT (SELECT count(*) FROM tidewater.user_account),
         (SELECT count(*) FROM tidewater.user_account WHERE disabled),
         (SELECT count(*) FROM tidewater.remote),
         (SELECT count(*) FROM tidewater.remote WHERE revoked),
         (SELECT count(*) FROM tidewater.conflict),
         (SELECT count(*) FROM (SELECT DISTINCT remote_id, publication, table_name, row_key
            FROM tidewater.refused) AS refused),
         (SELECT count(*) FROM tidewater.conflict
            WHERE outcome = 'parked' AND settled_ms IS NULL)",
    );
}

/// Users and how many are disabled, remotes and how many are revoked, conflicts, refused rows, and the
/// conflicts that wait for an operator.
pub(in crate::engine) fn count() -> SystemStatement {
    system_sql!(COUNT)
}
