//! How statements on the server's own tables are spelled here, and the tables.
//!
//! One text serves MariaDB and MySQL. Where only one of them has a word, it stands in a comment that
//! the other one skips.
//!
//! Parameters are written with their numbers, as `?1`: [`crate::numbered_text`] makes of them what the
//! database takes. Nothing is given back by a statement that writes: what was written is read again
//! ([`crate::system_statement`]).

use tidewater_centre::engine::connection::{SystemStatement, TransactionMode, system_sql};
use tidewater_centre::engine::sql::lexing::SqlLexing;
use tidewater_centre::engine::sql::set_relation::{RelationColumn, SetRelation};
use tidewater_centre::engine::sql::sql_dialect::{RowLock, SqlDialect, StepLock, WriteStrategy};
use tidewater_centre::engine::sql::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemUpdate, TakenKey,
};
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::system_table::{SystemColumn, SystemTable, SystemType};

use crate::quote::quote;

/// Tables and triggers of the server's own begin with this.
pub(super) const PREFIX: &str = "tidewater_";

/// The collation that compares texts byte by byte, blanks at their end too: `utf8mb4_bin` leaves these
/// out. MariaDB's name, and MySQL's.
macro_rules! byte_collation {
    () => {
        "/*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */"
    };
}

/// The spelling of MariaDB and MySQL. A statement that is for rows is run for one after the other, and
/// its first parameter is the row's number.
pub(super) struct MysqlDialect;

impl SystemDialect for MysqlDialect {
    fn push_table(&self, sql: &mut String, name: &str) {
        sql.push_str(PREFIX);
        sql.push_str(name);
    }

    /// Only what reads has a relation of its one row. A parameter has no type of its own, and bytes that
    /// are none of the session's character set would be refused.
    fn push_rows(&self, sql: &mut String, types: &mut dyn Iterator<Item = SystemType>) {
        sql.push_str("(SELECT CAST(?1 AS SIGNED) AS n");
        for (at, column_type) in (1..).zip(types) {
            let cast = match column_type {
                SystemType::Integer | SystemType::Serial | SystemType::Boolean => "SIGNED",
                SystemType::ShortText | SystemType::Text => "CHAR",
                SystemType::ShortBlob | SystemType::Blob => "BINARY",
            };
            sql.push_str(&format!(", CAST(?{} AS {cast}) AS c{at}", at + 1));
        }
        sql.push_str(") AS v");
    }

