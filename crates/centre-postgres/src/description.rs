//! Having PostgreSQL read statements without running them.

use tokio_postgres::error::{ErrorPosition, SqlState};
use tokio_postgres::types::{Kind as TypeKind, Type};
use tokio_postgres::{Client, Error, Statement};

use tidewater_protocol::ColumnType;

use super::quote::ident;
use super::values::PostgresType;
use crate::driver_error::centre_error;
use tidewater_centre::engine::described_statement::{
    DescribedColumn, DescribedStatement, DescriptionError, StatementProblem, StatementProblemKind,
};

/// See [`describe`](tidewater_centre::engine::connection::DatabaseConnection::describe).
pub(super) async fn describe(
    client: &Client,
    sql: &str,
    told: &[Option<ColumnType>],
) -> Result<DescribedStatement, DescriptionError> {
    let prepared = client.prepare_typed(sql, &parameter_types(told)).await;
    let statement = prepared.map_err(|error| {
        let failed = centre_error("checking a statement", &error);
        match problem(&error) {
            Some(problem) => DescriptionError::new(failed, problem),
            None => DescriptionError::Failed(failed),
        }
    })?;
    let parameters = statement.params().iter();
    let parameters = parameters.map(|it| Some(PostgresType::from_oid(it.oid()).column_type(None)));
    Ok(DescribedStatement {
        columns: columns(&statement),
        parameters: parameters.collect(),
        writes: None,
    })
}

/// The columns that a statement yields.
pub(super) fn columns(statement: &Statement) -> Vec<DescribedColumn> {
    let columns = statement.columns().iter().map(|column| {
        let of = column.type_();
        let kind = PostgresType::from_oid(of.oid());
        // Remotes know no scale below zero.
        let scale = kind.scale(column.type_modifier());
        let scale = scale.and_then(|it| u16::try_from(it).ok());
        DescribedColumn {
            name: column.name().to_owned(),
            column_type: Some(kind.column_type(scale)),
            type_name: format!("{}.{}", ident(of.schema()), ident(of.name())),
            is_readable: is_readable(of),
        }
    });
    columns.collect()
}

/// Whether the values of a type are read as they are sent.
fn is_readable(of: &Type) -> bool {
    PostgresType::from_oid(of.oid()) != PostgresType::Other
        || matches!(of.kind(), TypeKind::Enum(_))
        || matches!(
            *of,
            Type::NAME | Type::XML | Type::UNKNOWN | Type::VOID | Type::CHAR
        )
}

/// What is wrong with a statement, if PostgreSQL says anything.
fn problem(error: &Error) -> Option<StatementProblem> {
    let refusal = error.as_db_error()?;
    let kind = match *refusal.code() {
        SqlState::UNDEFINED_TABLE => StatementProblemKind::MissingTable,
        _ if has_unfit_types(error) => StatementProblemKind::UnfitTypes,
        _ => StatementProblemKind::Other,
    };
    let hint = refusal.hint().map(str::to_owned);
    Some(StatementProblem {
        kind,
        message: refusal.message().to_owned(),
        position: match refusal.position() {
            Some(ErrorPosition::Original(position)) => usize::try_from(*position).ok(),
            _ => None,
        },
        // How to spell a cast, an operator may not know.
        hint: hint.filter(|it| !it.contains("explicit type casts")),
    })
}

/// Whether a statement may do with other types of its parameters.
pub(super) fn has_unfit_types(error: &Error) -> bool {
    let code = error.code();
    code.is_some_and(|it| {
        [
            SqlState::UNDEFINED_FUNCTION,
            SqlState::AMBIGUOUS_FUNCTION,
            SqlState::DATATYPE_MISMATCH,
            SqlState::CANNOT_COERCE,
            SqlState::INDETERMINATE_DATATYPE,
        ]
        .contains(it)
    })
}

/// The types of parameters of which these are told, without those at the end that are not.
pub(super) fn parameter_types(told: &[Option<ColumnType>]) -> Vec<Type> {
    let last = told.iter().rposition(Option::is_some);
    let told = told.iter().take(last.map_or(0, |it| it + 1));
    let types = told.map(|it| it.map_or(Type::UNKNOWN, parameter_type));
    types.collect()
}

/// The type of a parameter that an argument is declared as.
fn parameter_type(column_type: ColumnType) -> Type {
    match column_type {
        ColumnType::Integer => Type::INT8,
        ColumnType::Decimal { .. } => Type::NUMERIC,
        ColumnType::Real => Type::FLOAT8,
        ColumnType::Boolean => Type::BOOL,
        ColumnType::Text | ColumnType::Opaque => Type::TEXT,
        ColumnType::Bytes => Type::BYTEA,
        ColumnType::Date => Type::DATE,
        ColumnType::Time => Type::TIME,
        ColumnType::Timestamp => Type::TIMESTAMP,
        ColumnType::TimestampTz => Type::TIMESTAMPTZ,
        ColumnType::Uuid => Type::UUID,
        ColumnType::Json => Type::JSON,
    }
}
