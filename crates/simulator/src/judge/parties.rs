//! Where a change of a remote may be: pending or refused there, in the centre, or told as lost.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use super::open_change::OpenChange;
use super::{is_by, is_untracked};
use crate::tables::{EDITED, HoldingRule, SyncedTable};

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
pub(super) enum ChangePlace {
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

/// A row's table, and its key there.
pub(super) fn find((table, number): (usize, i64)) -> (&'static SyncedTable, Value) {
    let table = &EDITED[table];
    (table, table.key_is.value(number))
}

impl Parties<'_> {
    pub(super) fn place(
        &self,
        row: (usize, i64),
        open: &OpenChange,
    ) -> rusqlite::Result<ChangePlace> {
        if self.is_pending(row)? {
            return Ok(ChangePlace::Pending);
        }
        if self.is_refused_here(row, open.text.as_ref())? {
            return Ok(ChangePlace::Refused);
        }
        let mut texts = vec![&open.text];
        texts.extend(open.before.is_some().then_some(&open.before));
        for text in texts {
            if self.lost_or_refused(row, text.as_ref())? {
                return Ok(ChangePlace::Decided);
            }
        }
        if self.took_effect(row, open)? {
            return Ok(ChangePlace::TookEffect);
        }
        if self.gives_back()? {
            return Ok(ChangePlace::GivenBack);
        }
        if is_untracked(self.remote, EDITED[row.0].name)? {
            return Ok(ChangePlace::Untracked);
        }
        // Nobody can tell a row that was deleted here from one that comes into scope or was
        // changed there; only where it is as it was, it has to go.
        if let Some(had) = &open.untracked
            && (!self.is_followed
                || EDITED[row.0].held != HoldingRule::All
                || text_in(self.centre, row)?.as_ref() != Some(had))
        {
            return Ok(ChangePlace::Decided);
        }
        // A restored centre has forgotten the delete, which was not kept, and the row is in none of
        // the user's partitions: nobody can tell him. If it were, it would be here, and told. Nor is
        // a row given back that has left its window since: a known limit. Nor, if its upload was too
        // large to be kept, one that has left the user's partitions; the remote tells of such uploads.
        if self.gaps_of.is_some()
            && self.centre_restored
            && (open.text.is_none()
                || EDITED[row.0].held == HoldingRule::Recent
                || EDITED[row.0].held != HoldingRule::All && self.tells_of_unkept()?)
            && !self.is_here(row)?
        {
            return Ok(ChangePlace::Decided);
        }
        // Or the row came to the centre with an upload of the remote's own since its last download:
        // a delete that was not kept is taken for somebody else's insert, a known limit.
        if let Some(authors) = self.gaps_of
            && self.centre_restored
            && open.text.is_none()
            && text_in(self.centre, row)?.is_some_and(|text| is_by(&text, authors))
        {
            return Ok(ChangePlace::Decided);
        }
        // Both copies had it on its way, as one upload; what went up is what one of them then was.
        let is_rewritten = match text_in(self.centre, row)? {
            Some(text) => Some(&text) != open.text.as_ref() && is_by(&text, &self.rewriters),
            // Or nothing, where the one had deleted it.
            None => open.text.is_some() && !self.rewriters.is_empty(),
        };
        if is_rewritten {
            return Ok(ChangePlace::Decided);
        }
        // Of a copy nothing is given back: a known limit.
        Ok(match self.copied && self.centre_restored {
            true => ChangePlace::Decided,
            false => ChangePlace::Nowhere,
        })
    }

