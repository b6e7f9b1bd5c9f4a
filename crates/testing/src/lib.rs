//! What the tests and the benchmark of Tidewater share.
//!
//! Owns the means to get a real database, real rows and a bad network in a test; knows nothing
//! of what a sync means.
//! Nothing here is part of the product, so failures are reported with `anyhow`, and the few
//! functions that panic say so.

pub mod bad_line;
pub mod balancer;
pub mod chinook;
pub mod disk;
pub mod generate;
pub mod issuer;

pub mod mariadb;
pub mod nats;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod scripted;
pub mod slapd;

mod account;
mod claimed_port;
mod copy;
mod guardian;
mod old_sqlite;

pub use balancer::Balancer;
pub use claimed_port::claim_port;
pub use issuer::Issuer;
pub use mariadb::{MariaDb, shared_mariadb};
pub use old_sqlite::old_sqlite;
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, PostgresOptions, shared_postgres};
pub use proxy::FrameProxy;
pub use slapd::{DirectoryTls, Slapd};
pub use tidewater_purchase as purchase;
