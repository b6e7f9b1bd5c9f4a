//! The role of the database under which the remotes of a publication act (`act_as`), and what a
//! database with roles has to be able to do for that.

use crate::engine::scope_query::ScopeQuery;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::error::CentreResult;

/// Under which role remotes act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleAssumption {
    /// The query that yields it.
    pub query: ScopeQuery,
    /// The one that it is for everybody, if so.
    pub fixed: Option<String>,
}

/// What tells the role of the database under which a remote acts.
#[derive(Clone, Copy, Debug)]
pub enum RoleSource<'a> {
    /// This one.
    Named(&'a str),
    /// What this query yields, which has positional parameters.
    Query(&'a str),
}

/// A database with roles. `C` is a connection to it, `T` a table of a publication.
pub trait RoleAdapter<C, T: TableAdapter>: Sync {
    /// The SQL that asks for a role.
    fn role_sql(&self, role: RoleSource<'_>) -> String;

    /// Checks that the query for the role can be run and yields one column, that a role which is the
    /// same for everybody can be assumed, and that the server's own role sees all rows; gives what
    /// its operator may not have thought of. The query is named with its place in the configuration.
    ///
    /// # Errors
    /// See [`crate::engine::scope_query::wrong`].
    fn check_role<'a>(
        &'a self,
        connection: &'a mut C,
        named: &'a str,
        assumed: &'a RoleAssumption,
        tables: &'a [ServedTable<T>],
    ) -> CentreResult<'a, Vec<String>>;
}