    /// Whether the remote knows of an acknowledged upload that the restored centre has
    /// forgotten, or has not given back all of them. The acknowledgement may have been on its
    /// way when the centre was restored: then nobody has seen it decided.
    pub(super) fn gives_back(&self) -> rusqlite::Result<bool> {
        if !self.centre_restored {
            return Ok(false);
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM tidewater_kept WHERE giving <> 0)";
        if self
            .remote
            .prepare_cached(sql)?
            .query_row([], |row| row.get(0))?
        {
            return Ok(true);
        }
        // Also under the ids that the remote had before.
        let sql =
            "SELECT remote_id, sequence, upload_id FROM tidewater_state, tidewater_subscription
                   WHERE sequence > 0
                   UNION SELECT remote_id, max(sequence), upload_id FROM tidewater_kept
                   WHERE remote_id IS NOT NULL GROUP BY remote_id";
        let mut uploads = self.remote.prepare_cached(sql)?;
        let sql = "SELECT 1 FROM tidewater_centre_subscription WHERE remote_id = ?1
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
    pub(super) fn evidence(&self, row: (usize, i64)) -> rusqlite::Result<String> {
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
                    "SELECT * FROM tidewater_centre_conflict WHERE table_name = '{name}' AND row_key = json_array(?1)"
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

    /// Whether the remote tells that the centre has forgotten an upload that was too large to be kept.
    fn tells_of_unkept(&self) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM tidewater_refused WHERE reason LIKE '%too large to be kept%'";
        self.remote.prepare_cached(sql)?.exists([])
    }

    pub(super) fn is_here(&self, row: (usize, i64)) -> rusqlite::Result<bool> {
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
    pub(super) fn overwritten(
        &self,
        row: (usize, i64),
        open: &OpenChange,
    ) -> rusqlite::Result<Option<String>> {
        let text = text_in(self.remote, row)?;
        let (name, key) = (EDITED[row.0].name, row.1);
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
    pub(super) fn pre_image(&self, row: (usize, i64)) -> rusqlite::Result<Option<String>> {
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
    pub(super) fn earlier_texts(&self, row: (usize, i64)) -> rusqlite::Result<Vec<String>> {
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

    fn took_effect(&self, row: (usize, i64), open: &OpenChange) -> rusqlite::Result<bool> {
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
        // What was given up, or lost when it was sent again, is listed as that.
        let settled = "(SELECT table_name, row_key, operation, uploaded
                        FROM tidewater_centre_settled_refusal WHERE settled_as <> 'taken')";
        let told = [
            "tidewater_centre_conflict",
            "tidewater_centre_refused",
            settled,
        ];
        for told in told {
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

    /// Whether a refusal is shown on the remote, of a row by the key that it had before; or its
    /// values are kept with one.
    fn is_refused_here(
        &self,
        (table, key): (usize, i64),
        text: Option<&String>,
    ) -> rusqlite::Result<bool> {
        let (name, key_is) = (EDITED[table].name, EDITED[table].key_is);
        let kept = text.map(|text| format!("%{text:?}%"));
        let sql = "SELECT 1 FROM tidewater_refused WHERE table_name = ?1
                   AND (key = ?2 OR row_values LIKE ?3)";
        let mut refused = self.remote.prepare_cached(sql)?;
        let before = other_key(self.remote, &EDITED[table], key, ["new", "old"])?;
        for key in [Some(key), before].into_iter().flatten() {
            if refused.exists(params![name, key_is.json(key), kept])? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The other key of a row that was given a new one by a change that is not in the centre: out of the
/// old one (`["old", "new"]`) or the new one.
pub(super) fn other_key(
    remote: &Connection,
    table: &SyncedTable,
    key: i64,
    [from, to]: [&str; 2],
) -> rusqlite::Result<Option<i64>> {
    let (name, column) = (table.name, table.key());
    let sql = format!(
        "SELECT {to}_{column} FROM tidewater_rekeyed_{name} WHERE {from}_{column} = ?1
         ORDER BY generation LIMIT 1"
    );
    remote
        .prepare_cached(&sql)?
        .query_row([table.key_is.value(key)], |row| {
            Ok(table.key_is.number(row.get_ref(0)?)?)
        })
        .optional()
}

/// The text of a row.
pub(super) fn text_in(
    connection: &Connection,
    row: (usize, i64),
) -> rusqlite::Result<Option<String>> {
    let (table, key) = find(row);
    let (name, text) = (table.name, table.text);
    let sql = format!("SELECT {text} FROM {name} WHERE {} = ?1", table.key());
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_row([key], |row| row.get(0)).optional()
}
