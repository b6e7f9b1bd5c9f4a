//! A remote: a real file, an application that edits it, and syncs over the simulated
//! network.

mod accidents;
mod asking;
mod calling;
mod replaced;
mod syncing;

pub(crate) use accidents::KINDS as ACCIDENTS;
pub(crate) use asking::KINDS as ASKING;
pub(crate) use calling::KINDS as CALLING;
pub(crate) use replaced::KINDS as ADOPTIONS;
pub(crate) use syncing::KINDS as LOSSES;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, try_join_all};
use rusqlite::Connection;
use tokio::time::{Instant, sleep};

use tidewater_protocol::RemoteId;
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{Now, SyncDirection};
use tidewater_remote::spool::MemoryDownloadStore;

use crate::application::{self, Application, Contests};
use crate::defects;
use crate::disks::{self, Device};
use crate::failure::SimulationFailure;
use crate::judge::{
    self, AdoptionFile, AskedRegions, LastTracked, Ledger, Parties, SeenTexts, Wishes,
};
use crate::network::{Traces, Weather};
use crate::plan::Plan;
use crate::random::SeededRandom;
use crate::tables::{self, EDITED, Holder};
use crate::world::World;

/// A remote database and all that belongs to it.
pub(crate) struct SimulatedRemote {
    world: Rc<World>,
    pub(crate) name: String,
    pub(crate) user: &'static str,
    /// Who wrote what is in the file: its application, and that of the file it is a copy of.
    authors: Vec<String>,
    device: Device,
    database: RefCell<Option<RemoteDatabase>>,
    application: RefCell<Application>,
    ledger: RefCell<Ledger>,
    wishes: RefCell<Wishes>,
    /// What the application has made of the tables that only some worlds have.
    contests: RefCell<Contests>,
    seen: RefCell<SeenTexts>,
    asked: RefCell<AskedRegions>,
    /// What the application has that waits to be adopted.
    adopting: RefCell<Option<AdoptionFile>>,
    last_tracked: RefCell<LastTracked>,
    /// What has come of first downloads that broke.
    keep: MemoryDownloadStore,
    /// The last acknowledged upload that the file has told of, of an identity.
    sequences: RefCell<BTreeMap<RemoteId, u64>>,
    /// Restorations of the centre when the sequence last went back.
    restorations: Cell<u64>,
    restored: Cell<u64>,
    /// Whether it was told what became of changes without the download that follows: then the
    /// centre's rows are here of which the checkpoint does not know.
    told_alone: Cell<bool>,
    /// Whether anything of its uploads was refused: one that is refused as a whole is not kept.
    was_refused: Cell<bool>,
    /// The tables of which anything was ever refused, also on devices that were replaced.
    refused: RefCell<BTreeSet<String>>,
    /// How far the clock is ahead.
    clock_ms: Cell<i64>,
    /// Restorations of the centre that the ledger knows of.
    reopened: Cell<u64>,
    /// A copy of the file, and what the application had committed, asked for and wanted by then.
    copy: RefCell<Option<(Ledger, AskedRegions, Wishes, Contests)>>,
    /// A copy of the file that goes on elsewhere.
    twin: RefCell<Option<Rc<SimulatedRemote>>>,
    traces: Rc<Traces>,
}

impl SimulatedRemote {
    /// One that has never synced.
    pub(crate) fn new(
        world: &Rc<World>,
        name: String,
        user: &'static str,
        random: SeededRandom,
    ) -> Result<Rc<SimulatedRemote>, SimulationFailure> {
        let mut random = random;
        let device = Device::new(&name, random.fork());
        let remote = SimulatedRemote::at(world, vec![name], user, device, random.fork())?;
        subscribe(&remote.database, user)?;
        if random.percent(10) {
            remote.bring(&mut random)?;
        }
        if random.percent(75) {
            remote.ask(&mut random)?;
        }
        Ok(Rc::new(remote))
    }

