//! Conflicts and refused rows that an operator settles: what he chooses, and what comes of it.

use tidewater_protocol::Code;

use crate::upload::SyncUpload;
use crate::verdict::{ContendedChange, Resolutions, Verdicts};

/// What handlers have said of a row that an operator has written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Of the row itself.
    pub verdicts: Verdicts,
    /// Of what others have made of it, if that is theirs to decide.
    pub resolutions: Resolutions,
}

/// A row on its way into the centre again, for handlers to judge. Equal are those of the same id.
#[derive(Clone, Debug)]
pub struct UploadToJudge(pub Box<SyncUpload>);

impl PartialEq for UploadToJudge {
    fn eq(&self, other: &UploadToJudge) -> bool {
        self.0.upload_id == other.0.upload_id
    }
}

/// An operator chooses a version of a row that was in conflict. It goes the way of an upload, by the
/// same scripts and handlers, and reaches every remote that holds the row.
#[derive(Clone, Debug, PartialEq)]
pub struct ConflictChoice {
    /// The conflict, by its number.
    pub conflict: i64,
    /// What the row is to be.
    pub version: ConflictVersion,
    /// Also if the row is not any more what the conflict left, and if rows that refer to it go
    /// with it.
    pub force: bool,
    /// What handlers say of it.
    pub judgement: Judgement,
    /// Who chooses.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub now_ms: i64,
}

/// A version of a row that was in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictVersion {
    /// What the remote wanted.
    Uploaded,
    /// What the centre had.
    Centre,
    /// What both began with.
    PreImage,
    /// This row, a JSON object: columns that it lacks stay as they are. `None`: the row goes.
    Given(Option<String>),
}

impl ConflictVersion {
    /// `uploaded`, `centre`, `pre-image` or `given`.
    pub fn name(&self) -> &'static str {
        match self {
            ConflictVersion::Uploaded => "uploaded",
            ConflictVersion::Centre => "centre",
            ConflictVersion::PreImage => "pre-image",
            ConflictVersion::Given(_) => "given",
        }
    }
}

/// What an operator does about a refused row. What is written of it goes the way of an upload, by the
/// same scripts, handlers and resolvers, and the remote hears with its next download that the row is
/// settled.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedChoice {
    /// The row, by the number of one of its attempts.
    pub refused: i64,
    /// What is done.
    pub action: RefusedRowAction,
    /// Also if the change loses against what the centre has, and if rows that refer to it go with it.
    /// Of a sum, the difference is written.
    pub force: bool,
    /// What handlers say of it.
    pub judgement: Judgement,
    /// Who does it.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub now_ms: i64,
}

/// What is done about a refused row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedRowAction {
    /// It is written as it was sent.
    Replay,
    /// It is written with these values in place of those that were sent: a JSON object of columns.
    Edit(String),
    /// It is given up, for this reason.
    Discard(String),
}

/// A sum to which the change of a remote was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedSum {
    /// Its column.
    pub column: String,
    /// By how much the remote has changed it, with its sign.
    pub difference: String,
}

/// What came of a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum SettleOutcome {
    /// The row is so now, as a JSON object; `None`: it is gone.
    Settled {
        /// The row.
        row: Option<String>,
        /// Sums of it that are otherwise than they were to be, because others have changed them, too.
        added: Vec<AddedSum>,
    },
    /// Nothing was done: handlers have to judge the row first, and the choice is made once more with
    /// what they say.
    Unjudged {
        /// The row.
        upload: UploadToJudge,
    },
    /// Nothing was done: a handler has to decide between the row and what the centre has.
    Contended {
        /// The row, as it is sent.
        upload: UploadToJudge,
        /// What it meets.
        rows: Vec<ContendedChange>,
    },
    /// No such conflict is kept, or no such refused row that is open.
    Unknown,
    /// Nothing was done: the row is not any more what the conflict left, or the change would lose
    /// against what the centre has, which is this.
    Changed {
        /// The row, as a JSON object; `None`: it is gone.
        row: Option<String>,
    },
    /// Nothing was done: the row cannot be so.
    Refused {
        /// The code.
        code: Code,
        /// The reason, for people.
        reason: String,
    },
}

impl SettleOutcome {
    /// The row is so now, as it was to be.
    pub fn settled(row: Option<String>) -> SettleOutcome {
        let added = Vec::new();
        SettleOutcome::Settled { row, added }
    }
}
