//! I2: what a file brings along that is adopted counts, or gives way, as its user said.

use rusqlite::{Connection, OptionalExtension};

use tidewater_remote::database::AdoptionRule;

use super::is_by;
use super::parties::{find, text_in};
use crate::application::{Brought, CommittedRow};

/// A file whose tables wait to be adopted.
#[derive(Debug)]
pub(crate) struct AdoptionFile {
    pub(crate) adopt: AdoptionRule,
    pub(crate) rows: Vec<Brought>,
}

/// What has become of the tables.
#[derive(Debug, Default)]
pub(crate) struct AdoptionOutcome {
    /// What is to go up now.
    pub(crate) touched: Vec<CommittedRow>,
    /// Rows that perhaps nobody else knows of, as everybody began with them.
    pub(crate) known_here: Vec<(usize, i64)>,
    /// What it is written over: the user, who has not seen it, has said that it does not count.
    pub(crate) replaced: Vec<String>,
}

impl AdoptionFile {
    /// As long as they are not adopted, the rows are as they were.
    pub(crate) fn changed(&self, remote: &Connection) -> rusqlite::Result<Option<String>> {
        for (table, key, text) in &self.rows {
            let here = text_in(remote, (*table, *key))?;
            if here.as_ref() != Some(text) {
                let name = find((*table, *key)).0.name;
                return Ok(Some(format!(
                    "I2: {name} {key} is not adopted, and {here:?} instead of {text:?}"
                )));
            }
        }
        Ok(None)
    }

    /// They have just been adopted; nobody has changed a row since. `authors`: who writes what
    /// nobody else can have written.
    pub(crate) fn adopted(
        &self,
        remote: &Connection,
        authors: &[String],
    ) -> rusqlite::Result<Result<AdoptionOutcome, String>> {
        let mut adopted = AdoptionOutcome::default();
        for (table, key, text) in &self.rows {
            let row = (*table, *key);
            let here = text_in(remote, row)?;
            let is_here = here.as_ref() == Some(text);
            let (of, value) = find(row);
            let sql = format!(
                "SELECT present, pre_{} FROM tidewater_change_{} WHERE key_{} = ?1
                 AND generation > 0",
                of.text,
                of.name,
                of.key()
            );
            let change: Option<(bool, Option<String>)> = remote
                .prepare_cached(&sql)?
                .query_row([value], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let is_own = is_by(text, authors);
            let is_right = match self.adopt {
                AdoptionRule::Mine => is_here && (change.is_some() || !is_own),
                AdoptionRule::Centre => change.is_none() && !(is_here && is_own),
            };
            if !is_right {
                return Ok(Err(format!(
                    "I2: {} {key} {text:?} of a file that is adopted with {:?} is {here:?}, with \
                     the change {change:?}",
                    of.name, self.adopt
                )));
            }
            let Some((present, before)) = change else {
                continue;
            };
            adopted.replaced.extend(before);
            // What everybody began with may be in the centre already, where the user has no such
            // row: nobody can tell whether it came again.
            match is_own {
                true => {
                    let change = CommittedRow::written(*table, *key, text.clone(), !present);
                    adopted.touched.push(change);
                }
                false if !present => adopted.known_here.push(row),
                false => {}
            }
        }
        Ok(Ok(adopted))
    }
}
