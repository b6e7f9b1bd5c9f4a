//! What became of every committed change: each has met one fate, once.

use std::collections::{HashMap, HashSet};

use super::centre::LostChange;
use super::{Judge, Witness};
use crate::ledger::{Edit, Ledger};
use crate::world::JudgedTable;

/// How often each thing was written down in the centre.
#[derive(Default)]
struct Records {
    applied: HashMap<String, u64>,
    deleted: HashSet<(JudgedTable, i64)>,
    conflicts: HashMap<String, u64>,
    conflicting_deletes: HashSet<(Vec<u8>, JudgedTable, i64)>,
    refused: HashSet<String>,
    refused_deletes: HashSet<(Vec<u8>, JudgedTable, i64)>,
    /// Refused ones that a later change of their row, taken from the remote, has settled.
    settled_deletes: HashSet<(Vec<u8>, JudgedTable, i64)>,
    /// Rows that are there at the end.
    present: HashSet<(JudgedTable, i64)>,
}

impl Judge<'_> {
    /// Judges the changes of all applications, while what was refused still waits on the
    /// devices.
    pub(crate) fn judge_fates(
        &mut self,
        witnesses: &[Witness],
        offices: &[Ledger],
    ) -> anyhow::Result<()> {
        let records = self.records()?;
        let mut committed: HashSet<String> = HashSet::from(["first".to_owned()]);
        for witness in witnesses {
            let edits = self.committed_on(witness)?;
            let refused_there = refused_on(witness)?;
            self.judge_device(witness, &edits, &records, &refused_there);
            committed.extend(edits.into_iter().map(|it| it.tag));
        }
        for office in offices {
            let edits = self.committed_in_centre(office)?;
            for edit in edits.iter().filter(|it| !it.is_delete) {
                self.checked.of_centre += 1;
                if records.applied.get(&edit.tag) != Some(&1) {
                    self.finding(format!("the centre's own {edit:?} is not there once"));
                }
            }
            committed.extend(edits.into_iter().map(|it| it.tag));
        }
        for tag in records
            .applied
            .keys()
            .filter(|tag| !committed.contains(*tag))
        {
            self.finding(format!("{tag} is in the centre, and nobody committed it"));
        }
        Ok(())
    }

    fn records(&self) -> anyhow::Result<Records> {
        let mut applied: HashMap<String, u64> = HashMap::new();
        let mut deleted = HashSet::new();
        let mut inserted = HashSet::new();
        for it in self.centre.audit()? {
            let Some(table) = JudgedTable::named(&it.table) else {
                continue;
            };
            let row = (table, it.key);
            match it.operation.as_str() {
                "delete" if !deleted.insert(row) => {
                    self.finding(format!("{row:?} was deleted twice"));
                }
                "delete" => {}
                operation => {
                    if operation == "insert" && !inserted.insert(row) {
                        self.finding(format!("{row:?} was inserted twice, last as {}", it.tag));
                    }
                    *applied.entry(it.tag).or_default() += 1;
                }
            }
        }
        let mut present = HashSet::new();
        for table in JudgedTable::ALL {
            present.extend(self.centre.rows(table)?.into_keys().map(|key| (table, key)));
        }
        let (conflicts, conflicting_deletes) = split(self.centre.conflicts()?);
        let (refused, refused_deletes) = split(self.centre.refused()?);
        let (_, settled_deletes) = split(self.centre.refused_and_taken()?);
        Ok(Records {
            applied,
            deleted,
            conflicts,
            conflicting_deletes,
            refused: refused.into_keys().collect(),
            refused_deletes,
            settled_deletes,
            present,
        })
    }

    /// What a device's application committed; the file's journal decides what nobody answered,
    /// and has everything else.
    fn committed_on(&self, witness: &Witness) -> anyhow::Result<Vec<Edit>> {
        let connection = witness.device.open()?;
        let mut statement = connection.prepare("SELECT tag FROM app_journal")?;
        let journal = statement
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<HashSet<String>>>()?;
        Ok(self.committed(&witness.device.name, &witness.ledger, &journal))
    }

    fn committed_in_centre(&self, ledger: &Ledger) -> anyhow::Result<Vec<Edit>> {
        let journal = self.centre.texts("SELECT tag FROM journal")?;
        Ok(self.committed("the centre", ledger, &journal.into_iter().collect()))
    }

    fn committed(&self, who: &str, ledger: &Ledger, journal: &HashSet<String>) -> Vec<Edit> {
        for edit in ledger
            .committed
            .iter()
            .filter(|it| !journal.contains(&it.tag))
        {
            self.finding(format!("{who} has lost a committed transaction: {edit:?}"));
        }
        let doubtful = ledger
            .doubtful
            .iter()
            .filter(|it| journal.contains(&it.tag));
        ledger.committed.iter().chain(doubtful).cloned().collect()
    }

    fn judge_device(
        &mut self,
        witness: &Witness,
        edits: &[Edit],
        records: &Records,
        refused_there: &HashSet<(JudgedTable, i64)>,
    ) {
        let mut last = HashMap::new();
        for (index, edit) in edits.iter().enumerate() {
            last.insert((edit.table, edit.key), index);
        }
        for (index, edit) in edits.iter().enumerate() {
            let row = (edit.table, edit.key);
            let there = There {
                remote: witness.device.identity(),
                is_refused: refused_there.contains(&row),
                is_last: last.get(&row) == Some(&index),
            };
            match records.fate(edit, &there) {
                Ok(Fate::InCentre) => self.checked.in_centre += 1,
                Ok(Fate::Conflict) => self.checked.conflicts += 1,
                Ok(Fate::Refused) => self.checked.refused += 1,
                Ok(Fate::Overwritten) => self.checked.overwritten += 1,
                Err(what) => self.finding(format!("{} {edit:?}: {what}", witness.device.name)),
            }
        }
    }
}

