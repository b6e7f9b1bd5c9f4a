//! The simulated world: a centre, its servers, the network, the remotes, and what happens.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{ready, try_join, try_join3};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use rusqlite::Connection;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep};

use tidewater_remote::session::Now;

use crate::application::{self, Application, Brought, Contending, Contests, FreshKeys, Wish};
use crate::besides::Differences;
use crate::chronicle::Chronicle;
use crate::clerk;
use crate::disks::{self, CentreDisk};
use crate::hierarchy;
use crate::host::Host;
use crate::intruder::Intruder;
use crate::judge::{self, Excuses, MayRepeat, Settled, Unrecorded};
use crate::liar::LIED;
use crate::market;
use crate::network::{Farm, Traces, Weather};
use crate::office::{self, Backend};
use crate::operator;
use crate::plan::Plan;
use crate::random::Random;
use crate::remote::Remote;
use crate::scenario::{DAY_MS, USERS};
use crate::template;
use crate::waking;

/// Everybody's password.
pub(crate) const PASSWORD: &str = "correct horse";

/// When every simulation begins, in milliseconds since 1970.
pub(crate) const BEGIN_MS: i64 = 1_700_000_000_000;

/// How many days may pass in which nothing happens: what remotes keep must not be too old.
const MOST_DAYS: i64 = 3;

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// How often all remotes may have to sync, one after the other, until nobody uploads anything.
const ROUNDS: usize = 6;

/// A transaction of an application stays open: SQLite lets nobody else write meanwhile.
pub(crate) const LOCKED: &str = "centre locked by a long transaction";

/// A promise is broken, or something that cannot be has happened.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(format!("unexpected: {error}"))
    }
}

/// What everybody in a simulation shares.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) chronicle: Rc<Chronicle>,
    pub(crate) keys: FreshKeys,
    /// Where the centre is.
    pub(crate) disk: CentreDisk,
    pub(crate) began: Instant,
    /// Where servers run; a remote takes any.
    pub(crate) hosts: Vec<Host>,
    next_host: Cell<usize>,
    /// See [`World::pass_a_day`].
    days_passed: Cell<i64>,
    /// Nothing happens by accident any more.
    is_healed: Cell<bool>,
    /// Programs of the office end.
    is_over: Cell<bool>,
    /// How often the centre was restored.
    pub(crate) restorations: Cell<u64>,
    /// The judges' own connection, which only reads.
    centre: RefCell<Connection>,
    /// The regions that a user has had at any time.
    ever_held: RefCell<BTreeMap<&'static str, BTreeSet<i64>>>,
    may_repeat: RefCell<MayRepeat>,
    /// What was written while nothing tracked its table.
    unrecorded: RefCell<Unrecorded>,
    /// What was pending somewhere when the centre was restored.
    may_return: RefCell<BTreeSet<String>>,
    intruder: Intruder,
    /// What an operator has written who settles conflicts and refused rows.
    settled: RefCell<Settled>,
    differences: Rc<Differences>,
    /// What applications of the centre have made of the tables that only some worlds have.
    contests: RefCell<Contests>,
    /// What others made of them on devices that are gone, or forgot it.
    doubtful: RefCell<Contests>,
    /// Applications that have got another device while a copy of the first one's file lives on.
    pub(crate) in_two_files: RefCell<BTreeSet<String>>,
    /// What judges requests.
    pub(crate) backend: RefCell<Backend>,
}

/// Runs a simulation from beginning to end.
pub(crate) async fn play(plan: Plan, chronicle: Rc<Chronicle>) {
    let mut played = simulate(plan, &chronicle).await;
    if played.is_ok() && plan.has_hierarchy() {
        played = hierarchy::play(plan, &chronicle).await;
    }
    if played.is_ok() && plan.has_market() {
        played = market::play(plan, &chronicle).await;
    }
    if let Err(Failed(what)) = played {
        chronicle.failed(what);
    }
}

