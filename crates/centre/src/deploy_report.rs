//! What deploying does, or would do, and what it means to remotes.

use tidewater_protocol::RemoteId;

/// One thing that deploying (or undeploying) does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployStep {
    /// What, for people: `create the change log and the triggers of customer (support_rep_id)`.
    pub description: String,
    /// The lock that it takes and on what, for people; empty for none that matters.
    pub lock: String,
}

/// A right that the role of the database lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    /// Who may not do what, and what for.
    pub message: String,
    /// The statement that gives it, for whoever may run that; empty if none does.
    pub statement: String,
    /// Whether deploying can do without, and only serving cannot.
    pub is_for_serving: bool,
}

/// What deploying did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeployReport {
    /// In the order in which they were done; empty if everything was in place.
    pub steps: Vec<DeployStep>,
    /// What the operator should know: changes that the adapter cannot see, and the
    /// like.
    pub warnings: Vec<String>,
    /// Of a dry run: the rights that its role lacks to do it, and to serve afterwards.
    pub missing_rights: Vec<MissingRight>,
    /// What changed publications mean to remotes.
    pub effects: Vec<RemoteEffect>,
    /// The remotes that may have something pending that would be refused. Without being
    /// told to, deploying does nothing as long as there are any.
    pub held_up: Vec<HeldUpRemote>,
    /// Whether nothing had been deployed before: no server can be running.
    pub is_first: bool,
}

/// What a changed publication means to the remotes that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEffect {
    /// The publication.
    pub publication: String,
    /// What, for people.
    pub description: String,
    /// Whether pending changes are refused for it.
    pub holds_up: bool,
}

/// A remote that may have something pending that a deployment has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUpRemote {
    /// Its id.
    pub id: RemoteId,
    /// Its user.
    pub user: String,
    /// When it last synced, in milliseconds since 1970; 0 if never.
    pub last_sync_ms: i64,
}
