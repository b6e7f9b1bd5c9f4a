//! What a database says of rows that it does not take.

use tidewater_protocol::Code;

/// Why a row is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalReason {
    /// The code.
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
    /// The database's own code, if it is the database that does not take it: the SQLSTATE, or the
    /// extended result code of SQLite.
    pub database_code: Option<String>,
}

impl RefusalReason {
    /// One of this server's.
    pub fn new(code: Code, reason: String) -> RefusalReason {
        RefusalReason {
            code,
            reason,
            database_code: None,
        }
    }
}

/// What a statement has failed for, if that may be the rows that it was run for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Why a row is not taken.
    pub refusal: RefusalReason,
    /// Whether a row is to blame for certain. Otherwise the statement itself may be wrong: then it
    /// fails without rows as well.
    pub is_certain: bool,
    /// Whether it is the role under which it was run that may not do this.
    pub is_denied: bool,
    /// Whether it has ended the transaction.
    pub has_ended: bool,
    /// Which row, from 0 on, where the statement is run for one after the other: those before it are
    /// done.
    pub row: usize,
}
