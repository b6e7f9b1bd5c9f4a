//! How statements on the server's own tables are spelled here, and the tables.

mod activity;
mod roles;
mod types;

use super::state;
use crate::quote::ident;
use tidewater_centre::engine::connection::{
    Durability, SystemStatement, TransactionMode, system_sql,
};
use tidewater_centre::engine::described_statement::DescribedColumn;
use tidewater_centre::engine::sql::activity_sql::ActivitySql;
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_centre::engine::sql::role_sql::RoleSql;
use tidewater_centre::engine::sql::set_relation::{RelationColumn, SetRelation};
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

/// How long a sync waits for a lock after another one has waited in vain.
pub(super) const HURRIED_MS: u64 = 100;

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

    /// However many rows there are, each is looked up by itself: OFFSET keeps PostgreSQL from reading
    /// all of a table once instead.
    fn for_each(&self, relation: &str, query: &str, alias: &str) -> String {
        match relation.is_empty() {
            true => format!("({query} OFFSET 0) AS {alias}"),
            false => format!("{relation}, LATERAL ({query} OFFSET 0) AS {alias}"),
        }
    }

    fn left_look_up(&self, outputs: &str, from: &str, condition: &str) -> (String, String) {
        let join = format!(
            "LEFT JOIN LATERAL (SELECT {outputs} FROM {from} WHERE {condition} OFFSET 0) j ON true"
        );
        ("j.*".into(), join)
    }

    fn lock_read(&self, tables: &str) -> String {
        format!("LOCK TABLE {tables} IN ACCESS SHARE MODE")
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

    fn state_prelude(&self) -> &'static [&'static str] {
        &[state::SCHEMA_DDL]
    }

    fn lock_title(&self, lock: StepLock, table: &str) -> String {
        match lock {
            StepLock::Writers => format!("SHARE ROW EXCLUSIVE on {table}"),
            StepLock::Everybody => format!("ACCESS EXCLUSIVE on {table}"),
        }
    }

    /// An array for each column.
    fn set_relation(&self, columns: &[RelationColumn<'_>], first: usize) -> SetRelation {
        let (mut values, mut arrays, mut aliases) = (Vec::new(), Vec::new(), Vec::new());
        for (at, column) in columns.iter().enumerate() {
            values.push(format!("{} AS {}", column.value, ident(column.name)));
            arrays.push(format!("${}::{}[]", first + at, column.parameter_type));
            aliases.push(format!("c{at}"));
        }
        SetRelation {
            sql: format!(
                "(SELECT {} FROM unnest({}) AS i({}))",
                values.join(", "),
                arrays.join(", "),
                aliases.join(", "),
            ),
            parameters: columns.len(),
        }
    }

    fn byte_collation(&self) -> &'static str {
        "\"C\""
    }

    fn trial_hint(&self) -> &'static str {
        "the statement must run in the schema public"
    }

    fn assignment_sql(&self) -> Option<&'static str> {
        Some(types::ASSIGNMENT)
    }

    /// What cannot be read as it is sent is sent as text.
    fn readable_query(&self, sql: &str, columns: &[DescribedColumn]) -> Option<String> {
        if columns.iter().all(|it| it.is_readable) {
            return None;
        }
        let names: Vec<String> = (1..=columns.len()).map(|at| format!("c{at}")).collect();
        let read = columns.iter().zip(&names);
        let read = read.map(|(column, name)| match column.is_readable {
            true => name.clone(),
            false => format!("{name}::text"),
        });
        Some(format!(
            "WITH tidewater_answer ({}) AS (\n{sql}\n) SELECT {} FROM tidewater_answer",
            names.join(", "),
            read.collect::<Vec<_>>().join(", ")
        ))
    }

    fn zoneless_sql(&self) -> Option<&'static str> {
        Some(types::ZONELESS)
    }

    fn activity(&self) -> ActivitySql {
        activity::ACTIVITY
    }

    fn roles(&self) -> Option<&'static RoleSql> {
        Some(&roles::ROLES)
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
