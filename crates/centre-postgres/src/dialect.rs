//! How statements on the server's own tables are spelled here, and the tables.

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

#[cfg(test)]
mod tests;
