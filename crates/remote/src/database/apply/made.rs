//! What the centre made of a row that it took: its triggers, computed columns and types may have
//! given it other values than those that were uploaded.
//!
//! It is the row from which what the user does next is made. Without a later change it becomes the
//! row here; with one, the pre-image of that change, and of the row itself what the later change
//! left alone.

use tidewater_protocol::{Datum, Row, Value};

use super::ack::note_conflict;
use super::rows::{Sink, failed, is_local_rule};
use crate::database::conflicts::Outcome;
use crate::database::{changes, quote, row};
use crate::error::{Doing, RemoteError};

const DOING: &str = "applying what the centre made of an uploaded row";

impl Sink<'_> {
    /// A row that the centre took and made something else of.
    pub(super) fn made(&mut self, row: &Row<'_>) -> Result<(), RemoteError> {
        let Some(taken) = self.subscription.taken_generation else {
            return Ok(());
        };
        if self.table.is_untracked {
            // It may have been changed since, with nobody to write it down: the compare tells.
            return Ok(());
        }
        if !self.table.same_layout {
            return self.mark_stale(&row.key);
        }
        match self.newest_change(&row.key)?.filter(|&it| it > taken) {
            None => self.write(&row.new, &row.key).map(drop),
            Some(later) => self.become_pre_image(row, later),
        }
    }

    /// The same, together with a change of somebody else's.
    pub(super) fn merged(&mut self, row: &Row<'_>) -> Result<(), RemoteError> {
        note_conflict(self.summary, self.table.name(), &row.key);
        self.record_conflict(&row.key, Some(&row.new), Outcome::Merged)?;
        self.made(row)
    }

    fn become_pre_image(&mut self, row: &Row<'_>, later: i64) -> Result<(), RemoteError> {
        let names = &self.table.names;
        let key: Vec<Value> = row.key.iter().map(Datum::to_value).collect();
        let rekeyed = changes::rekeyed(self.connection, names, later, &key).doing(DOING)?;
        let live = match rekeyed {
            Some(pair) if pair.old == key => pair.new,
            _ => key.clone(),
        };
        let untouched = self.untouched(&key, &live, later).doing(DOING)?;
        let set = |columns: &mut dyn Iterator<Item = &String>, first: usize| {
            quote::list(columns.enumerate(), ", ", |(at, column)| {
                format!("{column} = ?{}", first + at)
            })
        };
        let here = set(
            &mut untouched.iter().map(|&at| &names.columns[at]),
            key.len() + 1,
        );
        if !untouched.is_empty() {
            let sql = format!(
                "UPDATE {} SET {here} WHERE {}",
                names.table,
                names.key_is_bound()
            );
            match self.run(&sql, &live, row, &untouched, None) {
                Ok(()) => {}
                Err(error) if is_local_rule(self.connection, &error) => {
                    return self.mark_stale(&row.key);
                }
                Err(error) => return Err(failed(self.connection, DOING, error)),
            }
        }
        if names.values.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "UPDATE {} SET {} WHERE {} AND generation = ?{} AND present = 1",
            names.change,
            set(&mut names.pre.iter(), key.len() + 1),
            names.change_key_is_bound(),
            key.len() + 1 + names.values.len(),
        );
        self.run(&sql, &key, row, &names.values, Some(later))
            .doing(DOING)
    }

    /// Runs a statement with a key, values of a row, and a generation.
    fn run(
        &self,
        sql: &str,
        key: &[Value],
        row: &Row<'_>,
        columns: &[usize],
        generation: Option<i64>,
    ) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql)?;
        self.table.names.bind_key(&mut statement, key)?;
        let values: Vec<Datum<'_>> = columns.iter().map(|&at| row.new[at]).collect();
        row::bind(&mut statement, key.len() + 1, &values, &mut String::new())?;
        if let Some(generation) = generation {
            statement.raw_bind_parameter(key.len() + 1 + values.len(), generation)?;
        }
        statement.raw_execute().map(drop)
    }

    /// The columns that a change has left as they were. None of a row that is gone.
    fn untouched(
        &self,
        key: &[Value],
        live: &[Value],
        generation: i64,
    ) -> rusqlite::Result<Vec<usize>> {
        let names = &self.table.names;
        let read = |sql: &str, key: &[Value]| -> rusqlite::Result<Option<Vec<Value>>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            names.bind_key(&mut statement, key)?;
            statement.raw_bind_parameter(key.len() + 1, generation)?;
            let mut rows = statement.raw_query();
            let found = rows.next()?;
            found
                .map(|found| row::owned(found, 0, names.values.len()))
                .transpose()
        };
        if names.values.is_empty() {
            return Ok(Vec::new());
        }
        let generation = key.len() + 1;
        let before = read(
            &format!(
                "SELECT {} FROM {} WHERE {} AND generation = ?{generation}",
                names.pre.join(", "),
                names.change,
                names.change_key_is_bound(),
            ),
            key,
        )?;
        let now = read(
            &format!(
                "SELECT {} FROM {} WHERE {} AND ?{generation} IS NOT NULL",
                quote::list(&names.values, ", ", |&at| names.columns[at].clone()),
                names.table,
                names.key_is_bound(),
            ),
            live,
        )?;
        let (Some(before), Some(now)) = (before, now) else {
            return Ok(Vec::new());
        };
        let columns = names.values.iter().zip(before.iter().zip(&now));
        Ok(columns
            .filter(|(_, (before, now))| before == now)
            .map(|(&at, _)| at)
            .collect())
    }
}