async fn simulate(plan: Plan, chronicle: &Rc<Chronicle>) -> Result<(), Failed> {
    let mut random = Random::new(plan.seed);
    let disk = CentreDisk::new(random.fork());
    let besides = plan.besides();
    disk.put(template::centre((random.percent(25), besides)));
    let path = disk.path();
    let began = Instant::now();
    let intruder = Intruder::new(random.fork());
    let servers = random.between(1, 3) as usize;
    let hosts: Vec<Host> = (0..servers)
        .map(|place| Host::new(place, began, random.fork(), intruder.clone()))
        .map(|host| host.live(plan.is_live()).with(besides))
        .collect();
    let world = Rc::new(World {
        plan,
        chronicle: chronicle.clone(),
        keys: FreshKeys::new(),
        disk,
        began,
        hosts,
        next_host: Cell::new(0),
        centre: RefCell::new(application::open(&path)?),
        days_passed: Cell::new(0),
        is_healed: Cell::new(false),
        is_over: Cell::new(false),
        restorations: Cell::new(0),
        ever_held: RefCell::default(),
        may_repeat: RefCell::default(),
        unrecorded: RefCell::default(),
        may_return: RefCell::default(),
        intruder,
        settled: RefCell::default(),
        differences: Rc::default(),
        contests: RefCell::default(),
        doubtful: RefCell::default(),
        in_two_files: RefCell::default(),
        backend: RefCell::default(),
    });
    for host in &world.hosts {
        host.start(world.centre_path()).await?;
    }
    // Another chance, so that what is beside the syncs does not shift them.
    let mut other = Random::new(plan.seed ^ 0x6f66_6669_6365);
    let lived = match plan.is_live() {
        true => {
            let provided = office::provide(&world, other.fork());
            try_join(live(&world, &mut random, other), provided)
                .await
                .map(drop)
        }
        false => live(&world, &mut random, other).await,
    };
    let mut stopped = Ok(());
    for host in &world.hosts {
        stopped = stopped.and(host.stop(chronicle).await);
    }
    lived.and(stopped)
}

/// Everybody does as the seed says; then the world heals, and is judged.
async fn live(world: &Rc<World>, random: &mut Random, mut other: Random) -> Result<(), Failed> {
    world.note_held()?;
    let mut remotes = Vec::new();
    for number in 0..world.plan.remotes {
        let user = USERS[(number % USERS.len() as u64) as usize];
        let name = format!("r{number}");
        remotes.push(Remote::new(world, name, user, random.fork())?);
    }
    let lives = remotes.iter().map(|remote| {
        let (own, other) = (random.fork(), random.fork());
        let steps = world.plan.steps;
        try_join(remote.live(own, steps), remote.disturb(other, steps / 2))
    });
    // Not in their order: whoever finds something first ends the simulation.
    let lives: FuturesUnordered<_> = lives.collect();
    let lives = lives.try_for_each(|_| ready(Ok(())));
    let mut application = Application::new(
        application::open(&world.centre_path())?,
        "centre".into(),
        random.fork(),
        false,
    );
    application.contends(world.contending());
    let steps = world.plan.centre_steps;
    let centre_life = world.centre_life(application, random.fork(), steps);
    let operated = operator::operate(world, random.fork(), world.plan.accidents);
    let calls = match world.plan.is_live() {
        true => other.below(6),
        false => 0,
    };
    let called = office::call(world, other.fork(), calls);
    let lived = try_join3(lives, centre_life, operated);
    let mut clerk = Random::new(world.plan.seed ^ 0x0063_6c65_726b);
    let settled = clerk::settle(world, clerk.fork(), world.plan.settlings());
    let (_, called, ()) = try_join3(lived, called, settled).await?;
    world.is_healed.set(true);
    world.chronicle.note("the world heals");
    world.intruder.leave();
    sleep(HEALING).await;
    clerk::settle(world, clerk, world.plan.settlings() / 4).await?;
    let twins: Vec<_> = remotes.iter().filter_map(|remote| remote.twin()).collect();
    remotes.extend(twins);
    come_to_rest(world, &remotes, random).await?;
    let found = judge::applied_twice(
        &world.centre_connection(),
        &world.may_repeat.borrow(),
        &world.settled(),
        world.plan.besides(),
    )?;
    found.map_or(Ok(()), |found| Err(Failed(found)))?;
    if world.has_one_history() {
        let centre = world.centre_connection();
        if !world.is_followed() {
            world.unrecorded().let_all_lose();
        }
        for remote in &remotes {
            let mut unrecorded = world.unrecorded();
            unrecorded.let_lose_all_of(remote.authors_without_history());
        }
        let unrecorded = world.unrecorded();
        let lost = judge::lost_against_nobody(&centre, &unrecorded)?;
        let settled = world.settled();
        let found = judge::lost_and_taken(&centre, &settled)?.or(lost);
        let found = found.or(judge::written_otherwise(&centre)?);
        let found = found.or(judge::replayed_for_nothing(&centre)?);
        let found = found.or(judge_contests(world, &remotes)?);
        found.map_or(Ok(()), |found| Err(Failed(found)))?;
    }
    for remote in &remotes {
        remote.judge_at_rest()?;
    }
    if world.plan.is_live() {
        judge_calls(world, &called)?;
        waking::wake(world, &remotes, other).await?;
    }
    world.is_over.set(true);
    Ok(())
}