    /// One in the file on a device. Its own name is the last of the authors'.
    fn at(
        world: &Rc<World>,
        authors: Vec<String>,
        user: &'static str,
        device: Device,
        random: SeededRandom,
    ) -> Result<SimulatedRemote, SimulationFailure> {
        let name = authors.last().cloned().unwrap_or_default();
        let database = open(&device.path(), world.plan)?;
        let connection = application::open(&device.application_path())?;
        let mut application = Application::new(connection, name.clone(), random, true);
        application.contends(world.contending());
        Ok(SimulatedRemote {
            world: world.clone(),
            name,
            user,
            authors,
            device,
            database: RefCell::new(Some(database)),
            application: RefCell::new(application),
            ledger: RefCell::default(),
            wishes: RefCell::default(),
            contests: RefCell::default(),
            seen: RefCell::default(),
            asked: RefCell::default(),
            adopting: RefCell::default(),
            last_tracked: RefCell::default(),
            keep: MemoryDownloadStore::default(),
            sequences: RefCell::default(),
            restorations: Cell::default(),
            restored: Cell::default(),
            told_alone: Cell::default(),
            was_refused: Cell::default(),
            refused: RefCell::default(),
            clock_ms: Cell::default(),
            reopened: Cell::new(world.restorations.get()),
            copy: RefCell::default(),
            twin: RefCell::default(),
            traces: Rc::default(),
        })
    }

    /// What its application has made of the tables that only some worlds have.
    pub(crate) fn contests(&self) -> Contests {
        self.contests.borrow().clone()
    }

    /// The copy of the file that somebody made, if it went on.
    pub(crate) fn twin(&self) -> Option<Rc<SimulatedRemote>> {
        self.twin.borrow().clone()
    }

