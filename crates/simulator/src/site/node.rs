//! A file that syncs: a device's with its branch, or the branch's own with headquarters.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{
    ApplyWork, Now, ProofKind, SessionOptions, SessionOutcome, SyncDirection, UserProof, VerifyMode,
};
use tidewater_remote::spool::{MemoryDownloadStore, MemorySpool};

use super::Site;
use crate::calendar::BEGIN_MS;
use crate::chronicle::Chronicle;
use crate::defects::{FileNumbers, show_lines};
use crate::disks;
use crate::failure::SimulationFailure;
use crate::line::{ServerLine, summary};
use crate::network::{Traces, Weather};
use crate::random::SeededRandom;
use crate::users::PASSWORD;
use crate::vfs::Process;

/// How often a server may send a file away at once.
const ROUNDS: usize = 6;

/// A file that syncs.
pub(crate) struct Node {
    name: &'static str,
    above: Rc<Site>,
    in_requests: bool,
    /// Where a process that syncs finds the file.
    path: Box<dyn Fn() -> PathBuf>,
    database: RefCell<Option<RemoteDatabase>>,
    keep: MemoryDownloadStore,
    traces: Rc<Traces>,
    chronicle: Rc<Chronicle>,
    began: Instant,
}

impl Node {
    /// One that has never synced, of a user of the site above.
    pub(crate) fn new(
        (name, user): (&'static str, &str),
        above: &Rc<Site>,
        in_requests: bool,
        path: Box<dyn Fn() -> PathBuf>,
    ) -> Result<Node, SimulationFailure> {
        let mut database = open(path())?;
        database.subscribe("tcp://127.0.0.1:7439", user, &["main"])?;
        Ok(Node::with(name, database, above, in_requests, path))
    }

    /// The same file, copied: it is whose it was.
    pub(crate) fn of_copy(
        name: &'static str,
        above: &Rc<Site>,
        in_requests: bool,
        path: Box<dyn Fn() -> PathBuf>,
    ) -> Result<Node, SimulationFailure> {
        Ok(Node::with(name, open(path())?, above, in_requests, path))
    }

    fn with(
        name: &'static str,
        database: RemoteDatabase,
        above: &Rc<Site>,
        in_requests: bool,
        path: Box<dyn Fn() -> PathBuf>,
    ) -> Node {
        Node {
            name,
            above: above.clone(),
            in_requests,
            path,
            database: RefCell::new(Some(database)),
            keep: MemoryDownloadStore::default(),
            traces: Rc::default(),
            chronicle: above.chronicle.clone(),
            began: above.began,
        }
    }

    /// Does something with the file, where no session has it and its process lives.
    pub(crate) fn with_file<T>(&self, act: impl FnOnce(&mut RemoteDatabase) -> T) -> Option<T> {
        let mut database = self.database.borrow_mut();
        let database = database.as_mut()?;
        let process = disks::process_at(database.path())?;
        (!process.is_dead()).then(|| act(database))
    }

    /// How many changes wait, and how many were refused.
    pub(crate) fn waiting(&self) -> Result<(u64, u64), SimulationFailure> {
        let database = self.database.borrow();
        let waiting = database.as_ref().map(RemoteDatabase::waiting).transpose()?;
        Ok(waiting.unwrap_or_default())
    }

    /// The process that syncs, where it does not just now.
    pub(crate) fn process(&self) -> Option<Process> {
        let database = self.database.borrow();
        disks::process_at(database.as_ref()?.path())
    }

    /// As many sessions as a sync takes, the first connection in this weather. How long to wait
    /// before the next attempt, if it failed.
    pub(crate) async fn sync(
        &self,
        weather: Weather,
        random: &mut SeededRandom,
    ) -> Result<Option<u64>, SimulationFailure> {
        let mut line = Some(self.line(weather));
        let mut first_proof = ProofKind::Token;
        let mut in_vain = 0;
        while in_vain < ROUNDS {
            in_vain += 1;
            if line.is_none() {
                line = Some(self.line(Weather::fine(random.fork())));
            }
            match self.session(&mut line, first_proof, random).await? {
                Some(SessionOutcome::Done(_)) => return Ok(None),
                Some(SessionOutcome::More(_)) => {
                    first_proof = ProofKind::Token;
                    in_vain = 0;
                }
                Some(SessionOutcome::Again(proof)) => first_proof = proof,
                Some(SessionOutcome::Failed(error)) => {
                    return Ok(Some(error.retry_after_ms().unwrap_or(1_000)));
                }
                // The process died, and another one starts a little later.
                None => return Ok(Some(1_000)),
                Some(other) => {
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
        let stream = self.above.dial(weather, &self.traces, self.in_requests);
        ServerLine::new(stream, last_is_lost, self.now())
    }

    async fn session(
        &self,
        line: &mut Option<ServerLine>,
        first_proof: ProofKind,
        random: &mut SeededRandom,
    ) -> Result<Option<SessionOutcome>, SimulationFailure> {
        let options = SessionOptions {
            direction: SyncDirection::Both,
            verify: VerifyMode::default(),
            user_proof: Some(UserProof::Password(PASSWORD.into())),
            server: None,
            other_centre: false,
            adopt: None,
            first_proof,
            spool: Box::new(MemorySpool::default()),
            keep: Box::new(self.keep.clone()),
        };
        let mut seed = [0; 32];
        random.fill(&mut seed);
        let gone = |what: &str| SimulationFailure(what.into());
        let mut here = line.take().ok_or_else(|| gone("there is no connection"))?;
        let database = self.database.borrow_mut().take();
        let database = match database {
            // It died while it had nothing to do.
            Some(it) if disks::process_at(it.path()).is_none_or(|it| it.is_dead()) => {
                open((self.path)())?
            }
            Some(it) => it,
            None => return Err(gone("two sessions have one handle")),
        };
        let process = disks::process_at(database.path());
        let process = process.ok_or_else(|| gone("a file is on no device"))?;
        let path = database.path().to_owned();
        let numbers = FileNumbers::read_from(&path);
        here.connection.sync(database, options, seed);
        self.pump(&mut here, &process, random).await;
        let ended = here.connection.end_sync();
        let (database, outcome) = ended.ok_or_else(|| gone("a session that does not end"))?;
        self.chronicle.session();
        if process.is_dead() {
            drop(database);
            let name = self.name;
            self.chronicle
                .note(&format!("{name} dies and starts again"));
            *self.database.borrow_mut() = Some(open((self.path)())?);
            return Ok(None);
        }
        if let Some(numbers) = numbers {
            numbers.keep(&path);
        }
        show_lines(&path, &self.above.disk.path());
        *self.database.borrow_mut() = Some(database);
        if matches!(outcome, SessionOutcome::More(_) | SessionOutcome::Again(_))
            && here.connection.can_sync()
        {
            *line = Some(here);
        } else {
            here.hang_up().await;
        }
        let (name, what) = (self.name, summary(&outcome));
        self.chronicle.note(&format!("{name}: {what}"));
        Ok(Some(outcome))
    }

    /// Carries the connection's bytes until the session has ended or the process dies.
    async fn pump(&self, line: &mut ServerLine, process: &Process, random: &mut SeededRandom) {
        let now = || self.now();
        loop {
            if let Some(work) = line.connection.poll_work() {
                let work = self.apply(work, process, random).await;
                line.connection.handle_work(work);
            }
            if process.is_dead() {
                return line.cut();
            }
            line.fill();
            if !line.connection.is_syncing() {
                return;
            }
            let ended = tokio::select! {
                biased;
                () = process.ended() => return line.cut(),
                turned = line.turn(self.began, &now, None) => turned.err(),
            };
            if let Some(error) = ended {
                line.connection.handle_end(error);
            }
        }
    }

    /// Does the work, as far as the process lives.
    async fn apply(
        &self,
        mut work: ApplyWork,
        process: &Process,
        random: &mut SeededRandom,
    ) -> ApplyWork {
        while !work.is_done() && !process.is_dead() {
            work.step(self.now());
            if !process.is_dead() {
                sleep(Duration::from_millis(random.below(3))).await;
            }
        }
        work
    }

    fn now(&self) -> Now {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now {
            ticks_ms: elapsed,
            unix_ms: BEGIN_MS + i64::try_from(elapsed).unwrap_or(i64::MAX),
        }
    }
}

/// Opens a file as a process does that never waits: there is only one thread.
fn open(path: PathBuf) -> Result<RemoteDatabase, SimulationFailure> {
    let database = RemoteDatabase::open(&path)?;
    database.wait_for_writers(Duration::ZERO)?;
    Ok(database)
}
