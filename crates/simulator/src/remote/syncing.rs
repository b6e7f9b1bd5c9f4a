//! How a remote syncs over the simulated network.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::future::try_join;
use rusqlite::OptionalExtension;
use tokio::time::{Instant, sleep};

use tidewater_protocol::Code;
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{
    ApplyWork, ProofKind, SessionOptions, SessionOutcome, SyncDirection, UserProof, VerifyMode,
};
use tidewater_remote::spool::MemorySpool;

use super::SimulatedRemote;
use super::asking::ASKED_IN_SYNC;
use crate::defects::{self, Meddler};
use crate::disks;
use crate::failure::SimulationFailure;
use crate::line::{ServerLine, summary};
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::tables;
use crate::users::PASSWORD;
use crate::vfs::Process;

const TWICE: &str = "remote synced by two processes at once";
const UPLOAD_UNACKNOWLEDGED: &str = "acknowledgement lost after the upload's commit";
const DOWNLOAD_UNACKNOWLEDGED: &str = "acknowledgement lost after the download's commit";
const RESUMED: &str = "download gone on with that had broken off";
const REFUSED: &str = "row refused by the centre's transaction";

/// Every kind of fault of a sync itself.
pub(crate) const KINDS: &[&str] = &[
    TWICE,
    UPLOAD_UNACKNOWLEDGED,
    DOWNLOAD_UNACKNOWLEDGED,
    RESUMED,
    REFUSED,
];

/// How often a server may send a remote away at once.
const ROUNDS: usize = 6;

/// How often a remote may have to come back before it has synced, when nothing fails any
/// more.
const PATIENCE: usize = 24;

/// How long it may take until then.
const HEALED_WITHIN: Duration = Duration::from_secs(600);

impl SimulatedRemote {
    /// A sync of both directions, see [`SimulatedRemote::sync_in`].
    async fn sync(
        &self,
        handle: &RefCell<Option<RemoteDatabase>>,
        random: &mut SeededRandom,
        weather: Weather,
    ) -> Result<Option<u64>, SimulationFailure> {
        self.sync_in(SyncDirection::Both, handle, random, weather)
            .await
    }

    /// A sync, the first connection of which is in this weather. How long to wait before the next
    /// attempt, if it failed.
    pub(super) async fn sync_in(
        &self,
        direction: SyncDirection,
        handle: &RefCell<Option<RemoteDatabase>>,
        random: &mut SeededRandom,
        weather: Weather,
    ) -> Result<Option<u64>, SimulationFailure> {
        let mut line = Some(self.line(weather));
        let again_after = self.sync_over(&mut line, direction, handle, random).await?;
        if let Some(line) = line {
            line.hang_up().await;
        }
        Ok(again_after)
    }

