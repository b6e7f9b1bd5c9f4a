//! Running a statement that writes uploaded rows, under the role that does it.

use futures_util::future;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::refusal::{is_data_error, may_be_data_error, reason};
use super::{Result, UploadRows};
use crate::array::Array;
use crate::driver_error::{centre_error, statement_failed};
use tidewater_centre::engine::upload::refusal_reason::RefusalReason;

/// The outcome of a statement in a savepoint.
pub(super) enum StatementOutcome {
    Rows(Vec<Row>),
    Failed(RefusalReason),
    /// The role may write no row at all so.
    Denied(RefusalReason),
}

impl UploadRows<'_> {
    /// Runs a statement in a savepoint, in one flight.
    pub(super) async fn execute(
        &self,
        statement: &Statement,
        arrays: &[Array],
    ) -> Result<StatementOutcome> {
        let (client, acting) = (self.connection.client(), &self.acting);
        let error = |error| statement_failed("applying rows of an upload")(error);
        let parameters = as_parameters(arrays);
        let begin = format!("SAVEPOINT tidewater_batch; {}", acting.enter());
        let end = format!("{}RELEASE tidewater_batch", acting.leave());
        let (saved, result, released) = future::join3(
            client.batch_execute(&begin),
            client.query(statement, &parameters),
            client.batch_execute(&end),
        )
        .await;
        saved.map_err(error)?;
        let refusal = match result {
            Ok(rows) => {
                released.map_err(error)?;
                return Ok(StatementOutcome::Rows(rows));
            }
            Err(refusal) => refusal,
        };
        let not_the_rows = || Err(centre_error("applying rows of an upload", &refusal));
        let is_denied = acting.is_denied(&refusal);
        let data = refusal.as_db_error();
        let Some(data) = data.filter(|_| is_denied || may_be_data_error(&refusal)) else {
            return not_the_rows();
        };
        let of_rows = reason(data);
        if is_data_error(&refusal) {
            self.undo_batch().await?;
            return Ok(StatementOutcome::Failed(of_rows));
        }
        client
            .batch_execute("ROLLBACK TO tidewater_batch")
            .await
            .map_err(error)?;
        let is_well = self.runs_without_rows(statement, arrays).await;
        self.undo_batch().await?;
        match (is_well, is_denied) {
            (true, _) => Ok(StatementOutcome::Failed(of_rows)),
            (false, true) => Ok(StatementOutcome::Denied(of_rows)),
            (false, false) => not_the_rows(),
        }
    }

    async fn undo_batch(&self) -> Result<()> {
        self.savepoint("ROLLBACK TO tidewater_batch; RELEASE tidewater_batch")
            .await
    }

    /// Whether nothing is wrong with the statement itself.
    async fn runs_without_rows(&self, statement: &Statement, arrays: &[Array]) -> bool {
        let empty: Vec<Array> = arrays.iter().map(Array::emptied).collect();
        let client = self.connection.client();
        let parameters = as_parameters(&empty);
        let result = self
            .acting
            .run(client, client.query(statement, &parameters));
        result.await.is_ok()
    }
}

pub(super) fn as_parameters(arrays: &[Array]) -> Vec<&(dyn ToSql + Sync)> {
    let arrays = arrays.iter();
    arrays.map(|it| it as &(dyn ToSql + Sync)).collect()
}
