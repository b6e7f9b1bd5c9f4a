//! How a database spells statements on the application's tables, and how it reads those of operators.

use super::lexing::SqlLexing;
use super::system_dialect::SystemDialect;

/// What a step on a table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLock {
    /// That nobody writes.
    Writers,
    /// That nobody reads or writes.
    Everybody,
}

/// How a database spells what the engine writes, and what it can do.
pub trait SqlDialect: SystemDialect {
    /// What people call the database.
    fn title(&self) -> &'static str;

    /// Which quotes and comments its SQL has.
    fn lexing(&self) -> SqlLexing;

    /// The parameter of a number from 1 on.
    fn parameter(&self, number: usize) -> String {
        let mut sql = String::new();
        self.push_parameter(&mut sql, &number.to_string());
        sql
    }

    /// What a query of an operator yields, as a relation of the column `value`. The query may end in
    /// a comment: what follows it has to stand on a line of its own.
    fn value_relation(&self, query: &str) -> String {
        format!("(\n{query}\n) AS v (value)")
    }

    /// The collation that compares texts byte by byte.
    fn byte_collation(&self) -> &'static str;

    /// The highest of the integers in the column `value`, as text; something that is no integer if
    /// one of them is none.
    fn highest_integer(&self) -> &'static str {
        "CAST(max(CAST(value AS bigint)) AS text)"
    }

    /// What has to be made before the server's own tables, as statements. Where DDL is
    /// transactional, a text may be several of them.
    fn state_prelude(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether DDL is part of the transaction in which it is run, so that a deployment is one. Where
    /// each DDL statement commits, a deployment is a journal of steps, and every job has to look
    /// whether what is served is still deployed ([`super::super::deploy::reload`]).
    fn has_transactional_ddl(&self) -> bool {
        true
    }

    /// The lock that a step of deploying takes on a table, for people.
    fn lock_title(&self, _lock: StepLock, _table: &str) -> String {
        "writers wait until it is done".into()
    }

    /// Whether it takes several statements for one call.
    fn takes_several_statements(&self) -> bool {
        true
    }

    /// Whether a statement that fails ends its transaction, unless that goes back to a savepoint.
    fn ends_transactions_at_errors(&self) -> bool {
        false
    }
}
