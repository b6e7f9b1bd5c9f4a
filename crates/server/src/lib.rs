//! The Tidewater server: listeners, HTTP, the end of relays' tunnels, and putting it together.
//!
//! What it is put together of are the crates below: the configuration (`tidewater-server-config`),
//! workers (`tidewater-server-jobs`), users (`tidewater-server-identity`), calls and events
//! (`tidewater-server-live`), syncs (`tidewater-server-sync`). What rows mean and how they are stored
//! is the affair of `tidewater-centre` and its adapters; what they look like, of
//! `tidewater-protocol`. The stages and their reasons are in this crate's DESIGN.md.

mod connection;
pub mod databases;
mod http;
mod listener;
mod relay;
mod server;

pub use listener::{dev_certificate, dev_client_certificates};
pub use server::{RunningServer, Server, TURNED_AWAY};
pub use tidewater_server_config as config;
pub use tidewater_server_config::{Config, ConfigError, parse_duration};
pub use tidewater_server_identity::password::{check_password_hash, hash_password};
pub use tidewater_server_identity::signing::{KEY_SIGNS_AFTER_MS, new_signing_key};
pub use tidewater_server_jobs::environment::{self, Environment};
pub use tidewater_server_jobs::error::ServerError;
pub use tidewater_server_jobs::memory::MemoryGauge;
pub use tidewater_server_jobs::signal::Signal;
pub use tidewater_server_jobs::upstream::Upstream;
pub use tidewater_server_live::calls::check as check_statements;
pub use tidewater_server_sync::handlers::OperatorHandlers;
pub use tidewater_server_sync::images;

/// For `tidewater-fuzzing` and `tidewater-simulator` only.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::http::exchange::{Carry, ExchangeRefusal, Exchanges, Session};
    pub use tidewater_server_identity::external::is_signed_by;
    pub use tidewater_server_identity::signing::{CheckpointFor, SigningKeys, TokenCheck};
    pub use tidewater_server_sync::handlers::{Answers, read_answers};
}
