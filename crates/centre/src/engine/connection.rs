//! What the engine asks of a database connection: to run flights of statements.

use tidewater_protocol::ColumnType;

use crate::engine::described_statement::{DescribedStatement, DescriptionError};
use crate::engine::flight::{FlightFailure, FlightStep, ValueTypes};
use crate::engine::sql::sql_dialect::SqlDialect;
use crate::error::CentreError;

pub use crate::engine::system_statement::{
    ColumnValue, Durability, ResultRow, StatementParameter, StatementResult, SystemStatement,
    TransactionMode, each, system_row, system_sql,
};

/// One connection to the database. After an error of [`CentreError::Unavailable`] it is of no more
/// use.
pub trait DatabaseConnection: Send {
    /// What its tables have of its own.
    type Tables: ValueTypes;

    /// How the database spells statements.
    const DIALECT: &'static dyn SqlDialect;

    /// See [`SqlDialect::has_transactional_ddl`]. A test may have a connection do without.
    fn has_transactional_ddl(&self) -> bool {
        Self::DIALECT.has_transactional_ddl()
    }

    /// Runs the steps of a flight one after the other, in one round trip where the database can;
    /// gives an answer to each. `what` is being done, for the error.
    fn run(
        &mut self,
        what: &str,
        steps: Vec<FlightStep<'_, Self::Tables>>,
    ) -> impl Future<Output = Result<Vec<StatementResult>, FlightFailure>> + Send;

    /// Runs statements on the server's own tables.
    fn flight(
        &mut self,
        what: &'static str,
        statements: &[SystemStatement],
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let steps = statements.iter().map(FlightStep::System);
            Ok(self.run(what, steps.collect()).await?)
        }
    }

    /// The same in a transaction that writes; nothing of it is done on an error.
    fn transact(
        &mut self,
        what: &'static str,
        durability: Durability,
        statements: &[SystemStatement],
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let begin = Self::DIALECT.begin(TransactionMode::Writing(durability));
            let mut steps = Vec::with_capacity(statements.len() + 2);
            steps.push(FlightStep::run(begin));
            steps.extend(statements.iter().map(FlightStep::System));
            steps.push(FlightStep::Commit);
            let mut answers = self.run(what, steps).await?;
            answers.pop();
            answers.remove(0);
            Ok(answers)
        }
    }

    /// Runs SQL of the database's own that yields nothing.
    ///
    /// # Errors
    /// [`CentreError::Locked`] if another session is in the way.
    fn execute(
        &mut self,
        what: &str,
        sql: &str,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        async move {
            let ran = self.run(what, vec![FlightStep::run(sql)]).await;
            ran.map(drop).map_err(|failure| match failure.error {
                CentreError::Locked { .. } => CentreError::Locked {
                    message: "the table is locked by another session".into(),
                },
                error => error,
            })
        }
    }

    /// Whether nothing can be said on it any more.
    fn is_lost(&self) -> bool {
        false
    }

    /// Begins a transaction.
    fn begin(
        &mut self,
        mode: TransactionMode,
    ) -> impl Future<Output = Result<(), CentreError>> + Send {
        self.execute("beginning a transaction", Self::DIALECT.begin(mode))
    }

    /// Has the database read a statement of an operator without running it. Of its parameters these
    /// types are told, in their order; the database finds out the others.
    fn describe(
        &mut self,
        sql: &str,
        told: &[Option<ColumnType>],
    ) -> impl Future<Output = Result<DescribedStatement, DescriptionError>> + Send;

    /// Commits it.
    fn commit(&mut self) -> impl Future<Output = Result<(), CentreError>> + Send {
        async move {
            let what = "committing a transaction";
            self.run(what, vec![FlightStep::Commit]).await?;
            Ok(())
        }
    }

    /// Undoes it.
    fn rollback(&mut self) -> impl Future<Output = Result<(), CentreError>> + Send {
        self.execute("undoing a transaction", "ROLLBACK")
    }

    /// Runs statements that read, most of them something for one row ([`each`]), whose number they
    /// yield first: all of the same SQL at once. The answers are without the numbers.
    fn gather(
        &mut self,
        what: &'static str,
        statements: Vec<SystemStatement>,
    ) -> impl Future<Output = Result<Vec<StatementResult>, CentreError>> + Send {
        async move {
            let mut merged: Vec<SystemStatement> = Vec::new();
            // By the merged statement and its row: the statement that it came from.
            let mut places: Vec<Vec<usize>> = Vec::new();
            let mut answers = Vec::new();
            answers.resize_with(statements.len(), StatementResult::default);
            for (place, own) in statements.into_iter().enumerate() {
                let mut others = merged.iter();
                let same = others.position(|it| !own.rows.is_empty() && it.sql == own.sql);
                match same {
                    Some(at) => {
                        merged[at].rows.extend(own.rows);
                        places[at].push(place);
                    }
                    None => {
                        merged.push(own);
                        places.push(vec![place]);
                    }
                }
            }
            let found = self.flight(what, &merged).await?;
            for ((found, own), places) in found.into_iter().zip(&merged).zip(&places) {
                if own.rows.is_empty() {
                    answers[places[0]] = found;
                    continue;
                }
                for mut row in found.rows {
                    let number: u64 = row.get(0)?;
                    row.0.remove(0);
                    let place = places.get(number as usize - 1);
                    if let Some(&place) = place {
                        answers[place].rows.push(row);
                    }
                }
            }
            Ok(answers)
        }
    }

    /// One statement.
    fn run_one(
        &mut self,
        what: &'static str,
        statement: SystemStatement,
    ) -> impl Future<Output = Result<StatementResult, CentreError>> + Send {
        async move {
            let answers = self.flight(what, &[statement]).await?;
            Ok(answers.into_iter().next().unwrap_or_default())
        }
    }
}
