//! A generated case under way: its centre, its server, its remotes.

mod accidents;
mod clock;
mod restoring;
mod writes;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_client::RowSelection;
use tidewater_protocol::Code;
use tidewater_server::Config;
use tidewater_testing::generate::history::{Place, REMOTES, Step};
use tidewater_testing::generate::schema::{Schema, Table, TableId};
use tidewater_testing::generate::{Case, USERS};
use tidewater_testing::proxy::{self, Way};

use super::ledger::Ledger;
use super::rows::{Snapshot, select_list, types};
use super::session::{Centre, Session, read_stored};
use crate::backend::{execute_sqlite, open_sqlite};
use crate::device::Device;
use crate::world::LiveServer;

use clock::{WrongClock, environment};

/// So many times everybody syncs at most until nothing moves any more.
const ROUNDS: usize = 12;

/// A remote and the application that uses its file.
pub(crate) struct Player {
    pub(crate) device: Device,
    /// A connection of the application's own; `None` only while the file is replaced.
    application: Option<Connection>,
    /// Whether triggers of the application keep copies of its tables.
    pub(crate) keeps_shadows: bool,
    /// A copy of the file, and what was unsettled then.
    backup: Option<(PathBuf, Ledger)>,
    pub(crate) ledger: Ledger,
}

impl Player {
    pub(crate) fn application(&self) -> &Connection {
        self.application.as_ref().expect("it is open between steps")
    }
}

/// A case under way.
pub(crate) struct Field<C: Centre> {
    // The server goes first, the database last: who uses it goes before. It is away only
    // while the database is copied.
    server: Option<LiveServer>,
    pub(crate) session: C::Session,
    config: Config,
    case: Case,
    pub(crate) schema: Schema,
    pub(crate) players: Vec<Player>,
    /// The centre after every step that may have changed it.
    pub(crate) past: Vec<Snapshot>,
    /// Where the past begins that the centre knows of: it was restored then.
    pub(crate) begins: usize,
    /// A copy of the centre.
    copy: Option<Copy<C>>,
    /// Whether a file was restored or copied: such a remote may say things twice.
    pub(crate) twins: bool,
    /// Tables without a change log that lost their triggers on a remote: whether a row that is
    /// only there was deleted in the centre or inserted on the remote, nobody can tell.
    pub(crate) unsure: HashSet<TableId>,
    tags: u64,
    /// Transactions of applications that were tried, and those that were committed.
    pub(crate) writes: [u64; 2],
    /// A transaction of the centre that is open.
    slow: Option<Slow<C::Transaction>>,
    /// The users who are kept out.
    kept_out: HashSet<String>,
    /// The leaves that are not part of their tables.
    detached: HashSet<(TableId, usize)>,
    clock: Arc<WrongClock>,
    folder: TempDir,
    backend: C,
}

/// A copy of the centre, and what else was so then.
struct Copy<C> {
    backend: C,
    kept_out: HashSet<String>,
    detached: HashSet<(TableId, usize)>,
}

/// A transaction that lasts longer than its statements.
enum Slow<T> {
    Open(T),
    /// Under this name, without a connection.
    Prepared(String),
}

impl<C: Centre> Field<C> {
    pub(crate) fn open(case: &Case) -> Field<C> {
        let crashes = |it: &Step| matches!(it, Step::CrashCentre { .. });
        let backend = C::open(case.steps.iter().any(crashes));
        let mut session = backend.session();
        let create = case.schema.create(C::DIALECT);
        assert!(session.write(&[create], true), "the schema can be made");
        let config = config(case, &backend);
        let clock = Arc::new(WrongClock::default());
        let server = LiveServer::deploy_in(&config, USERS, environment(&clock));
        let mut field = Field {
            server: Some(server),
            session,
            config,
            case: case.clone(),
            schema: case.schema.clone(),
            players: Vec::new(),
            past: Vec::new(),
            begins: 0,
            copy: None,
            twins: false,
            unsure: HashSet::new(),
            tags: 0,
            writes: [0; 2],
            folder: tempfile::tempdir().expect("a temporary folder"),
            slow: None,
            kept_out: HashSet::new(),
            detached: HashSet::new(),
            clock,
            backend,
        };
        field.remember();
        for number in 0..REMOTES {
            let user = USERS[number % USERS.len()];
            let device = Device::new(field.folder.path(), user, field.server().address);
            field.add(device, number % 2 == 0, Ledger::default());
        }
        for number in 0..REMOTES {
            field.sync(number);
            field.furnish(number);
        }
        field
    }

    fn add(&mut self, device: Device, keeps_shadows: bool, ledger: Ledger) {
        let application = open_application(&device.path, keeps_shadows);
        self.players.push(Player {
            device,
            application: Some(application),
            keeps_shadows,
            backup: None,
            ledger,
        });
    }