    /// Edits and syncs so many times.
    pub(crate) fn live(
        self: &Rc<Self>,
        mut random: SeededRandom,
        steps: u64,
    ) -> LocalBoxFuture<'static, Result<(), SimulationFailure>> {
        let remote = self.clone();
        Box::pin(async move {
            // Some often upload without a download: on the way, where every byte costs.
            let alone = random.pick(&[5, 15, 60]).unwrap_or_default();
            for left in (0..steps).rev() {
                sleep(Duration::from_millis(random.below(3_000))).await;
                match random.below(100) {
                    0..=14 if remote.world.plan.is_live() => {
                        let weather = Weather::any(&mut random, remote.world.plan.faults);
                        remote.threaten(&mut random);
                        let ends = Instant::now() + Duration::from_millis(random.below(15_000));
                        let is_over = || Instant::now() >= ends;
                        remote.stay(&mut random, weather, &is_over).await?;
                    }
                    0..=54 => {
                        let weather = Weather::any(&mut random, remote.world.plan.faults);
                        remote.threaten(&mut random);
                        let direction = match random.below(100) {
                            chance if chance < alone => SyncDirection::UploadOnly,
                            95.. => SyncDirection::DownloadOnly,
                            _ => SyncDirection::Both,
                        };
                        let database = &remote.database;
                        remote
                            .sync_in(direction, database, &mut random, weather)
                            .await?;
                    }
                    55..=59 => remote.sync_twice_at_once(&mut random).await?,
                    60..=64 => remote.ask(&mut random)?,
                    65..=91 => remote.edit()?,
                    _ if remote.world.plan.accidents == 0 => remote.edit()?,
                    _ => {
                        if let Some(twin) = remote.accident(&mut random)? {
                            let lives = [remote.live(random.fork(), left), twin.live(random, left)];
                            try_join_all(lives).await?;
                            return Ok(());
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Edits while it syncs, as applications do.
    pub(crate) async fn disturb(
        &self,
        mut random: SeededRandom,
        steps: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(4_000))).await;
            // Also in the middle of a sync.
            if self.world.plan.accidents > 0 && random.percent(3) {
                self.rebuild(&mut random)?;
            }
            if random.percent(10) {
                self.ask(&mut random)?;
            }
            self.edit()?;
        }
        Ok(())
    }

    pub(crate) fn edit(&self) -> Result<(), SimulationFailure> {
        let regions = self.world.regions(self.user)?;
        self.notice_adoption()?;
        let mut application = self.application.borrow_mut();
        self.seen.borrow_mut().look(application.connection())?;
        defects::prepare(application.connection());
        if self.world.plan.is_live() {
            application.wishes_for(self.user, self.now().unix_ms);
        }
        let touched = application.edit(&self.world.keys, &regions)?;
        if !application.wishes().is_empty() {
            let (name, wishes) = (&self.name, application.wishes());
            self.world
                .chronicle
                .note(&format!("{name} writes down {wishes:?}"));
            self.wishes.borrow_mut().committed(wishes);
        }
        if !touched.is_empty() {
            let name = &self.name;
            self.world
                .chronicle
                .note(&format!("{name} edits {touched:?}"));
        }
        if !application.contests().is_empty() {
            let (name, contests) = (&self.name, application.contests());
            self.world
                .chronicle
                .note(&format!("{name} contends {contests:?}"));
            self.contests.borrow_mut().committed(contests);
        }
        for change in &touched {
            let table = &EDITED[change.table];
            if let Some(text) = &change.text
                && judge::is_untracked(application.connection(), table.name)?
            {
                let last_tracked = self.last_tracked.borrow();
                let had = last_tracked.text((change.table, change.key));
                // What it uploaded itself counts as the centre's: a known limit.
                let had = had.filter(|text| !judge::is_by(text, &self.authors));
                self.world.unrecorded().add(text, had);
            }
        }
        let since = judge::audited(&self.world.centre_connection())?;
        let mut ledger = self.ledger.borrow_mut();
        ledger.committed(&touched, since, application.connection())?;
        drop((application, ledger));
        self.judge()
    }

    /// Perhaps something happens to the disk during the next connection.
    fn threaten(&self, random: &mut SeededRandom) {
        if self.world.plan.accidents > 0 && random.percent(15) {
            self.device.threaten(random);
        }
    }

    /// Starts again whoever is dead on the device, and gives this handle another database.
    fn restart(&self, handle: &RefCell<Option<RemoteDatabase>>) -> Result<(), SimulationFailure> {
        self.device.restart();
        let path = self.device.application_path();
        self.application.borrow_mut().reconnect(&path)?;
        *handle.borrow_mut() = Some(open(&self.device.path(), self.world.plan)?);
        // The other handle, if nobody uses it now.
        let idle = self.database.borrow_mut().take();
        *self.database.borrow_mut() = match idle {
            Some(idle) if disks::process_at(idle.path()).is_none_or(|it| it.is_dead()) => {
                Some(open(&self.device.path(), self.world.plan)?)
            }
            other => other,
        };
        Ok(())
    }

    fn now(&self) -> Now {
        let now = self.world.now();
        Now {
            unix_ms: now.unix_ms + self.clock_ms.get(),
            ..now
        }
    }

    /// What must hold at any moment.
    pub(crate) fn judge(&self) -> Result<(), SimulationFailure> {
        self.notice_adoption()?;
        let application = self.application.borrow();
        let remote = application.connection();
        let held = self.world.ever_held(self.user);
        let centre = self.world.centre_connection();
        self.reopen()?;
        let parties = self.parties(remote, &centre);
        for found in [
            judge::torn_download(remote)?,
            judge::row_out_of_scope(remote, &self.authors, (self.user, &held))?,
            judge::misspelt_key(remote)?,
            self.asked.borrow().not_asked_for(remote, &self.authors)?,
            self.ledger.borrow_mut().check(&parties)?,
            self.sequence_went_back()?,
            self.taken_for_another(),
            self.wishes.borrow().lost(remote)?,
            judge::heard_too_much(remote, self.user)?,
        ] {
            found.map_or(Ok(()), |found| {
                Err(SimulationFailure(format!("{}: {found}", self.name)))
            })?;
        }
        Ok(())
    }

    /// A restored centre has to be given back what it forgot. Not by whoever was copied, which is
    /// a known limit; and to another clock what was kept may be too old.
    fn reopen(&self) -> Result<(), SimulationFailure> {
        let restorations = self.world.restorations.get();
        if self.reopened.replace(restorations) != restorations {
            let gives_back = self.clock_ms.get() == 0 && !self.is_copied();
            let mut ledger = self.ledger.borrow_mut();
            // It may have been on its way up, in effect already, and goes up as if it had not.
            self.world.may_return(ledger.pending());
            if restorations > 1 && self.is_copied() {
                for author in &self.authors {
                    self.world.author_may_repeat(author);
                }
            }
            if self.world.plan.has_gaps() {
                let application = self.application.borrow();
                self.world.rows_may_repeat(application.connection())?;
                ledger.yield_to_others(application.connection(), &self.authors)?;
            }
            ledger.reopen(gives_back);
        }
        Ok(())
    }

    fn parties<'a>(&'a self, remote: &'a Connection, centre: &'a Connection) -> Parties<'a> {
        let copied = self.is_copied();
        let was_there_twice = copied || self.restored.get() > 0;
        let rewriters = match (&*self.authors, was_there_twice) {
            ([first, ..], true) if self.world.chronicle.has_happened(accidents::REBUILT) => {
                vec![first.clone(), accidents::name_of_copy(first)]
            }
            _ => Vec::new(),
        };
        Parties {
            remote,
            centre,
            centre_restored: self.world.restorations.get() > 0,
            copied,
            rewriters,
            is_followed: self.is_followed(),
            gaps_of: self.world.plan.has_gaps().then_some(&self.authors),
        }
    }

    /// What must hold when everybody has synced and nobody writes.
    pub(crate) fn judge_at_rest(&self) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        let centre = self.world.centre_connection();
        let parties = self.parties(application.connection(), &centre);
        let held = self.world.ever_held(self.user);
        let asked = tables::asked(application.connection())?;
        let holder = Holder {
            user: self.user,
            now_ms: self.world.now().unix_ms,
            asked: asked.as_deref(),
        };
        for found in [
            judge::difference(&parties, holder)?,
            judge::upload_out_of_scope(&centre, &self.name, &held, &self.world.settled())?,
            self.told_otherwise(&parties)?,
            parties.forgotten_at_rest()?,
            self.called_otherwise(&parties)?,
        ] {
            found.map_or(Ok(()), |found| {
                Err(SimulationFailure(format!("{}: {found}", self.name)))
            })?;
        }
        Ok(())
    }

