//! What applications write, in the centre and on remotes.

use std::path::Path;

use rusqlite::Connection;
use tidewater_testing::generate::history::Write;
use tidewater_testing::generate::random::Random;
use tidewater_testing::generate::schema::TableId;
use tidewater_testing::generate::{Dialect, ROLE};

use super::super::author::Author;
use super::super::session::{Centre, Session};
use super::{Field, Slow, set_up};
use crate::backend::{Transaction, open_sqlite};

impl<C: Centre> Field<C> {
    pub(super) fn write_in_centre(&mut self, table: TableId, write: Write, seed: u64) {
        let tag = self.tag("centre");
        let Some(table) = self.schema.table(table) else {
            return;
        };
        let mut author = Author {
            schema: &self.schema,
            dialect: C::DIALECT,
            on_remote: false,
            rows: self.past.last().expect("it was looked at"),
            random: Random::seeded(seed),
            tag,
            leaf: None,
        };
        let (mut statements, commit) = author.write(table, write);
        if self.schema.as_role && C::DIALECT == Dialect::Postgres {
            statements.insert(0, format!("SET LOCAL ROLE {ROLE}"));
        }
        if write == Write::Truncate {
            // It waits for everybody else.
            self.commit();
        }
        self.writes[0] += 1;
        if self.session.write(&statements, commit) {
            self.writes[1] += 1;
            self.remember();
        }
    }

    /// Begins a transaction that stays open.
    pub(super) fn begin(&mut self, table: TableId, seed: u64, prepared: bool) {
        let tag = self.tag("slow");
        let table = self.schema.table(table).filter(|_| C::CONCURRENT_WRITERS);
        let Some(table) = table.filter(|_| self.slow.is_none()) else {
            return;
        };
        let mut author = Author {
            schema: &self.schema,
            dialect: C::DIALECT,
            on_remote: false,
            rows: self.past.last().expect("it was looked at"),
            random: Random::seeded(seed),
            tag: tag.clone(),
            leaf: None,
        };
        if let Some(insert) = author.insert_aside(table) {
            // Its snapshot and its transaction id are older than what others do next.
            let mut transaction = self.backend.begin();
            if !transaction.try_execute(&insert) {
                return;
            }
            self.slow = Some(match prepared {
                false => Slow::Open(transaction),
                true => {
                    // The name is the whole server's.
                    let name = format!("{tag} {}", self.backend.url());
                    transaction.execute(&format!("PREPARE TRANSACTION '{name}'"));
                    Slow::Prepared(name)
                }
            });
        }
    }

    /// Commits it.
    pub(in super::super) fn commit(&mut self) {
        match self.slow.take() {
            None => return,
            Some(Slow::Open(transaction)) => transaction.commit(),
            Some(Slow::Prepared(name)) => {
                self.backend.execute(&format!("COMMIT PREPARED '{name}'"));
            }
        }
        self.remember();
    }

    pub(super) fn write_on_remote(
        &mut self,
        number: usize,
        table: TableId,
        write: Write,
        seed: u64,
    ) {
        let tag = self.tag(&format!("remote{number}"));
        let before = self.remote(number);
        let Some(table) = self.schema.table(table) else {
            return;
        };
        let mut author = Author {
            schema: &self.schema,
            dialect: C::DIALECT,
            on_remote: true,
            rows: &before,
            random: Random::seeded(seed),
            tag,
            leaf: None,
        };
        let (statements, commit) = author.write(table, write);
        let player = &mut self.players[number];
        let mut attached;
        let application = if seed.is_multiple_of(4) {
            attached = attach(&player.device.path, player.keeps_shadows);
            &mut attached
        } else {
            let application = player.application.as_mut();
            application.expect("it is open between steps")
        };
        self.writes[0] += 1;
        if application.write(&statements, commit) {
            self.writes[1] += 1;
            let after = self.remote(number);
            let now = self.past.len() - 1;
            let ledger = &mut self.players[number].ledger;
            ledger.note(&self.schema, &before, &after, now);
        }
    }
}

/// A connection to another file, to which a remote's is attached.
fn attach(path: &Path, keeps_shadows: bool) -> Connection {
    let connection = open_sqlite(Path::new(":memory:"));
    set_up(&connection, keeps_shadows);
    let attached = connection.execute("ATTACH ?1 AS remote", [path.to_string_lossy()]);
    attached.expect("a file can be attached");
    connection
}
