//! The consolidated database, as the server sees it.
//!
//! Owns the boundary between the server and a central database: the coarse traits [`Centre`] and
//! [`Worker`], and the types that cross them; and the [`engine`] with every rule that is the same
//! whatever database is below. An adapter is a crate of its own, which implements the engine's
//! traits for its database and passes the conformance suite. No SQL text and no per-row await
//! crosses the boundary: batches of packed rows go in, packed rows come out. Sockets,
//! authentication and signatures are the server's affair.

pub mod centre;
pub mod context;
pub mod download;
pub mod engine;
pub mod error;
pub mod events;
pub mod explain;
pub mod follow;
mod nearest;
pub mod preview;
pub mod procedure;
pub mod publication;
pub mod records;
pub mod scope;
pub mod scripting;
pub mod settling;
pub mod trying;
pub mod upload;
pub mod verdict;

pub use centre::{Centre, Worker};
pub use context::{GivenPartitions, Parameters, SyncContext};
pub use download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadStart, DownloadSubscription, Downloaded,
    Downloading, GivenTable, Marks, TableCompare, TableRequest, ToldSettled,
};
pub use engine::catalog::identifier;
pub use error::{CentreError, ScriptFault};
pub use events::{Appended, NewEvents, SpaceRetention, StoredEvent};
pub use follow::{AskedHolding, FollowPosition, Followed, Holding, Interest};
pub use nearest::nearest;
pub use procedure::{
    AnswerColumn, AnswerSink, ArgumentSpec, Begun, CallAnswer, CallOutcome, CallableProcedure,
    Caller, Cancel, Interrupt, ProcedureCall, ProcedureSpec, Returns, SinkReply,
};
pub use publication::{
    ActAs, ConflictSpec, DeployReport, DeployStep, Deployed, Detect, HandledSpec, HeldUpRemote,
    IdentitySpec, Last, ListedColumn, ListedNumbering, ListedReference, ListedTable, MissingRight,
    OnReject, OnUnseenChildren, ParameterSpec, PublicationSpec, RemoteEffect, Replay, RuleBy,
    RuleSpec, ScriptSpec, TableSpec, Tracking, TriggeredColumn, Unit, UploadMode, UploadOrder,
    WindowSpec, WriteScopeSpec, WritesSpec,
};
pub use scope::{Checkpoint, Scope};
pub use scripting::{Report, RunTimes, ScriptNotes, ScriptRun};
pub use settling::{
    AddedSum, Choice, Judgement, RefusedAction, RefusedChoice, SettleOutcome, UploadToJudge,
    Version,
};
pub use upload::{
    GainedPartitions, OwnUpload, ResultTable, RowsChunk, SyncUpload, UploadOutcome, UploadResult,
    UploadTable,
};
pub use verdict::{
    Becomes, Columns, Contended, ContendedRow, Resolution, Resolutions, TableVerdicts, Verdict,
    Verdicts,
};
