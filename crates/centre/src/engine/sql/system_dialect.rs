//! How a database spells the statements on the server's own tables, and the tables.
//!
//! Methods that begin with `push_` add to the text of a statement.

use super::statement_shape::{
    InsertSource, SystemDelete, SystemInsert, SystemSql, SystemUpdate, TakenKey, split_rows,
};
use super::system_table::{SystemColumn, SystemTable, SystemType};

/// How a database spells what is neutral. What is not implemented is as most databases want it.
pub trait SystemDialect: Send + Sync {
    /// The name of a table.
    fn push_table(&self, sql: &mut String, name: &str);

    /// The relation `v` of the rows that a statement is run for, which have these types.
    fn push_rows(&self, sql: &mut String, types: &mut dyn Iterator<Item = SystemType>);

    /// The type of a column.
    fn column_type(&self, column_type: SystemType) -> &'static str;

    /// A parameter, by its number from 1 on.
    fn push_parameter(&self, sql: &mut String, number: &str) {
        sql.push('?');
        sql.push_str(number);
    }

    /// What `CAST` calls the type of integers of 64 bits.
    fn integer_cast(&self) -> &'static str {
        "bigint"
    }

    /// What `CAST` calls the type of texts.
    fn text_cast(&self) -> &'static str {
        "text"
    }

    /// The name of a table by itself.
    fn table(&self, name: &str) -> String {
        let mut sql = String::new();
        self.push_table(&mut sql, name);
        sql
    }

    /// A statement.
    fn spell(&self, statement: SystemSql) -> String {
        let mut sql = String::with_capacity(512);
        match statement {
            SystemSql::Text(text) => self.push_text(&mut sql, text),
            SystemSql::Insert(insert) => self.push_insert(&mut sql, insert),
            SystemSql::Update(update) => self.push_update(&mut sql, update),
            SystemSql::Delete(delete) => self.push_delete(&mut sql, delete),
        }
        sql
    }

    /// A neutral text.
    fn push_text(&self, sql: &mut String, text: &str) {
        let Some((before, types, behind)) = split_rows(text) else {
            return self.push_names(sql, text);
        };
        self.push_names(sql, before);
        self.push_rows(sql, &mut types.map(SystemType::from_name));
        self.push_names(sql, behind);
    }

    /// A neutral text in which there is no relation of rows.
    fn push_names(&self, sql: &mut String, text: &str) {
        const SCHEMA: &str = "tidewater.";
        const INTEGER: &str = "{integer}";
        let mut rest = text;
        while let Some(at) = rest.find(['?', 't', '{']) {
            let (before, from) = rest.split_at(at);
            sql.push_str(before);
            if let Some(behind) = from.strip_prefix(SCHEMA) {
                let name;
                (name, rest) = split_name(behind);
                self.push_table(sql, name);
                continue;
            }
            if let Some(behind) = from.strip_prefix(INTEGER) {
                sql.push_str(self.integer_cast());
                rest = behind;
                continue;
            }
            let (first, behind) = from.split_at(1);
            let (number, after) = split_at_first(behind, |it| !it.is_ascii_digit());
            if first == "?" && !number.is_empty() {
                self.push_parameter(sql, number);
                rest = after;
            } else {
                sql.push_str(first);
                rest = behind;
            }
        }
        sql.push_str(rest);
    }

    /// An insert.
    fn push_insert(&self, sql: &mut String, insert: &SystemInsert) {
        let table = insert.table;
        sql.push_str("INSERT INTO ");
        self.push_table(sql, table.name);
        sql.push_str(" (");
        push_list(sql, insert.columns);
        sql.push_str(") ");
        self.push_source(sql, insert);
        self.push_taken_key(sql, table, &insert.taken);
        self.push_returning(sql, insert.returning);
    }

    /// Where the values of an insert are from.
    fn push_source(&self, sql: &mut String, insert: &SystemInsert) {
        match insert.source {
            InsertSource::Values(values) => {
                sql.push_str("VALUES (");
                for (value, at) in values.iter().zip(0..) {
                    sql.push_str(if at > 0 { ", " } else { "" });
                    self.push_text(sql, value);
                }
                sql.push(')');
            }
            InsertSource::Query(text) => self.push_text(sql, text),
            InsertSource::Rows | InsertSource::RowsInOrder => {
                let columns = insert.columns.iter();
                sql.push_str("SELECT ");
                for at in 1..=columns.len() {
                    sql.push_str(if at > 1 { ", c" } else { "c" });
                    sql.push_str(&at.to_string());
                }
                sql.push_str(" FROM ");
                self.push_rows(sql, &mut columns.map(|it| insert.table.column_type(it)));
                // Some take what follows for the condition of a join.
                if insert.taken != TakenKey::Fails {
                    sql.push_str(" WHERE true");
                }
                if insert.source == InsertSource::RowsInOrder {
                    sql.push_str(" ORDER BY n");
                }
            }
        }
    }

    /// What becomes of an inserted row whose key is taken, behind the rows.
    fn push_taken_key(&self, sql: &mut String, table: &SystemTable, taken: &TakenKey) {
        let (set, only_if) = match taken {
            TakenKey::Fails => return,
            TakenKey::PassesOver => return sql.push_str(" ON CONFLICT DO NOTHING"),
            TakenKey::Updates { set, only_if } => (set, only_if),
        };
        sql.push_str(" ON CONFLICT (");
        push_list(sql, table.primary_key);
        sql.push_str(") DO UPDATE SET ");
        for ((column, value), at) in set.iter().zip(0..) {
            sql.push_str(if at > 0 { ", " } else { "" });
            sql.push_str(column);
            sql.push_str(" = ");
            self.push_old_and_new(sql, table, value);
        }
        if let Some(only_if) = only_if {
            sql.push_str(" WHERE ");
            self.push_old_and_new(sql, table, only_if);
        }
    }

    /// A neutral text with `{old.column}` and `{new.column}`.
    fn push_old_and_new(&self, sql: &mut String, table: &SystemTable, text: &str) {
        let mut pieces = text.split('{');
        self.push_text(sql, pieces.next().unwrap_or_default());
        for piece in pieces {
            let Some((name, behind)) = piece.split_once('}') else {
                continue;
            };
            match name.split_once('.') {
                Some(("old", column)) => {
                    self.push_table(sql, table.name);
                    sql.push('.');
                    sql.push_str(column);
                }
                Some(("new", column)) => self.push_new(sql, column),
                _ => self.push_text(sql, &format!("{{{name}}}")),
            }
            self.push_text(sql, behind);
        }
    }

    /// A column of the row that was to be inserted, where its key is taken.
    fn push_new(&self, sql: &mut String, column: &str) {
        sql.push_str("excluded.");
        sql.push_str(column);
    }

    /// An update by rows.
    fn push_update(&self, sql: &mut String, update: &SystemUpdate) {
        sql.push_str("UPDATE ");
        self.push_table(sql, update.table.name);
        sql.push_str(" SET ");
        for ((column, value), at) in update.set.iter().zip(0..) {
            sql.push_str(if at > 0 { ", " } else { "" });
            sql.push_str(column);
            sql.push_str(" = ");
            self.push_text(sql, value);
        }
        sql.push_str(" FROM ");
        let types = update.rows.split(' ');
        self.push_rows(sql, &mut types.map(SystemType::from_name));
        for (column, at) in update.key.iter().zip(1..) {
            sql.push_str(if at > 1 { " AND " } else { " WHERE " });
            sql.push_str(column);
            sql.push_str(" = v.c");
            sql.push_str(&at.to_string());
        }
        if let Some(only_if) = update.only_if {
            sql.push_str(" AND ");
            self.push_text(sql, only_if);
        }
        self.push_returning(sql, update.returning);
    }

    /// A delete.
    fn push_delete(&self, sql: &mut String, delete: &SystemDelete) {
        let table = delete.table;
        sql.push_str("DELETE FROM ");
        self.push_table(sql, table.name);
        sql.push_str(" WHERE ");
        let Some(limit) = delete.limit else {
            return self.push_text(sql, delete.condition);
        };
        let is_one = table.primary_key.len() == 1;
        sql.push_str(if is_one { "" } else { "(" });
        push_list(sql, table.primary_key);
        sql.push_str(if is_one { "" } else { ")" });
        sql.push_str(" IN (SELECT ");
        push_list(sql, table.primary_key);
        sql.push_str(" FROM ");
        self.push_table(sql, table.name);
        sql.push_str(" WHERE ");
        self.push_text(sql, delete.condition);
        sql.push_str(" LIMIT ");
        self.push_text(sql, limit);
        sql.push(')');
    }

    /// What a statement gives back of the rows that it has written.
    fn push_returning(&self, sql: &mut String, columns: &[&str]) {
        if !columns.is_empty() {
            sql.push_str(" RETURNING ");
            push_list(sql, columns);
        }
    }

    /// The DDL of a table and its indexes, as statements.
    fn create_table(&self, table: &SystemTable) -> Vec<String> {
        let mut sql = String::new();
        push_comment(&mut sql, "", table.comment);
        let name = self.table(table.name);
        sql.push_str(&format!("CREATE TABLE {name} (\n"));
        for (column, at) in table.columns.iter().zip(1..) {
            push_comment(&mut sql, "  ", column.comment);
            sql.push_str("  ");
            self.push_column(&mut sql, table, column);
            sql.push_str(if at < table.columns.len() { ",\n" } else { "" });
        }
        if table.primary_key.len() > 1 {
            let key = table.primary_key.join(", ");
            sql.push_str(&format!(",\n  PRIMARY KEY ({key})"));
        }
        sql.push_str("\n)");
        sql.push_str(self.table_options());
        let indexes = table.indexes.iter().map(|index| {
            let columns = index.columns.join(", ");
            format!("CREATE INDEX {} ON {name} ({columns})", index.name)
        });
        std::iter::once(sql).chain(indexes).collect()
    }

    /// What stands behind the columns of a table.
    fn table_options(&self) -> &'static str {
        ""
    }

    /// The statement that drops a table.
    fn drop_table(&self, name: &str) -> String {
        format!("DROP TABLE {}", self.table(name))
    }

    /// A column of a table's DDL.
    fn push_column(&self, sql: &mut String, table: &SystemTable, column: &SystemColumn) {
        sql.push_str(column.name);
        sql.push(' ');
        sql.push_str(self.column_type(column.column_type));
        // The type says it all.
        if column.column_type == SystemType::Serial {
            return;
        }
        if !column.is_nullable {
            sql.push_str(" NOT NULL");
        }
        if let Some(default) = column.default {
            sql.push_str(" DEFAULT ");
            sql.push_str(default);
        }
        if table.primary_key == [column.name] {
            sql.push_str(" PRIMARY KEY");
        }
    }
}

fn push_list(sql: &mut String, names: &[&str]) {
    for (name, at) in names.iter().zip(0..) {
        sql.push_str(if at > 0 { ", " } else { "" });
        sql.push_str(name);
    }
}

/// Adds a comment in lines that fit a terminal.
fn push_comment(sql: &mut String, indent: &str, comment: &str) {
    const WIDTH: usize = 100;
    let start = format!("{indent}--");
    let mut width = usize::MAX;
    for word in comment.split_whitespace() {
        if width.saturating_add(1 + word.len()) > WIDTH {
            sql.push_str(if width < usize::MAX { "\n" } else { "" });
            sql.push_str(&start);
            width = start.len();
        }
        sql.push(' ');
        sql.push_str(word);
        width += 1 + word.len();
    }
    sql.push_str(if comment.is_empty() { "" } else { "\n" });
}

fn split_name(text: &str) -> (&str, &str) {
    split_at_first(text, |it| !it.is_ascii_alphanumeric() && it != '_')
}

fn split_at_first(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}
