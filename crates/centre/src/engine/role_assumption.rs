//! The role of the database under which the remotes of a publication act (`act_as`).

use crate::engine::scope_query::ScopeQuery;

/// Under which role remotes act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleAssumption {
    /// The query that yields it.
    pub query: ScopeQuery,
    /// The one that it is for everybody, if so.
    pub fixed: Option<String>,
}
