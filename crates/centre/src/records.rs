//! Records of the server's own state in the consolidated database.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_protocol::{RemoteId, UploadId};

/// What is known of who wants to open a session. Everything in one round trip.
#[derive(Clone, Debug, Default)]
pub struct SessionState {
    /// The user who is named, if there is one.
    pub user: Option<UserRecord>,
    /// The remote that presents itself, if there is one.
    pub remote: Option<RemoteRecord>,
    /// Its subscriptions to the publications asked for, in that order; `None` where
    /// there is none yet.
    pub subscriptions: Vec<Option<SubscriptionRecord>>,
    /// The centre's name.
    pub centre: String,
    /// The number of the last deployment.
    pub deployment: i64,
    /// The remote that presents itself is not there any more: its user was removed.
    pub removed: bool,
    /// Of each subscription, what is known of the former ids asked for, in that order.
    pub formers: Vec<Vec<FormerRecord>>,
    /// What the centre knows of the watermarks asked for, in that order; `None` where
    /// there was none.
    pub histories: Vec<Option<HistoryCheck>>,
}

/// A session that is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// The user's login name.
    pub user: String,
    /// The remote's id, if it has one.
    pub remote_id: Option<RemoteId>,
    /// What it subscribes to.
    pub subscriptions: Vec<SubscriptionRequest>,
}

/// A subscription that a session asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRequest {
    /// The publication.
    pub publication: String,
    /// The watermark of the checkpoint that the remote presented, if that is genuine.
    pub watermark: Option<Vec<u8>>,
    /// Ids that the remote had before.
    pub formers: Vec<RemoteId>,
}

/// What is known of an id that a remote had before.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FormerRecord {
    /// It was removed with its user.
    pub removed: bool,
    /// What it uploaded last to the publication, if it is of the same user.
    pub last: Option<SubscriptionRecord>,
}

/// Whether a watermark belongs to the centre's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryCheck {
    /// It does: what happened since is known.
    Known,
    /// What happened since is not known any more.
    Pruned,
    /// Nothing is known of it: the centre was restored, or is another, or has forgotten
    /// that it gave it out, longer ago than the change logs are kept.
    Unknown,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UserRecord {
    /// The login name.
    pub name: String,
    /// The password's argon2id hash, in PHC form; empty if none is set.
    pub password_hash: String,
    /// Whether the user is kept out.
    pub disabled: bool,
    /// When the user was added, in milliseconds since 1970.
    pub created_ms: i64,
    /// What others than this database have said of the user.
    pub proven: ProvenIdentity,
}

/// What an identity provider, a directory or a certificate has said of a user, the last time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProvenIdentity {
    /// When that was, in milliseconds since 1970; 0 if never.
    pub at_ms: i64,
    /// Who it was: the issuer's URL, the directory's, or `certificate`.
    pub by: String,
    /// What `{s.claims.NAME}` stands for.
    pub claims: UserClaims,
}

/// What is known of a user beside the name, each as text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UserClaims(Arc<BTreeMap<String, String>>);

impl UserClaims {
    /// These.
    pub fn new(claims: BTreeMap<String, String>) -> UserClaims {
        UserClaims(Arc::new(claims))
    }

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// As they are stored: JSON, or nothing if there are none.
    pub fn to_json(&self) -> String {
        match self.0.is_empty() {
            true => String::new(),
            false => serde_json::to_string(&*self.0).unwrap_or_default(),
        }
    }

    /// Reads that; `None` if it is something else.
    pub fn from_json(text: &str) -> Option<UserClaims> {
        match text.is_empty() {
            true => Some(UserClaims::default()),
            false => serde_json::from_str(text).ok().map(UserClaims::new),
        }
    }

    /// By name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// What became of a list of users that were to be added at once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UserImport {
    /// Users that are new.
    pub added: u64,
    /// Users who were there and have a new password.
    pub updated: u64,
    /// Users who were there and were to stay as they are: nothing was done at all.
    pub taken: Vec<String>,
}

