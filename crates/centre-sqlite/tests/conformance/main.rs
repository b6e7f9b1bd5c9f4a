//! An SQLite file passes the conformance suite of central databases, and keeps what only it promises.

mod fixture;
mod sqlite_columns;
mod sqlite_journal;
mod sqlite_only;
mod sqlite_ways;

/// The suite.
mod on_sqlite {
    tidewater_centre_conformance::suite!(crate::fixture::SqliteFixture);
}
