//! What a changed configuration would mean to the remotes that there are, before it is deployed.

use std::collections::BTreeMap;

use serde::Serialize;

use tidewater_protocol::RemoteId;

/// What is to be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviewRequest {
    /// Of this remote only.
    pub remote_id: Option<RemoteId>,
    /// So many rows of each kind are told by their keys.
    pub rows: usize,
    /// What remotes have set, as far as the operator knows: the centre does not keep it.
    pub parameters: BTreeMap<String, String>,
    /// The clock, in milliseconds since 1970.
    pub now_ms: i64,
}

/// What a configuration would mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// How many remotes were looked at.
    pub remotes_looked_at: usize,
    /// Rows that would come to remotes, and rows that would leave them, all in all.
    pub added: u64,
    /// See [`Self::added`].
    pub removed: u64,
    /// Tables and columns that come and go, for everybody who has the publication.
    pub changes: Vec<SchemaChange>,
    /// The remotes for which something changes.
    pub remotes: Vec<PreviewedRemote>,
    /// What could not be found out, and why.
    pub notes: Vec<String>,
}

/// A table or column of a publication that comes or goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SchemaChange {
    /// The publication.
    pub publication: String,
    /// The table, by its name on remotes; `None` if it is the publication as a whole.
    pub table: Option<String>,
    /// The column; `None` if it is the table as a whole.
    pub column: Option<String>,
    /// Whether it comes: otherwise it goes.
    pub comes: bool,
}

/// What changes for a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedRemote {
    /// Its id.
    pub id: String,
    /// Its user.
    pub user: String,
    /// The tables of which rows come or go.
    pub tables: Vec<PreviewedTable>,
}

/// What changes in a table of a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewedTable {
    /// The publication.
    pub publication: String,
    /// The table, by its name on remotes.
    pub table: String,
    /// How many rows come.
    pub added: u64,
    /// How many go.
    pub removed: u64,
    /// The first keys of those that come, as JSON arrays.
    #[serde(serialize_with = "keys")]
    pub added_keys: Vec<String>,
    /// The first keys of those that go.
    #[serde(serialize_with = "keys")]
    pub removed_keys: Vec<String>,
}

fn keys<S: serde::Serializer>(keys: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    let parsed = keys.iter().map(|key| {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(key);
        parsed.unwrap_or_else(|_| key.as_str().into())
    });
    serializer.collect_seq(parsed)
}