/// What must have become of changes where conflicts are resolved, and of what a handler judges.
fn judge_contests(world: &World, remotes: &[Rc<Remote>]) -> Result<Option<String>, Failed> {
    let (centre, besides) = (world.centre_connection(), world.plan.besides());
    let (settled, doubtful) = (world.settled(), world.doubtful.borrow());
    if besides.resolves() {
        for (kind, times) in judge::resolved(&centre)? {
            (0..times).for_each(|_| world.chronicle.fault(kind));
        }
        let mut all = world.contests.borrow().clone();
        remotes.iter().for_each(|it| all.add_written(it.contests()));
        if let Some(found) = judge::miscounted(&centre, besides, &all, &doubtful)? {
            return Ok(Some(found));
        }
        if let Some(found) = judge::stood_for_nothing(&centre, &settled)? {
            return Ok(Some(found));
        }
    }
    let backend = world.backend.borrow();
    for remote in remotes {
        let own = remote.contests();
        let mut found = judge::lost_field(&centre, besides, &own, &doubtful)?;
        found = found.or(judge::lost_request(&centre, &own, &doubtful, &backend)?);
        if let Some(found) = found {
            return Ok(Some(format!("{}: {found}", remote.name)));
        }
    }
    if besides.is_judged {
        let several: Vec<String> = remotes
            .iter()
            .flat_map(|it| it.in_several_files())
            .collect();
        return Ok(judge::handled_otherwise(
            &centre, &backend, &settled, &several,
        )?);
    }
    Ok(None)
}

/// What must have become of all calls and events; `called`: those that programs made.
fn judge_calls(world: &World, called: &[Wish]) -> Result<(), Failed> {
    let (centre, excuses) = (world.centre_connection(), world.excuses());
    let mut found = None;
    for wish in called {
        found = found.or(wish.misdone(true, None, &centre, excuses)?);
    }
    if !excuses.pruned {
        found = found.or(judge::done_twice(&centre)?);
    }
    // What a failing disk has made fail may come again with an old connection, after others.
    if !excuses.pruned && !excuses.restored && !excuses.disk {
        found = found.or(judge::out_of_order(&centre, &world.in_two_files.borrow())?);
    }
    found.map_or(Ok(()), |found| Err(Failed(found)))
}

/// Everybody syncs until nobody's sync changes anything in the centre: what the last one
/// uploads, the first one does not have, and a remote that learns late that its file was
/// copied goes on as a new one, with what had been refused to it.
async fn come_to_rest(
    world: &Rc<World>,
    remotes: &[Rc<Remote>],
    random: &mut Random,
) -> Result<(), Failed> {
    for _ in 0..ROUNDS {
        let state = || -> Result<_, Failed> {
            let centre = world.centre_connection();
            Ok((judge::audited(&centre)?, judge::events(&centre)?))
        };
        let before = state()?;
        for remote in remotes {
            remote.settle(random).await?;
        }
        if state()? == before {
            return Ok(());
        }
    }
    Err(Failed(format!(
        "I6: something is uploaded in each of {ROUNDS} rounds"
    )))
}

impl World {
    /// The time as remotes know it.
    pub(crate) fn now(&self) -> Now {
        let elapsed_ms = self.chronicle.elapsed_ms();
        Now {
            ticks_ms: elapsed_ms,
            unix_ms: BEGIN_MS + i64::try_from(elapsed_ms).unwrap_or(i64::MAX) + self.passed_ms(),
        }
    }

    /// A day passes in which nothing else happens, if not too many have: true. Everybody's clock
    /// tells it.
    pub(crate) fn pass_a_day(&self) -> bool {
        let may_pass = self.days_passed.get() < MOST_DAYS;
        if may_pass {
            self.days_passed.set(self.days_passed.get() + 1);
        }
        may_pass
    }

    /// How long nothing happened, in milliseconds.
    pub(crate) fn passed_ms(&self) -> i64 {
        self.days_passed.get() * DAY_MS
    }

