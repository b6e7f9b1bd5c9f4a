//! What applications wrote while nothing tracked a table.
//!
//! Nobody else has ever heard of it, and a later change may have been made from it. That may lose
//! against what others have made of the row meanwhile, and not against what the row had been.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::is_by;
use crate::tables::EDITED;

/// What a remote's rows were when their tables were last tracked.
#[derive(Debug, Default)]
pub(crate) struct LastTracked(BTreeMap<(usize, i64), String>);

impl LastTracked {
    /// Looks at a table, of which every change so far is recorded. Of a row with a pending or
    /// refused change nobody knows what the centre has of it.
    pub(crate) fn look(&mut self, remote: &Connection, table: usize) -> rusqlite::Result<()> {
        self.0.retain(|row, _| row.0 != table);
        let here = &EDITED[table];
        let (name, key, text) = (here.name, here.key(), here.text);
        let sql = format!(
            "SELECT {key}, {text} FROM {name}
             WHERE {key} NOT IN (SELECT key_{key} FROM tidewater_change_{name})"
        );
        let mut statement = remote.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let number = here.key_is.number(row.get_ref(0)?)?;
            self.0.insert((table, number), row.get(1)?);
        }
        Ok(())
    }

    /// What a row was, if it was there.
    pub(crate) fn text(&self, row: (usize, i64)) -> Option<&String> {
        self.0.get(&row)
    }
}

/// Every text that was written in an untracked table, with what it must not lose against.
#[derive(Debug, Default)]
pub(crate) struct UnrecordedTexts(BTreeMap<String, Option<String>>);

impl UnrecordedTexts {
    /// Adds what an application made of a row that had this text from others.
    pub(crate) fn add(&mut self, text: &str, had: Option<&String>) {
        self.0.insert(text.to_owned(), had.cloned());
    }

    /// What has been written by these goes up before anybody compares it: a known limit.
    pub(crate) fn let_lose_all_of(&mut self, authors: &[String]) {
        for (text, had) in &mut self.0 {
            if is_by(text, authors) {
                *had = None;
            }
        }
    }

    /// What is not followed from checkpoint to checkpoint, or has another column, counts as changed
    /// by others: a known limit.
    pub(crate) fn let_all_lose(&mut self) {
        self.0.values_mut().for_each(|had| *had = None);
    }

    /// Whether a change that was made from `text` may lose against `winner`.
    pub(crate) fn may_lose(&self, text: &str, winner: Option<&String>) -> bool {
        self.0
            .get(text)
            .is_some_and(|had| had.is_none() || had.as_ref() != winner)
    }
}
