//! What statements a database with roles has about them, and about row security.

/// What tells the role of the database under which a remote acts.
#[derive(Clone, Copy, Debug)]
pub enum RoleSource<'a> {
    /// This one.
    Named(&'a str),
    /// What this query yields, which has positional parameters.
    Query(&'a str),
}

/// The statements of a database with roles. Roles are yielded as the fields of
/// [`DatabaseRole`](crate::engine::acting::DatabaseRole), in their order: the distinct ones, two at
/// least if there are several. All but the first are neutral texts.
#[derive(Debug)]
pub struct RoleSql {
    /// Makes the query for a role, with the parameters of the operator's.
    pub asks: fn(RoleSource<'_>) -> String,
    /// Yields the role that the row names: `{rows TEXT}`.
    pub known: &'static str,
    /// Yields those of the tables `{rows TEXT}` of which row security may hide rows from the server's
    /// own role, and that role, both as SQL.
    pub hidden: &'static str,
    /// Yields the tables of `{rows TEXT}` without row security that refer to others of them which
    /// have it, and these.
    pub unprotected: &'static str,
    /// Yields the tables of `{rows TEXT}` whose rows are seen by what other tables say, the policy that
    /// goes by them, and the other table.
    pub by_others: &'static str,
}
