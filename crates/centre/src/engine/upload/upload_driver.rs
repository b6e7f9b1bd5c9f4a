//! What the engine asks of a database that uploads are written to, beside running flights.

use std::sync::Arc;

use super::incoming_rows::IncomingTable;
use super::row_batch::MayWrite;
use crate::engine::connection::DatabaseConnection;
use crate::engine::flight::FlightStep;
use crate::engine::publication::Publication;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// What beside the uploaded rows an upload may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideEffects {
    /// Triggers of the application, or columns that are computed.
    pub always: bool,
    /// Foreign keys that act on a delete.
    pub on_delete: bool,
    /// Foreign keys that act on an update.
    pub on_update: bool,
}

/// What a table is now, as far as that decides how its rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// Whether the table and its triggers are still those that were loaded.
    pub is_as_loaded: bool,
    /// Whether what becomes of a row may depend on who uploads it.
    pub depends_on_caller: bool,
    /// What an upload may change beside its rows.
    pub effects: SideEffects,
    /// Whether a trigger can change the key of a row before it is inserted, or keep it out.
    pub edits_inserts: bool,
    /// Whether a trigger can do something else than delete a row.
    pub keeps_deletes: bool,
    /// Whether a unique constraint can wait: an insert cannot pass over what is taken then.
    pub defers_unique: bool,
    /// Whether some roles do not see all rows.
    pub hides_rows: bool,
    /// Whether a statement that fails may leave something behind, or end the transaction.
    pub may_leave_something: bool,
    /// Whether writing a row can change others of the table, by foreign keys that act.
    pub acts_on_itself: bool,
}

impl TableState {
    /// Whether the rows of a table set something off beside them.
    pub(super) fn sets_off_more<T: TableAdapter>(&self, table: &IncomingTable<'_, T>) -> bool {
        let SideEffects {
            always,
            on_delete,
            on_update,
        } = self.effects;
        always
            || on_delete && !table.deletes.is_empty()
            || on_update && !(table.updates.is_empty() && table.moves.is_empty())
    }
}

/// What a database does in its own way when uploads are written.
pub trait UploadDriver: Send {
    /// The connection.
    type Connection: DatabaseConnection<Tables = Self::Tables>;
    /// A table of a publication.
    type Tables: TableAdapter;
    /// What the tables of an upload are now.
    type LiveTables: Default + Send;

    /// The connection.
    fn connection(&mut self) -> &mut Self::Connection;

    /// Whether the transaction can go on, as far as can be told without a word to the database.
    fn is_usable(&self) -> bool;

    /// A publication that is served.
    fn publication(&self, name: &str) -> Result<Arc<Publication<Self::Tables>>>;

    /// What a table is now.
    fn table_state(&self, table: &ServedTable<Self::Tables>) -> TableState;

    /// Whether the database is a remote of headquarters, which may have what it has forgotten.
    ///
    /// # Errors
    /// The database failed.
    fn has_headquarters(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// The database was restored, and rows that were given back to it are written: if it has
    /// headquarters, its upload says that these may have them already.
    ///
    /// # Errors
    /// The database failed.
    fn note_given_back(&mut self) -> Result<()> {
        Ok(())
    }

    /// An upload of the list has waited for a lock in vain.
    fn note_lock_in_the_way(&mut self) {}

    /// Lets some time pass, if that helps, before something is tried once more that has failed so
    /// often.
    fn pause_before_retry(&mut self, _attempts: u32) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Looks what the tables of uploads are now: steps of a flight behind a lock that keeps anybody
    /// from changing them.
    fn look_at_tables<'s>(
        tables: &'s [IncomingTable<'_, Self::Tables>],
        live: &'s mut Self::LiveTables,
    ) -> Vec<FlightStep<'s, Self::Tables>> {
        let _ = (tables, live);
        Vec::new()
    }

    /// What was found.
    fn open_tables(&mut self, _live: Self::LiveTables) {}

    /// Whether constraints that wait are violated, where no SQL tells.
    ///
    /// # Errors
    /// The database failed.
    fn has_deferred_violations(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// By which version the change logs know what the transaction writes; `None` if they have others
    /// under the same.
    fn version(&self) -> Option<u64> {
        None
    }

    /// How many warnings the database has given since it was last asked.
    fn take_warnings(&mut self) -> u64 {
        0
    }

    /// Inserts all inserts of a table in bulk, or none of them; if they are in, whether the centre has
    /// them exactly as they were uploaded. `may_write` tells by the number of its chunk whether a row
    /// may be written by who sent it.
    fn insert_in_bulk(
        &mut self,
        table: &IncomingTable<'_, Self::Tables>,
        may_write: &mut MayWrite<'_>,
    ) -> impl Future<Output = Result<Option<bool>>> + Send {
        let _ = (table, may_write);
        async { Ok(None) }
    }

    /// The condition that is true of a row `r` that violates constraints of a table over some of these
    /// columns; `None` if it cannot be told.
    fn violation(
        &mut self,
        table: &ServedTable<Self::Tables>,
        columns: &[&str],
    ) -> impl Future<Output = Result<Option<String>>> + Send {
        let _ = (table, columns);
        async { Ok(None) }
    }
}
