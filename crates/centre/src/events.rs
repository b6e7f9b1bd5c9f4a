//! Durable events, as they cross the boundary.
//!
//! The events of a *space* are numbered from 1 in the order in which they are committed. Whoever has
//! read one has read all before it, so its number is all that a reader keeps; the random check beside
//! it tells whether it is still the same event, or the database another one: restored, say.

use bytes::Bytes;

/// Events that one user publishes in one space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvents {
    /// The space.
    pub space: String,
    /// Who publishes.
    pub user: String,
    /// Under this key they are appended once: whoever appends again with it is told the numbers of
    /// the first time.
    pub once: Option<[u8; 16]>,
    /// Subject and payload of each, in their order.
    pub events: Vec<(String, Bytes)>,
}

/// What became of [`NewEvents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// They have the numbers from this one on, and all this check.
    At {
        /// The number of the first one. If there is none, that of the next event of the space.
        first: u64,
        /// Random bytes.
        check: [u8; 8],
    },
    /// The user has used the key for something else. Nothing was appended.
    KeyTaken,
}

/// An event as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number in the space.
    pub id: u64,
    /// Random bytes, those of all events that were appended with it.
    pub check: [u8; 8],
    /// Its subject.
    pub subject: String,
    /// What it says.
    pub payload: Bytes,
    /// Who has published it.
    pub user: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
}

/// How long the events of a space are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceRetention {
    /// The space.
    pub space: String,
    /// So long.
    pub kept_ms: i64,
    /// Whether the newest event of each subject stays however old it is.
    pub keeps_last: bool,
}