    /// What became of calls and events otherwise than it must, and otherwise than the remote is
    /// told.
    fn called_otherwise(&self, parties: &Parties<'_>) -> Result<Option<String>, SimulationFailure> {
        let Parties { remote, centre, .. } = parties;
        let excuses = self.world.excuses();
        let wishes = self.wishes.borrow();
        let mut found = wishes.at_rest(remote, centre, excuses)?;
        found = found.or(judge::incomplete_inbox(remote, centre, self.user)?);
        found = found.or(judge::in_other_name(centre, &self.name, self.user)?);
        // What a restored file has lost may still come by an old connection.
        if self.world.has_one_history() && self.restored.get() == 0 {
            found = found.or(judge::before_upload(
                centre,
                &self.name,
                &self.refused.borrow(),
                &self.world.settled(),
            )?);
        }
        Ok(found)
    }

    /// What of the centre's rows is not here though it has been told of them. Where rows wait to be
    /// asked for again, the next sync tells.
    pub(crate) fn not_woken(&self) -> Result<Option<String>, SimulationFailure> {
        let database = self.database.borrow();
        let status = database.as_ref().map(RemoteDatabase::status).transpose()?;
        let subscriptions = status.iter().flat_map(|it| &it.subscriptions);
        let mut tables = subscriptions.flat_map(|it| &it.tables);
        if tables.any(|it| it.stale > 0) {
            return Ok(None);
        }
        let application = self.application.borrow();
        let centre = self.world.centre_connection();
        let parties = self.parties(application.connection(), &centre);
        let asked = tables::asked(application.connection())?;
        let holder = Holder {
            user: self.user,
            now_ms: self.world.now().unix_ms,
            asked: asked.as_deref(),
        };
        let found = judge::difference(&parties, holder)?;
        let name = &self.name;
        Ok(found.map(|found| format!("{name} was not woken: {found}")))
    }

