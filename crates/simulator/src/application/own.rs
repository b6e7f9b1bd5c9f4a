//! What an application of a remote makes of its own in the file: a trigger, unique indexes; and
//! tables that a tool makes anew.

use rusqlite::types::Value;
use rusqlite::{ErrorCode, params};

use super::{Application, CommittedRow};
use crate::random::SeededRandom;
use crate::tables::{EDITED, SyncedTable};

/// What the trigger inserts has the key of the invoice, and so much more.
pub(super) const TALLIED: i64 = 1_000_000;

/// Begins the names of unique indexes.
const UNIQUE: &str = "one_";

impl Application {
    /// What it has of its own is there again, whatever has been done to the tables.
    pub(super) fn keep_own(&self) -> rusqlite::Result<()> {
        if self.tallies && !self.has("trigger", "tally")? {
            self.connection.execute_batch(&format!(
                "CREATE TRIGGER tally AFTER INSERT ON invoice BEGIN
                     INSERT INTO product (product_id, name)
                     VALUES ({TALLIED} + NEW.invoice_id, NEW.note || ' too');
                 END"
            ))?;
        }
        for table in EDITED.iter().filter(|it| self.is_strict && it.has_code()) {
            let name = table.name;
            if self.has("index", &format!("{UNIQUE}{name}"))? {
                continue;
            }
            let sql = format!("CREATE UNIQUE INDEX {UNIQUE}{name} ON {name} (code)");
            match self.connection.execute_batch(&sql) {
                // Not as long as two rows have one code.
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                }
                other => other?,
            }
        }
        Ok(())
    }

    pub(super) fn has(&self, kind: &str, name: &str) -> rusqlite::Result<bool> {
        self.connection
            .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = ?1 AND name = ?2")?
            .exists([kind, name])
    }

    fn has_trigger(&self, table: &SyncedTable, kind: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1
                   AND name = 'tidewater_' || ?2 || '_' || ?1";
        self.connection
            .prepare_cached(sql)?
            .exists([table.name, kind])
    }

    /// Whether the application has a trigger of its own that writes products.
    pub(super) fn has_tally(&self) -> rusqlite::Result<bool> {
        self.has("trigger", "tally")
    }

    /// Whether REPLACE may be used: what it displaces through a unique index is known to be gone
    /// only when a sync has seen the index, and takes its children along.
    pub(super) fn may_replace(&self, table: &SyncedTable) -> rusqlite::Result<bool> {
        let name = table.name;
        if table.children().next().is_some() {
            return Ok(false);
        }
        Ok(!self.has("index", &format!("{UNIQUE}{name}"))?
            || self.has_trigger(table, "displacing_insert")?)
    }

    /// The rows whose place in the application's own unique index a row with this code takes.
    pub(super) fn displaced(
        &self,
        index: usize,
        key: i64,
        code: &Value,
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        let table = &EDITED[index];
        if !self.has("index", &format!("{UNIQUE}{}", table.name))? {
            return Ok(Vec::new());
        }
        let others = format!("code = ?1 AND {} <> ?2", table.key());
        self.going(index, &others, params![code, table.key_is.value(key)])
    }

    /// A tool makes a table anew, as it does to change what ALTER TABLE cannot; triggers and
    /// indexes are gone with the old one, or stay with it under another name. Or it drops a
    /// trigger that is in its way. Whether it did: nobody else may be writing.
    ///
    /// # Errors
    /// Of SQLite, other than what an application has to expect.
    pub(crate) fn rebuild(
        &self,
        table: &SyncedTable,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<bool> {
        if !self.has("table", table.name)? {
            return Ok(false);
        }
        // References to a table that is gone for a moment are left as they are.
        let settings = |on: bool| {
            let connection = &self.connection;
            connection.pragma_update(None, "foreign_keys", !on)?;
            connection.pragma_update(None, "legacy_alter_table", on)
        };
        settings(true)?;
        let rebuilt = match random.below(4) {
            0 => self.try_to_keep_the_old(table.name),
            1 => self.drop_a_trigger(table.name, random),
            _ => self.try_to_rebuild(table.name),
        };
        let rebuilt = self.unless_busy(rebuilt);
        settings(false)?;
        rebuilt
    }

    fn try_to_rebuild(&self, name: &str) -> rusqlite::Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let sql = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let sql: String = self.connection.query_row(sql, [name], |row| row.get(0))?;
        let interim = sql.replacen(name, &format!("{name}_anew"), 1);
        self.connection.execute_batch(&format!(
            "{interim};
             INSERT INTO {name}_anew SELECT * FROM {name};
             DROP TABLE {name};
             ALTER TABLE {name}_anew RENAME TO {name};
             COMMIT"
        ))
    }

    /// What is the application's own will be made for the new one.
    fn try_to_keep_the_old(&self, name: &str) -> rusqlite::Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let sql = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let sql: String = self.connection.query_row(sql, [name], |row| row.get(0))?;
        let tally = match name {
            "invoice" => "DROP TRIGGER IF EXISTS tally;",
            _ => "",
        };
        self.connection.execute_batch(&format!(
            "DROP TABLE IF EXISTS {name}_old;
             DROP INDEX IF EXISTS {UNIQUE}{name}; {tally}
             ALTER TABLE {name} RENAME TO {name}_old;
             {sql};
             INSERT INTO {name} SELECT * FROM {name}_old;
             COMMIT"
        ))
    }

    fn drop_a_trigger(&self, name: &str, random: &mut SeededRandom) -> rusqlite::Result<()> {
        let kinds = ["insert", "update", "rekey", "delete"];
        let kind = random.pick(&kinds).unwrap_or_default();
        let sql = format!("DROP TRIGGER IF EXISTS tidewater_{kind}_{name}");
        self.connection.execute_batch(&sql)
    }
}
