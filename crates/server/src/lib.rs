//! The Tidewater server: listeners, sessions, users, limits.
//!
//! Owns everything between a socket and a consolidated database: connections and their flow control, signing in, the stages of a sync, workers
//! and queues. What rows mean and how they are stored is the affair of
//! `tidewater-centre` and its adapters; what they look like, of `tidewater-protocol`. The
//! stages and their reasons are in this crate's DESIGN.md.

mod auth;
mod calls;
mod connection;
mod connector;
pub mod databases;
mod drain;
pub mod environment;
mod error;
mod fault;
mod handlers;
mod http;
pub mod images;
mod lane;
mod listener;
mod memory;
mod metrics;
mod nats;
mod publications;
mod registry;
mod relay;
mod script_sessions;
mod server;
mod session;
mod sign_in;
mod signal;
mod spaces;
mod spool;
mod tuner;
mod upstream;
mod wake;
mod web_client;
mod wire;
mod worker;

pub use auth::{KEY_SIGNS_AFTER_MS, check_password_hash, hash_password, new_signing_key};
pub use calls::check as check_statements;
pub use config::{Config, ConfigError, parse_duration};
pub use environment::Environment;
pub use error::ServerError;
pub use handlers::OperatorHandlers;
pub use listener::{dev_certificate, dev_client_certificates};
pub use memory::MemoryGauge;
pub use server::{Running, Server, TURNED_AWAY};
pub use signal::Signal;
pub use tidewater_server_config as config;
pub use upstream::Upstream;

/// For `tidewater-fuzzing` and `tidewater-simulator` only.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::auth::external::is_signed_by;
    pub use crate::auth::signing::{CheckpointFor, Keyring, TokenCheck};
    pub use crate::handlers::{Answers, read_answers};
    pub use crate::http::exchange::{Carry, Exchanges, Refused, Session};
}
