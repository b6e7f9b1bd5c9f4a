//! How statements on the server's own tables are run here: what they give back is read again, and
//! rows are written one after the other.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Params, Value as Native};

use tidewater_centre::engine::connection::{ResultRow, StatementResult, SystemStatement};
use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;
use tidewater_centre::engine::sql::statement_shape::{
    InsertSource, SystemInsert, SystemSql, SystemUpdate, TakenKey,
};
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;
use tidewater_protocol::Value;

use crate::dialect::{MysqlDialect, row_parameter};
use crate::driver_error::{DUPLICATE_KEY, code};
use crate::numbered_text::NumberedText;
use crate::values::{PlainColumn, native};

/// A statement on the server's own tables, as it is spelled.
#[derive(Debug)]
pub(crate) struct SpelledStatement {
    text: NumberedText,
    /// Reads again what it has written, with the same parameters; `None` if nobody wants to know.
    reading: Option<NumberedText>,
    /// Whether a taken key means that nothing is written.
    passes_over: bool,
    /// Whether a row counts once, though the database counts one that was updated twice.
    counts_rows: bool,
}

impl SpelledStatement {
    /// Spells a statement.
    pub(crate) fn new(statement: SystemSql) -> SpelledStatement {
        let read = |text: &str| NumberedText::read(MysqlDialect.lexing(), text);
        let taken = match statement {
            SystemSql::Insert(insert) => Some(&insert.taken),
            _ => None,
        };
        SpelledStatement {
            text: read(&MysqlDialect.spell(statement)),
            reading: reading(statement).map(|it| read(&it)),
            passes_over: matches!(taken, Some(TakenKey::PassesOver)),
            counts_rows: matches!(taken, Some(TakenKey::Updates { .. })),
        }
    }

    /// Runs it; for rows one after the other.
    pub(crate) async fn run(
        &self,
        connection: &mut Conn,
        own: &SystemStatement,
    ) -> Result<StatementResult, Error> {
        if own.sql.row_columns().is_none() {
            return self.run_once(connection, None, &own.parameters).await;
        }
        let mut all = StatementResult::default();
        for (row, number) in own.rows.iter().zip(1..) {
            let answer = self.run_once(connection, Some(number), row).await?;
            all.rows.extend(answer.rows);
            all.changed += answer.changed;
        }
        Ok(all)
    }

    /// Runs it once; for a row its number is the first parameter.
    async fn run_once(
        &self,
        connection: &mut Conn,
        number: Option<i64>,
        values: &[Value],
    ) -> Result<StatementResult, Error> {
        let before = usize::from(number.is_some());
        let parameter = |at: usize| match number {
            Some(number) if at == 0 => Native::Int(number),
            _ => values
                .get(at - before)
                .map_or(Native::NULL, |it| native(it.as_ref())),
        };
        let done = execute(connection, &self.text.sql, self.text.parameters(parameter)).await;
        let mut answer = match done {
            Err(error) if self.passes_over && code(&error) == Some(DUPLICATE_KEY) => {
                return Ok(StatementResult::default());
            }
            done => done?,
        };
        if self.counts_rows && number.is_some() {
            answer.changed = answer.changed.min(1);
        }
        if let Some(reading) = self.reading.as_ref().filter(|_| answer.changed > 0) {
            let parameters = reading.parameters(parameter);
            answer.rows = execute(connection, &reading.sql, parameters).await?.rows;
        }
        Ok(answer)
    }
}

/// Runs a statement once and reads all that it yields.
async fn execute(
    connection: &mut Conn,
    sql: &str,
    parameters: Params,
) -> Result<StatementResult, Error> {
    let statement = connection.prep(sql).await?;
    let mut found = connection.exec_iter(&statement, parameters).await?;
    let kinds: Vec<PlainColumn> = found.columns_ref().iter().map(PlainColumn::of).collect();
    let mut rows = Vec::new();
    while let Some(row) = found.next().await? {
        let values = row.unwrap().into_iter().zip(&kinds);
        // A value of another type than the server's own is told by whoever reads it.
        let values = values.map(|(value, kind)| kind.read(value).unwrap_or(Value::Null));
        rows.push(ResultRow(values.collect()));
    }
    // What yields rows has written none.
    let changed = match kinds.is_empty() {
        true => found.affected_rows(),
        false => 0,
    };
    found.drop_result().await?;
    Ok(StatementResult { rows, changed })
}

/// The text that reads by the key what a statement has written, with the parameters of the statement.
fn reading(statement: SystemSql) -> Option<String> {
    let (table, returning, key) = match statement {
        SystemSql::Insert(insert) => (insert.table, insert.returning, inserted_key(insert)),
        SystemSql::Update(update) => (update.table, update.returning, updated_key(update)),
        SystemSql::Text(_) | SystemSql::Delete(_) => return None,
    };
    if returning.is_empty() {
        return None;
    }
    let mut sql = format!(
        "SELECT {} FROM {}",
        returning.join(", "),
        MysqlDialect.table(table.name)
    );
    for ((column, value), at) in key.iter().zip(0..) {
        let before = if at == 0 { "WHERE" } else { "AND" };
        sql.push_str(&format!(" {before} {column} = {value}"));
    }
    Some(sql)
}

/// The columns of the primary key, and the texts of their values.
fn inserted_key(insert: &SystemInsert) -> Vec<(&str, String)> {
    let key = insert.table.primary_key.iter();
    let key = key.filter_map(|column| {
        let at = insert.columns.iter().position(|it| it == column)?;
        let value = match insert.source {
            InsertSource::Values(values) => values[at].to_owned(),
            _ => row_parameter(at),
        };
        Some((*column, value))
    });
    key.collect()
}

/// The columns by which rows are found, and the texts of their values.
fn updated_key(update: &SystemUpdate) -> Vec<(&str, String)> {
    let key = update.key.iter().enumerate();
    key.map(|(at, column)| (*column, row_parameter(at)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_centre::engine::sql::system;

    fn reading_of(file: &str, name: &str) -> Option<String> {
        let (_, statements) = system::ALL.iter().find(|it| it.0 == file)?;
        let (_, statement) = statements.iter().find(|it| it.0 == name)?;
        reading(*statement)
    }

    #[test]
    fn what_was_written_is_read_again_by_its_key() {
        let of_values = "SELECT scope_serial FROM tidewater_subscription \
                         WHERE remote_id = ?1 AND publication = ?2";
        assert_eq!(
            reading_of("subscriptions", "ISSUE_SCOPE").as_deref(),
            Some(of_values)
        );
        let of_rows = "SELECT name, last FROM tidewater_space WHERE name = ?2";
        assert_eq!(
            reading_of("events", "TAKE_NUMBERS").as_deref(),
            Some(of_rows)
        );
        let updated = "SELECT upload_id, remote_id, scope_serial, previous_serial, graced_serial \
                       FROM tidewater_subscription WHERE remote_id = ?2 AND publication = ?3";
        assert_eq!(
            reading_of("subscriptions", "TAKE_NUMBERS").as_deref(),
            Some(updated)
        );
        assert_eq!(reading_of("users", "INSERT"), None);
    }
}
