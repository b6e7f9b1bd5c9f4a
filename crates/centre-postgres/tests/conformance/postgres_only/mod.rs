//! What only PostgreSQL has, a file for each theme.

mod acting;
mod calls;
mod effects;
mod names;
mod partitions;
mod plans;
mod races;
mod replication;
mod scope_sources;
mod script_times;
mod serving;
mod tls;
mod tracking;
mod type_walk;
mod types;
mod uploads;
mod ways;

use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::world::{DeployedCentre, everyone};

type PostgresWorld = DeployedCentre<PostgresFixture>;

/// A world with one table that everyone holds.
async fn table(ddl: &str, name: &str) -> PostgresWorld {
    DeployedCentre::new(ddl, vec![everyone(name)]).await
}

/// Which PostgreSQL it is: 13 is the oldest that is supported, and lacks a few statements.
async fn major_version(world: &PostgresWorld) -> u32 {
    let version = world
        .fixture
        .query("SELECT current_setting('server_version_num')::int / 10000")
        .await;
    version[0].parse().unwrap()
}
