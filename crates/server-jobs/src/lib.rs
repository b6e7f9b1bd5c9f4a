//! What a server does in its database, and with what: workers and their lanes, memory and spools,
//! what is deployed, what is counted.
//!
//! Nothing here knows a connection, a user or a message: those are the layers' above.

pub mod admission;
pub mod connection_pool;
pub mod connector;
pub mod database_task;
pub mod download_lane;
mod drain_rate;
pub mod environment;
pub mod error;
pub mod fair_queue;
pub mod fault;
pub mod lanes;
pub mod memory;
pub mod metrics;
pub mod publications;
mod remote_task;
pub mod script_sessions;
mod session_lane;
pub mod session_validity;
pub mod signal;
pub mod spool;
mod sync_history;
mod tuner;
pub mod upload_lane;
pub mod upstream;
pub mod worker_pool;
