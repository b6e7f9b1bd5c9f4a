//! MariaDB passes the conformance suite of central databases, as far as its adapter goes.

mod fixture;
mod statements;

/// The cases that need no more than a connection, a dialect and the server's own tables.
mod first {
    tidewater_centre_conformance::first_group!(crate::fixture::MysqlFixture);
}
