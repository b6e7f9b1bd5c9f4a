//! The application of a device: it edits the remote's file through plain SQLite, also while
//! the file syncs, and knows nothing of Tidewater.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use crate::chance::Chance;
use crate::ledger::{Draft, Edit, Ledger};
use crate::stage::Stage;
use crate::world::{FOREIGN_REGION, JudgedTable, PRODUCTS, WANDERING_REGION};

/// A device's keys begin here, so that no two make the same.
pub(crate) const KEYS_OF_ONE: i64 = 1_000_000_000;
/// From so many visits on, a device deletes half of its own.
const MANY_VISITS: i64 = 3_000;

pub(crate) struct Application {
    stage: Arc<Stage>,
    name: String,
    path: PathBuf,
    regions: [i64; 2],
    chance: Chance,
    keys: std::ops::Range<i64>,
    next_tag: u64,
    ledger: Ledger,
}

impl Application {
    /// Of a device with a number from 1.
    pub(crate) fn new(
        stage: &Arc<Stage>,
        number: i64,
        path: PathBuf,
        regions: [i64; 2],
        chance: Chance,
    ) -> Application {
        Application {
            stage: stage.clone(),
            name: format!("d{number}"),
            path,
            regions,
            chance,
            keys: number * KEYS_OF_ONE..(number + 1) * KEYS_OF_ONE,
            next_tag: 0,
            ledger: Ledger::default(),
        }
    }

    /// Edits until the end of the run.
    pub(crate) fn run(mut self) -> Ledger {
        while self.stage.runs() {
            match open(&self.path) {
                Ok(Some(mut connection)) => self.work(&mut connection),
                // The first sync is not through.
                Ok(None) => {}
                Err(error) => self.judge(&error),
            }
            let pause = Duration::from_millis(self.chance.of_any_size(9));
            self.stage.pause(pause);
        }
        self.ledger
    }

    fn work(&mut self, connection: &mut Connection) {
        for _ in 0..self.chance.between(1, 10) {
            let mut next_tag = self.next_tag;
            let name = self.name.clone();
            let mut draft = Draft::new(&name, &mut next_tag);
            let result = self.transact(connection, &mut draft);
            let edits = draft.edits;
            self.next_tag = next_tag;
            if let Err(error) = result {
                self.judge(&error);
                self.settle(edits);
                return;
            }
            self.ledger.committed.extend(edits);
            let pause = Duration::from_millis(self.chance.of_any_size(9));
            self.stage.pause(pause);
        }
    }

    /// What an application has to live with: locks, and disks that are full.
    fn judge(&self, error: &rusqlite::Error) {
        let code = error.sqlite_error_code();
        let is_usual = matches!(
            code,
            Some(
                ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
            )
        );
        match is_usual {
            true => self.stage.note(&format!("{}: {error}", self.name)),
            false => self
                .stage
                .finding(format!("application of {}: {error}", self.name)),
        }
    }

    /// A commit that failed may have been one: the journal knows, as soon as it can be read.
    fn settle(&mut self, edits: Vec<Edit>) {
        let Some(first) = edits.first() else {
            return;
        };
        let sql = "SELECT count(*) FROM app_journal WHERE tag = ?1";
        while self.stage.runs() {
            let known = open(&self.path).and_then(|connection| match connection {
                Some(it) => it.query_row(sql, [&first.tag], |row| row.get(0)),
                None => Ok(0),
            });
            match known {
                Ok(0) => return,
                Ok(_) => return self.ledger.committed.extend(edits),
                Err(error) => self.judge(&error),
            }
            self.stage.pause(Duration::from_millis(50));
        }
        self.ledger.doubtful.extend(edits);
    }

