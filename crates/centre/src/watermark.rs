//! How far a remote has come with a publication, in the form in which a checkpoint keeps it.

use prost::Message;

/// How far a remote has come with a publication.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Watermark {
    /// The random row that proves that this history of the database gave it out.
    #[prost(bytes = "vec", tag = "1")]
    pub mark: Vec<u8>,
    /// The numbers of the rules that the parts of the scope beside it are of, in their order.
    #[prost(int64, repeated, tag = "2")]
    pub rules: Vec<i64>,
    /// The position in the change logs, in the database's own terms.
    #[prost(bytes = "vec", tag = "3")]
    pub position: Vec<u8>,
    /// The role of the database that has read the rows; empty for the server's own.
    #[prost(string, tag = "4")]
    pub role: String,
    /// Up to when the remote has what scripts yield, in microseconds since 1970.
    #[prost(sint64, optional, tag = "5")]
    pub last_download: Option<i64>,
    /// Up to where it has what handlers tell.
    #[prost(message, repeated, tag = "6")]
    pub cursors: Vec<TableCursor>,
    /// Whether `last_download` is the time of the sync, and says nothing of what transactions that
    /// were open then have written: no script gave rows.
    #[prost(bool, tag = "7")]
    pub is_by_clock: bool,
}

/// Up to where a remote has what a handler tells of a table.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TableCursor {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// In the handler's own terms.
    #[prost(bytes = "vec", tag = "2")]
    pub cursor: Vec<u8>,
}

impl Watermark {
    /// Reads one; `None` for what is none.
    pub fn read(bytes: &[u8]) -> Option<Watermark> {
        Watermark::decode(bytes).ok()
    }
}
