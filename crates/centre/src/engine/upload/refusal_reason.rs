//! Why a row is not taken.
//!
//! A row that *failed* may be tried again, when others are in. A row that is *refused* is told to its
//! remote: that is final in this upload. What failed for the last time is refused for the same reason.

use tidewater_protocol::Code;

use crate::engine::membership::Barrier;
use crate::engine::row_fault::RefusalReason;
use crate::engine::upload::incoming_rows::RowRef;

impl RefusalReason {
    /// The key that a row is to have is that of another row. Of that one nothing is told.
    pub(crate) fn key_in_use() -> RefusalReason {
        RefusalReason::new(Code::RowKeyInUse, "key in use".to_owned())
    }

    /// The key of a row that is to be inserted is that of another row, which the remote may see. What
    /// refers to the one would refer to the other, so it is not for a resolver to mix them.
    pub(crate) fn another_row() -> RefusalReason {
        RefusalReason {
            code: Code::RowKeyInUse,
            reason: "key in use: somebody else has inserted another row under it; give this one a \
                     new key"
                .to_owned(),
            database_code: None,
        }
    }

    /// The remote may not write the row.
    pub(crate) fn barred(barrier: Barrier) -> RefusalReason {
        RefusalReason {
            code: Code::RowOutOfScope,
            reason: barrier.reason().to_owned(),
            database_code: None,
        }
    }
}

/// A row that has failed.
#[derive(Clone, Debug)]
pub struct FailedRow {
    /// Which one.
    pub at: RowRef,
    /// Why; it is refused for that if it does not pass later.
    pub refusal: RefusalReason,
    /// It is a delete, and there are children that would go with it.
    pub has_children: bool,
}

impl FailedRow {
    /// A row that the database does not take now.
    pub fn new(at: RowRef, refusal: RefusalReason) -> FailedRow {
        FailedRow {
            at,
            refusal,
            has_children: false,
        }
    }
}

/// What is decided of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowDecision {
    /// It is refused.
    Refused(RefusalReason),
    /// It loses against what the centre has.
    Lost,
    /// A handler has seen to it.
    Handled,
}
