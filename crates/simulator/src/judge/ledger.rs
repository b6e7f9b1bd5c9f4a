//! I2: every committed local change is in the centre, or pending, or refused.
//!
//! An independent ledger: it knows what the application committed, and looks for each
//! change where it may be. A later change of the same row takes an earlier one's place.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension};

use super::open_change::OpenChange;
use super::parties::{ChangePlace, Parties, find};
use super::{is_by, is_untracked};
use crate::application::CommittedRow;
use crate::tables::EDITED;

/// What the application of a remote committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// What is not known to be decided.
    open: BTreeMap<(usize, i64), OpenChange>,
    /// What took effect, in a centre that may be restored to before that.
    closed: BTreeMap<(usize, i64), OpenChange>,
    /// Rows that were brought along to be adopted, of which perhaps nobody else knows.
    adopted: BTreeSet<(usize, i64)>,
    /// What its remote was told is refused.
    refused: OutboxState,
    /// What a file was told that was since replaced by an older copy of itself.
    told_before: OutboxState,
    /// What was pending when it was last looked for.
    pending: BTreeSet<String>,
}

/// Rows, and what their changes made of them.
type OutboxState = BTreeSet<((usize, i64), Option<String>)>;

impl Ledger {
    /// A transaction of the application was committed.
    pub(crate) fn committed(
        &mut self,
        touched: &[CommittedRow],
        since: i64,
        remote: &Connection,
    ) -> rusqlite::Result<()> {
        for change in touched {
            let row = (change.table, change.key);
            let untracked = is_untracked(remote, EDITED[row.0].name)?;
            self.closed.remove(&row);
            let was_open = self.open.get(&row);
            let is_new = was_open.map_or_else(
                || change.inserted || self.adopted.contains(&row),
                |open| open.is_new,
            );
            let before = was_open.and_then(|open| open.text.clone());
            if change.text.is_none() && is_new {
                // Nobody may ever have heard of the row.
                self.open.remove(&row);
                continue;
            }
            let deleted = was_open.and_then(|open| match open.text {
                None => open.deleted.or(Some(open.since)),
                Some(_) => open.deleted,
            });
            let open = OpenChange {
                before: before.filter(|_| change.text.is_none()),
                text: change.text.clone(),
                is_new,
                since: deleted.filter(|_| change.text.is_none()).unwrap_or(since),
                deleted,
                pre_image: None,
                untracked: change.before.clone().filter(|_| untracked),
            };
            self.open.insert(row, open);
        }
        Ok(())
    }

    /// These rows were brought along, and are in no centre that is known.
    pub(crate) fn adopted(&mut self, rows: Vec<(usize, i64)>) {
        self.adopted.extend(rows);
    }

    /// The centre was restored. What it has forgotten must come back if the remote gives it back.
    pub(crate) fn reopen(&mut self, gives_back: bool) {
        let closed = std::mem::take(&mut self.closed);
        if gives_back {
            self.open.extend(closed);
        }
    }

    /// The centre was restored, and has forgotten what was not kept. It is given the rows as they are
    /// in the remote's file, or these are told: what others have made of them since is not the remote's any more,
    /// and who has is told by the text where a tool has taken the triggers. `authors`: who writes
    /// on the remote.
    pub(crate) fn yield_to_others(
        &mut self,
        remote: &Connection,
        authors: &[String],
    ) -> rusqlite::Result<()> {
        let mut superseded = Vec::new();
        for (&row, open) in self.open.iter().chain(&self.closed) {
            if is_superseded(remote, authors, row, open)? {
                superseded.push(row);
            }
        }
        for row in superseded {
            self.open.remove(&row);
            self.closed.remove(&row);
        }
        Ok(())
    }

    /// The remote's file is restored to when `copy` was its ledger. What it forgets of having
    /// been told cannot be told again by a centre that is restored as well, and was given the
    /// rest of that upload back: a known limit.
    pub(crate) fn restore(&mut self, copy: Ledger) {
        let forgotten = std::mem::replace(self, copy);
        self.told_before.extend(forgotten.told_before);
        self.told_before.extend(forgotten.refused);
    }

