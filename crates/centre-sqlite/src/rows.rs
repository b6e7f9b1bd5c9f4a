//! What SQLite does in its own way when uploads are written: one row after the other, in the same
//! process. What is written and in which order is the engine's affair.

pub(crate) mod refusal;

use std::sync::Arc;

use super::connection::SqliteConnection;
use super::publication::{Publication, ServedTable, SqliteTables};
use super::served::SqlitePublications;
use super::{deferred_violations, failure, upstream};
use tidewater_centre::engine::upload::upload_driver::{SideEffects, TableState, UploadDriver};
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Writes uploads on a connection.
pub(super) struct UploadRows<'c> {
    pub(super) connection: &'c mut SqliteConnection,
    pub(super) served: &'c SqlitePublications,
}

impl UploadDriver for UploadRows<'_> {
    type Connection = SqliteConnection;
    type Tables = SqliteTables;
    type LiveTables = ();

    fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }

    /// A row may have ended the transaction.
    fn is_usable(&self) -> bool {
        !self.connection.is_autocommit()
    }

    fn publication(&self, name: &str) -> Result<Arc<Publication>> {
        self.served.publication(name).cloned()
    }

    /// Nobody changes the schema while somebody writes.
    fn table_state(&self, table: &ServedTable) -> TableState {
        let details = &table.details;
        TableState {
            is_as_loaded: true,
            effects: SideEffects {
                always: details.guarded,
                on_delete: !table.children.is_empty(),
                on_update: false,
            },
            may_leave_something: details.guarded,
            acts_on_itself: details.acts_on_itself,
            ..TableState::default()
        }
    }

    fn has_headquarters(&mut self) -> Result<bool> {
        let looking = "looking whether this is a branch";
        upstream::has_headquarters(self.connection).map_err(failure(looking))
    }

    fn note_given_back(&mut self) -> Result<()> {
        let noting = "noting what was given back to a branch";
        upstream::note_given_back(self.connection).map_err(failure(noting))
    }

    fn has_deferred_violations(&mut self) -> Result<bool> {
        deferred_violations(self.connection)
    }
}