    fn transact(
        &mut self,
        connection: &mut Connection,
        draft: &mut Draft<'_>,
    ) -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for _ in 0..self.chance.between(1, 3) {
            self.edit(&transaction, draft)?;
        }
        let mut journal = transaction.prepare_cached("INSERT INTO app_journal VALUES (?1)")?;
        for edit in &draft.edits {
            journal.execute([&edit.tag])?;
        }
        drop(journal);
        transaction.commit()
    }

    fn edit(&mut self, file: &Transaction<'_>, draft: &mut Draft<'_>) -> rusqlite::Result<()> {
        let region = self.chance.pick(&self.regions);
        match self.chance.below(100) {
            0..25 => {
                let own = self.chance.percent(70);
                let visit = self.add_visit(file, draft, region, own, 1)?;
                for _ in 0..self.chance.below(4) {
                    self.add_line(file, draft, visit, region)?;
                }
            }
            25..48 => self.change_visits(file, draft, true, 1)?,
            48..58 => self.change_visits(file, draft, false, 1)?,
            58..62 => self.move_visit(file, draft, region)?,
            62..68 => self.delete_visits(file, draft, true, 1)?,
            68..70 => self.delete_visits(file, draft, false, 1)?,
            70..79 => self.change_product(file, draft)?,
            79..85 => drop(self.move_stock(file, draft)?),
            85..91 => self.send(file, draft)?,
            // The centre refuses this one and the next.
            91..92 => drop(self.add_visit(file, draft, region, true, -1)?),
            92..93 => drop(self.add_visit(file, draft, FOREIGN_REGION, true, 1)?),
            93..95 => self.repair(file, draft)?,
            95..97 => drop(self.add_visit(file, draft, WANDERING_REGION, false, 1)?),
            97..99 => {
                for _ in 0..self.chance.of_any_size(10) {
                    self.add_visit(file, draft, region, true, 2)?;
                }
            }
            _ => {
                let many = self.chance.of_any_size(10);
                self.change_visits(file, draft, true, many as i64)?;
            }
        }
        self.keep_small(file, draft)
    }

    fn next_key(&mut self) -> i64 {
        self.keys.next().expect("nobody makes a billion keys")
    }

    fn add_visit(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i64,
        own: bool,
        amount: i64,
    ) -> rusqlite::Result<i64> {
        let visit = self.next_key();
        let tag = write_visit(draft, visit, own);
        let payload = "x".repeat(self.chance.of_any_size(8) as usize);
        file.prepare_cached("INSERT INTO visit VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![visit, region, own, tag, amount, payload])?;
        Ok(visit)
    }

    fn add_line(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
        visit: i64,
        region: i64,
    ) -> rusqlite::Result<()> {
        let line = self.next_key();
        let tag = draft.write(JudgedTable::Line, line);
        let quantity = self.chance.between(1, 9) as i64;
        file.prepare_cached("INSERT INTO line VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![line, visit, region, tag, quantity])?;
        Ok(())
    }

    /// Some visits that only this device changes, or that anybody does.
    fn some_visits(
        &self,
        file: &Transaction<'_>,
        own: bool,
        many: i64,
    ) -> rusqlite::Result<Vec<(i64, i64)>> {
        let first = self.keys.start / KEYS_OF_ONE * KEYS_OF_ONE;
        let sql = "SELECT visit_id, region FROM visit
                   WHERE own = ?1 AND (NOT ?1 OR visit_id BETWEEN ?2 AND ?3)
                   ORDER BY random() LIMIT ?4";
        let mut statement = file.prepare_cached(sql)?;
        let range = params![own, first, first + KEYS_OF_ONE - 1, many];
        let rows = statement.query_map(range, |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }

    fn change_visits(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
        own: bool,
        many: i64,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE visit SET tag = ?2, amount = amount + 1 WHERE visit_id = ?1";
        for (visit, _) in self.some_visits(file, own, many)? {
            let tag = write_visit(draft, visit, own);
            file.prepare_cached(sql)?.execute(params![visit, tag])?;
        }
        Ok(())
    }

    /// Into another region of the user, with its lines.
    fn move_visit(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i64,
    ) -> rusqlite::Result<()> {
        for (visit, _) in self.some_visits(file, true, 1)? {
            let tag = draft.write_own(JudgedTable::Visit, visit);
            let sql = "UPDATE visit SET tag = ?2, region = ?3 WHERE visit_id = ?1";
            file.execute(sql, params![visit, tag, region])?;
            for line in lines(file, visit)? {
                let tag = draft.write(JudgedTable::Line, line);
                let sql = "UPDATE line SET tag = ?2, region = ?3 WHERE line_id = ?1";
                file.execute(sql, params![line, tag, region])?;
            }
        }
        Ok(())
    }

    fn delete_visits(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
        own: bool,
        many: i64,
    ) -> rusqlite::Result<()> {
        for (visit, _) in self.some_visits(file, own, many)? {
            // The cascade deletes them.
            for line in lines(file, visit)? {
                draft.delete(JudgedTable::Line, line);
            }
            draft.delete(JudgedTable::Visit, visit);
            file.prepare_cached("DELETE FROM visit WHERE visit_id = ?1")?
                .execute([visit])?;
        }
        Ok(())
    }

    fn change_product(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> rusqlite::Result<()> {
        let product = self.chance.between(1, PRODUCTS) as i64;
        let tag = draft.write(JudgedTable::Product, product);
        let sql = match self.chance.percent(50) {
            true => "UPDATE product SET tag = ?2 WHERE product_id = ?1",
            false => "REPLACE INTO product VALUES (?1, ?2, 'replaced')",
        };
        file.execute(sql, params![product, tag])?;
        Ok(())
    }

    /// Moves stock, and has the office told in the same transaction.
    fn send(&mut self, file: &Transaction<'_>, draft: &mut Draft<'_>) -> rusqlite::Result<()> {
        let tag = self.move_stock(file, draft)?;
        let event = format!("news/{}", self.name);
        let (kind, name) = self.chance.pick(&[
            ("call", "note"),
            ("call", "stamp"),
            ("event", event.as_str()),
        ]);
        let sql = "INSERT INTO tidewater_outbox (kind, name, arguments)
                   VALUES (?1, ?2, json_object('tag', ?3))";
        file.prepare_cached(sql)?.execute([kind, name, &tag])?;
        Ok(())
    }

    fn move_stock(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> rusqlite::Result<String> {
        let movement = self.next_key();
        let tag = draft.write_own(JudgedTable::Movement, movement);
        let product = self.chance.between(1, PRODUCTS) as i64;
        let quantity = self.chance.between(1, 100) as i64;
        let sql = "INSERT INTO movement VALUES (?1, ?2, ?3, ?4)";
        file.execute(sql, params![movement, product, tag, quantity])?;
        Ok(tag)
    }

    /// The user corrects what was refused.
    fn repair(&mut self, file: &Transaction<'_>, draft: &mut Draft<'_>) -> rusqlite::Result<()> {
        let sql = "SELECT visit_id FROM visit WHERE amount < 0 LIMIT 1";
        let mut statement = file.prepare_cached(sql)?;
        let visits: Vec<i64> = statement
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for visit in visits {
            let tag = draft.write_own(JudgedTable::Visit, visit);
            let sql = "UPDATE visit SET tag = ?2, amount = 7 WHERE visit_id = ?1";
            file.execute(sql, params![visit, tag])?;
        }
        Ok(())
    }

    fn keep_small(
        &mut self,
        file: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> rusqlite::Result<()> {
        let first = self.keys.start / KEYS_OF_ONE * KEYS_OF_ONE;
        let sql = "SELECT count(*) FROM visit WHERE own AND visit_id BETWEEN ?1 AND ?2";
        let count: i64 = file
            .prepare_cached(sql)?
            .query_row([first, first + KEYS_OF_ONE - 1], |row| row.get(0))?;
        match count > MANY_VISITS {
            true => self.delete_visits(file, draft, true, MANY_VISITS / 2),
            false => Ok(()),
        }
    }
}

fn write_visit(draft: &mut Draft<'_>, visit: i64, own: bool) -> String {
    match own {
        true => draft.write_own(JudgedTable::Visit, visit),
        false => draft.write(JudgedTable::Visit, visit),
    }
}

fn lines(file: &Transaction<'_>, visit: i64) -> rusqlite::Result<Vec<i64>> {
    let mut statement = file.prepare_cached("SELECT line_id FROM line WHERE visit_id = ?1")?;
    let rows = statement.query_map([visit], |row| row.get(0))?;
    rows.collect()
}

/// Opens a remote's file, if its tables are there already.
fn open(path: &Path) -> rusqlite::Result<Option<Connection>> {
    if !path.exists() {
        return Ok(None);
    }
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'tidewater_insert_visit'";
    if connection.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS app_journal (tag TEXT PRIMARY KEY);
         INSERT INTO tidewater_interest (space, subject) VALUES ('news', '>')
         ON CONFLICT DO NOTHING;",
    )?;
    Ok(Some(connection))
}