    /// Three columns of a key have room in an index, which takes 3072 bytes. What is longer is
    /// refused.
    fn column_type(&self, column_type: SystemType) -> &'static str {
        match column_type {
            SystemType::Integer => "BIGINT",
            SystemType::Serial => "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
            SystemType::Boolean => "BOOLEAN",
            SystemType::ShortText => concat!(
                "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE ",
                byte_collation!()
            ),
            SystemType::Text => {
                concat!("LONGTEXT CHARACTER SET utf8mb4 COLLATE ", byte_collation!())
            }
            SystemType::ShortBlob => "VARBINARY(1000)",
            SystemType::Blob => "LONGBLOB",
        }
    }

    fn integer_cast(&self) -> &'static str {
        "SIGNED"
    }

    fn text_cast(&self) -> &'static str {
        "CHAR"
    }

    /// A plain insert that fails for a taken key has passed over the row: `IGNORE` would cut values
    /// that are too long as well. Where a query gives the rows, they are of the server's own tables.
    fn push_insert(&self, sql: &mut String, insert: &SystemInsert) {
        let ignores =
            insert.taken == TakenKey::PassesOver && matches!(insert.source, InsertSource::Query(_));
        sql.push_str(match ignores {
            true => "INSERT IGNORE INTO ",
            false => "INSERT INTO ",
        });
        self.push_table(sql, insert.table.name);
        sql.push_str(&format!(" ({}) ", insert.columns.join(", ")));
        self.push_source(sql, insert);
        self.push_taken_key(sql, insert.table, &insert.taken);
    }

    /// The rows that a statement is run for come one by one.
    fn push_source(&self, sql: &mut String, insert: &SystemInsert) {
        let values: Vec<String> = match insert.source {
            InsertSource::Values(values) => values.iter().map(|&it| it.to_owned()).collect(),
            InsertSource::Query(query) => return self.push_text(sql, query),
            InsertSource::Rows | InsertSource::RowsInOrder => {
                (0..insert.columns.len()).map(row_parameter).collect()
            }
        };
        self.push_text(sql, &format!("VALUES ({})", values.join(", ")));
    }

    /// Columns are set one after the other, and a condition would read what was set before it: the
    /// first one leaves in a variable of the session whether it held.
    fn push_taken_key(&self, sql: &mut String, table: &SystemTable, taken: &TakenKey) {
        let TakenKey::Updates { set, only_if } = taken else {
            return;
        };
        sql.push_str(" ON DUPLICATE KEY UPDATE ");
        for ((column, value), at) in set.iter().zip(0..) {
            sql.push_str(if at > 0 { ", " } else { "" });
            sql.push_str(column);
            sql.push_str(" = ");
            let Some(only_if) = only_if else {
                self.push_old_and_new(sql, table, value);
                continue;
            };
            sql.push_str("IF(");
            if at == 0 {
                sql.push_str("@tidewater_updates := (");
                self.push_old_and_new(sql, table, only_if);
                sql.push(')');
            } else {
                sql.push_str("@tidewater_updates");
            }
            sql.push_str(", ");
            self.push_old_and_new(sql, table, value);
            sql.push_str(", ");
            self.push_table(sql, table.name);
            sql.push_str(&format!(".{column})"));
        }
    }

    fn push_new(&self, sql: &mut String, column: &str) {
        sql.push_str(&format!("VALUES({column})"));
    }

    fn push_update(&self, sql: &mut String, update: &SystemUpdate) {
        sql.push_str("UPDATE ");
        self.push_table(sql, update.table.name);
        sql.push_str(" SET ");
        for ((column, value), at) in update.set.iter().zip(0..) {
            let comma = if at > 0 { ", " } else { "" };
            sql.push_str(&format!("{comma}{column} = "));
            self.push_text(sql, &of_one_row(value));
        }
        for (column, at) in update.key.iter().zip(0..) {
            let before = if at > 0 { " AND " } else { " WHERE " };
            sql.push_str(&format!("{before}{column} = {}", row_parameter(at)));
        }
        if let Some(only_if) = update.only_if {
            sql.push_str(" AND ");
            self.push_text(sql, &of_one_row(only_if));
        }
    }

    /// A condition may read the table that is deleted from only where what it finds is put aside
    /// before, which a limit brings about.
    fn push_delete(&self, sql: &mut String, delete: &SystemDelete) {
        /// More rows than a table can have: the manual's way to say that there is no limit.
        const NO_LIMIT: &str = "18446744073709551615";
        let name = self.table(delete.table.name);
        let reads_itself = delete
            .condition
            .contains(&format!("tidewater.{}", delete.table.name));
        let key = delete.table.primary_key.join(", ");
        match reads_itself {
            true => sql.push_str(&format!(
                "DELETE {name} FROM {name} JOIN (SELECT {key} FROM {name} WHERE "
            )),
            false => sql.push_str(&format!("DELETE FROM {name} WHERE ")),
        }
        self.push_text(sql, delete.condition);
        let no_limit = reads_itself.then_some(NO_LIMIT);
        if let Some(limit) = delete.limit.or(no_limit) {
            sql.push_str(" LIMIT ");
            self.push_text(sql, limit);
        }
        if reads_itself {
            sql.push_str(&format!(") AS found USING ({key})"));
        }
    }

    /// What was written is read again.
    fn push_returning(&self, _: &mut String, _: &[&str]) {}

    /// Statistics that are kept are some seconds old, in which a table that was empty is read as a whole
    /// for each of its rows.
    fn table_options(&self) -> &'static str {
        " ENGINE = InnoDB STATS_PERSISTENT = 0"
    }

    /// Long texts take a default only as an expression.
    fn push_column(&self, sql: &mut String, table: &SystemTable, column: &SystemColumn) {
        sql.push_str(&format!(
            "{} {}",
            column.name,
            self.column_type(column.column_type)
        ));
        // The type says it all.
        if column.column_type == SystemType::Serial {
            return;
        }
        if !column.is_nullable {
            sql.push_str(" NOT NULL");
        }
        if let Some(default) = column.default {
            sql.push_str(&format!(" DEFAULT ({default})"));
        }
        if table.primary_key == [column.name] {
            sql.push_str(" PRIMARY KEY");
        }
    }
}

