//! I2: every committed local change is in the centre, or pending, or refused.
//!
//! An independent ledger: it knows what the application committed, and looks for each
//! change where it may be. A later change of the same row takes an earlier one's place.

use std::collections::BTreeMap;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use crate::application::Touched;
use crate::scenario::EDITED;

/// The last change of a row that is not known to be decided.
#[derive(Clone, Debug)]
struct Open {
    text: Option<String>,
    /// The row was made here, and perhaps nobody else knows of it.
    is_new: bool,
    /// How far the centre's audit was by then.
    since: i64,
}

/// What the application of a remote committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    open: BTreeMap<(usize, i64), Open>,
}

/// Where changes may be.
pub(crate) struct Parties<'a> {
    pub(crate) remote: &'a Connection,
    pub(crate) centre: &'a Connection,
}

/// Where a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pending,
    /// It goes up again when the row is changed again.
    Refused,
    Decided,
    Nowhere,
}

impl Ledger {
    /// A transaction of the application was committed.
    pub(crate) fn committed(&mut self, touched: &[Touched], since: i64) {
        for change in touched {
            let row = (change.table, change.key);
            let was_new = self.open.get(&row).map(|open| open.is_new);
            if change.text.is_none() && was_new == Some(true) {
                // Nobody may ever have heard of the row.
                self.open.remove(&row);
                continue;
            }
            let open = Open {
                text: change.text.clone(),
                is_new: was_new.unwrap_or(change.inserted),
                since,
            };
            self.open.insert(row, open);
        }
    }

    /// Looks for every change; those that are decided are closed.
    pub(crate) fn check(&mut self, parties: &Parties<'_>) -> rusqlite::Result<Option<String>> {
        let mut decided = Vec::new();
        for (&row, open) in &self.open {
            match parties.place(row, open)? {
                Place::Pending => {
                    if let Some(found) = parties.overwritten(row, open)? {
                        return Ok(Some(found));
                    }
                }
                Place::Refused => {}
                Place::Decided => decided.push(row),
                Place::Nowhere => {
                    let (table, key) = (EDITED[row.0].name, row.1);
                    return Ok(Some(format!(
                        "I2: the change of {table} {key} to {:?} is nowhere\n{}",
                        open.text,
                        parties.evidence(row)?
                    )));
                }
            }
        }
        for row in decided {
            self.open.remove(&row);
        }
        Ok(None)
    }
}

impl Parties<'_> {
    fn place(&self, row: (usize, i64), open: &Open) -> rusqlite::Result<Place> {
        if self.is_pending(row)? {
            return Ok(Place::Pending);
        }
        if self.is_refused_here(row)? {
            return Ok(Place::Refused);
        }
        let decided = self.took_effect(row, open)? || self.lost_or_refused(row, open)?;
        Ok(if decided {
            Place::Decided
        } else {
            Place::Nowhere
        })
    }

    /// All that is known of a row, for people.
    fn evidence(&self, (table, key): (usize, i64)) -> rusqlite::Result<String> {
        let (name, column) = (EDITED[table].name, EDITED[table].key());
        let mut evidence = String::new();
        for (place, connection, sql) in [
            (
                "remote row",
                self.remote,
                format!("SELECT * FROM {name} WHERE {column} = ?1"),
            ),
            (
                "remote change",
                self.remote,
                format!("SELECT * FROM tidewater_change_{name} WHERE key_{column} = ?1"),
            ),
            (
                "centre row",
                self.centre,
                format!("SELECT * FROM {name} WHERE {column} = ?1"),
            ),
            (
                "centre audit",
                self.centre,
                format!("SELECT * FROM audit WHERE \"table\" = '{name}' AND key = ?1"),
            ),
            (
                "centre conflict",
                self.centre,
                format!(
                    "SELECT * FROM tidewater_conflict WHERE table_name = '{name}' AND key = '[' || ?1 || ']'"
                ),
            ),
        ] {
            let mut statement = connection.prepare_cached(&sql)?;
            let count = statement.column_count();
            let mut rows = statement.query([key])?;
            while let Some(row) = rows.next()? {
                let values = (0..count).map(|index| row.get::<_, Value>(index));
                let values: Vec<Value> = values.collect::<rusqlite::Result<_>>()?;
                evidence += &format!("  {place}: {values:?}\n");
            }
        }
        Ok(evidence)
    }

    fn is_pending(&self, (table, key): (usize, i64)) -> rusqlite::Result<bool> {
        let table = &EDITED[table];
        let sql = format!(
            "SELECT 1 FROM tidewater_change_{} WHERE key_{} = ?1 AND generation > 0",
            table.name,
            table.key()
        );
        self.remote.prepare_cached(&sql)?.exists([key])
    }

    /// A pending change has the value that the application gave it.
    fn overwritten(
        &self,
        (table, key): (usize, i64),
        open: &Open,
    ) -> rusqlite::Result<Option<String>> {
        let table = &EDITED[table];
        let sql = format!(
            "SELECT {} FROM {} WHERE {} = ?1",
            table.text,
            table.name,
            table.key()
        );
        let mut statement = self.remote.prepare_cached(&sql)?;
        let text: Option<String> = statement.query_row([key], |row| row.get(0)).optional()?;
        let name = table.name;
        Ok((text != open.text).then(|| {
            format!(
                "I4: {name} {key} was written as {:?}, is pending, and is {text:?}",
                open.text
            )
        }))
    }

    fn took_effect(&self, (table, key): (usize, i64), open: &Open) -> rusqlite::Result<bool> {
        let table = &EDITED[table];
        let Some(text) = &open.text else {
            let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
            let is_there = self.centre.prepare_cached(&sql)?.exists([key])?;
            // A row that was made anew since then was gone in between; REPLACE tells no trigger.
            let sql = "SELECT 1 FROM audit WHERE key = ?1 AND \"table\" = ?2 AND at > ?3
                       AND operation <> 'update'";
            let mut audit = self.centre.prepare_cached(sql)?;
            return Ok(!is_there || audit.exists(params![key, table.name, open.since])?);
        };
        self.centre
            .prepare_cached(
                "SELECT 1 FROM audit WHERE key = ?1 AND \"table\" = ?2 AND text = ?3
                 AND operation <> 'delete'",
            )?
            .exists(params![key, table.name, text])
    }

    fn lost_or_refused(&self, (table, key): (usize, i64), open: &Open) -> rusqlite::Result<bool> {
        let table = EDITED[table].name;
        let key = format!("[{key}]");
        let text = open.text.as_ref().map(|text| format!("%{text:?}%"));
        for sql in [
            "SELECT 1 FROM tidewater_conflict WHERE table_name = ?1 AND key = ?2
             AND CASE WHEN ?3 IS NULL THEN operation = 'delete' ELSE uploaded LIKE ?3 END",
            "SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2
             AND CASE WHEN ?3 IS NULL THEN operation = 'delete' ELSE row LIKE ?3 END",
        ] {
            let mut statement = self.centre.prepare_cached(sql)?;
            if statement.exists(params![table, key, text])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_refused_here(&self, (table, key): (usize, i64)) -> rusqlite::Result<bool> {
        self.remote
            .prepare_cached("SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2")?
            .exists(params![EDITED[table].name, format!("[{key}]")])
    }
}