/// What became of a device's change.
#[derive(Debug, PartialEq)]
enum Fate {
    InCentre,
    Conflict,
    Refused,
    /// By its own device, before it went up.
    Overwritten,
}

/// What is known of a change where it was made.
struct There<'a> {
    remote: &'a [u8],
    /// The remote holds its row's change as refused.
    is_refused: bool,
    /// The device has not changed the row since.
    is_last: bool,
}

impl Records {
    fn fate(&self, edit: &Edit, there: &There<'_>) -> Result<Fate, String> {
        let fate = match edit.is_delete {
            true => self.fate_of_delete(edit, there),
            false => self.fate_of_write(edit, there),
        }?;
        if edit.is_own && fate == Fate::Conflict {
            return Err("a conflict, though nobody else changes the row".into());
        }
        Ok(fate)
    }

    fn fate_of_write(&self, edit: &Edit, there: &There<'_>) -> Result<Fate, String> {
        let count = |of: &HashMap<String, u64>| of.get(&edit.tag).copied().unwrap_or_default();
        let refused_in_centre = self.refused.contains(&edit.tag);
        match (count(&self.applied), count(&self.conflicts)) {
            (1, 0) => Ok(Fate::InCentre),
            (0, 1) => Ok(Fate::Conflict),
            (0, 0) if !there.is_last => Ok(Fate::Overwritten),
            (0, 0) if refused_in_centre && there.is_refused => Ok(Fate::Refused),
            (applied, conflicts) => Err(format!(
                "applied {applied} times, {conflicts} conflicts, refused in the centre: \
                 {refused_in_centre}, on the remote: {}",
                there.is_refused
            )),
        }
    }

    /// Keys are never used again: what was deleted is gone, unless the delete lost.
    fn fate_of_delete(&self, edit: &Edit, there: &There<'_>) -> Result<Fate, String> {
        let row = (edit.table, edit.key);
        let of_remote = (there.remote.to_vec(), edit.table, edit.key);
        if !self.present.contains(&row) {
            return Ok(match self.deleted.contains(&row) {
                true => Fate::InCentre,
                // It never was there.
                false => Fate::Overwritten,
            });
        }
        // Who changed the row once more had it back: the refusal is not listed any longer, and is
        // settled where that change was taken.
        let had_it_back = !there.is_last;
        let is_refused = (there.is_refused || had_it_back)
            && self.refused_deletes.contains(&of_remote)
            || had_it_back && self.settled_deletes.contains(&of_remote);
        if self.conflicting_deletes.contains(&of_remote) {
            Ok(Fate::Conflict)
        } else if is_refused {
            Ok(Fate::Refused)
        } else {
            Err(format!(
                "the row is in the centre, and nobody was told of a conflict; refused on the \
                 remote: {}, changed there since: {had_it_back}",
                there.is_refused
            ))
        }
    }
}

type Deletes = HashSet<(Vec<u8>, JudgedTable, i64)>;

/// How often each tag occurs, and the deletes, which have none.
fn split(all: Vec<LostChange>) -> (HashMap<String, u64>, Deletes) {
    let mut tags: HashMap<String, u64> = HashMap::new();
    let mut deletes = HashSet::new();
    for it in all {
        if let (true, Some(table)) = (it.is_delete, JudgedTable::named(&it.table)) {
            deletes.insert((it.remote, table, it.key));
        } else if let Some(tag) = it.tag {
            *tags.entry(tag).or_default() += 1;
        }
    }
    (tags, deletes)
}

/// The rows whose changes the remote knows to be refused.
fn refused_on(witness: &Witness) -> anyhow::Result<HashSet<(JudgedTable, i64)>> {
    let connection = witness.device.open()?;
    let mut statement = connection.prepare("SELECT table_name, key FROM tidewater_refused")?;
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let mut refused = HashSet::new();
    for row in rows {
        let (table, key) = row?;
        let key: Vec<i64> = serde_json::from_str(&key)?;
        if let (Some(table), Some(key)) = (JudgedTable::named(&table), key.first()) {
            refused.insert((table, *key));
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests;
