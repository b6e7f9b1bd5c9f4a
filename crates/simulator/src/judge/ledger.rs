//! I2: every committed local change is in the centre, or pending, or refused.
//!
//! An independent ledger: it knows what the application committed, and looks for each
//! change where it may be. A later change of the same row takes an earlier one's place.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use super::{is_by, is_untracked};
use crate::application::Touched;
use crate::scenario::{ALL, EDITED, Table};

/// The last change of a row.
#[derive(Clone, Debug)]
struct Open {
    text: Option<String>,
    /// What a row had here that is gone: where that did not reach the centre, nothing does.
    before: Option<String>,
    /// The row was made here, and perhaps nobody else knows of it.
    is_new: bool,
    /// How far the centre's audit was by then.
    since: i64,
    /// How far it was when the row was first deleted, though it has been made again since: what
    /// is deleted once more need not be gone once more.
    deleted: Option<i64>,
    /// What a deleted row was when the remote last had it from the centre.
    pre_image: Option<String>,
    /// What a row was that was deleted while nothing tracked its table.
    untracked: Option<String>,
}

/// What the application of a remote committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// What is not known to be decided.
    open: BTreeMap<(usize, i64), Open>,
    /// What took effect, in a centre that may be restored to before that.
    closed: BTreeMap<(usize, i64), Open>,
    /// What its remote was told is refused.
    refused: Told,
    /// What a file was told that was since replaced by an older copy of itself.
    told_before: Told,
    /// What was pending when it was last looked for.
    pending: BTreeSet<String>,
}

/// Rows, and what their changes made of them.
type Told = BTreeSet<((usize, i64), Option<String>)>;

/// Where changes may be.
pub(crate) struct Parties<'a> {
    pub(crate) remote: &'a Connection,
    pub(crate) centre: &'a Connection,
    /// Whether the centre is what it was before, or has been.
    pub(crate) centre_restored: bool,
    /// Whether there is another copy of the remote's file, which may go on under its identity:
    /// then a restored centre may not be able to know what this one was told.
    pub(crate) copied: bool,
    /// Who may have made what is in both copies of the file, or in one that is restored, into
    /// something else before it went up, while nothing tracked the table of one.
    pub(crate) rewriters: Vec<String>,
    /// Whether the centre always knows what happened since the remote's last download.
    pub(crate) is_followed: bool,
    /// Who writes on the remote, if a restored centre may be given rows as they are.
    pub(crate) gaps_of: Option<&'a [String]>,
}

/// Where a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pending,
    /// It goes up again when the row is changed again.
    Refused,
    TookEffect,
    /// Lost or refused, or nobody can tell.
    Decided,
    /// The centre that acknowledged it is gone; it may be in what the remote gives back.
    GivenBack,
    /// A tool has rebuilt the table, and nobody has compared it since.
    Untracked,
    Nowhere,
}

