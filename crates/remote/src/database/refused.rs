//! Refused rows: what the centre did not take, why, and what the user decides about it.

use serde::Serialize;

use super::Database;
use crate::error::RemoteError;

/// A change that the centre refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedRow {
    /// Its number, for retrying or discarding it.
    pub id: i64,
    /// The publication.
    pub publication: String,
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// The name of the code.
    pub code: String,
    /// Why, for people.
    pub reason: String,
    /// The upload that it was part of.
    pub sequence: u64,
    /// When the result was applied here, in milliseconds since 1970.
    pub at_ms: i64,
    /// The user's own values, a JSON object, where the row itself had to go.
    pub values: Option<String>,
}

/// Which refused rows are meant.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Every one.
    All,
    /// Those of these numbers.
    Ids(&'a [i64]),
}

impl Database {
    /// Every refused change, oldest first.
    pub fn refused(&self) -> Result<Vec<RefusedRow>, RemoteError> {
        todo!()
    }

    /// Makes refused changes pending again; returns how many.
    pub fn retry_refused(&mut self, which: Which<'_>) -> Result<u64, RemoteError> {
        let _ = which;
        todo!()
    }

    /// Gives refused changes up: the rows go back to what the centre last had, and are
    /// asked for again. Returns how many.
    pub fn discard_refused(&mut self, which: Which<'_>) -> Result<u64, RemoteError> {
        let _ = which;
        todo!()
    }
}
