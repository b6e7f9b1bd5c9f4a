//! Accidents, and what operators and tools do.

use std::ops::ControlFlow;

use tidewater_centre::records::{RetentionTimes, SigningKey};
use tidewater_protocol::Value;
use tidewater_testing::generate::schema::{Leaves, TableId};
use tidewater_testing::generate::triggers::THEN;
use tidewater_testing::generate::{Dialect, name};
use tidewater_testing::proxy::{Accident, Place};

use super::super::ledger;
use super::super::session::{Centre, Session, read_stored};
use super::{Field, Slow, environment};
use crate::backend::execute_sqlite;
use crate::world::LiveServer;

/// A hundred years.
const LONG_MS: i64 = 100 * 366 * 24 * 60 * 60 * 1_000;

impl<C: Centre> Field<C> {
    /// Another server takes the place of the one that there is.
    pub(super) fn start_server(&mut self) {
        let environment = environment(&self.clock);
        self.server = Some(LiveServer::start_in(&self.config, environment));
        self.redirect();
    }

    /// A sync of another process, during which something happens to the file.
    pub(super) fn edit_in_flight(
        &mut self,
        number: usize,
        place: Place,
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let device = &self.players[number].device;
        if self.kept_out.contains(&device.user) {
            return;
        }
        let network = device.network.clone();
        let mut other = device.second_handle();
        network.plan(place, Accident::Stall);
        let before = self.players[number].ledger.take();
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| {
                let outcome = other.sync(&mut |_| ControlFlow::Continue(()));
                network.give_up_stall();
                outcome
            });
            // If no frame has this number, the sync is over, and the edit comes after it.
            let _ = network.wait_for_stall();
            meanwhile(self);
            network.release();
            let outcome = sync.join().expect("the sync ends");
            assert!(outcome.is_ok(), "{outcome:?}");
        });
        network.finish_plan();
        self.remember();
        // What was written meanwhile goes up with the next sync.
        let meanwhile = self.players[number].ledger.replace(before);
        ledger::settle_beside(self, number, meanwhile);
    }

    /// Two processes sync the file. One may be told to come back, or both.
    pub(super) fn two_syncs(&mut self, number: usize) {
        let device = &mut self.players[number].device;
        if self.kept_out.contains(&device.user) {
            return;
        }
        let mut other = device.second_handle();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| other.sync(&mut |_| ControlFlow::Continue(())));
            let outcomes = [device.try_sync(), second.join().expect("the sync ends")];
            for outcome in outcomes {
                if let Err(error) = outcome {
                    assert!(error.code().is_transient(), "{error:?}");
                }
            }
        });
        self.sync(number);
    }

    /// The server is killed while a frame is on its way.
    pub(super) fn kill_server(&mut self, number: usize, place: Place) {
        self.die_during(number, place, |_| ());
    }

    /// The centre is killed while a frame is on its way. What an application had not committed
    /// is gone.
    pub(super) fn crash_centre(&mut self, number: usize, place: Place) {
        self.die_during(number, place, |field| {
            field.backend.crash();
            field.session = field.backend.session();
            if C::CONCURRENT_WRITERS && matches!(field.slow, Some(Slow::Open(_))) {
                field.slow = None;
            }
        });
    }

    /// A sync of another process; while a frame of it is on its way something dies, and the
    /// server after it.
    fn die_during(&mut self, number: usize, place: Place, death: impl FnOnce(&mut Self)) {
        let device = &self.players[number].device;
        if self.kept_out.contains(&device.user) {
            return;
        }
        let network = device.network.clone();
        let mut other = device.second_handle();
        network.plan(place, Accident::Stall);
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| {
                let outcome = other.sync(&mut |_| ControlFlow::Continue(()));
                network.give_up_stall();
                outcome
            });
            let stalled = network.wait_for_stall().is_ok();
            death(self);
            self.start_server();
            network.break_connections();
            let outcome = sync.join().expect("the sync ends");
            assert!(stalled || outcome.is_ok(), "{outcome:?}");
        });
        network.finish_plan();
        self.remember();
    }

    pub(super) fn detach(&mut self, table: TableId, leaf: usize) {
        let Some(sql) = self.leaf_change(table, leaf, false) else {
            return;
        };
        // Somebody may refer to its rows.
        if self.session.write(&[sql], true) {
            self.detached.insert((table, leaf));
            self.remember();
        }
    }

    pub(super) fn attach(&mut self, table: TableId, leaf: usize) {
        let tag = self.tag("back");
        let Some(sql) = self.leaf_change(table, leaf, true) else {
            return;
        };
        let table = self.schema.table(table).expect("it has leaves");
        let column = name(&table.columns[table.tag].name);
        let written = format!(
            "UPDATE {} SET {column} = coalesce({column}, '') || '{THEN}{tag}'",
            table.leaf(leaf)
        );
        let id = table.id;
        // Another leaf may have such rows meanwhile.
        if self.session.write(&[written, sql], true) {
            self.detached.remove(&(id, leaf));
            self.remember();
        }
    }

    /// The statement, if the leaf is on the other side.
    fn leaf_change(&mut self, table: TableId, leaf: usize, attach: bool) -> Option<String> {
        if C::DIALECT == Dialect::Sqlite || self.detached.contains(&(table, leaf)) != attach {
            return None;
        }
        let table = self.schema.table(table)?;
        let sql = match attach {
            true => table.attach(leaf),
            false => table.detach(leaf),
        };
        if table.leaves == Leaves::None {
            return None;
        }
        // It waits for everybody who has written.
        self.commit();
        Some(sql)
    }

    /// Change logs and marks are cut off, refused rows and conflicts stay.
    pub(super) fn prune(&mut self) {
        let retention = RetentionTimes {
            log_ms: LONG_MS / 2,
            history_ms: LONG_MS / 2,
            conflicts_ms: 2 * LONG_MS,
        };
        let now_ms = LONG_MS;
        let pruned = self
            .server()
            .ask(async |centre| centre.prune(retention, now_ms).await);
        pruned.expect("logs can be pruned");
    }

    pub(super) fn rotate_key(&mut self, retire: bool) {
        self.server().ask(async |centre| {
            let keys = centre.signing_keys().await.expect("keys can be read");
            let newest = keys.first().expect("there is one");
            let next = SigningKey {
                id: newest.id + 1,
                secret: vec![newest.id as u8; 32],
                created_ms: newest.created_ms + 1,
            };
            assert!(centre.add_signing_key(&next).await.expect("keys are added"));
            if retire {
                for key in &keys {
                    let retired = centre.retire_signing_key(key.id).await;
                    assert!(retired.expect("keys can be retired"));
                }
            }
        });
    }

    pub(super) fn admit(&mut self, user: &str, admitted: bool) {
        let known = self
            .server()
            .ask(async |centre| centre.set_disabled(user, !admitted).await);
        assert!(known.expect("users can be changed"));
        match admitted {
            true => self.kept_out.remove(user),
            false => self.kept_out.insert(user.to_owned()),
        };
    }

    /// Lets everybody in again.
    pub(crate) fn admit_all(&mut self) {
        for user in std::mem::take(&mut self.kept_out) {
            self.admit(&user, true);
        }
    }

    /// As tools change a table that SQLite cannot alter: made anew, filled, dropped, renamed.
    pub(super) fn rebuild(&mut self, number: usize, table: TableId) {
        let Some(table) = self.schema.table(table) else {
            return;
        };
        if table.tracking == "off" {
            self.unsure.insert(table.id);
        }
        let application = self.players[number].application();
        let sql = |filter: &str| {
            let query = format!("SELECT sql FROM sqlite_schema WHERE {filter}");
            let rows = read_stored(application, &query).into_iter();
            let rows = rows.filter_map(|mut row| match row.pop() {
                Some(Value::Text(sql)) => Some(sql),
                _ => None,
            });
            rows.collect::<Vec<String>>()
        };
        let quoted = table.name.replace('\'', "''");
        let create = &sql(&format!("type = 'table' AND name = '{quoted}'"))[0];
        let own = sql(&format!(
            "type = 'trigger' AND tbl_name = '{quoted}' AND name NOT LIKE 'tidewater_%'"
        ));
        let name = name(&table.name);
        let create = create.replacen(&name, "rebuilt", 1);
        execute_sqlite(
            application,
            &format!(
                "PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON;
                 BEGIN IMMEDIATE; {create}; INSERT INTO rebuilt SELECT * FROM {name};
                 DROP TABLE {name}; ALTER TABLE rebuilt RENAME TO {name}; {}; COMMIT;
                 PRAGMA legacy_alter_table = OFF; PRAGMA foreign_keys = ON;",
                own.join(";\n")
            ),
        );
        // Until then nobody tracks what is written.
        self.sync(number);
    }

    /// What triggers of the application have made of the tables is what the tables are.
    pub(crate) fn assert_shadows(&self) {
        for (number, player) in self.players.iter().enumerate() {
            for table in &self.schema.tables {
                if !player.keeps_shadows || !table.can_be_shadowed() {
                    continue;
                }
                let differences = read_stored(player.application(), &table.shadow_differences());
                assert!(
                    differences.is_empty(),
                    "triggers missed rows of {:?} on remote {number}: {differences:?}",
                    table.name
                );
                if let Some(check) = table.check_search() {
                    execute_sqlite(player.application(), &check);
                }
            }
        }
    }
}
