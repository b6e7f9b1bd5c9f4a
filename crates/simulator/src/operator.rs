//! Who runs the servers: they are killed, replaced, their clocks jump, schemas change, and
//! the centre is restored from an older copy.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::application::{self, Application};
use crate::calendar::DAY_MS;
use crate::failure::SimulationFailure;
use crate::host::{DEPLOYED, Host, PRUNED};
use crate::random::SeededRandom;
use crate::users::USERS;
use crate::world::World;

const KILLED_BEFORE: &str = "server killed before a commit";
const KILLED_AFTER: &str = "server killed after a commit";
const KILLED: &str = "server killed";
const REPLACED: &str = "server replaced in the middle of a transfer";
const RESTORED: &str = "centre restored to an older copy";
pub(crate) const CLOCK: &str = "clock of a server jumped";
const DAY_PASSED: &str = "day passed";
const DISABLED: &str = "user disabled for a while";

/// Every kind of thing that happens to servers and the centre.
pub(crate) const KINDS: &[&str] = &[
    KILLED_BEFORE,
    KILLED_AFTER,
    KILLED,
    REPLACED,
    RESTORED,
    CLOCK,
    DAY_PASSED,
    DEPLOYED,
    PRUNED,
    DISABLED,
];

/// The tables that change.
const ALTERED: [&str; 7] = [
    "customer", "product", "site", "visit", "measure", "reading", "stock",
];

/// How long a process has to meet the commit that kills it.
const AMBUSH: Duration = Duration::from_secs(15);

/// How often somebody looks whether a server serves.
const LOOK: Duration = Duration::from_millis(20);

/// Clocks jump up to so far, either way: a day.
const JUMP_MS: u64 = DAY_MS as u64;

/// Does so many things, one after the other.
pub(crate) async fn operate(
    world: &Rc<World>,
    mut random: SeededRandom,
    steps: u64,
) -> Result<(), SimulationFailure> {
    let mut backups = 0;
    for _ in 0..steps {
        sleep(Duration::from_millis(random.below(10_000))).await;
        let Some(host) = world.any_host(&mut random) else {
            return Ok(());
        };
        match random.below(22) {
            0..=3 => ambush(world, host, &mut random).await?,
            4 => {
                host.kill();
                world.chronicle.fault(KILLED);
                replace(world, host, &mut random).await?;
            }
            5 => replace_in_transfer(world, host, &mut random).await?,
            6 | 7 => {
                let ahead = random.below(2 * JUMP_MS) as i64 - JUMP_MS as i64;
                host.set_clock_ahead(world.passed_ms() + ahead);
                world.chronicle.fault(CLOCK);
            }
            20 | 21 if world.pass_a_day() => {
                for host in &world.hosts {
                    host.set_clock_ahead(world.passed_ms());
                }
                world.chronicle.fault(DAY_PASSED);
            }
            8 | 9 if backups > 0 => restore(world, backups, &mut random).await?,
            10 | 11 => change_schema(world, host, &mut random).await?,
            12..=15 => trouble_disk(world, host, &mut random).await?,
            16 | 17 => {
                let now_ms = world.now().unix_ms;
                host.prune_log(world.centre_path(), now_ms).await?;
                world.chronicle.fault(PRUNED);
            }
            18 => disable(world, host, &mut random).await?,
            _ => {
                backups += 1;
                world.back_up(backups)?;
            }
        }
    }
    for host in &world.hosts {
        host.set_clock_ahead(world.passed_ms());
    }
    Ok(())
}

/// A server is replaced in good order while it serves somebody.
async fn replace_in_transfer(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let serves = || host.life().is_some_and(|life| life.is_serving());
    let come = async {
        while !serves() {
            sleep(LOOK).await;
        }
    };
    // If nobody comes, it is replaced all the same.
    if timeout(AMBUSH, come).await.is_ok() {
        sleep(Duration::from_millis(random.below(20))).await;
    }
    if serves() {
        world.chronicle.fault(REPLACED);
    }
    replace(world, host, random).await
}

/// A user is not let in for a while. If the centre is restored, it is one in which he is.
async fn disable(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let user = random.pick(USERS).unwrap_or_default();
    host.set_disabled(world.centre_path(), user, true).await?;
    world.chronicle.fault(DISABLED);
    sleep(Duration::from_millis(random.below(10_000))).await;
    host.set_disabled(world.centre_path(), user, false).await
}

/// Kills a process at a commit to come, before or after it takes effect.
async fn ambush(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let takes_effect = random.percent(50);
    let Some(life) = host.kill_at_commit(random.between(1, 6), takes_effect) else {
        return Ok(());
    };
    match timeout(AMBUSH, life.ended()).await {
        Ok(()) => world.chronicle.fault(if takes_effect {
            KILLED_AFTER
        } else {
            KILLED_BEFORE
        }),
        // It had nothing to commit.
        Err(_) => {
            host.kill();
            world.chronicle.fault(KILLED);
        }
    }
    replace(world, host, random).await
}

async fn replace(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    host.stop(&world.chronicle).await?;
    sleep(Duration::from_millis(random.below(3_000))).await;
    host.start(world.centre_path()).await
}

/// Something happens to the centre's disk while the servers use it.
async fn trouble_disk(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let Some(life) = host.life() else {
        return Ok(());
    };
    world.disk.threaten(life.number(), random);
    // What does not kill it goes on for so long.
    let _ = timeout(AMBUSH, life.ended()).await;
    world.disk.calm(&world.chronicle);
    for host in &world.hosts {
        if host.life().is_some_and(|life| life.is_dead()) {
            replace(world, host, random).await?;
        }
    }
    Ok(())
}

/// A column comes or goes in the centre; it is deployed, and one server after the other
/// takes notice.
async fn change_schema(
    world: &Rc<World>,
    host: &Host,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let connection = application::open(&world.centre_path())?;
    let mut application = Application::new(connection, "operator".into(), random.fork(), false);
    let table = random.pick(&ALTERED).unwrap_or("product");
    if !application.alter(table)? {
        return Ok(());
    }
    sleep(Duration::from_millis(random.below(2_000))).await;
    host.deploy(world.centre_path()).await?;
    world.chronicle.fault(DEPLOYED);
    for host in &world.hosts {
        replace(world, host, random).await?;
    }
    Ok(())
}

/// The centre becomes what it was: all servers stop, and serve the copy.
async fn restore(
    world: &Rc<World>,
    backups: u64,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    for host in &world.hosts {
        if random.percent(50) {
            host.kill();
        }
        host.stop(&world.chronicle).await?;
    }
    world.restore(random.between(1, backups))?;
    world.chronicle.fault(RESTORED);
    for host in &world.hosts {
        host.start(world.centre_path()).await?;
    }
    Ok(())
}
