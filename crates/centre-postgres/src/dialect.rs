//! How statements on the server's own tables are spelled here, and the tables.

use super::state;
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_centre::engine::sql::sql_dialect::{SqlDialect, StepLock};
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::system_table::SystemType;

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
