//! Trying a script, or printing one to begin from, as it crosses the boundary.

use std::sync::Arc;

use serde::Serialize;
use tidewater_protocol::Table;

use crate::context::SyncContext;
use crate::engine::scripts::{ScriptStatement, Scripts};

/// The scripts of a version, as a configuration has them, ready to be tried.
#[derive(Clone, Debug)]
pub struct ScriptsToTry {
    /// The publication.
    pub publication: String,
    /// Its tables, parents first.
    pub tables: Vec<Table>,
    /// The names of the tables as the database's SQL has them, in the same order.
    pub sql_names: Vec<String>,
    /// The scripts.
    pub scripts: Arc<Scripts>,
    /// For each table: what reads the row with a key.
    pub rows: Vec<ScriptStatement>,
}

/// A script that is to be tried, in a transaction that is undone.
#[derive(Clone, Debug)]
pub struct ScriptTrial {
    /// The scripts of its version.
    pub scripts: ScriptsToTry,
    /// Its table; none for the connection.
    pub table: Option<usize>,
    /// Its event.
    pub event: &'static str,
    /// For whom it is run.
    pub context: SyncContext,
    /// The row as the remote wants it, a JSON object.
    pub row: Option<String>,
    /// The row as it was, a JSON object.
    pub old: Option<String>,
}

/// What a script has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TriedScript {
    /// The scripts that ran before it, as they do in a sync.
    pub before: Vec<String>,
    /// What each of its statements did, in order.
    pub statements: Vec<TriedStatement>,
    /// Why the database refuses it, if it does: nothing of it was done.
    pub refused: Option<String>,
    /// The rows of tables that were changed, by the script and those before it.
    pub changed: Vec<ChangedTable>,
    /// The row of the table before it, as JSON.
    pub row_before: Option<String>,
    /// And after it.
    pub row_after: Option<String>,
}

/// What a statement of a script did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TriedStatement {
    /// The statement.
    pub sql: String,
    /// The rows that it changed, or yields.
    pub rows: Option<u64>,
    /// The first row that it yields, as JSON.
    pub first: Option<String>,
    /// The parameters that it set, with their values.
    pub set: Vec<(String, String)>,
}

/// How many rows of a table were changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedTable {
    /// Its name in the database.
    pub table: String,
    /// Rows that were inserted.
    pub inserted: u64,
    /// Rows that were updated.
    pub updated: u64,
    /// Rows that were deleted.
    pub deleted: u64,
}
