//! For whom something is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_protocol::RemoteId;

use crate::records::UserClaims;
use crate::script_notes::ScriptNotes;

/// Whose sync it is, and when: from the sign-in on, through uploads and downloads.
#[derive(Clone, Debug)]
pub struct SyncContext {
    /// The user who signed in.
    pub user: String,
    /// The remote.
    pub remote_id: RemoteId,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: i64,
    /// What the remote has set.
    pub parameters: Arc<Parameters>,
    /// What is known of the user.
    pub claims: UserClaims,
    /// What scripts of the sync have set.
    pub scripts: ScriptNotes,
    /// The partitions to hold in place of the user's own: of an image that is of nobody.
    pub given: Option<Arc<GivenPartitions>>,
}

/// The parameter by which a remote chooses a script version.
pub const VERSION: &str = "script_version";

/// The script version of a remote that chooses none.
pub const DEFAULT: &str = "default";

impl SyncContext {
    /// The script version that the remote has chosen for a publication, if it has chosen one.
    pub(crate) fn script_version(&self, publication: &str) -> Option<&str> {
        let set = self.parameters.get(publication)?;
        set.get(VERSION).map(String::as_str)
    }
}

/// Partitions by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenPartitions {
    /// A partition column, and one of its values as text. Rules with other columns have none.
    pub values: Vec<(String, String)>,
}

impl GivenPartitions {
    /// The values of a column.
    pub(crate) fn values_of<'g>(&'g self, column: &'g str) -> impl Iterator<Item = &'g str> {
        let values = self.values.iter().filter(move |it| it.0 == column);
        values.map(|(_, value)| value.as_str())
    }
}

/// The parameters that a remote has set: by publication, by name.
pub type Parameters = BTreeMap<String, BTreeMap<String, String>>;
