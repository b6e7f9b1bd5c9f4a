//! A refused row as it is, and with other values: an ordinary change of the application's.

use rusqlite::TransactionBehavior;
use tidewater_protocol::Table;

use super::{
    RefusedRow, RemoteDatabase, exists, find, kept_values, load_all, row_values, run, value_of,
};
use crate::database::conflicts::as_application;
use crate::database::quote;
use crate::error::{ErrorContext, RemoteError};

impl RemoteDatabase {
    /// The values of a refused row, as a JSON object: as it is in the file, of a row that has left
    /// it what was kept. `None`: there is no such refused row.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn refused_values(&self, id: i64) -> Result<Option<String>, RemoteError> {
        let entries = self.refused()?;
        let Some(entry) = entries.into_iter().find(|it| it.id == id) else {
            return Ok(None);
        };
        let doing = "reading a refused row";
        let subscriptions = load_all(&self.connection)?;
        let found = find(&self.connection, &subscriptions, &entry).doing(doing)?;
        let Some(parked) = found.and_then(|it| it.parked) else {
            return Ok(entry.values);
        };
        let values = row_values(&self.connection, parked.table, &parked.key).doing(doing)?;
        Ok(Some(values))
    }

    /// Writes other values into a refused row, a JSON object of columns, as an application does:
    /// the change goes up with the next sync, and with it what was refused because of it.
    ///
    /// # Errors
    /// The row cannot be so, or is not in the file, and why; the file is locked, or SQLite failed.
    pub fn edit_refused(&mut self, id: i64, values: &str) -> Result<(), RemoteError> {
        let entries = self.refused()?;
        let entry = entries.iter().find(|it| it.id == id);
        let entry = entry.ok_or_else(|| RemoteError::Usage {
            what: format!("there is no refused change {id}; nothing was changed"),
            hint: "see: tidewater refused list FILE".into(),
        })?;
        let doing = "editing a refused row";
        let subscriptions = load_all(&self.connection)?;
        let found = find(&self.connection, &subscriptions, entry).doing(doing)?;
        let Some(parked) = found.and_then(|it| it.parked) else {
            let what = "only its values are left in the file, not the row";
            let hint = "restore it first, or write the values where they belong";
            return Err(entry.cannot_be_edited(what, hint));
        };
        if !exists(&self.connection, &parked.names, &parked.key).doing(doing)? {
            let what = "it is a delete, and the row is gone";
            return Err(entry.cannot_be_edited(what, "retry it, or discard it"));
        }
        let given = given(parked.table, values)
            .map_err(|what| entry.cannot_be_edited(&what, "see the columns of its table"))?;
        let names = &parked.names;
        let first = parked.key.len() + 1;
        let set = quote::list(given.iter().enumerate(), ", ", |(number, (at, _))| {
            format!("{} = ?{}", names.columns[*at], first + number)
        });
        let sql = format!(
            "UPDATE {} SET {set} WHERE {}",
            names.table,
            names.key_is_bound()
        );
        let mut application = as_application(&self.path).doing(doing)?;
        let transaction = application
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .doing(doing)?;
        let values = given.iter().map(|(_, value)| value);
        let written =
            run(&transaction, names, &sql, &parked.key, values).and_then(|_| transaction.commit());
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
                Err(RemoteError::sqlite(doing, error))
            }
            Err(error) => {
                let hint = "give it values that the table takes";
                Err(entry.cannot_be_edited(&error.to_string(), hint))
            }
        }
    }
}

impl RefusedRow {
    fn cannot_be_edited(&self, what: &str, hint: &str) -> RemoteError {
        RemoteError::Usage {
            what: format!(
                "refused change {} ({} {} {}) cannot be edited: {what}; nothing was changed",
                self.id, self.operation, self.table, self.key
            ),
            hint: hint.to_owned(),
        }
    }
}

/// Values by the column's index.
fn given(table: &Table, values: &str) -> Result<Vec<(usize, tidewater_protocol::Value)>, String> {
    let object = kept_values(values).ok_or("the values are no JSON object")?;
    if object.is_empty() {
        return Err("no values are given".into());
    }
    let value = |(name, json): (&String, &serde_json::Value)| {
        let at = table
            .column(name)
            .ok_or_else(|| format!("the table has no synced column {name:?}"))?;
        Ok((at, value_of(table.columns[at].column_type, json)))
    };
    object.iter().map(value).collect()
}
