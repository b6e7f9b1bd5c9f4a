//! A simulation of a user's configuration from beginning to end: devices, the centre's own
//! applications, accidents of servers, and what is judged when all of them rest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{ready, try_join, try_join3};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use tokio::time::{Instant, sleep, timeout};

use super::double::filled;
use super::editable;
use super::editor::{Editor, token};
use super::prepare::{Kit, host};
use super::remote::{KitRemote, is_refused};
use super::tally::Tally;
use super::watch::{Audit, with_chance};
use super::world::World;
use super::{BEGIN_MS, Extent};
use crate::application;
use crate::calendar::BEGIN_MS as EPOCH_MS;
use crate::chronicle::Chronicle;
use crate::disks::CentreDisk;
use crate::failure::SimulationFailure;
use crate::host::Host;
use crate::random::SeededRandom;

const KILLED_BEFORE: &str = "server killed before a commit";

const KILLED_AFTER: &str = "server killed after a commit";

const KILLED: &str = "server killed";

const REPLACED: &str = "server replaced";

/// How long a process has to meet the commit that kills it.
const AMBUSH: Duration = Duration::from_secs(15);

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// How often all remotes may have to sync, one after the other, until nobody uploads anything.
const ROUNDS: usize = 6;

/// Runs a simulation from beginning to end.
pub(super) async fn play(
    kit: &Kit,
    extent: Extent,
    random: SeededRandom,
    chronicle: &Rc<Chronicle>,
    tally: &Rc<RefCell<Tally>>,
) {
    let played = simulate(kit, extent, random, chronicle, tally).await;
    if let Err(SimulationFailure(what)) = played {
        chronicle.failed(what);
    }
}

async fn simulate(
    kit: &Kit,
    extent: Extent,
    mut random: SeededRandom,
    chronicle: &Rc<Chronicle>,
    tally: &Rc<RefCell<Tally>>,
) -> Result<(), SimulationFailure> {
    let disk = CentreDisk::new(random.fork());
    disk.put(&kit.centre);
    let path = disk.path();
    let began = Instant::now();
    let servers = random.between(1, 2) as usize;
    let hosts = (0..servers).map(|place| {
        let host = host(place, began, random.fork(), &kit.config);
        host.set_clock_ahead(BEGIN_MS - EPOCH_MS);
        host
    });
    let hosts: Vec<Host> = hosts.collect();
    let world = Rc::new(World {
        known: kit.known.clone(),
        chronicle: chronicle.clone(),
        tally: tally.clone(),
        numbers: Rc::new(Cell::new(kit.last_number)),
        began,
        disk,
        hosts,
        next_host: Cell::new(0),
        centre: RefCell::new(application::open(&path)?),
    });
    for host in &world.hosts {
        host.start(world.disk.path()).await?;
    }
    let lived = live(&world, kit, extent, &mut random).await;
    let mut stopped = Ok(());
    for host in &world.hosts {
        stopped = stopped.and(host.stop(chronicle).await);
    }
    lived.and(stopped)
}

/// Everybody does as the seed says; then the world heals, and is judged.
async fn live(
    world: &Rc<World>,
    kit: &Kit,
    extent: Extent,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let mut remotes = Vec::new();
    let first = random.below(kit.known.users.len().max(1) as u64) as usize;
    for number in 0..extent.remotes {
        let user = (first + number as usize) % kit.known.users.len().max(1);
        let user = kit.known.users.get(user).cloned().unwrap_or_default();
        let publications = publications(kit, random);
        let parameters = world.parameters(kit, &user, random)?;
        let name = format!("r{number}");
        remotes.push(KitRemote::new(
            world,
            (name, user),
            publications,
            parameters,
            random.fork(),
        )?);
        world.tally.borrow_mut().remotes += 1;
    }
    for remote in &remotes {
        remote.note(&format!("a device of {}", remote.user));
    }
    let lives = remotes.iter().map(|remote| {
        let (own, other) = (random.fork(), random.fork());
        let syncs = extent.syncs;
        try_join(remote.live(own, syncs), remote.disturb(other, syncs))
    });
    // Not in their order: whoever finds something first ends the simulation.
    let lives: FuturesUnordered<_> = lives.collect();
    let lives = lives.try_for_each(|_| ready(Ok(())));
    let steps = random.below(2 * extent.syncs + 1);
    let centre_life = world.centre_life(random.fork(), steps);
    let accidents = random.below(extent.syncs / 2 + 2);
    let operated = world.operate(random.fork(), accidents);
    try_join3(lives, centre_life, operated).await?;
    world.chronicle.note("the world heals");
    sleep(HEALING).await;
    come_to_rest(world, &remotes, random).await?;
    for remote in &remotes {
        remote.judge(true)?;
    }
    world.written_twice()?;
    world.compare(&remotes, random).await
}

