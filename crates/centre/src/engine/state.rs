//! The server's own tables in the database: making them, and whether they are there.

use super::connection::DatabaseConnection;
use super::sql::system::meta;
use super::sql::tables;
use crate::engine::change_tracking::ChangeTracking;
use crate::error::CentreError;

/// The format version that this code reads and writes.
const FORMAT_VERSION: i64 = 1;

/// The DDL of the server's own tables.
pub fn create_tables<T: ChangeTracking>() -> String {
    let dialect = T::dialect();
    let mut ddl = dialect.state_prelude().to_owned();
    ddl.extend(tables::ALL.iter().map(|it| dialect.create_table(it)));
    ddl.push_str(&dialect.spell(meta::insert().sql));
    ddl.push_str(";\n");
    dialect.push_text(&mut ddl, T::LOGS);
    ddl
}

/// The server's own tables, by their neutral names. Of the adapter's each `CREATE TABLE` begins a
/// line.
pub fn own_tables<T: ChangeTracking>() -> Vec<&'static str> {
    let logs = T::LOGS.lines();
    let logs = logs.filter_map(|line| line.strip_prefix("CREATE TABLE tidewater."));
    let logs = logs.filter_map(|table| table.split_whitespace().next());
    tables::ALL.iter().map(|it| it.name).chain(logs).collect()
}

/// Whether the server's own tables are there.
///
/// # Errors
/// Some are missing, though others are there; or a newer program has been here.
pub async fn check<T: ChangeTracking>(connection: &mut T::Connection) -> Result<bool, CentreError> {
    let wanted = own_tables::<T>();
    let found = T::found_tables(connection, &wanted).await?;
    if found.contains(&tables::META.name) {
        let answer = connection.run_one("reading the state's version", meta::read_version());
        let version = answer.await?.rows.first().map(|row| row.get::<i64>(0));
        let version = version.transpose()?;
        if let Some(version) = version.filter(|&version| version != FORMAT_VERSION) {
            return Err(newer(version));
        }
    }
    let missing = wanted.iter().filter(|table| !found.contains(table));
    let missing: Vec<String> = missing.map(|it| T::Connection::DIALECT.table(it)).collect();
    if found.is_empty() || missing.is_empty() {
        return Ok(!found.is_empty());
    }
    Err(incomplete(&missing))
}

fn newer(version: i64) -> CentreError {
    CentreError::Configuration {
        message: format!(
            "the server's tables in the database have format version {version}, made by a newer \
             Tidewater; this one knows {FORMAT_VERSION}"
        ),
        hint: "update this Tidewater".into(),
    }
}

/// Some of the tables are not there, though others are.
fn incomplete(tables: &[String]) -> CentreError {
    let (noun, verb) = match tables {
        [_] => ("table", "is"),
        _ => ("tables", "are"),
    };
    CentreError::Configuration {
        message: format!(
            "the server's {noun} {} {verb} missing from the database",
            tables.join(", ")
        ),
        hint: "restore the database from a backup; without one, run tidewater undeploy (with \
               --discard if it cannot read what is kept), tidewater deploy and tidewater user \
               add: the remotes then begin anew, and what they have pending goes up"
            .into(),
    }
}
