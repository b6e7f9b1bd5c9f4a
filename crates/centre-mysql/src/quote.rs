//! Names in SQL.

/// A name as an SQL identifier.
pub(crate) fn quote(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}
