//! What only PostgreSQL has, a file for each theme.

mod partitions;
mod serving;
mod tls;
mod tracking;
mod types;
mod uploads;

use crate::postgres::PostgresFixture;
use crate::world::{World, everyone};

type PostgresWorld = World<PostgresFixture>;

/// A world with one table that everyone holds.
async fn table(ddl: &str, name: &str) -> PostgresWorld {
    World::new(ddl, vec![everyone(name)]).await
}
