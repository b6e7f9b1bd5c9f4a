//! Deliberate defects, to find out whether the judges would find real ones.
//!
//! Owns their list, and which one is switched on for a thread. Each is a mistake that somebody
//! could make in the product. It is made from outside, at one of its seams: in the remote's file
//! ([`super::file`]), in what a server hears from the centre and tells it ([`super::centre`]), or
//! by taking statements out of triggers ([`super::statements`]).

use std::cell::Cell;
use std::fmt;

macro_rules! defects {
    ($($(#[doc = $text:literal])+ $variant:ident => $name:literal,)+) => {
        /// A mistake that can be switched on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Defect {
            $($(#[doc = $text])+ $variant,)+
        }

        impl Defect {
            /// All of them.
            pub const ALL: &[Defect] = &[$(Defect::$variant,)+];

            /// What it is called on a command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)+
                }
            }

            /// What is wrong.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Defect::$variant => concat!($($text, "\n",)+).trim_ascii(),)+
                }
            }
        }
    };
}

defects! {
    /// Tracking: an update or delete is recorded without what the row was before.
    PreImageDropped => "pre-image-dropped",
    /// Tracking: the second change of a row in a generation takes the first one's place.
    PreImageOverwritten => "pre-image-overwritten",
    /// Tracking: of what REPLACE pushes out through a unique index nothing is recorded.
    DisplacedNotTracked => "displaced-not-tracked",
    /// Tracking: a table that lost its triggers is compared, and what differs gives way.
    UntrackedNotCompared => "untracked-not-compared",
    /// Tracking: that a tool has taken triggers goes unnoticed.
    TriggersUnchecked => "triggers-unchecked",
    /// Tracking: a key may be spelled in any way.
    SpellingUnchecked => "spelling-unchecked",
    /// Taking: what is changed later joins the upload that was taken.
    GenerationNotAdvanced => "generation-not-advanced",
    /// Upload: it carries the row as it is now, not as it was when the upload was taken.
    PresentValueUploaded => "present-value-uploaded",
    /// Upload: what a connection that broke was to carry is not pending any more.
    PendingClearedWhenSent => "pending-cleared-when-sent",
    /// Apply: what another process has synced meanwhile is taken back.
    OtherSyncUnnoticed => "other-sync-unnoticed",
    /// Apply: what is pending is forgotten when a download is applied.
    PendingOverwritten => "pending-overwritten",
    /// Apply: a row that could not be written is not asked for again.
    StaleForgotten => "stale-forgotten",
    /// Apply: what came is committed table by table.
    AppliedInPieces => "applied-in-pieces",
    /// Apply: what came of a download that broke off stays.
    BrokenDownloadKept => "broken-download-kept",
    /// Apply: what an adopted table has otherwise gives way to the centre's, though it is to count.
    AdoptedGivesWay => "adopted-gives-way",
    /// Apply: a removed row takes along the rows that refer to it.
    RemovalCascades => "removal-cascades",
    /// Result: a refused change is forgotten like one that was taken.
    RefusalForgotten => "refusal-forgotten",
    /// Result: acknowledged uploads are not kept for a centre that will be restored.
    KeptUploadsForgotten => "kept-uploads-forgotten",
    /// Result: of an acknowledged upload that is too large to be kept, nobody knows that it was.
    GapsForgotten => "gaps-forgotten",
    /// Result: after an upload without a download, the server's word that the next sync has to
    /// compare is not heeded.
    CompareNotHeeded => "compare-not-heeded",

    /// Session: the server does not know again what it has applied.
    UploadIdForgotten => "upload-id-forgotten",
    /// Session: an upload is taken for complete when half of it has come.
    HalfUploadApplied => "half-upload-applied",
    /// Session: whoever changes what his file says of his partitions can sign it.
    ClientScopeTrusted => "client-scope-trusted",
    /// Session: a remote that a restored centre has forgotten becomes another.
    ForgottenRemoteRenamed => "forgotten-remote-renamed",
    /// Session: a remote that was restored or copied is not told from the one that went on.
    CopyUnnoticed => "copy-unnoticed",

    /// Session: a remote may set a parameter to anything.
    ParameterUnchecked => "parameter-unchecked",

    /// Applying uploads: the number of an upload is not compared with the one before.
    SequenceNotClaimed => "sequence-not-claimed",
    /// Applying uploads: they are acknowledged even if the commit fails.
    AcknowledgedBeforeCommit => "acknowledged-before-commit",
    /// Applying uploads: what became of the rows is not kept for a remote that asks again.
    ResultNotKept => "result-not-kept",
    /// Applying uploads: refused rows are not shown in the centre.
    RefusalNotShown => "refusal-not-shown",
    /// Applying uploads: the centre's row is not compared with the pre-image.
    ConflictUnnoticed => "conflict-unnoticed",
    /// Applying uploads: new rows may be anywhere.
    NewScopeUnchecked => "new-scope-unchecked",
    /// Applying uploads: rows that are changed or deleted may be anywhere.
    CentralScopeUnchecked => "central-scope-unchecked",

    /// Change log: a row that moves to another partition is logged in the new one only.
    MoveLoggedOnce => "move-logged-once",
    /// Change log: deletes are not logged.
    DeleteNotLogged => "delete-not-logged",
    /// Change log: rows that REPLACE pushes out are not logged.
    DisplacedNotLogged => "displaced-not-logged",
    /// Change log: what follows a row that moves to somebody else is not logged.
    ParentMoveNotLogged => "parent-move-not-logged",
    /// Change log: what goes with a row that it followed is not logged.
    ParentGoneNotLogged => "parent-gone-not-logged",
    /// Download: the position is read after the rows, and not in their snapshot.
    WatermarkAfterReads => "watermark-after-reads",
    /// Download: rows that went or left the remote's partitions are not removed.
    RemovalNotSent => "removal-not-sent",
    /// Download: of partitions that the remote gained it gets what changed since it was there.
    GainedPartitionsNotWhole => "gained-partitions-not-whole",
    /// Download: partitions that the remote lost are not removed.
    LostPartitionsNotRemoved => "lost-partitions-not-removed",
    /// Applying uploads: deletes are acknowledged and not done.
    DeleteNotApplied => "delete-not-applied",
    /// Applying uploads: a row that gets another key is deleted, and inserted again.
    KeyChangeTakenApart => "key-change-taken-apart",
    /// Applying uploads: what the centre has made of a row is not told.
    MadeNotTold => "made-not-told",
    /// Download: what a remote set a parameter to first counts for ever.
    ParameterNotFollowed => "parameter-not-followed",
    /// Download: a window stays where it once began.
    WindowStandsStill => "window-stands-still",
    /// Download: of a table with two rules only what the first one gives is sent.
    SecondRuleForgotten => "second-rule-forgotten",
    /// Download: the first row of a piece is skipped.
    RowSkipped => "row-skipped",
    /// Download: of one that is gone on with, what changed in the tables that had come is left out.
    ResumedUnchanged => "resumed-unchanged",
    /// Download: it brings the partitions of everybody.
    ScopeOfEverybody => "scope-of-everybody",
    /// Download: what the same sync uploaded is left out, whatever became of it since.
    OwnRowsNotSent => "own-rows-not-sent",

    /// Calls: the key of what is to be done once is not remembered.
    CallKeyForgotten => "call-key-forgotten",
    /// Calls: one that may have been done is given to another provider, though it is not idempotent.
    CallGivenTwice => "call-given-twice",
    /// Calls: who may call a procedure is not asked.
    CallRightsUnasked => "call-rights-unasked",
    /// Outbox: it is executed though the changes before it still wait to be uploaded.
    OutboxBeforeUpload => "outbox-before-upload",
    /// Events: the key of an event that is kept is not remembered.
    EventKeyForgotten => "event-key-forgotten",
    /// Events: who may hear of a space is not asked.
    EventRightsUnasked => "event-rights-unasked",
    /// Events: the first one after a position is skipped.
    EventSkipped => "event-skipped",
    /// Inbox: its position moves before the events are written.
    InboxAheadOfRows => "inbox-ahead-of-rows",
    /// Scripts: a statement of one is run twice.
    ScriptRunTwice => "script-run-twice",
    /// Scripts: updates are written without theirs.
    ScriptPassedOver => "script-passed-over",
    /// Scripts: what the centre has is not compared with the pre-image.
    ScriptConflictUnnoticed => "script-conflict-unnoticed",
    /// Scripts: the end of an upload is none of their events.
    ScriptEndLeftOut => "script-end-left-out",
    /// Resolvers: a difference is added once more when its upload comes again.
    DifferenceAddedTwice => "difference-added-twice",
    /// Resolvers: edits of one column bring along the others as their remote last had them.
    ColumnsOverwritten => "columns-overwritten",
    /// Resolvers: a row that is to wait for the operator is written.
    ParkedWritten => "parked-written",
    /// Resolvers: what others have of a merged row counts as what a newer edit was made from.
    MergedToldAsMade => "merged-told-as-made",
    /// Operators: what they settle of refused rows is not told.
    SettledNotTold => "settled-not-told",
    /// Operators: what is replayed is noted, and not written.
    ReplayNotWritten => "replay-not-written",
    /// Handlers: rows to which they have seen are written all the same.
    HandledRowWritten => "handled-row-written",
    /// Handlers: a verdict is taken for another row of the upload.
    VerdictOfAnotherRow => "verdict-of-another-row",
    /// Handlers: rows that they have changed are written as they came.
    HandlerChangeForgotten => "handler-change-forgotten",
    /// Handlers: each request has another key, also when it is sent again.
    HandlerAskedAnew => "handler-asked-anew",
    /// Requests: one that is repeated is served again, as if it were the next.
    HttpRepeatsServed => "http-repeats-served",
    /// Requests: one that is repeated is answered with nothing.
    HttpAnswersForgotten => "http-answers-forgotten",
    /// Branches: what devices upload does not go on to headquarters.
    BranchNotTracked => "branch-not-tracked",
    /// Sums: a change that makes of a row what the centre has made of it is dropped.
    EqualSumDropped => "equal-sum-dropped",
    /// Sums: a change counts once more when its remote asks what became of it.
    SumCountedOnRetry => "sum-counted-on-retry",
    /// Sums: what a restored centre is given back counts twice.
    GivenBackTwice => "given-back-twice",
    /// Sums: what a copied file has pending counts, though its original may have sent it.
    CopySendsAgain => "copy-sends-again",
    /// Sums: what is replayed writes what the row was to be, and not the difference.
    ReplayWritesValue => "replay-writes-value",
    /// Sums: of two inserts that meet, the second one is dropped.
    MeetingInsertLost => "meeting-insert-lost",
    /// Families: lines of a sale that met another are written under that.
    LinesUnderWinner => "lines-under-winner",
    /// Families: lines that come after their sale was refused are written under the other one.
    LaterLinesTaken => "later-lines-taken",
    /// Families: a device shows the lines of another sale under its own.
    OthersLinesShown => "others-lines-shown",
    /// Numbers: a copied file goes on with those of its original.
    NumbersKept => "numbers-kept",
    /// Operators: what they choose of a conflict is written past the scripts.
    ResolvePastScripts => "resolve-past-scripts",
    /// Operators: what they replay is written past the handler.
    ReplayPastHandler => "replay-past-handler",
    /// Wakes: what is committed while somebody syncs is told to nobody.
    WakeLostInSync => "wake-lost-in-sync",
}

impl fmt::Display for Defect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

thread_local! {
    static ON: Cell<Option<Defect>> = const { Cell::new(None) };
}

/// Whether a defect is switched on for this thread.
pub(crate) fn is_on(defect: Defect) -> bool {
    ON.get() == Some(defect)
}

/// The defect that is switched on for this thread.
pub(crate) fn current() -> Option<Defect> {
    ON.get()
}

/// Does something with a defect, or without any. A simulation runs on one thread.
pub(crate) fn with<T>(defect: Option<Defect>, work: impl FnOnce() -> T) -> T {
    /// Also if the work panics.
    struct Back(Option<Defect>);
    impl Drop for Back {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _back = Back(ON.replace(defect));
    work()
}
