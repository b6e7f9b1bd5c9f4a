//! What the tests and the benchmark of Tidewater share.
//!
//! Owns the means to get a real database and real rows in a test; knows nothing of sync.
//! Nothing here is part of the product, so failures are reported with `anyhow`, and the few
//! functions that panic say so.

pub mod chinook;
pub mod postgres;
pub mod purchase;

mod copy;

pub use postgres::{Postgres, PostgresOptions, shared_postgres};
