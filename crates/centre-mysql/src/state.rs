//! The server's own tables in the database: whether they are there, and the change logs'.

use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_centre::error::CentreError;

use crate::connection::{MysqlConnection, query_column};
use crate::dialect::MysqlDialect;

/// Makes the tables of the change logs. Those of the history come with the downloads.
pub(crate) const LOGS: &[&str] = &[
    "
-- Entries up to the floor have been pruned; whoever has not come to the entry of `everything`
-- gets all rows.
CREATE TABLE tidewater.change_log (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  table_name VARCHAR(255) NOT NULL, identity LONGTEXT NOT NULL,
  floor BIGINT NOT NULL DEFAULT 0, everything BIGINT NOT NULL DEFAULT 0)",
    "
-- Those of a snapshot: whoever finds one again has come back to the same history.
CREATE TABLE tidewater.mark (
  id VARBINARY(1000) NOT NULL PRIMARY KEY, created_ms BIGINT NOT NULL)",
];

/// Those of some of the server's tables that are there.
pub(crate) async fn found(
    connection: &mut MysqlConnection,
    wanted: &[&'static str],
) -> Result<Vec<&'static str>, CentreError> {
    let sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = database()";
    let what = "looking for the server's tables";
    let there: Vec<String> = query_column(connection, what, sql).await?;
    let is_there = |it: &&&str| there.contains(&MysqlDialect.table(it));
    Ok(wanted.iter().filter(is_there).copied().collect())
}
