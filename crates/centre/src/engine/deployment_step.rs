//! The steps of a deployment, and what an adapter tells of the change logs that are there.

use crate::deploy_report::DeployStep;
use crate::engine::connection::SystemStatement;

/// Something to do: SQL of the database's own, and then statements on the server's own tables.
#[derive(Debug)]
pub struct DeploymentStep {
    pub(super) told: DeployStep,
    pub(super) sql: String,
    pub(super) statements: Vec<SystemStatement>,
    /// Whether nothing can be served before it is done.
    pub(super) is_needed: bool,
}

impl DeploymentStep {
    /// A step that runs SQL of the database. `lock` is the table that has to be locked, if any.
    pub fn sql(description: String, lock: String, sql: String) -> DeploymentStep {
        DeploymentStep {
            told: DeployStep { description, lock },
            sql,
            statements: Vec::new(),
            is_needed: true,
        }
    }

    /// A step that writes the server's own tables.
    pub fn record(description: String, statements: Vec<SystemStatement>) -> DeploymentStep {
        DeploymentStep {
            statements,
            ..DeploymentStep::sql(description, String::new(), String::new())
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
    /// The SQL that removes it.
    pub removal: String,
}
