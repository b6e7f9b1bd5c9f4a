//! The steps of a deployment, and what an adapter tells of the change logs that are there.
//!
//! Where DDL commits by itself, a deployment can end between any two statements of its steps, and the
//! next one makes its plan anew from what it finds (`deployment_journal.rs`). So the statements
//! of every step keep three rules:
//!
//! - After each of them an application can write to its tables: a change log is there before the
//!   first trigger that names it, and is dropped after the last one.
//! - What is made is listed before it is made, and taken from the list after it is gone: the next
//!   plan finds by the list what is left of it.
//! - A step that was carried out in part, or in full, does no harm when a later plan has it again.

use crate::deploy_report::DeployStep;
use crate::engine::connection::SystemStatement;
use crate::error::CentreError;

/// Something to do: SQL of the database's own, and then statements on the server's own tables.
#[derive(Debug)]
pub struct DeploymentStep {
    pub(super) told: DeployStep,
    pub(super) sql: Vec<String>,
    pub(super) statements: Vec<SystemStatement>,
    /// Whether it makes or drops the server's own tables.
    pub(super) is_of_state: bool,
    /// Whether nothing can be served before it is done.
    pub(super) is_needed: bool,
}

impl DeploymentStep {
    /// A step that runs SQL of the database, one statement after the other. Where DDL is
    /// transactional, a text may be several of them. `lock` is the table that has to be locked, if
    /// any.
    pub fn sql(description: String, lock: String, sql: Vec<String>) -> DeploymentStep {
        DeploymentStep {
            told: DeployStep { description, lock },
            sql,
            statements: Vec::new(),
            is_of_state: false,
            is_needed: true,
        }
    }

    /// A step that writes the server's own tables.
    pub fn record(description: String, statements: Vec<SystemStatement>) -> DeploymentStep {
        DeploymentStep {
            statements,
            ..DeploymentStep::sql(description, String::new(), Vec::new())
        }
    }

    /// The same, if it makes or drops the server's own tables.
    pub fn of_state(self) -> DeploymentStep {
        DeploymentStep {
            is_of_state: true,
            ..self
        }
    }

    /// What is told when a lock that it takes is somebody else's, and what that means.
    pub(super) fn locked(&self, error: CentreError, consequence: &str) -> CentreError {
        let DeployStep { description, lock } = &self.told;
        match error {
            CentreError::Locked { message } => CentreError::Locked {
                message: format!("cannot {description}: {message} ({lock}); {consequence}"),
            },
            other => other,
        }
    }

    /// The same, if a server can do without.
    pub fn unneeded(self) -> DeploymentStep {
        DeploymentStep {
            is_needed: false,
            ..self
        }
    }
}

/// The tables that partition queries read.
#[derive(Debug, Default)]
pub struct ScopeSources {
    /// What has to be done so that writes to them are noted.
    pub steps: Vec<DeploymentStep>,
    /// Those of which that cannot be.
    pub warnings: Vec<String>,
}

/// What there is of change logs.
#[derive(Debug, Default)]
pub struct ExistingChangeLogs {
    /// The change logs that there are.
    pub logs: Vec<FoundLog>,
    /// The number of the next one: none that was used before.
    pub next: i64,
    /// What else has to be done in the database.
    pub mends: Vec<DeploymentStep>,
}

/// A change log that there is, or of which something is left.
#[derive(Debug)]
pub struct FoundLog {
    /// Its number.
    pub id: i64,
    /// Its table, for people.
    pub table: String,
    /// See [`super::change_log::ChangeLog::identity`].
    pub identity: String,
    /// Whether it is all there, as it has to be.
    pub is_whole: bool,
    /// The statements that remove it: triggers first, the entry of the list last.
    pub removal: Vec<String>,
}