    /// Looks for every change; those that are decided are closed.
    pub(crate) fn check(&mut self, parties: &Parties<'_>) -> rusqlite::Result<Option<String>> {
        let (mut took_effect, mut decided) = (Vec::new(), Vec::new());
        self.pending.clear();
        for (&row, open) in &mut self.open {
            match parties.place(row, open)? {
                ChangePlace::Pending => {
                    if let Some(found) = parties.overwritten(row, open)? {
                        return Ok(Some(found));
                    }
                    self.pending.extend(open.text.clone());
                    self.pending.extend(parties.earlier_texts(row)?);
                    if open.text.is_none() {
                        open.pre_image = parties.pre_image(row)?;
                    }
                }
                // It is looked for again until somebody has decided. What became of it may have come
                // late, from the centre as it was: out of that row nobody can make it again.
                ChangePlace::GivenBack => {
                    if let Some(authors) = parties.gaps_of
                        && is_superseded(parties.remote, authors, row, open)?
                    {
                        decided.push(row);
                    }
                }
                ChangePlace::Untracked => {
                    // What won over an earlier change of the row takes the place of a delete that
                    // nobody recorded: a known limit. And what others had deleted stays gone here
                    // when a restored centre has it again.
                    let may_be_gone = parties.centre_restored && !parties.is_here(row)?;
                    if open.text.is_some()
                        && !may_be_gone
                        && let Some(found) = parties.overwritten(row, open)?
                    {
                        return Ok(Some(found));
                    }
                    self.pending.extend(open.text.clone());
                }
                ChangePlace::Refused => {
                    self.refused.insert((row, open.text.clone()));
                }
                ChangePlace::TookEffect => took_effect.push(row),
                ChangePlace::Decided => decided.push(row),
                ChangePlace::Nowhere
                    if parties.centre_restored
                        && self.told_before.contains(&(row, open.text.clone())) =>
                {
                    decided.push(row);
                }
                ChangePlace::Nowhere => {
                    let (table, key) = (EDITED[row.0].name, row.1);
                    return Ok(Some(format!(
                        "I2: the change of {table} {key} to {:?} is nowhere\n{}",
                        open.text,
                        parties.evidence(row)?
                    )));
                }
            }
        }
        for row in took_effect {
            self.closed.extend(self.open.remove_entry(&row));
        }
        for row in decided {
            self.open.remove(&row);
        }
        Ok(None)
    }

    /// What was pending when it was last looked for.
    pub(crate) fn pending(&self) -> impl Iterator<Item = String> {
        self.pending.iter().cloned()
    }
}