    /// As many sessions and connections as a sync takes, beginning with the one that there is; what
    /// the application has asked for beside its changes follows. The connection stays if that went
    /// well.
    pub(super) async fn sync_over(
        &self,
        line: &mut Option<ServerLine>,
        direction: SyncDirection,
        handle: &RefCell<Option<RemoteDatabase>>,
        random: &mut SeededRandom,
    ) -> Result<Option<u64>, SimulationFailure> {
        let mut first_proof = ProofKind::Token;
        let mut in_vain = 0;
        while in_vain < ROUNDS {
            in_vain += 1;
            if direction == SyncDirection::UploadOnly {
                self.world.unrecorded().let_lose_all_of(&self.authors);
            }
            if line.is_none() {
                *line = Some(self.line(Weather::fine(random.fork())));
            }
            let outcome = self
                .session(direction, handle, random, line, first_proof)
                .await?;
            self.judge()?;
            if matches!(outcome, None | Some(SessionOutcome::Failed(_))) {
                self.came_to_nothing();
            }
            // The process died, and another one starts a little later.
            let Some(outcome) = outcome else {
                return Ok(Some(1_000));
            };
            match outcome {
                SessionOutcome::Done(_) => {
                    if line.is_some() && !self.call_over(line, direction, handle, random).await? {
                        return Ok(Some(1_000));
                    }
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

    /// Two processes sync the file at once; while one of them waits, the other one may do so
    /// several times, with what the application has written since.
    pub(super) async fn sync_twice_at_once(
        &self,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let second = RefCell::new(Some(super::open(
            &self.device.path_of_another(),
            self.world.plan,
        )?));
        let (mut one, mut other) = (random.fork(), random.fork());
        let faults = self.world.plan.faults;
        let here = Weather::any(random, faults);
        let again = random.below(3);
        self.world.chronicle.fault(TWICE);
        let several = async {
            for _ in 0..again {
                let there = Weather::any(&mut other, faults);
                self.sync(&second, &mut other, there).await?;
                self.edit()?;
            }
            let there = Weather::any(&mut other, faults);
            self.sync(&second, &mut other, there).await
        };
        try_join(self.sync(&self.database, &mut one, here), several).await?;
        Ok(())
    }

    /// A new connection in this weather.
    pub(super) fn line(&self, weather: Weather) -> ServerLine {
        let last_is_lost = weather.last_is_lost;
        let stream = match self.world.plan.dials_in_requests(&self.name) {
            true => self.world.dial_in_requests(weather, &self.traces),
            false => self.world.dial(weather, &self.traces),
        };
        ServerLine::new(stream, last_is_lost, self.now())
    }

    /// A session on the connection there is, which stays if another one can follow. How it
    /// ended; `None` if the process died in it.
    async fn session(
        &self,
        direction: SyncDirection,
        handle: &RefCell<Option<RemoteDatabase>>,
        random: &mut SeededRandom,
        line: &mut Option<ServerLine>,
        first_proof: ProofKind,
    ) -> Result<Option<SessionOutcome>, SimulationFailure> {
        let options = SessionOptions {
            direction,
            verify: VerifyMode::default(),
            user_proof: Some(UserProof::Password(PASSWORD.into())),
            server: None,
            other_centre: false,
            adopt: defects::adopt(self.adopts()),
            first_proof,
            spool: Box::new(MemorySpool::default()),
            keep: Box::new(self.keep.clone()),
        };
        let mut seed = [0; 32];
        random.fill(&mut seed);
        let gone = |what: &str| SimulationFailure(what.into());
        let mut here = line.take().ok_or_else(|| gone("there is no connection"))?;
        let database = handle.borrow_mut().take();
        let database = database.ok_or_else(|| gone("two sessions have one handle"))?;
        let process =
            disks::process_at(database.path()).ok_or_else(|| gone("a file is on no device"))?;
        let path = database.path().to_path_buf();
        let mut meddler = Meddler::new(&self.application, &path, &self.world.centre_connection());
        let asked = tables::asked(self.application.borrow().connection())?;
        let asked = self.asked.borrow_mut().begins(asked);
        here.connection.sync(database, options, seed);
        meddler.begun();
        self.pump(&mut here, &process, &meddler, random).await;
        meddler.ends();
        let ended = here.connection.end_sync();
        let (database, outcome) = ended.ok_or_else(|| gone("a session that does not end"))?;
        let applied =
            matches!(outcome, SessionOutcome::Done(_)) && direction != SyncDirection::UploadOnly;
        if self.asked.borrow_mut().ends(asked, applied) && !applied {
            self.world.chronicle.fault(ASKED_IN_SYNC);
        }
        let mut is_lost = false;
        let goes_on = match outcome {
            SessionOutcome::More(_) | SessionOutcome::Again(_) => here.connection.can_sync(),
            // Calls follow.
            SessionOutcome::Done(_) => self.world.plan.is_live() && !here.last_is_lost,
            _ => false,
        };
        if goes_on && !process.is_dead() {
            *line = Some(here);
        } else if !process.is_dead() {
            is_lost = here.hang_up().await;
        }
        let well = !matches!(outcome, SessionOutcome::Failed(_));
        meddler.ended(well, direction == SyncDirection::UploadOnly);
        self.world.chronicle.session();
        self.device.calm(&self.world.chronicle);
        if process.is_dead() {
            drop(database);
            let note = format!("{} dies and starts again", self.name);
            self.world.chronicle.note(&note);
            self.restart(handle)?;
            return Ok(None);
        }
        if matches!(outcome, SessionOutcome::Failed(_))
            && self.acknowledgement_is_missing(&database)?
        {
            self.world.chronicle.fault(UPLOAD_UNACKNOWLEDGED);
        }
        if let SessionOutcome::Done(report) | SessionOutcome::More(report) = &outcome {
            if is_lost && direction != SyncDirection::UploadOnly {
                self.world.chronicle.fault(DOWNLOAD_UNACKNOWLEDGED);
            }
            if report.bytes_kept > 0 {
                self.world.chronicle.fault(RESUMED);
            }
            let alone = matches!(outcome, SessionOutcome::More(_))
                || direction == SyncDirection::UploadOnly;
            if alone && report.conflicts + report.refused > 0 {
                self.told_alone.set(true);
            }
            if report.refused > 0 {
                self.was_refused.set(true);
                let tables = report.refused_rows.iter().map(|it| it.table.clone());
                self.refused.borrow_mut().extend(tables);
                self.world.chronicle.fault(REFUSED);
            }
        }
        *handle.borrow_mut() = Some(database);
        if let SessionOutcome::Failed(error) = &outcome
            && error.code() == Code::ParameterNotAllowed
        {
            self.not_allowed(random)?;
        }
        let name = &self.name;
        self.world
            .chronicle
            .note(&format!("{name}: {}", summary(&outcome)));
        Ok(Some(outcome))
    }

    /// Carries the connection's bytes until the session has ended or the process dies.
    async fn pump(
        &self,
        line: &mut ServerLine,
        process: &Process,
        meddler: &Meddler<'_>,
        random: &mut SeededRandom,
    ) {
        let now = || self.now();
        loop {
            meddler.applied();
            if let Some(work) = line.connection.poll_work() {
                let work = self.apply(work, process, meddler, random).await;
                line.connection.handle_work(work);
            }
            // Whoever is dead says nothing more.
            if process.is_dead() {
                return line.cut();
            }
            meddler.sends();
            line.fill();
            if !line.connection.is_syncing() {
                return;
            }
            let ended = tokio::select! {
                biased;
                () = process.ended() => return line.cut(),
                turned = line.turn(self.world.began, &now, None) => turned.err(),
            };
            if let Some(error) = ended {
                meddler.ends();
                line.connection.handle_end(error);
            }
        }
    }

    /// Does the work, as far as the process lives.
    async fn apply(
        &self,
        mut work: ApplyWork,
        process: &Process,
        meddler: &Meddler<'_>,
        random: &mut SeededRandom,
    ) -> ApplyWork {
        while !work.is_done() && !process.is_dead() {
            meddler.applies();
            work.step(self.now());
            meddler.applied();
            if !process.is_dead() {
                // Others do something in between.
                sleep(Duration::from_millis(random.below(3))).await;
            }
        }
        work
    }

    /// Whether the centre has an upload that this remote does not know to be there.
    fn acknowledgement_is_missing(
        &self,
        database: &RemoteDatabase,
    ) -> Result<bool, SimulationFailure> {
        let Some(id) = database.account()?.remote_id else {
            return Ok(false);
        };
        let centre = self.world.centre_connection();
        let sql = "SELECT sequence FROM tidewater_centre_subscription WHERE remote_id = ?1";
        let mut statement = centre.prepare_cached(sql)?;
        let there: Option<i64> = statement.query_row([id.0], |row| row.get(0)).optional()?;
        let mut here = database.subscriptions()?.into_iter();
        Ok(here.any(|it| there.is_some_and(|there| there.unsigned_abs() > it.sequence)))
    }

    /// Syncs until nothing is left to do.
    pub(crate) async fn settle(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let begin = Instant::now();
        let (mut rest, mut last) = (0, None);
        for _ in 0..PATIENCE {
            let weather = Weather::fine(random.fork());
            match self.sync(&self.database, random, weather).await? {
                Some(after_ms) => {
                    self.ask_for_own()?;
                    sleep(Duration::from_millis(after_ms)).await;
                }
                None => {
                    let now = self.waiting()?;
                    rest = match now {
                        Some(_) if now == last => rest + 1,
                        Some(_) => 1,
                        None => 0,
                    };
                    last = now;
                }
            }
            if rest == 2 && begin.elapsed() <= HEALED_WITHIN {
                return Ok(());
            }
        }
        let (name, seconds) = (&self.name, begin.elapsed().as_secs());
        Err(SimulationFailure(format!(
            "I6: {name} does not come to rest, not within {seconds} seconds"
        )))
    }

    /// How many rows wait to be asked for, how many are refused, and how many of those have left with
    /// their values; `None` if something is to be uploaded, or waits to be asked for though nobody has
    /// to decide about it.
    fn waiting(&self) -> Result<Option<(u64, u64, u64)>, SimulationFailure> {
        let database = self.database.borrow();
        let status = database.as_ref().map(RemoteDatabase::status).transpose()?;
        let subscriptions = status.iter().flat_map(|it| &it.subscriptions);
        let (mut stale, mut refused, mut pending) = (0, 0, 0);
        for table in subscriptions.flat_map(|it| &it.tables) {
            stale += table.stale;
            refused += table.refused;
            pending += table.pending;
        }
        // Of a refused change its row, and what that refers to, may be asked for until
        // somebody decides about the change; and all that waits below the row of another.
        let waiting = "SELECT count(*) FROM tidewater_stale WHERE waits_for_table IS NOT NULL";
        let left = "SELECT count(row_values) FROM tidewater_refused";
        let application = self.application.borrow();
        let count = |sql| -> rusqlite::Result<u64> {
            let mut statement = application.connection().prepare_cached(sql)?;
            statement.query_row([], |row| row.get(0))
        };
        let (waiting, left) = (count(waiting)?, count(left)?);
        let outbox = status.map_or(0, |it| it.outbox.pending);
        let is_settled = pending == 0 && stale <= waiting + 2 * refused && outbox == 0;
        Ok(is_settled.then_some((stale, refused, left)))
    }
}