    /// What the application makes for itself on a remote. Only some fire triggers when REPLACE
    /// displaces rows, as they have to for a copy of a table.
    fn furnish(&mut self, number: usize) {
        let mut sql = self.schema.remote_triggers();
        if self.players[number].keeps_shadows {
            let tables = self.schema.tables.iter();
            sql += &tables.map(Table::shadow).collect::<String>();
        }
        let application = self.players[number].application();
        execute_sqlite(application, &sql);
    }

    /// Looks at the centre.
    pub(crate) fn remember(&mut self) {
        let now = self.centre();
        self.past.push(now);
    }

    /// The centre now.
    fn centre(&mut self) -> Snapshot {
        let session = &mut self.session;
        Snapshot::read(&self.schema, |table| {
            let columns = select_list(C::DIALECT, true, table);
            let sql = format!("SELECT {columns} FROM {}", table.sql_name(C::DIALECT));
            session.read(&sql, &types(table))
        })
    }

    /// A user's part of the centre.
    pub(crate) fn share(&mut self, user: &str) -> Snapshot {
        let session = &mut self.session;
        Snapshot::read(&self.schema, |table| {
            let columns = select_list(C::DIALECT, true, table);
            let from = table.sql_name(C::DIALECT);
            let sql = format!("SELECT {columns} FROM {from} WHERE {}", table.scope(user));
            session.read(&sql, &types(table))
        })
    }

    /// A remote now.
    pub(crate) fn remote(&self, number: usize) -> Snapshot {
        let application = self.players[number].application();
        Snapshot::read(&self.schema, |table| {
            let columns = select_list(C::DIALECT, false, table);
            let name = tidewater_testing::generate::name(&table.name);
            read_stored(application, &format!("SELECT {columns} FROM {name}"))
        })
    }

