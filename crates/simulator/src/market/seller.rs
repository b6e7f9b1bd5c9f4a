//! A device of the market: what its user does with his file, and what he has done.

use std::cell::RefCell;
use std::rc::Rc;

use rusqlite::{Connection, OptionalExtension, params};

use tidewater_remote::RemoteError;
use tidewater_remote::database::{RemoteDatabase, RowSelection};

use super::judge;
use super::ledger::{Differences, Ledger, add};
use super::scenario::{
    COUNTERS_EACH, CounterTable, DENIED, FAMILY, LINES, SALES, SHELF, STOCK, VOUCHER,
};
use super::{RENUMBERED, Trouble};
use crate::application::{self, is_busy};
use crate::chronicle::Chronicle;
use crate::disks::Device;
use crate::failure::SimulationFailure;
use crate::random::SeededRandom;
use crate::site::Node;

/// A device of the market.
pub(super) struct Seller {
    pub(super) name: &'static str,
    pub(super) device: Rc<Device>,
    pub(super) node: Node,
    pub(super) ledger: RefCell<Ledger>,
    /// The other one of two files that were one.
    pub(super) twin: RefCell<Option<Rc<Device>>>,
}

/// What a user does it all for.
pub(super) struct SellerTurn<'m> {
    pub(super) trouble: Trouble,
    /// A number that nobody has had.
    pub(super) number: i64,
    pub(super) chronicle: &'m Chronicle,
}

/// So much is taken at once: few amounts, so that equal values meet often.
const AMOUNTS: [i64; 3] = [1, 3, 3];

impl Seller {
    pub(super) fn new(name: &'static str, device: Rc<Device>, node: Node) -> Seller {
        Seller {
            name,
            device,
            node,
            ledger: RefCell::default(),
            twin: RefCell::default(),
        }
    }

