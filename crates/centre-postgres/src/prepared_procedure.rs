//! Procedures whose statements are prepared on a connection.

use std::sync::Arc;

use tokio_postgres::{Client, Error, Statement};

use super::description::{columns, has_unfit_types, parameter_types};
use super::dialect::PostgresDialect;
use super::values::PostgresType;
use tidewater_centre::engine::call::answer::AnswerShape;
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;

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
    async fn prepare(
        client: &Client,
        procedure: &CallableProcedure,
        script: &Script,
    ) -> Result<CallStatement, Error> {
        let plain = prepare_typed(client, procedure, script, &script.sql).await?;
        let names = columns(&plain);
        let statement = match PostgresDialect.readable_query(&script.sql, &names) {
            None => plain,
            Some(sql) => prepare_typed(client, procedure, script, &sql).await?,
        };
        let kinds = statement.columns().iter();
        let kinds = kinds.map(|it| PostgresType::from_oid(it.type_().oid()));
        let types = columns(&statement).into_iter().map(|it| it.column_type);
        let names = names.into_iter().map(|it| it.name);
        Ok(CallStatement {
            shape: AnswerShape::new(names.zip(types)),
            kinds: kinds.collect(),
            statement,
        })
    }
}

/// Prepares the statement that fails if the query of who may call yields nothing.
async fn prepare_guard(
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
    let declared: Vec<_> = declared.map(|it| Some(procedure.type_of(it))).collect();
    let declared = client.prepare_typed(sql, &parameter_types(&declared)).await;
    match declared {
        Err(first) if has_unfit_types(&first) => client.prepare(sql).await.map_err(|_| first),
        prepared => prepared,
    }
}
