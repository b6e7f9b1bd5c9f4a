//! Rows and scripts of a list that end its transaction: a trigger of the application may do so where
//! the database lets it. The list is run again without them, which are refused without being tried.

use std::collections::HashMap;

use super::incoming_rows::RowRef;
use crate::engine::row_fault::RefusalReason;
use crate::error::CentreError;

/// How often a list is tried that has them.
pub(super) const TRIALS: u32 = 100;

/// Which row of a list of uploads: upload, place of the table, row.
pub(super) type RowPlace = (usize, usize, RowRef);

/// What was found to end the transaction.
#[derive(Default)]
pub(super) struct EndingRows {
    rows: HashMap<RowPlace, RefusalReason>,
    scripts: HashMap<String, RefusalReason>,
    /// Whether something was found since the list began.
    pub(super) is_found: bool,
}

impl EndingRows {
    /// How much that is.
    pub(super) fn count(&self) -> usize {
        self.rows.len() + self.scripts.len()
    }

    /// Why a row is not tried.
    pub(super) fn row(&self, place: RowPlace) -> Option<&RefusalReason> {
        match self.rows.is_empty() {
            true => None,
            false => self.rows.get(&place),
        }
    }

    /// Notes that a row has ended the transaction.
    pub(super) fn add_row(&mut self, place: RowPlace, refusal: RefusalReason) {
        self.is_found = true;
        self.rows.insert(place, refusal);
    }

    /// Why a run of a script is not tried.
    pub(super) fn script(&self, name: impl FnOnce() -> String) -> Option<&RefusalReason> {
        match self.scripts.is_empty() {
            true => None,
            false => self.scripts.get(&name()),
        }
    }

    /// Notes that a run of a script has ended the transaction; gives the error of the list.
    pub(super) fn add_script(&mut self, name: String, refusal: RefusalReason) -> CentreError {
        self.is_found = true;
        self.scripts.insert(name, refusal);
        ended()
    }
}

/// The error of a list in which something ended the transaction.
pub(super) fn ended() -> CentreError {
    CentreError::StatementFailed {
        what: "an upload with rows that end the transaction one after the other".into(),
        message: "the list is to be applied without them".into(),
        sqlstate: None,
        retry: true,
    }
}
