//! How names of tables and columns are spelled in statements.

/// A name as SQL spells it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
