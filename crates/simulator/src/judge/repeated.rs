//! I1: no change took effect twice. Every text is written once, but for those that somebody
//! gave back by copying or restoring a file that held them.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::has_table;
use crate::scenario::EDITED;

/// The changes in files that were copied, or restored from a copy.
#[derive(Debug, Default)]
pub(crate) struct MayRepeat {
    /// Who goes on in each of the copies of a file. To a centre that was restored to when both
    /// were the same, they give back under the same numbers: the one that comes second uploads
    /// anew what it is not told to be in effect.
    copies: BTreeSet<String>,
    /// The texts of those that were pending.
    pending: BTreeSet<String>,
    /// Uploads as they travelled, which a centre that was restored is given back: by each of
    /// the files.
    kept: Vec<Vec<u8>>,
}

impl MayRepeat {
    /// Adds what a file holds.
    pub(crate) fn add(&mut self, remote: &Connection) -> rusqlite::Result<()> {
        for table in EDITED {
            let (name, key, text) = (table.name, table.key(), table.text);
            if !has_table(remote, &format!("tidewater_change_{name}"))? {
                continue;
            }
            for sql in [
                format!("SELECT * FROM tidewater_change_{name}"),
                format!(
                    "SELECT {text} FROM {name}
                     WHERE {key} IN (SELECT key_{key} FROM tidewater_change_{name})"
                ),
            ] {
                let mut statement = remote.prepare_cached(&sql)?;
                let columns = statement.column_count();
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    for column in 0..columns {
                        if let Value::Text(text) = row.get(column)? {
                            self.pending.insert(text);
                        }
                    }
                }
            }
        }
        let mut statement = remote.prepare_cached("SELECT bytes FROM tidewater_kept")?;
        let kept = statement.query_map([], |row| row.get(0))?;
        self.kept
            .extend(kept.collect::<rusqlite::Result<Vec<_>>>()?);
        Ok(())
    }

    /// A file goes on as these two.
    pub(crate) fn copied(&mut self, names: [&str; 2]) {
        self.copies.extend(names.map(str::to_owned));
    }

    /// Whether no file held anything that was pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn has(&self, text: &str, centre_restored: bool) -> bool {
        let is_in = |upload: &Vec<u8>| {
            let mut places = upload.windows(text.len().max(1));
            places.any(|place| place == text.as_bytes())
        };
        let is_by = |name: &String| text.contains(&format!(" {name} "));
        self.pending.contains(text)
            || centre_restored && (self.copies.iter().any(is_by) || self.kept.iter().any(is_in))
    }
}

/// The first change that took effect twice.
pub(crate) fn applied_twice(
    centre: &Connection,
    may_repeat: &MayRepeat,
    centre_restored: bool,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT \"table\", key, text, count(*) FROM audit WHERE operation <> 'delete'
               GROUP BY 1, 2, 3 HAVING count(*) > 1";
    let mut statement = centre.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (table, key, text, count): (String, i64, String, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        if !may_repeat.has(&text, centre_restored) {
            return Ok(Some(format!(
                "I1: {table} {key} {text:?} took effect {count} times"
            )));
        }
    }
    Ok(None)
}