/// Whether others have made something else of a row, which nothing here changes any more.
/// `authors`: who writes on the remote.
fn is_superseded(
    remote: &Connection,
    authors: &[String],
    row: (usize, i64),
    open: &OpenChange,
) -> rusqlite::Result<bool> {
    let (table, key) = find(row);
    let (name, column, text) = (table.name, table.key(), table.text);
    let sql = format!("SELECT 1 FROM tidewater_change_{name} WHERE key_{column} = ?1");
    let is_changed = remote.prepare_cached(&sql)?.exists([&key])?;
    let sql = format!("SELECT {text} FROM {name} WHERE {column} = ?1");
    let here: Option<Option<String>> = remote
        .prepare_cached(&sql)?
        .query_row([&key], |row| row.get(0))
        .optional()?;
    let here = here.flatten();
    let may_be_own = here.as_ref().is_none_or(|text| is_by(text, authors));
    let is_own = is_changed || may_be_own && is_untracked(remote, name)?;
    Ok(!is_own && here != open.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A remote whose change of a product is acknowledged, and in no centre.
    fn remote() -> Connection {
        let remote = Connection::open_in_memory().unwrap();
        let sql = "CREATE TABLE tidewater_state (remote_id);
                   INSERT INTO tidewater_state VALUES (x'07');
                   CREATE TABLE tidewater_subscription (sequence, upload_id);
                   INSERT INTO tidewater_subscription VALUES (1, x'01');
                   CREATE TABLE tidewater_kept (giving, remote_id, sequence, upload_id);
                   INSERT INTO tidewater_kept VALUES (0, NULL, 1, x'01');
                   CREATE TABLE tidewater_refused (table_name, key, operation, row_values);
                   CREATE TABLE tidewater_untracked (table_name);
                   CREATE TABLE product (product_id, code, name);
                   CREATE TRIGGER tidewater_insert_product INSERT ON product BEGIN SELECT 1; END;
                   CREATE TRIGGER tidewater_update_product UPDATE ON product BEGIN SELECT 1; END;
                   CREATE TRIGGER tidewater_rekey_product UPDATE ON product BEGIN SELECT 1; END;
                   CREATE TRIGGER tidewater_delete_product DELETE ON product BEGIN SELECT 1; END;
                   CREATE TABLE tidewater_change_product (key_product_id, generation);
                   CREATE TABLE tidewater_rekeyed_product (generation, old_product_id,
                       new_product_id);";
        remote.execute_batch(sql).unwrap();
        remote
    }

    fn centre() -> Connection {
        let centre = Connection::open_in_memory().unwrap();
        let sql = "CREATE TABLE tidewater_centre_subscription (remote_id, sequence, upload_id);
                   INSERT INTO tidewater_centre_subscription VALUES (x'07', 0, NULL);
                   CREATE TABLE tidewater_centre_conflict (table_name, row_key, operation, uploaded);
                   CREATE TABLE tidewater_centre_refused (table_name, row_key, operation, uploaded);
                   CREATE TABLE tidewater_centre_settled_refusal (table_name, row_key, operation,
                       uploaded, settled_as);
                   CREATE TABLE product (product_id, code, name);
                   CREATE TABLE audit (at, \"table\", operation, key, text);";
        centre.execute_batch(sql).unwrap();
        centre
    }

    fn change_of_product_4() -> CommittedRow {
        CommittedRow {
            table: EDITED.iter().position(|it| it.name == "product").unwrap(),
            key: 4,
            text: Some("mine".into()),
            inserted: true,
            before: None,
        }
    }

    #[test]
    fn what_took_effect_must_come_back_after_the_centre_was_restored() {
        let (remote, centre) = (remote(), centre());
        let parties = Parties {
            remote: &remote,
            centre: &centre,
            centre_restored: true,
            copied: false,
            rewriters: Vec::new(),
            is_followed: true,
            gaps_of: None,
        };
        let run = |sql: &str| centre.execute_batch(sql).unwrap();
        let acknowledge =
            "UPDATE tidewater_centre_subscription SET sequence = 1, upload_id = x'01';";
        let take_effect = "INSERT INTO audit VALUES (1, 'product', 'insert', 4, 'mine');";
        for (gives_back, is_lost) in [(false, false), (true, true)] {
            let mut ledger = Ledger::default();
            ledger
                .committed(&[change_of_product_4()], 0, &remote)
                .unwrap();
            run(acknowledge);
            run(take_effect);
            assert_eq!(ledger.check(&parties).unwrap(), None);
            // Restored.
            run("DELETE FROM audit; UPDATE tidewater_centre_subscription SET sequence = 0");
            ledger.reopen(gives_back);
            assert_eq!(ledger.check(&parties).unwrap(), None);
            // Given back, with or without the change.
            run(acknowledge);
            assert_eq!(ledger.check(&parties).unwrap().is_some(), is_lost);
            run(take_effect);
            assert_eq!(ledger.check(&parties).unwrap(), None);
        }
    }

    #[test]
    fn a_refusal_may_be_forgotten_where_file_and_centre_were_restored() {
        let (remote, centre) = (remote(), centre());
        let run = |sql: &str| remote.execute_batch(sql).unwrap();
        let parties = Parties {
            remote: &remote,
            centre: &centre,
            centre_restored: true,
            copied: false,
            rewriters: Vec::new(),
            is_followed: true,
            gaps_of: None,
        };
        for was_told in [true, false] {
            let mut ledger = Ledger::default();
            ledger
                .committed(&[change_of_product_4()], 0, &remote)
                .unwrap();
            let copy = ledger.clone();
            if was_told {
                run("INSERT INTO tidewater_refused VALUES ('product', '[4]', 'insert', '{}')");
            }
            assert_eq!(ledger.check(&parties).unwrap(), None);
            // The file forgets, and what it gives back is done with.
            ledger.restore(copy);
            run("DELETE FROM tidewater_refused;
                 UPDATE tidewater_subscription SET sequence = 0");
            assert_eq!(ledger.check(&parties).unwrap().is_none(), was_told);
            run("UPDATE tidewater_subscription SET sequence = 1");
        }
    }

    #[test]
    fn what_a_restored_centre_forgot_is_somewhere_only_until_it_was_given_back() {
        let (remote, centre) = (remote(), centre());
        let mut ledger = Ledger::default();
        ledger
            .committed(&[change_of_product_4()], 0, &remote)
            .unwrap();
        let mut is_lost = |centre_restored| {
            let parties = Parties {
                remote: &remote,
                centre: &centre,
                centre_restored,
                copied: false,
                rewriters: Vec::new(),
                is_followed: true,
                gaps_of: None,
            };
            let found = ledger.check(&parties).unwrap();
            assert!(found.iter().all(|it| it.contains("nowhere")), "{found:?}");
            let forgotten = parties.forgotten_at_rest().unwrap();
            assert!(found.is_none() || forgotten.is_none());
            found.is_some()
        };
        // A centre that acknowledges what it has not taken.
        assert!(is_lost(false));
        // The acknowledgement came late; then the remote has heard of the restored centre.
        assert!(!is_lost(true));
        let giving = "UPDATE tidewater_subscription SET sequence = 0, upload_id = NULL;
                      UPDATE tidewater_kept SET giving = 1";
        remote.execute_batch(giving).unwrap();
        assert!(!is_lost(true));
        // It is over, and the change did not come.
        let again = "UPDATE tidewater_subscription SET sequence = 1, upload_id = x'01'";
        let there = again.replace("tidewater_subscription", "tidewater_centre_subscription");
        centre.execute_batch(&there).unwrap();
        remote.execute_batch(again).unwrap();
        remote
            .execute_batch("UPDATE tidewater_kept SET giving = 0")
            .unwrap();
        assert!(is_lost(true));
        // It may have gone up under the id that the remote had before.
        let kept = "INSERT INTO tidewater_kept VALUES (0, x'06', 5, x'03')";
        remote.execute_batch(kept).unwrap();
        assert!(!is_lost(true));
        let has_it = "INSERT INTO tidewater_centre_subscription VALUES (x'06', 5, x'03')";
        centre.execute_batch(has_it).unwrap();
        assert!(is_lost(true));
        // Another upload of that number is not this one.
        centre
            .execute_batch("UPDATE tidewater_centre_subscription SET upload_id = x'02'")
            .unwrap();
        assert!(!is_lost(true));
    }
}