    /// Does a step.
    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::Write {
                place: Place::Centre,
                table,
                write,
                seed,
            } => self.write_in_centre(table, write, seed),
            Step::Write {
                place: Place::Remote(remote),
                table,
                write,
                seed,
            } => self.write_on_remote(remote, table, write, seed),
            Step::Begin {
                table,
                seed,
                prepared,
            } => self.begin(table, seed, prepared),
            Step::Commit => self.commit(),
            Step::Sync(remote) => self.sync(remote),
            Step::CutSync { remote, up, byte } => {
                let way = if up { Way::Up } else { Way::Down };
                let device = &mut self.players[remote].device;
                device.network.plan_cut(way, byte);
                let outcome = device.try_sync();
                let was_cut = device.network.finish_plan();
                let kept_out = self.kept_out.contains(&device.user);
                assert!(was_cut || kept_out || outcome.is_ok(), "{outcome:?}");
                self.remember();
            }
            Step::EditInFlight {
                remote,
                up,
                frame,
                table,
                write,
                seed,
            } => {
                let place = proxy::Place::frame(if up { Way::Up } else { Way::Down }, frame);
                self.edit_in_flight(remote, place, |field| {
                    field.write_on_remote(remote, table, write, seed);
                });
            }
            Step::TwoSyncs(remote) => self.two_syncs(remote),
            Step::KillServer { remote, up, frame } => {
                let place = proxy::Place::frame(if up { Way::Up } else { Way::Down }, frame);
                self.kill_server(remote, place);
            }
            Step::CrashCentre { remote, up, frame } => {
                let place = proxy::Place::frame(if up { Way::Up } else { Way::Down }, frame);
                self.crash_centre(remote, place);
            }
            Step::Assign {
                table,
                user,
                choice,
                given,
            } => self.assign(table, USERS[user], choice, given),
            Step::RestartServer => self.start_server(),
            Step::Redeploy => {
                // Deploying may wait for those who write.
                self.commit();
                let environment = environment(&self.clock);
                self.server = Some(LiveServer::deploy_in(&self.config, &[], environment));
                self.redirect();
            }
            Step::Detach { table, leaf } => self.detach(table, leaf),
            Step::Attach { table, leaf } => self.attach(table, leaf),
            Step::BackUpCentre => self.back_up_centre(),
            Step::RestoreCentre => self.restore_centre(),
            Step::Clock(days) => self.clock.set(days),
            Step::Prune => self.prune(),
            Step::RotateKey { retire } => self.rotate_key(retire),
            Step::Admit { user, admitted } => self.admit(USERS[user], admitted),
            Step::Rebuild { remote, table } => self.rebuild(remote, table),
            Step::Reopen(remote) => self.replace(remote, None),
            Step::Backup(remote) => self.back_up(remote),
            Step::Restore(remote) => {
                if let Some((copy, ledger)) = self.players[remote].backup.take() {
                    self.replace(remote, Some(&copy));
                    self.players[remote].ledger = ledger;
                    self.twins = true;
                }
            }
            Step::Clone(remote) => {
                if let Some((copy, ledger)) = self.players[remote].backup.take() {
                    let original = &self.players[remote];
                    let device = Device::at(&copy, &original.device);
                    let keeps_shadows = original.keeps_shadows;
                    self.add(device, keeps_shadows, ledger);
                    self.twins = true;
                }
            }
            Step::DiscardRefused(remote) => self.discard(remote),
            Step::RetryRefused(remote) => {
                let remote = &mut self.players[remote].device.remote;
                remote
                    .retry_refused(RowSelection::All)
                    .expect("they can be retried");
            }
        }
    }

    fn tag(&mut self, place: &str) -> String {
        self.tags += 1;
        format!("{place}-{}", self.tags)
    }

    fn assign(&mut self, table: TableId, user: &str, choice: usize, given: bool) {
        let Some(table) = self
            .schema
            .table(table)
            .filter(|it| !it.partition.is_empty())
        else {
            return;
        };
        let sql = match given {
            true => table.assign(C::DIALECT, user, choice),
            false => table.unassign(C::DIALECT, user, choice),
        };
        assert!(self.session.write(&[sql], true));
    }

    fn redirect(&mut self) {
        for player in &self.players {
            player.device.network.redirect(self.server().address);
        }
    }

    pub(crate) fn server(&self) -> &LiveServer {
        self.server.as_ref().expect("it runs between steps")
    }

    fn back_up(&mut self, number: usize) {
        let copy = self.tag("copy");
        let copy = self.folder.path().join(copy);
        let player = &mut self.players[number];
        let application = player.application();
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy = read_stored(application, checkpoint);
        assert_eq!(busy[0][0], tidewater_protocol::Value::Integer(0));
        std::fs::copy(&player.device.path, &copy).expect("a file can be copied");
        player.backup = Some((copy, player.ledger.clone()));
    }

    /// Closes the file, puts a copy in its place if there is one, and opens it again.
    fn replace(&mut self, number: usize, copy: Option<&std::path::Path>) {
        let player = &mut self.players[number];
        player.application = None;
        let path = player.device.path.clone();
        player.device.reopen(|| {
            let Some(copy) = copy else {
                return;
            };
            for side in ["-wal", "-shm"] {
                let mut name = path.clone().into_os_string();
                name.push(side);
                // It is there only if the last connection left it.
                let _ = std::fs::remove_file(name);
            }
            std::fs::copy(copy, &path).expect("a file can be copied");
        });
        player.application = Some(open_application(&path, player.keeps_shadows));
    }

    /// Gives everything up that was refused on a remote.
    pub(crate) fn discard(&mut self, number: usize) {
        let device = &mut self.players[number].device;
        let (user, refused) = (device.user.clone(), device.refused());
        let rows = super::ledger::refused_rows(self, &user, &refused);
        let player = &mut self.players[number];
        for (table, key) in rows {
            player.ledger.forget(&self.schema, &table, &key);
        }
        player.device.discard_refused();
    }

    /// Syncs a remote, and settles what it had changed.
    pub(crate) fn sync(&mut self, number: usize) {
        let device = &mut self.players[number].device;
        if self.kept_out.contains(&device.user) {
            let refused = device.try_sync().expect_err("the user is disabled");
            assert_eq!(refused.code(), Code::UserDisabled, "{refused:?}");
            return;
        }
        device.sync();
        self.remember();
        super::ledger::settle(self, number);
    }

    /// Everybody syncs until nothing changes any more.
    pub(crate) fn sync_until_quiet(&mut self) {
        for _ in 0..ROUNDS {
            let before = self.everything();
            for number in 0..self.players.len() {
                self.sync(number);
            }
            let after = self.everything();
            // What waits has to go up, whatever becomes of it.
            if before == after && after.1.iter().all(|&waiting| waiting == 0) {
                return;
            }
        }
        panic!("after {ROUNDS} rounds something still moves");
    }

    /// The centre and all remotes, with what waits there.
    fn everything(&mut self) -> (Vec<Snapshot>, Vec<u64>) {
        let mut all: Vec<Snapshot> = (0..self.players.len()).map(|it| self.remote(it)).collect();
        all.push(self.centre());
        let waiting = self.players.iter_mut();
        (all, waiting.map(|it| it.device.pending()).collect())
    }
}

impl<C: Centre> Drop for Field<C> {
    fn drop(&mut self) {
        // A prepared transaction outlives everything else, and there is room for a few.
        if let Some(Slow::Prepared(name)) = self.slow.take() {
            self.backend.execute(&format!("ROLLBACK PREPARED '{name}'"));
        }
    }
}

fn config<C: Centre>(case: &Case, backend: &C) -> Config {
    let config = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = {:?}\n{}",
        backend.url(),
        case.schema.publication(C::DIALECT)
    );
    Config::parse(&config).expect("the configuration is right")
}

/// A connection of the application's own.
fn open_application(path: &Path, keeps_shadows: bool) -> Connection {
    let connection = open_sqlite(path);
    set_up(&connection, keeps_shadows);
    connection
}

fn set_up(connection: &Connection, keeps_shadows: bool) {
    // Otherwise REPLACE fires no trigger for the rows that it displaces.
    let set = connection.pragma_update(None, "recursive_triggers", keeps_shadows);
    set.expect("it is a setting");
}
