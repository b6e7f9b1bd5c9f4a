//! I1: no change took effect twice. Every text is written once, but for those that an operator
//! has chosen, those that were pending in a file when it was copied, or restored from a copy; and those of a file that was copied when
//! the centre was restored more than once, see the limits.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::contests::may_come_again;
use super::{OperatorWrites, has_table, is_untracked};
use crate::besides::{self, Besides};
use crate::tables::EDITED;

/// What was pending in files that were copied, or restored from a copy; and what was in files
/// that give rows back as they are.
#[derive(Debug, Default)]
pub(crate) struct MayRepeat {
    texts: BTreeSet<String>,
    /// Who writes nothing else.
    authors: BTreeSet<String>,
    /// What everybody began with, and some bring along again to be adopted.
    adopted: BTreeSet<String>,
}

impl MayRepeat {
    /// Adds what a file holds.
    pub(crate) fn add(&mut self, remote: &Connection) -> rusqlite::Result<()> {
        for table in EDITED.iter().chain(besides::TABLES) {
            let (name, key) = (table.name, table.key());
            if !has_table(remote, &format!("tidewater_change_{name}"))? {
                continue;
            }
            // Whatever is in a table that a tool made anew may be pending.
            let pending = match is_untracked(remote, name)? {
                true => "1".to_owned(),
                false => format!("{key} IN (SELECT key_{key} FROM tidewater_change_{name})"),
            };
            for sql in [
                format!("SELECT * FROM tidewater_change_{name}"),
                format!("SELECT * FROM {name} WHERE {pending}"),
            ] {
                let mut statement = remote.prepare_cached(&sql)?;
                let columns = statement.column_count();
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    for column in 0..columns {
                        if let Value::Text(text) = row.get(column)? {
                            self.texts.insert(text);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the texts of all rows of a file.
    pub(crate) fn add_rows(&mut self, remote: &Connection) -> rusqlite::Result<()> {
        for table in EDITED {
            let (name, text) = (table.name, table.text);
            if has_table(remote, name)? {
                let mut statement = remote
                    .prepare_cached(&format!("SELECT {text} FROM {name} WHERE {text} <> ''"))?;
                let texts = statement.query_map([], |row| row.get(0))?;
                for text in texts {
                    self.texts.insert(text?);
                }
            }
        }
        Ok(())
    }

    /// Adds all that somebody ever wrote.
    pub(crate) fn add_author(&mut self, author: &str) {
        self.authors.insert(author.to_owned());
    }

    /// Adds what somebody brings along who is to have it adopted.
    pub(crate) fn add_adopted(&mut self, text: &str) {
        self.adopted.insert(text.to_owned());
    }

    fn has(&self, text: &str) -> bool {
        // After what kind of text it is comes who wrote it.
        let author = text.split(' ').nth(1);
        self.texts.contains(text)
            || self.adopted.contains(text)
            || author.is_some_and(|it| self.authors.contains(it))
    }

    /// Whether no file held anything that was pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

/// The first change that took effect twice.
pub(crate) fn applied_twice(
    centre: &Connection,
    may_repeat: &MayRepeat,
    settled: &OperatorWrites,
    besides: Besides,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT \"table\", key, text, count(*) FROM audit WHERE operation <> 'delete'
               GROUP BY 1, 2, 3 HAVING count(*) > 1";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (table, key, text, count): (String, Value, String, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let once_more = settled.times(&text);
        if !may_repeat.has(&text)
            && count.unsigned_abs() > 1 + once_more
            && !may_come_again(besides, &table)
        {
            return Ok(Some(format!(
                "I1: {table} {key:?} {text:?} took effect {count} times"
            )));
        }
    }
    Ok(None)
}
