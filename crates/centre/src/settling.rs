//! Conflicts that an operator settles: what he chooses, and what comes of it.

use tidewater_protocol::Code;

/// An operator chooses a version of a row that was in conflict. It is written as an ordinary change
/// of the consolidated database, which reaches every remote that holds the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The conflict, by its number.
    pub conflict: i64,
    /// What the row is to be.
    pub version: Version,
    /// Also if the row is not any more what the conflict left, and if rows that refer to it go
    /// with it.
    pub force: bool,
    /// Who chooses.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub now_ms: i64,
}

/// A version of a row that was in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// What the remote wanted.
    Uploaded,
    /// What the centre had.
    Centre,
    /// What both began with.
    PreImage,
    /// This row, a JSON object: columns that it lacks stay as they are. `None`: the row goes.
    Given(Option<String>),
}

impl Version {
    /// `uploaded`, `centre`, `pre-image` or `given`.
    pub fn name(&self) -> &'static str {
        match self {
            Version::Uploaded => "uploaded",
            Version::Centre => "centre",
            Version::PreImage => "pre-image",
            Version::Given(_) => "given",
        }
    }
}

/// What came of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// The row is so now, as a JSON object; `None`: it is gone.
    Settled {
        /// The row.
        row: Option<String>,
    },
    /// No such conflict is kept.
    Unknown,
    /// Nothing was done: the row is not any more what the conflict left, but this.
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