    /// A connection to one server after the other.
    pub(crate) fn dial(
        self: &Rc<Self>,
        weather: Weather,
        traces: &Rc<Traces>,
    ) -> Option<DuplexStream> {
        let next = self.next_host.get();
        self.next_host.set((next + 1) % self.hosts.len());
        let (world, random) = (Rc::downgrade(self), weather.random.clone());
        let restorations = self.restorations.get();
        let again = move || {
            let fine = Weather::fine(random.clone());
            let world = world.upgrade()?;
            // Who sends an old recording to a centre that has forgotten it can have it decide
            // otherwise about an upload that the remote has been told about: a known limit.
            let may_be_known = world.restorations.get() == restorations;
            may_be_known.then(|| world.dial(fine, &Rc::default()))?
        };
        self.hosts[next].dial(weather, traces, Rc::new(again), &self.chronicle)
    }

    /// As [`World::dial`], in requests of HTTP.
    pub(crate) fn dial_in_requests(
        self: &Rc<Self>,
        weather: Weather,
        traces: &Rc<Traces>,
    ) -> Option<DuplexStream> {
        let next = self.next_host.get();
        self.next_host.set((next + 1) % self.hosts.len());
        let (world, known) = (Rc::downgrade(self), Rc::downgrade(self));
        let restorations = self.restorations.get();
        let farm = Farm {
            places: self.hosts.len(),
            inlet: Rc::new(move |place| world.upgrade()?.hosts[place].inlet()),
            remembers: Rc::new(move || {
                let known = known.upgrade();
                known.is_some_and(|it| it.restorations.get() == restorations)
            }),
        };
        self.hosts[next].dial_in_requests(weather, traces, farm, &self.chronicle)
    }

    /// A connection to the server at this place.
    pub(crate) fn dial_at(&self, place: usize, weather: Weather) -> Option<DuplexStream> {
        let nobody: Rc<dyn Fn() -> Option<DuplexStream>> = Rc::new(|| None);
        self.hosts[place].dial(weather, &Rc::default(), nobody, &self.chronicle)
    }

    /// Whether nothing happens by accident any more.
    pub(crate) fn is_healed(&self) -> bool {
        self.is_healed.get()
    }

    /// Whether programs of the office are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// What excuses the centre for what became of calls.
    pub(crate) fn excuses(&self) -> Excuses {
        Excuses {
            restored: self.restorations.get() > 0,
            pruned: self.chronicle.has_happened(operator::PRUNED),
            disk: disks::FAILING_CENTRE
                .iter()
                .any(|kind| self.chronicle.has_happened(kind)),
        }
    }

    /// One of the servers' places.
    pub(crate) fn any_host(&self, random: &mut Random) -> Option<&Host> {
        let places: Vec<usize> = (0..self.hosts.len()).collect();
        random.pick(&places).map(|place| &self.hosts[place])
    }

    /// Where the centre's file is now.
    pub(crate) fn centre_path(&self) -> PathBuf {
        self.disk.path()
    }

    /// Copies the centre as it is now.
    pub(crate) fn back_up(&self, number: u64) -> Result<(), Failed> {
        Ok(operator::copy(
            &self.centre_connection(),
            &self.disk.backup(number),
        )?)
    }

    /// The centre is a copy of this backup from now on.
    pub(crate) fn restore(&self, backup: u64) -> Result<(), Failed> {
        let number = self.restorations.get() + 1;
        self.restorations.set(number);
        let numbered = operator::audit_number(&self.centre_connection())?;
        self.disk.restore(backup, number);
        let connection = application::open(&self.centre_path())?;
        // As in the original.
        connection.pragma_update(None, "journal_mode", "wal")?;
        operator::number_audit_after(&connection, numbered)?;
        *self.centre.borrow_mut() = connection;
        self.note_held()
    }

    /// Whether neither the centre nor a remote has become what it was before: then the centre
    /// still knows everything that it was ever told.
    pub(crate) fn has_one_history(&self) -> bool {
        self.restorations.get() == 0 && self.may_repeat.borrow().is_empty()
    }

    /// Whether servers know what happened since any checkpoint that a remote may present, and
    /// send nothing else.
    pub(crate) fn is_followed(&self) -> bool {
        let mut breaks = [operator::PRUNED, operator::DEPLOYED, LIED].into_iter();
        self.has_one_history() && !breaks.any(|kind| self.chronicle.has_happened(kind))
    }