/// Why a remote that was let in may go on no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutOutReason {
    /// Its user was disabled.
    UserDisabled,
    /// It was revoked.
    RemoteRevoked,
    /// It, or its user, was removed.
    Removed,
}

/// A remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRecord {
    /// Its id.
    pub id: RemoteId,
    /// The user who signed in on it.
    pub user: String,
    /// Whether it is kept out.
    pub revoked: bool,
    /// SHA-256 of its credential.
    pub credential_hash: Vec<u8>,
    /// SHA-256 of the credential before, valid until the new one is used; empty if
    /// none.
    pub previous_credential_hash: Vec<u8>,
    /// When the credential was last rotated, in milliseconds since 1970.
    pub rotated_ms: i64,
    /// When it was first seen, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it last synced, in milliseconds since 1970; 0 if never.
    pub last_sync_ms: i64,
    /// How many times it has synced since it last compared everything.
    pub unverified: u64,
    /// What people call the device; empty if nobody has named it. Several may have the same.
    pub device_name: String,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRecord {
    /// The last upload applied; 0 if none.
    pub sequence: u64,
    /// Its id; `None` if none.
    pub upload_id: Option<UploadId>,
}

/// A key that signs tokens and checkpoints.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Its number, part of every signature.
    pub id: u32,
    /// 32 random bytes.
    pub secret: Vec<u8>,
    /// When it was made, in milliseconds since 1970. The newest signs, all verify.
    pub created_ms: i64,
}

/// The secret is not for logs.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// One sync, for the history.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SyncRecord {
    /// The remote; `None` if it never got an id.
    pub remote_id: Option<RemoteId>,
    /// The user.
    pub user: String,
    /// The publications, comma-separated.
    pub publications: String,
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Uploaded: inserted, updated and deleted rows.
    pub uploaded: [u64; 3],
    /// Downloaded: rows and removals.
    pub downloaded: [u64; 2],
    /// Changes that lost against the centre.
    pub conflicts: u64,
    /// Changes refused.
    pub refused: u64,
    /// Received and sent bytes.
    pub bytes: [u64; 2],
    /// The name of the code it failed with; empty if it did not.
    pub error: String,
    /// The schema that the remote has now, as far as the server knows: publication and
    /// hash. Kept of the last sync only, not of those in the history.
    pub schemas: Vec<(String, Vec<u8>)>,
    /// It compared everything with the centre.
    pub verified: bool,
    /// What was found to be at odds between the remote and the centre. Kept in a list of
    /// its own, not with the syncs of the history.
    pub incidents: Vec<IncidentRecord>,
}

/// What a remote and the centre can be found at odds about, or the centre with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IncidentKind {
    /// The centre does not know the history in which the remote's checkpoint was given
    /// out.
    HistoryUnknown,
    /// The centre has forgotten uploads that it acknowledged.
    UploadsMissing,
    /// The remote was given a new identity.
    NewIdentity,
    /// The centre has lost the triggers that track the changes of a table, for a while or for
    /// good.
    TrackingLost,
    /// The remote was not equal to the centre when it compared everything to be sure. It is again.
    Differed,
}

impl IncidentKind {
    /// All of them.
    pub const ALL: [IncidentKind; 5] = [
        IncidentKind::HistoryUnknown,
        IncidentKind::UploadsMissing,
        IncidentKind::NewIdentity,
        IncidentKind::TrackingLost,
        IncidentKind::Differed,
    ];

    /// The name under which it is kept and shown.
    pub fn name(self) -> &'static str {
        match self {
            IncidentKind::HistoryUnknown => "history_unknown",
            IncidentKind::UploadsMissing => "uploads_missing",
            IncidentKind::NewIdentity => "new_identity",
            IncidentKind::TrackingLost => "tracking_lost",
            IncidentKind::Differed => "differed",
        }
    }

    /// Reads what [`Self::name`] says; `None` for what a newer version knows.
    pub fn from_name(name: &str) -> Option<IncidentKind> {
        let mut all = IncidentKind::ALL.into_iter();
        all.find(|kind| kind.name() == name)
    }
}

