//! Having the database read scripts that need temporary tables of scripts before them: these are
//! created while the scripts of a version are read, and are gone afterwards.

use std::collections::HashSet;

use super::check::{self, CheckedScript};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::DatabaseConnection;
use crate::engine::script::{Script, first_word};
use crate::engine::sql::lexing::SqlLexing;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const WHAT: &str = "reading scripts";
const SAVE: &str = "SAVEPOINT tidewater_check";
const UNDO: &str = "ROLLBACK TO SAVEPOINT tidewater_check; RELEASE SAVEPOINT tidewater_check";

/// What ends the savepoint of a statement.
fn after<T>(done: &Result<T>) -> &'static str {
    match done {
        Ok(_) => "RELEASE SAVEPOINT tidewater_check",
        Err(_) => UNDO,
    }
}

/// Reading the scripts of one version.
#[derive(Default)]
pub(super) struct TrialTables {
    /// The temporary tables that were created; `None` if the scripts create none, and the database
    /// is only asked to read.
    created: Option<HashSet<String>>,
    /// The statement that undoes everything; empty if there is nothing to undo.
    undo: &'static str,
    /// What makes a transaction go on after a statement that the database could not read.
    go_on: Option<&'static str>,
}

impl TrialTables {
    /// Begins to read scripts, which may create temporary tables.
    pub(super) async fn begin<T: ChangeTracking>(
        connection: &mut T::Connection,
        creates: bool,
    ) -> Result<TrialTables> {
        if !creates && !T::dialect().ends_transactions_at_errors() {
            return Ok(TrialTables::default());
        }
        // Scripts are read in a transaction, or outside of one, where databases have no savepoint.
        let inner = connection.execute(WHAT, "SAVEPOINT tidewater_trial").await;
        if !creates {
            // Outside of a transaction an error ends nothing.
            let is_inner = inner.is_ok();
            return Ok(TrialTables {
                created: None,
                undo: if is_inner {
                    "RELEASE SAVEPOINT tidewater_trial"
                } else {
                    ""
                },
                go_on: is_inner.then_some("ROLLBACK TO SAVEPOINT tidewater_trial"),
            });
        }
        let undo = match inner {
            Ok(()) => "ROLLBACK TO SAVEPOINT tidewater_trial; RELEASE SAVEPOINT tidewater_trial",
            Err(_) => {
                connection.execute(WHAT, "BEGIN").await?;
                "ROLLBACK"
            }
        };
        Ok(TrialTables {
            created: Some(HashSet::new()),
            undo,
            go_on: None,
        })
    }

    /// Undoes what was created.
    pub(super) async fn end<T: ChangeTracking>(self, connection: &mut T::Connection) -> Result<()> {
        match self.undo {
            "" => Ok(()),
            undo => connection.execute(WHAT, undo).await,
        }
    }

    /// Has the database read a statement; see [`check::check`].
    pub(super) async fn check<T: ChangeTracking>(
        &self,
        connection: &mut T::Connection,
        named: &str,
        script: &Script,
        of_rows: usize,
    ) -> Result<CheckedScript> {
        if self.created.is_none() {
            let checked = check::check::<T>(connection, named, script, of_rows).await;
            if let Some(go_on) = self.go_on {
                connection.execute(WHAT, go_on).await?;
            }
            return checked;
        }
        connection.execute(WHAT, SAVE).await?;
        let checked = check::check::<T>(connection, named, script, of_rows).await;
        // What can be read may have been asked in another way, too, that the database refused.
        connection.execute(WHAT, UNDO).await?;
        checked
    }

    /// Creates the temporary table that a statement creates, if it does: `sql` is the statement with
    /// NULL for each parameter.
    pub(super) async fn create<T: ChangeTracking>(
        &mut self,
        connection: &mut T::Connection,
        sql: &str,
    ) -> Result<()> {
        let (Some(created), Some(name)) = (&mut self.created, created_table(sql, T::lexing()))
        else {
            return Ok(());
        };
        match created.insert(name) {
            true => {
                connection.execute(WHAT, SAVE).await?;
                let made = connection.execute(WHAT, sql).await;
                connection.execute(WHAT, after(&made)).await?;
                made
            }
            // Two transactions may have a table of the same name.
            false => Ok(()),
        }
    }
}

/// The temporary table that a statement creates.
pub(super) fn created_table(statement: &str, lexing: SqlLexing) -> Option<String> {
    if first_word(statement, lexing) != "CREATE" {
        return None;
    }
    let statement = without_comments(statement);
    let mut words = statement
        .split(|it: char| it.is_whitespace() || it == '(')
        .filter(|it| !it.is_empty())
        .skip(1)
        .map(str::to_ascii_uppercase)
        .skip_while(|it| ["LOCAL", "GLOBAL"].contains(&&**it));
    let is_temporary = words
        .next()
        .is_some_and(|it| ["TEMP", "TEMPORARY"].contains(&&*it));
    let is_table = words.next().is_some_and(|it| it == "TABLE");
    (is_temporary && is_table)
        .then(|| words.find(|it| !["IF", "NOT", "EXISTS"].contains(&&**it)))
        .flatten()
}

/// A statement without comments that fill lines.
fn without_comments(statement: &str) -> String {
    let lines = statement.lines().map(str::trim_start);
    let lines = lines.filter(|it| !it.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_tables_are_known_by_their_statements() {
        for (statement, name) in [
            ("CREATE TEMP TABLE old_rows (id integer)", Some("OLD_ROWS")),
            (
                "-- what was\ncreate local temporary table if not exists a(id int)",
                Some("A"),
            ),
            ("CREATE TEMPORARY TABLE x AS SELECT 1", Some("X")),
            ("CREATE TABLE x (id integer)", None),
            ("CREATE TEMP VIEW x AS SELECT 1", None),
            ("INSERT INTO temp VALUES (1)", None),
        ] {
            let found = created_table(statement, SqlLexing::STANDARD);
            assert_eq!(found.as_deref(), name, "{statement}");
        }
    }
}
