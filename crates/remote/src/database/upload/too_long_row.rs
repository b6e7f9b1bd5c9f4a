//! Rows that cannot be sent, because a value is longer than the protocol carries.
//!
//! Such a row would hold up everything else for ever, because what an upload consists of never
//! changes once it was taken. So it is refused here before it is sent: its change is parked as
//! if the centre had refused it, and goes up when the user has made the value shorter.

use rusqlite::Connection;
use tidewater_protocol::pack::MAX_VALUE_BYTES;
use tidewater_protocol::{Code, Table, Value};

use crate::database::changes::PARKED;
use crate::database::refused::{self, NewRefusal};
use crate::database::tables::QuotedNames;
use crate::database::{RemoteDatabase, SubscriptionState, changes, row};
use crate::error::{ErrorContext, RemoteError};

/// Such a row.
#[derive(Clone, Debug)]
pub(super) struct TooLongRow {
    pub(super) key: Vec<Value>,
    /// The column that has the value, and how long that is.
    pub(super) column: String,
    pub(super) bytes: usize,
    pub(super) operation: &'static str,
}

impl RemoteDatabase {
    /// Takes these rows out of the upload. Reading it once more finds them gone.
    pub(super) fn set_aside(
        &self,
        subscription: &SubscriptionState,
        table: &Table,
        generation: i64,
        rows: &[TooLongRow],
    ) -> Result<(), RemoteError> {
        if rows.is_empty() {
            return Ok(());
        }
        let set_aside = || -> Result<(), RemoteError> {
            for row in rows {
                park(&self.connection, subscription, table, generation, row)?;
            }
            Ok(())
        };
        let doing = "setting rows aside that cannot be sent";
        // An apply has its own transaction.
        match self.connection.is_autocommit() {
            true => {
                let transaction = self.connection.unchecked_transaction().doing(doing)?;
                set_aside()?;
                transaction.commit().doing(doing)
            }
            false => set_aside(),
        }
    }
}

fn park(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    generation: i64,
    row: &TooLongRow,
) -> Result<(), RemoteError> {
    let doing = "setting a row aside that cannot be sent";
    let names = QuotedNames::for_table(table);
    if let Some(later) =
        changes::later_than(connection, &names, &row.key, generation).doing(doing)?
    {
        // It was changed since, and goes up with that change.
        return changes::move_to(connection, &names, &row.key, generation, later)
            .map(drop)
            .doing(doing);
    }
    if !changes::has_change(connection, &names, &row.key, generation).doing(doing)? {
        return Ok(());
    }
    changes::move_to(connection, &names, &row.key, generation, PARKED).doing(doing)?;
    let types = row::key_types(table);
    let datums = row::datums(&types, &row.key);
    let packed = row::pack_key(&types, &datums);
    let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    refused::supersede(connection, &table.name, &packed)?;
    refused::record(
        connection,
        &NewRefusal {
            publication: &subscription.publication,
            table: &table.name,
            key: &row::readable_key(&datums),
            key_packed: &packed,
            operation: row.operation,
            code: Code::RowBadValue.name(),
            reason: &format!(
                "{}: {:.1} MiB, and a value that is synced has at most {:.1} MiB",
                row.column,
                mebibytes(row.bytes),
                mebibytes(MAX_VALUE_BYTES)
            ),
            sequence: subscription.sequence + 1,
            row_values: None,
        },
    )
    .doing(doing)
}
