//! How statements on the server's own tables are spelled here, and the tables.

use super::literal;
use super::quote;
use tidewater_centre::engine::connection::{SystemStatement, TransactionMode, system_sql};
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_centre::engine::sql::set_relation::{RelationColumn, SetRelation};
use tidewater_centre::engine::sql::sql_dialect::SqlDialect;
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::system_table::SystemType;

/// Tables of the server's own begin with this. A remote in the same file, which is then a branch's,
/// has names that begin with `tidewater_` and none of these.
pub(super) const PREFIX: &str = "tidewater_centre_";

/// SQLite's spelling. A statement that is for rows is run for one after the other, and its first
/// parameter is the row's number.
pub(super) struct SqliteDialect;

impl SystemDialect for SqliteDialect {
    fn push_table(&self, sql: &mut String, name: &str) {
        sql.push_str(PREFIX);
        sql.push_str(name);
    }

    fn push_rows(&self, sql: &mut String, types: &mut dyn Iterator<Item = SystemType>) {
        sql.push_str("(SELECT ?1 AS n");
        for (at, _) in (1..).zip(types) {
            sql.push_str(&format!(", ?{} AS c{at}", at + 1));
        }
        sql.push_str(") AS v");
    }

    fn column_type(&self, column_type: SystemType) -> &'static str {
        match column_type {
            SystemType::Integer => "INTEGER",
            // Numbers are given to the rows of any table with an integer for its key; not again only
            // with this.
            SystemType::Serial => "INTEGER PRIMARY KEY AUTOINCREMENT",
            SystemType::Boolean => "BOOLEAN",
            SystemType::ShortText | SystemType::Text => "TEXT",
            SystemType::ShortBlob | SystemType::Blob => "BLOB",
        }
    }
}

impl SqlDialect for SqliteDialect {
    fn title(&self) -> &'static str {
        "SQLite"
    }

    fn lexing(&self) -> SqlLexing {
        SqlLexing {
            has_backticks: true,
            has_brackets: true,
            ..SqlLexing::STANDARD
        }
    }

    fn parameter(&self, number: usize) -> String {
        format!("?{number}")
    }

    /// The first read of a transaction that reads takes its snapshot.
    fn begin(&self, mode: TransactionMode) -> &'static str {
        match mode {
            TransactionMode::Writing(_) => "BEGIN IMMEDIATE",
            TransactionMode::Reading | TransactionMode::Trying => "BEGIN",
        }
    }

    fn identifier(&self, name: &str) -> String {
        quote(name)
    }

    /// A table says it: nobody can look who reads.
    fn say_caller(&self, user: &str, remote_id: &str, only_reads: bool) -> Vec<SystemStatement> {
        if only_reads {
            return Vec::new();
        }
        let say = system_sql!(
            "INSERT INTO tidewater.uploading (username, remote_id) VALUES (?1, ?2)",
            user,
            remote_id,
        );
        self.forget_caller().into_iter().chain([say]).collect()
    }

    fn forget_caller(&self) -> Vec<SystemStatement> {
        vec![system_sql!("DELETE FROM tidewater.uploading")]
    }

    /// A table says it.
    fn end_writing(&self) -> Vec<SystemStatement> {
        self.forget_caller()
    }

    fn defer_checks(&self) -> Option<(&'static str, &'static str)> {
        Some((
            "PRAGMA defer_foreign_keys = ON",
            "PRAGMA defer_foreign_keys = OFF",
        ))
    }

    fn watched_tables(&self) -> Option<&'static str> {
        Some(
            "SELECT name FROM main.sqlite_schema WHERE type = 'table'
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
               AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'
               AND sql NOT LIKE 'CREATE VIRTUAL%'",
        )
    }

    /// By temporary triggers, which go with the transaction.
    fn watch_changes(&self, tables: &[String]) -> String {
        let mut sql = "CREATE TEMP TABLE tidewater_tried (name TEXT, op INTEGER);".to_owned();
        for (number, table) in tables.iter().enumerate() {
            for (op, event) in ["INSERT", "UPDATE", "DELETE"].iter().enumerate() {
                sql.push_str(&format!(
                    "CREATE TEMP TRIGGER tidewater_tried_{number}_{op} AFTER {event} ON main.{}
                     BEGIN INSERT INTO tidewater_tried VALUES ({}, {op}); END;",
                    quote(table),
                    literal(table),
                ));
            }
        }
        sql
    }

    fn count_changes(&self) -> Option<&'static str> {
        Some(
            "SELECT name, sum(op = 0), sum(op = 1), sum(op = 2) FROM temp.tidewater_tried
             GROUP BY name ORDER BY name",
        )
    }

    /// Its subqueries cannot name their columns.
    fn value_relation(&self, query: &str) -> String {
        format!("(WITH v (value) AS (\n{query}\n) SELECT value FROM v)")
    }

    /// One parameter, a JSON array of arrays. Bytes are an object with their digits.
    fn set_relation(&self, columns: &[RelationColumn<'_>], first: usize) -> SetRelation {
        let columns = columns.iter().enumerate().map(|(at, column)| {
            format!(
                "CASE json_type(value, '$[{at}]') WHEN 'object' \
                 THEN unhex(json_extract(value, '$[{at}].hex')) \
                 ELSE json_extract(value, '$[{at}]') END AS {}",
                quote(column.name)
            )
        });
        let columns = columns.collect::<Vec<_>>().join(", ");
        SetRelation {
            sql: format!("(SELECT {columns} FROM json_each(?{first}))"),
            parameters: 1,
        }
    }

    fn trial_hint(&self) -> &'static str {
        "try it in the sqlite3 shell with values in place of the parameters"
    }

    fn byte_collation(&self) -> &'static str {
        "BINARY"
    }

    /// What is no number would be 0: it is yielded instead, to be refused.
    fn highest_integer(&self) -> &'static str {
        "coalesce(min(CASE WHEN typeof(value) IN ('text', 'blob') \
         AND CAST(CAST(value AS integer) AS text) <> trim(CAST(value AS text)) \
         THEN CAST(value AS text) END), CAST(max(CAST(value AS integer)) AS text))"
    }
}

#[cfg(test)]
mod tests;