/// A remote and the centre were found at odds, or the centre with itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentRecord {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// About what.
    pub kind: IncidentKind,
    /// The remote, under the id that it came with; `None` if it is about none.
    pub remote_id: Option<RemoteId>,
    /// The user; empty if it is about none.
    pub user: String,
    /// The publication.
    pub publication: String,
    /// What exactly, for people.
    pub detail: String,
}

/// What a conflict has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictOutcome {
    /// The centre's row stands.
    Centre,
    /// The row is as the remote wants it.
    Remote,
    /// It has something of both.
    Merged,
    /// The centre's row stands until the operator decides.
    Parked,
}

impl ConflictOutcome {
    const ALL: [(ConflictOutcome, &str); 4] = [
        (ConflictOutcome::Centre, "centre"),
        (ConflictOutcome::Remote, "remote"),
        (ConflictOutcome::Merged, "merged"),
        (ConflictOutcome::Parked, "parked"),
    ];

    /// `centre`, `remote`, `merged` or `parked`.
    pub fn name(self) -> &'static str {
        let named = ConflictOutcome::ALL.iter().find(|it| it.0 == self);
        named.map_or("", |it| it.1)
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<ConflictOutcome> {
        let named = ConflictOutcome::ALL.iter().find(|it| it.1 == name);
        named.map(|it| it.0)
    }
}

/// Which of the kept conflicts are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictFilter {
    /// Those of this table only.
    pub table: Option<String>,
    /// Those of this user's changes only.
    pub user: Option<String>,
    /// Those that have come to this only.
    pub outcome: Option<ConflictOutcome>,
    /// Those only that wait for the operator.
    pub open: bool,
    /// No more than so many, the newest.
    pub limit: u64,
}

impl ConflictFilter {
    /// So many of all.
    pub fn newest(limit: u64) -> ConflictFilter {
        ConflictFilter {
            table: None,
            user: None,
            outcome: None,
            open: false,
            limit,
        }
    }
}

/// An operator has chosen a version of a row that was in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who.
    pub by: String,
    /// Which version: see [`Version::name`](crate::settling::ConflictVersion::name).
    pub version: String,
}

/// A conflict as it is kept: images as JSON objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictRecord {
    /// Its number.
    pub id: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Whose change lost.
    pub remote_id: RemoteId,
    /// The user.
    pub user: String,
    /// The publication.
    pub publication: String,
    /// The table's name on remotes.
    pub table: String,
    /// The key, as a JSON array.
    pub key: String,
    /// `insert`, `update` or `delete`: what lost.
    pub operation: String,
    /// The pre-image that the remote had; `None` for inserts.
    pub pre_image: Option<String>,
    /// What the remote wanted; `None` for deletes.
    pub uploaded: Option<String>,
    /// What the centre has had since; `None` if the row is gone.
    pub winner: Option<String>,
    /// What it had before, if that was something else.
    pub replaced: Option<String>,
    /// What it has come to.
    pub outcome: ConflictOutcome,
    /// What an operator has chosen since, if one has.
    pub settled: Option<Settlement>,
}

impl ConflictRecord {
    /// What the centre had before the conflict was resolved; `None` if the row was gone.
    pub fn centre(&self) -> Option<&str> {
        match self.outcome {
            ConflictOutcome::Centre | ConflictOutcome::Parked => self.winner.as_deref(),
            ConflictOutcome::Remote | ConflictOutcome::Merged => self.replaced.as_deref(),
        }
    }

    /// Whether it waits for the operator.
    pub fn is_open(&self) -> bool {
        self.outcome == ConflictOutcome::Parked && self.settled.is_none()
    }
}

