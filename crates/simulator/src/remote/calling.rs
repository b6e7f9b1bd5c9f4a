//! What a remote does over a connection beside its syncs: what is in the outbox, what comes into
//! the inbox, and staying connected. As the client does it, with this world's network and time.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use tidewater_protocol::Code;
use tidewater_protocol::message::Call;
use tidewater_remote::RemoteError;
use tidewater_remote::database::{
    EventInterest, InboxProgress, OutboxOutcome, OutboxRun, RemoteDatabase,
};
use tidewater_remote::session::SyncDirection;

use super::SimulatedRemote;
use crate::defects;
use crate::disks;
use crate::failure::SimulationFailure;
use crate::line::{CallEnd, ServerLine, ServerMessage};
use crate::network::Weather;
use crate::random::SeededRandom;

const ANSWERED: &str = "row of an outbox executed";
const REFUSED: &str = "row of an outbox refused";
const LATER: &str = "row of an outbox left for later";
const UNKNOWN: &str = "outcome of a row of an outbox lost";
const CAME: &str = "events came into an inbox";
const BEGUN_ANEW: &str = "inbox begun anew";
const STAYED: &str = "remote stayed connected";
const TOLD: &str = "remote told that something has changed";

/// Every kind of thing that happens over a connection beside syncs.
pub(crate) const KINDS: &[&str] = &[
    ANSWERED, REFUSED, LATER, UNKNOWN, CAME, BEGUN_ANEW, STAYED, TOLD,
];

/// How often somebody who stays connected looks whether something was changed in his file.
const GLANCE: Duration = Duration::from_secs(1);

/// Why nothing more is called.
enum CallStop {
    /// The connection is lost, or the file cannot be written: the next sync goes on.
    Off,
    Promise(SimulationFailure),
}

impl From<SimulationFailure> for CallStop {
    fn from(failed: SimulationFailure) -> CallStop {
        CallStop::Promise(failed)
    }
}

impl From<RemoteError> for CallStop {
    fn from(_: RemoteError) -> CallStop {
        CallStop::Off
    }
}

impl SimulatedRemote {
    /// Executes the outbox if changes go up, then fills the inbox if they come down. Whether the
    /// connection is of use after that; otherwise it is gone.
    pub(super) async fn call_over(
        &self,
        line: &mut Option<ServerLine>,
        direction: SyncDirection,
        handle: &RefCell<Option<RemoteDatabase>>,
        random: &mut SeededRandom,
    ) -> Result<bool, SimulationFailure> {
        let gone = |what: &str| SimulationFailure(what.into());
        let mut here = line.take().ok_or_else(|| gone("there is no connection"))?;
        let database = handle.borrow_mut().take();
        let mut database = database.ok_or_else(|| gone("two sessions have one handle"))?;
        let process =
            disks::process_at(database.path()).ok_or_else(|| gone("a file is on no device"))?;
        self.threaten(random);
        let called = tokio::select! {
            biased;
            () = process.ended() => Err(CallStop::Off),
            called = self.calls(&mut here, direction, &mut database) => called,
        };
        self.device.calm(&self.world.chronicle);
        if process.is_dead() {
            drop(database);
            let note = format!("{} dies over its calls and starts again", self.name);
            self.world.chronicle.note(&note);
            self.restart(handle)?;
            return Ok(false);
        }
        *handle.borrow_mut() = Some(database);
        match called {
            Ok(()) => {
                *line = Some(here);
                Ok(true)
            }
            Err(CallStop::Off) => {
                here.hang_up().await;
                Ok(false)
            }
            Err(CallStop::Promise(failed)) => Err(failed),
        }
    }

    async fn calls(
        &self,
        line: &mut ServerLine,
        direction: SyncDirection,
        database: &mut RemoteDatabase,
    ) -> Result<(), CallStop> {
        if direction != SyncDirection::DownloadOnly {
            self.empty_outbox(line, database).await?;
        }
        if direction != SyncDirection::UploadOnly {
            for mut interest in database.interests()? {
                self.fetch(line, database, &mut interest).await?;
            }
        }
        Ok(())
    }

    async fn empty_outbox(
        &self,
        line: &mut ServerLine,
        database: &mut RemoteDatabase,
    ) -> Result<(), CallStop> {
        let chronicle = &self.world.chronicle;
        defects::before_outbox(self.application.borrow().connection());
        let (mut emptying, mut outcome) = (OutboxRun::default(), None);
        loop {
            let now_ms = self.now().unix_ms;
            let was_lost = matches!(outcome, Some(OutboxOutcome::Lost { .. }));
            let Some(next) = database.next_of_outbox(&mut emptying, outcome, now_ms)? else {
                return if was_lost { Err(CallStop::Off) } else { Ok(()) };
            };
            let called = self.call(line, &next.call, next.within_ms).await?;
            let (name, id) = (&self.name, next.id);
            let what = &next.call.procedure;
            outcome = Some(match called {
                CallEnd::Answered(answer) => {
                    chronicle.note(&format!("{name}: {id}, {what}, is answered"));
                    chronicle.fault(ANSWERED);
                    OutboxOutcome::Answered(answer)
                }
                CallEnd::Failed(failed) => {
                    chronicle.note(&format!("{name}: {id}, {what}, fails: {failed}"));
                    let code = failed.code();
                    chronicle.fault(match code.is_some_and(Code::is_transient) {
                        true => LATER,
                        false => REFUSED,
                    });
                    OutboxOutcome::Failed(failed)
                }
                CallEnd::Lost => {
                    chronicle.fault(UNKNOWN);
                    OutboxOutcome::Lost {
                        code: Code::ConnectionLost,
                        reason: "the simulated connection is lost".into(),
                    }
                }
            });
        }
    }

