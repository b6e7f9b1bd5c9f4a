//! Having SQLite read statements without running them.

use rusqlite::Connection;

use tidewater_protocol::ColumnType;

use super::{failure, values};
use tidewater_centre::engine::described_statement::{
    DescribedColumn, DescribedStatement, DescriptionError, StatementProblem, StatementProblemKind,
};

/// See [`describe`](tidewater_centre::engine::connection::DatabaseConnection::describe). Values have
/// types here, and parameters have none. A column has the type that is declared for it, unless it is
/// an expression.
pub(super) fn describe(
    connection: &Connection,
    sql: &str,
) -> Result<DescribedStatement, DescriptionError> {
    let statement = connection.prepare(sql).map_err(|error| {
        let message = error.to_string();
        let problem = StatementProblem {
            kind: match message.starts_with("no such table") {
                true => StatementProblemKind::MissingTable,
                false => StatementProblemKind::Other,
            },
            message,
            position: None,
            hint: None,
        };
        DescriptionError::new(failure("checking a statement")(error), problem)
    })?;
    let columns = statement.columns();
    let columns = columns.iter().map(|column| {
        let declared = column.decl_type();
        DescribedColumn {
            name: column.name().to_owned(),
            column_type: declared.and_then(values::column_type),
            type_name: declared.unwrap_or_default().to_owned(),
            is_readable: true,
        }
    });
    let parameters: Vec<Option<ColumnType>> = vec![None; statement.parameter_count()];
    Ok(DescribedStatement {
        columns: columns.collect(),
        parameters,
        writes: Some(!statement.readonly()),
    })
}
