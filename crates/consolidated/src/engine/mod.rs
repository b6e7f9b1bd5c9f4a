//! What is the same whatever database is below: every rule of the sync.
//!
//! An adapter implements [`connection::Connection`], [`database::Tracking`] and
//! [`database::Database`] for its database; [`centre`] makes the [`crate::Centre`] and the
//! [`crate::Worker`]s of that.

pub(crate) mod catalog;
pub(crate) mod centre;
pub(crate) mod compile;
pub(crate) mod connection;
pub(crate) mod database;
pub(crate) mod deploy;
pub(crate) mod download;
pub(crate) mod exact;
pub(crate) mod marks;
mod prune;
pub(crate) mod publication;
pub(crate) mod recorded;
pub(crate) mod records;
pub(crate) mod scope;
mod session;
pub(crate) mod state;
pub(crate) mod thread;
pub(crate) mod upload;
pub(crate) mod watermark;
