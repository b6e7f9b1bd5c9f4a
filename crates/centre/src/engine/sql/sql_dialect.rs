//! How a database spells statements on the application's tables, and how it reads those of operators.

use super::activity_sql::ActivitySql;
use super::lexing::SqlLexing;
use super::role_sql::RoleSql;
use super::set_relation::{RelationColumn, SetRelation};
use super::system_dialect::SystemDialect;
use crate::engine::described_statement::DescribedColumn;
use crate::engine::system_statement::{SystemStatement, TransactionMode};
use crate::error::CentreError;

/// What a step on a table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLock {
    /// That nobody writes.
    Writers,
    /// That nobody reads or writes.
    Everybody,
}

/// What is locked of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLock {
    /// That it stays as it is.
    Change,
    /// The same, and that nothing begins to refer to it.
    Reference,
}

/// How a database writes the rows of uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStrategy {
    /// One statement for many rows compares them with those of the centre, and gives back what it has
    /// written. Rows that fail together are tried in halves.
    Sets,
    /// Rows are read by key and compared by the engine, and each is written by its key.
    Rows,
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

    /// Begins a transaction.
    fn begin(&self, mode: TransactionMode) -> &'static str;

    /// A name as SQL has it.
    fn identifier(&self, name: &str) -> String;

    /// Says for whom a transaction runs, as triggers, policies and queries of the application read
    /// it, until it is said anew or the transaction ends. It may only read.
    fn say_caller(&self, user: &str, remote_id: &str, only_reads: bool) -> Vec<SystemStatement>;

    /// Has a transaction that writes run for nobody, as every one does in the end.
    fn forget_caller(&self) -> Vec<SystemStatement>;

    /// What a query that names a relation's columns yields for each row of that, as an item of FROM.
    /// It is to be found row by row, by an index. Without a relation it is the query alone.
    fn for_each(&self, relation: &str, query: &str, alias: &str) -> String {
        match relation.is_empty() {
            true => format!("({query}) AS {alias}"),
            false => format!("{relation}, LATERAL ({query}) AS {alias}"),
        }
    }

    /// Looks up what belongs to each row of a relation, or yields NULLs: the outputs, and the join.
    fn left_look_up(&self, outputs: &str, from: &str, condition: &str) -> (String, String) {
        (
            outputs.to_owned(),
            format!("LEFT JOIN {from} ON {condition}"),
        )
    }

    /// SQL that keeps tables from being changed otherwise than by rows while a snapshot is read;
    /// nothing where a snapshot shows them as they were. They are listed by their names in SQL.
    fn lock_read(&self, _tables: &str) -> String {
        String::new()
    }

    /// SQL that keeps anybody from changing what tables are before the transaction ends; nothing
    /// where what writes does so anyway. The tables are listed by their names in SQL.
    fn lock_written(&self, _tables: &str) -> String {
        String::new()
    }

    /// What is run before a transaction that writes is committed, so that nothing says any more for
    /// whom it ran; nothing where that ends with the transaction.
    fn end_writing(&self) -> Vec<SystemStatement> {
        Vec::new()
    }

    /// SQL that has constraints which may wait do so again; nothing where none was told not to, or
    /// that ends with a savepoint.
    fn defer_again(&self) -> &'static str {
        ""
    }

    /// SQL that has all constraints checked as soon as a row is written, and fails if one is violated
    /// already; nothing where they are, or no SQL does it.
    fn check_at_once(&self) -> &'static str {
        ""
    }

    /// SQL that has what follows in the transaction wait for locks only for a moment.
    fn hurry(&self) -> String {
        String::new()
    }

    /// How rows of uploads are written.
    fn write_strategy(&self) -> WriteStrategy {
        WriteStrategy::Rows
    }

    /// What stands behind the columns of an insert of many rows, so that it may write all of them.
    fn insert_clause(&self) -> &'static str {
        ""
    }

    /// SQL that has foreign keys checked only when more rows are written, and SQL that ends this;
    /// `None` if nothing does, or one statement can write all rows.
    fn defer_checks(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// What locks the rows `t` that a `SELECT` finds, behind it; `None` where a transaction that writes
    /// has the whole database.
    fn row_lock(&self, _lock: RowLock) -> Option<&'static str> {
        None
    }

    /// The query for the names of the application's tables whose changes have to be watched to be
    /// counted; `None` if the database counts them by itself.
    fn watched_tables(&self) -> Option<&'static str> {
        None
    }

    /// SQL that watches the changes of these tables until the transaction is undone.
    fn watch_changes(&self, _tables: &[String]) -> String {
        String::new()
    }

    /// The query for what was changed in the transaction: a table, and how many of its rows were
    /// inserted, updated and deleted; `None` if that cannot be told.
    fn count_changes(&self) -> Option<&'static str> {
        None
    }

    /// SQL that has what follows in the transaction run under a role of the database.
    fn assume_role(&self, _role: &str) -> String {
        String::new()
    }

    /// SQL that ends this.
    fn give_up_role(&self) -> &'static str {
        ""
    }

    /// Whether an error says that a role may not do something.
    fn is_denied(&self, _error: &CentreError) -> bool {
        false
    }
    /// The relation of a set of rows that has these columns, by parameters from this number on:
    /// [`run_set`](crate::engine::upload::upload_writer::UploadWriter::run_set) binds them.
    fn set_relation(&self, columns: &[RelationColumn<'_>], first: usize) -> SetRelation;

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

    /// What an operator does about a statement that the database does not take, if it advises nothing.
    fn trial_hint(&self) -> &'static str {
        "try it in a shell of the database with values in place of the parameters"
    }

    /// The neutral text that asks about the type `?1` of a query's column, as the database names it,
    /// and the declared type `?2` of a table's column: it yields what the former is called for
    /// people, and whether its values can be written to the latter; nothing if that is not to be
    /// compared. `None` where the database converts what is stored alike.
    fn assignment_sql(&self) -> Option<&'static str> {
        None
    }

    /// A statement of an operator with all that it yields in a form that can be read; `None` if that
    /// is so already.
    fn readable_query(&self, _sql: &str, _columns: &[DescribedColumn]) -> Option<String> {
        None
    }

    /// The neutral text that yields the time zone of the session, and the names of the columns without
    /// a zone that the words `{rows TEXT}` of a statement name. `None` where times of scripts are
    /// compared as they are written.
    fn zoneless_sql(&self) -> Option<&'static str> {
        None
    }

    /// What it tells of other sessions.
    fn activity(&self) -> ActivitySql {
        ActivitySql::default()
    }

    /// The statements about roles under which remotes may act; `None` if the database has no roles.
    fn roles(&self) -> Option<&'static RoleSql> {
        None
    }

    /// Whether a statement that fails ends its transaction, unless that goes back to a savepoint.
    fn ends_transactions_at_errors(&self) -> bool {
        false
    }
}
