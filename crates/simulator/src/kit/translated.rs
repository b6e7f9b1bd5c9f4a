//! A consolidated database that cannot run in simulated time, as the SQLite file that stands in for
//! it: its tables and rows, and the configuration's SQL.
//!
//! Owns what SQLite takes of that, and says what it does not. How it is translated is the adapter's
//! affair, in [`tidewater_server::databases`].

use std::path::Path;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use tidewater_centre::{Centre, CentreError, PublicationSpec, RuleBy};
use tidewater_protocol::Value;
use tidewater_server::databases::{SqlNames, SqliteTranslation, TranslatedTable};

use super::values::quote;
use super::{BEGIN_MS, KitError};

/// How often scripts are left out until the others can be read.
const ROUNDS: usize = 50;

/// Makes the file. Gives what is not in it, for people.
pub(super) fn make(translation: &SqliteTranslation, path: &Path) -> Result<Vec<String>, KitError> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    let mut left_out = translation.left_out.clone();
    connection.execute_batch("BEGIN")?;
    for table in &translation.tables {
        create(&connection, table, &mut left_out)?;
        fill(&connection, table)?;
    }
    connection.execute_batch("COMMIT")?;
    let told = left_out.into_iter();
    Ok(told
        .map(|it| format!("the translation into SQLite leaves out {it}"))
        .collect())
}

/// Creates a table with the references and checks that SQLite understands.
fn create(
    connection: &Connection,
    table: &TranslatedTable,
    left_out: &mut Vec<String>,
) -> Result<(), KitError> {
    let create = |parts: &[String]| {
        let name = quote(&table.name);
        connection.execute_batch(&format!("CREATE TABLE {name} ({})", parts.join(", ")))
    };
    let mut parts = table.parts.clone();
    for (name, check) in &table.checks {
        parts.push(check.clone());
        connection.execute_batch("SAVEPOINT probe")?;
        let created = create(&parts);
        connection.execute_batch("ROLLBACK TO probe; RELEASE probe")?;
        if created.is_err() {
            parts.pop();
            left_out.push(format!("the constraint {name} of {}", table.name));
        }
    }
    Ok(create(&parts)?)
}

fn fill(connection: &Connection, table: &TranslatedTable) -> Result<(), KitError> {
    let columns: Vec<String> = table.columns.iter().map(|it| quote(it)).collect();
    let values = vec!["?"; columns.len()].join(", ");
    let insert = format!(
        "INSERT INTO {} ({}) VALUES ({values})",
        quote(&table.name),
        columns.join(", ")
    );
    let mut statement = connection.prepare(&insert)?;
    for row in &table.rows {
        let values = row.iter().map(|value| match value {
            Value::Null => SqlValue::Null,
            Value::Integer(integer) => SqlValue::Integer(*integer),
            Value::Real(real) => SqlValue::Real(*real),
            Value::Text(text) => SqlValue::Text(text.clone()),
            Value::Blob(bytes) => SqlValue::Blob(bytes.clone()),
        });
        let inserted = statement.execute(params_from_iter(values));
        inserted.map_err(|error| KitError::Centre {
            what: format!("a row of {} cannot be one of SQLite: {error}", table.name),
            hint: "simulate with --empty",
        })?;
    }
    Ok(())
}

/// The publications with names and SQL as SQLite has them.
pub(super) fn spell(publications: &mut [PublicationSpec], names: &SqlNames) {
    for publication in publications {
        for table in &mut publication.tables {
            table.name = names.table(&table.name).to_owned();
            for rule in &mut table.partition {
                match &mut rule.by {
                    RuleBy::Columns { values, .. } => *values = names.sql(values),
                    RuleBy::Follows { table, .. } => *table = names.table(table).to_owned(),
                    RuleBy::Everyone => {}
                }
            }
            if let Some(scope) = &mut table.writes.scope {
                scope.values = names.sql(&scope.values);
            }
        }
        for allowed in publication
            .parameters
            .iter_mut()
            .flat_map(|it| &mut it.allowed)
        {
            *allowed = names.sql(allowed);
        }
        for script in &mut publication.scripts {
            script.sql = names.sql(&script.sql);
        }
    }
}

/// Leaves out the scripts that SQLite does not understand; gives which, for people.
pub(super) async fn leave_out_scripts(
    centre: &dyn Centre,
    publications: &mut [PublicationSpec],
) -> Result<Vec<String>, KitError> {
    let mut left_out = Vec::new();
    for _ in 0..ROUNDS {
        let faults = match centre.deploy(publications, true, BEGIN_MS).await {
            Err(CentreError::Scripts { faults }) => faults,
            // Whatever else is wrong, deploying says.
            _ => return Ok(left_out),
        };
        let before = left_out.len();
        for publication in publications.iter_mut() {
            publication.scripts.retain(|script| {
                let of_script = |message: &str| {
                    let rest = message.strip_prefix(&script.file);
                    rest.is_some_and(|it| it.starts_with([' ', ',', ':']))
                };
                let fault = faults.iter().find(|it| of_script(&it.message));
                if let Some(fault) = fault {
                    left_out.push(format!(
                        "left out, since SQLite cannot run it: {}",
                        fault.message
                    ));
                }
                fault.is_none()
            });
        }
        if left_out.len() == before {
            return Ok(left_out);
        }
    }
    Ok(left_out)
}