/// The publications of a remote: all that go together.
fn publications(kit: &Kit, random: &mut SeededRandom) -> Vec<String> {
    let mut all: Vec<usize> = (0..kit.config.publications.len()).collect();
    let mut chosen: Vec<String> = Vec::new();
    let mut tables: Vec<&str> = Vec::new();
    while !all.is_empty() {
        let at = random.below(all.len() as u64) as usize;
        let name = &kit.config.publications[all.remove(at)].name;
        let own = kit.known.tables.iter().filter(|it| it.publication == *name);
        let own: Vec<&str> = own.map(|it| it.name.as_str()).collect();
        if own.iter().all(|it| !tables.contains(it)) {
            tables.extend(own);
            chosen.push(name.clone());
        }
    }
    chosen.sort();
    chosen
}

/// Everybody syncs until nobody's sync changes anything in the centre.
async fn come_to_rest(
    world: &Rc<World>,
    remotes: &[Rc<KitRemote>],
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    for _ in 0..ROUNDS {
        let before = Audit::last_row(&world.centre())?;
        for remote in remotes {
            remote.settle(random).await?;
        }
        if Audit::last_row(&world.centre())? == before {
            return Ok(());
        }
    }
    Err(SimulationFailure(format!(
        "I6: the centre is changed in each of {ROUNDS} rounds in which nobody edits anything: what \
         a script or a trigger makes of a row is made again of what it has made"
    )))
}

impl World {
    /// What a remote sets: one of the values that were named, of those that are allowed, and a
    /// version of scripts.
    fn parameters(
        &self,
        kit: &Kit,
        user: &str,
        random: &mut SeededRandom,
    ) -> Result<Vec<(String, String)>, SimulationFailure> {
        let mut chosen: Vec<(String, String)> = Vec::new();
        let mut names: Vec<&str> = kit.parameters.iter().map(|it| it.0.as_str()).collect();
        names.dedup();
        for name in names {
            let values = kit.parameters.iter().filter(|it| it.0 == name);
            let values: Vec<&str> = values.map(|it| it.1.as_str()).collect();
            if let Some(value) = random.pick(&values)
                && !chosen.iter().any(|it| it.0 == name)
            {
                chosen.push((name.to_owned(), value.to_owned()));
            }
        }
        for parameter in kit.config.publications.iter().flat_map(|it| &it.parameters) {
            let Some(allowed) = &parameter.allowed else {
                continue;
            };
            if chosen.iter().any(|it| it.0 == parameter.name) {
                continue;
            }
            let user = format!("'{}'", user.replace('\'', "''"));
            let query = filled(allowed, &|name| match name {
                "s.username" => user.clone(),
                _ => "NULL".into(),
            });
            let centre = self.centre();
            let sql = format!(
                "SELECT CAST(value AS TEXT) FROM (SELECT NULL AS value WHERE 0 UNION ALL {query}) WHERE value IS NOT NULL ORDER BY 1"
            );
            let Ok(mut statement) = centre.prepare(&sql) else {
                continue;
            };
            let values = statement.query_map([], |row| row.get::<_, String>(0))?;
            let values: Vec<String> = values.collect::<rusqlite::Result<_>>()?;
            let places: Vec<usize> = (0..values.len()).collect();
            if let Some(place) = random.pick(&places) {
                chosen.push((parameter.name.clone(), values[place].clone()));
            }
        }
        let versions: Vec<&str> = kit.versions.iter().map(String::as_str).collect();
        let is_chosen = chosen.iter().any(|it| it.0 == "script_version");
        if !is_chosen && let Some(version) = random.pick(&versions) {
            chosen.push(("script_version".into(), version.into()));
        }
        Ok(chosen)
    }

