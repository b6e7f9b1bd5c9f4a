//! PostgreSQL passes the conformance suite of central databases, and keeps what only it promises.

mod fixture;
mod postgres_only;

/// The suite.
mod on_postgres {
    tidewater_centre_conformance::suite!(crate::fixture::PostgresFixture);
}
