//! What is the same whatever database is below: every rule of the sync.
//!
//! An adapter implements [`connection::DatabaseConnection`], [`crate::engine::change_tracking::ChangeTracking`] and
//! [`database::Database`] for its database; [`centre`] makes the [`crate::Centre`] and the
//! [`crate::Worker`]s of that.

pub mod acting;
mod activity;
pub mod assumed_role;
pub mod call;
pub mod callable_procedure;
pub mod catalog;
pub mod centre;
pub mod change_log;
pub mod change_tracking;
pub mod comparing;
pub mod compile;
pub mod connection;
pub mod database;
pub mod deploy;
mod deployment_journal;
pub mod deployment_step;
pub mod described_statement;
pub mod download;
mod events;
pub mod evolution;
pub mod exact;
mod explain;
pub mod flight;
pub mod follow;
pub mod inspect;
pub mod marks;
pub mod membership;
mod numbers;
mod once;
mod preview;
pub mod procedure;
mod prune;
pub mod publication;
pub mod publication_compiler;
pub mod recorded;
pub mod records;
pub(crate) mod refusals;
pub mod resolve;
pub mod role_assumption;
pub mod row_fault;
pub mod scope;
pub mod scope_query;
pub mod script;
pub mod scripts;
pub mod served_publications;
mod session;
pub mod sql;
pub mod state;
mod statement_check;
pub mod system_statement;
pub mod thread;
pub mod too_long;
pub mod upload;
pub mod watermark;
pub mod window;
pub mod write_task;
