//! The numbers that a remote gives to its new rows.

use prost::Message;

/// How many numbers a remote has left for the rows of a table.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NumbersLeft {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// How many.
    #[prost(uint64, tag = "2")]
    pub left: u64,
}

/// Numbers for the rows of a table that are this remote's, and nobody else's.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NumberBlock {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The first of them.
    #[prost(sint64, tag = "2")]
    pub first: i64,
    /// The last of them.
    #[prost(sint64, tag = "3")]
    pub last: i64,
}