/// How a refused row is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalOutcome {
    /// An operator has written the change as it was sent.
    Replayed,
    /// An operator has written it with other values.
    Edited,
    /// An operator has given it up: the centre's row stands.
    Discarded,
    /// Its remote has sent it again, or written its row again, and that was taken.
    Taken,
    /// Its remote has sent it again, and it lost: that is a conflict.
    Lost,
    /// Its user has given it up.
    GivenUp,
}

impl RefusalOutcome {
    const ALL: [(RefusalOutcome, &str); 6] = [
        (RefusalOutcome::Replayed, "replayed"),
        (RefusalOutcome::Edited, "edited"),
        (RefusalOutcome::Discarded, "discarded"),
        (RefusalOutcome::Taken, "taken"),
        (RefusalOutcome::Lost, "lost"),
        (RefusalOutcome::GivenUp, "given_up"),
    ];

    /// `replayed`, `edited`, `discarded`, `taken`, `lost` or `given_up`.
    pub fn name(self) -> &'static str {
        let named = RefusalOutcome::ALL.iter().find(|it| it.0 == self);
        named.map_or("", |it| it.1)
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<RefusalOutcome> {
        let named = RefusalOutcome::ALL.iter().find(|it| it.1 == name);
        named.map(|it| it.0)
    }

    /// Whether an operator has settled it, of which its remote has to be told.
    pub fn is_by_operator(self) -> bool {
        use RefusalOutcome::{Discarded, Edited, Replayed};
        matches!(self, Replayed | Edited | Discarded)
    }
}

/// A refused row was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEnd {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who: the operator, or the user.
    pub by: String,
    /// How.
    pub outcome: RefusalOutcome,
    /// The row that an operator has written, a JSON object.
    pub row: Option<String>,
    /// Why an operator has given it up.
    pub reason: Option<String>,
}

/// Which of the refused rows kept are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedFilter {
    /// Those of this table only.
    pub table: Option<String>,
    /// Those of this user's changes only.
    pub user: Option<String>,
    /// Those that were refused for this only: the name of the code.
    pub cause: Option<String>,
    /// Those only that nobody has settled.
    pub open: bool,
    /// No more than so many, the newest.
    pub limit: u64,
}

/// A refused row as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRecord {
    /// The number of the attempt.
    pub id: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Whose change it was.
    pub remote_id: RemoteId,
    /// The user.
    pub user: String,
    /// The publication.
    pub publication: String,
    /// The table's name on remotes.
    pub table: String,
    /// The key, as a JSON array.
    pub key: String,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// What the remote wanted, as a JSON object; the pre-image for deletes.
    pub row: String,
    /// The name of the [`tidewater_protocol::Code`].
    pub code: String,
    /// The reason, for people.
    pub reason: String,
    /// The number of the upload that it was part of.
    pub sequence: u64,
    /// The pre-image that the remote had, a JSON object; `None` for inserts.
    pub pre_image: Option<String>,
    /// Table and key of the refused row that it refers to, if it was refused for that.
    pub parent: Option<(String, String)>,
    /// How often it was sent, as far as that is kept.
    pub attempts: u64,
    /// How it is settled, if it is.
    pub settled: Option<RefusalEnd>,
}

