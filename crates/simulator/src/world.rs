//! The simulated world: what everybody in a simulation shares, and what all of them do with it.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rusqlite::Connection;
use tokio::io::DuplexStream;
use tokio::time::Instant;

use tidewater_remote::session::Now;

use crate::application::{self, Brought, ContestSetup, Contests, FreshKeys};
use crate::backup;
use crate::besides::Differences;
use crate::calendar::{BEGIN_MS, DAY_MS};
use crate::chronicle::Chronicle;
use crate::disks::{self, CentreDisk};
use crate::failure::SimulationFailure;
use crate::host::{self, Host};
use crate::intruder::Intruder;
use crate::judge::{Excuses, MayRepeat, OperatorWrites, UnrecordedTexts};
use crate::liar::LIED;
use crate::network::{Farm, Traces, Weather};
use crate::office::Backend;
use crate::plan::Plan;
use crate::random::SeededRandom;
use crate::users::USERS;

/// How many days may pass in which nothing happens: what remotes keep must not be too old.
const MOST_DAYS: i64 = 3;

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
    pub(crate) may_repeat: RefCell<MayRepeat>,
    /// What was written while nothing tracked its table.
    unrecorded: RefCell<UnrecordedTexts>,
    /// What was pending somewhere when the centre was restored.
    may_return: RefCell<BTreeSet<String>>,
    intruder: Intruder,
    /// What an operator has written who settles conflicts and refused rows.
    settled: RefCell<OperatorWrites>,
    differences: Rc<Differences>,
    /// What applications of the centre have made of the tables that only some worlds have.
    pub(crate) contests: RefCell<Contests>,
    /// What others made of them on devices that are gone, or forgot it.
    pub(crate) doubtful: RefCell<Contests>,
    /// Applications that have got another device while a copy of the first one's file lives on.
    pub(crate) in_two_files: RefCell<BTreeSet<String>>,
    /// What judges requests.
    pub(crate) backend: RefCell<Backend>,
}

impl World {
    /// A world whose centre is on this disk, before any of its servers has started.
    pub(crate) fn new(
        plan: Plan,
        chronicle: &Rc<Chronicle>,
        disk: CentreDisk,
        (began, hosts): (Instant, Vec<Host>),
        intruder: Intruder,
    ) -> Result<Rc<World>, SimulationFailure> {
        let centre = RefCell::new(application::open(&disk.path())?);
        Ok(Rc::new(World {
            plan,
            chronicle: chronicle.clone(),
            keys: FreshKeys::new(),
            disk,
            began,
            hosts,
            next_host: Cell::new(0),
            centre,
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
        }))
    }

    /// Nothing happens by accident from now on.
    pub(crate) fn heal(&self) {
        self.is_healed.set(true);
        self.chronicle.note("the world heals");
        self.intruder.leave();
    }

    /// Programs of the office end from now on.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
    }

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
            pruned: self.chronicle.has_happened(host::PRUNED),
            disk: disks::FAILING_CENTRE
                .iter()
                .any(|kind| self.chronicle.has_happened(kind)),
        }
    }

    /// One of the servers' places.
    pub(crate) fn any_host(&self, random: &mut SeededRandom) -> Option<&Host> {
        let places: Vec<usize> = (0..self.hosts.len()).collect();
        random.pick(&places).map(|place| &self.hosts[place])
    }

    /// Where the centre's file is now.
    pub(crate) fn centre_path(&self) -> PathBuf {
        self.disk.path()
    }

    /// Copies the centre as it is now.
    pub(crate) fn back_up(&self, number: u64) -> Result<(), SimulationFailure> {
        Ok(backup::copy(
            &self.centre_connection(),
            &self.disk.backup(number),
        )?)
    }

    /// The centre is a copy of this backup from now on.
    pub(crate) fn restore(&self, backup: u64) -> Result<(), SimulationFailure> {
        let number = self.restorations.get() + 1;
        self.restorations.set(number);
        let numbered = backup::audit_number(&self.centre_connection())?;
        self.disk.restore(backup, number);
        let connection = application::open(&self.centre_path())?;
        // As in the original.
        connection.pragma_update(None, "journal_mode", "wal")?;
        backup::number_audit_after(&connection, numbered)?;
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
        let mut breaks = [host::PRUNED, host::DEPLOYED, LIED].into_iter();
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
    pub(crate) fn may_repeat(&self, remote: &Connection) -> Result<(), SimulationFailure> {
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
    pub(crate) fn unrecorded(&self) -> RefMut<'_, UnrecordedTexts> {
        self.unrecorded.borrow_mut()
    }

    /// The rows of a file are given back as they are, also those that others have changed.
    pub(crate) fn rows_may_repeat(&self, remote: &Connection) -> Result<(), SimulationFailure> {
        Ok(self.may_repeat.borrow_mut().add_rows(remote)?)
    }

    /// With what applications take part in the tables that only some worlds have.
    pub(crate) fn contending(&self) -> ContestSetup {
        ContestSetup {
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
    pub(crate) fn settled(&self) -> Ref<'_, OperatorWrites> {
        self.settled.borrow()
    }

    /// What was pending when the centre was restored.
    pub(crate) fn may_return(&self, texts: impl Iterator<Item = String>) {
        self.may_return.borrow_mut().extend(texts);
    }

    /// The regions that a user has now.
    pub(crate) fn regions(&self, user: &str) -> Result<Vec<i64>, SimulationFailure> {
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

    /// Notes which regions users have from now on.
    pub(crate) fn note_held(&self) -> Result<(), SimulationFailure> {
        for user in USERS {
            let regions = self.regions(user)?;
            let mut held = self.ever_held.borrow_mut();
            held.entry(user).or_default().extend(regions);
        }
        Ok(())
    }
}
