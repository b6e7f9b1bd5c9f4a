//! A simulation from beginning to end: everybody lives as the seed says, the world heals and comes
//! to rest, and the judges look at what is left.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{ready, try_join, try_join3};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use tokio::time::{Instant, sleep};

use crate::application::{self, Application, Wish};
use crate::chronicle::Chronicle;
use crate::clerk;
use crate::disks::CentreDisk;
use crate::failure::SimulationFailure;
use crate::hierarchy;
use crate::host::Host;
use crate::intruder::Intruder;
use crate::judge;
use crate::market;
use crate::office;
use crate::operator;
use crate::plan::Plan;
use crate::random::SeededRandom;
use crate::remote::SimulatedRemote;
use crate::template;
use crate::users::USERS;
use crate::waking;
use crate::world::World;

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// How often all remotes may have to sync, one after the other, until nobody uploads anything.
const ROUNDS: usize = 6;

/// A transaction of an application stays open: SQLite lets nobody else write meanwhile.
pub(crate) const LOCKED: &str = "centre locked by a long transaction";

/// Runs a simulation from beginning to end.
pub(crate) async fn play(plan: Plan, chronicle: Rc<Chronicle>) {
    let mut played = simulate(plan, &chronicle).await;
    if played.is_ok() && plan.has_hierarchy() {
        played = hierarchy::play(plan, &chronicle).await;
    }
    if played.is_ok() && plan.has_market() {
        played = market::play(plan, &chronicle).await;
    }
    if let Err(SimulationFailure(what)) = played {
        chronicle.failed(what);
    }
}

async fn simulate(plan: Plan, chronicle: &Rc<Chronicle>) -> Result<(), SimulationFailure> {
    let mut random = SeededRandom::new(plan.seed);
    let disk = CentreDisk::new(random.fork());
    let besides = plan.besides();
    disk.put(template::centre((random.percent(25), besides)));
    let began = Instant::now();
    let intruder = Intruder::new(random.fork());
    let servers = random.between(1, 3) as usize;
    let hosts: Vec<Host> = (0..servers)
        .map(|place| Host::new(place, began, random.fork(), intruder.clone()))
        .map(|host| host.live(plan.is_live()).with(besides))
        .collect();
    let world = World::new(plan, chronicle, disk, (began, hosts), intruder)?;
    for host in &world.hosts {
        host.start(world.centre_path()).await?;
    }
    // Another chance, so that what is beside the syncs does not shift them.
    let mut other = SeededRandom::new(plan.seed ^ 0x6f66_6669_6365);
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
async fn live(
    world: &Rc<World>,
    random: &mut SeededRandom,
    mut other: SeededRandom,
) -> Result<(), SimulationFailure> {
    world.note_held()?;
    let mut remotes = Vec::new();
    for number in 0..world.plan.remotes {
        let user = USERS[(number % USERS.len() as u64) as usize];
        let name = format!("r{number}");
        remotes.push(SimulatedRemote::new(world, name, user, random.fork())?);
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
    let centre_life = live_in_centre(world, application, random.fork(), steps);
    let operated = operator::operate(world, random.fork(), world.plan.accidents);
    let calls = match world.plan.is_live() {
        true => other.below(6),
        false => 0,
    };
    let called = office::call(world, other.fork(), calls);
    let lived = try_join3(lives, centre_life, operated);
    let mut clerk = SeededRandom::new(world.plan.seed ^ 0x0063_6c65_726b);
    let settled = clerk::settle(world, clerk.fork(), world.plan.settlings());
    let (_, called, ()) = try_join3(lived, called, settled).await?;
    world.heal();
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
    found.map_or(Ok(()), |found| Err(SimulationFailure(found)))?;
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
        found.map_or(Ok(()), |found| Err(SimulationFailure(found)))?;
    }
    for remote in &remotes {
        remote.judge_at_rest()?;
    }
    if world.plan.is_live() {
        judge_calls(world, &called)?;
        waking::wake(world, &remotes, other).await?;
    }
    world.end();
    Ok(())
}

/// What must have become of changes where conflicts are resolved, and of what a handler judges.
fn judge_contests(
    world: &World,
    remotes: &[Rc<SimulatedRemote>],
) -> Result<Option<String>, SimulationFailure> {
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
fn judge_calls(world: &World, called: &[Wish]) -> Result<(), SimulationFailure> {
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
    found.map_or(Ok(()), |found| Err(SimulationFailure(found)))
}

/// Everybody syncs until nobody's sync changes anything in the centre: what the last one
/// uploads, the first one does not have, and a remote that learns late that its file was
/// copied goes on as a new one, with what had been refused to it.
async fn come_to_rest(
    world: &Rc<World>,
    remotes: &[Rc<SimulatedRemote>],
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    for _ in 0..ROUNDS {
        let state = || -> Result<_, SimulationFailure> {
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
    Err(SimulationFailure(format!(
        "I6: something is uploaded in each of {ROUNDS} rounds"
    )))
}

/// What applications of the centre do.
async fn live_in_centre(
    world: &World,
    mut application: Application,
    mut random: SeededRandom,
    steps: u64,
) -> Result<(), SimulationFailure> {
    for _ in 0..steps {
        sleep(Duration::from_millis(random.below(3_000))).await;
        application.reconnect(&world.centre_path())?;
        if random.percent(40) {
            application.administer(USERS)?;
            world.note_held()?;
            for user in USERS {
                let regions = world.regions(user)?;
                world
                    .chronicle
                    .note(&format!("{user} has the regions {regions:?}"));
            }
            continue;
        }
        let mut touched = application.begin(&world.keys, &[1, 2, 3, 4])?;
        if !touched.is_empty() && random.percent(10) {
            world.chronicle.fault(LOCKED);
            sleep(Duration::from_millis(random.below(15_000))).await;
        }
        touched = application.commit(touched)?;
        let contests = application.contests();
        world.contests.borrow_mut().committed(contests);
        world
            .chronicle
            .note(&format!("the centre edits {touched:?} {contests:?}"));
    }
    Ok(())
}
