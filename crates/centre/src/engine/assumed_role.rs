//! The role under which the application's tables are read and written for a remote.
//!
//! A role is assumed for single statements, within the transaction and in the same flight: our own
//! statements before and after them never run under it, and whatever ends the transaction, or undoes
//! it to a savepoint, ends the role, too.

use tidewater_protocol::Datum;

use super::acting::{DatabaseRole, only};
use super::connection::{DatabaseConnection, StatementResult};
use super::flight::{
    ColumnKind as _, FlightFailure, FlightStep, TableArgument, TableStatement, ValueTypes,
};
use super::publication::Publication;
use super::row_fault::RowFault;
use super::scope::values_of;
use super::sql::served_table::TableAdapter;
use super::sql::sql_dialect::SqlDialect;
use super::sql::system_table::SystemType;
use crate::context::SyncContext;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// A role that is assumed for statements on the application's tables; the server's own if there is
/// none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssumedRole {
    /// Its name; empty for the server's own.
    role: String,
    /// The publication that is synced under it.
    publication: String,
    /// SQL that assumes it; empty for the server's own.
    enter: String,
    /// SQL that gives it up.
    leave: &'static str,
}

impl AssumedRole {
    fn new(dialect: &dyn SqlDialect, role: String, publication: &str) -> AssumedRole {
        AssumedRole {
            publication: publication.to_owned(),
            enter: dialect.assume_role(&role),
            leave: dialect.give_up_role(),
            role,
        }
    }

    /// Its name; empty for the server's own.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The publication that is synced under it.
    pub fn publication(&self) -> &str {
        &self.publication
    }

    /// Whether it is not the server's own.
    pub fn is_another(&self) -> bool {
        !self.role.is_empty()
    }

    /// Has the steps behind it run under the role.
    pub fn enter<'s, T: ValueTypes>(&'s self) -> FlightStep<'s, T> {
        FlightStep::run(&*self.enter)
    }

    /// Ends this.
    pub fn leave<'s, T: ValueTypes>(&'s self) -> FlightStep<'s, T> {
        FlightStep::run(self.leave)
    }

    /// Whether the database refuses what the role may not do.
    pub fn is_denied(&self, dialect: &dyn SqlDialect, error: &CentreError) -> bool {
        self.is_another() && dialect.is_denied(error)
    }

    /// Whether what a statement failed for may be its rows: that a role may not do something is about
    /// them only under another role than the server's own.
    pub(super) fn explains(&self, fault: &RowFault) -> bool {
        !fault.is_denied || self.is_another()
    }

    /// What it means that the application's tables cannot be read.
    pub fn explain(&self, dialect: &dyn SqlDialect, error: CentreError) -> CentreError {
        if !self.is_denied(dialect, &error) {
            return error;
        }
        let message = match error {
            CentreError::StatementFailed { message, .. } => message,
            other => other.to_string(),
        };
        CentreError::NoRole {
            publication: self.publication.clone(),
            message: format!("{:?} may not read what is published: {message}", self.role),
            hint: format!(
                "grant {} SELECT on the published tables, and on those that they follow",
                dialect.identifier(&self.role)
            ),
        }
    }

    /// Runs a statement under the role, in one flight. Where an error ends the transaction, it ends
    /// the role with it.
    ///
    /// # Errors
    /// [`CentreError::NoRole`] if the role may not read what it reads.
    pub async fn run<C: DatabaseConnection>(
        &self,
        connection: &mut C,
        statement: FlightStep<'_, C::Tables>,
    ) -> Result<StatementResult> {
        let steps = vec![self.enter(), statement, self.leave()];
        let ran = connection
            .run("running a statement under a role", steps)
            .await;
        match ran {
            Ok(mut answers) => Ok(answers.swap_remove(1)),
            Err(FlightFailure { error, .. }) => {
                if !C::DIALECT.ends_transactions_at_errors() {
                    let leave = vec![self.leave()];
                    connection.run("leaving a role", leave).await?;
                }
                Err(self.explain(C::DIALECT, error))
            }
        }
    }
}

/// Who is asked for the role of a publication, in a flight.
pub struct RoleQuestion<'p> {
    publication: &'p str,
    query: Option<(&'p str, Vec<Option<String>>)>,
}

impl<'p> RoleQuestion<'p> {
    /// Of a remote; nothing is asked where it is the server's own.
    pub fn new<T: TableAdapter>(
        context: &SyncContext,
        publication: &'p Publication<T>,
    ) -> RoleQuestion<'p> {
        let name = &publication.schema.name;
        let assumed = publication.act_as.as_ref();
        RoleQuestion {
            publication: name,
            query: assumed.map(|it| (&*it.query.sql, values_of(&it.query, context, name))),
        }
    }

    /// Whether there is a step that asks.
    pub fn is_asked(&self) -> bool {
        self.query.is_some()
    }

    /// The step that asks, if one has to be asked.
    pub fn step<'s, T: TableAdapter>(
        &'s self,
        found: &'s mut Vec<DatabaseRole>,
    ) -> Option<FlightStep<'s, T>> {
        let (sql, parameters) = self.query.as_ref()?;
        let mut statement = TableStatement::new("looking for the role of a user", *sql);
        let parameters = parameters.iter();
        statement.arguments = parameters
            .map(|it| TableArgument::text(it.as_deref()))
            .collect();
        let [text, flag] = [SystemType::Text, SystemType::Boolean].map(T::Kind::of_system);
        statement.yields = vec![text, flag, flag, flag, text];
        Some(FlightStep::table(statement, |row| {
            let text = |at: usize| row[at].to_string();
            let flag = |at: usize| row[at] == Datum::Boolean(true);
            found.push(DatabaseRole {
                name: text(0),
                exists: flag(1),
                is_privileged: flag(2),
                is_assumable: flag(3),
                grant: text(4),
            });
            Ok(())
        }))
    }

    /// What it means that the question has failed.
    pub fn explain(&self, error: CentreError) -> CentreError {
        match error {
            CentreError::StatementFailed {
                retry: false,
                message,
                ..
            } => CentreError::NoRole {
                publication: self.publication.to_owned(),
                message: format!("the query fails: {message}"),
                hint: "correct the query, or the data that it reads".into(),
            },
            other => other,
        }
    }

    /// The role that was found.
    ///
    /// # Errors
    /// [`CentreError::NoRole`] if there is none that can be assumed.
    pub fn role(&self, dialect: &dyn SqlDialect, found: &[DatabaseRole]) -> Result<AssumedRole> {
        if self.query.is_none() {
            return Ok(AssumedRole::default());
        }
        let role = only(found).map_err(|unfit| CentreError::NoRole {
            publication: self.publication.to_owned(),
            message: unfit.message,
            hint: unfit.hint,
        })?;
        Ok(AssumedRole::new(dialect, role, self.publication))
    }
}

/// The role under which a remote reads a publication.
///
/// # Errors
/// [`CentreError::NoRole`] if there is none that can be assumed.
pub async fn ask_role<C: DatabaseConnection<Tables: TableAdapter>>(
    connection: &mut C,
    publication: &Publication<C::Tables>,
    context: &SyncContext,
) -> Result<AssumedRole> {
    let question = RoleQuestion::new(context, publication);
    let mut found = Vec::new();
    let steps = question.step(&mut found).into_iter().collect();
    let asked = connection.run("looking for a role", steps).await;
    asked.map_err(|failure| question.explain(failure.error))?;
    question.role(C::DIALECT, &found)
}
