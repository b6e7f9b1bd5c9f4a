//! How statements on the server's own tables are spelled here, and the tables.

use super::state;
use super::waits::HURRIED_MS;
use crate::quote::ident;
use tidewater_centre::engine::connection::{
    Durability, SystemStatement, TransactionMode, system_sql,
};
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_centre::engine::sql::sql_dialect::{RowLock, SqlDialect, StepLock, WriteStrategy};
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::system_table::SystemType;
use tidewater_centre::error::CentreError;

/// Constraints that are deferred from the start are so again for the next upload.
const DEFER_AGAIN: &str = "
DO $$ DECLARE c record; BEGIN
FOR c IN SELECT DISTINCT n.nspname, o.conname FROM pg_catalog.pg_constraint o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.connamespace WHERE o.condeferred
LOOP EXECUTE format('SET CONSTRAINTS %I.%I DEFERRED', c.nspname, c.conname); END LOOP; END $$";

/// PostgreSQL's spelling. The rows of a statement are arrays, one for each column.
pub(super) struct PostgresDialect;

impl SystemDialect for PostgresDialect {
    fn push_table(&self, sql: &mut String, name: &str) {
        sql.push_str("tidewater.");
        sql.push_str(name);
    }

    fn push_parameter(&self, sql: &mut String, number: &str) {
        sql.push('$');
        sql.push_str(number);
    }

    fn push_rows(&self, sql: &mut String, types: &mut dyn Iterator<Item = SystemType>) {
        let mut names = String::new();
        sql.push_str("unnest(");
        for (at, column_type) in (1..).zip(types) {
            let array = match column_type {
                SystemType::Integer | SystemType::Serial => "bigint",
                SystemType::Boolean => "boolean",
                SystemType::ShortText | SystemType::Text => "text",
                SystemType::ShortBlob | SystemType::Blob => "bytea",
            };
            let comma = if at > 1 { ", " } else { "" };
            sql.push_str(&format!("{comma}${at}::{array}[]"));
            names.push_str(&format!("c{at}, "));
        }
        sql.push_str(&format!(") WITH ORDINALITY AS v({names}n)"));
    }

    fn column_type(&self, column_type: SystemType) -> &'static str {
        match column_type {
            SystemType::Integer => "bigint",
            SystemType::Serial => "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            SystemType::Boolean => "BOOLEAN",
            SystemType::ShortText | SystemType::Text => "text COLLATE \"C\"",
            SystemType::ShortBlob | SystemType::Blob => "bytea",
        }
    }
}

impl SqlDialect for PostgresDialect {
    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn lexing(&self) -> SqlLexing {
        SqlLexing {
            has_escape_strings: true,
            has_dollar_quotes: true,
            nests_comments: true,
            ends_comments_at_returns: true,
            ..SqlLexing::STANDARD
        }
    }

    fn begin(&self, mode: TransactionMode) -> &'static str {
        match mode {
            TransactionMode::Writing(Durability::Durable) => "BEGIN",
            TransactionMode::Writing(Durability::Soon) => {
                "BEGIN; SET LOCAL synchronous_commit = off"
            }
            TransactionMode::Reading => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            // One that only reads creates no temporary tables, either.
            TransactionMode::Trying => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        }
    }

    fn identifier(&self, name: &str) -> String {
        ident(name)
    }

    fn say_caller(&self, user: &str, remote_id: &str, _: bool) -> Vec<SystemStatement> {
        vec![system_sql!(
            "SELECT pg_catalog.set_config('tidewater.username', ?1, true),
               pg_catalog.set_config('tidewater.remote_id', ?2, true)",
            user,
            remote_id,
        )]
    }

    fn forget_caller(&self) -> Vec<SystemStatement> {
        self.say_caller("", "", false)
    }

    fn lock_written(&self, tables: &str) -> String {
        format!("LOCK TABLE {tables} IN ROW EXCLUSIVE MODE")
    }

    fn defer_again(&self) -> &'static str {
        DEFER_AGAIN
    }

    fn check_at_once(&self) -> &'static str {
        "SET CONSTRAINTS ALL IMMEDIATE"
    }

    fn hurry(&self) -> String {
        format!("SET LOCAL lock_timeout = {HURRIED_MS}")
    }

    fn write_strategy(&self) -> WriteStrategy {
        WriteStrategy::Sets
    }

    /// Also those that the database gives numbers to.
    fn insert_clause(&self) -> &'static str {
        " OVERRIDING SYSTEM VALUE"
    }

    fn row_lock(&self, lock: RowLock) -> Option<&'static str> {
        Some(match lock {
            RowLock::Change => "FOR NO KEY UPDATE OF t",
            RowLock::Reference => "FOR UPDATE OF t",
        })
    }

    /// It counts by itself.
    fn count_changes(&self) -> Option<&'static str> {
        Some(
            "SELECT relid::pg_catalog.regclass::text, n_tup_ins, n_tup_upd, n_tup_del
             FROM pg_catalog.pg_stat_xact_user_tables
             WHERE n_tup_ins + n_tup_upd + n_tup_del > 0
               AND schemaname <> 'tidewater' AND schemaname NOT LIKE 'pg\\_temp\\_%'
             ORDER BY 1",
        )
    }

    fn assume_role(&self, role: &str) -> String {
        format!("SET LOCAL ROLE {}", ident(role))
    }

    fn give_up_role(&self) -> &'static str {
        "RESET ROLE"
    }

    fn is_denied(&self, error: &CentreError) -> bool {
        // insufficient_privilege
        matches!(error, CentreError::StatementFailed { sqlstate: Some(state), .. } if state == "42501")
    }

    fn parameter(&self, number: usize) -> String {
        format!("${number}")
    }

    fn state_prelude(&self) -> &'static str {
        state::SCHEMA_DDL
    }

    fn lock_title(&self, lock: StepLock, table: &str) -> String {
        match lock {
            StepLock::Writers => format!("SHARE ROW EXCLUSIVE on {table}"),
            StepLock::Everybody => format!("ACCESS EXCLUSIVE on {table}"),
        }
    }

    fn byte_collation(&self) -> &'static str {
        "\"C\""
    }

    fn takes_several_statements(&self) -> bool {
        false
    }

    fn ends_transactions_at_errors(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