impl Ledger {
    /// A transaction of the application was committed.
    pub(crate) fn committed(
        &mut self,
        touched: &[Touched],
        since: i64,
        remote: &Connection,
    ) -> rusqlite::Result<()> {
        for change in touched {
            let row = (change.table, change.key);
            let untracked = is_untracked(remote, EDITED[row.0].name)?;
            self.closed.remove(&row);
            let was_open = self.open.get(&row);
            let was_new = was_open.map(|open| open.is_new);
            let before = was_open.and_then(|open| open.text.clone());
            if change.text.is_none() && was_new == Some(true) {
                // Nobody may ever have heard of the row.
                self.open.remove(&row);
                continue;
            }
            let deleted = was_open.and_then(|open| match open.text {
                None => open.deleted.or(Some(open.since)),
                Some(_) => open.deleted,
            });
            let open = Open {
                before: before.filter(|_| change.text.is_none()),
                text: change.text.clone(),
                is_new: was_new.unwrap_or(change.inserted),
                since: deleted.filter(|_| change.text.is_none()).unwrap_or(since),
                deleted,
                pre_image: None,
                untracked: change.before.clone().filter(|_| untracked),
            };
            self.open.insert(row, open);
        }
        Ok(())
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
                Place::Pending => {
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
                Place::GivenBack => {
                    if let Some(authors) = parties.gaps_of
                        && is_superseded(parties.remote, authors, row, open)?
                    {
                        decided.push(row);
                    }
                }
                Place::Untracked => {
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
                Place::Refused => {
                    self.refused.insert((row, open.text.clone()));
                }
                Place::TookEffect => took_effect.push(row),
                Place::Decided => decided.push(row),
                Place::Nowhere
                    if parties.centre_restored
                        && self.told_before.contains(&(row, open.text.clone())) =>
                {
                    decided.push(row);
                }
                Place::Nowhere => {
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
    open: &Open,
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

/// A row's table, and its key there.
fn find((table, number): (usize, i64)) -> (&'static Table, Value) {
    let table = &EDITED[table];
    (table, table.key_is.value(number))
}

impl Parties<'_> {
    fn place(&self, row: (usize, i64), open: &Open) -> rusqlite::Result<Place> {
        if self.is_pending(row)? {
            return Ok(Place::Pending);
        }
        if self.is_refused_here(row)? {
            return Ok(Place::Refused);
        }
        let mut texts = vec![&open.text];
        texts.extend(open.before.is_some().then_some(&open.before));
        for text in texts {
            if self.lost_or_refused(row, text.as_ref())? {
                return Ok(Place::Decided);
            }
        }
        if self.took_effect(row, open)? {
            return Ok(Place::TookEffect);
        }
        if self.gives_back()? {
            return Ok(Place::GivenBack);
        }
        if is_untracked(self.remote, EDITED[row.0].name)? {
            return Ok(Place::Untracked);
        }
        // Nobody can tell a row that was deleted here from one that comes into scope or was
        // changed there; only where it is as it was, it has to go.
        if let Some(had) = &open.untracked
            && (!self.is_followed
                || EDITED[row.0].scope != ALL
                || self.central_text(row)?.as_ref() != Some(had))
        {
            return Ok(Place::Decided);
        }
        // A restored centre has forgotten the delete, which was not kept, and the row is in none of
        // the user's partitions: nobody can tell him. If it were, it would be here, and told.
        if self.gaps_of.is_some()
            && self.centre_restored
            && open.text.is_none()
            && !self.is_here(row)?
        {
            return Ok(Place::Decided);
        }
        // Both copies had it on its way, as one upload; what went up is what one of them then was.
        let is_rewritten = match self.central_text(row)? {
            Some(text) => Some(&text) != open.text.as_ref() && is_by(&text, &self.rewriters),
            // Or nothing, where the one had deleted it.
            None => open.text.is_some() && !self.rewriters.is_empty(),
        };
        if is_rewritten {
            return Ok(Place::Decided);
        }
        // Of a copy nothing is given back: a known limit.
        Ok(match self.copied && self.centre_restored {
            true => Place::Decided,
            false => Place::Nowhere,
        })
    }

    /// Whether the remote knows of an acknowledged upload that the restored centre has
    /// forgotten, or has not given back all of them. The acknowledgement may have been on its
    /// way when the centre was restored: then nobody has seen it decided.
    fn gives_back(&self) -> rusqlite::Result<bool> {
        if !self.centre_restored {
            return Ok(false);
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM tidewater_kept WHERE giving <> 0)";
        if self.remote.query_row(sql, [], |row| row.get(0))? {
            return Ok(true);
        }
        // Also under the ids that the remote had before.
        let sql =
            "SELECT remote_id, sequence, upload_id FROM tidewater_state, tidewater_subscription
                   WHERE sequence > 0
                   UNION SELECT remote_id, max(sequence), upload_id FROM tidewater_kept
                   WHERE remote_id IS NOT NULL GROUP BY remote_id";
        let mut uploads = self.remote.prepare_cached(sql)?;
        let sql = "SELECT 1 FROM tidewater_subscription WHERE remote_id = ?1
                   AND (sequence > ?2 OR sequence = ?2 AND upload_id IS ?3)";
        let mut known = self.centre.prepare_cached(sql)?;
        let mut uploads = uploads.query([])?;
        while let Some(row) = uploads.next()? {
            let (id, sequence, upload_id): (Value, i64, Value) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            if !known.exists(params![id, sequence, upload_id])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When everybody has synced, nothing is left that the centre has forgotten.
    pub(crate) fn forgotten_at_rest(&self) -> rusqlite::Result<Option<String>> {
        let found = "I2: the restored centre has forgotten an upload, and is not given it back";
        Ok(self.gives_back()?.then(|| found.to_owned()))
    }

    /// All that is known of a row, for people.
    fn evidence(&self, row: (usize, i64)) -> rusqlite::Result<String> {
        let (table, key) = find(row);
        let (name, column) = (table.name, table.key());
        let mut evidence = String::new();
        for (place, connection, sql) in [
            (
                "remote row",
                self.remote,
                format!("SELECT * FROM {name} WHERE {column} = ?1"),
            ),
            (
                "remote change",
                self.remote,
                format!("SELECT * FROM tidewater_change_{name} WHERE key_{column} = ?1"),
            ),
            (
                "centre row",
                self.centre,
                format!("SELECT * FROM {name} WHERE {column} = ?1"),
            ),
            (
                "centre audit",
                self.centre,
                format!("SELECT * FROM audit WHERE \"table\" = '{name}' AND key = ?1"),
            ),
            (
                "centre conflict",
                self.centre,
                format!(
                    "SELECT * FROM tidewater_conflict WHERE table_name = '{name}' AND row_key = json_array(?1)"
                ),
            ),
        ] {
            let mut statement = connection.prepare_cached(&sql)?;
            let count = statement.column_count();
            let mut rows = statement.query([&key])?;
            while let Some(row) = rows.next()? {
                let values = (0..count).map(|index| row.get::<_, Value>(index));
                let values: Vec<Value> = values.collect::<rusqlite::Result<_>>()?;
                evidence += &format!("  {place}: {values:?}\n");
            }
        }
        Ok(evidence)
    }

    fn is_here(&self, row: (usize, i64)) -> rusqlite::Result<bool> {
        let (table, key) = find(row);
        let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
        self.remote.prepare_cached(&sql)?.exists([key])
    }

    fn is_pending(&self, row: (usize, i64)) -> rusqlite::Result<bool> {
        let (table, key) = find(row);
        let sql = format!(
            "SELECT 1 FROM tidewater_change_{} WHERE key_{} = ?1 AND generation > 0",
            table.name,
            table.key()
        );
        self.remote.prepare_cached(&sql)?.exists([key])
    }

    /// A pending change has the value that the application gave it.
    fn overwritten(&self, row: (usize, i64), open: &Open) -> rusqlite::Result<Option<String>> {
        let (table, key) = find(row);
        let sql = format!(
            "SELECT {} FROM {} WHERE {} = ?1",
            table.text,
            table.name,
            table.key()
        );
        let mut statement = self.remote.prepare_cached(&sql)?;
        let text: Option<String> = statement.query_row([&key], |row| row.get(0)).optional()?;
        let (name, key) = (table.name, row.1);
        // Where it gave way to the centre's row, that may be pending since, but for a delete.
        if text == open.text || text.is_some() && self.gave_way(row)? {
            return Ok(None);
        }
        Ok(Some(format!(
            "I4: {name} {key} was written as {:?}, is pending, and is {text:?}\n{}",
            open.text,
            self.evidence(row)?
        )))
    }

    /// Whether what the application made of a row nobody tracked is kept among the refused rows.
    fn gave_way(&self, (table, key): (usize, i64)) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2
                   AND code = 'untracked'";
        self.remote
            .prepare_cached(sql)?
            .exists([EDITED[table].name, &EDITED[table].key_is.json(key)])
    }

    /// What a row was that has a pending change.
    fn pre_image(&self, row: (usize, i64)) -> rusqlite::Result<Option<String>> {
        let (table, key) = find(row);
        let (name, text) = (table.name, table.text);
        let sql = format!(
            "SELECT pre_{text} FROM tidewater_change_{name} WHERE key_{} = ?1 AND generation > 0
             ORDER BY generation LIMIT 1",
            table.key()
        );
        let mut statement = self.remote.prepare_cached(&sql)?;
        let found = statement.query_row([key], |row| row.get(0)).optional()?;
        Ok(found.flatten())
    }

    /// What a row with pending changes was before each: of an upload that is on its way, and was
    /// changed since, what it said.
    fn earlier_texts(&self, row: (usize, i64)) -> rusqlite::Result<Vec<String>> {
        let (table, key) = find(row);
        let (name, text) = (table.name, table.text);
        let sql = format!(
            "SELECT pre_{text} FROM tidewater_change_{name} WHERE key_{} = ?1 AND generation > 0
             AND pre_{text} IS NOT NULL",
            table.key()
        );
        let mut statement = self.remote.prepare_cached(&sql)?;
        statement.query_map([key], |row| row.get(0))?.collect()
    }

    fn central_text(&self, row: (usize, i64)) -> rusqlite::Result<Option<String>> {
        let (table, key) = find(row);
        let sql = format!(
            "SELECT {} FROM {} WHERE {} = ?1",
            table.text,
            table.name,
            table.key()
        );
        let mut statement = self.centre.prepare_cached(&sql)?;
        statement.query_row([key], |row| row.get(0)).optional()
    }

    fn took_effect(&self, row: (usize, i64), open: &Open) -> rusqlite::Result<bool> {
        let (table, key) = find(row);
        let Some(text) = &open.text else {
            let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
            let is_there = self.centre.prepare_cached(&sql)?.exists([&key])?;
            // A row that was made anew since then was gone in between; REPLACE tells no trigger.
            let sql = "SELECT 1 FROM audit WHERE key = ?1 AND \"table\" = ?2 AND at > ?3
                       AND operation <> 'update'";
            let mut audit = self.centre.prepare_cached(sql)?;
            return Ok(!is_there || audit.exists(params![key, table.name, open.since])?);
        };
        self.centre
            .prepare_cached(
                "SELECT 1 FROM audit WHERE key = ?1 AND \"table\" = ?2 AND text = ?3
                 AND operation <> 'delete'",
            )?
            .exists(params![key, table.name, text])
    }

    /// Results name the key that a row had before: what was written is found by its text, whatever
    /// the key, and what is gone may have gone by getting another one.
    fn lost_or_refused(
        &self,
        (table, key): (usize, i64),
        text: Option<&String>,
    ) -> rusqlite::Result<bool> {
        let (table, key) = (&EDITED[table], EDITED[table].key_is.json(key));
        let text = text.map(|text| format!("%{text:?}%"));
        let is_gone = format!(
            "row_key = ?2 AND (operation = 'delete' OR operation = 'update'
             AND json_array(uploaded ->> '{}') <> row_key)",
            table.key()
        );
        for told in ["tidewater_conflict", "tidewater_refused"] {
            let sql = format!(
                "SELECT 1 FROM {told} WHERE table_name = ?1
                 AND CASE WHEN ?3 IS NULL THEN {is_gone} ELSE uploaded LIKE ?3 END"
            );
            let mut statement = self.centre.prepare_cached(&sql)?;
            if statement.exists(params![table.name, key, text])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a refusal is shown on the remote, of a row by the key that it had before.
    fn is_refused_here(&self, (table, key): (usize, i64)) -> rusqlite::Result<bool> {
        let (name, key_is) = (EDITED[table].name, EDITED[table].key_is);
        let sql = "SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2";
        let mut refused = self.remote.prepare_cached(sql)?;
        let before = key_before(self.remote, &EDITED[table], key)?;
        for key in [Some(key), before].into_iter().flatten() {
            if refused.exists([name, &key_is.json(key)])? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The key that a row had before a change of it that is not in the centre yet.
pub(super) fn key_before(
    remote: &Connection,
    table: &Table,
    key: i64,
) -> rusqlite::Result<Option<i64>> {
    let (name, column) = (table.name, table.key());
    let sql = format!(
        "SELECT old_{column} FROM tidewater_rekeyed_{name} WHERE new_{column} = ?1
         ORDER BY generation LIMIT 1"
    );
    remote
        .prepare_cached(&sql)?
        .query_row([table.key_is.value(key)], |row| {
            Ok(table.key_is.number(row.get_ref(0)?)?)
        })
        .optional()
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
                   CREATE TABLE tidewater_refused (table_name, key, operation, row);
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
        let sql = "CREATE TABLE tidewater_subscription (remote_id, sequence, upload_id);
                   INSERT INTO tidewater_subscription VALUES (x'07', 0, NULL);
                   CREATE TABLE tidewater_conflict (table_name, row_key, operation, uploaded);
                   CREATE TABLE tidewater_refused (table_name, row_key, operation, uploaded);
                   CREATE TABLE product (product_id, code, name);
                   CREATE TABLE audit (at, \"table\", operation, key, text);";
        centre.execute_batch(sql).unwrap();
        centre
    }

    fn change_of_product_4() -> Touched {
        Touched {
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
        let acknowledge = "UPDATE tidewater_subscription SET sequence = 1, upload_id = x'01';";
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
            run("DELETE FROM audit; UPDATE tidewater_subscription SET sequence = 0");
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
        centre.execute_batch(again).unwrap();
        remote.execute_batch(again).unwrap();
        remote
            .execute_batch("UPDATE tidewater_kept SET giving = 0")
            .unwrap();
        assert!(is_lost(true));
        // It may have gone up under the id that the remote had before.
        let kept = "INSERT INTO tidewater_kept VALUES (0, x'06', 5, x'03')";
        remote.execute_batch(kept).unwrap();
        assert!(!is_lost(true));
        let has_it = "INSERT INTO tidewater_subscription VALUES (x'06', 5, x'03')";
        centre.execute_batch(has_it).unwrap();
        assert!(is_lost(true));
        // Another upload of that number is not this one.
        centre
            .execute_batch("UPDATE tidewater_subscription SET upload_id = x'02'")
            .unwrap();
        assert!(!is_lost(true));
    }
}
