//! What is the same whatever database is below: every rule of the sync.
//!
//! An adapter implements [`connection::DatabaseConnection`], [`database::ChangeTracking`] and
//! [`database::Database`] for its database; [`centre`] makes the [`crate::Centre`] and the
//! [`crate::Worker`]s of that.

pub mod acting;
pub mod catalog;
pub mod centre;
pub mod comparing;
pub mod compile;
pub mod connection;
pub mod database;
pub mod deploy;
pub mod download;
mod events;
pub mod evolution;
pub mod exact;
mod explain;
pub mod follow;
pub mod inspect;
pub mod marks;
mod numbers;
mod once;
mod preview;
pub mod procedure;
mod prune;
pub mod publication;
pub mod recorded;
pub mod records;
pub(crate) mod refusals;
pub mod resolve;
pub mod scope;
pub mod script;
pub mod scripts;
mod session;
pub mod state;
pub mod thread;
pub mod too_long;
pub mod upload;
pub mod watermark;
pub mod window;
