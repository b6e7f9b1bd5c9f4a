//! I2: nobody's change is overwritten by somebody who had not seen it.
//!
//! A remote that changes a row knows what it changes. If the centre's row is another by then,
//! that is a conflict, and not for the remote to decide.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::contests::evidence;
use super::{OperatorWrites, has_table, is_by, may_overwrite};
use crate::besides::{self, Besides, FIELDS};
use crate::office::is_eased;
use crate::tables::EDITED;

/// Whether this is what a handler has made of a remote's own request: what the remote changes of it
/// before it has heard goes on from there.
fn is_own_eased(table: &str, text: &str, name: &str) -> bool {
    table == "request" && is_eased(text) && is_by(text, &[name.to_owned()])
}

/// Every text that has been in a remote's tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenTexts(BTreeSet<String>);

impl SeenTexts {
    /// Looks at the tables as they are.
    pub(crate) fn look(&mut self, remote: &Connection) -> rusqlite::Result<()> {
        let edited = EDITED.iter().map(|it| (it.name, it.text));
        let besides = besides::TABLES.iter().flat_map(|it| match it.name {
            "form" => FIELDS.map(|field| (it.name, field)).to_vec(),
            _ => vec![(it.name, it.text)],
        });
        for (table, text) in edited.chain(besides) {
            if !has_table(remote, table)? {
                continue;
            }
            let sql = format!("SELECT {text} FROM {table}");
            let mut statement = remote.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let text = row.get_ref(0)?.as_str()?;
                if !self.0.contains(text) {
                    self.0.insert(text.to_owned());
                }
            }
        }
        Ok(())
    }

    /// It need not have seen these.
    pub(crate) fn add(&mut self, texts: Vec<String>) {
        self.0.extend(texts);
    }

    /// Looks in the centre for a row of which the remote overwrote what it had not seen.
    pub(crate) fn overwritten(
        &self,
        centre: &Connection,
        name: &str,
        besides: Besides,
        settled: &OperatorWrites,
    ) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT now.\"table\", now.key, now.text, before.text FROM audit AS now
                   JOIN audit AS before ON before.at = (
                       SELECT max(at) FROM audit WHERE \"table\" = now.\"table\"
                       AND key = now.key AND at < now.at)
                   WHERE now.text LIKE '% ' || ?1 || ' %' AND now.operation = 'update'
                   AND before.operation <> 'delete'";
        let mut statement = centre.prepare_cached(sql)?;
        let mut rows = statement.query([name])?;
        while let Some(row) = rows.next()? {
            let before: String = row.get(3)?;
            if !self.0.contains(&before) {
                let (table, key, text): (String, Value, String) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                // Somebody else has chosen, or the table is one where its row may win.
                if settled.has(&text)
                    || may_overwrite(besides, &table)
                    || is_own_eased(&table, &before, name)
                {
                    continue;
                }
                return Ok(Some(format!(
                    "I2: {text:?} of {name} took the place of {before:?} in {table} {key:?}, \
                     which {name} had never seen{}",
                    evidence(centre, &table, &key)?
                )));
            }
        }
        Ok(None)
    }
}