    /// What the centre refused or took without being told so; where it was restored, nobody
    /// can tell.
    fn told_otherwise(&self, parties: &Parties<'_>) -> Result<Option<String>, SimulationFailure> {
        if !self.world.has_one_history() {
            return Ok(None);
        }
        let (seen, settled) = (self.seen.borrow(), self.world.settled());
        let besides = self.world.plan.besides();
        let overwritten = seen.overwritten(parties.centre, &self.name, besides, &settled)?;
        let found = overwritten.or(judge::refused_here_only(parties)?);
        Ok(found.or(judge::settled_otherwise(parties)?))
    }

    /// Whether its servers know all that happened since it learned of the centre's rows.
    fn is_followed(&self) -> bool {
        self.world.is_followed() && !self.told_alone.get()
    }

    /// Whether there is another copy of the file.
    fn is_copied(&self) -> bool {
        self.authors.len() > 1 || self.twin.borrow().is_some()
    }

    /// Whose changes are in more than one file, or were.
    pub(crate) fn in_several_files(&self) -> Vec<String> {
        match self.restored.get() > 0 || self.is_copied() {
            true => self.authors.clone(),
            false => Vec::new(),
        }
    }

    /// Only who was restored or copied becomes another. And who does not know what the centre has
    /// last of it: its upload was refused as a whole, the centre was restored to before that, and
    /// then to a newer backup.
    fn taken_for_another(&self) -> Option<String> {
        let is_copy = self.is_copied();
        let restored = self.restored.get() > 0;
        let is_unknown = self.was_refused.get() && self.world.restorations.get() > 1;
        (self.has_other_identity() && !is_copy && !restored && !is_unknown)
            .then(|| "I1: a file that nobody copied was taken for a copy".to_owned())
    }

    /// Whether it became another for the centre, whose servers do not follow the new one from the
    /// old one's checkpoint: what was written over what nobody had recorded may lose then, a known
    /// limit.
    fn has_other_identity(&self) -> bool {
        self.sequences.borrow().len() > 1
    }

    /// Who wrote what may lose for that.
    pub(crate) fn authors_without_history(&self) -> &[String] {
        match self.has_other_identity() {
            true => &self.authors,
            false => &[],
        }
    }

    /// The file is an older one: what it tells of is believed, and may go back once if the
    /// centre was ever restored.
    fn forget_sequences(&self) {
        self.sequences
            .borrow_mut()
            .values_mut()
            .for_each(|last| *last = 0);
        self.restorations.set(0);
    }

    fn sequence_went_back(&self) -> Result<Option<String>, SimulationFailure> {
        let database = self.database.borrow();
        let Some(database) = database.as_ref() else {
            return Ok(None);
        };
        let Some(id) = database.account()?.remote_id else {
            return Ok(None);
        };
        let mut sequences = self.sequences.borrow_mut();
        let last = sequences.entry(id).or_default();
        for subscription in database.subscriptions()? {
            let restorations = self.world.restorations.get();
            if subscription.sequence < *last
                && self.restorations.replace(restorations) == restorations
            {
                let now = subscription.sequence;
                return Ok(Some(format!("the sequence went back from {last} to {now}")));
            }
            *last = subscription.sequence;
        }
        Ok(None)
    }
}

/// Subscribes a file that has never synced.
fn subscribe(
    database: &RefCell<Option<RemoteDatabase>>,
    user: &str,
) -> Result<(), SimulationFailure> {
    if let Some(database) = &mut *database.borrow_mut() {
        database.subscribe("tcp://127.0.0.1:7439", user, &["main"])?;
    }
    Ok(())
}

/// Opens a file as a process does that never waits: there is only one thread.
fn open(path: &Path, plan: Plan) -> Result<RemoteDatabase, SimulationFailure> {
    let mut database = RemoteDatabase::open(path)?;
    database.wait_for_writers(Duration::ZERO)?;
    database.limit_kept(plan.kept_limits());
    Ok(database)
}
