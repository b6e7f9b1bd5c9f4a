//! The load generator behind `tidewater bench`: real remotes over real sockets against any
//! consolidated database, in step, and what came of it as one report.
//!
//! The supervisor prepares the database, starts a server and drivers (or waits for drivers on
//! other machines), and leads them from gate to gate. A driver is a process with a share of the
//! remotes. Owns the scenarios, their processes and the report; how a sync works is what is
//! measured, so nothing here knows more of it than an application does.

#![allow(
    clippy::disallowed_methods,
    reason = "a load generator is about real time, and nothing replays it"
)]

pub mod report;
pub mod spread;