impl SqlDialect for MysqlDialect {
    fn title(&self) -> &'static str {
        "MariaDB or MySQL"
    }

    /// Sessions have `ANSI_QUOTES` and `NO_BACKSLASH_ESCAPES`.
    fn lexing(&self) -> SqlLexing {
        SqlLexing {
            has_backticks: true,
            has_hash_comments: true,
            ..SqlLexing::STANDARD
        }
    }

    /// Writers read what is committed, so that they lock no gaps between rows. Who reads has one
    /// snapshot, which is taken at once.
    fn begin(&self, mode: TransactionMode) -> &'static str {
        match mode {
            TransactionMode::Writing(_) => "START TRANSACTION",
            TransactionMode::Reading => {
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                 START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
            }
            TransactionMode::Trying => {
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                 START TRANSACTION WITH CONSISTENT SNAPSHOT"
            }
        }
    }

    fn identifier(&self, name: &str) -> String {
        quote(name)
    }

    /// Variables of the session say it.
    fn say_caller(&self, user: &str, remote_id: &str, _: bool) -> Vec<SystemStatement> {
        vec![system_sql!(
            "SET @tidewater_username = ?1, @tidewater_remote_id = ?2",
            user,
            remote_id,
        )]
    }

    fn forget_caller(&self) -> Vec<SystemStatement> {
        vec![system_sql!(
            "SET @tidewater_username = NULL, @tidewater_remote_id = NULL"
        )]
    }

    /// Variables outlive the transaction.
    fn end_writing(&self) -> Vec<SystemStatement> {
        self.forget_caller()
    }

    /// MariaDB has names of columns behind the alias only in a `WITH`.
    fn value_relation(&self, query: &str) -> String {
        format!("(WITH v (value) AS (\n{query}\n) SELECT value FROM v) AS v")
    }

    fn write_strategy(&self) -> WriteStrategy {
        WriteStrategy::Rows
    }

    fn row_lock(&self, _: RowLock) -> Option<&'static str> {
        Some("FOR UPDATE")
    }

    fn set_relation(&self, _: &[RelationColumn<'_>], _: usize) -> SetRelation {
        todo!("scripts: JSON_TABLE over one parameter, bytes as hexadecimal digits")
    }

    fn byte_collation(&self) -> &'static str {
        byte_collation!()
    }

    /// What is no number would be 0: it is yielded instead, to be refused.
    fn highest_integer(&self) -> &'static str {
        "coalesce(min(CASE WHEN NOT CAST(value AS CHAR) REGEXP '^[+-]?[0-9]+$' \
         THEN CAST(value AS CHAR) END), CAST(max(CAST(value AS SIGNED)) AS CHAR))"
    }

    fn has_transactional_ddl(&self) -> bool {
        false
    }

    fn lock_title(&self, _: StepLock, table: &str) -> String {
        format!("the metadata lock on {table}")
    }

    fn takes_several_statements(&self) -> bool {
        false
    }
}

/// The parameter of a column of the one row that a statement is run for, from 0 on: that of the row's
/// number is before them.
pub(super) fn row_parameter(at: usize) -> String {
    format!("?{}", at + 2)
}

/// A neutral text in which the columns `v.c1` and so on are the parameters of one row.
fn of_one_row(text: &str) -> String {
    const COLUMN: &str = "v.c";
    let mut pieces = text.split(COLUMN);
    let mut sql = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.find(|it: char| !it.is_ascii_digit());
        let (number, behind) = piece.split_at(digits.unwrap_or(piece.len()));
        match number.parse::<usize>() {
            Ok(number) => sql.push_str(&row_parameter(number - 1)),
            Err(_) => sql.push_str(&format!("{COLUMN}{number}")),
        }
        sql.push_str(behind);
    }
    sql
}

#[cfg(test)]
mod tests;
