//! Decides what becomes of an uploaded row that meets a row of the centre. What it costs to find out
//! what is known of the two, and what follows, is the affair of [`super::write_rows`].

use tidewater_protocol::Op;

use crate::engine::membership::Barrier;
use crate::engine::row_fault::RefusalReason;

/// An uploaded row, and the row of the centre that it has met.
pub(super) struct RowMeeting<'m> {
    pub(super) op: Op,
    /// Whether the centre's row is what the remote wants it to be.
    pub(super) is_as_uploaded: bool,
    /// Why the remote may not write the centre's row; `None` if it may.
    pub(super) barrier: Option<Barrier>,
    /// Whether the upload's own parents, and nobody else, have changed the centre's row.
    pub(super) is_changed_by_own_parents: bool,
    /// Whether the upload itself gives the centre's row another key.
    pub(super) leaves_its_key: bool,
    /// Whether both sides have made an equal change, and both of them count, as in a sum.
    pub(super) is_made_twice: bool,
    /// What the row has failed for, if it is tried again.
    pub(super) failed_for: Option<&'m RefusalReason>,
    /// Who decides if both rows want to be there.
    pub(super) judge: ConflictJudge,
}

/// Who decides a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConflictJudge {
    /// Nobody: the centre's row stays.
    Centre,
    /// The upload scripts of the table.
    Scripts,
    /// The resolver of the table.
    Resolver,
}

/// What becomes of an uploaded row that has met one of the centre.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MeetingFate {
    /// It is written once more, whatever the upload's own parents have made of the centre's row.
    WrittenAgain,
    /// The centre has what the remote wants.
    Applied,
    /// It fails, and may be tried again.
    Failed(RefusalReason),
    /// It is none of the remote's business.
    Refused(RefusalReason),
    /// It is a conflict, of which this one decides.
    Conflict(ConflictJudge),
}

impl RowMeeting<'_> {
    /// What becomes of the uploaded row.
    pub(super) fn decide(self) -> MeetingFate {
        if self.is_changed_by_own_parents {
            return MeetingFate::WrittenAgain;
        }
        let is_equal = self.is_equal();
        if is_equal && (self.failed_for.is_some() || !self.is_made_twice) {
            return MeetingFate::Applied;
        }
        if self.op == Op::Insert && self.leaves_its_key {
            return MeetingFate::Failed(RefusalReason::key_in_use());
        }
        if let Some(refusal) = self.refusal() {
            return MeetingFate::Refused(refusal);
        }
        // What it does not find as it was, the rest of the upload has changed: nobody has won.
        if let Some(refusal) = self.failed_for {
            return MeetingFate::Failed(refusal.clone());
        }
        match self.judge {
            ConflictJudge::Centre if is_equal => MeetingFate::Applied,
            judge => MeetingFate::Conflict(judge),
        }
    }

    /// Whether the centre has what the remote wants, as far as that may be told to the remote.
    pub(super) fn is_equal(&self) -> bool {
        self.is_as_uploaded
            && match self.op {
                // A row that may be read may be lost against.
                Op::Insert => self.barrier != Some(Barrier::OutOfScope),
                Op::Update => self.barrier.is_none(),
                _ => false,
            }
    }

    /// Why the row is refused, if the centre's row is none of the remote's business.
    fn refusal(&self) -> Option<RefusalReason> {
        match (self.op, self.barrier) {
            (_, None) => None,
            (Op::Insert, Some(Barrier::OutOfScope)) => Some(RefusalReason::key_in_use()),
            (Op::Insert, Some(_)) => None,
            (_, Some(barrier)) => Some(RefusalReason::barred(barrier)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that may be written, differs, and is for the resolver.
    fn meeting<'m>(op: Op) -> RowMeeting<'m> {
        RowMeeting {
            op,
            is_as_uploaded: false,
            barrier: None,
            is_changed_by_own_parents: false,
            leaves_its_key: false,
            is_made_twice: false,
            failed_for: None,
            judge: ConflictJudge::Resolver,
        }
    }

    #[test]
    fn a_row_that_the_centre_has_is_applied_unless_both_changes_count() {
        for op in [Op::Insert, Op::Update] {
            let equal = RowMeeting {
                is_as_uploaded: true,
                ..meeting(op)
            };
            assert_eq!(equal.decide(), MeetingFate::Applied);
            let twice = |judge, failed_for| RowMeeting {
                is_as_uploaded: true,
                is_made_twice: true,
                judge,
                failed_for,
                ..meeting(op)
            };
            let by_resolver = MeetingFate::Conflict(ConflictJudge::Resolver);
            let failed = RefusalReason::key_in_use();
            assert_eq!(twice(ConflictJudge::Resolver, None).decide(), by_resolver);
            assert_eq!(
                twice(ConflictJudge::Centre, None).decide(),
                MeetingFate::Applied
            );
            assert_eq!(
                twice(ConflictJudge::Resolver, Some(&failed)).decide(),
                MeetingFate::Applied
            );
        }
    }

    #[test]
    fn nothing_is_told_of_a_row_that_is_out_of_scope() {
        let barred = |op| RowMeeting {
            is_as_uploaded: true,
            barrier: Some(Barrier::OutOfScope),
            ..meeting(op)
        };
        let refused = |reason| MeetingFate::Refused(reason);
        let out_of_scope = || RefusalReason::barred(Barrier::OutOfScope);
        let insert = barred(Op::Insert).decide();
        assert_eq!(insert, refused(RefusalReason::key_in_use()));
        assert_eq!(barred(Op::Update).decide(), refused(out_of_scope()));
        assert_eq!(barred(Op::Delete).decide(), refused(out_of_scope()));
    }

    #[test]
    fn an_insert_waits_for_a_key_that_the_upload_frees() {
        let waiting = RowMeeting {
            leaves_its_key: true,
            barrier: Some(Barrier::OutOfScope),
            ..meeting(Op::Insert)
        };
        let failed = MeetingFate::Failed(RefusalReason::key_in_use());
        assert_eq!(waiting.decide(), failed);
    }

    #[test]
    fn a_row_that_is_tried_again_loses_against_nobody() {
        let reason = RefusalReason::another_row();
        let again = RowMeeting {
            failed_for: Some(&reason),
            ..meeting(Op::Update)
        };
        assert_eq!(again.decide(), MeetingFate::Failed(reason.clone()));
        let by_parents = RowMeeting {
            is_changed_by_own_parents: true,
            failed_for: Some(&reason),
            ..meeting(Op::Update)
        };
        assert_eq!(by_parents.decide(), MeetingFate::WrittenAgain);
    }
}