    /// Does one thing.
    pub(super) fn act(
        &self,
        doing: &SellerTurn<'_>,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        if random.percent(12) {
            return self.decide(doing, random);
        }
        let mut ledger = self.ledger.borrow().clone();
        match self.edit(doing, &mut ledger, random) {
            Ok(what) => {
                let name = self.name;
                doing.chronicle.note(&format!("{name} {what}"));
                *self.ledger.borrow_mut() = ledger;
                Ok(())
            }
            Err(error) if is_busy(&error) => Ok(()),
            // The file has never synced.
            Err(rusqlite::Error::SqliteFailure(_, Some(what)))
                if what.starts_with("no such table") =>
            {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The application's connection to the file.
    pub(super) fn look(&self) -> rusqlite::Result<Connection> {
        self.device.restart();
        application::open(&self.device.application_path())
    }

    /// Whether nobody else has a file of the same identity: of two that were one, each has numbers of
    /// its own when the centre has noticed.
    fn is_single(&self, remote: &Connection) -> rusqlite::Result<bool> {
        let twin = self.twin.borrow();
        let Some(twin) = &*twin else {
            return Ok(true);
        };
        twin.restart();
        let other = application::open(&twin.application_path())?;
        Ok(judge::remote_id(remote)? != judge::remote_id(&other)?)
    }

    fn edit(
        &self,
        doing: &SellerTurn<'_>,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let remote = self.look()?;
        match random.below(22) {
            0..=4 => self.take(&remote, STOCK, ledger, random),
            5..=7 => self.take(&remote, SHELF, ledger, random),
            // Of a row that a restored centre has forgotten there is nothing to add to.
            8..=9 if doing.trouble != Trouble::Restored => {
                self.take(&remote, VOUCHER, ledger, random)
            }
            10 => {
                let key = random.between(1, COUNTERS_EACH as u64);
                let label = format!("{} {}", self.name, doing.number);
                let sql = "UPDATE stock SET label = ?2 WHERE stock_id = ?1";
                remote.execute(sql, params![key as i64, label])?;
                Ok(format!("labels stock {key} {label}"))
            }
            11 | 12 => self.sell(&remote, doing, ledger, random),
            13..=15 => self.add_line(&remote, doing, ledger, random),
            16 => self.add_note(&remote, doing, ledger, random),
            17 if self.is_single(&remote)? && doing.trouble != Trouble::Restored => {
                let entry = format!("{} {}", self.name, doing.number);
                let sql = "INSERT INTO ticket (entry) VALUES (?1)";
                match remote.execute(sql, [&entry]) {
                    Ok(_) => {}
                    Err(rusqlite::Error::SqliteFailure(_, Some(what)))
                        if what.contains("no numbers left") =>
                    {
                        return Ok("has no number for a ticket".into());
                    }
                    Err(error) => return Err(error),
                }
                ledger.tickets.insert(entry.clone());
                Ok(format!("numbers a ticket {entry}"))
            }
            _ => self.write(&remote, doing, random),
        }
    }

    /// Inserts a sale, under a number that others may have chosen, too.
    fn sell(
        &self,
        remote: &Connection,
        doing: &SellerTurn<'_>,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let key = random.between(1, SALES) as i64;
        let entry = format!("{} {}", self.name, doing.number);
        let sql = "INSERT INTO sale SELECT ?1, ?2, ?2
                   WHERE NOT EXISTS (SELECT 1 FROM sale WHERE sale_id = ?1)";
        match remote.execute(sql, params![key, entry])? {
            0 => Ok(format!("has a sale {key} already")),
            _ => {
                ledger.entries.insert(entry.clone(), entry.clone());
                Ok(format!("has a sale {key}: {entry}"))
            }
        }
    }

    /// Adds a line to one of the own sales.
    fn add_line(
        &self,
        remote: &Connection,
        doing: &SellerTurn<'_>,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let number = random.between(1, LINES) as i64;
        let sql = "SELECT sale_id, entry FROM sale WHERE entry LIKE ?1 || ' %' AND NOT EXISTS (
                       SELECT 1 FROM sale_line WHERE sale_id = sale.sale_id AND number = ?2)
                   ORDER BY entry";
        let mut statement = remote.prepare(sql)?;
        let own = statement.query_map(params![self.name, number], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        let own: Vec<(i64, String)> = own.collect::<rusqlite::Result<_>>()?;
        let Some(place) = random.pick(&(0..own.len()).collect::<Vec<_>>()) else {
            return Ok("has no sale for a line".into());
        };
        let (sale, family) = &own[place];
        let entry = format!("{} {}", self.name, doing.number);
        let sql = "INSERT INTO sale_line VALUES (?1, ?2, ?3, ?4)";
        remote.execute(sql, params![sale, number, entry, family])?;
        ledger.entries.insert(entry.clone(), family.clone());
        Ok(format!(
            "adds line {number} to sale {sale}: {entry} of {family}"
        ))
    }

    /// Adds a note to one of the own lines.
    fn add_note(
        &self,
        remote: &Connection,
        doing: &SellerTurn<'_>,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let sql = "SELECT sale_id, number, family FROM sale_line WHERE entry LIKE ?1 || ' %'
                   ORDER BY entry";
        let mut statement = remote.prepare(sql)?;
        let own = statement.query_map([self.name], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let own: Vec<(i64, i64, String)> = own.collect::<rusqlite::Result<_>>()?;
        let Some(place) = random.pick(&(0..own.len()).collect::<Vec<_>>()) else {
            return Ok("has no line for a note".into());
        };
        let (sale, number, family) = &own[place];
        let entry = format!("{} {}", self.name, doing.number);
        let sql = "INSERT INTO line_note VALUES (?1, ?2, ?3, ?4, ?5)";
        remote.execute(sql, params![doing.number, sale, number, entry, family])?;
        ledger.entries.insert(entry.clone(), family.clone());
        Ok(format!("notes {entry} at line {number} of sale {sale}"))
    }

    /// Writes a report or a claim.
    fn write(
        &self,
        remote: &Connection,
        doing: &SellerTurn<'_>,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let text = match random.percent(25) {
            true => format!("{DENIED} {} {}", self.name, doing.number),
            false => format!("{} {}", self.name, doing.number),
        };
        let table = match random.percent(50) {
            true => "report",
            false => "claim",
        };
        let key = match random.percent(30) {
            true => doing.number,
            false => random.between(1, 3) as i64,
        };
        let sql = format!(
            "INSERT INTO {table} VALUES (?1, ?2) ON CONFLICT ({table}_id) DO UPDATE SET text = ?2"
        );
        remote.execute(&sql, params![key, text])?;
        Ok(format!("has {table} {key} say {text}"))
    }

    /// Decides about something that was refused: a sale gets a new number, anything else is sent
    /// again.
    fn decide(
        &self,
        doing: &SellerTurn<'_>,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let decided =
            self.node
                .with_file(|database: &mut RemoteDatabase| -> Result<_, RemoteError> {
                    let refused = database.refused()?;
                    let places: Vec<usize> = (0..refused.len()).collect();
                    let Some(row) = random.pick(&places).map(|it| &refused[it]) else {
                        return Ok(None);
                    };
                    if row.table == FAMILY[0].0 {
                        let key = doing.number.to_string();
                        let new = database.renumber_refused(row.id, Some(&key))?;
                        doing.chronicle.fault(RENUMBERED);
                        return Ok(Some(format!("gives sale {} the number {new}", row.key)));
                    }
                    let again = database.retry_refused(RowSelection::Ids(&[row.id]))?;
                    Ok(Some(format!("sends {again} rows again")))
                });
        match decided {
            Some(Ok(Some(what))) => doing.chronicle.note(&format!("{} {what}", self.name)),
            Some(Err(error)) => {
                let name = self.name;
                doing
                    .chronicle
                    .note(&format!("{name} cannot decide: {error}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// What is pending or refused of counters.
    pub(super) fn outstanding(&self) -> rusqlite::Result<Differences> {
        judge::outstanding(&self.look()?)
    }

    /// Takes something from a counter.
    fn take(
        &self,
        remote: &Connection,
        counter: CounterTable,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        let CounterTable {
            table, key, value, ..
        } = counter;
        let row = random.between(1, COUNTERS_EACH as u64) as i64;
        let amount = random.pick(&AMOUNTS).unwrap_or(1);
        let amount = match table == SHELF.table {
            // Two of these are more than there is.
            true if random.percent(50) => 7,
            _ => amount,
        };
        let sql = format!("SELECT {value} FROM {table} WHERE {key} = ?1");
        let now: Option<i64> = remote.query_row(&sql, [row], |row| row.get(0)).optional()?;
        let changed = match now {
            Some(now) if table == SHELF.table && now < amount => 0,
            Some(_) => {
                let sql = format!("UPDATE {table} SET {value} = {value} - ?2 WHERE {key} = ?1");
                remote.execute(&sql, [row, amount])?
            }
            None if counter.begins.is_none() => {
                if !self.is_single(remote)? || judge::may_be_sent_twice(remote)? {
                    ledger.inserted_in_copy.insert((table, row));
                }
                let sql = format!("INSERT INTO {table} VALUES (?1, ?2)");
                remote.execute(&sql, [row, -amount])?
            }
            None => 0,
        };
        if changed > 0 {
            add(&mut ledger.taken, (table, row), -amount);
        }
        Ok(format!(
            "takes {amount} from {table} {row}, which has {now:?}"
        ))
    }
}
