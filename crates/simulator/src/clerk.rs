//! An operator who settles conflicts and refused rows, through what his commands call.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use tidewater_centre::records::{ConflictFilter, RefusedFilter};
use tidewater_centre::{
    ConflictChoice, ConflictVersion, Judgement, RefusedChoice, RefusedRowAction, SettleOutcome,
};

use crate::besides;
use crate::failure::SimulationFailure;
use crate::random::SeededRandom;
use crate::tables::EDITED;
use crate::world::World;

/// Under this name he settles and writes.
pub(crate) const CLERK: &str = "clerk";

const UPLOADED: &str = "conflict settled with what the remote wanted";
const CENTRE: &str = "conflict settled with what the centre had";
const PRE_IMAGE: &str = "conflict settled with what both began with";
const GIVEN: &str = "conflict settled with another row";
const PARKED: &str = "parked conflict settled";
const REPLAYED: &str = "refused row replayed";
const EDITED_ROW: &str = "refused row edited";
const DISCARDED: &str = "refused row discarded";
const NOT_SETTLED: &str = "operator could not settle a row";

/// Every kind of thing that he does.
pub(crate) const KINDS: &[&str] = &[
    UPLOADED,
    CENTRE,
    PRE_IMAGE,
    GIVEN,
    PARKED,
    REPLAYED,
    EDITED_ROW,
    DISCARDED,
    NOT_SETTLED,
];

/// He looks at so many.
const LISTED: u64 = 20;

/// The sums of tallies are nobody's to choose: what an old version of one lacks would be gone.
const LEFT_ALONE: &str = "tally";

/// Settles something so many times, now and then.
pub(crate) async fn settle(
    world: &Rc<World>,
    mut random: SeededRandom,
    times: u64,
) -> Result<(), SimulationFailure> {
    for _ in 0..times {
        sleep(Duration::from_millis(random.below(8_000))).await;
        let settled = match random.percent(50) {
            true => settle_conflict(world, &mut random).await,
            false => settle_refused(world, &mut random).await,
        };
        // He hears of it, and does something else.
        if let Err(SimulationFailure(what)) = settled {
            world.chronicle.note(&format!("{CLERK} fails: {what}"));
        }
    }
    Ok(())
}

async fn settle_conflict(
    world: &Rc<World>,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let Some(host) = world.any_host(random) else {
        return Ok(());
    };
    let centre = host.command(world.centre_path()).await?;
    // Those that wait for him go first.
    let open = ConflictFilter {
        open: true,
        ..ConflictFilter::newest(LISTED)
    };
    let mut found = centre.find_conflicts(&open).await?;
    let is_parked = !found.is_empty() && random.percent(75);
    if !is_parked {
        found = centre
            .find_conflicts(&ConflictFilter::newest(LISTED))
            .await?;
    }
    found.retain(|it| it.table != LEFT_ALONE);
    let places: Vec<usize> = (0..found.len()).collect();
    let Some(record) = random.pick(&places).map(|it| &found[it]) else {
        return Ok(());
    };
    let (version, row, kind) = match random.below(10) {
        0..=3 => (ConflictVersion::Uploaded, record.uploaded.clone(), UPLOADED),
        4 | 5 => (
            ConflictVersion::Centre,
            record.centre().map(str::to_owned),
            CENTRE,
        ),
        6 | 7 => (
            ConflictVersion::PreImage,
            record.pre_image.clone(),
            PRE_IMAGE,
        ),
        _ => {
            let row = Some(text_of(world, &record.table));
            (ConflictVersion::Given(row.clone()), row, GIVEN)
        }
    };
    let choice = ConflictChoice {
        conflict: record.id,
        version,
        force: random.percent(25),
        judgement: Judgement::default(),
        by: CLERK.into(),
        now_ms: world.now().unix_ms,
    };
    world.chronicle.note(&format!(
        "{CLERK}: {choice:?} of {} {}",
        record.table, record.key
    ));
    let mut worker = centre.worker().await?;
    let outcome = worker.settle_conflict(choice).await;
    if !matches!(&outcome, Ok(it) if !matches!(it, SettleOutcome::Settled { .. })) {
        world.clerk_wrote((&record.table, &record.key), row.as_deref());
    }
    if tell(world, outcome?) {
        world.chronicle.fault(kind);
        if is_parked {
            world.chronicle.fault(PARKED);
        }
    }
    Ok(())
}

async fn settle_refused(
    world: &Rc<World>,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let Some(host) = world.any_host(random) else {
        return Ok(());
    };
    let centre = host.command(world.centre_path()).await?;
    let open = RefusedFilter {
        open: true,
        limit: LISTED,
        ..RefusedFilter::default()
    };
    let found = centre.find_refused(&open).await?;
    let places: Vec<usize> = (0..found.len()).collect();
    let Some(record) = random.pick(&places).map(|it| &found[it]) else {
        return Ok(());
    };
    let (action, row, kind) = match random.below(10) {
        0..=3 => {
            let is_delete = record.operation == "delete";
            let row = (!is_delete).then(|| record.row.clone());
            (RefusedRowAction::Replay, row, REPLAYED)
        }
        4..=6 => {
            let row = text_of(world, &record.table);
            (RefusedRowAction::Edit(row.clone()), Some(row), EDITED_ROW)
        }
        _ => (RefusedRowAction::Discard("no".into()), None, DISCARDED),
    };
    let choice = RefusedChoice {
        refused: record.id,
        action,
        force: random.percent(15),
        judgement: Judgement::default(),
        by: CLERK.into(),
        now_ms: world.now().unix_ms,
    };
    world.chronicle.note(&format!(
        "{CLERK}: {choice:?} of {} {}",
        record.table, record.key
    ));
    let mut worker = centre.worker().await?;
    let outcome = worker.settle_refused(choice).await;
    let is_undone = matches!(&outcome, Ok(it) if !matches!(it, SettleOutcome::Settled { .. }));
    if !is_undone && kind != DISCARDED {
        world.clerk_wrote((&record.table, &record.key), row.as_deref());
    }
    if tell(world, outcome?) {
        world.chronicle.fault(kind);
    }
    Ok(())
}

/// Another text for a row of a table.
fn text_of(world: &World, table: &str) -> String {
    let mut tables = EDITED.iter().chain(besides::TABLES);
    let column = tables.find(|it| it.name == table).map_or("", |it| it.text);
    let text = format!("by {CLERK} {}", world.keys.next());
    json!({ column: text }).to_string()
}

/// Whether it is settled.
fn tell(world: &World, outcome: SettleOutcome) -> bool {
    world.chronicle.note(&format!("{CLERK}: {outcome:?}"));
    let is_settled = matches!(outcome, SettleOutcome::Settled { .. });
    if !is_settled {
        world.chronicle.fault(NOT_SETTLED);
    }
    is_settled
}