/// The state of a centre in figures, for `tidewater status -c FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CentreStatus {
    /// Users, and how many of them are disabled.
    pub users: [u64; 2],
    /// Remotes, and how many of them are revoked.
    pub remotes: [u64; 2],
    /// Conflicts kept.
    pub conflicts: u64,
    /// Those among them that wait for the operator.
    pub open_conflicts: u64,
    /// Refused rows that nobody has settled: each once, however often its remote tried.
    pub refused: u64,
    /// Per change log: the table's name and its entries (an estimate where counting
    /// is expensive).
    pub logs: Vec<(String, u64)>,
    /// The last syncs, newest first, at most 20.
    pub syncs: Vec<SyncRecord>,
    /// Incidents kept, by their kind, as far as there are any.
    pub incident_counts: Vec<(IncidentKind, u64)>,
    /// The last incidents, newest first, at most 20.
    pub incidents: Vec<IncidentRecord>,
    /// What was handed out of the numbers of tables with `identity`, by table.
    pub numbers: Vec<NumbersStatus>,
    /// The last blocks of numbers that were handed out, newest first, at most 20.
    pub blocks: Vec<BlockRecord>,
    /// Published tables with rows that no remote can have, because a column of their key is NULL.
    pub keyless_rows: Vec<KeylessRows>,
    /// Transactions of applications that hold locks for which syncs wait, or have waited in vain.
    pub blockers: Vec<BlockingTransaction>,
}

/// How a centre goes at the moment, for a server's figures: cheap enough to be asked every few
/// seconds. What a database cannot tell is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CentrePulse {
    /// When the oldest transaction that is open began, in milliseconds since 1970.
    pub oldest_transaction_ms: Option<i64>,
    /// How many sessions wait for a lock.
    pub lock_waits: Option<u64>,
    /// Per change log: the table's name, and about how many entries there are.
    pub logs: Vec<(String, u64)>,
    /// When the remote synced that has not for the longest time, in milliseconds since 1970.
    pub oldest_sync_ms: Option<i64>,
}

/// What was handed out of the numbers of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumbersStatus {
    /// The table's name in the centre.
    pub table: String,
    /// The column that they are for.
    pub column: String,
    /// How many there are.
    pub count: u64,
    /// The highest one.
    pub highest: i64,
    /// How many remotes have them.
    pub remotes: u64,
}

/// A block of numbers that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The table's name in the centre.
    pub table: String,
    /// Who has it.
    pub remote_id: RemoteId,
    /// Whose that is.
    pub user: String,
    /// The first number.
    pub first: i64,
    /// The last one.
    pub last: i64,
    /// When it was handed out, in milliseconds since 1970.
    pub at_ms: i64,
}

/// Rows of a published table that have no key: a column of it is NULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeylessRows {
    /// The table's name in the centre.
    pub table: String,
    /// How many there are.
    pub rows: u64,
}

/// A transaction of an application that syncs wait for: of a session, or a prepared one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockingTransaction {
    /// The database's number for the session; 0 for a prepared transaction.
    pub process: i64,
    /// What it calls itself.
    pub application: String,
    /// The database's user.
    pub user: String,
    /// When its transaction began, or was prepared, in milliseconds since 1970; 0 if that may not be
    /// known.
    pub since_ms: i64,
    /// Its last statement.
    pub statement: String,
    /// The name of a prepared transaction; empty for a session.
    pub prepared: String,
}

/// How long things are kept, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionTimes {
    /// Change logs and marks.
    pub log_ms: i64,
    /// The sync history and incidents.
    pub history_ms: i64,
    /// Conflicts and refused rows; a conflict that waits for the operator is kept until he has
    /// settled it.
    pub conflicts_ms: i64,
}

/// How long the ids of uploads that were given back are kept, whatever else is: 90 days. Remotes
/// keep their uploads for 14, by their own clocks.
pub const GIVEN_BACK_KEPT_MS: i64 = 90 * 24 * 60 * 60 * 1000;

/// What a round of pruning removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PruneReport {
    /// Entries of change logs.
    pub log_entries: u64,
    /// Syncs of the history, and incidents.
    pub history: u64,
    /// Conflicts and refused rows.
    pub conflicts: u64,
}

/// A remote needs numbers for the rows that it inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumbersRequest {
    /// Who it is.
    pub remote_id: RemoteId,
    /// Its user.
    pub user: String,
    /// The publication.
    pub publication: String,
    /// The tables, by their names on remotes.
    pub tables: Vec<String>,
    /// When.
    pub now_ms: i64,
}
