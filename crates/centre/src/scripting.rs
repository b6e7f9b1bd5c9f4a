//! Scripts as a sync runs them: what is asked for, and what they have set.

use crate::context::SyncContext;
use crate::engine::scripts::ScriptTransaction;
use crate::scope::Checkpoint;

/// Scripts that run in a transaction of their own, those of a publication for a sync.
#[derive(Clone, Debug)]
pub struct ScriptRun {
    /// For whom.
    pub context: SyncContext,
    /// The publication.
    pub publication: String,
    /// What the remote presents of it.
    pub checkpoint: Option<Checkpoint>,
    /// The transaction, which says which events happen.
    pub transaction: ScriptTransaction,
}