    /// Gets all new events of an interest.
    async fn fetch(
        &self,
        line: &mut ServerLine,
        database: &mut RemoteDatabase,
        interest: &mut EventInterest,
    ) -> Result<(), CallStop> {
        loop {
            let answer = match self.call(line, &interest.call(), None).await? {
                CallEnd::Answered(answer) => answer,
                CallEnd::Lost => return Err(CallStop::Off),
                CallEnd::Failed(failed) => {
                    let code = failed.code().map_or("unknown", Code::name);
                    let (reason, now_ms) = (failed.message.as_str(), self.now().unix_ms);
                    database.refuse_interest(interest, code, reason, now_ms)?;
                    return Ok(());
                }
            };
            let application = self.application.borrow();
            let remote = application.connection();
            if defects::advances_early(remote, interest, &answer) {
                return Err(CallStop::Off);
            }
            let before = begun_anew(remote).unwrap_or_default();
            let took = database.take_events(interest, &answer, self.now().unix_ms)?;
            if begun_anew(remote).unwrap_or_default() > before {
                self.world.chronicle.fault(BEGUN_ANEW);
            }
            match took {
                Some(InboxProgress::More(count)) => {
                    let name = &self.name;
                    let note = format!("{name} hears {count} of {}", interest.subject);
                    self.world.chronicle.note(&note);
                    self.world.chronicle.fault(CAME);
                }
                Some(InboxProgress::All | InboxProgress::Others) => return Ok(()),
                None => return Err(SimulationFailure("events that cannot be read".into()).into()),
            }
        }
    }

    async fn call(
        &self,
        line: &mut ServerLine,
        call: &Call,
        within_ms: Option<u64>,
    ) -> Result<CallEnd, SimulationFailure> {
        let now = || self.now();
        line.call(self.world.began, &now, call, within_ms).await
    }

    /// Syncs and stays connected until it is over, syncs when it is told to, or when something was
    /// changed in the file, and connects again when the connection is lost. Every connection but
    /// the first is in fine weather.
    pub(crate) async fn stay(
        &self,
        random: &mut SeededRandom,
        weather: Weather,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), SimulationFailure> {
        let mut line = Some(self.line(weather));
        while !is_over() {
            let synced = self
                .sync_over(&mut line, SyncDirection::Both, &self.database, random)
                .await?;
            self.judge()?;
            if let Some(after_ms) = synced {
                sleep(Duration::from_millis(after_ms)).await;
                continue;
            }
            let Some(here) = &mut line else {
                continue;
            };
            if !here.is_live && !self.go_live(here).await? || !self.linger(here, is_over).await? {
                line = None;
                sleep(GLANCE).await;
            }
        }
        if let Some(line) = line {
            line.hang_up().await;
        }
        Ok(())
    }

    async fn go_live(&self, line: &mut ServerLine) -> Result<bool, SimulationFailure> {
        let live = Call {
            procedure: "tidewater.live".into(),
            ..Call::default()
        };
        line.is_live = matches!(self.call(line, &live, None).await?, CallEnd::Answered(_));
        if line.is_live {
            self.world.chronicle.fault(STAYED);
        }
        Ok(line.is_live)
    }

    /// Waits for a reason to sync, or until it is over. Whether the connection still is.
    async fn linger(
        &self,
        line: &mut ServerLine,
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool, SimulationFailure> {
        let now = || self.now();
        line.listen();
        loop {
            if !line.connection.is_open() {
                return Ok(false);
            }
            while let Some(said) = line.said.pop_front() {
                let ServerMessage::Call { call, .. } = said else {
                    continue;
                };
                if call.procedure == "tidewater.changed" {
                    self.world.chronicle.fault(TOLD);
                    return Ok(true);
                }
            }
            if is_over() || self.has_something_to_upload()? {
                return Ok(true);
            }
            let until = Instant::now() + GLANCE;
            line.wait(self.world.began, &now, Some(until)).await;
        }
    }

    fn has_something_to_upload(&self) -> Result<bool, SimulationFailure> {
        let database = self.database.borrow();
        let has = database
            .as_ref()
            .map(RemoteDatabase::has_something_to_upload);
        Ok(has.transpose()?.unwrap_or_default())
    }
}

/// How often an inbox was begun anew.
fn begun_anew(remote: &rusqlite::Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT count(*) FROM tidewater_inbox WHERE kind = 'anew'";
    remote.prepare_cached(sql)?.query_row([], |row| row.get(0))
}
