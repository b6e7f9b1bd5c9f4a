//! What the centre made of a row that it took: its triggers, computed columns and types may have
//! given it other values than those that were uploaded.
//!
//! It is the row from which what the user does next is made. Without a later change it becomes the
//! row here; with one, the pre-image of that change, and of the row itself what the later change
//! left alone. What has something of somebody else's is not what the later change was made from: in
//! the columns that this has changed, the pre-image stays what its user had seen.

use tidewater_protocol::{Datum, UnpackedRow, Value};

use super::ack::note_conflict;
use super::rows::{RowSink, failed, is_local_rule};
use crate::database::conflicts::ChangeOutcome;
use crate::database::{changes, quote, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "applying what the centre made of an uploaded row";

impl RowSink<'_> {
    /// A row that the centre took and made something else of.
    pub(super) fn take_made(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        self.become_row(row, false)
    }

    fn become_row(&mut self, row: &UnpackedRow<'_>, is_of_others: bool) -> Result<(), RemoteError> {
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
            Some(_) => self.become_pre_image(row, taken, is_of_others),
        }
    }

    /// The same, together with a change of somebody else's.
    pub(super) fn take_merged(&mut self, row: &UnpackedRow<'_>) -> Result<(), RemoteError> {
        note_conflict(self.summary, self.table.name(), &row.key);
        self.record_conflict(&row.key, Some(&row.new), ChangeOutcome::Merged)?;
        self.become_row(row, true)
    }

    /// The changes after `taken` are made from the row, as far as nobody has changed a column in
    /// between. If it has something of others, none of them was: it counts in the columns that all
    /// have left alone.
    fn become_pre_image(
        &mut self,
        row: &UnpackedRow<'_>,
        taken: i64,
        is_of_others: bool,
    ) -> Result<(), RemoteError> {
        let names = &self.table.names;
        let mut key: Vec<Value> = row.key.iter().map(Datum::to_value).collect();
        let first = changes::next_of(self.connection, names, &key, taken).doing(DOING)?;
        let (mut generation, mut columns) = (first.unwrap_or(taken), names.values.clone());
        let mut images = Vec::new();
        loop {
            let rekeyed = changes::rekeyed(self.connection, names, generation, &key);
            let after = match rekeyed.doing(DOING)? {
                Some(pair) if pair.old == key => pair.new,
                _ => key.clone(),
            };
            let next = changes::next_of(self.connection, names, &after, generation);
            let next = next.doing(DOING)?;
            let untouched = self.untouched((&key, generation), (&after, next));
            let untouched = untouched.doing(DOING)?;
            images.push((
                std::mem::replace(&mut key, after),
                generation,
                columns.clone(),
            ));
            columns.retain(|it| untouched.contains(it));
            match next {
                Some(next) if !columns.is_empty() => generation = next,
                _ => break,
            }
        }
        let set = |columns: &mut dyn Iterator<Item = &String>, first: usize| {
            quote::list(columns.enumerate(), ", ", |(at, column)| {
                format!("{column} = ?{}", first + at)
            })
        };
        if !columns.is_empty() {
            let here = set(
                &mut columns.iter().map(|&at| &names.columns[at]),
                key.len() + 1,
            );
            let sql = format!(
                "UPDATE {} SET {here} WHERE {}",
                names.table,
                names.key_is_bound()
            );
            match self.run(&sql, &key, row, &columns, None) {
                Ok(()) => {}
                Err(error) if is_local_rule(self.connection, &error) => {
                    return self.mark_stale(&row.key);
                }
                Err(error) => return Err(failed(self.connection, DOING, error)),
            }
        }
        if is_of_others {
            images.iter_mut().for_each(|it| it.2.clone_from(&columns));
        }
        for (key, generation, columns) in images.iter().filter(|(.., it)| !it.is_empty()) {
            let pre = names.values.iter().zip(&names.pre);
            let mut pre = pre.filter(|(at, _)| columns.contains(at)).map(|(_, it)| it);
            let sql = format!(
                "UPDATE {} SET {} WHERE {} AND generation = ?{} AND present = 1",
                names.change,
                set(&mut pre, key.len() + 1),
                names.change_key_is_bound(),
                key.len() + 1 + columns.len(),
            );
            self.run(&sql, key, row, columns, Some(*generation))
                .doing(DOING)?;
        }
        Ok(())
    }

    /// Runs a statement with a key, values of a row, and a generation.
    fn run(
        &self,
        sql: &str,
        key: &[Value],
        row: &UnpackedRow<'_>,
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

    /// The columns that a change has left as they were, up to the next one, or up to now. None of a
    /// row that is gone.
    fn untouched(
        &self,
        (key, generation): (&[Value], i64),
        (after, next): (&[Value], Option<i64>),
    ) -> rusqlite::Result<Vec<usize>> {
        let names = &self.table.names;
        if names.values.is_empty() {
            return Ok(Vec::new());
        }
        let read = |sql: &str, key: &[Value], generation: i64| {
            let mut statement = self.connection.prepare_cached(sql)?;
            names.bind_key(&mut statement, key)?;
            statement.raw_bind_parameter(key.len() + 1, generation)?;
            let mut rows = statement.raw_query();
            let found = rows.next()?;
            found
                .map(|found| row::owned(found, 0, names.values.len()))
                .transpose()
        };
        let parameter = key.len() + 1;
        let recorded = format!(
            "SELECT {} FROM {} WHERE {} AND generation = ?{parameter} AND present = 1",
            names.pre.join(", "),
            names.change,
            names.change_key_is_bound(),
        );
        let before = read(&recorded, key, generation)?;
        let now = match next {
            Some(next) => read(&recorded, after, next)?,
            None => read(
                &format!(
                    "SELECT {} FROM {} WHERE {} AND ?{parameter} IS NOT NULL",
                    quote::list(&names.values, ", ", |&at| names.columns[at].clone()),
                    names.table,
                    names.key_is_bound(),
                ),
                after,
                generation,
            )?,
        };
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
