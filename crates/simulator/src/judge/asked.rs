//! I5: a remote holds of what is asked for only that for which it asked.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::{has_table, is_by};
use crate::tables::{EDITED, HoldingRule};

/// What a remote may hold for having asked for it, as of its last download.
///
/// It asks when a sync begins, and holds what it asked for when a download is applied. So what
/// was asked for since the last sync that is known to have applied one may have come, and what
/// that one asked for may still be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedRegions {
    of: BTreeSet<String>,
    /// How often something else was asked for.
    changes: u64,
    /// How often a sync began or ended.
    turns: u64,
    /// Syncs that are under way.
    syncs: u64,
}

/// A sync, and what was so when it began.
pub(crate) struct AskedBy {
    value: Option<String>,
    changes: u64,
    /// `None` if another one was under way.
    turns: Option<u64>,
}

impl AskedRegions {
    /// Something else is asked for.
    pub(crate) fn change(&mut self, value: Option<String>) {
        self.of.extend(value);
        self.changes += 1;
    }

    /// A sync begins, and this is asked for.
    pub(crate) fn begins(&mut self, value: Option<String>) -> AskedBy {
        self.of.extend(value.clone());
        self.turns += 1;
        self.syncs += 1;
        AskedBy {
            value,
            changes: self.changes,
            turns: (self.syncs == 1).then_some(self.turns),
        }
    }

    /// It ends; `applied`: a download has been. Whether something else was asked for meanwhile.
    pub(crate) fn ends(&mut self, by: AskedBy, applied: bool) -> bool {
        let is_changed = by.changes != self.changes;
        if applied && !is_changed && by.turns == Some(self.turns) {
            self.of = by.value.into_iter().collect();
        }
        self.turns += 1;
        self.syncs -= 1;
        is_changed
    }

    /// The first row for which nobody asked, but for what `authors` wrote themselves.
    pub(crate) fn not_asked_for(
        &self,
        remote: &Connection,
        authors: &[String],
    ) -> rusqlite::Result<Option<String>> {
        for table in EDITED.iter().filter(|it| it.held == HoldingRule::Asked) {
            let (name, key, text) = (table.name, table.key(), table.text);
            if !has_table(remote, name)? {
                continue;
            }
            let sql = format!("SELECT {key}, CAST(region AS TEXT), {text} FROM {name}");
            let mut statement = remote.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (key, region, text): (Value, String, String) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                if !self.of.contains(&region) && !is_by(&text, authors) {
                    return Ok(Some(format!(
                        "I5: {authors:?} holds {name} {key:?} {text:?} of region {region}, but \
                         asked for {:?}",
                        self.of
                    )));
                }
            }
        }
        Ok(None)
    }
}

/// Whether changes are pending in what is asked for.
pub(crate) fn is_pending_where_asked(remote: &Connection) -> rusqlite::Result<bool> {
    for table in EDITED.iter().filter(|it| it.held == HoldingRule::Asked) {
        let change = format!("tidewater_change_{}", table.name);
        let sql = format!("SELECT 1 FROM {change} WHERE generation > 0");
        if has_table(remote, &change)? && remote.prepare_cached(&sql)?.exists([])? {
            return Ok(true);
        }
    }
    Ok(false)
}
