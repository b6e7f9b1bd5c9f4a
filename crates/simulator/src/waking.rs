//! Whether remotes that stay connected are told of what concerns them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{ready, try_join};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use tokio::time::{Instant, sleep};

use crate::application::{self, Application};
use crate::failure::SimulationFailure;
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::remote::SimulatedRemote;
use crate::tables::REGIONS;
use crate::world::World;

/// How long a remote that stays connected may take to have what the centre has.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

/// How often that is looked at.
const GLANCE: Duration = Duration::from_secs(2);

/// All stay connected while somebody edits: they come to have what the centre has, without syncs
/// but those that they are told to make.
pub(crate) async fn wake(
    world: &Rc<World>,
    remotes: &[Rc<SimulatedRemote>],
    mut random: SeededRandom,
) -> Result<(), SimulationFailure> {
    world.chronicle.note("everybody stays connected");
    let is_over = Cell::new(false);
    let over = || is_over.get();
    let stays = remotes.iter().map(|remote| {
        let mut own = random.fork();
        let over = &over;
        async move {
            let fine = Weather::fine(own.fork());
            remote.stay(&mut own, fine, over).await
        }
    });
    let stays: FuturesUnordered<_> = stays.collect();
    let places: Vec<usize> = (0..remotes.len()).collect();
    let mut own = random.fork();
    let edits = async {
        sleep(Duration::from_secs(3)).await;
        let connection = application::open(&world.centre_path())?;
        let mut office = Application::new(connection, "late".into(), own.fork(), false);
        let regions: Vec<i64> = (1..=REGIONS as i64).collect();
        for _ in 0..own.between(2, 8) {
            sleep(Duration::from_millis(own.below(400))).await;
            let touched = office.edit(&world.keys, &regions)?;
            world
                .chronicle
                .note(&format!("the centre edits {touched:?}"));
            if own.percent(20)
                && let Some(index) = own.pick(&places)
            {
                remotes[index].edit()?;
            }
        }
        let end = Instant::now() + WOKEN_WITHIN;
        loop {
            sleep(GLANCE).await;
            let mut found = None;
            for remote in remotes {
                found = found.or(remote.not_woken()?);
            }
            match found {
                None => break,
                Some(found) if Instant::now() >= end => return Err(SimulationFailure(found)),
                Some(_) => {}
            }
        }
        is_over.set(true);
        Ok(())
    };
    try_join(stays.try_for_each(|()| ready(Ok(()))), edits)
        .await
        .map(drop)
}
