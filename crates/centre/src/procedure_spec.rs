//! Procedures as the configuration has them.

use tidewater_protocol::ColumnType;
use tidewater_protocol::message::Returns;

/// A procedure, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureSpec {
    /// Its name.
    pub name: String,
    /// What the database runs, with `{a.NAME}`, `{s.username}`, `{s.remote_id}` and
    /// `{s.claims.NAME}`; `None` if a
    /// program provides the procedure. Calls of it then only tell whether they are allowed.
    pub sql: Option<String>,
    /// What a call has to say.
    pub arguments: Vec<ArgumentSpec>,
    /// What it answers with.
    pub returns: Returns,
    /// A query with the same parameters, which yields a row if the call is allowed; `None`: it is.
    pub allow: Option<String>,
    /// Whether it changes nothing: the database sees to that.
    pub read_only: bool,
}

/// An argument of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentSpec {
    /// Its name.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// Whether a call may leave it out: it is NULL then.
    pub optional: bool,
}