    /// The centre's own applications.
    async fn centre_life(
        &self,
        mut random: SeededRandom,
        steps: u64,
    ) -> Result<(), SimulationFailure> {
        let mut editor = Editor::new("centre", random.fork(), &self.numbers, &self.known.users);
        let tables: Vec<&super::tables::PublishedTable> = self.known.tables.iter().collect();
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(3_000))).await;
            let connection = application::open(&self.disk.path())?;
            with_chance(&connection)?;
            connection.execute_batch(&self.known.audit.triggers())?;
            let Some(editable) = editable::all(&connection, &tables, true)? else {
                continue;
            };
            match connection.execute_batch("BEGIN IMMEDIATE") {
                Err(error) if application::is_busy(&error) => continue,
                done => done?,
            }
            Audit::begin(&connection)?;
            let edited = editor.edit(&connection, &editable, self.now().unix_ms)?;
            match connection.execute_batch("COMMIT") {
                // A reference that is looked at only now, or somebody who reads.
                Err(error) if is_refused(&error) || application::is_busy(&error) => {
                    connection.execute_batch("ROLLBACK")?;
                    continue;
                }
                done => done?,
            }
            let mut tally = self.tally.borrow_mut();
            tally.changes_of_centre += edited.inserts + edited.updates + edited.deletes;
            tally.impossible += edited.impossible;
            for statement in &edited.statements {
                self.chronicle.note(&format!("centre: {statement}"));
            }
        }
        Ok(())
    }

    /// Servers are killed, replaced, and their disk fails.
    async fn operate(&self, mut random: SeededRandom, steps: u64) -> Result<(), SimulationFailure> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(8_000))).await;
            let places: Vec<usize> = (0..self.hosts.len()).collect();
            let Some(place) = random.pick(&places) else {
                return Ok(());
            };
            let host = &self.hosts[place];
            match random.below(10) {
                0..=4 => self.ambush(host, &mut random).await?,
                5 => {
                    host.kill();
                    self.happened(KILLED);
                    self.replace(host, &mut random).await?;
                }
                6 => {
                    self.happened(REPLACED);
                    self.replace(host, &mut random).await?;
                }
                _ => self.trouble_disk(host, &mut random).await?,
            }
        }
        Ok(())
    }

    fn happened(&self, kind: &'static str) {
        self.chronicle.fault(kind);
    }

    /// Kills a process at a commit to come, before or after it takes effect.
    async fn ambush(
        &self,
        host: &Host,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let takes_effect = random.percent(50);
        let Some(life) = host.kill_at_commit(random.between(1, 6), takes_effect) else {
            return Ok(());
        };
        match timeout(AMBUSH, life.ended()).await {
            Ok(()) if takes_effect => self.happened(KILLED_AFTER),
            Ok(()) => self.happened(KILLED_BEFORE),
            // It had nothing to commit.
            Err(_) => {
                host.kill();
                self.happened(KILLED);
            }
        }
        self.replace(host, random).await
    }

    async fn replace(
        &self,
        host: &Host,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        host.stop(&self.chronicle).await?;
        sleep(Duration::from_millis(random.below(3_000))).await;
        host.start(self.disk.path()).await
    }

    /// Something happens to the centre's disk while the servers use it.
    async fn trouble_disk(
        &self,
        host: &Host,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let Some(life) = host.life() else {
            return Ok(());
        };
        self.disk.threaten(life.number(), random);
        // What does not kill it goes on for so long.
        let _ = timeout(AMBUSH, life.ended()).await;
        self.disk.calm(&self.chronicle);
        for host in &self.hosts {
            if host.life().is_some_and(|life| life.is_dead()) {
                self.replace(host, random).await?;
            }
        }
        Ok(())
    }

    /// I1: what one application has inserted once is there once.
    fn written_twice(&self) -> Result<(), SimulationFailure> {
        let found = self.known.audit.inserted_twice(&self.centre(), &token)?;
        match found {
            None => Ok(()),
            Some((table, text, [one, other])) => Err(SimulationFailure(format!(
                "I1: what was inserted once is in the centre twice: {table} {one} and {table} \
                 {other} have the text {text:?} of one row"
            ))),
        }
    }

    /// I3 and I6: every remote has what one has that begins anew.
    async fn compare(
        self: &Rc<Self>,
        remotes: &[Rc<KitRemote>],
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        for remote in remotes {
            let Some(found) = self.other(remote, random).await? else {
                continue;
            };
            // A window may have moved meanwhile.
            remote.settle(random).await?;
            if let Some(again) = self.other(remote, random).await? {
                return Err(remote.broken(&again));
            }
            remote.note(&format!("after another sync it is equal: {found}"));
        }
        Ok(())
    }

    /// What a remote has otherwise than one that begins anew.
    async fn other(
        self: &Rc<Self>,
        remote: &Rc<KitRemote>,
        random: &mut SeededRandom,
    ) -> Result<Option<String>, SimulationFailure> {
        let anew = remote.anew(format!("{}anew", remote.name), random.fork())?;
        anew.settle(random).await?;
        let tables = remote.tables();
        let editable = remote.editable()?.unwrap_or_default();
        let connections = (&*remote.application(), &*anew.application());
        let found = super::compare::difference(connections, &tables, &editable)?;
        let centre = self.centre();
        Ok(found.map(|found| {
            let place = self.known.tables.iter().position(|it| {
                it.name == found.table && tables.iter().any(|own| std::ptr::eq(*own, it))
            });
            found.told(&centre, &self.known.audit, place.unwrap_or_default())
        }))
    }
}