    /// The judges' connection to the centre.
    ///
    /// # Panics
    /// The centre cannot be opened after it was without power: a promise is broken.
    pub(crate) fn centre_connection(&self) -> Ref<'_, Connection> {
        let path = self.centre_path();
        if self.centre.borrow().path().map(Path::new) != Some(&path) {
            let connection = application::open(&path).expect("the centre outlives lost power");
            *self.centre.borrow_mut() = connection;
        }
        self.centre.borrow()
    }

    /// What this author wrote is in several files, and may be in several backups.
    pub(crate) fn author_may_repeat(&self, author: &str) {
        self.may_repeat.borrow_mut().add_author(author);
    }

    /// What this file holds is, or was, in another one as well.
    pub(crate) fn may_repeat(&self, remote: &Connection) -> Result<(), Failed> {
        Ok(self.may_repeat.borrow_mut().add(remote)?)
    }

    /// These rows are brought along to be adopted. What everybody began with may so be written
    /// again.
    pub(crate) fn may_be_adopted(&self, rows: &[Brought]) {
        let mut may_repeat = self.may_repeat.borrow_mut();
        for (_, _, text) in rows.iter().filter(|(_, _, text)| !text.contains(' ')) {
            may_repeat.add_adopted(text);
        }
    }

    /// What applications wrote while nothing tracked the table.
    pub(crate) fn unrecorded(&self) -> RefMut<'_, Unrecorded> {
        self.unrecorded.borrow_mut()
    }

    /// The rows of a file are given back as they are, also those that others have changed.
    pub(crate) fn rows_may_repeat(&self, remote: &Connection) -> Result<(), Failed> {
        Ok(self.may_repeat.borrow_mut().add_rows(remote)?)
    }

    /// With what applications take part in the tables that only some worlds have.
    pub(crate) fn contending(&self) -> Contending {
        Contending {
            besides: self.plan.besides(),
            differences: self.differences.clone(),
        }
    }

    /// This was on a device that is gone, or forgot it.
    pub(crate) fn doubt(&self, contests: Contests) {
        self.doubtful.borrow_mut().add_written(contests);
    }

    /// An operator may have written a row, a JSON object, or deleted it.
    pub(crate) fn clerk_wrote(&self, (table, key): (&str, &str), row: Option<&str>) {
        self.settled.borrow_mut().add(table, key, row);
    }

    /// What an operator may have written.
    pub(crate) fn settled(&self) -> Ref<'_, Settled> {
        self.settled.borrow()
    }

    /// What was pending when the centre was restored.
    pub(crate) fn may_return(&self, texts: impl Iterator<Item = String>) {
        self.may_return.borrow_mut().extend(texts);
    }

    /// The regions that a user has now.
    pub(crate) fn regions(&self, user: &str) -> Result<Vec<i64>, Failed> {
        let centre = self.centre_connection();
        let sql = "SELECT region FROM assignment WHERE login = ?1 ORDER BY region";
        let mut statement = centre.prepare_cached(sql)?;
        let regions = statement.query_map([user], |row| row.get(0))?;
        Ok(regions.collect::<rusqlite::Result<_>>()?)
    }

    /// The regions that a user has had at any time.
    pub(crate) fn ever_held(&self, user: &'static str) -> BTreeSet<i64> {
        let held = self.ever_held.borrow();
        held.get(user).cloned().unwrap_or_default()
    }

    fn note_held(&self) -> Result<(), Failed> {
        for user in USERS {
            let regions = self.regions(user)?;
            let mut held = self.ever_held.borrow_mut();
            held.entry(user).or_default().extend(regions);
        }
        Ok(())
    }

    async fn centre_life(
        &self,
        mut application: Application,
        mut random: Random,
        steps: u64,
    ) -> Result<(), Failed> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(3_000))).await;
            application.reconnect(&self.centre_path())?;
            if random.percent(40) {
                application.administer(USERS)?;
                self.note_held()?;
                for user in USERS {
                    let regions = self.regions(user)?;
                    self.chronicle
                        .note(&format!("{user} has the regions {regions:?}"));
                }
                continue;
            }
            let mut touched = application.begin(&self.keys, &[1, 2, 3, 4])?;
            if !touched.is_empty() && random.percent(10) {
                self.chronicle.fault(LOCKED);
                sleep(Duration::from_millis(random.below(15_000))).await;
            }
            touched = application.commit(touched)?;
            let contests = application.contests();
            self.contests.borrow_mut().committed(contests);
            self.chronicle
                .note(&format!("the centre edits {touched:?} {contests:?}"));
        }
        Ok(())
    }
}
