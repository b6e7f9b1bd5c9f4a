//! Which tables of the server's own there must be in the centre, and what is said when one is
//! missing.

use crate::error::CentreError;

/// The tables that a script makes, as it names them: each `CREATE TABLE` begins a line.
pub(crate) fn made_by(script: &str) -> Vec<&str> {
    let made = script
        .lines()
        .filter_map(|line| line.strip_prefix("CREATE TABLE "));
    made.filter_map(|table| table.split_whitespace().next())
        .collect()
}

/// Some of the tables are not there, though others are.
pub(crate) fn missing(tables: &[impl AsRef<str>]) -> CentreError {
    let names: Vec<&str> = tables.iter().map(AsRef::as_ref).collect();
    let (noun, verb) = match names.as_slice() {
        [_] => ("table", "is"),
        _ => ("tables", "are"),
    };
    CentreError::Configuration {
        message: format!(
            "the server's {noun} {} {verb} missing from the database",
            names.join(", ")
        ),
        hint: "restore the database from a backup; without one, run tidewater undeploy (with \
               --discard if it cannot read what is kept), tidewater deploy and tidewater user \
               add: the remotes then begin anew, and what they have pending goes up"
            .into(),
    }
}
