//! How statements on the application's tables are run here: for rows one after the other.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Value as Native};

use tidewater_centre::engine::connection::StatementResult;
use tidewater_centre::engine::flight::{TableArgument, TableStatement, TakeRow};
use tidewater_protocol::{Datum, Value};

use crate::numbered_text::NumberedText;
use crate::publication::MysqlTables;
use crate::step_failure::{StepFailure, step_failed};
use crate::values::{MysqlKind, bind, native, read};

/// Runs a statement, whose text was read before.
pub(crate) async fn run_on_tables(
    connection: &mut Conn,
    text: &NumberedText,
    asked: &TableStatement<'_, MysqlTables>,
    take: TakeRow<'_>,
) -> Result<StatementResult, StepFailure> {
    let arguments: Vec<Native> = asked.arguments.iter().map(argument).collect();
    let kinds: Vec<MysqlKind> = match asked.described {
        [] => asked.yields.clone(),
        types => types.iter().map(|&it| MysqlKind::of_type(it)).collect(),
    };
    let mut run = StatementRun {
        connection,
        text,
        what: asked.what,
        arguments: &arguments,
        kinds: &kinds,
        answer: StatementResult::default(),
    };
    match asked.rows.first() {
        None => run.once(&[], 0, take).await?,
        Some(rows) => {
            for (at, row) in rows.rows.iter().enumerate().skip(asked.done) {
                run.once(row, at, take).await?;
            }
        }
    }
    Ok(run.answer)
}

/// A statement that is run for one row after the other.
struct StatementRun<'a> {
    connection: &'a mut Conn,
    text: &'a NumberedText,
    what: &'static str,
    arguments: &'a [Native],
    kinds: &'a [MysqlKind],
    answer: StatementResult,
}

impl StatementRun<'_> {
    /// Runs it for the row at a place, from 0 on: behind the arguments come its number and its values.
    async fn once(
        &mut self,
        row: &[Native],
        at: usize,
        take: TakeRow<'_>,
    ) -> Result<(), StepFailure> {
        let failed = step_failed(self.what, at);
        let number = Native::Int(at as i64 + 1);
        let parameters = self.text.parameters(|place| {
            let mut values = self.arguments.iter().chain([&number]).chain(row);
            values.nth(place).cloned().unwrap_or(Native::NULL)
        });
        let statement = self
            .connection
            .prep(&*self.text.sql)
            .await
            .map_err(failed)?;
        let mut found = self
            .connection
            .exec_iter(&statement, parameters)
            .await
            .map_err(failed)?;
        let yields_rows = !found.columns_ref().is_empty();
        while let Some(row) = found.next().await.map_err(failed)? {
            let values = row.unwrap();
            let values = self.kinds.iter().zip(&values);
            let values: Vec<Datum<'_>> = values.map(|(&kind, value)| read(kind, value)).collect();
            self.answer.changed += 1;
            take(&values)?;
        }
        if !yields_rows {
            self.answer.changed += found.affected_rows();
        }
        found.drop_result().await.map_err(failed)
    }
}

fn argument(argument: &TableArgument<'_, MysqlKind>) -> Native {
    match argument {
        // What the column cannot keep is compared as it is.
        TableArgument::Value(kind, value) => {
            bind(*kind, value).unwrap_or_else(|| native(value.stored(&mut String::new())))
        }
        TableArgument::Untyped(column_type, value) => {
            let kind = MysqlKind::of_type(*column_type);
            let (datum, _) = column_type.datum(value.as_ref());
            bind(kind, &datum).unwrap_or_else(|| plain(value))
        }
        TableArgument::Moment(value) => {
            let kind = MysqlKind::Timestamp;
            let (datum, _) = kind.column_type().datum(value.as_ref());
            bind(kind, &datum).unwrap_or_else(|| plain(value))
        }
        TableArgument::Rows(_) => todo!("scripts: the parameter of set_relation"),
    }
}

fn plain(value: &Value) -> Native {
    native(value.as_ref())
}
