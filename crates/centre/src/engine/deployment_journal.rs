//! The journal of a deployment, for databases that commit at each DDL statement.
//!
//! There a deployment can end between any two statements: the process dies, a table is in use for too
//! long. So its steps are written to a table of their own and committed before the first one is
//! carried out, each is ticked off when it is done, and as long as one is left the deployment is
//! unfinished: no server serves, and every command says what to do.
//!
//! The next deployment does not go on with the steps that are left. It makes its plan anew from what
//! it finds in the database, whatever is configured by then, writes that to the journal in the place
//! of the other, and carries it out. What the journal has to tell is only
//!
//! - that a deployment is unfinished, though every table may look as it has to;
//! - whether it was making or dropping the server's own tables. What is there of them is of no use
//!   then, and is removed. Without that word of the journal, tables that are missing are lost ones,
//!   and nothing that is left is touched.
//!
//! What the statements of the steps have to keep for that is in [`super::deployment_step`].

use super::change_tracking::ChangeTracking;
use super::connection::{DatabaseConnection, Durability, TransactionMode};
use super::deployment_step::DeploymentStep;
use super::sql::system::{deployment_steps, meta};
use super::sql::tables::{DEPLOYMENT_STEP, META};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// What an error means in the middle.
const UNFINISHED: &str = "the deployment is unfinished, and nothing is served until it is finished";

const WHAT: &str = "writing the journal of the deployment";

/// The journal as a deployment has left it.
#[derive(Debug)]
pub(super) struct DeploymentJournal {
    is_there: bool,
    /// Of each step that is left, whether it makes or drops the server's own tables.
    left: Vec<bool>,
}

impl DeploymentJournal {
    /// Reads it. There is none where DDL is transactional.
    pub(super) async fn read<T: ChangeTracking>(
        connection: &mut T::Connection,
    ) -> Result<DeploymentJournal> {
        let is_there = !connection.has_transactional_ddl()
            && is_found::<T>(connection, DEPLOYMENT_STEP.name).await?;
        let mut left = Vec::new();
        if is_there {
            let list = deployment_steps::list();
            let what = "reading the journal of deployments";
            let answer = connection.run_one(what, list).await?;
            let rows = answer.rows.iter().map(|row| row.get(1));
            left = rows.collect::<Result<_>>()?;
        }
        Ok(DeploymentJournal { is_there, left })
    }

    /// Whether the database has the table of the journal.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Whether no step is left.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether a step is left that makes or drops the server's own tables.
    pub(super) fn is_of_state(&self) -> bool {
        self.left.contains(&true)
    }

    /// Writes these steps in the place of what is left, and carries them out. The deployment is
    /// unfinished until [`Self::close`] or [`Self::drop`].
    pub(super) async fn carry_out<T: ChangeTracking>(
        &self,
        connection: &mut T::Connection,
        steps: &[DeploymentStep],
    ) -> Result<()> {
        if !self.is_there {
            let created = T::dialect().create_table(&DEPLOYMENT_STEP);
            run(connection, WHAT, &created).await?;
        }
        let listed = steps.iter();
        let listed = listed.map(|it| (&*it.told.description, it.is_of_state));
        let mut begun = vec![
            deployment_steps::delete_all(),
            deployment_steps::insert(listed),
        ];
        // Servers notice that there is another deployment, look, and find this one.
        if is_found::<T>(connection, META.name).await? {
            begun.push(meta::count_deployment());
        }
        let durability = Durability::Durable;
        connection.transact(WHAT, durability, &begun).await?;
        for (step, number) in steps.iter().zip(1..) {
            let done = run(connection, &step.told.description, &step.sql).await;
            done.map_err(|error| step.locked(error, UNFINISHED))?;
            let mut statements = step.statements.clone();
            // The last one stays for what ends the deployment.
            if number < steps.len() as i64 {
                statements.push(deployment_steps::delete(number));
            }
            connection
                .transact("deploying", durability, &statements)
                .await?;
        }
        Ok(())
    }

    /// Ends a deployment with its last statements, in one transaction.
    pub(super) async fn close<T: ChangeTracking>(
        connection: &mut T::Connection,
        last: &[String],
    ) -> Result<()> {
        connection.begin(TransactionMode::WRITING).await?;
        run(connection, "deploying", last).await?;
        let closed = [deployment_steps::delete_all(), meta::count_deployment()];
        connection.flight(WHAT, &closed).await?;
        connection.commit().await
    }

    /// Ends the removal of every trace.
    pub(super) async fn drop<T: ChangeTracking>(connection: &mut T::Connection) -> Result<()> {
        let dropped = T::dialect().drop_table(DEPLOYMENT_STEP.name);
        run(connection, WHAT, &[dropped]).await
    }
}

/// Runs statements of the database one after the other.
pub(super) async fn run(
    connection: &mut impl DatabaseConnection,
    what: &str,
    sql: &[String],
) -> Result<()> {
    for statement in sql {
        connection.execute(what, statement).await?;
    }
    Ok(())
}

async fn is_found<T: ChangeTracking>(
    connection: &mut T::Connection,
    table: &'static str,
) -> Result<bool> {
    Ok(!T::found_tables(connection, &[table]).await?.is_empty())
}
