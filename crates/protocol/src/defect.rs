//! Deliberate defects, to find out whether the simulator's judges would find real ones.
//!
//! Each is one line at the place where somebody could make that mistake. They exist only
//! under the feature `defects`, which the simulator's own test switches on and nothing that is
//! released: without it [`is_on`] is false at compile time, and nothing is left of them.

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
    /// Tracking: triggers that vanished are made again, and nothing is compared.
    UntrackedNotCompared => "untracked-not-compared",
    /// Tracking: a trigger that went with a renamed table is taken for that of the new one.
    MovedTriggerBelieved => "moved-trigger-believed",
    /// Tracking: a key may be spelled in any way.
    SpellingUnchecked => "spelling-unchecked",
    /// Taking: what is changed later joins the upload that was taken.
    GenerationNotAdvanced => "generation-not-advanced",
    /// Taking: what was changed in a table that nothing tracked goes up before it is compared.
    TakenUncompared => "taken-uncompared",
    /// Upload: it carries the row as it is now, not as it was when the upload was taken.
    PresentValueUploaded => "present-value-uploaded",
    /// Upload: changes stop being pending when they are sent, not when they are acknowledged.
    PendingClearedWhenSent => "pending-cleared-when-sent",
    /// Apply: what another process has synced meanwhile goes unnoticed.
    OtherSyncUnnoticed => "other-sync-unnoticed",
    /// Apply: a downloaded row is written over one with a pending change.
    PendingOverwritten => "pending-overwritten",
    /// Apply: a row that could not be written is not asked for again.
    StaleForgotten => "stale-forgotten",
    /// Apply: what came is committed table by table.
    AppliedInPieces => "applied-in-pieces",
    /// Apply: what came of a download that broke off stays.
    BrokenDownloadKept => "broken-download-kept",
    /// Apply: a removed row takes along the rows that refer to it.
    RemovalCascades => "removal-cascades",
    /// Result: a refused change is forgotten like one that was taken.
    RefusalForgotten => "refusal-forgotten",
    /// Result: the row that won against an uploaded one is not written.
    WinnerIgnored => "winner-ignored",
    /// Result: acknowledged uploads are not kept for a centre that will be restored.
    KeptUploadsForgotten => "kept-uploads-forgotten",
    /// Result: of an acknowledged upload that is too large to be kept, nobody knows that it was.
    GapsForgotten => "gaps-forgotten",
    /// Result: after an upload without a download, the server's word that the next sync has to
    /// compare is not heeded.
    CompareNotHeeded => "compare-not-heeded",

    /// Session: the server does not know again what it has applied.
    UploadIdForgotten => "upload-id-forgotten",
    /// Session: an upload whose connection ends is taken as far as it came.
    HalfUploadApplied => "half-upload-applied",
    /// Session: what the remote says of its partitions is believed without a signature.
    ClientScopeTrusted => "client-scope-trusted",
    /// Session: a remote that a restored centre has forgotten becomes another.
    ForgottenRemoteRenamed => "forgotten-remote-renamed",
    /// Session: a remote that was restored or copied is not told from the one that went on.
    CopyUnnoticed => "copy-unnoticed",

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
    /// Applying uploads: the new row may be anywhere.
    NewScopeUnchecked => "new-scope-unchecked",
    /// Applying uploads: the centre's row may be anywhere.
    CentralScopeUnchecked => "central-scope-unchecked",

    /// Change log: a row that moves to another partition is logged in the new one only.
    MoveLoggedOnce => "move-logged-once",
    /// Change log: deletes are not logged.
    DeleteNotLogged => "delete-not-logged",
    /// Change log: rows that REPLACE pushes out are not logged.
    DisplacedNotLogged => "displaced-not-logged",
    /// Download: the position is read after the rows, and not in their snapshot.
    WatermarkAfterReads => "watermark-after-reads",
    /// Download: a row that has left the remote's partitions is not removed.
    RemovalNotSent => "removal-not-sent",
    /// Download: of partitions that the remote gained it gets what changed since it was there.
    GainedPartitionsNotWhole => "gained-partitions-not-whole",
    /// Download: partitions that the remote lost are not removed.
    LostPartitionsNotRemoved => "lost-partitions-not-removed",
    /// Download: what the same sync uploaded is left out, whatever became of it since.
    OwnRowsNotSent => "own-rows-not-sent",
    /// Download: a watermark whose mark is not known is believed.
    UnknownMarkBelieved => "unknown-mark-believed",
}

impl fmt::Display for Defect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Whether a defect is switched on for this thread: never, unless a simulation does it.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub const fn is_on(_: Defect) -> bool {
    false
}

/// The defect that is switched on for this thread.
#[cfg(not(feature = "defects"))]
pub const fn current() -> Option<Defect> {
    None
}

#[cfg(feature = "defects")]
pub use switch::{current, is_on, with};

#[cfg(feature = "defects")]
mod switch {
    use std::cell::Cell;

    use super::Defect;

    thread_local! {
        static ON: Cell<Option<Defect>> = const { Cell::new(None) };
    }

    /// Whether a defect is switched on for this thread.
    pub fn is_on(defect: Defect) -> bool {
        ON.get() == Some(defect)
    }

    /// The defect that is switched on for this thread.
    pub fn current() -> Option<Defect> {
        ON.get()
    }

    /// Does something with a defect, or without any. A simulation runs on one thread.
    pub fn with<T>(defect: Option<Defect>, work: impl FnOnce() -> T) -> T {
        /// Also if the work panics.
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                ON.set(None);
            }
        }
        let _off = Off;
        ON.set(defect);
        work()
    }
}
