//! A remote of a user's publications: a file, an application that edits it, and syncs over the
//! simulated network.

use std::cell::{Cell, Ref, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use tokio::time::{Instant, sleep};
use xxhash_rust::xxh3::Xxh3;

use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{
    ApplyWork, Now, ProofKind, SessionOptions, SessionOutcome, SyncDirection, UserProof, VerifyMode,
};
use tidewater_remote::spool::{MemorySpool, NoDownloadStore};

use super::editable::{self, Editable};
use super::editor::Editor;
use super::ledger::{self, Ledger, Parties};
use super::tables::PublishedTable;
use super::watch::{Audit, with_chance};
use super::world::World;
use crate::application;
use crate::backup;
use crate::disks::{self, Device};
use crate::failure::SimulationFailure;
use crate::line::ServerLine;
use crate::network::{Traces, Weather};
use crate::random::SeededRandom;
use crate::users::PASSWORD;
use crate::vfs::Process;

const RESTORED: &str = "remote restored to an older copy";
const UPLOAD_UNACKNOWLEDGED: &str = "acknowledgement lost after the upload's commit";
const DOWNLOAD_UNACKNOWLEDGED: &str = "acknowledgement lost after the download's commit";

/// How often a server may send a remote away at once.
const ROUNDS: usize = 6;

/// How often a remote may have to come back before it has synced, when nothing fails any more.
const PATIENCE: usize = 24;

/// What is refused for a passing reason stands in reports as well; so many examples are read.
const EXAMPLES: usize = 100;

/// What an application has seen of the synced tables.
#[derive(Clone, Copy, Debug)]
struct SeenTables {
    /// Another one whenever somebody else has committed.
    version: i64,
    /// What the application itself had committed.
    edits: u64,
    /// Of all rows.
    rows: u64,
}

/// A remote database and all that belongs to it.
pub(super) struct KitRemote {
    world: Rc<World>,
    pub(super) name: String,
    pub(super) user: String,
    publications: Vec<String>,
    parameters: Vec<(String, String)>,
    device: Device,
    database: RefCell<Option<RemoteDatabase>>,
    application: RefCell<Connection>,
    editor: RefCell<Editor>,
    /// What can be edited, once it is there.
    editable: RefCell<Option<Rc<Vec<Editable>>>>,
    ledger: RefCell<Ledger>,
    /// What the application had committed when the file was copied, if it was.
    copy: RefCell<Option<Ledger>>,
    /// Counts what the application commits.
    edits: Cell<u64>,
    /// Why its last sync failed.
    trouble: RefCell<String>,
    traces: Rc<Traces>,
}

impl KitRemote {
    /// One that has never synced.
    pub(super) fn new(
        world: &Rc<World>,
        (name, user): (String, String),
        publications: Vec<String>,
        parameters: Vec<(String, String)>,
        mut random: SeededRandom,
    ) -> Result<Rc<KitRemote>, SimulationFailure> {
        let device = Device::new(&name, random.fork());
        let mut database = open(&device)?;
        let names: Vec<&str> = publications.iter().map(String::as_str).collect();
        database.subscribe("tcp://127.0.0.1:7439", &user, &names)?;
        for (name, value) in &parameters {
            database.set_parameter(None, name, Some(value))?;
        }
        let application = application(&device)?;
        let editor = Editor::new(&name, random.fork(), &world.numbers, &world.known.users);
        Ok(Rc::new(KitRemote {
            world: world.clone(),
            name,
            user,
            publications,
            parameters,
            device,
            database: RefCell::new(Some(database)),
            application: RefCell::new(application),
            editor: RefCell::new(editor),
            editable: RefCell::default(),
            ledger: RefCell::default(),
            copy: RefCell::default(),
            edits: Cell::default(),
            trouble: RefCell::default(),
            traces: Rc::default(),
        }))
    }

    /// One that begins anew, with all that this one subscribes to.
    pub(super) fn anew(
        &self,
        name: String,
        random: SeededRandom,
    ) -> Result<Rc<KitRemote>, SimulationFailure> {
        KitRemote::new(
            &self.world,
            (name, self.user.clone()),
            self.publications.clone(),
            self.parameters.clone(),
            random,
        )
    }

    /// Edits and syncs so many times.
    pub(super) async fn live(
        &self,
        mut random: SeededRandom,
        syncs: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..syncs {
            for _ in 0..random.below(4) {
                sleep(Duration::from_millis(random.below(1_500))).await;
                self.edit()?;
            }
            sleep(Duration::from_millis(random.below(1_500))).await;
            if random.percent(8) {
                self.copy_or_restore(&mut random)?;
            }
            if random.percent(15) {
                self.device.threaten(&mut random);
            }
            let direction = match random.below(100) {
                0..=9 => SyncDirection::UploadOnly,
                95.. => SyncDirection::DownloadOnly,
                _ => SyncDirection::Both,
            };
            let weather = Weather::any(&mut random, 40);
            self.sync(direction, &mut random, weather).await?;
        }
        Ok(())
    }

    /// Edits while it syncs, as applications do.
    pub(super) async fn disturb(
        &self,
        mut random: SeededRandom,
        steps: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(4_000))).await;
            self.edit()?;
        }
        Ok(())
    }

    /// The tables that it subscribes to.
    pub(super) fn tables(&self) -> Vec<&PublishedTable> {
        let all = self.world.known.tables.iter();
        all.filter(|it| self.publications.contains(&it.publication))
            .collect()
    }

    /// What can be edited, if it is there.
    pub(super) fn editable(&self) -> Result<Option<Rc<Vec<Editable>>>, SimulationFailure> {
        let mut known = self.editable.borrow_mut();
        if known.is_none() {
            let application = self.application.borrow();
            let tables = editable::all(&application, &self.tables(), false)?;
            *known = tables.map(Rc::new);
        }
        Ok(known.clone())
    }

    pub(super) fn application(&self) -> Ref<'_, Connection> {
        self.application.borrow()
    }

    /// A transaction of the application.
    fn edit(&self) -> Result<(), SimulationFailure> {
        let Some(editable) = self.editable()?.filter(|it| !it.is_empty()) else {
            return Ok(());
        };
        let application = self.application.borrow();
        let tables = self.tables();
        let uploads: Vec<&PublishedTable> = tables
            .iter()
            .copied()
            .filter(|it| it.direction.uploads())
            .collect();
        let all = &self.world.known.tables;
        let places: Vec<usize> = uploads
            .iter()
            .filter_map(|it| all.iter().position(|other| std::ptr::eq(other, *it)))
            .collect();
        // In a transaction of their own statements see one state.
        match application.execute_batch("BEGIN IMMEDIATE") {
            Err(error) if is_passing(&error) => return Ok(()),
            done => done?,
        }
        let now_ms = self.world.now().unix_ms;
        let edit = || {
            ledger::begin(&application, &uploads)?;
            let mut editor = self.editor.borrow_mut();
            let edited = editor.edit(&application, &editable, now_ms)?;
            let touched = ledger::end(&application, &uploads, &places)?;
            let sql = "SELECT coalesce(max(id), 0) FROM tidewater_conflicts";
            let told: i64 = application
                .prepare_cached(sql)?
                .query_row([], |row| row.get(0))?;
            application.execute_batch("COMMIT")?;
            Ok((edited, touched, told))
        };
        let (edited, touched, told) = match edit() {
            Ok(done) => done,
            // A reference that is looked at only now counts, too.
            Err(error) if is_passing(&error) || is_refused(&error) => {
                let _ = application.execute_batch("ROLLBACK");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        drop(application);
        self.edits.set(self.edits.get() + 1);
        let since = Audit::position(&self.world.centre())?;
        self.ledger.borrow_mut().committed(touched, since, told);
        {
            let mut tally = self.world.tally.borrow_mut();
            tally.changes_of_remotes += edited.inserts + edited.updates + edited.deletes;
            tally.impossible += edited.impossible;
        }
        for statement in &edited.statements {
            self.note(statement);
        }
        self.judge(false)
    }

    /// The device is copied, or becomes the copy.
    fn copy_or_restore(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let copy = self.copy.borrow().clone();
        match copy {
            Some(ledger) if random.percent(60) => {
                drop(self.database.borrow_mut().take());
                *self.application.borrow_mut() = Connection::open_in_memory()?;
                self.device.restore_copy();
                *self.database.borrow_mut() = Some(open(&self.device)?);
                *self.application.borrow_mut() = application(&self.device)?;
                *self.ledger.borrow_mut() = ledger;
                *self.copy.borrow_mut() = None;
                self.editable.take();
                self.world.chronicle.fault(RESTORED);
                self.note("its file is restored to an older copy");
                self.judge(false)
            }
            _ => {
                let path = self.device.path_of_copy();
                backup::copy(&self.application.borrow(), &path)?;
                *self.copy.borrow_mut() = Some(self.ledger.borrow().clone());
                Ok(())
            }
        }
    }

    pub(super) fn note(&self, what: &str) {
        self.world.chronicle.note(&format!("{}: {what}", self.name));
    }

    fn now(&self) -> Now {
        self.world.now()
    }

    /// What must hold at any moment, or when all is at rest.
    pub(super) fn judge(&self, at_rest: bool) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        let parties = Parties {
            tables: &self.world.known.tables,
            audit: &self.world.known.audit,
            remote: &application,
            centre: &self.world.centre(),
        };
        let found = self.ledger.borrow_mut().check(&parties, at_rest)?;
        match found {
            None => Ok(()),
            Some(found) => Err(self.broken(&found)),
        }
    }

    /// A promise that is broken, with who it was given to.
    pub(super) fn broken(&self, found: &str) -> SimulationFailure {
        let (promise, what) = found.split_once(": ").unwrap_or(("I6", found));
        SimulationFailure(format!("{promise}: {} of {}: {what}", self.name, self.user))
    }

    /// A sync, the first connection of which is in this weather. How long to wait before the next
    /// attempt, if it failed.
    async fn sync(
        &self,
        direction: SyncDirection,
        random: &mut SeededRandom,
        weather: Weather,
    ) -> Result<Option<u64>, SimulationFailure> {
        let mut line = Some(self.line(weather));
        let mut first_proof = ProofKind::Token;
        let mut in_vain = 0;
        while in_vain < ROUNDS {
            in_vain += 1;
            if line.is_none() {
                line = Some(self.line(Weather::fine(random.fork())));
            }
            let outcome = self
                .session(direction, random, &mut line, first_proof)
                .await?;
            self.judge(false)?;
            // The process died, and another one starts a little later.
            let Some(outcome) = outcome else {
                return Ok(Some(1_000));
            };
            match outcome {
                SessionOutcome::Done(_) => {
                    self.world.tally.borrow_mut().syncs += 1;
                    return Ok(None);
                }
                SessionOutcome::More(_) => {
                    first_proof = ProofKind::Token;
                    in_vain = 0;
                }
                SessionOutcome::Again(proof) => first_proof = proof,
                SessionOutcome::Failed(error) => {
                    return Ok(Some(error.retry_after_ms().unwrap_or(1_000)));
                }
                other => {
                    return Err(SimulationFailure(format!(
                        "an outcome that is not known: {other:?}"
                    )));
                }
            }
        }
        Ok(Some(1_000))
    }

    fn line(&self, weather: Weather) -> ServerLine {
        let last_is_lost = weather.last_is_lost;
        let stream = self.world.dial(weather, &self.traces);
        ServerLine::new(stream, last_is_lost, self.now())
    }

    /// A session on the connection there is, which stays if another one can follow. How it ended;
    /// `None` if the process died in it.
    async fn session(
        &self,
        direction: SyncDirection,
        random: &mut SeededRandom,
        line: &mut Option<ServerLine>,
        first_proof: ProofKind,
    ) -> Result<Option<SessionOutcome>, SimulationFailure> {
        let mut seed = [0; 32];
        random.fill(&mut seed);
        let gone = |what: &str| SimulationFailure(what.into());
        let mut here = line.take().ok_or_else(|| gone("there is no connection"))?;
        let database = self.database.borrow_mut().take();
        let database = database.ok_or_else(|| gone("two sessions have one handle"))?;
        let process =
            disks::process_at(database.path()).ok_or_else(|| gone("a file is on no device"))?;
        here.connection
            .sync(database, options(direction, first_proof), seed);
        self.pump(&mut here, &process, random).await?;
        let ended = here.connection.end_sync();
        let (database, outcome) = ended.ok_or_else(|| gone("a session that does not end"))?;
        let goes_on = match outcome {
            SessionOutcome::More(_) | SessionOutcome::Again(_) => here.connection.can_sync(),
            _ => false,
        };
        let mut is_lost = false;
        if goes_on && !process.is_dead() {
            *line = Some(here);
        } else if !process.is_dead() {
            is_lost = here.hang_up().await;
        }
        self.world.chronicle.session();
        self.device.calm(&self.world.chronicle);
        if process.is_dead() {
            drop(database);
            self.restart()?;
            return Ok(None);
        }
        self.take_note(
            &outcome,
            &database,
            is_lost && direction != SyncDirection::UploadOnly,
        )?;
        *self.database.borrow_mut() = Some(database);
        self.note(&summary(&outcome));
        Ok(Some(outcome))
    }

    /// Starts again whoever is dead on the device.
    fn restart(&self) -> Result<(), SimulationFailure> {
        self.note("dies in a sync and starts again");
        self.device.restart();
        let path = self.device.application_path();
        if self.application.borrow().path().map(Path::new) != Some(&path) {
            *self.application.borrow_mut() = application(&self.device)?;
        }
        *self.database.borrow_mut() = Some(open(&self.device)?);
        Ok(())
    }

    /// Counts what a session came to; `is_unacknowledged`: nobody hears that its download is here.
    fn take_note(
        &self,
        outcome: &SessionOutcome,
        database: &RemoteDatabase,
        is_unacknowledged: bool,
    ) -> Result<(), SimulationFailure> {
        match outcome {
            SessionOutcome::Failed(error) => {
                *self.trouble.borrow_mut() = format!("{} {error}", error.code().name());
                if self.acknowledgement_is_missing(database)? {
                    self.world.chronicle.fault(UPLOAD_UNACKNOWLEDGED);
                }
            }
            SessionOutcome::Done(report) | SessionOutcome::More(report) => {
                self.trouble.borrow_mut().clear();
                if is_unacknowledged {
                    self.world.chronicle.fault(DOWNLOAD_UNACKNOWLEDGED);
                }
                self.world.tally.borrow_mut().conflicts += report.conflicts;
                for refused in report.refused_rows.iter().take(EXAMPLES) {
                    let example = self.example(&refused.table, &refused.key)?;
                    let mut tally = self.world.tally.borrow_mut();
                    tally.refused(&refused.table, &refused.reason, example);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A refused row as it is here, or its key.
    fn example(&self, table: &str, key: &str) -> Result<String, SimulationFailure> {
        let application = self.application.borrow();
        let tables = self.tables();
        let Some(table) = tables.iter().find(|it| it.name == table) else {
            return Ok(key.to_owned());
        };
        let sql = "SELECT row_values FROM tidewater_refused WHERE table_name = ?1 AND key = ?2";
        let mut statement = application.prepare_cached(sql)?;
        let mut rows = statement.query([table.name.as_str(), key])?;
        if let Some(row) = rows.next()?
            && let Some(values) = row.get::<_, Option<String>>(0)?
        {
            return Ok(values);
        }
        let row = super::compare::row_named(&application, table, key)?;
        Ok(match row {
            Some(row) => table.told(Some(&row)),
            None => format!("deleted: {key}"),
        })
    }

    /// Carries the connection's bytes until the session has ended or the process dies.
    async fn pump(
        &self,
        line: &mut ServerLine,
        process: &Process,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let now = || self.now();
        loop {
            if let Some(work) = line.connection.poll_work() {
                let work = self.apply(work, process, random).await?;
                line.connection.handle_work(work);
            }
            // Whoever is dead says nothing more.
            if process.is_dead() {
                line.cut();
                return Ok(());
            }
            line.fill();
            if !line.connection.is_syncing() {
                return Ok(());
            }
            let ended = tokio::select! {
                biased;
                () = process.ended() => {
                    line.cut();
                    return Ok(());
                }
                turned = line.turn(self.world.began, &now, None) => turned.err(),
            };
            if let Some(error) = ended {
                line.connection.handle_end(error);
            }
        }
    }

    /// Does the work, as far as the process lives. I4: an application sees all of it at once.
    async fn apply(
        &self,
        mut work: ApplyWork,
        process: &Process,
        random: &mut SeededRandom,
    ) -> Result<ApplyWork, SimulationFailure> {
        let mut seen = self.seen(None)?;
        let mut changed = 0;
        while !work.is_done() && !process.is_dead() {
            work.step(self.now());
            if process.is_dead() {
                break;
            }
            let now = self.seen(Some(&seen))?;
            changed += u64::from(now.edits == seen.edits && now.rows != seen.rows);
            if changed > 1 {
                return Err(self.broken("I4: an application has seen a part of a download"));
            }
            seen = now;
            // Others do something in between.
            sleep(Duration::from_millis(random.below(3))).await;
        }
        Ok(work)
    }

    /// What the application sees of the synced tables; `before`: what it saw last.
    fn seen(&self, before: Option<&SeenTables>) -> Result<SeenTables, SimulationFailure> {
        let application = self.application.borrow();
        let edits = self.edits.get();
        let version: i64 = application
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        if let Some(before) = before
            && (before.version, before.edits) == (version, edits)
        {
            return Ok(*before);
        }
        let mut hash = Xxh3::new();
        for table in self.tables() {
            if table.is_in(&application)? {
                table.hash(&application, &mut hash)?;
            }
        }
        Ok(SeenTables {
            version,
            edits,
            rows: hash.digest(),
        })
    }

    /// Whether the centre has an upload that this remote does not know to be there.
    fn acknowledgement_is_missing(
        &self,
        database: &RemoteDatabase,
    ) -> Result<bool, SimulationFailure> {
        let Some(id) = database.account()?.remote_id else {
            return Ok(false);
        };
        let centre = self.world.centre();
        let sql = "SELECT max(sequence) FROM tidewater_centre_subscription WHERE remote_id = ?1";
        let mut statement = centre.prepare_cached(sql)?;
        let there: Option<Option<i64>> =
            statement.query_row([id.0], |row| row.get(0)).optional()?;
        let there = there.flatten().unwrap_or_default().unsigned_abs();
        let here = database.subscriptions()?.into_iter().map(|it| it.sequence);
        Ok(here.max().unwrap_or_default() < there)
    }

    /// Syncs until nothing is left to do.
    pub(super) async fn settle(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let begin = Instant::now();
        let mut rest = 0;
        for _ in 0..PATIENCE {
            let weather = Weather::fine(random.fork());
            match self.sync(SyncDirection::Both, random, weather).await? {
                Some(after_ms) => sleep(Duration::from_millis(after_ms)).await,
                None if self.is_settled()? => rest += 1,
                None => rest = 0,
            }
            if rest == 2 {
                return Ok(());
            }
        }
        let trouble = self.trouble.borrow();
        let what = match trouble.is_empty() {
            true => "something is left to upload, or to ask for".to_owned(),
            false => format!("its sync ends with: {trouble}"),
        };
        Err(self.broken(&format!(
            "I6: it does not come to rest in {} seconds though nothing fails any more: {what}",
            begin.elapsed().as_secs()
        )))
    }

    /// Whether nothing waits to be uploaded or asked for.
    fn is_settled(&self) -> Result<bool, SimulationFailure> {
        let database = self.database.borrow();
        let status = database.as_ref().map(RemoteDatabase::status).transpose()?;
        let subscriptions = status.iter().flat_map(|it| &it.subscriptions);
        let (mut stale, mut refused, mut pending) = (0, 0, 0);
        for table in subscriptions.flat_map(|it| &it.tables) {
            stale += table.stale;
            refused += table.refused;
            pending += table.pending;
        }
        // Of a refused change its row, and what that refers to, may be asked for until somebody
        // decides about the change.
        Ok(pending == 0 && (stale == 0 || refused > 0))
    }
}

/// What a session goes by.
fn options(direction: SyncDirection, first_proof: ProofKind) -> SessionOptions {
    SessionOptions {
        direction,
        verify: VerifyMode::default(),
        user_proof: Some(UserProof::Password(PASSWORD.into())),
        server: None,
        other_centre: false,
        adopt: None,
        first_proof,
        spool: Box::new(MemorySpool::default()),
        keep: Box::new(NoDownloadStore),
    }
}

/// Opens a file as a process does that never waits: there is only one thread.
fn open(device: &Device) -> Result<RemoteDatabase, SimulationFailure> {
    let database = RemoteDatabase::open(&device.path())?;
    database.wait_for_writers(Duration::ZERO)?;
    Ok(database)
}

/// The same, as an application does.
fn application(device: &Device) -> Result<Connection, SimulationFailure> {
    let connection = application::open(&device.application_path())?;
    with_chance(&connection)?;
    Ok(connection)
}

/// Whether somebody else writes, or the device is without power and will start again.
fn is_passing(error: &rusqlite::Error) -> bool {
    let is_gone = error.sqlite_error_code() == Some(rusqlite::ErrorCode::SystemIoFailure);
    is_gone || application::is_busy(error)
}

/// Whether the file does not take what a transaction wrote.
pub(super) fn is_refused(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation)
}

fn summary(outcome: &SessionOutcome) -> String {
    let told = |report: &tidewater_remote::Report| {
        let (up, down) = (&report.uploaded, &report.downloaded);
        let mut text = format!(
            "syncs: {} up, {} down",
            up.inserts + up.updates + up.deletes,
            down.upserts + down.removals
        );
        if report.conflicts > 0 {
            text.push_str(&format!(", {} lost as conflicts", report.conflicts));
        }
        for refused in &report.refused_rows {
            let (table, key, reason) = (&refused.table, &refused.key, &refused.reason);
            text.push_str(&format!(", {table} {key} refused: {reason}"));
        }
        text
    };
    match outcome {
        SessionOutcome::Done(report) => told(report),
        SessionOutcome::More(report) => format!("{}, and goes on", told(report)),
        SessionOutcome::Again(_) => "is asked for its password".into(),
        SessionOutcome::Failed(error) => format!("its sync fails: {} {error}", error.code().name()),
        other => format!("{other:?}"),
    }
}
