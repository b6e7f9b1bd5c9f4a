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
pub mod deploy_report;
pub mod download;
pub mod engine;
pub mod error;
pub mod events;
pub mod explain;
pub mod follow;
mod nearest;
pub mod packed_rows;
pub mod preview;
pub mod procedure;
pub mod procedure_spec;
pub mod publication;
pub mod records;
pub mod scope;
pub mod script_notes;
pub mod scripting;
pub mod settling;
pub mod trying;
pub mod upload;
pub mod verdict;
pub mod watermark;

pub use crate::deploy_report::{
    DeployReport, DeployStep, HeldUpRemote, MissingRight, RemoteEffect,
};
pub use crate::engine::callable_procedure::CallableProcedure;
pub use crate::packed_rows::RowsChunk;
pub use crate::packed_rows::TableRequest;
pub use crate::procedure_spec::{ArgumentSpec, ProcedureSpec};
pub use crate::script_notes::{RunTimes, ScriptNotes, ScriptReport};
pub use centre::{Centre, Worker};
pub use context::{GivenPartitions, Parameters, SyncContext};
pub use download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadStart, DownloadSubscription, Downloaded,
    GivenTable, MarkFrequency, RunningDownloads, TableCompare, ToldSettled,
};
pub use engine::catalog::identifier;
pub use error::{CentreError, ScriptFault};
pub use events::{AppendOutcome, NewEvents, SpaceRetention, StoredEvent};
pub use follow::{FollowPosition, FollowedCommits, HoldingRequest, Interest, RemoteHolding};
pub use nearest::nearest;
pub use procedure::{
    AnswerColumn, AnswerSink, CallAnswer, CallInterrupt, CallOutcome, Caller, Cancel, OnceKeyState,
    ProcedureCall, Returns, SinkReply,
};
pub use publication::{
    ActAs, ConflictDetection, ConflictSpec, DeployedPublications, HandledSpec, IdentitySpec,
    ListedColumn, ListedNumbering, ListedReference, ListedTable, OnReject, OnUnseenChildren,
    ParameterSpec, PublicationSpec, ReplayPolicy, RuleBy, RuleSpec, ScriptSpec, TableSpec,
    TrackingMode, TriggeredColumn, UploadMode, UploadOrder, WindowLength, WindowSpec, WindowUnit,
    WriteScopeSpec, WritesSpec,
};
pub use scope::{Checkpoint, Scope};
pub use scripting::ScriptRun;
pub use settling::{
    AddedSum, ConflictChoice, ConflictVersion, Judgement, RefusedChoice, RefusedRowAction,
    SettleOutcome, UploadToJudge,
};
pub use upload::{
    GainedPartitions, OwnUpload, ResultTable, RowMark, SyncUpload, UploadChunk, UploadOutcome,
    UploadResult, UploadTable,
};
pub use verdict::{
    Columns, ContendedChange, ContendedOutcome, ContendedRow, Resolution, Resolutions, RowVerdict,
    TableVerdicts, Verdicts,
};
