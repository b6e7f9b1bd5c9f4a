//! Procedures whose statements are prepared on a connection.

use std::sync::Arc;

use tokio_postgres::types::{Kind as TypeKind, Type};
use tokio_postgres::{Client, Column, Error, Statement};

use tidewater_protocol::ColumnType;

use super::quote::ident;
use super::values::PostgresType;
use tidewater_centre::engine::call::answer::AnswerShape;
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::engine::script::Script;

/// Fails with this setting's name if the query yields nothing: what follows in the transaction is
/// not run then.
pub(super) const NOT_ALLOWED: &str = "tidewater.not_allowed";

/// A procedure whose statements are prepared on a connection.
pub(super) struct PreparedProcedure {
    /// By its address it is found, which is nobody else's as long as it is here.
    _procedure: Arc<CallableProcedure>,
    pub(super) statement: Option<CallStatement>,
    pub(super) allow: Option<Statement>,
}

/// The statement of a procedure.
pub(super) struct CallStatement {
    pub(super) statement: Statement,
    pub(super) kinds: Vec<PostgresType>,
    pub(super) shape: AnswerShape,
}

impl PreparedProcedure {
    /// Prepares what is run for a call.
    pub(super) async fn prepare(
        client: &Client,
        procedure: &Arc<CallableProcedure>,
    ) -> Result<PreparedProcedure, Error> {
        let statement = match procedure.statements().first() {
            None => None,
            Some(script) => Some(CallStatement::prepare(client, procedure, script).await?),
        };
        let allow = match procedure.allow() {
            None => None,
            Some(script) => Some(prepare_guard(client, procedure, script).await?),
        };
        Ok(PreparedProcedure {
            _procedure: procedure.clone(),
            statement,
            allow,
        })
    }
}

impl CallStatement {
    /// Prepares a statement so that all that it yields can be read.
    pub(super) async fn prepare(
        client: &Client,
        procedure: &CallableProcedure,
        script: &Script,
    ) -> Result<CallStatement, Error> {
        let plain = prepare_typed(client, procedure, script, &script.sql).await?;
        let names = plain.columns().iter().map(|it| it.name().to_owned());
        let names: Vec<String> = names.collect();
        let statement = match plain.columns().iter().all(|it| is_legible(it.type_())) {
            true => plain,
            false => {
                let sql = legible(&script.sql, plain.columns());
                prepare_typed(client, procedure, script, &sql).await?
            }
        };
        let columns = statement.columns().iter();
        let kinds = columns.map(|it| PostgresType::from_oid(it.type_().oid()));
        let kinds: Vec<PostgresType> = kinds.collect();
        let types = statement.columns().iter().zip(&kinds);
        let types = types.map(|(column, kind)| {
            // Remotes know no scale below zero.
            let scale = kind.scale(column.type_modifier());
            let scale = scale.and_then(|it| u16::try_from(it).ok());
            Some(kind.column_type(scale))
        });
        Ok(CallStatement {
            shape: AnswerShape::new(names.into_iter().zip(types)),
            kinds,
            statement,
        })
    }
}

/// Prepares the statement that fails if the query of who may call yields nothing.
pub(super) async fn prepare_guard(
    client: &Client,
    procedure: &CallableProcedure,
    query: &Script,
) -> Result<Statement, Error> {
    // The planner cannot know the setting, so it is asked for only then.
    let sql = format!(
        "SELECT CASE WHEN EXISTS (\n{}\n) THEN '' \
         ELSE pg_catalog.current_setting('{NOT_ALLOWED}') END",
        query.sql
    );
    prepare_typed(client, procedure, query, &sql).await
}

/// Prepares a script's statement under the declared types of its arguments; if it needs others,
/// PostgreSQL says which.
async fn prepare_typed(
    client: &Client,
    procedure: &CallableProcedure,
    script: &Script,
    sql: &str,
) -> Result<Statement, Error> {
    let declared = script.parameters.iter();
    let declared: Vec<Type> = declared
        .map(|it| parameter(procedure.type_of(it)))
        .collect();
    let first = match client.prepare_typed(sql, &declared).await {
        Ok(statement) => return Ok(statement),
        Err(error) => error,
    };
    // undefined_function, datatype_mismatch, ambiguous_function, cannot_coerce
    match first.code().map(|it| it.code()) {
        Some("42883" | "42804" | "42725" | "42846") => {
            let second = client.prepare_typed(sql, &[]).await;
            second.map_err(|_| first)
        }
        _ => Err(first),
    }
}

/// Whether the values of a type are read as they are sent.
fn is_legible(of: &Type) -> bool {
    PostgresType::from_oid(of.oid()) != PostgresType::Other
        || matches!(of.kind(), TypeKind::Enum(_))
        || matches!(
            *of,
            Type::NAME | Type::XML | Type::UNKNOWN | Type::VOID | Type::CHAR
        )
}

/// The statement with what cannot be read as it is sent as text.
fn legible(sql: &str, columns: &[Column]) -> String {
    let names = (1..=columns.len()).map(|at| ident(&format!("c{at}")));
    let names: Vec<String> = names.collect();
    let read = columns
        .iter()
        .zip(&names)
        .map(|(column, name)| match is_legible(column.type_()) {
            true => name.clone(),
            false => format!("{name}::text"),
        });
    let read: Vec<String> = read.collect();
    format!(
        "WITH tidewater_answer ({}) AS (\n{sql}\n) SELECT {} FROM tidewater_answer",
        names.join(", "),
        read.join(", ")
    )
}

/// The type of a parameter that an argument is declared as.
fn parameter(column_type: ColumnType) -> Type {
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
