//! Procedures whose statements are prepared on a connection.

use std::sync::Arc;

use tokio_postgres::Statement;

use tidewater_protocol::RowShape;

use crate::values::PostgresType;
use tidewater_centre::AnswerColumn;
use tidewater_centre::engine::callable_procedure::CallableProcedure;

/// A procedure whose statements are prepared on a connection.
pub(super) struct PreparedProcedure {
    /// By its address it is found, which is nobody else's as long as it is here.
    pub(super) _procedure: Arc<CallableProcedure>,
    pub(super) statement: Option<CallStatement>,
    pub(super) allow: Option<Statement>,
}

/// The statement of a procedure.
pub(super) struct CallStatement {
    pub(super) statement: Statement,
    pub(super) columns: Arc<[AnswerColumn]>,
    pub(super) kinds: Vec<PostgresType>,
    pub(super) shape: RowShape,
}
